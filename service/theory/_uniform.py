"""Kernels without heads of their own: equal weights, and matrices that were measured."""

from __future__ import annotations

import numpy as np

from service.theory._recursion import F64, windowed_suffix_sums

_NO_DECAY = np.zeros(1)


class UniformKernel:
    """Equal weight on every visible token. Build it with `service.theory.kernels.uniform`."""

    heads = 1

    def __init__(self, length: int, window: int, prefix: int) -> None:
        self.length, self.window, self.prefix = length, window, prefix
        position = np.arange(length, dtype=np.float64)
        behind = np.minimum(position, window - 1.0)
        ahead = np.clip(prefix - 1.0 - position, 0.0, window - 1.0)
        self._share = 1.0 / (1.0 + behind + ahead)

    def apply(self, row: F64) -> F64:
        """row @ A. `row`: [n], >= 0; returns [n]."""
        w = row * self._share
        if self.window >= self.length:
            out = np.cumsum(w[::-1])[::-1]
        else:
            out = w + windowed_suffix_sums(w[None], _NO_DECAY, self.window)[0]
        if self.prefix > 1:
            out = out.copy()
            mirrored = np.ascontiguousarray(w[None, self.prefix - 1 :: -1])
            out[: self.prefix] += windowed_suffix_sums(mirrored, _NO_DECAY, self.window)[0, ::-1]
        return np.asarray(out)

    def dense(self) -> F64:
        """[1, n, n] by the definition."""
        position = np.arange(self.length)
        visible = (position[None, :] <= position[:, None]) | (position[None, :] < self.prefix)
        visible &= np.abs(position[:, None] - position[None, :]) < self.window
        return np.asarray((visible / visible.sum(axis=1, keepdims=True))[None])

    def off_diagonal_mass(self) -> float:
        """max_i (1 - A[i, i])."""
        return float(1.0 - self._share.min())


class MeasuredKernel:
    """Given matrices. Build it with `service.theory.kernels.measured`."""

    def __init__(self, matrices: F64, weights: F64) -> None:
        self.heads, self.length = matrices.shape[0], matrices.shape[1]
        self._matrices = matrices
        self._mean = np.tensordot(weights, matrices, axes=1)

    def apply(self, row: F64) -> F64:
        """row @ (head-weighted mean). `row`: [n], >= 0; returns [n]."""
        return np.asarray(row @ self._mean)

    def dense(self) -> F64:
        """[H, n, n]."""
        return self._matrices

    def off_diagonal_mass(self) -> float:
        """max_i (1 - A[i, i]) of the mean."""
        return float(np.clip(1.0 - self._mean.diagonal().min(), 0.0, 1.0))
