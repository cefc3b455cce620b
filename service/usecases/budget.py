"""What a profile request costs, estimated before it is queued."""

from __future__ import annotations

from service.contract.errors import TooLarge
from service.contract.profiles import ProfileRequest
from service.usecases.catalogue import Shape, known_shape

ASSUMED_SHAPE: Shape = (32, 32)
"""(layers, heads) of a model that the gateway does not know, for it has no access to the hub: one
of seven billion parameters."""


def cost(request: ProfileRequest) -> float:
    """length x layers x heads x documents, times the probes where each is a pass of its own."""
    layers, heads = known_shape(request.model) or ASSUMED_SHAPE
    passes = request.probes if request.resolved_objective == "jacobian" else 1
    read = request.documents.count * request.sequence_length
    if request.needle is not None:
        read += request.needle.depths * request.needle.facts * request.sequence_length
    return float(read) * passes * layers * heads


def check(request: ProfileRequest, limit: float) -> None:
    """Refuse a request that costs more than `limit`.

    Raises:
        TooLarge: naming the field to lower.
    """
    asked = cost(request)
    if asked <= limit:
        return
    alone = asked / request.documents.count
    field = "sequence_length" if alone > limit else "documents.count"
    raise TooLarge(
        f"length x layers x heads x documents (x probes) is about {asked:.2g}, above the limit of "
        f"{limit:.2g}: lower `{field}`",
        field=field,
    )
