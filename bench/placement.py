"""Does placement help? Facts in chunks, a question for one of them, orders next to each other.

    python bench/placement.py [--trials 96] [--chunks 6] [--minutes 10]

Each trial draws chunks of unequal length, each with one fact in prose, and the probability that
each fact is asked for. Every question is asked and weighted by that probability: the same
expectation as drawing, with less noise. Lacuna sees scores of five scales that rank as the truth
does, in order of relevance, as a retriever hands them over. What is compared is the expected
log-probability of the right answer, paired over trials with 95% intervals (Student's t): from most
relevant first, and from the fixed rule that is best over all trials. The curve is the influence
profile of other text, measured before the trials.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import stdtrit

from lacuna.contract.placements import PlacementRequest
from lacuna.contract.profile_requests import Documents, ProfileRequest
from lacuna.placement.answer import place
from lacuna.placement.curve import PlacementCurve
from lacuna.placement.document_curves import prepare
from service.settings import Settings
from workers import documents
from workers.documents import corpus
from workers.documents.tokens import encode, policy
from workers.influence import influence
from workers.models import loading
from workers.models.loaded import LoadedModel, LoadOptions

BASE = "most relevant first"
RULES = (BASE, "most relevant last", "zigzag, best first", "zigzag, best last")
KEYS = ("blue", "green", "heavy", "quiet", "round", "small", "tall", "young")
OWNERS = ("baker", "captain", "doctor", "farmer", "judge", "painter", "pilot", "teacher")


@dataclass(frozen=True)
class Trial:
    """Chunks as token ids, the true probability that each is asked for, and for each fact its
    question and value."""

    chunks: list[list[int]]
    chance: np.ndarray
    scores: dict[str, np.ndarray]
    """By scale, as a retriever gives them that ranks as the truth does."""
    questions: list[tuple[list[int], list[int]]]


def draw(loaded: LoadedModel, filler: list[int], count: int, seed: int) -> Trial:
    rng = np.random.default_rng((seed, 7))
    pairs = rng.permutation(len(KEYS) * len(OWNERS))[:count]
    chunks, questions = [], []
    for pair in pairs:
        key = f"{KEYS[pair % len(KEYS)]} {OWNERS[pair // len(KEYS)]}"
        code = int(rng.integers(10_000, 100_000))
        fact = encode(loaded.tokenizer, f"\n\nThe locker number of the {key} is {code}.\n\n")
        before, after = rng.integers(4, 40, 2)
        at = int(rng.integers(0, len(filler) - 200))
        text = filler[at : at + before + after]
        chunks.append([*text[:before], *fact, *text[before:]])
        question = f"\n\nQuestion: What is the locker number of the {key}?\nAnswer: It is"
        asked = encode(loaded.tokenizer, question)
        whole = encode(loaded.tokenizer, f"{question} {code}")
        shared = next(i for i in range(len(whole)) if whole[: i + 1] != asked[: i + 1])
        questions.append((whole[:shared], whole[shared:]))
    chance = np.exp(-np.arange(count) / 1.5)
    chance /= chance.sum()
    ranked = {
        "probability": chance,
        "logit": np.log(chance / (1 - chance)),
        "cosine": np.sort(rng.uniform(0.70, 0.85, count))[::-1],
        "reciprocal rank": 1 / (60 + np.arange(1, count + 1)),
        "BM25": np.sort(rng.gamma(4, 3, count))[::-1],
    }
    mixed = rng.permutation(count)
    return Trial(
        chunks, chance[mixed], {name: one[mixed] for name, one in ranked.items()}, questions
    )


@torch.no_grad()
def recall(loaded: LoadedModel, trial: Trial, order: list[int]) -> np.ndarray:
    """Log-probability of each fact's value when its question follows the ordered chunks, [m].

    The context is read once; the questions continue from copies of its cache.
    """
    prefix = list(policy(loaded.tokenizer).prefix)
    context = prefix + [token for i in order for token in trial.chunks[i]]
    ids = torch.tensor([context], device=loaded.device)
    model: Any = loaded.model
    read = model(ids, use_cache=True, logits_to_keep=1)
    name = "cache" if "cache" in read else "past_key_values"  # older transformers
    # All questions at once, padded behind, where causal attention does not look.
    cache = copy.deepcopy(read[name])
    cache.batch_repeat_interleave(len(trial.questions))
    rows = [question + value for question, value in trial.questions]
    longest = max(map(len, rows))
    padded = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=loaded.device)
    logits = model(padded, **{name: cache}).logits.float().log_softmax(-1)
    found = np.empty(len(rows))
    for i, (question, _) in enumerate(trial.questions):
        steps = logits[i, len(question) - 1 : len(rows[i]) - 1]
        found[i] = float(steps.gather(-1, padded[i, len(question) : len(rows[i]), None]).sum())
    return found


def orders(trial: Trial, curve: PlacementCurve, asked: int) -> dict[str, list[int]]:
    """Every order that is compared; `asked` is the mean length of the questions."""
    ranked = np.argsort(-trial.chance, kind="stable").tolist()
    fixed = (
        ranked, ranked[::-1], ranked[0::2] + ranked[1::2][::-1], ranked[1::2] + ranked[0::2][::-1],
    )  # fmt: skip
    found = dict(zip(RULES, fixed, strict=True))
    for name, scores in trial.scores.items():
        scale = name if name in ("probability", "logit") else "score"
        for strategy in ("advised", "optimal"):
            body = {
                "density": [1.0],  # not used: the curve is handed over
                "suffix_tokens": asked,
                "relevance_scale": scale,
                "strategy": strategy,
                "chunks": [
                    {"id": str(i), "tokens": len(trial.chunks[i]), "relevance": float(scores[i])}
                    for i in ranked
                ],
            }
            answer = place(PlacementRequest.model_validate(body), curve)
            found[f"Lacuna, {strategy}, {name}"] = [int(one) for one in answer.order]
    return found


def measured(loaded: LoadedModel, length: int, count: int) -> PlacementCurve:
    """The influence profile of built-in prose at the trials' length."""
    texts = documents.build(Documents(count=count), loaded, length, 0)
    norms = influence.measure(loaded, texts, batch_size=1).norms
    return PlacementCurve(
        source="measured", basis="measured", level="medium", documents=prepare(norms), length=length
    )


