"""Does advice ever harm? Planted curves, scores of five scales, and the truth known.

    python bench/advice.py [--profiles 300] [--seed 0] [--documents 16 64]

Each profile is a fresh sample of documents whose curves vary as SmolLM2's do (totals vary 20-fold,
split-half distance .045 at 16 documents): log-normal noise of three widths around a planted curve.
Each is asked with every scale, with chunks of equal and of unequal length. The truth is the
expected value of the order under the planted population (20,000 documents; flat is exact) and the
probabilities from which the scores were drawn.

- harm: the order was changed and its true gain over the caller's is negative; at most 5%
- coverage: the interval of the gain over the caller's order holds the true gain; 93-97%
- flat: share reordered when the curve is flat; at most 5%
- speed: 20 chunks with intervals, the library's whole answer, processor time; at most 5 ms
- chunks: `max_chunks: "auto"` with a hit curve that itself was measured on 1,327 questions: the
  interval of each marginal value holds the true one (93% or more), and a chunk that truly costs
  more than it adds is kept in at most 5% of the decisions about such chunks

A second table has the harm when the retriever is worse than the hit curve assumes.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lacuna.contract.placements import PlacementRequest
from lacuna.placement import document_curves
from lacuna.placement.advice import INFLUENCE_MARGIN, Advice, advise
from lacuna.placement.answer import place
from lacuna.placement.curve import PlacementCurve
from lacuna.placement.document_curves import DocumentCurves
from lacuna.placement.problem import OrderProblem
from lacuna.placement.relevance import HIT_QUESTIONS, hits_by_rank, weigh
from lacuna.placement.search import fast_orders
from lacuna.placement.selection import count_chunks, hit_curve_error
from lacuna.theory.curve import cumulative

TOKENS = 256
CURVES = ("flat", "u", "primacy", "recency")
SCALES = ("probability", "cosine", "reciprocal rank", "BM25", "logit")
WIRE = {"probability": "probability", "logit": "logit"}
SIZES = (4, 6, 8, 12, 20)
POPULATION = 20_000


def planted(name: str) -> np.ndarray:
    x = (np.arange(TOKENS) + 0.5) / TOKENS
    return {
        "flat": np.ones(TOKENS),
        "u": 1 + 0.8 * np.exp(-x / 0.08) + 1.2 * np.exp(-(1 - x) / 0.1),
        "primacy": 1 + np.exp(-x / 0.2),
        "recency": 1 + 1.5 * np.exp(-(1 - x) / 0.15),
    }[name]


def documents(name: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """Curves of `count` documents, shape [count, TOKENS]; the noise is the same at every place."""
    frequency = np.fft.rfftfreq(TOKENS, 1 / TOKENS)
    noise = 0.9 * rng.standard_normal((count, TOKENS))
    for width in (3.0, 20.0):
        pass_band = np.exp(-((frequency / width) ** 2) / 2)
        pass_band[0] = 0
        white = np.fft.rfft(rng.standard_normal((count, TOKENS)), axis=1)
        smooth = np.fft.irfft(white * pass_band, TOKENS, axis=1)
        noise += 0.5 * smooth / np.sqrt(2 * (pass_band**2).sum() / TOKENS)
    loudness = np.exp(0.9 * rng.standard_normal((count, 1)))
    return planted(name) * np.exp(noise) * loudness


def population(name: str, rng: np.random.Generator) -> DocumentCurves:
    """The true mean curve, with token 0 left out as in a profile."""
    mean = np.ones(TOKENS)
    if name != "flat":
        mean = np.zeros(TOKENS)
        for _ in range(POPULATION // 2_000):
            curves = documents(name, 2_000, rng)
            curves[:, 0] = curves[:, 1]
            mean += (curves / curves.sum(axis=1, keepdims=True)).sum(axis=0)
    return document_curves.prepare(mean[None], skip=0, smoothing=0.0)


def scored(scale: str, size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Scores, best first, and the true probabilities that the chunks hold the answer."""
    if scale == "probability":
        chance = np.sort(rng.beta(0.5, 1.5, size))[::-1]
        return chance, chance
    if scale == "logit":
        logits = np.sort(rng.normal(-2, 3, size))[::-1]
        return logits, 1 / (1 + np.exp(-logits))
    scores = {
        "cosine": np.sort(rng.uniform(0.70, 0.85, size))[::-1],
        "reciprocal rank": 1 / (60 + np.arange(1, size + 1)),
        "BM25": np.sort(rng.gamma(4, 3, size))[::-1],
    }[scale]
    return scores, hits_by_rank(size)


