"""What a worker would refuse, as far as the gateway can tell: said at once, not after a wait."""

from __future__ import annotations

from service.contract.errors import TooLong
from service.contract.profile_requests import ProfileRequest
from service.usecases import catalogue


def check(request: ProfileRequest) -> None:
    """Refuse what is known to fail, in the worker's own terms.

    Args:
        request: validated.

    Raises:
        TooLong: more tokens than the model takes.
    """
    _check_length(request)


def _check_length(request: ProfileRequest) -> None:
    model = catalogue.known(request.model)
    # Another revision may have another configuration.
    limit = model.max_length if model is not None and request.revision is None else None
    if limit is not None and request.sequence_length > limit:
        raise TooLong(
            f"`sequence_length`: {request.sequence_length} tokens are more than the {limit} that "
            f"{request.model} can take",
            field="sequence_length",
        )
