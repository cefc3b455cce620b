"""Does influence foretell retrieval? The needle curve of the demo model beside its influence.

    python bench/needle.py [--length 512] [--depths 9] [--facts 8] [--documents 16]

Prints, for each depth, the log-probability of a fact that stands there (mean over facts, with its
95% bootstrap band) and the mean density of influence over its tokens, and their rank correlation.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from lacuna.contract.profile_requests import Documents, ProfileRequest
from lacuna.evidence import aggregates
from lacuna.theory import agreement
from service.settings import Settings
from workers import documents
from workers.influence import influence
from workers.models.loading import LoadOptions, load
from workers.recall import needle


def main() -> None:
    parser = argparse.ArgumentParser(description="Needle curve and influence of the demo model.")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--depths", type=int, default=9)
    parser.add_argument("--facts", type=int, default=8)
    parser.add_argument("--documents", type=int, default=16)
    given = parser.parse_args()
    torch.set_num_threads(1)
    options = LoadOptions(data_dir=Settings().data_dir, device="cpu")
    loaded = load(ProfileRequest(model="demo:smollm2-135m-instruct"), options)
    texts = documents.build(Documents(count=given.documents), loaded, given.length, seed=0)
    norms = influence.measure(loaded, texts).norms
    found = needle.measure(loaded, given.length, depths=given.depths, facts=given.facts)
    at = found.positions.astype(int)
    print(f"{loaded.id}, {given.length} tokens, {len(texts.ids)} documents, {found.facts} facts")
    curves = {
        "mean of norms": aggregates.mean_of_norms(norms),
        "per document": aggregates.per_document(norms),
    }
    densities = {name: found.density(curve) for name, curve in curves.items()}
    print(f"{'position':>9}{'log p':>9}{'low':>9}{'high':>9}" + "".join(f"{n:>16}" for n in curves))
    for i, position in enumerate(at):
        row = f"{position:9}{found.log_probability[i]:9.2f}{found.low[i]:9.2f}{found.high[i]:9.2f}"
        print(row + "".join(f"{density[i]:16.3f}" for density in densities.values()))
    print(f"without the fact: log p {found.baseline:.2f}")
    for name, density in densities.items():
        rank = agreement.spearman(found.log_probability, density)
        print(f"Spearman of log p and influence ({name}): {np.nan if rank is None else rank:.2f}")


if __name__ == "__main__":
    main()
