"""A recall curve as the wire has it: bands, verdict, and how influence ranks the same places."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lacuna.contract.base import rounded, rounded_list
from lacuna.contract.recall import Agreement, RecallControls, RecallCurve, RecallSampling
from lacuna.evidence import sampling
from lacuna.evidence.bands import Interval
from lacuna.evidence.flatness import DepthCurve
from lacuna.evidence.sampling import PROBABILITIES
from lacuna.theory.agreement import spearman
from workers.recall.result import Recall, densities

F64 = NDArray[np.float64]
MIN_GROUPS = 32
"""Fewer say nothing: at 8 facts the 95% range of Spearman is -.08 to .82."""
_DRAWS = 2_000
_LEVEL = 0.95
Ending = Literal["narrow", "budget", "exhausted", "fixed"]


def recall_to_wire(
    found: Recall,
    norms: F64 | None,
    ending: Ending,
    *,
    reader: Literal["weights", "endpoint"] = "weights",
) -> RecallCurve:
    """The curve with its bands and its one test, and the influence of a profile's documents there.

    Args:
        found: every group that was read.
        norms: F64[D, n], gradient norms of the profile's documents, in the same tokens; None where
            no influence was measured.
        ending: why no more groups were read.
        reader: what answered.
    """
    judged = found.flatness()
    rank, density = _with_influence(found, norms)
    curve, logs, checks = judged.curve, found.log_probability, found.controls
    repeat = checks.repeat_difference
    return RecallCurve(
        depth=rounded_list(found.depths),
        position=rounded_list(found.positions),
        prompt_tokens=rounded(float(found.prompt_tokens.mean())),
        probability=rounded_list(found.probability),
        log_probability=None if logs is None else rounded_list(logs),
        by_group=[rounded_list(row) for row in found.by_group],
        groups=found.groups,
        facts=found.probabilities.shape[1],
        sampling=_sampling(ending, curve, found.groups),
        controls=RecallControls(
            closed_book=rounded(checks.floor),
            oracle=rounded(checks.ceiling),
            repeat=None if np.isnan(repeat) else rounded(repeat),
        ),
        verdict=judged.verdict,
        p=None if judged.p is None else rounded(judged.p),
        alpha=judged.alpha,
        spread=rounded(judged.spread),
        rung=found.rung,
        reader=reader,
        form=found.form,
        question=found.order,
        spearman_with_influence=rank,
        influence_density=density,
        **_bands(curve),
    )


def _with_influence(
    found: Recall, norms: F64 | None
) -> tuple[Agreement | None, list[float] | None]:
    """How influence ranks the same places, and its mean density there."""
    if norms is None:
        return None, None
    there = np.array([densities(row, found.starts, found.tokens) for row in norms])
    density = rounded_list(there.mean(axis=(0, 1)))
    rank = rank_agreement(found.by_group, there, seed=found.seed)
    if rank is None:
        return None, density
    told = Agreement(value=rounded(rank.value), low=rounded(rank.low), high=rounded(rank.high))
    return told, density


def _bands(curve: DepthCurve | None) -> dict[str, list[float] | None]:
    """Bands of level and shape; the latter stands around the mean over depths."""
    if curve is None:
        names = ("low", "high", "simultaneous_low", "simultaneous_high")
        return dict.fromkeys(names)
    level = curve.recall.mean()
    return {
        "low": rounded_list(curve.low),
        "high": rounded_list(curve.high),
        "simultaneous_low": rounded_list(np.clip(level + curve.contrast_low, 0, 1)),
        "simultaneous_high": rounded_list(np.clip(level + curve.contrast_high, 0, 1)),
    }


def _sampling(ending: Ending, curve: DepthCurve | None, groups: int) -> RecallSampling:
    target = PROBABILITIES.target
    if curve is None:
        return RecallSampling(
            reason=ending, half_width=None, target=target, at_double=None, needed=None
        )
    width = curve.half_width
    return RecallSampling(
        reason=ending,
        half_width=rounded(width),
        target=target,
        at_double=rounded(sampling.predicted(width, groups, 2 * groups)),
        needed=sampling.needed(width, groups, target),
    )


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
