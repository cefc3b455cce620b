"""How one stored profile differs from another.

Measured curves are tested tenth by tenth (`lacuna.evidence.pairs`): in pairs where both profiles
read the same documents, as two groups of documents otherwise. Recall is tested depth by depth in
the same way, over groups of facts. Other curves are described only: a
profile keeps no single documents of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lacuna import views
from lacuna.contract.base import rounded, rounded_list
from lacuna.contract.comparisons import (
    ComparedCurve,
    ComparedProfile,
    Comparison,
    MassChange,
    RecallChange,
    ZoneChange,
)
from lacuna.contract.profiles import DocumentSummaries, Interval, Profile, Source
from lacuna.contract.recall import RecallCurve, main_recall, recall_curves
from lacuna.evidence import pairs
from lacuna.evidence.summaries import TENTHS, Summaries, shared
from lacuna.recall_changes import figure, points, recall_changes, recall_in_words
from lacuna.theory import agreement, shape
from lacuna.theory.curve import Curve

F64 = NDArray[np.float64]

NAMED = 2
"""Tenths that a summary names; it counts the others."""


def compare(
    a: Profile, b: Profile, *, source: ComparedCurve | None = None, bins: int = 100
) -> Comparison:
    """How b differs from a.

    Curves of one length are compared token by token, others on `bins` equal intervals of the
    prompt, mass for mass.

    Args:
        source: None: the measured influence, or recall where one of them has no influence.
        bins: intervals of the prompt.

    Raises:
        InvalidRequest: one of the profiles lacks the curve `source`.
    """
    changes = recall_changes(a, b)
    if source is None:
        source = "recall" if a.measured is None or b.measured is None else "measured"
    if source == "recall":
        return _of_recall(a, b, changes, bins)
    return _of_influence(a, b, source, bins, changes)


def _of_influence(
    a: Profile, b: Profile, source: Source, bins: int, changes: list[RecallChange]
) -> Comparison:
    first, second = (Curve(np.asarray(views.curve(p, source))) for p in (a, b))
    binned_a, binned_b = first.bins(bins), second.bins(bins)
    same = len(first) == len(second)
    p, q = (first.influence, second.influence) if same else (binned_a, binned_b)
    rank = agreement.spearman(p, q)
    left, right = (_side(p, source) for p in (a, b))
    documents = [kept(side.influence.summaries) for side in (a, b)]
    common = len(shared(*documents)[0])
    found = pairs.compare(*documents) if source == "measured" else None
    masses = _masses(found, second.bins(TENTHS) - first.bins(TENTHS))
    return Comparison(
        a=left,
        b=right,
        source=source,
        bins=bins,
        summary=in_words(found, left, right, source),
        verdict=None if found is None else found.verdict,
        paired=found is not None and found.paired,
        recall=changes,
        shared_documents=common,
        alpha=None if found is None else found.alpha,
        margin=None if found is None else found.margin,
        detectable=rounded(found.detectable) if found and found.differences else None,
        masses=masses,
        primacy_change=masses[0].value,
        primacy_change_band=_band(masses[0]),
        recency_change=masses[-1].value,
        recency_change_band=_band(masses[-1]),
        wasserstein=rounded(agreement.wasserstein(p, q)),
        spearman=None if rank is None else rounded(rank),
        dead_zone_change=_zone_change(left, right),
        difference=rounded_list((binned_b - binned_a).tolist()),
        warnings=_warnings(left, right, common, found),
    )


def _of_recall(a: Profile, b: Profile, changes: list[RecallChange], bins: int) -> Comparison:
    """By recall; the curves are described as densities over the prompt, the test is by depth."""
    curves = (recall_curves(a.recall), recall_curves(b.recall))
    first, second = (Curve(_recall_density(side, bins)) for side in curves)
    rank = agreement.spearman(first.influence, second.influence)
    left, right = _recall_side(a, first.influence), _recall_side(b, second.influence)
    main = changes[0] if changes else None
    alike = right.model_copy(update={"objective": left.objective})  # recall has no objective
    masses = _masses(None, second.bins(TENTHS) - first.bins(TENTHS))
    return Comparison(
        a=left,
        b=right,
        source="recall",
        bins=bins,
        summary=recall_in_words(main),
        verdict=None if main is None else main.verdict,
        paired=main is not None and main.paired,
        recall=changes,
        shared_documents=0,
        alpha=None if main is None else main.alpha,
        margin=None if main is None else main.margin,
        detectable=None if main is None else main.detectable,
        masses=masses,
        primacy_change=masses[0].value,
        primacy_change_band=None,
        recency_change=masses[-1].value,
        recency_change_band=None,
        wasserstein=rounded(agreement.wasserstein(first.influence, second.influence)),
        spearman=None if rank is None else rounded(rank),
        dead_zone_change=None,
        difference=rounded_list((second.influence - first.influence).tolist()),
        warnings=[
            *_form_warnings(a.recall, b.recall, changes),
            *_warnings(left, alike, main.groups if main and main.paired else 0, None),
        ],
    )


def _form_warnings(
    a: dict[str, RecallCurve] | None,
    b: dict[str, RecallCurve] | None,
    changes: list[RecallChange],
) -> list[str]:
    """Another form of the prompt, a chat template say, moves recall by itself."""
    forms = [(a[one.probe].form, b[one.probe].form) for one in changes] if a and b else []
    return [
        f"different forms of the prompt: a {left}, b {right}; this moves recall by itself"
        for left, right in dict.fromkeys(forms)
        if left != right
    ]


def _recall_density(found: dict[str, RecallCurve], bins: int) -> F64:
    """Recall as shares of its sum over equal intervals, F64[bins]: linear between depths."""
    curve = main_recall(found)
    assert curve is not None
    at = (np.arange(bins) + 0.5) / bins
    values = np.interp(at, curve.depth, curve.probability)
    total = float(values.sum())
    return values / total if total > 0 else np.full(bins, 1 / bins)


def kept(found: DocumentSummaries) -> Summaries:
    """The summaries that a profile keeps, as arrays; rounding is taken out of the masses."""
    masses = np.asarray(found.masses, dtype=np.float64)
    return Summaries(
        tuple(found.keys),
        masses / masses.sum(axis=1, keepdims=True),
        np.asarray(found.first),
        np.asarray(found.last),
        np.asarray(found.totals),
    )


def in_words(
    found: pairs.Comparison | None, a: ComparedProfile, b: ComparedProfile, source: Source
) -> str:
    """How b differs from a, in a sentence without its full stop.

    "influence on the last tenth is 5 points higher (4.1 to 5.9), on the same 32 documents".
    """
    if found is None:
        return f"not tested: a profile keeps no single documents of the curve {source}"
    counts = f"a has {a.documents}, b has {b.documents}"
    if not found.differences:
        return f"undecided: it takes {pairs.MIN_PAIRS} documents on each side; {counts}"
    where = f"on the same {found.documents} documents"
    if not found.paired:
        where = f"on different documents ({a.documents} and {b.documents})"
    if found.verdict == "difference":
        return f"{_moved(found)}, {where}"
    if found.verdict == "no_difference" and found.detectable == 0:
        return f"no difference, {where}: every tenth of the prompt has the same influence"
    seen = points(found.detectable)
    if found.verdict == "no_difference":
        return (
            f"no difference, {where}: a change of {seen} in any tenth of the prompt would be "
            f"found in {pairs.POWER:.0%} of cases"
        )
    return (
        f"undecided, {where}: no change was found, but one of less than {seen} in a tenth of "
        "the prompt may be missed; more documents would tell"
    )


def _moved(found: pairs.Comparison) -> str:
    """The largest changes that are certain, and how many more there are."""
    certain = [(tenth, one) for tenth, one in enumerate(found.differences) if one.p <= found.alpha]
    certain.sort(key=lambda pair: -abs(pair[1].value))
    told = [_change(tenth, one) for tenth, one in certain[:NAMED]]
    more = len(certain) - len(told)
    if not more:
        return " and ".join(told)
    return f"{', '.join(told)}, and {more} more {'tenth' if more == 1 else 'tenths'} changed"


def _change(tenth: int, one: pairs.Difference) -> str:
    names = {0: "influence on the first tenth", TENTHS - 1: "influence on the last tenth"}
    step = 100 // TENTHS
    name = names.get(tenth, f"influence on {step * tenth}-{step * (tenth + 1)}% of the prompt")
    way, sign = ("higher", 1.0) if one.value > 0 else ("lower", -1.0)
    low, high = sorted((sign * one.low, sign * one.high))
    least, most = figure(low), figure(high)
    return f"{name} is {points(sign * one.value)} {way} ({least} to {most})"


def _masses(found: pairs.Comparison | None, plain: np.ndarray) -> list[MassChange]:
    """Changes tenth by tenth: as tested, else the difference of the curves, F64[10]."""
    edges = [tenth / TENTHS for tenth in range(TENTHS + 1)]
    tested = found.differences if found is not None and found.differences else None
    changes = []
    for tenth, value in enumerate(plain.tolist()):
        one = None if tested is None else tested[tenth]
        changes.append(
            MassChange(
                start=edges[tenth],
                end=edges[tenth + 1],
                value=rounded(value if one is None else one.value),
                low=None if one is None else rounded(one.low),
                high=None if one is None else rounded(one.high),
                p=None if one is None else rounded(one.p),
            )
        )
    return changes


def _band(change: MassChange) -> Interval | None:
    if change.low is None or change.high is None:
        return None
    return Interval(low=change.low, high=change.high)


def _recall_side(profile: Profile, density: F64) -> ComparedProfile:
    """A side of a comparison of recall: shape and masses are those of the recall curve."""
    curve = main_recall(profile.recall)
    assert curve is not None
    form = shape.shape(density)
    side = _described(profile, form, curve.groups)
    return side.model_copy(update={"shape_decided": curve.verdict == "varies"})


def _side(profile: Profile, source: Source) -> ComparedProfile:
    influence = views.curve(profile, source)
    side = _described(profile, shape.shape(influence), profile.influence.documents)
    measured = source == "measured"
    return side.model_copy(
        update={
            "shape_decided": bool(profile.shape and profile.shape.decided) if measured else True,
            "dead_zone": profile.dead_zone if measured else views.zone_of(influence),
            "dead_zone_verdict": profile.dead_zone_verdict if measured else None,
        }
    )


def _described(profile: Profile, form: shape.Shape, documents: int) -> ComparedProfile:
    return ComparedProfile(
        id=profile.id,
        model=profile.model.id,
        revision=profile.model.revision,
        weights=profile.request.weights,
        sequence_length=profile.request.sequence_length,
        objective=profile.request.objective,
        documents=documents,
        documents_source=profile.request.documents_source,
        documents_digest=profile.request.documents_digest,
        positional_encoding=profile.request.positional_encoding,
        content_scale=profile.request.content_scale,
        dtype=profile.request.dtype,
        method_version=profile.method_version,
        shape=form.name,
        shape_decided=True,
        primacy_mass=rounded(form.primacy_mass),
        recency_mass=rounded(form.recency_mass),
        dead_zone=None,
        dead_zone_verdict=None,
    )


def _warnings(
    a: ComparedProfile, b: ComparedProfile, common: int, found: pairs.Comparison | None
) -> list[str]:
    """What else differs, so that model and weights alone do not explain the distance."""
    said = [
        f"different {what}: a {left}, b {right}; {why}"
        for what, left, right, why in (
            ("objectives", a.objective, b.objective, "the curves measure different things"),
            ("lengths", a.sequence_length, b.sequence_length, "compared as shares of the prompt"),
            ("positional encodings", a.positional_encoding, b.positional_encoding, "an ablation"),
            ("content scales", a.content_scale, b.content_scale, "predictions differ by it"),
            ("dtypes", a.dtype, b.dtype, "rounding differs"),
            ("method versions", a.method_version, b.method_version, "measure the older one again"),
        )
        if left != right
    ]
    texts = [f"{side.documents} {side.documents_source}" for side in (a, b)]
    if common == a.documents == b.documents:
        return said
    if found is not None and found.paired:
        said.append(
            f"different documents: a {texts[0]}, b {texts[1]}; changes of mass are of the {common} "
            "that both read, the curves of all"
        )
    elif a.documents_source != b.documents_source or a.documents != b.documents:
        said.append(f"different documents: a {texts[0]}, b {texts[1]}; what is read moves curves")
    elif a.sequence_length == b.sequence_length:
        said.append("different tokens: other documents, or another tokenizer reads the same text")
    return said


def _zone_change(a: ComparedProfile, b: ComparedProfile) -> ZoneChange | None:
    if "undecided" in (a.dead_zone_verdict, b.dead_zone_verdict):
        return None
    old, new = a.dead_zone, b.dead_zone
    if old is None or new is None:
        return None
    return ZoneChange(
        start=rounded(new.start / b.sequence_length - old.start / a.sequence_length),
        end=rounded(new.end / b.sequence_length - old.end / a.sequence_length),
        fraction=rounded(new.fraction - old.fraction),
        mean_density=rounded(new.mean_density - old.mean_density),
    )
