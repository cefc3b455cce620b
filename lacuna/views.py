"""Profiles and curves as the wire has them.

`zone_of`, `shape_of`, `force_to_wire` and `collapse_to_wire` turn what theory computes into wire
models: for the worker, for placements and for rollouts alike. The other functions show stored
profiles differently: in bins, as flat rows, with another dead-zone threshold.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from lacuna.contract.base import rounded, rounded_list
from lacuna.contract.errors import InvalidRequest
from lacuna.contract.profiles import (
    Collapse,
    DeadZone,
    DeadZoneView,
    Force,
    Interval,
    Measured,
    Profile,
    Shape,
    Source,
    ZoneVerdict,
)
from lacuna.contract.recall import recall_curves
from lacuna.evidence import zones
from lacuna.theory import rollout, shape
from lacuna.theory.curve import Curve

Number = Callable[[float], float]
"""How a number goes on the wire: `rounded`, or `float` for all of its digits."""


BANDS = ("low", "high", "simultaneous_low", "simultaneous_high")
"""The bands of a profile's smoothed curve, by field."""


def zone_of(
    influence: npt.ArrayLike, threshold: float = shape.THRESHOLD, number: Number = rounded
) -> DeadZone | None:
    """The dead zone of a curve [n]; None when its density is nowhere below the threshold."""
    found = shape.dead_zone(np.asarray(influence, dtype=np.float64), threshold=threshold)
    return zone_to_wire(found, number)


def zone_to_wire(found: shape.DeadZone | None, number: Number = rounded) -> DeadZone | None:
    """A dead zone without bands: they need the single documents."""
    if found is None:
        return None
    return DeadZone(
        start=found.start,
        end=found.end,
        fraction=number(found.fraction),
        mean_density=number(found.mean_density),
        min_density=number(found.min_density),
        argmin=found.argmin,
        threshold=found.threshold,
    )


def shape_of(influence: npt.ArrayLike, number: Number = rounded) -> Shape:
    """Masses and class of a curve [n]."""
    found = shape.shape(influence)
    return Shape(
        class_=found.name,
        primacy_mass=number(found.primacy_mass),
        recency_mass=number(found.recency_mass),
        middle_mass=number(found.middle_mass),
        primacy_excess=number(found.primacy_excess),
        recency_excess=number(found.recency_excess),
        thresholds=found.thresholds,
    )


def force_to_wire(
    found: rollout.Force, influence: list[float] | None = None, number: Number = rounded
) -> Force:
    """One force; `influence` replaces its curve, with bins for example."""
    return Force(
        name=found.name,
        influence=rounded_list(found.influence.tolist()) if influence is None else influence,
        mean_position=number(found.mean_position),
        shift=number(found.shift),
        primacy_mass=number(found.primacy_mass),
        recency_mass=number(found.recency_mass),
        primacy_shift=number(found.primacy_shift),
        recency_shift=number(found.recency_shift),
    )


def collapse_to_wire(found: rollout.Collapse, number: Number = rounded) -> Collapse:
    """The depth limit."""
    fields = dataclasses.asdict(found)
    return Collapse.model_validate(
        {name: number(v) if isinstance(v, float) else v for name, v in fields.items()}
    )


def parse(document: bytes) -> Profile:
    """A profile from the bytes that were stored."""
    return Profile.of_stored(document)


def joined(body: bytes, envelope: bytes) -> bytes:
    """One JSON object from two, without parsing: what GET /v1/profiles/{id} answers."""
    head, tail = body.strip(), envelope.strip()
    return head[:-1] + b"," + tail[1:]


def binned(profile: Profile, bins: int) -> Profile:
    """The profile with every curve over positions as masses of `bins` equal intervals.

    The band of a bin is the sum of its positions' bands, which is at least as wide as the band of
    the sum; the same holds for the standard error. Dead zones and other positions stay in tokens,
    and summaries of documents as they are. A profile of recall alone has nothing to bin.

    Raises:
        InvalidRequest: more bins than positions.
    """
    measured = profile.measured
    if measured is None:
        return profile
    if bins > len(measured.influence):
        raise InvalidRequest(
            f"`bins` must not exceed the profile's {len(measured.influence)} positions",
            field="bins",
        )
    curves = {
        name: rebin(getattr(measured, name), bins)
        for name in ("influence", "mean_of_norms", "smoothed")
    }
    for name in (*BANDS, "last_token_attention", "standard_error"):
        if (values := getattr(measured, name)) is not None:
            curves[name] = rebin(values, bins)
    predictions = {
        name: prediction.model_copy(update={"influence": rebin(prediction.influence, bins)})
        for name, prediction in profile.predictions.items()
    }
    forces = [
        force.model_copy(update={"influence": rebin(force.influence, bins)})
        for force in profile.forces
    ]
    return profile.model_copy(
        update={
            "measured": measured.model_copy(update=curves),
            "predictions": predictions,
            "forces": forces,
        }
    )


def rebin(values: Sequence[float], bins: int) -> list[float]:
    """Masses of `bins` equal intervals of a non-negative curve; its total is kept."""
    array = np.asarray(values, dtype=np.float64)
    total = float(array.sum())
    if total <= 0:
        return [0.0] * bins
    return rounded_list((Curve(array).bins(bins) * total).tolist())


