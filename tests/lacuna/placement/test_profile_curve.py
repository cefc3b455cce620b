"""Which profile of a model serves a prompt."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from lacuna.contract.placements import PlacementRequest
from lacuna.contract.profiles import Profile, ProfileSummary
from lacuna.placement.answer import place
from lacuna.placement.profile_curve import by_suitability, of_body


def summary(name: str, **changes: Any) -> ProfileSummary:
    fields = {
        "id": name.ljust(32, "0"), "model": "owner/name", "revision": "r2",
        "weights": "pretrained", "sequence_length": 256, "objective": "argmax_probability",
        "documents": 16, "shape": "flat", "dead_zone": None, "dead_zone_verdict": "none",
        "primacy_mass": 0.1,
        "recency_mass": 0.1, "created_at": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    return ProfileSummary.model_validate({**fields, **changes})


def request(tokens: int = 240, **changes: Any) -> PlacementRequest:
    chunks = [{"id": "a", "tokens": tokens, "relevance": 1.0}]
    return PlacementRequest.model_validate({"model": "owner/name", "chunks": chunks, **changes})


def best(*newest_first: ProfileSummary, **changes: Any) -> str:
    return by_suitability(newest_first, request(**changes))[0].id.rstrip("0")


def test_the_newest_of_equals() -> None:
    assert best(summary("a"), summary("b")) == "a"
    assert by_suitability([], request()) == []


@pytest.mark.parametrize(
    "less",
    [
        {"positional_encoding": "off"},
        {"documents_source": "random_tokens"},
        {"documents": 1},
        {"documents": 11},
        {"objective": "target_logprob"},
        {"documents_source": "inline"},
        {"documents_source": "inline", "documents": 64},
        {"sequence_length": 64},
        {"sequence_length": 1_024},
    ],
)
def test_an_older_profile_that_suits_better_wins(less: dict[str, Any]) -> None:
    assert best(summary("a", **less), summary("b")) == "b"


def test_an_older_revision_never_does() -> None:
    newest = summary("a", revision="r3", sequence_length=64, documents=1)
    assert best(newest, summary("b")) == "a"


def test_lengths_within_the_same_power_of_two_are_alike() -> None:
    assert best(summary("a", sequence_length=200), summary("b", sequence_length=240)) == "a"


def test_as_many_documents_but_for_a_few_are_alike() -> None:
    assert best(summary("a", documents=16), summary("b", documents=20)) == "a"


def test_the_prompts_length_counts_everything_that_stands_in_it() -> None:
    short, long = summary("a", sequence_length=64), summary("b", sequence_length=1_024)
    assert best(short, long, tokens=60) == "a"
    assert best(short, long, tokens=60, prefix_tokens=500, suffix_tokens=400) == "b"
    assert best(short, long, tokens=2_000, max_tokens=70) == "a"
    text = [{"id": "a", "text": "word " * 800, "relevance": 1.0}]
    assert best(short, long, chunks=text) == "b"
    assert best(short, long, chunks=[]) == "a"


@pytest.mark.parametrize("verdict", ["varies", "flat", "undecided", "floor", "ceiling"])
def test_recall_decides_only_where_its_own_test_does(
    make_served: Callable[..., Profile], verdict: str
) -> None:
    """A curve that may be the same at all depths gives no order with certainty."""
    groups = [[0.1, 0.1, 0.2, 0.5, 0.9]] * 16
    profile = make_served(by_group=groups)
    assert profile.recall is not None
    found = profile.recall["facts"].model_copy(update={"verdict": verdict})
    body = profile.model_copy(update={"recall": {"facts": found}})
    chunks = [{"id": str(i), "tokens": 50, "relevance": 0.9 - i / 5} for i in range(4)]
    asked = PlacementRequest.model_validate({"density": [1.0], "chunks": chunks})
    curve = of_body(body, "recall")
    advice = place(asked, dataclasses.replace(curve, length=200)).advice
    assert advice.decision == ("reorder" if verdict == "varies" else "undecided")