@dataclass(frozen=True)
class Request:
    scale: str
    scores: np.ndarray
    chance: np.ndarray
    lengths: np.ndarray


def requests(rng: np.random.Generator) -> Iterator[Request]:
    """Every scale with equal and unequal lengths; the caller's order is by score, turned round or
    shuffled."""
    for scale in SCALES:
        for equal in (True, False):
            size = int(rng.choice(SIZES))
            scores, chance = scored(scale, size, rng)
            arranged = [np.arange(size), np.arange(size)[::-1], rng.permutation(size)]
            order = arranged[rng.choice(3, p=[0.5, 0.15, 0.35])]
            lengths = np.full(size, 200) if equal else rng.integers(50, 400, size)
            yield Request(scale, scores[order], chance[order], lengths)


def ask(one: Request, curves: DocumentCurves) -> tuple[Advice, OrderProblem]:
    relevance = weigh(one.scores, WIRE.get(one.scale, "score"), lengths=one.lengths)  # type: ignore[arg-type]
    length = int(one.lengths.sum()) + 60
    problem = OrderProblem(cumulative(curves.influence, length), one.lengths, relevance.weights, 20)
    found = advise(problem, curves, by_length=relevance.by_length, margin=INFLUENCE_MARGIN)
    return found, problem


def true_gain(
    advice: Advice, problem: OrderProblem, chance: np.ndarray, truth: DocumentCurves
) -> float:
    """Of the proposed order over the caller's."""
    orders = np.stack([advice.proposed, np.arange(problem.size)])
    start = problem.offsets(orders)
    weight = (chance * problem.scale)[orders]
    table = truth.coefficients(start, start + problem.span[orders], weight, problem.tokens)
    new, old = (truth.cumulative @ table)[0]
    return float(new / old - 1)


@dataclass
class Tally:
    asked: int = 0
    covered: int = 0
    below: int = 0
    reordered: int = 0
    kept: int = 0
    harmed: int = 0
    gain: float = 0.0

    def add(self, advice: Advice, gain: float) -> None:
        interval = advice.gain["given"]
        assert interval is not None
        self.asked += 1
        self.covered += interval.low - 1e-9 <= gain <= interval.high + 1e-9
        self.below += gain < interval.low - 1e-9
        self.reordered += advice.decision == "reorder"
        self.kept += advice.decision == "keep"
        self.harmed += advice.decision == "reorder" and gain < -1e-9
        self.gain += gain if advice.decision == "reorder" else 0.0

    def row(self, name: str) -> str:
        n = self.asked
        return (
            f"| {name} | {n} | {self.covered / n:.3f} | {self.below / n:.3f} "
            f"| {self.reordered / n:.3f} | {self.kept / n:.3f} | {self.harmed / n:.4f} "
            f"| {self.gain / max(self.reordered, 1):+.3f} |"
        )


HEAD = (
    "| | requests | covered | true gain below | reordered | kept | changed for the worse "
    "| true gain where changed |\n|---|---|---|---|---|---|---|---|"
)


