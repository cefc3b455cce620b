"""Two profiles side by side: pairs, groups, words, and what cannot be tested."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lacuna import views
from lacuna.comparisons import compare, in_words
from lacuna.contract.comparisons import Comparison
from lacuna.contract.profiles import DocumentSummaries, Profile
from lacuna.contract.recall import RecallCurve
from lacuna.evidence import pairs
from lacuna.evidence.summaries import summarise

N = 256


def documents(count: int, rng: np.random.Generator) -> np.ndarray:
    """Norms of heavy-tailed documents of 256 tokens, which differ as real ones do."""
    at, knots = np.linspace(0, 1, N), np.linspace(0, 1, 12)
    base = 0.7 + 0.8 * np.exp(-at / 0.05) + 2.0 * np.exp((at - 1) / 0.08)
    slow = np.stack([np.interp(at, knots, one) for one in rng.normal(size=(count, 12))])
    rows = base * np.exp(0.4 * slow + 0.6 * rng.normal(size=(count, N)))
    return np.asarray(rows * np.exp(0.95 * rng.normal(size=(count, 1))))


def version(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Another version of a model on the same documents: each curve moves a little."""
    at, knots = np.linspace(0, 1, N), np.linspace(0, 1, 6)
    slow = np.stack([np.interp(at, knots, one) for one in rng.normal(size=(len(rows), 6))])
    return np.asarray(rows * np.exp(0.1 * slow))


def scaled(rows: np.ndarray, factor: float) -> np.ndarray:
    """Tokens 1 to 229 of 256 times `factor`."""
    lower = rows.copy()
    lower[:, 1:230] *= factor
    return lower


def reading(profile: Profile, norms: np.ndarray, first: int = 0) -> Profile:
    """The profile with other documents, named from `first` on; its bands stay, to save time."""
    keys = [f"{first + row:032x}" for row in range(len(norms))]
    made = summarise(norms, keys)
    summaries = DocumentSummaries(
        keys=keys,
        masses=made.masses.clip(0, 1).tolist(),
        first=made.first.tolist(),
        last=made.last.tolist(),
        totals=made.totals.tolist(),
    )
    shares = norms / norms.sum(axis=1, keepdims=True)
    update = {"influence": shares.mean(axis=0).tolist(), "summaries": summaries}
    measured = profile.measured.model_copy(update={**update, "documents": len(norms)})
    return profile.model_copy(update={"measured": measured})


def test_a_fall_to_eight_tenths_is_found_in_pairs_and_only_there(make_profile: Any) -> None:
    rng, plain = np.random.default_rng(0), make_profile(tokens=N)
    found = {"paired": 0, "unpaired": 0}
    for _ in range(20):
        rows = documents(16, rng)
        later = version(scaled(rows, 0.8), rng)
        a = reading(plain, rows)
        for kind, first in (("paired", 0), ("unpaired", 1000)):
            answer = compare(a, reading(plain, later, first))
            assert answer.paired == (kind == "paired")
            assert answer.shared_documents == (16 if answer.paired else 0)
            found[kind] += answer.verdict == "difference"
            if answer.paired:
                assert answer.primacy_change_band is not None
                band = answer.recency_change_band
                assert band.low <= answer.recency_change <= band.high
                assert answer.recency_change == pytest.approx(0.045, abs=0.02)
                assert "influence on the last tenth is" in answer.summary
                assert "on the same 16 documents" in answer.summary
    assert found["paired"] >= 18
    assert found["unpaired"] <= 4


def test_the_same_model_differs_neither_on_the_same_documents_nor_on_others(
    make_profile: Any,
) -> None:
    rng, plain = np.random.default_rng(1), make_profile(tokens=N)
    same, others = [], []
    for _ in range(100):
        rows = documents(32, rng)
        a, b = (reading(plain, version(rows, rng)) for _ in "ab")
        same.append(compare(a, b))
        others.append(compare(a, reading(plain, documents(32, rng), 1000)))
    assert sum(one.verdict == "no_difference" for one in same) >= 95
    assert sum(one.verdict == "no_difference" for one in others) >= 95
    assert all(one.margin == pairs.MARGIN for one in same)
    assert not any(one.paired for one in others)
    assert all(one.margin == pairs.GROUPS_MARGIN for one in others)
    assert all("on different documents (32 and 32)" in one.summary for one in others)


def test_an_equal_profile_has_no_difference(profile_of_norms: Any) -> None:
    profile = profile_of_norms(documents(16, np.random.default_rng(2)))
    found = compare(profile, profile)
    assert (found.verdict, found.detectable, found.shared_documents) == ("no_difference", 0, 16)
    assert found.summary.startswith("no difference, on the same 16 documents: every tenth")
    assert found.warnings == []


