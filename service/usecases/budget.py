"""What a profile request costs, estimated before it is queued: `service.contract.cost` for the
model's size as the gateway knows it."""

from __future__ import annotations

from collections.abc import Callable

from service.contract.cost import cost as cost_of
from service.contract.errors import TooLarge
from service.contract.profile_requests import ProfileRequest
from service.usecases.catalogue import Architecture, known

ASSUMED = Architecture(24, 16, 1_536)
"""A model that the gateway does not know, for it has no access to the
hub: one of some 700 million parameters."""


def cost(request: ProfileRequest) -> float:
    """Multiply-adds; see `service.contract.cost`."""
    model = known(request.model) or ASSUMED
    return cost_of(request, model.layers, model.heads, model.width)


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
