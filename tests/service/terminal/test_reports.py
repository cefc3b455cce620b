"""What the terminal says of a profile and of a comparison."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from rich.console import Console

from lacuna.comparisons import compare
from lacuna.contract.profiles import DeadZone, Interval, ProfileSummary, SameDocuments
from lacuna.contract.recall import RecallCurve
from service.terminal import reports, stored


def console() -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=100, color_system=None), text


def test_recall_is_printed_by_depth(make_profile: Any, recall_curve: RecallCurve) -> None:
    plain = make_profile(tokens=64)
    with_recall = plain.model_copy(update={"recall": {"facts": recall_curve}})
    for profile, there in ((plain, False), (with_recall, True)):
        out, text = console()
        reports.profile_report(out, profile)
        said = text.getvalue()
        for words in ("recall of facts", "0.200", "0.100..0.300", "40 groups of 5", "varies",
                      "closed book 0.020", "0.90 [0.50, 1.00]"):  # fmt: skip
            assert (words in said) == there
    few = recall_curve.model_copy(
        update=dict.fromkeys(
            ("low", "high", "simultaneous_low", "simultaneous_high", "p", "influence_density")
        )
    )
    out, text = console()
    reports.profile_report(out, plain.model_copy(update={"recall": {"facts": few}}))
    assert "0.200" in text.getvalue()
    assert "0.100..0.300" not in text.getvalue()


def test_what_the_documents_do_not_decide_is_called_undecided(make_profile: Any) -> None:
    for documents, there in ((8, True), (32, False)):
        profile = make_profile(tokens=64, documents=documents)
        assert profile.dead_zone is not None
        out, text = console()
        reports.profile_report(out, profile)
        assert ("undecided (u_shaped)" in text.getvalue()) == there
        assert ("of this curve alone" in text.getvalue()) == there
        assert ("its 95% band" in text.getvalue()) != there


def test_a_shape_between_two_names_both(make_profile: Any) -> None:
    profile = make_profile(tokens=64)
    update = {"decided": False, "support": {"u_shaped": 0.66, "recency": 0.31, "flat": 0.03}}
    shape = profile.shape.model_copy(update=update)
    assert reports.shape_words(shape) == "undecided (u_shaped 66%, recency 31%)"
    assert reports.shape_words(profile.shape) == "u_shaped"


def test_documents_say_why_there_are_no_more(make_profile: Any) -> None:
    profile = make_profile(tokens=64)
    sampling = {"reason": "budget", "half_width": 0.05, "target": 0.03, "at_double": 0.035,
                "needed": 90}  # fmt: skip
    measured = profile.measured.model_copy(
        update={"sampling": profile.measured.sampling.model_copy(update=sampling)}
    )
    out, text = console()
    reports.profile_report(out, profile.model_copy(update={"measured": measured}))
    said = " ".join(text.getvalue().split())
    assert "32 (the most allowed; tenths known to 5.0%, to 3% with about 90)" in said


def test_a_prediction_that_read_documents_is_compared_on_them(make_profile: Any) -> None:
    profile = make_profile(tokens=64)
    for distance, where in ((0.01, "within"), (0.03, "beyond")):
        same = SameDocuments(documents=16, wasserstein=distance, noise=0.02)
        moment = profile.predictions["residual"].model_copy(
            update={"same_documents": same, "wasserstein": 0.0}
        )
        out, text = console()
        reports.profile_report(
            out, profile.model_copy(update={"predictions": {"second_moment": moment}})
        )
        assert f"16 it read, {where} paired noise (0.0200)" in " ".join(text.getvalue().split())


def test_the_list_tells_profiles_of_one_model_apart(make_profile: Any) -> None:
    plain = ProfileSummary(
        id="a" * 32, model="gpt2", revision="0123456789abcdef", weights="pretrained",
        sequence_length=64, objective="argmax_probability", documents=16, shape="flat",
        dead_zone=None, dead_zone_verdict="none", primacy_mass=0.1, recency_mass=0.1,
        created_at="2026-01-01T00:00:00Z",
    )  # fmt: skip
    changes: dict[str, dict[str, Any]] = {
        "16 inline": {"documents_source": "inline"},
        "16 news": {"documents_source": "corpus", "documents_name": "news"},
        "jacobian": {"objective": "jacobian"},
        "89abcdef": {"revision": "89abcdef01234567"},
        "seed 7, positions off": {"seed": 7, "positional_encoding": "off"},
        "raw content, recall too": {"content_scale": "raw", "recall": True},
    }
    for words, change in changes.items():
        out, text = console()
        reports.profile_list(out, [plain, plain.model_copy(update=change)])
        first, second = text.getvalue().splitlines()[1:]
        assert words in second
        assert words not in first
        assert "01234567 " in first


def test_stretches_are_named_by_their_first_and_last_token(make_profile: Any) -> None:
    zone = DeadZone(
        start=5, end=9, fraction=0.1, mean_density=0.5, min_density=0.4, argmin=6, threshold=0.75,
        start_band=Interval(low=1, high=6), end_band=Interval(low=8, high=12),
    )  # fmt: skip
    out, text = console()
    reports.profile_report(out, make_profile(tokens=64).model_copy(update={"dead_zone": zone}))
    assert "5-8 (10%)" in text.getvalue()
    assert "1..6 - 7..11" in text.getvalue()
    assert zone.model_copy(update={"end": 6}).span == "5"


def test_one_token_has_nothing_to_predict(make_profile: Any) -> None:
    plain = make_profile(tokens=64)
    request = plain.request.model_copy(update={"sequence_length": 1})
    for profile, there in ((plain, True), (plain.model_copy(update={"request": request}), False)):
        out, text = console()
        reports.profile_report(out, profile)
        assert ("closest: " in text.getvalue()) == there
    assert ", 1 token " in text.getvalue()


def test_a_comparison_says_what_else_differs(make_profile: Any) -> None:
    a = make_profile(tokens=64)
    request = a.request.model_copy(update={"positional_encoding": "off"})
    for b, there in ((a, False), (a.model_copy(update={"request": request}), True)):
        out, text = console()
        curve = a.measured.influence
        stored.comparison_report(out, compare(a, b), [curve, curve])
        assert ("note: different positional encodings" in text.getvalue()) == there


def test_a_difference_in_pairs_is_told_tenth_by_tenth(profile_of_norms: Any) -> None:
    rows = np.random.default_rng(0).lognormal(0, 0.5, (16, 100))
    lower = rows.copy()
    lower[:, :90] *= 0.8
    a, b = profile_of_norms(rows), profile_of_norms(lower, "b" * 32)
    for other, there in ((a, False), (b, True)):
        out, text = console()
        answer = compare(a, other)
        curve = other.measured.influence
        stored.comparison_report(out, answer, [a.measured.influence, curve])
        said = text.getvalue()
        assert f"B against A: {answer.summary}" in said
        assert "on the same 16 documents" in said
        assert ("mass on each tenth of the prompt" in said) == there
        assert ("influence on the last tenth is 2" in said) == there
