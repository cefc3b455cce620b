"""What a worker would refuse, as far as the gateway can tell: said at once, not after a wait."""

from __future__ import annotations

from service.contract.errors import DocumentsUnusable, InvalidRequest, ModelNotFound, TooLong
from service.contract.profile_requests import ProfileRequest
from service.usecases import catalogue


def check(request: ProfileRequest) -> None:
    """Refuse what is known to fail, in the worker's own terms.

    Args:
        request: validated.

    Raises:
        ModelNotFound: no preset or demo of that name, or a revision of what has none.
        TooLong: more tokens than the model takes.
        DocumentsUnusable: texts, or facts to retrieve, for a model without a tokenizer.
        InvalidRequest: a continuation for such a model.
    """
    _check_name(request)
    _check_length(request)
    _check_tokenizer(request)


def _check_name(request: ProfileRequest) -> None:
    kind, colon, name = request.model.partition(":")
    if not colon:
        return
    if request.revision is not None:
        raise ModelNotFound(
            f"`revision`: {request.model} has no revisions; leave it out", field="revision"
        )
    demos = [demo.partition(":")[2] for demo in catalogue.DEMO]
    names = {"preset": list(catalogue.PRESETS), "demo": demos}.get(kind)
    if names is not None and catalogue.known(request.model) is None:
        raise ModelNotFound(
            f"`model`: no {kind} is named {name}; there is {', '.join(names)}", field="model"
        )


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


def _check_tokenizer(request: ProfileRequest) -> None:
    """A preset is a configuration and nothing else; with a revision the hub is asked instead."""
    name = catalogue.preset(request.model)
    if name is None or request.weights != "random" or request.revision is not None:
        return
    why = f"the random weights of the preset {name} come without a tokenizer"
    if request.documents.source in {"inline", "corpus"}:
        raise DocumentsUnusable(
            f"`documents.source`: {why}, so it can read random_tokens only",
            field="documents.source",
        )
    if request.needle is not None:
        raise DocumentsUnusable(f"`needle`: {why} to write a fact with", field="needle")
    if request.target is not None:
        raise InvalidRequest(f"`target`: {why} to read it with", field="target")