def interval(values: np.ndarray) -> str:
    """Mean with its 95% interval, paired over trials."""
    if not values.any():
        return ""
    mean, error = values.mean(), values.std(ddof=1) / np.sqrt(values.size)
    half = float(stdtrit(values.size - 1, 0.975)) * error
    return f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]"


def run(
    loaded: LoadedModel,
    trials: list[Trial],
    curve: PlacementCurve,
    asked: int,
    seconds: float,
    out: Path | None,
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Names of the orders; expected log-probability and probability, shape [trials, orders]. Stops
    after `seconds` of processor time."""
    names: list[str] = []
    table: list[list[float]] = []
    right: list[list[float]] = []
    for trial in trials:
        if time.process_time() > seconds:
            break
        known: dict[tuple[int, ...], np.ndarray] = {}
        compared = orders(trial, curve, asked)
        for order in compared.values():
            if tuple(order) not in known:
                known[tuple(order)] = recall(loaded, trial, order)
        names = list(compared)
        scores = [known[tuple(order)] for order in compared.values()]
        table.append([float(trial.chance @ one) for one in scores])
        right.append([float(trial.chance @ np.exp(one)) for one in scores])
        if out is not None:
            out.write_text(json.dumps({"orders": names, "log_probability": table, "right": right}))
    return names, np.array(table), np.array(right)


def report(
    names: list[str], table: np.ndarray, right: np.ndarray, options: argparse.Namespace
) -> None:
    print(f"\n{options.model}, {len(table)} trials of {options.chunks} chunks\n")
    best = int(table[:, : len(RULES)].mean(axis=0).argmax())
    print(f"| order | log-probability | from {BASE} | from {names[best]} | probability |")
    print("|---|---|---|---|---|")
    for i, name in enumerate(names):
        scores = table[:, i]
        cells = [interval(scores - table[:, 0]), interval(scores - table[:, best])]
        print(
            f"| {name} | {scores.mean():.3f} | {cells[0]} | {cells[1]} | {right[:, i].mean():.3f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo:smollm2-135m-instruct")
    parser.add_argument("--trials", type=int, default=96)
    parser.add_argument("--first", type=int, default=0, help="seed of the first trial")
    parser.add_argument("--chunks", type=int, default=6)
    parser.add_argument("--documents", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=60, help="of processor time, at most")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="also write the single numbers as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    loaded = loading.load(
        ProfileRequest(model=options.model), LoadOptions.from_settings(Settings())
    )
    filler = encode(loaded.tokenizer, corpus.builtin_text()[-200_000:])
    seeds = range(options.first, options.first + options.trials)
    trials = [draw(loaded, filler, options.chunks, seed) for seed in seeds]
    asked = round(np.mean([len(q) + len(v) for t in trials for q, v in t.questions]))
    length = asked + round(np.mean([sum(map(len, trial.chunks)) for trial in trials]))
    curve = measured(loaded, length, options.documents)
    print(f"[{time.process_time():.0f} s] {options.documents} documents of {length} tokens")
    seconds = 60 * options.minutes
    names, table, right = run(loaded, trials, curve, asked, seconds, options.out)
    report(names, table, right, options)


if __name__ == "__main__":
    main()
