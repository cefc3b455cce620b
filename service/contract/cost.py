"""What a profile request costs for a model of known size.

The unit is one multiply-add of a model's forward pass; one core of a CPU does about 1.7e10 of them
a second, with all that goes with each (the backward pass, and reading the kernels). One document
of n tokens costs, with L layers of width w,

    L n w (12 w + 2 n)

12 w for the matrices of a layer and 2 n for its attention. SmolLM2 (w = 576) at 256, 1,024, 2,048
and 4,096 tokens took 1.6e10 to 1.8e10 a second by this formula. The second-moment prediction adds,
for each of 16 documents at most, in m <= 512 bins of positions and with H heads,

    0.6 L n w (12 w + 2 n) + 1.5 L m w 12 w + 0.65 * 4 L H m^3

for a pass that reads the kernels, for the gains of all branches at one token per bin, and for the
evaluation. By it SmolLM2, GPT-2 and a Qwen2 of 24 layers took 1.6e10 to 2.1e10 a second at 256,
1,024 and 2,048 tokens.
"""

from __future__ import annotations

from service.contract.profile_requests import ProfileRequest

ATTENTION = 2.0
MATRICES = 12.0
SECOND_MOMENT_DOCUMENTS = 16
SECOND_MOMENT_BINS = 512
"""Most bins of positions."""
SECOND_MOMENT_WORK = 1e11
"""Multiply-adds 4 L H m^3 per document at which there are fewer bins."""


def cost(request: ProfileRequest, layers: int, heads: int, width: int) -> float:
    """Multiply-adds, in the unit of the module."""
    count, length = request.documents.count, request.sequence_length
    # A forward and a backward pass cost alike; every further probe is a backward pass.
    passes = (1 + request.probes) / 2 if request.resolved_objective == "jacobian" else 1.0
    read = passes * count
    if request.needle is not None:  # forward passes alone, one more without the fact
        read += (request.needle.depths + 1) * request.needle.facts / 2
    found = read * _document(layers, width, length)
    if request.predictions is None or "second_moment" in request.predictions:
        used = min(count, SECOND_MOMENT_DOCUMENTS)
        found += used * _second_moment(layers, heads, width, length)
    return found


def _document(layers: int, width: int, length: int) -> float:
    return layers * length * width * (MATRICES * width + ATTENTION * length)


def _second_moment(layers: int, heads: int, width: int, length: int) -> float:
    bins = min(length, SECOND_MOMENT_BINS)
    gains = layers * bins * width * MATRICES * width
    evaluation = min(4.0 * layers * heads * bins**3, SECOND_MOMENT_WORK)
    return 0.6 * _document(layers, width, length) + 1.5 * gains + 0.65 * evaluation
