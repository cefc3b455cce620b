"""What a profile request costs, estimated before it is queued."""

from __future__ import annotations

from service.contract.errors import TooLarge
from service.contract.profiles import ProfileRequest

KNOWN_SHAPES: dict[str, tuple[int, int]] = {
    "demo:smollm2-135m-instruct": (30, 9),
}
"""(layers, heads) of models that the gateway knows by name. The gateway has no hub access; it
learns the shape of other models from their profiles."""
ASSUMED_SHAPE = (32, 32)
"""Of a model that nobody has measured yet: a model of seven billion parameters."""


def cost(request: ProfileRequest, shape: tuple[int, int] | None = None) -> float:
    """length x layers x heads x documents, times the probes where each is a pass of its own.

    Args:
        request: validated.
        shape: (layers, heads) if the model is known.
    """
    layers, heads = shape or KNOWN_SHAPES.get(request.model, ASSUMED_SHAPE)
    passes = request.probes if request.resolved_objective == "jacobian" else 1
    read = request.documents.count * request.sequence_length
    if request.needle is not None:
        read += request.needle.depths * request.needle.facts * request.sequence_length
    return float(read) * passes * layers * heads


def check(request: ProfileRequest, limit: float, shape: tuple[int, int] | None = None) -> None:
    """Refuse a request that costs more than `limit`.

    Raises:
        TooLarge: naming the field to lower.
    """
    asked = cost(request, shape)
    if asked <= limit:
        return
    alone = asked / request.documents.count
    field = "sequence_length" if alone > limit else "documents.count"
    raise TooLarge(
        f"length x layers x heads x documents (x probes) is about {asked:.2g}, above the limit of "
        f"{limit:.2g}: lower `{field}`",
        field=field,
    )
