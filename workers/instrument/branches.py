"""The attention branches of a model, and where hooks read or replace their tensors.

An attention branch adds an update to the residual stream: ``stream + update``. `find_branches`
derives the branches from what the tracker saw; each says, as a `HookPoint`, which module's input or
output carries the stream and which the update. `BranchReader` hands both over during a pass,
`PointHooks` can also replace them, and `updates_zeroed` ablates all attention.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from workers.instrument.tracker import Boundary, CoreTrace, ResidualTracker, Terms, ratio

Side = Literal["input", "output"]


@dataclass(frozen=True)
class HookPoint:
    """One tensor, as a hook on a module sees it.

    Attributes:
        path: of the module, as in ``model.named_modules()``.
        side: whether it is among the module's arguments or its results.
        key: position or keyword of the argument, index in the result; None for the whole result.
        coefficient: what the tensor is multiplied by before it enters the residual sum.
        call: which call of the module in one pass, from 0: looped or shared layers run several
            times, each time with other tensors.
        calls: how often the module runs in one pass.
    """

    path: str
    side: Side
    key: int | str | None
    coefficient: float
    call: int = 0
    calls: int = 1

    def select(self, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> Tensor:
        """Pick the tensor out of the module's arguments or its result."""
        if self.side == "input":
            found = args[self.key] if isinstance(self.key, int) else kwargs[str(self.key)]
        else:
            found = output if self.key is None else output[self.key]
        assert isinstance(found, Tensor)
        return found


@dataclass(frozen=True)
class AttentionBranch:
    """One residual addition ``stream + update`` that softmax attention feeds.

    Attributes:
        update: what attention adds.
        stream: what it is added to.
        cores: numbers, in order of execution, of the softmax operations that feed the update: one,
            except in differential attention.
        block: whether the layer's MLP reads the stream after this update, or in parallel to it.
    """

    update: HookPoint
    stream: HookPoint
    cores: tuple[int, ...] = (0,)
    block: Literal["sequential", "parallel"] = "sequential"


def layer_numbers(branches: Sequence[AttentionBranch]) -> list[int]:
    """The layer of each branch: its number in the model's own stack, as in the module's path.

    In a hybrid these are not 0, 1, 2, ...: only some layers have attention. Where a path has no
    number, the branch's own index is used.
    """
    numbers = [re.search(r"(?:^|\.)(\d+)(?:\.|$)", branch.update.path) for branch in branches]
    return [index if found is None else int(found[1]) for index, found in enumerate(numbers)]


@dataclass(frozen=True)
class BranchSearch:
    """The branches found.

    Attributes:
        branches: the first nearest the embeddings.
        problems: why some attention core has no branch; empty when all have one.
        cores: softmax operations in one forward pass.
    """

    branches: tuple[AttentionBranch, ...]
    problems: tuple[str, ...]
    cores: int


def find_branches(tracker: ResidualTracker) -> BranchSearch:
    """Turn what the tracker saw of each attention core into branches, one per update."""
    branches: dict[tuple[object, ...], AttentionBranch] = {}
    problems: list[str] = []
    for trace in tracker.traces:
        key = (trace.met_at, *sorted(trace.update.items()))
        if trace.met_at is not None and key in branches:  # differential attention: two cores
            first = branches[key]
            cores = (*first.cores, trace.core)
            branches[key] = AttentionBranch(first.update, first.stream, cores, first.block)
            continue
        found = _branch(tracker, trace)
        if isinstance(found, str):
            problems.append(found)
        else:
            branches[key] = found
    return BranchSearch(
        tuple(branches.values()), tuple(dict.fromkeys(problems)), cores=len(tracker.traces)
    )


def _branch(tracker: ResidualTracker, trace: CoreTrace) -> AttentionBranch | str:
    """The branch of one core, or the reason why there is none."""
    if trace.met_at is None:
        return (
            "the attention output is never added to the stream it was computed from: that is "
            "rescaled, interpolated or split on the way (learned scales, hyper-connections)"
        )
    # The stream must go on with the update in it; else the sum was a side branch of the layer.
    later = [terms for terms in tracker.sums[trace.met_at + 1 :] if set(trace.stream) <= set(terms)]
    if later and not any(set(trace.update) <= set(terms) for terms in later):
        return "the attention update is not carried on along the residual stream"
    update = _hook_point(tracker, trace.update, _outermost_output)
    stream = _hook_point(tracker, trace.stream, _input_around(trace.path))
    if update is None or stream is None:
        missing = "update" if update is None else "stream"
        return f"no module's input or output carries the attention {missing}"
    if update.coefficient <= 0 or stream.coefficient <= 0:
        return (
            f"the residual stream enters with the factor {stream.coefficient:.3g} and the "
            f"attention update with {update.coefficient:.3g}: an interpolated residual"
        )
    return AttentionBranch(update, stream, (trace.core,), _block(tracker, trace, later))


def _block(
    tracker: ResidualTracker, trace: CoreTrace, later: list[Terms]
) -> Literal["sequential", "parallel"]:
    """Whether the next branch that joins the stream was computed from the update or without it."""
    update = sum(1 << atom for atom in trace.update)
    for terms in [trace.total, *later]:
        others = [a for a in terms if a not in trace.stream and a not in trace.update]
        if others:
            sequential = all(tracker.atoms[a].ancestors & update for a in others)
            return "sequential" if sequential else "parallel"
    return "sequential"


Preference = Callable[[Boundary], tuple[float, ...]]


