"""Does influence rank the places of a prompt as recall does? Spearman, with its interval."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lacuna.evidence.bands import Interval
from lacuna.theory.agreement import spearman

F64 = NDArray[np.float64]

MIN_GROUPS = 32
"""Fewer say nothing: at 8 facts the 95% range of Spearman is -.08 to .82."""
_DRAWS = 2_000
_LEVEL = 0.95


def rank_agreement(recall: F64, density: F64, *, seed: int = 0) -> Interval | None:
    """Spearman over places of mean recall and mean density of influence.

    The interval is the percentile bootstrap over groups, and over documents where the influence was
    measured on others. Places that recall cannot tell apart change their ranks from draw to draw:
    a flat curve gives a wide interval, as it should.

    Args:
        recall: by group and depth, [groups, k], as `Recall.by_group`.
        density: where the facts stood: [groups, k] if measured on the groups' own prompts, or
            [documents, groups, k] if on other documents.
        seed: of the bootstrap.

    Returns:
        None with fewer than 32 groups, fewer than 3 places, or a curve without ranks.
    """
    groups, places = recall.shape
    documents = density[None] if density.ndim == 2 else density
    value = spearman(recall.mean(axis=0), documents.mean(axis=(0, 1)))
    if groups < MIN_GROUPS or places < 3 or value is None:
        return None
    draw = np.random.default_rng(seed)
    groups_drawn = draw.multinomial(groups, [1 / groups] * groups, size=_DRAWS) / groups
    # Influence of the groups' own prompts is one document, whose rows go with the groups.
    count = len(documents)
    drawn = draw.multinomial(count, [1 / count] * count, size=_DRAWS) / count
    there = (drawn @ documents.reshape(count, -1)).reshape(_DRAWS, groups, places)
    ranks = [
        spearman(once, other)
        for once, other in zip(
            groups_drawn @ recall, np.einsum("dg,dgk->dk", groups_drawn, there), strict=True
        )
    ]
    found = [0.0 if rank is None else rank for rank in ranks]
    low, high = np.quantile(found, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Interval(value, float(low), float(high))
