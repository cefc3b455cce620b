"""Do the bands, comparisons and alerts for influence hold what they state?

    python bench/coverage.py [--redraws 200] [--length 256] [--synthetic] [--only bands]

Documents are drawn with replacement from a population whose curve is known: the gradient norms of
all built-in pieces under the demo model (`population.py`), which then count as everything there is,
or with `--synthetic` a heavy-tailed population made up here. Ends with 1 if a figure misses its
bound. A share of 200 redraws has a standard error of .015 at .95; bounds leave two of those.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from population import norms as measured_norms

from lacuna.evidence import bands, pairs, sampling, zones
from lacuna.evidence.summaries import Summaries, summarise
from lacuna.theory import agreement, shape

F64 = NDArray[np.float64]
COUNTS = (16, 32, 64)
THRESHOLD = shape.THRESHOLD


@dataclass(frozen=True)
class Row:
    """A figure with the bounds that it must keep; None where it is only reported."""

    what: str
    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""

    @property
    def holds(self) -> bool:
        above = self.low is None or self.value >= self.low
        return above and (self.high is None or self.value <= self.high)


@dataclass(frozen=True)
class Population:
    """Documents of which redraws are made. `weighted`: the papers' mean of norms."""

    name: str
    norms: F64
    weighted: bool

    def weights(self, rows: NDArray[np.intp]) -> F64 | None:
        return np.asarray(self.norms[rows].sum(axis=1)) if self.weighted else None

    @property
    def shares(self) -> F64:
        return np.asarray(self.norms / self.norms.sum(axis=1, keepdims=True))

    @property
    def everyone(self) -> NDArray[np.intp]:
        return np.arange(len(self.norms))

    def curve(self, values: F64) -> F64:
        return np.asarray(np.average(values, axis=0, weights=self.weights(self.everyone)))

    def redraws(self, count: int, times: int) -> Iterator[NDArray[np.intp]]:
        generator = np.random.default_rng((count, self.weighted))
        for _ in range(times):
            yield generator.integers(0, len(self.norms), count)


def heavy_tailed(documents: int = 441, length: int = 256, seed: int = 0) -> F64:
    """Norms like those measured: two raised ends, log-normal tokens, documents 20-fold apart."""
    generator = np.random.default_rng(seed)
    at, knots = np.linspace(0, 1, length), np.linspace(0, 1, 12)
    base = 0.7 + 0.8 * np.exp(-at / 0.05) + 2.0 * np.exp((at - 1) / 0.08)
    slow = np.stack([np.interp(at, knots, one) for one in generator.normal(size=(documents, 12))])
    rows = base * np.exp(0.5 * slow + 0.8 * generator.normal(size=(documents, length)))
    rows[:, 0] *= np.exp(1 + generator.normal(size=documents))
    rows[:, -1] *= np.exp(1.5 + 0.8 * generator.normal(size=documents))
    return np.asarray(rows * np.exp(0.95 * generator.normal(size=(documents, 1))))


def held(low: F64, truth: F64, high: F64) -> NDArray[np.bool_]:
    return np.asarray((low <= truth + 1e-12) & (truth <= high + 1e-12))


def target(count: int, low: float, high: float | None) -> tuple[float | None, float | None]:
    """Coverage is promised from 32 documents on."""
    return (low, high) if count >= 32 else (None, None)


