"""What a profile request costs, estimated before it is queued.

The unit is one multiply-add of a model's forward pass; one core of a CPU does about 1.7e10 of them
a second, with all that goes with each (the backward pass, and reading the kernels). One document
of n tokens costs, with L layers of width w,

    L n w (12 w + 2 n)

12 w for the matrices of a layer and 2 n for its attention. SmolLM2 (w = 576) at 256, 1,024, 2,048
and 4,096 tokens took 1.6e10 to 1.8e10 a second by this formula. The second-moment prediction costs
as much as 4,000 further tokens per document, for 16 documents at most.
"""

from __future__ import annotations

from collections.abc import Callable

from service.contract.errors import TooLarge
from service.contract.profiles import ProfileRequest
from service.usecases.catalogue import Shape, known_shape

ASSUMED_SHAPE: Shape = (24, 16, 1_536)
"""(layers, heads, width) of a model that the gateway does not know, for it has no access to the
hub: one of some 700 million parameters."""
ATTENTION = 2.0
MATRICES = 12.0
SECOND_MOMENT_TOKENS = 4_000
SECOND_MOMENT_DOCUMENTS = 16


def cost(request: ProfileRequest) -> float:
    """Multiply-adds, in the unit of the module."""
    layers, _heads, width = known_shape(request.model) or ASSUMED_SHAPE
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


def check(request: ProfileRequest, limit: float, queue: str = "cpu") -> None:
    """Refuse a request that costs more than `limit`.

    Args:
        request: validated.
        limit: the most it may cost.
        queue: where it would run; part of the sentence.

    Raises:
        TooLarge: naming the field to lower, and what would fit.
    """
    asked = cost(request)
    if asked <= limit:
        return
    count, length = request.documents.count, request.sequence_length
    documents = _largest(count, lambda k: cost(_with(request, k, length)) <= limit)
    tokens = _largest(length, lambda n: cost(_with(request, count, n)) <= limit)
    one = _largest(length, lambda n: cost(_with(request, 1, n)) <= limit)
    field = "documents.count" if documents else "sequence_length"
    fitting = [
        f"{documents} documents of {length} tokens" if documents else "",
        f"{count} documents of {tokens} tokens" if tokens else "",
        f"one document of {one} tokens" if one and not documents else "",
    ]
    what = " or ".join(filter(None, fitting)) or "nothing that can be asked of this model"
    if cost(request.model_copy(update={"predictions": []})) <= limit:
        what += ", or all of it without the prediction second_moment"
    raise TooLarge(
        f"`{field}`: {count} documents of {length} tokens cost about {asked:.2g} multiply-adds, "
        f"the limit of the {queue} queue is {limit:.2g}; within it are {what}",
        field=field,
    )


def _with(request: ProfileRequest, count: int, length: int) -> ProfileRequest:
    documents = request.documents.model_copy(update={"count": count})
    return request.model_copy(update={"documents": documents, "sequence_length": length})


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `most` that fits, 0 when not even 1 does."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
