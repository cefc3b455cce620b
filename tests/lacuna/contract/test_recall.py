from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from lacuna.contract.profile_requests import ProfileRequest, RecallRequest, cost, recall_tokens
from lacuna.contract.recall import LEAST_GROUPS, MOST_GROUPS

PASSAGES = [
    {"question": f"Who built tower {i}?", "answers": [f"Mason {i}"], "text": f"Mason {i} built it."}
    for i in range(LEAST_GROUPS * 5)
]


def asked(**fields: Any) -> RecallRequest:
    return RecallRequest.model_validate(fields)


def profile(**recall: Any) -> ProfileRequest:
    return ProfileRequest.model_validate({"model": "x/y", "recall": recall})


def test_the_default_is_competing_facts_until_the_curve_is_known() -> None:
    found = asked()
    assert (found.probes, found.groups, found.depths) == (["facts"], "auto", 5)
    assert (found.form, found.question, found.limit) == ("auto", "last", MOST_GROUPS)
    assert asked(groups=64).limit == 64


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"groups": 15}, "16"),
        ({"groups": 513}, "512"),
        ({"depths": 2}, "3"),
        ({"depths": 11}, "10"),
        ({"probes": []}, "at least 1"),
        ({"probes": ["facts", "facts"]}, "names one twice"),
        ({"probes": ["needle"]}, "facts"),
        ({"probes": ["documents"]}, "`passages` go with the probe"),
        ({"passages": PASSAGES}, "`passages` go with the probe"),
        ({"probes": ["documents"], "passages": PASSAGES[1:]}, "at least 80 passages, not 79"),
        ({"probes": ["documents"], "passages": PASSAGES, "groups": 17}, "at least 85 passages"),
        ({"facts": 8}, "Extra inputs"),
    ],
)
def test_what_cannot_be_measured_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        asked(**fields)


def test_passages_are_confidential_and_enter_as_a_digest() -> None:
    own = profile(probes=["documents"], passages=PASSAGES)
    assert own.confidential
    assert not profile().confidential
    told = json.dumps(own.identity())
    assert "Mason" not in told
    assert "tower" not in told
    changed = [*PASSAGES[:-1], {**PASSAGES[-1], "title": "Towers"}]
    other = profile(probes=["documents"], passages=changed)
    assert other.job_id != own.job_id
    assert own.job_id == profile(probes=["documents"], passages=PASSAGES).job_id


def test_what_changes_the_curve_changes_the_job_and_the_order_of_probes_does_not() -> None:
    changes = [{}, {"groups": 48}, {"depths": 6}, {"form": "plain"}, {"question": "both"}]
    jobs = {profile(**fields).job_id for fields in changes}
    assert len(jobs | {ProfileRequest(model="x/y").job_id}) == len(changes) + 1
    one, other = (
        profile(probes=names).job_id for names in (["facts", "pairs"], ["pairs", "facts"])
    )
    assert one == other


def test_recall_costs_forward_passes() -> None:
    size = (30, 9, 576)
    plain = cost(ProfileRequest(model="x/y"), *size)
    one = cost(profile(groups=16), *size) - plain
    assert cost(profile(groups=16, probes=["facts", "pairs"]), *size) - plain == pytest.approx(
        2 * one
    )
    # A fixed number is looked at once, `auto` four times.
    assert 0 < cost(profile(), *size) - cost(profile(groups=48), *size) < 0.3 * one
    tokens = recall_tokens(asked(groups=16), 256)
    assert 16 * 5 * 256 < tokens < 16 * 5 * 256 * 3
