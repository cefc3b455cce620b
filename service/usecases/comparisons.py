"""Two profiles side by side."""

from __future__ import annotations

import numpy as np

from service.contract.profiles import Profile
from service.contract.views import ComparedProfile, Comparison, Source, ZoneChange
from service.theory import agreement, shape
from service.theory.curve import Curve
from service.usecases.views import DIGITS, curve, significant, zone_of

THRESHOLD = shape.THRESHOLD


def compare(a: Profile, b: Profile, *, source: Source = "measured", bins: int = 100) -> Comparison:
    """How b differs from a.

    Curves of one length are compared token by token, others on `bins` equal intervals of the
    prompt, mass for mass.

    Raises:
        InvalidRequest: one of the profiles lacks the curve `source`.
    """
    first, second = (Curve(np.asarray(curve(p, source))) for p in (a, b))
    binned_a, binned_b = first.bins(bins), second.bins(bins)
    same = len(first) == len(second)
    p, q = (first.influence, second.influence) if same else (binned_a, binned_b)
    rank = agreement.spearman(p, q)
    left, right = (_side(p, source) for p in (a, b))
    return Comparison(
        a=left,
        b=right,
        source=source,
        bins=bins,
        wasserstein=_short(agreement.wasserstein(p, q)),
        spearman=None if rank is None else _short(rank),
        noise_a=a.measured.split_half_wasserstein,
        noise_b=b.measured.split_half_wasserstein,
        primacy_change=_short(right.primacy_mass - left.primacy_mass),
        recency_change=_short(right.recency_mass - left.recency_mass),
        dead_zone_change=_zone_change(left, right),
        difference=significant(binned_b - binned_a),
        warnings=_warnings(left, right),
    )


def _side(profile: Profile, source: Source) -> ComparedProfile:
    influence = curve(profile, source)
    form = shape.shape(influence)
    stored = source == "measured" and profile.dead_zone is not None
    return ComparedProfile(
        id=profile.id,
        model=profile.model.id,
        revision=profile.model.revision,
        weights=profile.request.weights,
        sequence_length=profile.request.sequence_length,
        objective=profile.request.objective,
        documents=profile.measured.documents,
        documents_source=profile.request.documents_source,
        documents_digest=profile.request.documents_digest,
        positional_encoding=profile.request.positional_encoding,
        content_scale=profile.request.content_scale,
        dtype=profile.request.dtype,
        method_version=profile.method_version,
        shape=form.name,
        primacy_mass=_short(form.primacy_mass),
        recency_mass=_short(form.recency_mass),
        dead_zone=profile.dead_zone if stored else zone_of(influence, THRESHOLD),
    )


def _warnings(a: ComparedProfile, b: ComparedProfile) -> list[str]:
    """What differs beside model and weights, so that not all of the distance is theirs."""
    said = [
        f"different {what}: a {left}, b {right}; {why}"
        for what, left, right, why in (
            ("objectives", a.objective, b.objective, "the curves measure different things"),
            ("lengths", a.sequence_length, b.sequence_length, "compared as shares of the prompt"),
            ("positional encodings", a.positional_encoding, b.positional_encoding, "an ablation"),
            ("content scales", a.content_scale, b.content_scale, "predictions differ by it"),
            ("dtypes", a.dtype, b.dtype, "rounding differs"),
            ("method versions", a.method_version, b.method_version, "measure the older one anew"),
        )
        if left != right
    ]
    if a.documents_source != b.documents_source or a.documents != b.documents:
        texts = [f"{side.documents} {side.documents_source}" for side in (a, b)]
        said.append(f"different documents: a {texts[0]}, b {texts[1]}; what is read moves curves")
    elif a.documents_digest != b.documents_digest:
        said.append("different tokens: other documents, or another tokenizer reads the same text")
    return said


def _zone_change(a: ComparedProfile, b: ComparedProfile) -> ZoneChange | None:
    if a.dead_zone is None or b.dead_zone is None:
        return None
    old, new = a.dead_zone, b.dead_zone
    return ZoneChange(
        start=_short(new.start / b.sequence_length - old.start / a.sequence_length),
        end=_short(new.end / b.sequence_length - old.end / a.sequence_length),
        fraction=_short(new.fraction - old.fraction),
        mean_density=_short(new.mean_density - old.mean_density),
    )


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
