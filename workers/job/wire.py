"""Arrays to wire models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from lacuna.contract import profiles
from lacuna.contract.profiles import Measured, Mixing, MonotoneCheck, NeedleCurve, Prediction
from lacuna.theory import agreement, rollout, shape
from workers.influence.mixing import MixingTap
from workers.job.measurement import Measurement
from workers.recall.needle import NeedleResult

F64 = NDArray[np.float64]

BINS = 64
"""Bins of the token-resolved mixing coefficient."""
DRAWS = 200
MONOTONE_TOLERANCE = 1e-3
"""Rounding and the finite number of documents breach monotonicity by less than this."""


def number(value: float) -> float:
    """Six significant digits: what the noise of a measurement leaves, at a third of the bytes."""
    return float(f"{value:.6g}")


def numbers(values: Iterable[float]) -> list[float]:
    """`number` of each."""
    return [number(value) for value in values]


def measured(found: Measurement) -> tuple[Measured, F64, F64 | None]:
    """The measured curves; also the main one [n] and its bootstrap draws [DRAWS, n] as arrays.

    One document has no draws that differ: None.
    """
    norms = found.influence.norms
    combine = agreement.root_mean_square if found.how == "rms" else agreement.mean_of_norms
    main = combine(norms)
    draws = agreement.bootstrap(norms, found.how, draws=DRAWS, seed=0)
    low, high = agreement.band(draws)
    split = agreement.split_half(norms, combine)
    split_each = agreement.split_half(norms, agreement.per_document)
    attention = None if found.attention is None else found.attention.last_token_attention
    wire = Measured(
        influence=numbers(main),
        low=numbers(low),
        high=numbers(high),
        per_document=numbers(agreement.per_document(norms)),
        documents=len(norms),
        split_half_wasserstein=None if split is None else number(split),
        split_half_wasserstein_per_document=None if split_each is None else number(split_each),
        standard_error=standard_error(found, main),
        last_token_attention=None if attention is None else numbers(attention / attention.sum()),
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
    return numbers(relative * main)


def needle_curve(result: NeedleResult, influence: F64) -> NeedleCurve:
    """Retrieval by depth, with its rank agreement with influence at the same places."""
    rank = agreement.spearman(result.log_probability, result.density(influence))
    return NeedleCurve(
        depth=numbers(result.depths),
        position=[int(p) for p in result.positions],
        log_probability=numbers(result.log_probability),
        low=numbers(result.low),
        high=numbers(result.high),
        baseline=number(result.baseline),
        facts=result.facts,
        spearman_with_influence=None if rank is None else number(rank),
    )


def mixing(tap: MixingTap) -> Mixing:
    """Lambda per layer, and by position in bins."""
    per_document = tap.per_document
    by_token = tap.by_token
    bins = min(BINS, by_token.shape[1])
    means = per_document.mean(axis=0)
    return Mixing(
        lambda_=numbers(means),
        layers=tap.layers,
        std=numbers(per_document.std(axis=0)),
        sum=number(means.sum()),
        by_token=[numbers(part.mean() for part in np.array_split(row, bins)) for row in by_token],
        bins=bins,
    )


def prediction(curve: F64, main: F64) -> Prediction:
    """A predicted curve against the measured one."""
    rank = agreement.spearman(curve, main)
    return Prediction(
        influence=numbers(curve),
        wasserstein=number(agreement.wasserstein(curve, main)),
        spearman=None if rank is None else number(rank),
        dead_zone=dead_zone(shape.dead_zone(curve)),
    )


def dead_zone(zone: shape.DeadZone | None) -> profiles.DeadZone | None:
    """The zone with its band."""
    if zone is None:
        return None
    return profiles.DeadZone(
        start=zone.start,
        end=zone.end,
        fraction=number(zone.fraction),
        mean_density=number(zone.mean_density),
        min_density=number(zone.min_density),
        argmin=zone.argmin,
        threshold=zone.threshold,
        start_band=_interval(zone.start_band),
        end_band=_interval(zone.end_band),
        support=zone.support,
    )


def _interval(interval: shape.Interval | None) -> profiles.Interval | None:
    if interval is None:
        return None
    return profiles.Interval(low=number(interval.low), high=number(interval.high))


def shape_of(curve: F64) -> profiles.Shape:
    """Masses and class."""
    found = shape.shape(curve)
    return profiles.Shape(
        class_=found.name,
        primacy_mass=number(found.primacy_mass),
        recency_mass=number(found.recency_mass),
        middle_mass=number(found.middle_mass),
        primacy_excess=number(found.primacy_excess),
        recency_excess=number(found.recency_excess),
        thresholds=found.thresholds,
    )


def force(found: rollout.Force) -> profiles.Force:
    """One force."""
    fields = {k: v for k, v in asdict(found).items() if k not in {"name", "influence"}}
    return profiles.Force(
        name=found.name,
        influence=numbers(found.influence),
        **{name: number(value) for name, value in fields.items()},
    )


def collapse(found: rollout.Collapse) -> profiles.Collapse:
    """The depth limit."""
    return profiles.Collapse.model_validate(
        {k: number(v) if isinstance(v, float) else v for k, v in asdict(found).items()}
    )


def monotone(found: Measurement) -> list[MonotoneCheck] | None:
    """The theorem's assumption, layer by layer."""
    if found.monotone is None or found.mixing is None:
        return None
    return [
        MonotoneCheck(layer=layer, violation=number(value), monotone=value <= MONOTONE_TOLERANCE)
        for layer, value in zip(found.mixing.layers, found.monotone, strict=True)
    ]
