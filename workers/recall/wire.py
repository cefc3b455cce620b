"""A recall curve as the wire has it: bands, verdict, and how influence ranks the same places."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lacuna.contract.base import rounded, rounded_list
from lacuna.contract.recall import Agreement, RecallControls, RecallCurve, RecallSampling
from lacuna.evidence import sampling
from lacuna.evidence.flatness import DepthCurve
from lacuna.evidence.sampling import PROBABILITIES
from workers.recall.agreement import rank_agreement
from workers.recall.result import Recall, densities

F64 = NDArray[np.float64]
Ending = Literal["narrow", "budget", "exhausted", "fixed"]


def recall_to_wire(
    found: Recall,
    norms: F64 | None,
    ending: Ending,
    *,
    reader: Literal["weights", "endpoint"] = "weights",
) -> RecallCurve:
    """The curve with its bands and its one test, beside the influence of a profile's documents.

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
