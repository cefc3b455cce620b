"""Does placement help? Facts in chunks, a question for one of them, orders side by side.

    python bench/placement.py [--model demo:smollm2-135m-instruct] [--trials 16] [--chunks 6]

Each trial draws `chunks` chunks of unequal length, each with one fact in prose, and a relevance
for each. The question asks for one fact, drawn by relevance. Instead of drawing, every question is
asked and weighted by its relevance: the same expectation with less noise. What is compared is the
expected log-probability of the right answer under each order, as differences from most relevant
first (what a retriever hands over), with 95% bootstrap bands over trials. The curves are measured
on other text and other facts before the trials. A last table gives recall by place in the prompt,
over all orders: which of the two curves ranks places as recall does?
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lacuna.contract.placements import PlacementRequest
from lacuna.contract.profile_requests import Documents, ProfileRequest
from lacuna.evidence import aggregates
from lacuna.placement.answer import place
from lacuna.placement.curve import PlacementCurve
from lacuna.theory import agreement
from service.settings import Settings
from workers import documents
from workers.documents import corpus
from workers.documents.tokens import encode, policy
from workers.influence import influence
from workers.models import loading
from workers.models.loaded import LoadedModel, LoadOptions
from workers.recall import needle

BASE = "most relevant first"
KEYS = ("blue", "green", "heavy", "quiet", "round", "small", "tall", "young")
OWNERS = ("baker", "captain", "doctor", "farmer", "judge", "painter", "pilot", "teacher")
PLACES = 6


@dataclass(frozen=True)
class Trial:
    """Chunks as token ids, their relevances, and for each fact its question and value."""

    chunks: list[list[int]]
    relevance: np.ndarray
    questions: list[tuple[list[int], list[int]]]


def draw(loaded: LoadedModel, filler: list[int], count: int, seed: int) -> Trial:
    rng = np.random.default_rng((seed, 7))
    pairs = rng.permutation(len(KEYS) * len(OWNERS))[:count]
    chunks, questions = [], []
    for pair in pairs:
        key = f"{KEYS[pair % len(KEYS)]} {OWNERS[pair // len(KEYS)]}"
        code = int(rng.integers(10_000, 100_000))
        fact = encode(loaded.tokenizer, f"\n\nThe locker number of the {key} is {code}.\n\n")
        before, after = rng.integers(4, 28, 2)
        at = int(rng.integers(0, len(filler) - 200))
        text = filler[at : at + before + after]
        chunks.append([*text[:before], *fact, *text[before:]])
        question = f"\n\nQuestion: What is the locker number of the {key}?\nAnswer: It is"
        asked = encode(loaded.tokenizer, question)
        whole = encode(loaded.tokenizer, f"{question} {code}")
        shared = next(i for i in range(len(whole)) if whole[: i + 1] != asked[: i + 1])
        questions.append((whole[:shared], whole[shared:]))
    relevance = rng.permutation(np.exp(-np.arange(count) / 1.5))
    return Trial(chunks, relevance, questions)


@torch.no_grad()
def recall(loaded: LoadedModel, trial: Trial, order: list[int]) -> np.ndarray:
    """Log-probability of each fact's value when its question follows the ordered chunks, [m].

    The context is read once; each question continues from a copy of its cache.
    """
    prefix = list(policy(loaded.tokenizer).prefix)
    context = prefix + [token for i in order for token in trial.chunks[i]]
    ids = torch.tensor([context], device=loaded.device)
    model: Any = loaded.model
    read = model(ids, use_cache=True, logits_to_keep=1)
    name = "cache" if "cache" in read else "past_key_values"  # older transformers
    found = np.empty(len(trial.questions))
    for i, (question, value) in enumerate(trial.questions):
        ending = torch.tensor([question + value], device=loaded.device)
        logits = model(ending, **{name: copy.deepcopy(read[name])}).logits[0].float()
        steps = logits[len(question) - 1 : -1].log_softmax(-1)
        found[i] = float(steps.gather(-1, ending[0, len(question) :, None]).sum())
    return found


def orders(trial: Trial, curves: dict[str, PlacementCurve], asked: int) -> dict[str, list[int]]:
    """Every order that is compared; `asked` is the mean length of the questions.

    Haystack's zigzag puts the best first; LangChain's and LlamaIndex's puts it last when the
    number of chunks is even and first when it is odd.
    """
    ranked = np.argsort(-trial.relevance, kind="stable").tolist()
    found = {
        BASE: ranked,
        "most relevant last": ranked[::-1],
        "zigzag, best first": ranked[0::2] + ranked[1::2][::-1],
        "zigzag, best last": ranked[1::2] + ranked[0::2][::-1],
    }
    for name, curve in curves.items():
        request = PlacementRequest.model_validate(
            {
                "density": [1.0],  # not used: the curve is handed over
                "suffix_tokens": asked,
                "chunks": [
                    {"id": str(i), "tokens": len(chunk), "relevance": float(relevance)}
                    for i, (chunk, relevance) in enumerate(
                        zip(trial.chunks, trial.relevance, strict=True)
                    )
                ],
            }
        )
        found[f"Lacuna, {name}"] = [int(one) for one in place(request, curve).order]
    return found


def measured(
    loaded: LoadedModel, length: int, options: argparse.Namespace, say: Callable[[str], None]
) -> tuple[dict[str, PlacementCurve], float]:
    """Influence and needle curves at the trials' length, and their rank agreement."""
    texts = documents.build(Documents(count=options.documents), loaded, length, 0)
    say(f"influence of {options.documents} documents of {length} tokens")
    norms = influence.measure(loaded, texts).norms
    mean = aggregates.mean_of_norms(norms)
    say(f"recall of {options.facts} facts at {options.depths} depths")
    curve = needle.measure(loaded, length, depths=options.depths, facts=options.facts, seed=11)
    at = (np.arange(length) + 0.5) / length
    probability = np.exp(curve.log_probability - curve.log_probability.max())
    by_depth = np.interp(at, curve.depths, probability)
    width = max(1, length // options.depths)
    local = [mean[max(0, int(p) - width // 2) :][:width].mean() for p in curve.positions]
    print("\n| depth | " + " | ".join(f"{d:.2f}" for d in curve.depths) + " |")
    print("|---|" + "---|" * len(curve.depths))
    cells = " | ".join(f"{x:.2f}" for x in curve.log_probability)
    print(f"| log-probability (without the fact {curve.baseline:.1f}) | {cells} |")
    print("| influence density | " + " | ".join(f"{x * length:.2f}" for x in local) + " |")
    agree = agreement.spearman(np.array(local), curve.log_probability)
    curves = {
        "influence": PlacementCurve(
            source="measured", basis="measured", level="medium", influence=mean, length=length
        ),
        "needle": PlacementCurve(
            source="needle", basis="needle", level="high", influence=by_depth, length=length,
            anchored=False,
        ),
    }  # fmt: skip
    return curves, float("nan") if agree is None else agree


def band(values: np.ndarray) -> str:
    rng = np.random.default_rng(0)
    means = values[rng.integers(0, len(values), (2_000, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{values.mean():+.3f} [{low:+.3f}, {high:+.3f}]"


def by_place(seen: list[tuple[float, float]]) -> np.ndarray:
    """Mean log-probability by sixth of the context."""
    at, scores = np.array(seen).T
    sixth = np.minimum((at * PLACES).astype(int), PLACES - 1)
    return np.array([scores[sixth == k].mean() for k in range(PLACES)])


def run(
    loaded: LoadedModel,
    trials: list[Trial],
    curves: dict[str, PlacementCurve],
    asked: int,
    say: Callable[[str], None],
    out: Path | None,
) -> tuple[list[str], np.ndarray, np.ndarray, list[tuple[float, float]]]:
    """Names of the orders; expected log-probability and probability [trials, orders]; and for
    every fact read (place in the context, log-probability)."""
    names: list[str] = []
    table: list[list[float]] = []
    right: list[list[float]] = []
    seen: list[tuple[float, float]] = []
    for number, trial in enumerate(trials):
        weights = trial.relevance / trial.relevance.sum()
        known: dict[tuple[int, ...], np.ndarray] = {}
        row, hits = [], []
        compared = orders(trial, curves, asked)
        for order in compared.values():
            if tuple(order) not in known:
                known[tuple(order)] = recall(loaded, trial, order)
                total, start = sum(map(len, trial.chunks)), 0
                for i in order:
                    middle = start + len(trial.chunks[i]) / 2
                    seen.append((middle / total, float(known[tuple(order)][i])))
                    start += len(trial.chunks[i])
            scores = known[tuple(order)]
            row.append(float(weights @ scores))
            hits.append(float(weights @ np.exp(scores)))
        names = list(compared)
        table.append(row)
        right.append(hits)
        say(f"trial {number + 1} of {len(trials)}")
        if out is not None:
            kept = {"orders": names, "log_probability": table, "probability": right, "seen": seen}
            out.write_text(json.dumps(kept))
    return names, np.array(table), np.array(right), seen


def report(
    names: list[str],
    table: np.ndarray,
    right: np.ndarray,
    seen: list[tuple[float, float]],
    agree: float,
    options: argparse.Namespace,
) -> None:
    print(f"\n{options.model}, {len(table)} trials of {options.chunks} chunks\n")
    zigzags = [i for i, name in enumerate(names) if name.startswith("zigzag")]
    rival = max(zigzags, key=lambda i: table[:, i].mean())
    print(f"| order | log-probability | from {BASE} [95%] | from the better zigzag | probability |")
    print("|---|---|---|---|---|")
    for i, name in enumerate(names):
        scores = table[:, i]
        first = "" if i == 0 else band(scores - table[:, 0])
        second = "" if i == rival else band(scores - table[:, rival])
        print(f"| {name} | {scores.mean():.3f} | {first} | {second} | {right[:, i].mean():.3f} |")
    print("\n| place of the fact (sixths of the context) | " + " | ".join("123456") + " |")
    print("|---|" + "---|" * PLACES)
    places = by_place(seen)
    print("| log-probability, all orders | " + " | ".join(f"{x:.2f}" for x in places) + " |")
    print(f"\nSpearman of needle and influence over depths: {agree:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo:smollm2-135m-instruct")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--first", type=int, default=0, help="seed of the first trial")
    parser.add_argument("--chunks", type=int, default=6)
    parser.add_argument("--documents", type=int, default=8)
    parser.add_argument("--facts", type=int, default=8)
    parser.add_argument("--depths", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="also write the single numbers as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    started = time.perf_counter()

    def say(text: str) -> None:
        print(f"[{time.perf_counter() - started:.0f} s] {text}", flush=True)

    loaded = loading.load(
        ProfileRequest(model=options.model), LoadOptions.from_settings(Settings())
    )
    filler = encode(loaded.tokenizer, corpus.builtin_text()[-200_000:])
    seeds = range(options.first, options.first + options.trials)
    trials = [draw(loaded, filler, options.chunks, seed) for seed in seeds]
    asked = round(np.mean([len(q) + len(v) for t in trials for q, v in t.questions]))
    length = asked + round(np.mean([sum(map(len, trial.chunks)) for trial in trials]))
    curves, agree = measured(loaded, length, options, say)

    names, table, right, seen = run(loaded, trials, curves, asked, say, options.out)
    report(names, table, right, seen, agree, options)


if __name__ == "__main__":
    main()