def simulate(profiles: int, counts: list[int], seed: int) -> bool:
    rng = np.random.default_rng(seed)
    rows: dict[str, Tally] = defaultdict(Tally)
    worse: dict[str, Tally] = defaultdict(Tally)
    for name in CURVES:
        truth = population(name, rng)
        for count in counts:
            for _ in range(profiles):
                curves = document_curves.prepare(documents(name, count, rng))
                for one in requests(rng):
                    advice, problem = ask(one, curves)
                    gain = true_gain(advice, problem, one.chance, truth)
                    size = problem.size
                    for row in ("all", f"{name}, {count} documents", one.scale, f"{size} chunks"):
                        rows[row].add(advice, gain)
                    if one.scale in ("cosine", "BM25", "reciprocal rank"):
                        for label, first, power in (("30%", 0.3, 1.0), ("50%", 0.5, 1.5)):
                            other = weaker(one, first, power)
                            worse[f"rank 1 holds the answer in {label}"].add(
                                advice, true_gain(advice, problem, other, truth)
                            )
    print(HEAD)
    for label in ["all", *sorted(set(rows) - {"all"}, key=_by_kind)]:
        print(rows[label].row(label))
    print("\nThe retriever is worse than the hit curve says:\n\n" + HEAD)
    for label, tally in worse.items():
        print(tally.row(label))
    every = rows["all"]
    flat = [rows[f"flat, {count} documents"] for count in counts]
    return (
        0.93 <= every.covered / every.asked <= 0.97
        and max(tally.harmed / tally.asked for tally in rows.values()) <= 0.05
        and max(tally.reordered / tally.asked for tally in flat) <= 0.05
    )


def weaker(one: Request, first: float, power: float) -> np.ndarray:
    """Probabilities by rank that start at `first` and fall as 1 / rank^power from there."""
    rank = np.argsort(np.argsort(-one.scores, kind="stable")) + 1.0
    return first / rank**power


def _by_kind(label: str) -> tuple[int, str]:
    return (0 if "documents" in label else 2 if "chunks" in label else 1), label.zfill(20)


COSTS = (0.0, 0.01, 0.03)
COUNT_HEAD = (
    "| cost of a chunk | requests | decisions | interval holds the true value "
    "| truly worth nothing | of these kept | chunks kept | truly worth keeping |\n"
    "|---|---|---|---|---|---|---|---|"
)


@dataclass
class Marginals:
    """Decisions of `count_chunks` about single chunks."""

    decided: int = 0
    covered: int = 0
    worthless: int = 0
    worthless_kept: int = 0
    requests: int = 0
    kept: int = 0
    best: int = 0

    def row(self, name: str) -> str:
        wrong = self.worthless_kept / max(self.worthless, 1)
        return (
            f"| {name} | {self.requests} | {self.decided} | {self.covered / self.decided:.3f} "
            f"| {self.worthless} | {wrong:.3f} | {self.kept / self.requests:.1f} "
            f"| {self.best / self.requests:.1f} |"
        )


def chunk_counts(profiles: int, counts: list[int], seed: int) -> bool:
    """Intervals of marginal values when both the curve and the hit curve are estimates."""
    rng = np.random.default_rng((seed, 1))
    rows: dict[str, Marginals] = defaultdict(Marginals)
    for name in CURVES:
        truth = population(name, rng)
        for count in counts:
            for _ in range(profiles):
                curves = document_curves.prepare(documents(name, count, rng))
                size, lengths = 20, rng.integers(50, 400, 20)
                hits = hits_by_rank(size)
                measured = rng.binomial(HIT_QUESTIONS, hits) / HIT_QUESTIONS
                measured = np.minimum.accumulate(measured)  # a hit curve falls
                for cost in COSTS:
                    one_count(rows, curves, truth, lengths, hits, measured, cost)
    print("\n" + COUNT_HEAD)
    for label, tally in rows.items():
        print(tally.row(label))
    return all(
        tally.covered / tally.decided >= 0.93
        and tally.worthless_kept <= 0.05 * max(tally.worthless, 20)
        for tally in rows.values()
    )