def test_changes_are_of_the_documents_that_both_read(profile_of_norms: Any) -> None:
    rng = np.random.default_rng(3)
    rows = documents(48, rng)
    later = scaled(rows, 0.8)
    a, b = profile_of_norms(rows[:32]), profile_of_norms(later[16:], "b" * 32, 16)
    found = compare(a, b)
    assert (found.paired, found.shared_documents) == (True, 16)
    shares = [one / one.sum(axis=1, keepdims=True) for one in (rows[16:32], later[16:32])]
    tenths = [np.array([views.rebin(row.tolist(), 10) for row in one]) for one in shares]
    expected = (tenths[1] - tenths[0]).mean(axis=0)
    assert [one.value for one in found.masses] == pytest.approx(expected.tolist(), abs=1e-5)
    assert found.primacy_change == found.masses[0].value
    assert found.recency_change == found.masses[9].value
    (warning,) = found.warnings
    assert "are of the 16 that both read" in warning


def test_few_shared_documents_are_not_paired(profile_of_norms: Any) -> None:
    rows = documents(48, np.random.default_rng(4))
    found = compare(profile_of_norms(rows[:24]), profile_of_norms(rows[20:44], "b" * 32, 20))
    assert (found.paired, found.shared_documents) == (False, 4)
    assert found.verdict is not None


def test_too_few_documents_decide_nothing(profile_of_norms: Any) -> None:
    rows = documents(40, np.random.default_rng(5))
    found = compare(profile_of_norms(rows[:8]), profile_of_norms(rows, "b" * 32))
    assert found.verdict == "undecided"
    assert found.detectable is None
    assert found.primacy_change_band is None
    assert {one.p for one in found.masses} == {None}
    assert found.summary == "undecided: it takes 12 documents on each side; a has 8, b has 40"
    assert found.primacy_change == pytest.approx(
        found.b.primacy_mass - found.a.primacy_mass, abs=1e-5
    )


def test_other_lengths_are_never_paired(make_profile: Any) -> None:
    a, b = make_profile(tokens=64), make_profile(tokens=96, seed=3, identifier="b" * 32)
    renamed = b.measured.summaries.model_copy(
        update={"keys": [f"{row:031x}f" for row in range(32)]}
    )
    b = b.model_copy(update={"measured": b.measured.model_copy(update={"summaries": renamed})})
    found = compare(a, b)
    assert not found.paired
    assert found.summary.endswith("more documents would tell") or "different" in found.summary
    assert any(said.startswith("different lengths: a 64, b 96") for said in found.warnings)


@pytest.mark.parametrize("source", ["residual", "mean_of_norms"])
def test_other_curves_are_described_and_not_tested(source: Any, make_profile: Any) -> None:
    a, b = make_profile(tokens=64), make_profile(tokens=64, seed=3, identifier="b" * 32)
    found = compare(a, b, source=source)
    assert found.verdict is None
    assert (found.paired, found.alpha, found.margin, found.detectable) == (False, None, None, None)
    assert found.summary == (
        f"not tested: a profile keeps no single documents of the curve {source}"
    )
    assert sum(one.value for one in found.masses) == pytest.approx(0, abs=1e-5)
    assert found.primacy_change_band is None
    assert found.a.dead_zone_verdict is None


def spoken(*changes: tuple[int, float, float, float], profile: Comparison) -> str:
    """The sentence for changes (tenth, value, low, high) that are certain."""
    told = {tenth: (value, low, high) for tenth, value, low, high in changes}
    differences = tuple(
        pairs.Difference(str(tenth), *told.get(tenth, (0, -0.01, 0.01)),
                         p=0.001 if tenth in told else 1.0, detectable=0.02)
        for tenth in range(10)
    )  # fmt: skip
    found = pairs.Comparison("difference", True, 32, differences, 0.025, 0.05)
    return in_words(found, profile.a, profile.b, "measured")


