"""The curves of single documents, prepared once for many placements.

A placement asks how much mass each document puts on each chunk of a candidate order. That is
linear in the document's cumulative curve, so an order becomes one row of coefficients and all
documents are read with one matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter1d

from lacuna.theory.curve import anchor, cumulative

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Kind = Literal["influence", "recall"]

SMOOTHING = 0.1
"""Width of the moving average that the order is chosen on, as a share of the curve."""
FOLDS = 4
REPEATS = 4
"""Random partitions into folds: 16 orders are chosen, each judged on a quarter that it never saw.
Simulated (`bench/advice.py`): ten folds leave orders that depend on the documents judged, two cost
half of the documents."""
MAX_ROWS = 64
"""More documents than this are averaged in blocks, which bounds the time of a placement."""
MAX_COLUMNS = 1_024
"""Longer curves are summed into bins of equal width."""


@dataclass(frozen=True, eq=False)
class DocumentCurves:
    """Curves of D documents (or groups of facts) with the cross-fitting folds."""

    cumulative: F64
    """Cumulative curve of each document, shape [D, b + 2]: F[0] = 0, the mean of F[b] is 1; the
    last column continues the last slope, where a chunk of zero length may stand."""
    chosen_on: F64
    """Smoothed mean curve of all documents, cumulative, shape [b + 2]."""
    trained_on: F64
    """The same without each fold's documents, shape [repeats x folds, b + 2]. Empty for one
    curve."""
    held_out: NDArray[np.bool_]
    """Which documents each fold leaves out, shape [repeats, folds, D]."""
    length: int
    """Tokens n0 that the curve stands for."""
    anchored: bool
    """Whether the ends keep their distance in tokens at another length."""

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        arrays = (self.cumulative, self.chosen_on, self.trained_on, self.held_out)
        return sum(array.nbytes for array in arrays)

    @property
    def documents(self) -> int:
        """Number of curves D, after averaging in blocks."""
        return len(self.cumulative)

    @property
    def influence(self) -> F64:
        """The smoothed mean curve that orders are chosen on, shape [b], sum 1."""
        return np.diff(self.chosen_on[:-1])

    def coordinates(self, boundary: F64 | I64, prompt: int) -> F64:
        """Where token boundaries of a prompt of `prompt` tokens lie among the curve's bins.

        Head and tail keep their distance in tokens from the ends, the middle is stretched
        (`theory.curve.cumulative`). Shape of `boundary`.
        """
        n0, n, bins = self.length, prompt, self.chosen_on.size - 2
        ends = anchor(n0, n) if self.anchored else 0
        at = np.asarray(boundary, dtype=np.float64)
        x: F64 = ends + (at - ends) * ((n0 - 2 * ends) / max(n - 2 * ends, 1))
        if ends:
            x = np.where(at <= ends, at, np.where(at >= n - ends, n0 - (n - at), x))
        return x * (bins / n0)

    def at(self, prompt: int) -> F64:
        """The smoothed mean curve at every token boundary of a prompt, cumulative from 0 to 1.

        Returns:
            Shape [prompt + 2], as `OrderProblem.cumulative`.
        """
        if not self.anchored:
            return cumulative(self.influence, prompt, anchored=False)
        return self.read(self.chosen_on, np.arange(prompt + 2), prompt)

    def read(self, cumulative: F64, boundary: F64 | I64, prompt: int) -> F64:
        """Cumulative mass before each boundary, linear within a bin.

        Args:
            cumulative: one curve, shape [b + 2].
            boundary: tokens before it, any shape.
            prompt: tokens of the whole prompt.
        """
        x = self.coordinates(boundary, prompt)
        low = np.minimum(x.astype(np.int64), cumulative.size - 2)
        found: F64 = cumulative[low] + (x - low) * (cumulative[low + 1] - cumulative[low])
        return found

    def coefficients(self, start: I64, end: I64, weight: F64, prompt: int) -> F64:
        """Rows a with `cumulative @ a` = sum of weight x mass between start and end.

        Args:
            start, end: token boundaries of each chunk, shape [Q, m].
            weight: what a unit of mass on the chunk is worth, shape [Q, m].
            prompt: tokens of the whole prompt.

        Returns:
            Shape [b + 2, Q].
        """
        rows, columns = start.shape[0], self.chosen_on.size
        x = self.coordinates(np.stack([end, start]), prompt)
        low = np.minimum(x.astype(np.int64), columns - 2)
        part = x - low
        signed = np.stack([weight, -weight])
        flat = low + (np.arange(rows) * columns)[:, None]
        at = np.stack([flat, flat + 1])
        worth = np.stack([signed * (1 - part), signed * part])
        table = np.bincount(at.ravel(), worth.ravel(), minlength=rows * columns)
        return table.astype(np.float64, copy=False).reshape(rows, columns).T


def prepare(
    curves: F64,
    *,
    kind: Kind = "influence",
    length: int | None = None,
    skip: int | None = None,
    smoothing: float = SMOOTHING,
    seed: int = 0,
) -> DocumentCurves:
    """Prepare curves for placing. Do it once a profile; placements then take milliseconds.

    Args:
        curves: non-negative, shape [D, b]: influence of each document by token or bin, or recall
            of each group of facts by depth (equal steps over the prompt).
        kind: `influence` is divided by each document's total, so that loud documents do not
            drown the others, and keeps its ends at their distance in tokens. `recall` stays as
            it is and stretches as a whole.
        length: tokens that the curve stands for; default b.
        skip: leading columns to leave out; they take the value of the next column.
            Default 1 for influence: token 0 is the attention sink.
        smoothing: share of the curve that the moving average spans when an order is chosen.
            Gains are always judged on the unsmoothed curves.
        seed: of the folds.

    Raises:
        ValueError: not [D, b] with D, b >= 1, negative, not finite, or a document without mass.
    """
    values = np.array(curves, dtype=np.float64)
    if values.ndim != 2 or 0 in values.shape:
        raise ValueError(f"curves must have shape [documents, positions], not {values.shape}")
    if not np.isfinite(values).all() or float(values.min()) < 0:
        raise ValueError("curves must be finite and not negative")
    tokens = values.shape[1] if length is None else length
    leading = (1 if kind == "influence" else 0) if skip is None else skip
    if 0 < leading < values.shape[1]:
        values[:, :leading] = values[:, leading : leading + 1]
    totals = values.sum(axis=1, keepdims=True)
    if float(totals.min() if kind == "influence" else totals.max()) <= 0:
        raise ValueError("a curve has no mass")
    values = values / (totals if kind == "influence" else totals.mean())
    if len(values) > 1:
        values = _binned(values)
    rng = np.random.default_rng(seed)
    values = _blocks(values, rng)
    held_out = _folds(len(values), rng)
    shares = np.concatenate([np.ones((1, len(values))), ~held_out.reshape(-1, len(values))])
    means = (shares / shares.sum(axis=1, keepdims=True)) @ values
    width = round(smoothing * values.shape[1])
    if width > 1:
        means = uniform_filter1d(means, width, axis=1, mode="reflect")
    smooth = _cumulative(means / means.sum(axis=1, keepdims=True))
    return DocumentCurves(
        _cumulative(values), smooth[0], smooth[1:], held_out, tokens, kind == "influence"
    )


def of_masses(masses: F64, first: F64, length: int) -> DocumentCurves:
    """Curves from what a profile keeps of each document, without the first token's share.

    The first token often is an attention sink, which says nothing about text that stands there. The
    rest of its interval stands in for it.

    Args:
        masses: share of each document's influence in each of b equal intervals, shape [D, b].
        first: share of its first token alone, shape [D].
        length: tokens of the documents.

    Raises:
        ValueError: as `prepare`.
    """
    values = np.array(masses, dtype=np.float64)
    width = length / values.shape[1]
    if width <= 1:
        return prepare(values, length=length)
    values[:, 0] = np.maximum(values[:, 0] - first, 0.0) * (width / (width - 1))
    return prepare(values, length=length, skip=0)


def exact(density: F64, *, length: int | None = None, anchored: bool = False) -> DocumentCurves:
    """A curve that is taken as true: one, as it is, so that intervals have no width.

    Args:
        density: shape [b], any positive sum.
        length: tokens that it stands for; default b.
        anchored: whether its ends keep their distance in tokens at another length.

    Raises:
        ValueError: negative, not finite or without mass.
    """
    curve = np.asarray(density, dtype=np.float64)[None]
    kind: Kind = "influence" if anchored else "recall"
    return prepare(curve, kind=kind, length=length, skip=0, smoothing=0.0)


def at_depths(depth: F64, values: F64, bins: int = 100) -> F64:
    """Curves known at some depths, linear between them and constant outside, for `prepare`.

    Args:
        depth: share of the prompt before each measured place, in 0..1, rising, shape [P].
        values: of each group of facts, shape [G, P].
        bins: equal parts of the prompt.

    Returns:
        Shape [G, bins].
    """
    middle = (np.arange(bins) + 0.5) / bins
    return np.stack([np.interp(middle, depth, one) for one in values])


def _binned(values: F64) -> F64:
    """At most MAX_COLUMNS bins of equal width; keeps every row's sum."""
    columns = values.shape[1]
    if columns <= MAX_COLUMNS:
        return values
    edges = np.linspace(0, columns, MAX_COLUMNS + 1)
    low = np.minimum(edges.astype(np.int64), columns - 1)
    before = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
    return np.diff(before[:, low] + (edges - low) * values[:, low], axis=1)


def _blocks(values: F64, rng: np.random.Generator) -> F64:
    """Random blocks of documents where there are more than MAX_ROWS; keeps the mean of all.

    Block sizes differ by one at most. Each block is its sum over the mean block size, so that
    every document counts alike.
    """
    count = len(values)
    if count <= MAX_ROWS:
        return values
    order = rng.permutation(count)
    parts = np.array_split(order, MAX_ROWS)
    return np.stack([values[part].sum(axis=0) for part in parts]) * (MAX_ROWS / count)


def _folds(count: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Held-out sets, shape [repeats, folds, D]: each document once a repeat."""
    if count < 2:
        return np.zeros((0, 0, count), dtype=bool)
    folds = min(FOLDS, count)
    part = np.stack([rng.permutation(count) % folds for _ in range(REPEATS)])
    held: NDArray[np.bool_] = part[:, None] == np.arange(folds)[:, None]
    return held


def _cumulative(values: F64) -> F64:
    """Cumulative sums with one more column that continues the last slope, shape [.., b + 2]."""
    padded = np.zeros((len(values), values.shape[1] + 2))
    padded[:, 1:-1] = np.cumsum(values, axis=1)
    padded[:, -1] = padded[:, -2] + values[:, -1]
    return padded
