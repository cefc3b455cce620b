"""Do the verdicts and bands for recall over depth hold what they state?

    python bench/coverage_recall.py [--redraws 200] [--only flat]

Tables are drawn from a logit-normal model fitted to single facts asked of the demo model: standard
deviation 1.8 between groups, 0.52 within, neighbouring depths correlated by 0.4; five depths. Ends
with 1 if a figure misses its bound. A share of 200 redraws has a standard error of .015 at .95.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from coverage import Row, held, report
from numpy.typing import NDArray

from lacuna.evidence import flatness, sampling
from lacuna.evidence.pairs import ALPHA, Comparison, compare_recall, recall_falls
from lacuna.theory.agreement import spearman
from workers.recall.wire import rank_agreement

F64 = NDArray[np.float64]
DEPTHS = 5
BETWEEN, WITHIN, LAG = 1.8, 0.52, 0.4
SPREADS = (0.05, 0.1, 0.2)
HITS = sampling.Rule(target=0.10, start=48, step=8, budget=256)


def logits(groups: int, generator: np.random.Generator, bend: float = 0.0) -> F64:
    """F64[groups, depths]: best at both ends by `bend` nats of log odds."""
    residual = generator.normal(size=(groups, DEPTHS))
    for depth in range(1, DEPTHS):
        residual[:, depth] *= np.sqrt(1 - LAG**2)
        residual[:, depth] += LAG * residual[:, depth - 1]
    at = np.linspace(0, 1, DEPTHS)
    level = BETWEEN * generator.normal(size=(groups, 1))
    return np.asarray(level + WITHIN * residual + bend * (1 - 4 * at * (1 - at)))


def recall(rows: F64, kind: str) -> F64:
    return (rows > 0).astype(float) if kind == "hits" else 1 / (1 + np.exp(-rows))


@cache
def bend_of(spread: float) -> float:
    """Nats that make expected probability differ by `spread` between best and worst depth."""
    level = np.random.default_rng(1).normal(0, np.hypot(BETWEEN, WITHIN), 200_000)
    low, high = 0.0, 8.0
    for _ in range(30):
        middle = (low + high) / 2
        reached = recall(level + middle, "p").mean() - recall(level, "p").mean()
        low, high = (middle, high) if reached < spread else (low, middle)
    return low


def contrast(kind: str, bend: float) -> F64:
    """The true deviations from the mean over depth."""
    big = recall(logits(400_000, np.random.default_rng(9), bend), kind).mean(axis=0)
    return np.asarray(big - big.mean())


def flat_rows(times: int) -> Iterator[Row]:
    for kind in ("p", "hits"):
        truth = contrast(kind, 0.0)
        for groups in (16, 24, 48):
            generator = np.random.default_rng(groups)
            found = []
            for _ in range(times):
                table = recall(logits(groups, generator), kind)
                found.append(flatness.flatness(table, draws=1000))
            curves = [one.curve for one in found if one.curve is not None]
            where = f"{kind}, {groups} groups, flat"
            alarms = np.mean([one.verdict == "varies" for one in found])
            yield Row(f"{where}: varies (false alarm)", float(alarms), high=0.05)
            covered = [held(c.contrast_low, truth, c.contrast_high).all() for c in curves]
            low = 0.93 if groups >= 24 else None
            note = f"half-width {np.mean([c.half_width for c in curves]):.3f}"
            yield Row(f"{where}: simultaneous paired band", float(np.mean(covered)), low, note=note)
            level = recall(logits(400_000, np.random.default_rng(8)), kind).mean(axis=0)
            hits = np.mean([held(c.low, level, c.high) for c in curves])
            high = 0.975 if kind == "p" else None  # of few hits no share is exactly 95%
            yield Row(f"{where}: pointwise band of the level", float(hits), 0.93, high)


def power_rows(times: int) -> Iterator[Row]:
    for kind, sizes in (("p", (16, 32, 64)), ("hits", (32, 64, 128))):
        for spread in SPREADS:
            truth = contrast(kind, bend_of(spread))
            for groups in sizes:
                generator = np.random.default_rng((groups, round(100 * spread)))
                tables = [
                    recall(logits(groups, generator, bend_of(spread)), kind) for _ in range(times)
                ]
                p = np.array([flatness.smooth_test(table, draws=1000) for table in tables])
                power = float((p <= flatness.ALPHA).mean())
                note = f"true spread {np.ptp(truth):.3f}"
                yield Row(f"{kind}, {groups} groups, spread of p {spread}: found", power, note=note)


def margin_rows(times: int) -> Iterator[Row]:
    """A curve just outside the margin must not be called flat."""
    at = np.linspace(0, 1, DEPTHS)
    shape = 1 - 4 * at * (1 - at)
    shape -= shape.mean()
    for size, name in ((1.02, "just outside the margin"), (0.0, "flat")):
        bend = size * flatness.MARGIN * shape / np.abs(shape).max()
        for noise, groups in ((0.08, 32), (0.08, 64), (0.15, 64)):
            generator = np.random.default_rng((groups, round(100 * noise)))
            verdicts = [
                flatness.flatness(
                    0.5 + bend + noise * generator.normal(size=(groups, DEPTHS)), draws=1000
                ).verdict
                for _ in range(times)
            ]
            share = float(np.mean([verdict == "flat" for verdict in verdicts]))
            high = 0.05 if size else None
            what = f"p, {groups} groups, noise {noise}, {name}: called flat"
            yield Row(what, share, high=high)


def cluster_rows(times: int) -> Iterator[Row]:
    """Topics and phrasings with effects of their own at each depth."""
    for topics, phrasings in ((6, 6), (10, 8)):
        generator = np.random.default_rng(topics)
        groups = 60
        ratio: list[float] = []
        covered: dict[str, list[float]] = {"clustered": [], "groups alone": []}
        for _ in range(times):
            topic = np.arange(groups) % topics
            phrasing = np.arange(groups) // topics % phrasings
            effects = 0.04 * generator.normal(size=(topics, DEPTHS))[topic]
            effects += 0.04 * generator.normal(size=(phrasings, DEPTHS))[phrasing]
            table = 0.5 + effects + 0.1 * generator.normal(size=(groups, DEPTHS))
            for name, labels in (("clustered", True), ("groups alone", False)):
                found = flatness.depth_curve(
                    table,
                    topics=list(topic) if labels else None,
                    phrasings=list(phrasing) if labels else None,
                    draws=400,
                )
                covered[name].append(
                    float(held(found.low, np.full(DEPTHS, 0.5), found.high).mean())
                )
                if labels:
                    ratio.append(found.cluster_ratio)
        for name, share in covered.items():
            note = f"error ratio {np.mean(ratio):.2f}" if name == "clustered" else "for comparison"
            low = 0.92 if name == "clustered" else None
            what = f"{topics} topics x {phrasings} phrasings, {groups} groups: {name}"
            yield Row(what, float(np.mean(share)), low, note=note)


def sampling_rows(times: int) -> Iterator[Row]:
    for kind, rule in (("p", sampling.PROBABILITIES), ("hits", HITS)):
        for spread in (0.0, 0.1):
            bend = bend_of(spread) if spread else 0.0
            truth = contrast(kind, bend)
            generator = np.random.default_rng(round(100 * spread))
            used, rejects, covered = [], [], []
            for _ in range(times):
                table = recall(logits(rule.budget, generator, bend), kind)
                state, units = sampling.Sampling(rule), rule.start
                while True:
                    curve = flatness.depth_curve(table[:units], draws=400)
                    look = state.look(units, curve.half_width)
                    if look.stop:
                        break
                    units += look.add
                used.append(units)
                rejects.append(flatness.smooth_test(table[:units], draws=1000) <= flatness.ALPHA)
                covered.append(held(curve.contrast_low, truth, curve.contrast_high).all())
            where = f"{kind}, counts decided by the data, spread {spread}"
            note = f"groups {np.percentile(used, [10, 50, 90]).astype(int).tolist()}"
            high = None if spread else 0.05
            yield Row(f"{where}: varies", float(np.mean(rejects)), high=high, note=note)
            yield Row(f"{where}: simultaneous band", float(np.mean(covered)), 0.92)


def rank_rows(times: int) -> Iterator[Row]:
    """Rank agreement of recall with the influence of 32 documents that vary as SmolLM2's do.

    Five places have few ranks, so the interval covers more often than it states.
    """
    bend, slope = 0.3, 0.3 * np.linspace(0, 1, DEPTHS)  # no two depths alike: ties have no rank
    big = recall(logits(200_000, np.random.default_rng(9), bend) + slope, "p").mean(axis=0)
    for name, density in (
        ("alike", (1.5, 0.8, 0.5, 0.7, 2.0)),
        ("against", (0.6, 0.9, 1.5, 0.8, 0.55)),
    ):
        truth = spearman(big, density)
        assert truth is not None
        for groups in (32, 64):
            generator = np.random.default_rng(groups)
            covered, wrong = [], []
            for draw in range(times):
                table = recall(logits(groups, generator, bend) + slope, "p")
                there = np.array(density) * generator.lognormal(0, 0.4, (32, 1, DEPTHS))
                there = there * generator.lognormal(0, 0.1, (1, groups, DEPTHS))
                found = rank_agreement(table, there, seed=draw)
                assert found is not None
                covered.append(found.low <= truth + 1e-9 and truth - 1e-9 <= found.high)
                wrong.append(found.low > 0 if truth < 0 else found.high < 0)
            where = f"{groups} groups, influence {name}"
            note = f"true Spearman {truth:.2f}"
            yield Row(f"{where}: rank agreement", float(np.mean(covered)), 0.93, note=note)
            yield Row(f"{where}: of the wrong sign", float(np.mean(wrong)), high=0.025)


def comparison_rows(times: int) -> Iterator[Row]:
    """Two measurements of recall: the same groups asked of two models, or groups of their own."""
    for kind in ("p", "hits"):
        for groups in (24, 48):
            for paired in (True, False):
                generator = np.random.default_rng((groups, paired))
                where = f"{kind}, {groups} groups, {'the same' if paired else 'others'}"
                alike = [_compared(kind, groups, 0.0, generator, paired) for _ in range(times)]
                worse = [_compared(kind, groups, 1.5, generator, paired) for _ in range(times)]
                alarms = np.mean([found.verdict == "difference" for found in alike])
                yield Row(f"{where}: differ (false alarm)", float(alarms), high=0.05)
                found = np.mean([found.verdict == "difference" for found in worse])
                note = f"last depth worse by {_fall(kind):.2f}"
                yield Row(f"{where}: a fall found", float(found), note=note)


def drift_rows(times: int) -> Iterator[Row]:
    """The alert of a monitor: two profiles of one model on the same groups, one probe or two."""
    for kind in ("p", "hits"):
        for groups in (24, 48):
            for probes in (1, 2):
                generator = np.random.default_rng((groups, probes))
                where = f"{kind}, {groups} groups, {probes} {'probe' if probes == 1 else 'probes'}"
                for fall, said in ((0.0, "no change"), (-1.5, "a rise")):
                    alarms = _alerts(times, kind, groups, fall, generator, probes)
                    yield Row(f"{where}: alert at {said} (false alarm)", alarms, high=0.05)
                for fall in (0.75, 1.5):
                    power = _alerts(times, kind, groups, fall, generator, probes)
                    note = f"last depth worse by {_fall(kind, fall):.2f}"
                    least = 0.9 if fall > 1 else None
                    yield Row(f"{where}: a fall of {fall} nats alarms", power, least, note=note)
                covered = _held(times, kind, groups, generator, probes)
                yield Row(f"{where}: all intervals hold", covered, 0.93)


def _compared(
    kind: str,
    groups: int,
    fall: float,
    generator: np.random.Generator,
    paired: bool,
    alpha: float = ALPHA,
) -> Comparison:
    """Of two models that share the difficulty of facts, and differ by noise of their own and by
    `fall` nats at the last depth. A group of texts has a fact a depth, as in a measurement."""
    facts = DEPTHS if kind == "hits" else 1
    first = logits(groups * facts, generator)
    second = first if paired else logits(groups * facts, generator)
    second = second + 0.3 * generator.normal(size=second.shape)
    second[:, -1] -= fall
    sides = [
        recall(rows, kind).reshape(groups, facts, DEPTHS).mean(axis=1) for rows in (first, second)
    ]
    step = 1 / facts if kind == "hits" else 0.0
    return compare_recall(*sides, paired=paired, alpha=alpha, step=step)


def _alerts(
    times: int, kind: str, groups: int, fall: float, generator: np.random.Generator, probes: int
) -> float:
    """Share of pairs of profiles with an alert; only the first of the probes changes."""
    alerts = 0
    for _ in range(times):
        found = [
            _compared(kind, groups, fall * (number == 0), generator, True, ALPHA / probes)
            for number in range(probes)
        ]
        alerts += any(recall_falls(one) for one in found)
    return alerts / times


def _held(times: int, kind: str, groups: int, generator: np.random.Generator, probes: int) -> float:
    """Share of pairs of profiles whose intervals all hold, at a fall of 0.75 nats."""
    truth = _change(kind, 0.75)
    count = 0
    for _ in range(times):
        found = [
            _compared(kind, groups, 0.75, generator, True, ALPHA / probes) for _ in range(probes)
        ]
        count += all(
            one.low <= true <= one.high
            for tested in found
            for one, true in zip(tested.differences, truth, strict=True)
        )
    return count / times


@cache
def _change(kind: str, fall: float) -> tuple[float, ...]:
    """Expected change at each depth and in the mean: noise alone moves probabilities a little."""
    generator = np.random.default_rng(4)
    first = logits(400_000, generator)
    second = first + 0.3 * generator.normal(size=first.shape)
    second[:, -1] -= fall
    moved = (recall(second, kind) - recall(first, kind)).mean(axis=0)
    return (*moved.tolist(), float(moved.mean()))


def _fall(kind: str, fall: float = 1.5) -> float:
    return -_change(kind, fall)[DEPTHS - 1]


SECTIONS: dict[str, Callable[[int], Iterator[Row]]] = {
    "flat": flat_rows,
    "power": power_rows,
    "margin": margin_rows,
    "clusters": cluster_rows,
    "sampling": sampling_rows,
    "ranks": rank_rows,
    "comparisons": comparison_rows,
    "drift": drift_rows,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--redraws", type=int, default=200)
    parser.add_argument("--only", choices=list(SECTIONS), nargs="+", default=list(SECTIONS))
    given = parser.parse_args()
    return report(row for section in given.only for row in SECTIONS[section](given.redraws))


if __name__ == "__main__":
    sys.exit(main())