def curve(profile: Profile, source: Source) -> list[float]:
    """One curve of a profile by name.

    Raises:
        InvalidRequest: the profile has no such curve.
    """
    measured = profile.influence
    curves = {
        "measured": measured.influence,
        "mean_of_norms": measured.mean_of_norms,
        "last_token_attention": measured.last_token_attention,
    } | {name: prediction.influence for name, prediction in profile.predictions.items()}
    found = curves.get(source)
    if found is None:
        known = ", ".join(name for name, values in curves.items() if values is not None)
        raise InvalidRequest(f"this profile has no curve {source}; it has {known}", field="source")
    return found


def dead_zone(profile: Profile, threshold: float, source: Source) -> DeadZoneView:
    """The dead zone of one curve of a profile at any threshold, with its bands where it has any."""
    values = curve(profile, source)
    if source == "measured" and threshold == shape.THRESHOLD:
        zone, verdict = profile.dead_zone, profile.dead_zone_verdict
    elif source == "measured":
        zone, verdict = banded_zone(zone_of(values, threshold), _ends(profile.influence, threshold))
    else:
        return DeadZoneView(
            profile=profile.id,
            source=source,
            threshold=threshold,
            dead_zone=zone_of(values, threshold),
        )
    return DeadZoneView(
        profile=profile.id, source=source, threshold=threshold, dead_zone=zone, verdict=verdict
    )


def banded_zone(zone: DeadZone | None, ends: zones.ZoneEnds) -> tuple[DeadZone | None, ZoneVerdict]:
    """The estimated zone with the bands of its ends, and the verdict on it.

    The bands are left out where they are of another stretch than the one estimated.
    """
    if zone is None or ends.start is None or ends.end is None:
        return zone, ends.verdict
    start, end = ends.start, ends.end
    if not (start[0] <= zone.start <= start[1] and end[0] <= zone.end <= end[1]):
        return zone, ends.verdict
    bands = {
        "start_band": Interval(low=start[0], high=start[1]),
        "end_band": Interval(low=end[0], high=end[1]),
    }
    return zone.model_copy(update=bands), ends.verdict


def _ends(measured: Measured, threshold: float) -> zones.ZoneEnds:
    """Bounds of the zone at a threshold, from the bands that the profile keeps."""
    found = [getattr(measured, name) for name in BANDS]
    if any(band is None for band in found):
        return zones.ZoneEnds("undecided")
    low, high, least, most = (np.asarray(band) * len(band) for band in found)
    return zones.zone_of_bands(low, high, least, most, threshold=threshold)


def rows(profile: Profile, bins: int | None) -> list[dict[str, float]]:
    """One flat row per position, or per bin: `position` and each curve under its name.

    Raises:
        InvalidRequest: no influence was measured.
    """
    view = profile if bins is None else binned(profile, bins)
    columns = columns_of(view)
    count = len(view.influence.influence)
    step = profile.request.sequence_length / count
    middle = 0.5 * (step - 1)  # a bin of tokens i..i+k-1 is labelled by their mean
    positions = [float(f"{i * step + middle:.9g}") for i in range(count)]
    names = ("position", *columns)
    return [
        dict(zip(names, values, strict=True))
        for values in zip(positions, *columns.values(), strict=True)
    ]


def columns_of(profile: Profile) -> dict[str, list[float]]:
    """The curves of a profile by column name, the measured ones first."""
    measured = profile.influence
    columns = {
        "measured": measured.influence,
        "smoothed": measured.smoothed,
        "mean_of_norms": measured.mean_of_norms,
    }
    for name in (*BANDS, "last_token_attention"):
        if (values := getattr(measured, name)) is not None:
            columns[name] = values
    return columns | {name: p.influence for name, p in profile.predictions.items()}


def csv(profile: Profile, bins: int | None) -> bytes:
    """The rows as CSV (RFC 4180), with a header line."""
    table = rows(profile, bins)
    lines = [",".join(table[0])]
    lines += [",".join(f"{value:.9g}" for value in row.values()) for row in table]
    return ("\r\n".join(lines) + "\r\n").encode()


RECALL_COLUMNS = (
    "depth",
    "position",
    "probability",
    *BANDS,
    "log_probability",
    "influence_density",
)
"""Lists of a recall curve that its CSV has, by field."""


def recall_rows(profile: Profile) -> list[dict[str, str | float | None]]:
    """A flat row for each probe and depth; what was not measured is None.

    Raises:
        InvalidRequest: recall was not measured.
    """
    found: list[dict[str, str | float | None]] = []
    for name, curve in recall_curves(profile.recall).items():
        columns = {column: getattr(curve, column) for column in RECALL_COLUMNS}
        for at in range(len(curve.depth)):
            numbers = {
                column: None if values is None else values[at] for column, values in columns.items()
            }
            found.append({"probe": name, **numbers})
    return found


def recall_csv(profile: Profile) -> bytes:
    """The rows of recall as CSV (RFC 4180), with a header line; what was not measured is empty.

    Raises:
        InvalidRequest: recall was not measured.
    """
    lines = [",".join(("probe", *RECALL_COLUMNS))]
    for row in recall_rows(profile):
        cells = ("" if row[column] is None else f"{row[column]:.9g}" for column in RECALL_COLUMNS)
        lines.append(",".join((str(row["probe"]), *cells)))
    return ("\r\n".join(lines) + "\r\n").encode()
