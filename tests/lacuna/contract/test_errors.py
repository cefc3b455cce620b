from __future__ import annotations

import re

from lacuna.contract import errors


def drawn() -> dict[str, tuple[str, bool]]:
    """The tree as the module's docstring draws it: class -> code, retryable."""
    rows = re.findall(r"[├└]── (\w+) +(\w+) +(yes|no)", errors.__doc__ or "")
    return {name: (code, word == "yes") for name, code, word in rows}


def test_the_drawing_matches_the_classes() -> None:
    leaves = {kind.__name__: (code, kind.retryable) for code, kind in errors.BY_CODE.items()}
    assert drawn() == leaves


def test_every_code_belongs_to_one_class() -> None:
    assert all(kind.code == code for code, kind in errors.BY_CODE.items())


def test_an_error_carries_its_sentence_and_field() -> None:
    error = errors.TooLong("sequence_length: at most 512", field="sequence_length")
    assert isinstance(error, errors.LacunaError)
    assert (error.detail, error.field, str(error)) == (
        "sequence_length: at most 512",
        "sequence_length",
        "sequence_length: at most 512",
    )