def _hook_point(tracker: ResidualTracker, wanted: Terms, prefer: Preference) -> HookPoint | None:
    """The preferred module boundary whose tensor is a multiple of the wanted sum."""
    best: tuple[tuple[float, ...], HookPoint] | None = None
    for found, at in tracker.seen:
        factor = ratio(wanted, found)
        if factor is None:
            continue
        rank = prefer(at)
        if best is None or rank > best[0]:
            calls = tracker.calls[at.path]
            best = (rank, HookPoint(at.path, at.side, at.key, factor, at.call, calls))
    return best[1] if best else None


def _outermost_output(at: Boundary) -> tuple[float, ...]:
    """Outputs before inputs; of those the module closest to the addition."""
    return (at.side == "output", -at.path.count("."))


def _input_around(core_path: str) -> Preference:
    """The input of a module around the core, the innermost first; then any input."""

    def prefer(at: Boundary) -> tuple[float, ...]:
        is_input = at.side == "input"
        around = bool(at.path) and core_path.startswith(at.path + ".")
        return (is_input and around, is_input, at.path.count("."))

    return prefer


def recomputing() -> bool:
    """Whether autograd runs a checkpointed forward again: hooks have seen its tensors before."""
    return torch._C._current_graph_task_id() != -1  # torch has no public name for it


OnTensor = Callable[[Tensor], Tensor | None]
"""Takes a tensor as found; returns what replaces it, or None to leave it."""


class PointHooks(AbstractContextManager["PointHooks"]):
    """Calls back with the tensors at hook points while the context is open.

    Callbacks at one module run in the order given. A forward pass that gradient checkpointing
    repeats calls nothing back, so do not replace tensors under it.
    """

    def __init__(self, model: nn.Module, callbacks: Sequence[tuple[HookPoint, OnTensor]]) -> None:
        self._model = model
        self._callbacks: dict[tuple[str, Side], list[tuple[HookPoint, OnTensor]]] = {}
        for point, on_tensor in callbacks:
            self._callbacks.setdefault((point.path, point.side), []).append((point, on_tensor))
        self._calls: Counter[tuple[str, Side]] = Counter()
        self._handles: list[Any] = []

    def __enter__(self) -> PointHooks:
        self.restart()
        for key in self._callbacks:
            path, side = key
            module = self._model.get_submodule(path)
            if side == "input":
                hook = partial(self._on_input, key)
                handle = module.register_forward_pre_hook(hook, with_kwargs=True)
            else:
                handle = module.register_forward_hook(partial(self._on_output, key))
            self._handles.append(handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def restart(self) -> None:
        """Count calls from 0 again, after a pass that did not end."""
        self._calls.clear()

    def _due(self, key: tuple[str, Side]) -> list[tuple[HookPoint, OnTensor]]:
        if recomputing():
            return []
        callbacks = self._callbacks[key]
        call = self._calls[key] % callbacks[0][0].calls
        self._calls[key] += 1
        return [entry for entry in callbacks if entry[0].call == call]

    def _on_input(
        self, key: tuple[str, Side], _module: nn.Module, args: Any, kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        positional, named = list(args), dict(kwargs)
        for point, on_tensor in self._due(key):
            replaced = on_tensor(point.select(positional, named, None))
            if replaced is None:
                continue
            if isinstance(point.key, int):
                positional[point.key] = replaced
            else:
                named[str(point.key)] = replaced
        return tuple(positional), named

    def _on_output(self, key: tuple[str, Side], _module: nn.Module, _args: Any, output: Any) -> Any:
        for point, on_tensor in self._due(key):
            replaced = on_tensor(point.select((), {}, output))
            if replaced is None:
                continue
            if point.key is None:
                output = replaced
            else:
                parts = [replaced if i == point.key else part for i, part in enumerate(output)]
                output = type(output)(parts)
        return output


OnBranch = Callable[[int, Tensor, Tensor], None]


class BranchReader(AbstractContextManager["BranchReader"]):
    """Calls ``on_branch(index, update, stream)`` at every branch of every forward pass.

    The tensors are as the hooks find them, detached, in any shape whose last axis is the width.
    Multiply them (or their norms) by the coefficients of the branch's hook points.
    """

    def __init__(
        self, model: nn.Module, branches: Sequence[AttentionBranch], on_branch: OnBranch
    ) -> None:
        self._on_branch = on_branch
        self._pending: dict[int, dict[str, Tensor]] = {}
        callbacks: list[tuple[HookPoint, OnTensor]] = []
        for index, branch in enumerate(branches):
            callbacks.append((branch.update, partial(self._got, index, "update")))
            callbacks.append((branch.stream, partial(self._got, index, "stream")))
        self._hooks = PointHooks(model, callbacks)

    def __enter__(self) -> BranchReader:
        self.start_batch()
        self._hooks.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._hooks.__exit__(kind, error, trace)

    def start_batch(self) -> None:
        """Forget a pass that did not end."""
        self._pending.clear()
        self._hooks.restart()

    def _got(self, index: int, role: str, tensor: Tensor) -> None:
        both = self._pending.setdefault(index, {})
        both[role] = tensor.detach()
        if len(both) == 2:
            del self._pending[index]
            self._on_branch(index, both["update"], both["stream"])


@contextmanager
def updates_zeroed(model: nn.Module, branches: Sequence[AttentionBranch]) -> Iterator[None]:
    """Replace every attention update by zeros, to see what else connects positions."""
    with PointHooks(model, [(branch.update, torch.zeros_like) for branch in branches]):
        yield
