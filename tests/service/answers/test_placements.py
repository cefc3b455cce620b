"""The placement use case: every option, and the inputs that broke other reorderers."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from lacuna.contract.errors import InvalidRequest, ProfileNotFound, TooLong
from lacuna.contract.placements import PlacementRequest, PlacementResponse
from lacuna.contract.profiles import Profile, ProfileBody, ProfilePage, ProfileSummary
from lacuna.placement import curve as curves
from lacuna.placement.answer import place
from lacuna.placement.profile_curve import of_body
from lacuna.views import binned
from service.answers.placements import answer
from service.store.profiles import StoredProfile

MakeProfile = Callable[..., Profile]
SIX = 1e-5
"""Relative tolerance for numbers with 6 significant digits."""
U = [4.0, 2.0, 1.0, 0.5, 0.4, 0.4, 0.5, 1.0, 2.0, 5.0]


def chunk(name: str, tokens: int, relevance: float, **more: Any) -> dict[str, Any]:
    return {"id": name, "tokens": tokens, "relevance": relevance, **more}


def chunks(m: int, tokens: int = 10) -> list[dict[str, Any]]:
    return [chunk(f"c{i}", tokens, (m - i) / m) for i in range(m)]


def solve(body: dict[str, Any]) -> PlacementResponse:
    body = {"density": U, "relevance_scale": "probability", **body}
    request = PlacementRequest.model_validate(body)
    return place(request, curves.of_density(request.density or U))


class Shelf:
    """Profiles in memory."""

    def __init__(self, *profiles: Profile) -> None:
        self.profiles = profiles  # newest first

    async def get(self, profile_id: str) -> StoredProfile | None:
        for profile in self.profiles:
            if profile.id == profile_id:
                body = profile.model_dump_json(include=set(ProfileBody.model_fields))
                return StoredProfile(body.encode(), b"{}", b"{}")
        return None

    async def summaries(
        self, model: str | None = None, limit: int = 20, cursor: str | None = None
    ) -> ProfilePage:
        items = [
            ProfileSummary(
                id=one.id, model=one.model.id, revision=None, weights=one.request.weights,
                sequence_length=one.request.sequence_length, objective="jacobian", documents=8,
                shape="u_shaped", dead_zone=None, dead_zone_verdict="none",
                primacy_mass=0.3, recency_mass=0.3,
                created_at=one.created_at,
            )
            for one in self.profiles
            if model in (None, one.model.id)
        ]  # fmt: skip
        return ProfilePage(items=items[:limit], next=None)


def trained(profile: Profile, **measured: Any) -> Profile:
    return profile.model_copy(
        update={
            "request": profile.request.model_copy(
                update={"weights": "pretrained", "documents_source": "builtin"}
            ),
            "measured": profile.measured.model_copy(update=measured),
        }
    )


# --- the answer ---------------------------------------------------------------------------------


def test_offsets_count_prefix_separators_and_suffix() -> None:
    answered = solve(
        {"chunks": chunks(4, 25), "prefix_tokens": 7, "suffix_tokens": 11, "separator_tokens": 3}
    )
    assert answered.prompt_tokens == 7 + 4 * 25 + 3 * 3 + 11
    assert [one.offset for one in answered.placements] == [7, 35, 63, 91]
    assert sorted(answered.order) == ["c0", "c1", "c2", "c3"]
    assert answered.method == "exact"
    assert answered.gap == 0


def test_value_is_the_sum_of_relevance_times_visibility() -> None:
    body = {"chunks": [chunk("a", 30, 0.8), chunk("b", 5, 0.2), chunk("c", 12, 0.4)]}
    answered = solve(body)
    relevance = {"a": 0.8, "b": 0.2, "c": 0.4}
    total = sum(relevance[one.id] * one.visibility for one in answered.placements)
    assert answered.value == pytest.approx(total, rel=SIX)
    assert answered.mean_visibility == pytest.approx(total / 1.4, rel=SIX)
    mass = sum(one.mass for one in answered.placements)
    assert mass == pytest.approx(1, rel=SIX)  # no prefix, no suffix: all of it falls on chunks
    by_mass = solve(body | {"objective": "total_mass"})
    total = sum(relevance[one.id] * one.mass for one in by_mass.placements)
    assert by_mass.value == pytest.approx(total, rel=SIX)


def test_worst_case_looks_at_the_top_chunks() -> None:
    body = {"chunks": chunks(9), "objective": "worst_case", "top_k": 4}
    answered = solve(body)
    seen = {one.id: one.visibility for one in answered.placements}
    assert answered.value == pytest.approx(min(seen[f"c{i}"] for i in range(4)))
    assert answered.value >= max(seen[f"c{i}"] for i in range(4, 9))


@pytest.mark.parametrize("m", range(11))
def test_gains_are_never_negative(m: int) -> None:
    answered = solve({"chunks": chunks(m)})
    gains = answered.gain.model_dump(exclude={"document_order"}).values()
    assert all(one is None for one in gains) is (m == 0)
    assert all(one["low"] == one["value"] == one["high"] >= 0 for one in gains if m)


def test_parity_never_decides_who_is_last() -> None:
    for m in range(1, 11):
        rising = solve({"density": [float(i) for i in range(100)], "chunks": chunks(m)})
        assert rising.order[-1] == "c0"


def test_ties_keep_the_order_of_preference() -> None:
    same = [chunk(f"c{i}", 10, 0.5) for i in range(10)]
    assert solve({"chunks": same}).order == [f"c{i}" for i in range(10)]
    answered = solve({"chunks": same, "strategy": "optimal"})
    seen = {one.id: one.visibility for one in answered.placements}
    ranked = [round(seen[f"c{i}"], 9) for i in range(10)]
    assert ranked == sorted(ranked, reverse=True)


def test_the_request_is_left_unchanged() -> None:
    body = {"density": U, "chunks": chunks(6)}
    before = copy.deepcopy(body)
    solve(body)
    assert body == before


def test_a_thousand_chunks() -> None:
    rng = np.random.default_rng(0)
    many = [chunk(f"c{i}", int(rng.integers(60, 196)), float(rng.random())) for i in range(1000)]
    answered = solve({"chunks": many})
    assert answered.method == "heuristic"
    assert sorted(answered.order) == sorted(one["id"] for one in many)
    assert 0 <= answered.gap < 0.01


def test_zero_length_chunks_and_empty_prompts() -> None:
    answered = solve({"chunks": [chunk("a", 0, 1.0), chunk("b", 30, 0.1), chunk("c", 0, 0.0)]})
    assert answered.order[-1] != "c"
    assert answered.prompt_tokens == 30
    empty = solve({"chunks": [chunk("a", 0, 0.5), chunk("b", 0, 1.0)]})
    assert sorted(empty.order) == ["a", "b"]
    assert solve({"chunks": []}).order == []


# --- relevance ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "scores"),
    [
        ("probability", [0.9, 0.2, 0.5]),
        ("score", [-0.5, -3.0, -1.2]),
        ("logit", [2.0, -4.0, 0.0]),
        ("distance", [0.1, 0.9, 0.5]),
        ("rank", [1.0, 3.0, 2.0]),
    ],
)
def test_every_scale_puts_the_best_where_the_curve_is_highest(
    scale: str, scores: list[float]
) -> None:
    body = [chunk(name, 10, score) for name, score in zip("abc", scores, strict=True)]
    answered = solve({"chunks": body, "relevance_scale": scale})
    seen = {one.id: one.visibility for one in answered.placements}
    assert seen["a"] > seen["c"] > seen["b"]
    assert answered.relevance.scale == scale
    basis = {"probability": "probability", "logit": "logit"}.get(scale, "hit_curve")
    assert answered.relevance.basis == basis


def test_scores_never_let_a_short_chunk_take_the_place_of_a_better_one() -> None:
    lengths = (400, 200, 20)
    for density in (U, U[::-1], [1.0, 1.0, 5.0], [5.0, 1.0, 1.0]):
        orders = []
        for tokens in (lengths, lengths[::-1]):
            scores = zip("abc", tokens, (0.90, 0.83, 0.828), strict=True)
            body = [chunk(name, size, score) for name, size, score in scores]
            answered = solve(
                {"density": density, "chunks": body, "relevance_scale": "score",
                 "strategy": "optimal"}
            )  # fmt: skip
            orders.append(answered.order)
            assert not answered.relevance.by_length
            assert "1 of 2 neighbouring scores are nearly equal" in answered.relevance.notes[0]
        assert orders[0] == orders[1]


def test_a_calibration_makes_probabilities_and_lets_length_decide() -> None:
    reliability = {
        "brier": 0.1, "brier_base": 0.2, "calibration_error": 0.01, "calibration_error_low": 0.0,
        "calibration_error_high": 0.02, "labels": 100, "positives": 50, "questions": 20,
    }  # fmt: skip
    calibration = {
        "family": "isotonic", "x": [0.2, 0.8], "y": [0.1, 0.7], "reliability": reliability,
    }  # fmt: skip
    scores = [chunk("a", 30, 0.2), chunk("b", 20, 0.5), chunk("c", 10, 0.8)]
    answered = solve({"chunks": scores, "calibration": calibration})
    assert answered.relevance.basis == "calibration"
    assert answered.relevance.by_length
    given = {"a": 0.1, "b": 0.4, "c": 0.7}
    total = sum(given[one.id] * one.visibility for one in answered.placements)
    assert answered.value == pytest.approx(total, rel=SIX)


def test_a_probability_beyond_one_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="between 0 and 1"):
        solve({"chunks": [chunk("a", 10, 1.2)]})


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chunks": [{"id": "a", "tokens": 3}]}, "relevance"),
        ({"chunks": [chunk("a", 3, float("nan"))]}, "relevance"),
        ({"chunks": [chunk("a", 3, float("inf"))]}, "relevance"),
        ({"chunks": [chunk("a", 3, None)]}, "relevance"),  # type: ignore[arg-type]
        ({"chunks": [chunk("a", -1, 1.0)]}, "tokens"),
        ({"chunks": [chunk("a", 3, 1.0), chunk("a", 4, 1.0)]}, "repeats"),
        ({"chunks": [chunk("a", 3, 1.0, text="x")]}, "one of the two"),
        ({"chunks": [{"id": "a", "relevance": 1.0}]}, "one of the two"),
        ({"chunks": [chunk("a", 3, 1.0, group="g", pinned="first")]}, "pinned"),
        ({"chunks": [chunk("a", 3, 1.0, pinned=0), chunk("b", 3, 1.0, pinned=0)]}, "two are"),
        ({"density": [0.0, 0.0], "chunks": []}, "zero everywhere"),
        ({"density": [], "chunks": []}, "density"),
        ({"density": [1.0, -1.0], "chunks": []}, "density"),
        ({"model": "gpt2", "chunks": []}, "give one of"),
        ({"source": "measurd", "chunks": []}, "source"),
        ({"chunks": [], "max_tokns": 3}, "max_tokns"),
        ({"chunks": [], "relevance_scale": "cosine"}, "relevance_scale"),
        ({"chunks": [], "strategy": "cache_prefix"}, "previous_order"),
        ({"chunks": [], "max_chunks": "many"}, "max_chunks"),
        ({"chunks": [], "distractor_cost": 0.1}, "distractor_cost"),
        ({"chunks": [chunk("a", 3, 1.0, position=1)]}, "position"),
        (
            {
                "chunks": [
                    chunk("a", 3, 1.0, document="d", position=1),
                    chunk("b", 3, 1.0, document="d"),
                ]
            },
            "some have none",
        ),
    ],
)
def test_refused_by_the_contract(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PlacementRequest.model_validate({"density": U, **change})


def test_no_curve_at_all_is_refused() -> None:
    with pytest.raises(ValidationError, match="give one of"):
        PlacementRequest.model_validate({"chunks": []})


def test_pins_beyond_the_end_or_on_top_of_each_other_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="place 5"):
        solve({"chunks": [chunk("a", 3, 1.0, pinned=5), chunk("b", 3, 1.0)]})
    with pytest.raises(InvalidRequest, match="one place"):
        solve({"chunks": [chunk("a", 3, 1.0, pinned=0), chunk("b", 3, 1.0, pinned="first")]})


def test_a_prompt_beyond_the_limit_is_refused() -> None:
    with pytest.raises(TooLong, match="1000000"):
        solve({"chunks": [chunk("a", 1_000_000, 1.0), chunk("b", 1, 1.0)]})


# --- budgets, pins, groups ----------------------------------------------------------------------


def test_ten_chunks_of_three_into_ten() -> None:
    answered = solve({"chunks": chunks(10, 3), "max_tokens": 10})
    assert answered.prompt_tokens == 9
    assert [one.id for one in answered.dropped] == [f"c{i}" for i in range(3, 10)]
    assert {one.reason for one in answered.dropped} == {"max_tokens"}


@pytest.mark.parametrize("separator", [0, 1, 4])
@pytest.mark.parametrize("budget", [20, 33, 50, 77])
def test_the_budget_counts_everything_and_is_never_exceeded(separator: int, budget: int) -> None:
    answered = solve(
        {
            "chunks": chunks(20, 7),
            "max_tokens": budget,
            "prefix_tokens": 5,
            "suffix_tokens": 4,
            "separator_tokens": separator,
        }
    )
    assert answered.prompt_tokens <= budget
    assert answered.prompt_tokens + 7 + separator > budget


def test_everything_that_fits_stays() -> None:
    assert solve({"chunks": chunks(5, 10), "max_tokens": 50}).dropped == []
    assert solve({"chunks": chunks(5, 10), "max_chunks": 5}).dropped == []
    dropped = solve({"chunks": chunks(5, 10), "max_chunks": 2}).dropped
    assert [one.id for one in dropped] == ["c2", "c3", "c4"]
    assert {one.reason for one in dropped} == {"max_chunks"}


def test_a_single_chunk_longer_than_the_budget_is_dropped() -> None:
    answered = solve({"chunks": [chunk("a", 100, 1.0)], "max_tokens": 10})
    assert answered.order == []
    assert [one.id for one in answered.dropped] == ["a"]
    assert answered.value == 0


def test_a_budget_below_prefix_and_suffix_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="prefix and suffix"):
        solve({"chunks": chunks(2), "prefix_tokens": 9, "suffix_tokens": 2, "max_tokens": 10})


def test_pinned_chunks_stay_where_they_belong_and_are_never_dropped() -> None:
    body = chunks(8)
    body[7]["pinned"], body[6]["pinned"], body[0]["pinned"] = "first", "last", 2
    answered = solve({"chunks": body})
    assert (answered.order[0], answered.order[-1], answered.order[2]) == ("c7", "c6", "c0")
    kept = solve({"chunks": body, "max_chunks": 4})
    assert {"c7", "c6", "c0"} < set(kept.order)
    with pytest.raises(InvalidRequest, match="budget"):
        solve({"chunks": body, "max_chunks": 2})


@pytest.mark.parametrize("m", [6, 20])
def test_groups_keep_their_inner_order(m: int) -> None:
    body = [chunk(f"c{i}", 10 + i, ((i * 7) % 5) / 5, group="g") for i in range(m // 2)]
    body += [chunk(f"x{i}", 10, i / m) for i in range(m - m // 2)]
    order = [name for name in solve({"chunks": body}).order if name.startswith("c")]
    assert order == [f"c{i}" for i in range(m // 2)]


# --- strategies and advice ----------------------------------------------------------------------


def test_a_flat_curve_keeps_the_callers_order() -> None:
    for strategy in ("advised", "optimal"):
        shuffled = [chunk(name, 10 + i, 0.1 + 0.2 * i) for i, name in enumerate("dbca")]
        answered = solve({"density": [1.0], "chunks": shuffled, "strategy": strategy})
        assert answered.order == ["d", "b", "c", "a"]
        assert answered.advice.decision == "keep"


def test_the_advised_order_is_the_callers_unless_something_is_gained() -> None:
    best = solve({"chunks": chunks(6)})
    assert best.advice.decision == "reorder"
    assert best.advice.order is None
    assert best.gain.given is not None
    assert best.gain.given.value > 0
    named = {one["id"]: one for one in chunks(6)}
    again = solve({"chunks": [named[name] for name in best.order]})
    assert again.order == best.order
    assert again.advice.decision == "keep"
    assert again.gain.given is not None
    assert again.gain.given.value == 0


def test_document_order_and_its_gain() -> None:
    body = [
        chunk("b2", 10, 0.9, document="b", position=2),
        chunk("a1", 10, 0.5, document="a", position=1),
        chunk("b1", 10, 0.3, document="b", position=1),
    ]
    answered = solve({"chunks": body, "strategy": "document_order"})
    assert answered.order == ["b1", "b2", "a1"]
    assert answered.advice.name == "document_order"
    assert answered.gain.document_order is not None
    assert answered.gain.document_order.value == 0
    plain = solve({"chunks": [{**one, "document": None, "position": None} for one in body]})
    assert plain.gain.document_order is None


def test_a_cache_prefix_stays() -> None:
    body = {"chunks": chunks(5), "strategy": "cache_prefix", "previous_order": ["c3", "c1", "gone"]}
    answered = solve(body)
    assert answered.order[:2] == ["c3", "c1"]
    assert answered.strategy == answered.advice.name == "cache_prefix"


def test_a_stable_order_does_not_follow_the_question() -> None:
    rng = np.random.default_rng(1)
    some = [chunk(f"c{i}", int(rng.integers(5, 60)), float(rng.random() ** 4)) for i in range(12)]
    orders = [
        solve({"chunks": some, "strategy": "stable", "suffix_tokens": tokens}).order
        for tokens in (3, 20, 50)
    ]
    assert orders[0] == orders[1] == orders[2]


def test_auto_keeps_what_is_worth_it_and_says_why() -> None:
    many = [chunk(f"c{i}", 50, 1 - i / 40) for i in range(40)]
    answered = solve({"chunks": many, "relevance_scale": "score", "max_chunks": "auto"})
    assert 3 < len(answered.order) < 40
    kept = {f"c{i}" for i in range(len(answered.order))}
    assert set(answered.order) == kept
    assert {one.reason for one in answered.dropped} == {"no_gain"}
    assert "may be zero" in answered.dropped[0].detail
    dear = {"max_chunks": "auto", "distractor_cost": 0.05, "relevance_scale": "score"}
    fewer = solve({"chunks": many, **dear})
    assert len(fewer.order) < len(answered.order)
    assert {one.reason for one in fewer.dropped} == {"distractor_cost"}
    pinned = [*many[:-1], {**many[-1], "pinned": "last"}]
    assert solve({"chunks": pinned, **dear}).order[-1] == "c39"


async def test_few_documents_are_undecided(make_profile: MakeProfile) -> None:
    few = Shelf(trained(make_profile(documents=11)))
    answered = await answer(_by_id(chunks(6, 10)), few)
    assert answered.advice.decision == "undecided"
    assert "11 documents are too few" in answered.advice.reason
    assert answered.order == [f"c{i}" for i in range(6)]
    assert answered.advice.order is not None
    assert answered.gain.given is not None
    assert (answered.gain.given.low, answered.gain.given.high) == (None, None)
    best = await answer(_by_id(chunks(6, 10), strategy="optimal"), few)
    assert best.advice.decision == "undecided"
    assert best.order != answered.order
    enough = await answer(_by_id(chunks(6, 10)), Shelf(trained(make_profile(documents=32))))
    assert enough.advice.decision == "reorder"
    assert enough.gain.given is not None
    assert enough.gain.given.low is not None
    assert 0 < enough.gain.given.low < enough.gain.given.value < enough.gain.given.high


async def test_curves_without_documents_are_undecided(make_profile: MakeProfile) -> None:
    shelf = Shelf(trained(make_profile(documents=32)))
    for source in ("residual", "mean_of_norms"):
        answered = await answer(_by_id(chunks(6, 10), source=source), shelf)
        assert answered.advice.decision == "undecided"
        assert answered.order == [f"c{i}" for i in range(6)]


# --- dead zone, suggestions, length -------------------------------------------------------------


def test_dead_zone_chunks_are_flagged_and_something_else_suggested() -> None:
    answered = solve({"chunks": [chunk(f"c{i}", 30, 1.0) for i in range(10)]})
    assert answered.dead_zone is not None
    inside = [one for one in answered.placements if one.in_dead_zone]
    assert inside
    for one in inside:
        assert one.visibility < answered.dead_zone.threshold
        assert one.offset < answered.dead_zone.end
        assert one.offset + one.tokens > answered.dead_zone.start
    assert [one.kind for one in answered.suggestions] == ["book_end", "split_query"]
    first_inside = min(int(one.id[1:]) for one in inside)
    assert answered.suggestions[0].chunk_id == f"c{first_inside}"
    assert all("in this order" in one.detail for one in answered.suggestions)
    one_good = [chunk("best", 30, 1.0)] + [chunk(f"c{i}", 30, 0.0) for i in range(9)]
    assert solve({"chunks": one_good}).suggestions == []


@given(
    st.lists(st.floats(0, 10), min_size=2, max_size=40),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), min_size=1, max_size=7),
    st.floats(0.1, 3),
)
@settings(max_examples=60, deadline=None)
def test_in_dead_zone_never_contradicts_visibility(
    density: list[float], sizes: list[tuple[int, int]], threshold: float
) -> None:
    assume(max(density) > 0.01)
    body = [chunk(f"c{i}", tokens, r / 5) for i, (tokens, r) in enumerate(sizes)]
    answered = solve({"density": density, "chunks": body, "dead_zone_threshold": threshold})
    for one in answered.placements:
        assert not one.in_dead_zone or one.visibility < threshold
        assert not one.in_dead_zone or answered.dead_zone is not None


def test_a_loud_chunk_amid_the_dead_zone_is_not_in_it() -> None:
    density = [3.0] * 10 + [0.3] * 40 + [2.0] + [0.3] * 39 + [3.0] * 10
    body = [chunk("head", 50, 1.0, pinned=0), chunk("loud", 1, 1.0, pinned=1)]
    body.append(chunk("tail", 49, 1.0, pinned=2))
    answered = solve({"density": density, "chunks": body})
    assert answered.dead_zone is not None
    assert answered.dead_zone.start < 50 < answered.dead_zone.end
    loud = answered.placements[1]
    assert loud.visibility > 1
    assert not loud.in_dead_zone


def _with_copy(body: dict[str, Any], answered: PlacementResponse) -> PlacementResponse:
    """The prompt that the book end of an answer advises, in that order."""
    advised = next(one for one in answered.suggestions if one.kind == "book_end")
    named = {one["id"]: one for one in body["chunks"]}
    order = [named[name] for name in answered.order]
    copy_ = {**named[str(advised.chunk_id)], "id": "copy"}
    order = [*order, copy_] if "as the last one" in advised.detail else [copy_, *order]
    fixed = [{**one, "pinned": place_} for place_, one in enumerate(order)]
    return solve({**body, "chunks": fixed})


@pytest.mark.parametrize("separator", [0, 7])
@pytest.mark.parametrize("density", [U, U[::-1], [9.0, 8.0, *[0.5] * 18]])
def test_a_book_end_is_what_it_says(density: list[float], separator: int) -> None:
    body = {
        "density": density,
        "chunks": [chunk(f"c{i}", 20 + i, 1.0) for i in range(8)],
        "prefix_tokens": 5,
        "separator_tokens": separator,
    }
    answered = solve(body)
    advised = [one for one in answered.suggestions if one.kind == "book_end"]
    assert advised
    longer = {one.id: one.visibility for one in _with_copy(body, answered).placements}
    now = next(one for one in answered.placements if one.id == advised[0].chunk_id)
    assert longer["copy"] >= 0.75
    assert longer["copy"] > now.visibility
    assert f"visibility {longer['copy']:.3g} instead of {now.visibility:.3g}" in advised[0].detail


def test_no_book_end_where_no_end_is_heard() -> None:
    """Loud in the middle: both ends are the dead part."""
    density = [*[0.3] * 40, *[5.0] * 10, *[0.3] * 10]
    answered = solve({"density": density, "chunks": [chunk(f"c{i}", 30, 1.0) for i in range(10)]})
    assert [one.kind for one in answered.suggestions] == ["split_query"]


def test_no_book_end_beyond_the_budget_or_past_a_pin() -> None:
    body: dict[str, Any] = {"chunks": [chunk(f"c{i}", 30, 1.0) for i in range(10)]}
    for limit in ({"max_tokens": 300}, {"max_chunks": 10}):
        assert [one.kind for one in solve(body | limit).suggestions] == ["split_query"]
    body["chunks"][0]["pinned"], body["chunks"][1]["pinned"] = "first", "last"
    assert [one.kind for one in solve(body).suggestions] == ["split_query"]
    body["chunks"][1]["pinned"] = None
    (book_end, _) = solve(body).suggestions
    assert "as the last one" in book_end.detail


def test_numbers_have_six_digits() -> None:
    answered = solve({"chunks": [chunk(f"c{i}", 7 + i, 1 / (3 + i)) for i in range(8)]})
    document = json.loads(answered.model_dump_json())

    def numbers(value: Any) -> list[float]:
        if isinstance(value, dict):
            return [n for part in value.values() for n in numbers(part)]
        if isinstance(value, list):
            return [n for part in value for n in numbers(part)]
        return [value] if isinstance(value, float) else []

    found = numbers(document)
    assert len(found) > 20
    assert [n for n in found if n != float(f"{n:.6g}")] == []
    assert answered.upper_bound == answered.value


def test_dead_zone_of_a_long_prompt_is_in_tokens() -> None:
    long = solve({"chunks": chunks(10, 1000)})
    short = solve({"chunks": chunks(10, 100)})
    assert long.dead_zone is not None
    assert short.dead_zone is not None
    assert long.dead_zone.fraction == pytest.approx(short.dead_zone.fraction, abs=0.02)
    assert long.dead_zone.end <= long.prompt_tokens
    assert [one.in_dead_zone for one in long.placements] == [
        one.in_dead_zone for one in short.placements
    ]


@pytest.mark.parametrize("tokens", [1_024, 1_536, 2_047, 3_000, 16_384, 16_385, 65_537])
def test_a_spike_at_the_end_moves_the_zone_of_no_length(tokens: int) -> None:
    others = 0.7 * tokens / (tokens - 1)
    density = [*[others] * (tokens - 1), 0.3 * tokens]
    one = [chunk("a", tokens, 1.0)]
    zone = solve({"density": density, "chunks": one}).dead_zone
    assert zone is not None
    near = 0 if tokens <= 16_384 else tokens / 4_096 + 1
    assert zone.start == 0
    assert tokens - 1 - near <= zone.end <= tokens - 1
    assert zone.start <= zone.argmin < zone.end
    assert zone.mean_density == pytest.approx(others, rel=1e-5)
    none = solve({"density": density, "chunks": one, "dead_zone_threshold": 0.7})
    assert none.dead_zone is None


def test_a_binned_view_of_a_profile_is_refused(make_profile: MakeProfile) -> None:
    view = binned(trained(make_profile(tokens=64)), 16)
    with pytest.raises(InvalidRequest, match="16 bins, not at its 64 tokens"):
        of_body(view, None)


def test_nothing_is_said_of_the_rest_of_a_value_of_nothing() -> None:
    body = {
        "density": [1.0, 1.0, 1.0, 1.0, 0.0],
        "chunks": [chunk(f"c{i}", 10 + i, 1.0) for i in range(14)],
        "objective": "worst_case",
        "top_k": 14,
    }
    answered = solve(body)
    assert answered.method == "heuristic"
    assert answered.value == 0
    assert answered.upper_bound > 0
    assert answered.gap is None


async def test_a_profile_of_another_length_is_extrapolated(make_profile: MakeProfile) -> None:
    shelf = Shelf(trained(make_profile(tokens=64)))
    same = await answer(_by_id(chunks(4, 16)), shelf)
    assert not same.extrapolated
    assert same.confidence.profile_tokens == same.prompt_tokens == 64
    other = await answer(_by_id(chunks(4, 160)), shelf)
    assert other.extrapolated
    assert other.confidence.profile_tokens == 64
    assert other.confidence.prompt_tokens == 640
    assert other.confidence.level == "low"
    assert any("64" in reason and "640" in reason for reason in other.confidence.reasons)


async def test_extrapolation_weighs_as_much_as_the_lengths_differ(
    make_profile: MakeProfile,
) -> None:
    shelf = Shelf(trained(make_profile(tokens=64), split_half_wasserstein=0.01))
    levels = {}
    for tokens in (8, 16, 18, 31, 33, 65, 129, 1600):
        one = await answer(_by_id(chunks(4, tokens)), shelf)
        levels[tokens] = one.confidence.level
        said = [reason for reason in one.confidence.reasons if "and read at" in reason]
        assert one.extrapolated is (tokens != 16)
        assert len(said) == one.extrapolated
        if tokens == 18:
            assert "1.125 times as long: next to no difference" in said[0]
        if tokens == 8:
            assert "2 times as short" in said[0]
            assert "squeezed a little" in said[0]
    best = levels[16]
    assert best == "medium"
    assert (levels[8], levels[18], levels[31]) == (best, best, best)
    assert (levels[33], levels[65], levels[129]) == ("low", "low", "low")
    assert levels[1600] == "low"


async def test_a_prompt_beyond_the_context_is_flagged(make_profile: MakeProfile) -> None:
    shelf = Shelf(trained(make_profile()))  # max_length 1,024
    assert (await answer(_by_id(chunks(4, 100)), shelf)).exceeds_context is False
    over = await answer(_by_id(chunks(4, 300)), shelf)
    assert over.exceeds_context is True
    assert any("1024" in warning for warning in over.warnings)
    assert solve({"chunks": chunks(2)}).exceeds_context is None


def _by_id(some: list[dict[str, Any]], **more: Any) -> PlacementRequest:
    body = {"profile_id": "a" * 32, "relevance_scale": "probability", "chunks": some, **more}
    return PlacementRequest.model_validate(body)


# --- where the curve comes from -----------------------------------------------------------------


async def test_unknown_profile_or_curve(make_profile: MakeProfile) -> None:
    with pytest.raises(ProfileNotFound):
        await answer(_by_id(chunks(2)), Shelf())
    shelf = Shelf(make_profile())
    for source in ("recall", "cesaro", "last_token_attention"):
        with pytest.raises(InvalidRequest, match="it has measured, mean_of_norms, residual"):
            await answer(_by_id(chunks(2), source=source), shelf)


async def test_noise_lowers_confidence(make_profile: MakeProfile) -> None:
    noisy = Shelf(trained(make_profile(), split_half_wasserstein=0.2))
    assert (await answer(_by_id(chunks(4, 16)), noisy)).confidence.level == "low"


async def test_by_model_takes_the_newest_trained_profile(make_profile: MakeProfile) -> None:
    name = "owner/name"
    untrained = make_profile(identifier="b" * 32, model=name)
    newest = trained(make_profile(identifier="c" * 32, model=name))
    oldest = trained(
        make_profile(identifier="d" * 32, model=name), last_token_attention=[1 / 64] * 64
    )
    shelf = Shelf(untrained, newest, oldest)
    body = {"model": name, "chunks": chunks(3, 20)}
    assert (await answer(PlacementRequest.model_validate(body), shelf)).profile_id == "c" * 32
    body["source"] = "last_token_attention"
    assert (await answer(PlacementRequest.model_validate(body), shelf)).profile_id == "d" * 32
    body["model"] = "owner/other"
    with pytest.raises(ProfileNotFound, match="allow_theory"):
        await answer(PlacementRequest.model_validate(body), shelf)


def theory(**fields: Any) -> dict[str, Any]:
    return {"layers": 24, "heads": 8, **fields}


async def test_architecture_alone_gives_a_theory_curve_at_the_prompts_length() -> None:
    body = {"architecture": theory(), "chunks": chunks(6, 30)}
    answered = await answer(PlacementRequest.model_validate(body), Shelf())
    assert answered.source == "theory"
    assert answered.confidence.level == "low"
    assert answered.confidence.basis == "theory"
    assert not answered.extrapolated
    assert answered.warnings
    # Without position or content the causal mask favours the front.
    assert answered.placements[0].visibility > 2 * answered.placements[3].visibility
    body["architecture"] = theory(positional_encoding="alibi", layers=4)
    alibi = await answer(PlacementRequest.model_validate(body), Shelf())
    assert alibi.placements[-1].visibility > 2 * alibi.placements[0].visibility


async def test_theory_of_a_very_long_prompt_is_computed_shorter_and_says_so() -> None:
    body = {
        "architecture": theory(positional_encoding="alibi", window=64, layers=64, heads=64),
        "chunks": chunks(3, 10_000),
    }
    assert (await answer(PlacementRequest.model_validate(body), Shelf())).extrapolated


async def test_theory_stands_in_for_a_missing_profile_when_allowed(
    make_profile: MakeProfile,
) -> None:
    body: dict[str, Any] = {"model": "owner/name", "chunks": chunks(4, 30), "allow_theory": True}
    with pytest.raises(ProfileNotFound, match="give `architecture`"):
        await answer(PlacementRequest.model_validate(body), Shelf())
    untrained = make_profile(model="owner/name")
    known = await answer(PlacementRequest.model_validate(body), Shelf(untrained))
    assert known.source == "theory"
    assert known.exceeds_context is False
    given = await answer(
        PlacementRequest.model_validate(body | {"architecture": theory()}), Shelf()
    )
    assert given.source == "theory"
    measured = await answer(PlacementRequest.model_validate(body), Shelf(trained(untrained)))
    assert measured.source == "measured"


@pytest.mark.parametrize(("model", "exceeds"), [("gpt2", True), ("preset:gpt2", True),
                                                ("preset:bloom-176b", None)])  # fmt: skip
async def test_theory_by_name_knows_how_long_a_prompt_may_be(
    model: str, exceeds: bool | None
) -> None:
    body = {"model": model, "chunks": chunks(31, 100), "allow_theory": True}
    answered = await answer(PlacementRequest.model_validate(body), Shelf())
    assert answered.exceeds_context is exceeds


async def test_theory_of_a_model_known_by_name() -> None:
    body = {"model": "gpt2", "chunks": chunks(4, 30), "allow_theory": True}
    named = await answer(PlacementRequest.model_validate(body), Shelf())
    gpt2 = theory(layers=12, heads=12, positional_encoding="learned")
    given = {"architecture": gpt2, "chunks": chunks(4, 30)}
    nameless = await answer(PlacementRequest.model_validate(given), Shelf())
    assert named == nameless.model_copy(update={"exceeds_context": False})


async def test_theory_counts_texts_with_the_models_own_tokenizer(
    make_profile: MakeProfile,
) -> None:
    class Words:
        async def count(self, tokenizer_digest: str, texts: Sequence[str]) -> list[int] | None:
            return [len(text.split()) for text in texts] if tokenizer_digest == "d1" else None

    profile = trained(make_profile(model="owner/name"))
    described = profile.model.model_copy(update={"tokenizer_digest": "d1"})
    shelf = Shelf(profile.model_copy(update={"model": described}))
    body = {
        "model": "owner/name", "source": "cesaro", "allow_theory": True,
        "chunks": [{"id": "a", "text": "one two three", "relevance": 1.0}],
    }  # fmt: skip
    answered = await answer(PlacementRequest.model_validate(body), shelf, Words())
    assert answered.source == "theory"
    assert answered.placements[0].tokens == 3


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"positional_encoding": "off"}, "ablation"),
        ({"documents_source": "random_tokens"}, "random tokens"),
    ],
)
async def test_what_sets_a_profile_apart_from_the_model_as_it_is_used_lowers_its_trust(
    make_profile: MakeProfile, asked: dict[str, Any], reason: str
) -> None:
    plain = trained(make_profile())
    odd = plain.model_copy(update={"request": plain.request.model_copy(update=asked)})
    before = (await answer(_by_id(chunks(4, 16)), Shelf(plain))).confidence
    after = (await answer(_by_id(chunks(4, 16)), Shelf(odd))).confidence
    assert (before.level, after.level) == ("medium", "low")
    assert any(reason in text for text in after.reasons)


async def test_a_preset_has_untrained_profiles_only(make_profile: MakeProfile) -> None:
    body = {"model": "preset:gpt2", "chunks": chunks(4, 16)}
    answered = await answer(PlacementRequest.model_validate(body), Shelf(make_profile()))
    assert answered.source == "measured"
    assert any("random" in reason for reason in answered.confidence.reasons)


async def test_texts_are_counted_or_refused(make_profile: MakeProfile) -> None:
    class Words:
        async def count(self, tokenizer_digest: str, texts: Sequence[str]) -> list[int] | None:
            return [len(text.split()) for text in texts] if tokenizer_digest == "d1" else None

    profile = trained(make_profile())
    texts = [{"id": "a", "text": "one two three", "relevance": 1.0}, chunk("b", 5, 0.5)]
    with pytest.raises(InvalidRequest, match="give `tokens`"):
        await answer(_by_id(texts), Shelf(profile), Words())
    for digest, tokens in (("d1", 3), ("d2", None)):
        described = profile.model.model_copy(update={"tokenizer_digest": digest})
        shelf = Shelf(profile.model_copy(update={"model": described}))
        if tokens is None:
            with pytest.raises(InvalidRequest, match="give `tokens`"):
                await answer(_by_id(texts), shelf, Words())
        else:
            answered = await answer(_by_id(texts), shelf, Words())
            assert {one.id: one.tokens for one in answered.placements} == {"a": 3, "b": 5}


async def test_large_requests_answer_alike(make_profile: MakeProfile) -> None:
    """Beyond some size the work leaves the event loop; the answer is the same."""
    many = chunks(100, 400)
    body = {"density": U, "relevance_scale": "probability", "chunks": many}
    request = PlacementRequest.model_validate(body)
    assert await answer(request, Shelf()) == solve({"chunks": many})


@pytest.mark.parametrize("separator", range(6))
@pytest.mark.parametrize("suffix", range(6))
def test_separators_longer_than_the_suffix(separator: int, suffix: int) -> None:
    for m in (2, 3, 12, 13):
        body = {
            "density": [1],
            "chunks": [chunk(f"c{i}", 1 + 37 * (i % 2), 1.0) for i in range(m)],
            "separator_tokens": separator,
            "suffix_tokens": suffix,
        }
        plain = solve(body)
        assert plain.prompt_tokens == sum(1 + 37 * (i % 2) for i in range(m)) + (
            separator * (m - 1) + suffix
        )
        assert plain.order == [f"c{i}" for i in range(m)]  # all places are alike
        assert plain.value == pytest.approx(m)
        solve(body | {"strategy": "stable", "objective": "worst_case"})
        tight = solve(body | {"max_tokens": plain.prompt_tokens - 1})
        assert len(tight.dropped) == 1
        assert tight.prompt_tokens < plain.prompt_tokens
