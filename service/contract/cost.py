"""What a profile request costs for a model of known size.

The unit is one multiply-add of a model's forward pass; one core of a CPU does about 1.7e10 of them
a second, with all that goes with each (the backward pass, and reading the kernels). One document
of n tokens costs, with L layers of width w,

    L n w (12 w + 2 n)

12 w for the matrices of a layer and 2 n for its attention. SmolLM2 (w = 576) at 256, 1,024, 2,048
and 4,096 tokens took 1.6e10 to 1.8e10 a second by this formula. The second-moment prediction costs
as much as 4,000 further tokens per document, for 16 documents at most.
"""

from __future__ import annotations

from service.contract.profiles import ProfileRequest

ATTENTION = 2.0
MATRICES = 12.0
SECOND_MOMENT_TOKENS = 4_000
SECOND_MOMENT_DOCUMENTS = 16


def cost(request: ProfileRequest, layers: int, width: int) -> float:
    """Multiply-adds, in the unit of the module."""
    count, length = request.documents.count, request.sequence_length
    # A forward and a backward pass cost alike; every further probe is a backward pass.
    passes = (1 + request.probes) / 2 if request.resolved_objective == "jacobian" else 1.0
    read = passes * count
    if request.needle is not None:  # forward passes alone, one more without the fact
        read += (request.needle.depths + 1) * request.needle.facts / 2
    found = read * length * (MATRICES * width + ATTENTION * length)
    if request.predictions is None or "second_moment" in request.predictions:
        used = min(count, SECOND_MOMENT_DOCUMENTS)
        found += used * min(SECOND_MOMENT_TOKENS, 16 * length) * MATRICES * width
    return float(layers * width * found)
