"""Arrays to wire models."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lacuna.contract.base import rounded, rounded_list
from lacuna.contract.profiles import Measured, Mixing, MonotoneCheck, NeedleCurve, Prediction
from lacuna.evidence import aggregates
from lacuna.theory import agreement
from lacuna.views import zone_of
from workers.influence.mixing import MixingTap
from workers.job.measurement import Measurement
from workers.recall.needle import NeedleResult

F64 = NDArray[np.float64]

BINS = 64
"""Bins of the token-resolved mixing coefficient."""
DRAWS = 200
MONOTONE_TOLERANCE = 1e-3
"""Rounding and the finite number of documents breach monotonicity by less than this."""


def measured(found: Measurement) -> tuple[Measured, F64, F64 | None]:
    """The measured curves; also the main one [n] and its bootstrap draws [DRAWS, n] as arrays.

    One document has no draws that differ: None.
    """
    norms = found.influence.norms
    combine = aggregates.root_mean_square if found.how == "rms" else aggregates.mean_of_norms
    main = combine(norms)
    draws = aggregates.bootstrap(norms, found.how, draws=DRAWS, seed=0)
    low, high = aggregates.band(draws)
    split = aggregates.split_half(norms, combine)
    split_each = aggregates.split_half(norms, aggregates.per_document)
    attention = None if found.attention is None else found.attention.last_token_attention
    wire = Measured(
        influence=rounded_list(main),
        low=rounded_list(low),
        high=rounded_list(high),
        per_document=rounded_list(aggregates.per_document(norms)),
        documents=len(norms),
        split_half_wasserstein=None if split is None else rounded(split),
        split_half_wasserstein_per_document=None if split_each is None else rounded(split_each),
        standard_error=standard_error(found, main),
        last_token_attention=None
        if attention is None
        else rounded_list(attention / attention.sum()),
        needle=None if found.needle is None else needle_curve(found.needle, main),
    )
    return wire, main, draws if len(norms) > 1 else None


def standard_error(found: Measurement, main: F64) -> list[float] | None:
    """Of the main curve [n] over probes, on its scale; the documents' errors are independent.

    The curve is the root of the mean square over documents: d sqrt(mean g^2) = mean(g dg) / root.
    """
    errors = found.influence.standard_error
    if errors is None or found.how != "rms":
        return None
    norms = found.influence.norms
    scale = np.sqrt(np.square(norms).mean(axis=0))
    spread = np.sqrt(np.square(norms * errors).sum(axis=0)) / len(norms)
    relative = np.divide(spread, scale**2, out=np.zeros_like(scale), where=scale > 0)
    return rounded_list(relative * main)


def needle_curve(result: NeedleResult, influence: F64) -> NeedleCurve:
    """Retrieval by depth, with its rank agreement with influence at the same places."""
    rank = agreement.spearman(result.log_probability, result.density(influence))
    return NeedleCurve(
        depth=rounded_list(result.depths),
        position=[int(p) for p in result.positions],
        log_probability=rounded_list(result.log_probability),
        low=rounded_list(result.low),
        high=rounded_list(result.high),
        baseline=rounded(result.baseline),
        facts=result.facts,
        spearman_with_influence=None if rank is None else rounded(rank),
    )


def mixing(tap: MixingTap) -> Mixing:
    """Lambda per layer, and by position in bins."""
    per_document = tap.per_document
    by_token = tap.by_token
    bins = min(BINS, by_token.shape[1])
    means = per_document.mean(axis=0)
    return Mixing(
        lambda_=rounded_list(means),
        layers=tap.layers,
        std=rounded_list(per_document.std(axis=0)),
        sum=rounded(means.sum()),
        by_token=[
            rounded_list(part.mean() for part in np.array_split(row, bins)) for row in by_token
        ],
        bins=bins,
    )


def prediction(curve: F64, main: F64) -> Prediction:
    """A predicted curve against the measured one."""
    rank = agreement.spearman(curve, main)
    return Prediction(
        influence=rounded_list(curve),
        wasserstein=rounded(agreement.wasserstein(curve, main)),
        spearman=None if rank is None else rounded(rank),
        dead_zone=zone_of(curve),
    )


def monotone(found: Measurement) -> list[MonotoneCheck] | None:
    """The theorem's assumption, layer by layer."""
    if found.monotone is None or found.mixing is None:
        return None
    return [
        MonotoneCheck(layer=layer, violation=rounded(value), monotone=value <= MONOTONE_TOLERANCE)
        for layer, value in zip(found.mixing.layers, found.monotone, strict=True)
    ]