def band_rows(population: Population, times: int) -> Iterator[Row]:
    forms = {
        "smoothed": shape.smoothed_density(population.shares),
        "tokens": population.shares * population.shares.shape[1],
    }
    for form, values in forms.items():
        truth = population.curve(values)
        for count in COUNTS:
            found = []
            for rows in population.redraws(count, times):
                band = bands.band(values[rows], population.weights(rows))
                if band is not None:
                    found.append(band)
            where = f"{population.name}, {form}, {count} documents"
            if len(found) < times / 2:
                yield Row(f"{where}: band offered", len(found) / times)
                continue
            point = np.array([held(b.low, truth, b.high) for b in found])
            whole = [held(b.simultaneous_low, truth, b.simultaneous_high).all() for b in found]
            width = np.mean([(b.high - b.low).mean() for b in found])
            wide = np.mean([(b.simultaneous_high - b.simultaneous_low).mean() for b in found])
            smooth = form == "smoothed"
            low, high = target(count, 0.93, 0.97) if smooth else (None, None)
            note = f"worst position {point.mean(axis=0).min():.3f}, mean width {width:.2f}"
            yield Row(f"{where}: pointwise", float(point.mean()), low, high, note)
            low, high = target(count, 0.93, None)
            note = f"mean width {wide:.2f}, offered {len(found) / times:.2f}"
            yield Row(f"{where}: simultaneous", float(np.mean(whole)), low, high, note)


def statistics(
    truth: F64,
) -> dict[str, tuple[Callable[[F64], F64], bands.Scale, tuple[float, float]]]:
    """Numbers read from curves F64[k, n], with the scale and limits of their intervals."""
    n = len(truth)
    at = np.linspace(0, 1, n)
    tilted, near = truth * np.exp(0.6 * at), truth * np.exp(0.05 * np.sin(9 * at))
    tilted, near = tilted / tilted.sum(), near / near.sum()

    def tenths(curves: F64) -> F64:
        edges = np.arange(11) * n // 10
        return np.add.reduceat(curves, edges[:-1], axis=-1)

    def distance(other: F64) -> Callable[[F64], F64]:
        return lambda curves: np.abs(np.cumsum(curves - other, axis=-1)).sum(axis=-1) / (n - 1)

    def rank(curves: F64) -> F64:
        other = tenths(tilted)
        return np.array([agreement.spearman(row, other) or 0.0 for row in tenths(curves)])

    unit = (0.0, 1.0)
    return {
        "primacy": (lambda c: tenths(c)[:, 0], "logit", unit),
        "recency": (lambda c: tenths(c)[:, -1], "logit", unit),
        "mean position": (lambda c: c @ at, "plain", unit),
        "W1 to a tilted curve": (distance(tilted), "plain", unit),
        "W1 to a close curve": (distance(near), "plain", unit),
        "Spearman over tenths": (rank, "plain", (-1.0, 1.0)),
    }


def interval_rows(population: Population, times: int) -> Iterator[Row]:
    values = population.shares
    truth = population.curve(values)
    for count in COUNTS:
        for name, (statistic, scale, limits) in statistics(truth).items():
            right = float(statistic(truth[None])[0])
            hits, widths = [], []
            for rows in population.redraws(count, times):
                weights = population.weights(rows)
                found = bands.interval(statistic, values[rows], weights, scale=scale, limits=limits)
                if found is not None:
                    hits.append(found.low <= right <= found.high)
                    widths.append(found.high - found.low)
            low, high = target(count, 0.93, None)
            what = f"{population.name}, {count} documents: {name}"
            if hits:
                yield Row(what, float(np.mean(hits)), low, high, f"width {np.mean(widths):.3f}")


def zone_rows(population: Population, times: int) -> Iterator[Row]:
    values = shape.smoothed_density(population.shares)
    truth = population.curve(values)
    runs = zones._runs(truth < THRESHOLD)
    right = max(runs, key=lambda run: run[1] - run[0]) if runs else None
    # Nowhere below the threshold, and at it wherever it was below: the hardest case.
    edge = values * np.maximum(1.0, THRESHOLD / truth)
    for count in COUNTS[1:]:
        found, alarms = [], []
        for rows in population.redraws(count, times):
            weights = population.weights(rows)
            found.append(zones.zone_ends(values[rows], weights, threshold=THRESHOLD))
            alarm = zones.zone_ends(edge[rows], weights, threshold=THRESHOLD)
            alarms.append(alarm.verdict == "zone")
        where = f"{population.name}, {count} documents: zone"
        decided = [one for one in found if one.verdict == "zone"]
        yield Row(f"{where} claimed where there is none", float(np.mean(alarms)), high=0.05)
        yield Row(f"{where} decided", len(decided) / times, note=f"truth {right}")
        if right is None or len(decided) < times / 10:
            continue
        for place, end in enumerate(("start", "end")):
            bounds = np.array([one.start if place == 0 else one.end for one in decided])
            covered = (bounds[:, 0] <= right[place]) & (right[place] <= bounds[:, 1])
            note = f"mean width {np.ptp(bounds, axis=1).mean():.0f} tokens"
            yield Row(f"{where} {end}", float(covered.mean()), low=0.93, note=note)


