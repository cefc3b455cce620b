"""What a profile says of its documents' gradient norms: curves, bands, zone, shape, agreement.

Every document is normalised to shares first. The main curve is their mean; whatever is said of it
comes with an interval over documents from `lacuna.evidence`, where there are enough of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lacuna import views
from lacuna.contract.base import rounded, rounded_list
from lacuna.contract.profiles import (
    DeadZone,
    DocumentSampling,
    DocumentSummaries,
    Interval,
    Measured,
    Prediction,
    SameDocuments,
    SamplingEnd,
    Shape,
    ZoneVerdict,
)
from lacuna.evidence import aggregates, bands, sampling, zones
from lacuna.evidence.bands import MIN_EFFECTIVE
from lacuna.evidence.sampling import DOCUMENTS
from lacuna.evidence.summaries import TENTHS, overlaps, summarise
from lacuna.theory import agreement, shape
from lacuna.theory.curve import normalised

F64 = NDArray[np.float64]
Aggregate = Literal["mean", "rms"]

RANKED = 20
"""Most intervals over which curves are ranked: jackknife intervals of a rank correlation hold for
ten to twenty values, not for hundreds."""
DECIDED = 0.95
"""Share of redrawn sets of documents that must agree on a class."""
SIGNS = 1000
"""Draws of random signs behind the noise of a paired distance."""


@dataclass(frozen=True)
class Curves:
    """The measured documents of a profile.

    Attributes:
        norms: F64[D, n], gradient norms, > 0 somewhere in each row.
        keys: a digest of each document's token ids.
        how: the papers' aggregate: "rms" for `jacobian`, else "mean".
    """

    norms: F64
    keys: tuple[str, ...]
    how: Aggregate = "mean"

    @cached_property
    def shares(self) -> F64:
        """F64[D, n], rows sum to 1."""
        return normalised(self.norms)

    @cached_property
    def main(self) -> F64:
        """F64[n], the mean of the shares; sums to 1."""
        return normalised(self.shares.mean(axis=0))

    @cached_property
    def densities(self) -> F64:
        """F64[D, n], smoothed densities of the documents."""
        return shape.smoothed_density(self.shares)

    @cached_property
    def band(self) -> bands.Band | None:
        """Of the mean smoothed density; None below `MIN_EFFECTIVE` documents."""
        return bands.band(self.densities)


def tenths_half_width(norms: F64) -> float | None:
    """Half-width of the widest 95% band of the masses of tenths: what sampling makes small.

    Args:
        norms: F64[D, n].
    """
    found = bands.band(normalised(norms) @ overlaps(norms.shape[1], TENTHS))
    return None if found is None else float((found.high - found.low).max() / 2)


def sampling_to_wire(reason: SamplingEnd, norms: F64) -> DocumentSampling:
    """Why sampling ended, how precise it is, and what more documents would buy."""
    width, count, target = tenths_half_width(norms), len(norms), DOCUMENTS.target
    if width is None:
        return DocumentSampling(
            reason=reason, half_width=None, target=target, at_double=None, needed=None
        )
    return DocumentSampling(
        reason=reason,
        half_width=rounded(width),
        target=target,
        at_double=rounded(sampling.predicted(width, count, 2 * count)),
        needed=sampling.needed(width, count, target),
    )


def measured_to_wire(
    curves: Curves,
    sampled: DocumentSampling,
    probe_error: F64 | None = None,
    last_token_attention: F64 | None = None,
) -> Measured:
    """The measured curves of a profile.

    Args:
        curves: of all documents.
        sampled: why reading stopped.
        probe_error: F64[D, n], standard error of the norms over random probes; None without.
        last_token_attention: [n], the second measured source; None when it was not seen.
    """
    norms, n = curves.norms, curves.main.size
    papers = aggregates.root_mean_square if curves.how == "rms" else aggregates.mean_of_norms
    split = aggregates.split_half(norms, aggregates.per_document)
    band, attention = curves.band, last_token_attention

    def share(density: F64) -> list[float]:
        return rounded_list((density / n).tolist())

    return Measured(
        influence=rounded_list(curves.main.tolist()),
        mean_of_norms=rounded_list(papers(norms).tolist()),
        smoothed=share(curves.densities.mean(axis=0)),
        low=None if band is None else share(band.low),
        high=None if band is None else share(band.high),
        simultaneous_low=None if band is None else share(band.simultaneous_low),
        simultaneous_high=None if band is None else share(band.simultaneous_high),
        documents=len(norms),
        effective_documents=rounded(bands.effective_documents(norms.sum(axis=1))),
        sampling=sampled,
        summaries=_summaries_to_wire(curves),
        split_half_wasserstein=None if split is None else rounded(split),
        standard_error=None if probe_error is None else _standard_error(norms, probe_error),
        last_token_attention=None
        if attention is None
        else rounded_list((attention / attention.sum()).tolist()),
    )


def _summaries_to_wire(curves: Curves) -> DocumentSummaries:
    found = summarise(curves.norms, curves.keys)
    return DocumentSummaries(
        keys=list(found.keys),
        masses=[rounded_list(row) for row in np.clip(found.masses, 0.0, 1.0).tolist()],
        first=rounded_list(found.first.tolist()),
        last=rounded_list(found.last.tolist()),
        totals=rounded_list(found.totals.tolist()),
    )


def _standard_error(norms: F64, errors: F64) -> list[float]:
    """Standard error over probes of the mean of shares, with the documents' totals held fixed.

    Errors of different documents are independent.
    """
    shares = errors / norms.sum(axis=1, keepdims=True)
    return rounded_list((np.sqrt(np.square(shares).sum(axis=0)) / len(norms)).tolist())


def zone_to_wire(curves: Curves) -> tuple[DeadZone | None, ZoneVerdict]:
    """The estimated dead zone with the bands of its ends, and the verdict on it."""
    ends = zones.zone_ends(curves.densities, threshold=shape.THRESHOLD, banded=curves.band)
    return views.banded_zone(views.zone_of(curves.main), ends)


def shape_to_wire(curves: Curves) -> Shape:
    """Masses and class of the main curve, with their intervals and support over documents."""
    found = views.shape_of(curves.main)
    if curves.band is None:
        return found.model_copy(update={"decided": False})
    n = curves.main.size
    masses = curves.shares @ shape.features(n)

    def classes(rows: F64) -> list[str]:
        return [
            shape.classify(first, middle, last, token if n > 1 else None)
            for first, middle, last, token in rows.tolist()
        ]

    support = {str(name): rounded(part) for name, part in bands.support(classes, masses).items()}
    first, last = (
        bands.interval(lambda rows: rows[:, 0], masses[:, [at]], scale="logit", limits=(0.0, 1.0))
        for at in (0, 2)
    )
    return found.model_copy(
        update={
            "support": support,
            "decided": support.get(found.class_, 0.0) >= DECIDED,
            "primacy_band": _interval(first),
            "recency_band": _interval(last),
        }
    )


def prediction_to_wire(
    curve: F64, curves: Curves, read: tuple[NDArray[np.intp], F64] | None = None
) -> Prediction:
    """A predicted curve, with its distance from the measured one.

    Args:
        curve: F64[n], sums to 1.
        curves: the measured documents.
        read: for a prediction that reads documents itself: their rows, and what it predicts for
            each, F64[D', n].
    """
    main, n = curves.main, curves.main.size
    to_bins = overlaps(n, min(RANKED, n))
    ranked = _ties(curve @ to_bins)
    rank = agreement.spearman(ranked, _ties(main @ to_bins))

    def ranks(rows: F64) -> F64:
        return np.array([agreement.spearman(ranked, _ties(row)) or 0.0 for row in rows])

    enough = curves.band is not None and n > 1
    near = _banded(lambda rows: _distances(rows - curve), curves.shares, (0.0, 1.0), enough)
    like = _banded(ranks, curves.shares @ to_bins, (-1.0, 1.0), enough and rank is not None)
    return Prediction(
        influence=rounded_list(curve.tolist()),
        wasserstein=rounded(agreement.wasserstein(curve, main)),
        wasserstein_band=near,
        spearman=None if rank is None else rounded(rank),
        spearman_band=like,
        same_documents=None if read is None else _same_documents(curves.shares[read[0]], read[1]),
        dead_zone=views.zone_of(curve),
    )


def _ties(masses: F64) -> F64:
    """Masses that differ by rounding only are equal: nine digits of each, however small it is.

    Attention alone leaves 1e-70 at the end, which is still more than 1e-73.
    """
    size = 10.0 ** np.floor(np.log10(np.maximum(np.abs(masses), np.finfo(np.float64).tiny)))
    return np.round(masses / size, 9) * size


def _banded(
    statistic: Callable[[F64], F64], values: F64, limits: tuple[float, float], wanted: bool
) -> Interval | None:
    return _interval(bands.interval(statistic, values, limits=limits)) if wanted else None


def _same_documents(measured: F64, predicted: F64) -> SameDocuments:
    """Prediction and measurement of the same documents, F64[D', n] each."""
    moved = measured - predicted
    noise = None
    if len(moved) >= MIN_EFFECTIVE:
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(SIGNS, len(moved)))
        noise = rounded(float(np.quantile(_distances(signs @ moved / len(moved)), 0.95)))
    distance = float(_distances(moved.mean(axis=0)[None])[0])
    return SameDocuments(documents=len(moved), wasserstein=rounded(distance), noise=noise)


def _distances(differences: F64) -> F64:
    """F64[k]: W1 distance of two curves from their difference, F64[k, n]."""
    steps = max(differences.shape[1] - 1, 1)
    return np.asarray(np.abs(np.cumsum(differences, axis=1))[:, :-1].sum(axis=1) / steps)


def _interval(found: bands.Interval | None) -> Interval | None:
    if found is None:
        return None
    return Interval(low=rounded(found.low), high=rounded(found.high))