def one_count(
    rows: dict[str, Marginals],
    curves: DocumentCurves,
    truth: DocumentCurves,
    lengths: np.ndarray,
    hits: np.ndarray,
    measured: np.ndarray,
    cost: float,
) -> None:
    def problem_of(kept: np.ndarray) -> OrderProblem:
        length = int(lengths[kept].sum()) + 60
        return OrderProblem(cumulative(curves.influence, length), lengths[kept], measured[kept], 20)

    found = count_chunks(
        measured,
        problem_of,
        curves,
        weight_error=hit_curve_error(measured, HIT_QUESTIONS),
        distractor_cost=cost,
        by_length=False,
    )
    tally = rows[f"{cost:.0%}"]
    tally.requests += 1
    tally.kept += found.kept.size
    before = true_worth(problem_of(np.arange(1)), curves, truth, hits[:1])[1]
    gains = []
    ranked = np.argsort(-measured, kind="stable")
    for marginal, number in zip(found.marginal, range(2, hits.size + 1), strict=False):
        kept = np.sort(ranked[:number])
        own, whole = true_worth(
            problem_of(kept), curves, truth, hits[kept], int(np.searchsorted(kept, marginal.chunk))
        )
        gain = own / before - cost
        gains.append(gain)
        tally.decided += 1
        tally.covered += marginal.low - 1e-12 <= gain <= marginal.high + 1e-12
        if gain <= 0:
            tally.worthless += 1
            tally.worthless_kept += marginal.low > 0
        before = whole
    tally.best += 1 + sum(gain > 0 for gain in gains)


def true_worth(
    problem: OrderProblem,
    curves: DocumentCurves,
    truth: DocumentCurves,
    hits: np.ndarray,
    chunk: int = 0,
) -> tuple[float, float]:
    """True value of one chunk and of all, in the order that the estimated curve asks for."""
    order = fast_orders(problem, curves, curves.chosen_on[None], by_length=False)
    start = problem.offsets(order)
    weight = (hits * problem.scale)[order]
    table = truth.coefficients(start, start + problem.span[order], weight, problem.tokens)
    only = truth.coefficients(
        start, start + problem.span[order], weight * (order == chunk), problem.tokens
    )
    return float((truth.cumulative @ only)[0, 0]), float((truth.cumulative @ table)[0, 0])


def speed(seed: int) -> bool:
    rng = np.random.default_rng(seed)
    curve = PlacementCurve(
        source="measured",
        basis="measured",
        level="medium",
        documents=document_curves.prepare(documents("u", 64, rng)),
        length=TOKENS,
    )
    fine = True
    print("\n| 20 chunks, 64 documents | ms of processor time | median | per second |")
    print("|---|---|---|---|")
    for scale in SCALES:
        times = []
        for _ in range(200):
            scores, _ = scored(scale, 20, rng)
            mixed, lengths = scores[rng.permutation(20)], rng.integers(50, 400, 20)
            body = {
                "density": [1.0],  # not used: the curve is handed over
                "relevance_scale": WIRE.get(scale, "score"),
                "prefix_tokens": 20,
                "suffix_tokens": 40,
                "chunks": [
                    {"id": str(i), "tokens": int(lengths[i]), "relevance": float(mixed[i])}
                    for i in range(20)
                ],
            }
            request = PlacementRequest.model_validate(body)
            began = time.process_time()
            place(request, curve)
            times.append(1e3 * (time.process_time() - began))
        # Other work on the machine only adds to it: the fastest tenth says what placing takes.
        took, usual = np.quantile(times, [0.1, 0.5]).tolist()
        fine &= took <= 5
        print(f"| {scale} | {took:.2f} | {usual:.2f} | {1e3 / took:.0f} |")
    return fine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profiles", type=int, default=300)
    parser.add_argument("--documents", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    fine = simulate(options.profiles, options.documents, options.seed)
    fine &= chunk_counts(max(1, options.profiles // 3), options.documents, options.seed)
    fine &= speed(options.seed)
    print("\nall targets met" if fine else "\nA TARGET WAS MISSED")
    raise SystemExit(0 if fine else 1)


if __name__ == "__main__":
    main()
