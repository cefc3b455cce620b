"""Does recall differ between two measurements? Depth by depth, and as a whole.

Groups of facts are what is drawn independently. Two measurements with the same draw asked the same
groups, so each group is compared with itself; others are compared as two samples.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lacuna.evidence.pairs import ALPHA, Comparison, Difference, compare_groups, compare_pairs

MARGIN = 0.10
"""Ten points of probability: a comparison too coarse to see that at some depth is undecided."""
TOLERANCE = 0.05
"""Five points of probability: a smaller fall raises no alert, however certain."""


def compare_recall(
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    *,
    paired: bool,
    alpha: float = ALPHA,
    step: float = 0.0,
) -> Comparison:
    """Compare the recall of two measurements: at each depth, and the mean over depths.

    Args:
        first: F64[G, k], mean probability of the right answer of each group at each of k depths.
        second: F64[G', k], the same depths; the same groups in the same order if `paired`.
        paired: whether both asked the same groups.
        alpha: level, of all statistics together.
        step: 1 / n where a group's value is the share of n right texts; 0 for probabilities.

    Returns:
        Statistics `depth_1` to `depth_k` and `level`; undecided below 12 groups.
    """
    a, b = _statistics(first), _statistics(second)
    depths = a.shape[1] - 1
    names = [*(f"depth_{number}" for number in range(1, depths + 1)), "level"]
    steps = [*[step] * depths, step / depths]
    if paired:
        count = min(len(a), len(b))  # one of them may have needed more groups
        return compare_pairs(a[:count], b[:count], names, alpha=alpha, margin=MARGIN, steps=steps)
    return compare_groups(a, b, names, alpha=alpha, margin=MARGIN, steps=steps)


def falls(found: Comparison) -> tuple[Difference, ...]:
    """Where recall fell beyond chance and by more than the tolerance, the deepest fall first."""
    fallen = [
        one
        for one in found.differences
        if one.p <= found.alpha and one.high < 0 and one.value <= -TOLERANCE
    ]
    return tuple(sorted(fallen, key=lambda one: one.value))


def _statistics(groups: npt.ArrayLike) -> npt.NDArray[np.float64]:
    rows = np.asarray(groups, dtype=np.float64)
    return np.column_stack([rows, rows.mean(axis=1)])