def shape_rows(population: Population, times: int) -> Iterator[Row]:
    values = population.shares
    right = shape.shape(population.curve(values)).name

    def classify(curves: F64) -> list[str]:
        return [shape.shape(row).name for row in curves]

    for count in COUNTS[1:]:
        wrong = decided = 0
        for rows in population.redraws(count, times // 2):
            weights = population.weights(rows)
            found = bands.support(classify, values[rows], weights, draws=200)
            name, share = next(iter(found.items()))
            decided += share >= 0.95
            wrong += share >= 0.95 and name != right
        note = f"truth {right}, decided {decided / (times // 2):.2f}"
        what = f"{population.name}, {count} documents: shape decided and wrong"
        yield Row(what, wrong / (times // 2), high=0.05, note=note)


def summary(norms: F64) -> Summaries:
    return summarise(norms, [str(row) for row in range(len(norms))])


def version(norms: F64, generator: np.random.Generator, spread: float = 0.1) -> F64:
    """Another version of a model: each document moves a little, along slow curves."""
    knots, at = np.linspace(0, 1, 6), np.linspace(0, 1, norms.shape[1])
    slow = np.stack([np.interp(at, knots, k) for k in generator.normal(size=(len(norms), 6))])
    return np.asarray(norms * np.exp(spread * slow))


def pair_rows(population: Population, times: int) -> Iterator[Row]:
    """Versions of a model on the same documents: false alarms and power."""
    n = population.norms.shape[1]
    tail = np.where(np.arange(n) >= round(0.9 * n), 1.25, 1.0)
    fallen = np.where((np.arange(n) > 0) & (np.arange(n) < round(0.9 * n)), 0.7, 1.0)
    for count in COUNTS:
        generator = np.random.default_rng(count)
        verdicts: dict[str, list[bool]] = {}

        def note(name: str, value: bool, verdicts: dict[str, list[bool]] = verdicts) -> None:
            verdicts.setdefault(name, []).append(value)

        for rows in population.redraws(count, times):
            norms = population.norms[rows]
            before = summary(version(norms, generator))
            same = summary(version(norms, generator))
            quiet = pairs.compare(before, same)
            note("same model: difference (false alarm)", quiet.verdict == "difference")
            note("same model: no difference", quiet.verdict == "no_difference")
            note("same model: drift alert (false alarm)", pairs.drift(before, same).alert)
            raised = summary(version(norms * tail, generator))
            verdict = pairs.compare(before, raised).verdict
            note("recency raised by a quarter: difference", verdict == "difference")
            lower = summary(version(norms * fallen, generator))
            note("middle fallen to 0.7: drift alert", pairs.drift(before, lower).alert)
        for name, seen in verdicts.items():
            false = "false alarm" in name
            bound = (None, 0.05) if false else (0.95 if "no" in name.split() else 0.9, None)
            what = f"{population.name}, {count} pairs: {name}"
            yield Row(what, float(np.mean(seen)), *bound)


def group_rows(population: Population, times: int) -> Iterator[Row]:
    """Two profiles of the same model on other documents."""
    tail = np.where(np.linspace(0, 1, population.norms.shape[1]) >= 0.9, 1.25, 1.0)
    for count in COUNTS[1:]:
        verdicts, seen, detectable = [], [], []
        both = population.redraws(2 * count, max(times, 100))
        for rows in both:
            one, other = population.norms[rows[:count]], population.norms[rows[count:]]
            names = [f"tenth_{number}" for number in range(1, 11)]
            a, b = summary(one), summary(other)
            found = pairs.compare_groups(a.tenths, b.tenths, names)
            verdicts.append(found.verdict)
            detectable.append(found.detectable)
            raised = summary(other * tail)
            seen.append(pairs.compare_groups(a.tenths, raised.tenths, names).verdict)
        where = f"{population.name}, {count} against {count} other documents"
        alarms, equal = (
            np.mean([v == w for v in verdicts]) for w in ("difference", "no_difference")
        )
        note = f"smallest detectable difference {np.mean(detectable):.3f} of mass"
        yield Row(f"{where}: difference (false alarm)", float(alarms), high=0.05, note=note)
        low = 0.95 if count >= 64 else None
        yield Row(f"{where}: no difference", float(equal), low=low)
        power = np.mean([v == "difference" for v in seen])
        yield Row(f"{where}: recency raised by a quarter is found", float(power))


def sampling_rows(population: Population, times: int) -> Iterator[Row]:
    """Documents added until the masses of tenths are known well enough."""
    masses = summary(population.norms).tenths
    truth = population.curve(masses)
    rule = sampling.DOCUMENTS
    used, point, whole, narrow = [], [], [], []
    for rows in population.redraws(rule.budget, times):
        state, units = sampling.Sampling(rule), rule.start
        while True:
            chosen = rows[:units]
            band = bands.band(masses[chosen], population.weights(chosen))
            width = None if band is None else float((band.high - band.low).max() / 2)
            look = state.look(units, width)
            if look.stop:
                break
            units += look.add
        if band is None:
            continue
        used.append(units)
        narrow.append(look.reason == "narrow")
        point.append(held(band.low, truth, band.high).mean())
        whole.append(held(band.simultaneous_low, truth, band.simultaneous_high).all())
    what = f"{population.name}, counts decided by the data"
    middle = f"documents {np.percentile(used, [10, 50, 90]).astype(int).tolist()}"
    note = f"{middle}, target reached {np.mean(narrow):.2f}"
    yield Row(f"{what}: pointwise", float(np.mean(point)), 0.93, 0.97, note)
    yield Row(f"{what}: simultaneous", float(np.mean(whole)), low=0.93)


SECTIONS: dict[str, tuple[Callable[[Population, int], Iterator[Row]], bool]] = {
    # What simulates it, and whether it also makes sense for the mean of norms.
    "bands": (band_rows, True),
    "intervals": (interval_rows, True),
    "zones": (zone_rows, True),
    "shapes": (shape_rows, True),
    "pairs": (pair_rows, False),
    "groups": (group_rows, False),
    "sampling": (sampling_rows, True),
}


def report(rows: Iterator[Row]) -> int:
    """Print each figure as it comes; 1 if any misses its bounds."""
    failed = 0
    for row in rows:
        failed += not row.holds
        known = row.low is not None or row.high is not None
        bounds = f"[{row.low or 0:.2f}, {1 if row.high is None else row.high:.2f}]" if known else ""
        verdict = ("ok" if row.holds else "MISS") if known else ""
        print(f"{verdict:4} {row.value:6.3f}  {row.what:76} {bounds:12}  {row.note}", flush=True)
    print(f"{failed} figures miss their bounds" if failed else "all figures hold")
    return 1 if failed else 0


def simulated(sections: list[str], norms: F64, times: int) -> Iterator[Row]:
    for section in sections:
        simulate, both = SECTIONS[section]
        for weighted in (False, True) if both else (False,):
            name = "mean of norms" if weighted else "per document"
            yield from simulate(Population(name, norms, weighted), times)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--redraws", type=int, default=200)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--synthetic", action="store_true", help="a population made up here")
    parser.add_argument("--only", choices=list(SECTIONS), nargs="+", default=list(SECTIONS))
    given = parser.parse_args()
    norms = heavy_tailed(length=given.length) if given.synthetic else measured_norms(given.length)
    return report(simulated(given.only, norms, given.redraws))


if __name__ == "__main__":
    sys.exit(main())
