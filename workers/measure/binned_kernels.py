"""One document's attention over bins of positions, as the second moment needs it."""

from __future__ import annotations

import torch
from torch import Tensor

from service.theory.binning import BinnedKernel
from workers.instrument.attention import AttentionCall
from workers.measure.gradients import deterministic
from workers.measure.interruption import Check, go_on


class KernelWatch:
    """Observer of one pass over one document: the means of `service.theory.binning`.

    ``bounds`` [m+1] are bin boundaries from 0 to n. Memory: attention operations x heads x m^2.
    ``check`` is called with every block of rows, and may raise to end the pass.
    """

    def __init__(self, bounds: Tensor, check: Check = go_on) -> None:
        self._check = check
        self._bounds = bounds
        self._exact = int(bounds[-1]) + 1 == bounds.numel()
        self._mass: dict[int, Tensor] = {}
        self._square: dict[int, Tensor] = {}
        self._diagonal: dict[int, Tensor] = {}
        self._least: dict[torch.device, Tensor] = {}

    @property
    def least_row_sum(self) -> float:
        """Least sum of any row so far, at most 1: less than 1 with sinks. Waits for the device."""
        return min([1.0, *(float(least) for least in self._least.values())])

    def begin(self, call: AttentionCall) -> None:
        """Observer protocol: a new attention operation."""
        heads, m, device = call.heads, self._bounds.numel() - 1, call.query.device
        self._mass[call.number] = torch.zeros(heads, m, m, device=device)
        if not self._exact:
            self._square[call.number] = torch.zeros(heads, m, m, device=device)
            self._diagonal[call.number] = torch.zeros(heads, m, device=device)

    def rows(self, call: AttentionCall, start: int, probabilities: Tensor) -> None:
        """Observer protocol: some query rows, [1, H, c, reach]."""
        self._check()
        weights = probabilities[0].float()
        stop, reach = start + weights.shape[1], weights.shape[2]
        least = weights.sum(-1).min()
        self._least[least.device] = torch.minimum(self._least.get(least.device, least), least)
        if self._exact:
            self._mass[call.number][:, start:stop, :reach] = weights
            return
        bounds = self._bounds.to(weights.device)
        queries = torch.arange(start, stop, device=weights.device)
        row = torch.searchsorted(bounds, queries, right=True) - 1
        keys = torch.arange(reach, device=weights.device)
        column = torch.searchsorted(bounds, keys, right=True) - 1
        own = weights[:, torch.arange(stop - start, device=weights.device), queries]
        with deterministic():
            for total, values in (
                (self._mass[call.number], weights),
                (self._square[call.number], weights.square()),
            ):
                gathered = weights.new_zeros(weights.shape[0], weights.shape[1], total.shape[2])
                gathered.index_add_(2, column, values)
                total.index_add_(1, row, gathered)
            self._diagonal[call.number].index_add_(1, row, own)

    def heads(self, number: int) -> int:
        """Heads of the attention operation of that number."""
        return int(self._mass[number].shape[0])

    def mix(self, number: int, values: Tensor) -> Tensor:
        """What the operation makes of one value per bin, [m, H, d_v]."""
        mass = self._mass[number].to(values.device)
        if not self._exact:
            mass = mass / self._bounds.diff().to(mass)[:, None]  # mean over a bin's queries
        return torch.einsum("hij,jhd->ihd", mass, values.float())

    def kernel(self, number: int) -> BinnedKernel:
        """The attention operation of that number, in order of execution; float64."""
        mass = self._mass[number].double().cpu().numpy()
        if self._exact:
            return BinnedKernel(mass)
        widths = self._bounds.diff().double().cpu().numpy()
        return BinnedKernel(
            mass / widths,
            self._square[number].double().cpu().numpy() / widths,
            self._diagonal[number].double().cpu().numpy() / widths,
        )
