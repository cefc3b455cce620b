"""How often the gold passage has rank r when BM25 ranks the passages of Natural Questions (Open).

    python bench/hit_curve.py nq-open-a.jsonl.gz [--ranks 20]

The file has one JSON object a line (question, answers, title, text), from the data of Liu et al.
(2024), "Lost in the Middle". Every question searches the gold passages of all questions. Prints the
share by rank with a 95% Wilson interval, how often the passage of that rank contains an accepted
answer at all, and the falling curve (isotonic regression) that `lacuna/placement/relevance.py` has.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from pathlib import Path

import bm25s
import numpy as np
from scipy.optimize import isotonic_regression
from scipy.stats import binomtest


def read(path: Path) -> list[dict[str, object]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def words(text: str) -> str:
    """Lower case, words only, a blank at both ends."""
    return f" {re.sub(r'[^a-z0-9]+', ' ', text.lower()).strip()} "


def rank(rows: list[dict[str, object]], ranks: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Whether the passage of each rank is the gold one, and whether it contains an answer."""
    passages: dict[str, int] = {}
    gold = [passages.setdefault(f"{row['title']}\n{row['text']}", len(passages)) for row in rows]
    texts = list(passages)
    index = bm25s.BM25()
    index.index(bm25s.tokenize(texts, stopwords="en", show_progress=False), show_progress=False)
    asked = bm25s.tokenize([str(r["question"]) for r in rows], stopwords="en", show_progress=False)
    found, _ = index.retrieve(asked, k=ranks, show_progress=False)
    plain = [words(text) for text in texts]
    contains = np.zeros(found.shape, dtype=bool)
    for number, row in enumerate(rows):
        answers = [words(answer) for answer in row["answers"]]  # type: ignore[attr-defined]
        contains[number] = [any(a in plain[i] for a in answers) for i in found[number]]
    return found == np.array(gold)[:, None], contains, len(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--ranks", type=int, default=20)
    options = parser.parse_args()
    rows = read(options.file)
    gold, contains, passages = rank(rows, options.ranks)
    print(f"{len(rows)} questions, {passages} passages\n")
    falling = isotonic_regression(gold.mean(axis=0), increasing=False).x
    print("| rank | gold passage | 95% | contains an answer | falling curve |")
    print("|---|---|---|---|---|")
    for r in range(options.ranks):
        interval = binomtest(int(gold[:, r].sum()), len(rows)).proportion_ci(method="wilson")
        print(
            f"| {r + 1} | {gold[:, r].mean():.4f} | {interval.low:.4f}-{interval.high:.4f} "
            f"| {contains[:, r].mean():.4f} | {falling[r]:.4f} |"
        )
    print(f"\ngold passage among the first {options.ranks}: {gold.any(axis=1).mean():.4f}")


if __name__ == "__main__":
    main()
