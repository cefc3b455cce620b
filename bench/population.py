"""Gradient norms of every built-in document, measured once and kept in the data folder.

    python bench/population.py [--length 256]

The demo model reads all pieces of the built-in text (441 of 256 tokens). They are the population
from which simulations such as `coverage.py` draw. The first run takes 10 to 15 minutes of one core
and can be interrupted: it goes on where it stopped.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MODEL = "demo:smollm2-135m-instruct"
PART = 16
"""Documents between two writes to disk."""


def path(length: int, most: int | None = None) -> Path:
    from service.settings import Settings

    part = "" if most is None else f"-{most}"
    return Settings().data_dir / "bench" / f"norms-{MODEL.partition(':')[2]}-{length}{part}.npz"


def norms(length: int = 256, most: int | None = None) -> NDArray[np.float64]:
    """F64[K, n]: influence of each token of each document, not normalised.

    Args:
        length: tokens of each document.
        most: only this many documents, spread evenly over the text; None reads all of it.
    """
    file = path(length, most)
    done = np.load(file)["norms"] if file.is_file() else np.zeros((0, length))
    whole = int(np.load(file)["documents"]) if file.is_file() else -1
    return done if len(done) == whole else _measured(file, length, most, done)


def _measured(
    file: Path, length: int, most: int | None, done: NDArray[np.float64]
) -> NDArray[np.float64]:
    import torch

    from lacuna.contract.profile_requests import ProfileRequest
    from service.settings import Settings
    from workers.documents import corpus
    from workers.documents.build import DocumentSet
    from workers.influence import influence
    from workers.models.loaded import LoadOptions
    from workers.models.loading import load

    torch.set_num_threads(1)
    loaded = load(
        ProfileRequest(model=MODEL), LoadOptions(data_dir=Settings().data_dir, device="cpu")
    )
    every = corpus.builtin_tokens(loaded.tokenizer)
    whole = len(every) // length
    ids = torch.tensor(every[: whole * length]).reshape(whole, length)  # in the order of the text
    if most is not None and most < whole:
        ids = ids[np.linspace(0, whole - 1, most).round().astype(np.int64)]
    texts = DocumentSet(ids, leading_bos=False, source="builtin")
    file.parent.mkdir(parents=True, exist_ok=True)
    for start in range(len(done), len(texts.ids), PART):
        part = DocumentSet(texts.ids[start : start + PART], texts.leading_bos, texts.source)
        done = np.concatenate([done, influence.measure(loaded, part).norms])
        draft = file.with_name(f".{file.name}")
        np.savez(draft, norms=done, documents=len(texts.ids))
        draft.with_suffix(".npz").replace(file)
        print(f"{len(done)} of {len(texts.ids)} documents", flush=True)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--length", type=int, default=256)
    found = norms(parser.parse_args().length)
    total = found.sum(axis=1)
    low, high = np.quantile(total, [0.05, 0.95])
    print(f"{len(found)} documents; total influence p95/p5 {high / low:.1f}")


if __name__ == "__main__":
    main()
