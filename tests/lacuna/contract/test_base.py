"""What another version wrote is read: more fields, and names that this version does not know."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from lacuna.contract.base import percent, rounded, rounded_list
from lacuna.contract.jobs import Job
from lacuna.contract.placements import PlacementRequest
from lacuna.contract.profiles import Profile


def of_next_version(profile: Profile) -> dict[str, Any]:
    """An answer with fields and names that this version has never heard of."""
    document: dict[str, Any] = json.loads(profile.model_dump_json())
    document["of_the_next_release"] = {"x": 1}
    document["model"]["block"] = "ring"
    document["shape"]["class"] = "w_shaped"
    document["measured"]["certainty"] = [1.0]
    return document


def test_an_answer_of_another_version_is_read(profile: Profile) -> None:
    document = of_next_version(profile)
    found = Profile.of_answer(json.dumps(document))
    assert found.shape.class_ == "w_shaped"
    assert found.model.block == "ring"
    assert found.measured == profile.measured
    assert Profile.of_answer(profile.model_dump_json()) == profile


def test_what_is_asked_or_stored_stays_strict(profile: Profile) -> None:
    document = json.dumps(of_next_version(profile))
    for read in (Profile.of_stored, Profile.model_validate_json):
        with pytest.raises(ValidationError, match="w_shaped"):
            read(document)
    chunk = {"id": "a", "tokens": 1, "relevance": 1.0}
    for wrong in ({"objective": "x"}, {"density": ["1"]}, {"chunks": [{**chunk, "pinned": "x"}]}):
        body = {"density": [1.0], "chunks": [chunk], **wrong}
        with pytest.raises(ValidationError):
            PlacementRequest.model_validate_json(json.dumps(body))


@pytest.mark.parametrize("state", [3, None, ["done"]])
def test_an_answer_that_lacks_what_is_needed_is_refused(state: Any) -> None:
    document = {
        "id": "a" * 32, "state": state, "attempt": 1, "progress": 0.5, "message": "",
        "position": None, "eta_seconds": None, "failure": None, "profile": None,
        "created_at": "", "started_at": None, "finished_at": None,
    }  # fmt: skip
    with pytest.raises(ValidationError, match="state"):
        Job.of_answer(json.dumps(document))
    assert Job.of_answer(json.dumps({**document, "state": "paused"})).state == "paused"


def test_answers_print_short(profile: Profile) -> None:
    assert len(repr(profile)) < 250
    assert "tokens=64" in repr(profile)


@pytest.mark.parametrize(
    ("value", "expected"), [(0.0, 0.0), (123456.7, 123457.0), (1.23456789e-12, 1.23457e-12)]
)
def test_numbers_have_six_digits(value: float, expected: float) -> None:
    assert rounded(value) == expected
    assert rounded_list(np.array([value, -value])) == [expected, -expected]


def test_percent_has_two_or_three_digits() -> None:
    said = [percent(share) for share in (0.0, 0.0321, -0.0994, 0.09949, 0.1, 1.102, -1.0, 31.4)]
    assert said == ["+0.0%", "+3.2%", "-9.9%", "+9.9%", "+10%", "+110%", "-100%", "+3,140%"]
