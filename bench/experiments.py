"""Do experiments hold what they state, and what do real questions say?

    python bench/experiments.py simulate [--times 500]
    python bench/experiments.py dataset nq-open-a.jsonl.gz questions.jsonl [--questions 200]
    python bench/experiments.py weights questions.jsonl --keep FOLDER [--orders given random ..]

`simulate`: false alarms of an order against itself, coverage of differences, and how often a
planted difference is found, for probabilities and for hits; ends with 1 if a figure misses its
bound. A share of 500 draws has a standard error of .010 at .95.

`dataset`: questions of Natural Questions (Open) with their gold passage and the best passages by
BM25 that hold no accepted answer, with their scores, cut to some words around the answer, as
`lacuna evaluate` takes them.

`weights`: the experiment on the demo model, in this process, on one thread. What was read is kept
in the folder, so that a run can be ended and taken up again.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from coverage import Row, report
from numpy.typing import NDArray

from lacuna.contract.experiment_requests import ExperimentRequest
from lacuna.contract.experiments import ExperimentResult
from lacuna.evidence import arms
from lacuna.experiments.scoring import normalized

F64 = NDArray[np.float64]
TEMPLATE = {
    "form": "plain",
    "instructions": "Answer each question in a few words, from the passages.\n\n"
    "Question: who wrote the play hamlet\nAnswer: William Shakespeare\n\n"
    "Question: when did the berlin wall fall\nAnswer: 9 November 1989\n\n"
    "Question: where is the eiffel tower\nAnswer: Paris, France",
}
"""With examples: without them a small chat model begins with a sentence, and the probability of
every short answer is near zero."""
ORDERS = ["given", "relevance_last", "zigzag_best_last", "random"]


# Simulation

BETWEEN, WITHIN = 1.8, 0.5
"""Standard deviations in log odds: between questions, and between the orders of one question, as
measured for recall among competing facts."""
BASES = {"middle": 0.0, "hard": -3.0}
"""Mean log odds: half of the questions right, or about one in eight."""


def draw(
    kind: str, base: float, effects: list[float], count: int, generator: np.random.Generator
) -> F64:
    """F64[count, arms]: scores; each arm is better by its `effects`, nats of log odds."""
    level = base + BETWEEN * generator.normal(size=(count, 1))
    noise = WITHIN * generator.normal(size=(count, len(effects)))
    p = 1 / (1 + np.exp(-(level + np.array(effects) + noise)))
    return (generator.random(p.shape) < p).astype(float) if kind == "hits" else p


@cache
def truth(base: float, effect: float) -> float:
    """Expected difference of an arm that is better by `effect` nats; the same for both kinds."""
    big = draw("p", base, [0.0, effect], 1_000_000, np.random.default_rng(9))
    return float((big[:, 1] - big[:, 0]).mean())


@cache
def effect_of(base: float, difference: float) -> float:
    """Nats that give an expected difference in score."""
    low, high = 0.0, 8.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if truth(base, middle) < difference else (low, middle)
    return low


def simulated(times: int) -> Iterator[Row]:
    for kind in ("p", "hits"):
        for name, base in BASES.items():
            for count in (30, 200):
                where = f"{kind}, {name}, {count} questions"
                yield from _flat(kind, base, count, times, where)
                yield from _planted(kind, base, count, times, where)
    yield from _places(times)


def _flat(kind: str, base: float, count: int, times: int, where: str) -> Iterator[Row]:
    """Five orders that are truly equal, and one read twice by a server that answers again."""
    generator = np.random.default_rng(count)
    hits, used, alarms = kind == "hits", 0, 0
    for _ in range(times):
        rows = draw(kind, base, [0.0] * 5, count, generator)
        used += arms.decide(arms.compare_arms(rows, hits=hits), 0.05).decision == "use"
        alarms += arms.compare_arms(rows[:, :2], hits=hits).arms[1].p <= arms.ALPHA
    yield Row(f"{where}: `use` among five equal orders", used / times, high=0.05)
    yield Row(f"{where}: A/A finds something", alarms / times, high=0.05)


def _planted(kind: str, base: float, count: int, times: int, where: str) -> Iterator[Row]:
    """Two of four orders are better: by d, and by twice d."""
    generator = np.random.default_rng(count + 1)
    d = 0.05
    effects = [0.0, 0.0, effect_of(base, d), effect_of(base, 2 * d)]
    true = [truth(base, effect) for effect in effects]
    hits, covered, joint, found, equal, detected = kind == "hits", 0, 0, 0, 0, []
    for _ in range(times):
        rows = draw(kind, base, effects, count, generator)
        some = arms.compare_arms(rows, hits=hits)
        ends = [(arm.difference, arm.joint) for arm in some.arms[1:]]
        inside = [a.low <= t <= a.high for (a, _), t in zip(ends, true[1:], strict=True)]
        covered += sum(inside)
        joint += all(j.low <= t <= j.high for (_, j), t in zip(ends, true[1:], strict=True))
        verdict = arms.decide(some, d)
        found += verdict.decision == "use" and verdict.arm == 3
        equal += verdict.decision == "no_difference"
        detected.append(some.detectable or 0.0)
    # A pseudo-question on either side is much among thirty: wider than needed, on the safe side.
    most = 1.0 if hits and count < 100 else 0.97
    yield Row(f"{where}: interval of a difference", covered / times / 3, 0.93, most)
    yield Row(f"{where}: all intervals together", joint / times, 0.93)
    note = f"minimum detectable {np.mean(detected):.3f}"
    yield Row(f"{where}: the better order by .10 is named", found / times, note=note)
    yield Row(f"{where}: `no_difference` though there is one", equal / times, high=0.05)


def _places(times: int) -> Iterator[Row]:
    """Score by place: the band of the shape that four random orders give."""
    generator = np.random.default_rng(5)
    grid = np.arange(10) / 9
    bend = 1.0
    population = 1 / (
        1 + np.exp(-(BETWEEN * generator.normal(size=(400_000, 1)) - bend * grid * (1 - grid) * 4))
    )
    true, covered, missing = population.mean(axis=0), 0, 0
    for _ in range(times):
        depth = generator.integers(0, 10, size=(200, 4)) / 9
        level = BETWEEN * generator.normal(size=(200, 1))
        noise = WITHIN * generator.normal(size=depth.shape)
        scores = 1 / (1 + np.exp(-(level - bend * depth * (1 - depth) * 4 + noise)))
        found = arms.by_place(depth, scores)
        if found is None or len(found.depth) != 10:
            missing += 1
            continue
        covered += int(((found.low <= true) & (true <= found.high)).sum())
    yield Row("score by place, 200 questions", covered / (times - missing) / 10, 0.92, 0.98)


# Real questions


def dataset(
    source: Path, target: Path, *, questions: int, chunks: int, words: int, seed: int = 0
) -> None:
    """Write questions with chunks in the retriever's order."""
    import bm25s

    with gzip.open(source, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    texts = list(dict.fromkeys(f"{row['title']}\n{row['text']}" for row in rows))
    index = bm25s.BM25()
    index.index(bm25s.tokenize(texts, stopwords="en", show_progress=False), show_progress=False)
    drawn = np.random.default_rng(seed)
    written = 0
    with target.open("w", encoding="utf-8") as out:
        for number in drawn.permutation(len(rows)).tolist():
            made = _question(rows[number], texts, index, chunks, words, drawn)
            if made is not None:
                out.write(json.dumps({"id": f"nq-{number}", **made}, ensure_ascii=False) + "\n")
                written += 1
            if written == questions:
                break
    print(f"{written} questions with {chunks} chunks each")


def _question(
    row: dict[str, Any], texts: list[str], index: Any, chunks: int, words: int,
    drawn: np.random.Generator,
) -> dict[str, Any] | None:  # fmt: skip
    import bm25s

    own = f"{row['title']}\n{row['text']}"
    answers = [a for a in row["answers"] if len(a) <= 60 and _stands(a, row["text"])]
    if not answers:
        return None
    asked = bm25s.tokenize([row["question"]], stopwords="en", show_progress=False)
    found, scores = index.retrieve(asked, k=len(texts), show_progress=False)
    ranked = [(texts[i], float(score)) for i, score in zip(found[0], scores[0], strict=True)]
    gold = next(one for one in ranked if one[0] == own)
    wrong = [one for one in ranked if not any(_stands(a, one[0]) for a in row["answers"])]
    kept = sorted([gold, *wrong[: chunks - 1]], key=lambda one: -one[1])
    made = []
    for rank, (text, score) in enumerate(kept):
        title, _, body = text.partition("\n")
        piece = _piece(body, answers[0] if text == own else None, words, drawn)
        if piece is None:
            return None
        gold_here = text == own
        made.append(
            {"id": f"r{rank + 1}", "text": f"{title}: {piece}", "score": round(score, 4),
             "gold": gold_here}
        )  # fmt: skip
    answers += [a for a in row["answers"] if a not in answers]
    return {"question": row["question"], "answers": answers[:20], "chunks": made}


def _stands(answer: str, text: str) -> bool:
    wanted = normalized(answer)
    return bool(wanted) and f" {wanted} " in f" {normalized(text)} "


def _piece(body: str, answer: str | None, words: int, drawn: np.random.Generator) -> str | None:
    """So many words of a passage; with an answer, a stretch that holds it, at a random place."""
    parts = body.split()
    last = max(0, len(parts) - words)
    starts = drawn.permutation(last + 1).tolist()
    for start in starts:
        piece = " ".join(parts[start : start + words])
        if answer is None or _stands(answer, piece):
            return piece
    return None


# The experiment


class _Told:
    """A job that nobody can stop, which says now and then how far it is."""

    def __init__(self) -> None:
        self.began = self.told = time.monotonic()

    def progress(self, fraction: float, message: str = "") -> None:
        now = time.monotonic()
        if now - self.told > 60:
            self.told = now
            spent = f"{(now - self.began) / 60:.1f} min, {time.process_time():.0f} s of processor"
            print(f"{spent}: {message}", file=sys.stderr, flush=True)

    def check(self) -> None:
        pass


def weights(options: argparse.Namespace) -> None:
    import torch

    from service.settings import Settings
    from workers.experiments.weights import run_weights
    from workers.models.loading import LoadOptions, load

    torch.set_num_threads(1)
    with options.file.open(encoding="utf-8") as file:
        questions = [json.loads(line) for line in file][: options.questions]
    request = ExperimentRequest.model_validate(
        {
            "model": "demo:smollm2-135m-instruct", "questions": questions,
            "orders": options.orders, "reference": options.reference,
            "smallest_effect": options.effect, "template": TEMPLATE,
            "dtype": options.dtype,
        }
    )  # fmt: skip
    loaded = load(request.loading(), LoadOptions(data_dir=Settings().data_dir, device="cpu"))
    found = run_weights(request, loaded, _Told(), folder=options.keep)
    if options.csv:
        options.csv.write_text("\n".join(",".join(row.cells()) for row in found.rows) + "\n")
    print(table(found.result))


def table(found: ExperimentResult) -> str:
    """The result as Markdown."""
    lines = [
        f"{found.questions} questions, {found.scoring}, form {found.form}\n",
        "| order | mean [95%] | difference [95%] | all together | p | flips | nats [95%] |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found.orders:
        moved = one.difference
        nats = one.log_difference
        log = "" if nats is None else f"{nats.value:+.2f} [{nats.low:+.2f}, {nats.high:+.2f}]"
        lines.append(
            f"| {one.name} | {one.mean:.4f} [{one.low:.4f}, {one.high:.4f}] "
            f"| {moved.value:+.4f} [{moved.low:+.4f}, {moved.high:+.4f}] "
            f"| [{one.joint_low:+.4f}, {one.joint_high:+.4f}] | {one.p:.4f} | {one.flips:.3f} "
            f"| {log} |"
        )
    same = found.controls.a_a
    lines += [
        "",
        found.verdict.words,
        f"\nSmallest effect {found.smallest_effect:g}, minimum detectable "
        f"{found.minimum_detectable_effect or float('nan'):.4f}. "
        f"A/A: {'-' if same is None else f'{same.difference.value:+.4f}, found {same.found}'}. "
        f"Closed book: {found.controls.closed_book}.",
    ]
    if found.recall_by_place is not None:
        place = found.recall_by_place
        lines += ["", "| place | score [95%] | readings |", "|---|---|---|"]
        for depth, value, low, high, count in zip(
            place.depth, place.value, place.low, place.high, place.readings, strict=True
        ):
            lines.append(f"| {depth:.2f} | {value:.4f} [{low:.4f}, {high:.4f}] | {count} |")
    if found.calibration is not None:
        kept = found.calibration.reliability
        lines.append(
            f"\nCalibration ({found.calibration.family}): Brier {kept.brier:.4f} against "
            f"{kept.brier_base:.4f} for the base rate."
        )
    return "\n".join([*lines, *(f"\nWarning: {one}." for one in found.warnings)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    made = commands.add_parser("simulate")
    made.add_argument("--times", type=int, default=500)
    made = commands.add_parser("dataset")
    made.add_argument("source", type=Path)
    made.add_argument("target", type=Path)
    made.add_argument("--questions", type=int, default=200)
    made.add_argument("--chunks", type=int, default=10)
    made.add_argument("--words", type=int, default=20)
    read = commands.add_parser("weights")
    read.add_argument("file", type=Path)
    read.add_argument("--keep", type=Path, required=True)
    read.add_argument("--questions", type=int, default=1_000)
    read.add_argument(
        "--orders", nargs="+", default=["given", "relevance_last", "zigzag_best_last", "random"]
    )
    read.add_argument("--reference", default="given")
    read.add_argument("--effect", type=float, default=0.05)
    read.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    read.add_argument("--csv", type=Path)
    options = parser.parse_args()
    if options.command == "simulate":
        sys.exit(report(simulated(options.times)))
    if options.command == "dataset":
        dataset(options.source, options.target, questions=options.questions,
                chunks=options.chunks, words=options.words)  # fmt: skip
    else:
        weights(options)


if __name__ == "__main__":
    main()
