"""What may be answered from the cache for ever, and what must be measured again."""

from __future__ import annotations

from typing import Any

import pytest

from lacuna.contract import profile_requests as contract
from lacuna.contract.profile_requests import ProfileRequest
from service.answers.profiles import is_pinned

COMMIT = "a" * 40
CORPUS = {"source": "corpus", "name": "x"}


@pytest.mark.parametrize(
    ("fields", "pinned"),
    [
        ({"model": "demo:smollm2-135m-instruct"}, True),
        ({"model": "preset:gpt2", "weights": "random"}, True),
        ({"model": "gpt2", "revision": COMMIT}, True),
        ({"model": "gpt2", "revision": "main"}, False),
        ({"model": "gpt2", "revision": COMMIT[1:]}, False),
        ({"model": "gpt2"}, False),
        ({"model": "local:tiny"}, False),
        ({"model": "gpt2", "revision": COMMIT, "documents": CORPUS}, False),
        ({"model": "demo:smollm2-135m-instruct", "documents": CORPUS}, False),
        ({"model": "preset:gpt2", "weights": "random", "documents": CORPUS}, False),
    ],
)
def test_only_what_cannot_change_is_answered_for_ever(fields: dict[str, Any], pinned: bool) -> None:
    assert is_pinned(ProfileRequest.model_validate(fields)) is pinned


def test_another_method_is_another_job(monkeypatch: pytest.MonkeyPatch) -> None:
    request = ProfileRequest.model_validate({"model": "preset:gpt2", "weights": "random"})
    before = request.job_id
    assert before == request.job_id
    monkeypatch.setattr(contract, "METHOD_VERSION", "of the next release")
    assert request.job_id != before
