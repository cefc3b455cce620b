"""Recall among six competing facts by depth, beside influence: do they rank places alike?

    python bench/recall.py [--length 256] [--groups 64] [--documents 32] [--form plain continued]
                           [--keep FOLDER]

Prints Markdown for each form of the prompt: expected probability of a right answer by depth with
its band, and the density of influence where the facts stood, both over the recall prompts
themselves (one prompt of each group) and over built-in prose as a profile measures it. `--keep`
stores what was measured, so that a run can be ended and taken up again.

On one idle core 64 groups take about ten minutes a form at 256 tokens.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lacuna.contract.profile_requests import Documents, ProfileRequest
from lacuna.evidence import flatness
from service.settings import Settings
from workers import documents
from workers.documents import DocumentSet
from workers.influence import influence
from workers.models.loaded import LoadedModel
from workers.models.loading import LoadOptions, load
from workers.recall import probes
from workers.recall.measure import layouts, measure
from workers.recall.result import densities
from workers.recall.weights_reader import WeightsReader
from workers.recall.wire import rank_agreement

F64 = NDArray[np.float64]
FACTS = 6
STEP = 8


def main() -> None:
    parser = argparse.ArgumentParser(description="Recall and influence of the demo model by depth.")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--documents", type=int, default=32)
    parser.add_argument("--form", nargs="+", default=["plain", "continued"])
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    options = LoadOptions(data_dir=Settings().data_dir, device="cpu")
    loaded = load(ProfileRequest(model="demo:smollm2-135m-instruct"), options)
    for form in given.form:
        reader = WeightsReader(loaded, chat=form != "plain")
        parts = [
            _part(loaded, reader, given.length, first, given.keep)
            for first in range(0, given.groups, STEP)
        ]
        found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        norms = _prose(loaded, given.length, given.documents, given.keep)
        _print(reader.form, given.length, found, norms)


def _part(
    loaded: LoadedModel, reader: WeightsReader, length: int, first: int, keep: Path | None
) -> dict[str, NDArray[Any]]:
    """Eight groups: recall, controls, and influence of one prompt of each."""
    path = keep and keep / f"{reader.form}-{length}-{first}.npz"
    if path and path.exists():
        return dict(np.load(path))
    recall = measure(reader, probes.facts, length, probe="facts", groups=STEP, depths=FACTS,
                     first=first)  # fmt: skip
    logs = recall.log_by_group
    assert logs is not None
    found = {
        "p": recall.by_group,
        "log_p": logs,
        "starts": recall.starts,
        "tokens": recall.tokens,
        "prompt_tokens": recall.prompt_tokens,
        "topics": np.array(recall.topics),
        "phrasings": np.array(recall.phrasings),
        "closed_book": recall.controls.closed_book,
        "oracle": recall.controls.oracle,
        "density": _own_density(loaded, reader, length, first),
    }
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, allow_pickle=False, **found)
    return found


def _own_density(loaded: LoadedModel, reader: WeightsReader, length: int, first: int) -> F64:
    """Mean density of influence over the fact at each depth, in one prompt a group, [groups, k]."""
    groups = probes.facts(STEP, FACTS, 0, first)
    rows = []
    for number, layout in enumerate(layouts(reader, groups, length, "last"), start=first):
        prompt, asked = number % FACTS, number // FACTS % FACTS
        # The question is part of what is read: each group asks for a fact at another depth.
        (row,) = reader.rows([layout.questions(reader.form, "last", prompt)[asked][2]])
        text = DocumentSet(torch.tensor([row.ids[: row.prompt]]), False, "inline")
        curve = influence.measure(loaded, text).norms[0]
        stands = layout.rotations()[prompt]
        starts = reader.preamble + layout.starts()[stands, np.arange(FACTS)]
        # One group of facts that each stand at one depth.
        rows.append([densities(curve, at[None, None, None], size[None, None])[0, 0]
                     for at, size in zip(starts, layout.items[stands], strict=True)])  # fmt: skip
    return np.array(rows)


def _prose(loaded: LoadedModel, length: int, count: int, keep: Path | None) -> F64:
    """Influence norms over built-in prose, [documents, n]."""
    path = keep and keep / f"prose-{length}-{count}.npy"
    if path and path.exists():
        return np.asarray(np.load(path))
    texts = documents.build(Documents(count=count), loaded, length, seed=0)
    norms = influence.measure(loaded, texts).norms
    if path:
        np.save(path, norms)
    return norms


def _print(form: str, length: int, found: dict[str, NDArray[Any]], norms: F64) -> None:
    p, logs = (np.asarray(found[name], dtype=np.float64) for name in ("p", "log_p"))
    own, starts, tokens, closed, oracle = (
        np.asarray(found[name], dtype=np.float64)
        for name in ("density", "starts", "tokens", "closed_book", "oracle")
    )
    judged = flatness.flatness(
        p,
        topics=[str(name) for name in found["topics"]],
        phrasings=[str(name) for name in found["phrasings"]],
        controls=flatness.Controls(closed_book=closed.mean(axis=1), oracle=oracle.mean(axis=1)),
    )
    curve = judged.curve
    assert curve is not None

    elsewhere = np.array([densities(row, starts, tokens) for row in norms])
    of_prose = elsewhere.mean(axis=(0, 1))
    print(f"\n**{form}**, {length} tokens, {len(p)} groups of {FACTS} facts\n")
    heads = ["token", "recall", "95% band", "against the mean", "all places together, 95%", "log p"]
    heads += ["influence, these prompts", "influence, prose"]
    print("|".join(["", *heads, ""]) + "\n" + "|---" * len(heads) + "|")
    for i, at in enumerate(starts.mean(axis=(0, 1))):
        cells = [
            f"{at:.0f}",
            f"{curve.recall[i]:.3f}",
            f"{curve.low[i]:.3f} to {curve.high[i]:.3f}",
        ]
        cells += [f"{curve.contrast[i]:+.3f}"]
        cells += [f"{curve.contrast_low[i]:+.3f} to {curve.contrast_high[i]:+.3f}"]
        cells += [f"{logs.mean(axis=0)[i]:.2f}", f"{own.mean(axis=0)[i]:.2f}", f"{of_prose[i]:.2f}"]
        print("|".join(["", *cells, ""]))
    print(f"\nVerdict: {judged.verdict}, p = {judged.p:.4f}, spread {judged.spread:.3f}.")
    ratio = curve.cluster_ratio
    print(f"Standard errors with topics and phrasings: {ratio:.2f} times those of groups alone.")
    print(f"Closed book {closed.mean():.4f}, fact alone {oracle.mean():.3f}.")
    for name, density in (("these prompts", own), ("prose", elsewhere)):
        found_rank = rank_agreement(p, density)
        assert found_rank is not None
        print(f"Spearman of recall and influence over {name}: {found_rank.value:.2f} "
              f"[{found_rank.low:.2f}, {found_rank.high:.2f}].")  # fmt: skip


if __name__ == "__main__":
    main()