def test_the_words_of_a_difference(make_profile: Any) -> None:
    profile = compare(make_profile(), make_profile())
    assert spoken((9, 0.05, 0.041, 0.059), profile=profile) == (
        "influence on the last tenth is 5 points higher (4.1 to 5.9), on the same 32 documents"
    )
    assert spoken((0, -0.01, -0.0125, -0.0075), (9, 0.05, 0.041, 0.059), profile=profile) == (
        "influence on the last tenth is 5 points higher (4.1 to 5.9) and "
        "influence on the first tenth is 1 point lower (0.75 to 1.2), "
        "on the same 32 documents"
    )
    three = [(3, -0.02, -0.03, -0.01), (4, -0.02, -0.03, -0.01), (9, 0.05, 0.04, 0.06)]
    assert spoken(*three, profile=profile) == (
        "influence on the last tenth is 5 points higher (4 to 6), "
        "influence on 30-40% of the prompt is 2 points lower (1 to 3), "
        "and 1 more tenth changed, on the same 32 documents"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"objective": "jacobian"}, "different objectives: a argmax_probability, b jacobian"),
        ({"positional_encoding": "off"}, "different positional encodings: a on, b off"),
        ({"content_scale": "raw"}, "different content scales: a model, b raw"),
        ({"sequence_length": 96}, "different lengths: a 64, b 96"),
        ({"dtype": "bfloat16"}, "different dtypes: a float32, b bfloat16"),
    ],
)
def test_what_else_differs_is_said(changes: dict[str, Any], words: str, make_profile: Any) -> None:
    a = make_profile(tokens=64)
    plain = {"objective": "argmax_probability", "dtype": "float32"}
    a = a.model_copy(update={"request": a.request.model_copy(update=plain)})
    b = a.model_copy(update={"request": a.request.model_copy(update=changes)})
    assert compare(a, a).warnings == []
    found = compare(a, b)
    (warning,) = found.warnings
    assert warning.startswith(words)
    for name, value in changes.items():
        assert getattr(found.b, name) == value


def test_other_documents_are_said(profile_of_norms: Any) -> None:
    rows = documents(32, np.random.default_rng(6))
    a, b = profile_of_norms(rows[:16]), profile_of_norms(rows[16:], "b" * 32, 16)
    assert compare(a, b).warnings == [
        "different tokens: other documents, or another tokenizer reads the same text"
    ]
    corpus = b.request.model_copy(update={"documents_source": "corpus"})
    (said,) = compare(a, b.model_copy(update={"request": corpus})).warnings
    assert said.startswith("different documents: a 16 builtin, b 16 corpus")


def test_a_compared_profile_is_what_its_curve_is(make_profile: Any) -> None:
    a, b = make_profile(tokens=64), make_profile(tokens=96, seed=3, identifier="b" * 32)
    found = compare(a, b, bins=32)
    assert found.a.primacy_mass == pytest.approx(a.shape.primacy_mass, rel=1e-4)
    assert (found.a.dead_zone, found.a.dead_zone_verdict) == (a.dead_zone, a.dead_zone_verdict)
    expected = np.array(views.rebin(b.measured.influence, 32)) - np.array(
        views.rebin(a.measured.influence, 32)
    )
    assert found.difference == pytest.approx(expected.tolist(), abs=1e-6)
    assert found.dead_zone_change is not None
    assert found.dead_zone_change.fraction == pytest.approx(
        b.dead_zone.fraction - a.dead_zone.fraction, abs=1e-6
    )
    unsure = b.model_copy(update={"dead_zone_verdict": "undecided"})
    assert compare(a, unsure).dead_zone_change is None


def test_equal_lengths_are_compared_token_by_token(make_profile: Any) -> None:
    # Within one bin the two differ, so bins alone would see nothing.
    a = make_profile(tokens=64)
    swapped = a.measured.influence.copy()
    swapped[0], swapped[1] = swapped[1], swapped[0]
    b = a.model_copy(update={"measured": a.measured.model_copy(update={"influence": swapped})})
    found = compare(a, b, bins=1)
    assert found.difference == [0.0]
    assert found.wasserstein == pytest.approx(abs(swapped[0] - swapped[1]) / 63, rel=1e-4)


def test_texts_are_not_compared_with_probabilities(
    make_served: Any, recall_curve: RecallCurve
) -> None:
    """One model has another share of right texts than its mean probability of right answers."""
    a, b = make_served("a" * 32), make_served("b" * 32)
    hits = recall_curve.model_copy(update={"rung": "text", "log_probability": None})
    texts = [one.model_copy(update={"recall": {"facts": hits}}) for one in (a, b)]
    found = compare(texts[0], b)
    assert (found.recall, found.verdict, found.paired) == ([], None, False)
    assert found.summary.startswith("not tested: ")
    (told,) = compare(*texts).recall
    assert told.paired
    assert told.level.low < 0 < told.level.high, "equal texts leave room for a change"
    (exact,) = compare(a, b).recall
    assert exact.level.low == exact.level.high == 0


def test_another_form_of_the_prompt_is_said(make_served: Any) -> None:
    b = make_served("b" * 32)
    curve = b.recall["facts"]
    plain, continued = (
        b.model_copy(update={"recall": {"facts": curve.model_copy(update={"form": form})}})
        for form in ("plain", "continued")
    )
    assert "forms" not in " ".join(compare(plain, plain.model_copy()).warnings)
    said = compare(plain, continued).warnings
    assert said[0].startswith("different forms of the prompt: a plain, b continued; ")
