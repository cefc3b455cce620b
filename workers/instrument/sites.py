"""Attention switched off, to see what else carries information between positions.

Where to read the residual stream and an attention branch's update with plain module hooks.

A `Site` is one residual addition ``stream + update`` fed by softmax attention. Its two `Tap`s say
which module's input or output carries each side, and by which factor the tensor found there is
multiplied before it is added. Paths are those of ``model.named_modules()``.

From the additions that the tracker saw to taps that plain hooks can read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from workers.instrument.tracker import Branch, Place, ResidualTracker, Terms, ratio


@contextmanager
def silenced(model: nn.Module, sites: Sequence[Site]) -> Iterator[None]:
    """Replace every attention update by zeros."""
    handles: list[Any] = []
    for tap in {site.update for site in sites}:
        module = model.get_submodule(tap.path)
        if tap.side == "output":
            handles.append(
                module.register_forward_hook(lambda _m, _a, out, tap=tap: _zeroed(out, tap))
            )
        else:
            handles.append(
                module.register_forward_pre_hook(
                    lambda _m, args, kwargs, tap=tap: _zeroed_input(args, kwargs, tap),
                    with_kwargs=True,
                )
            )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _zeroed(output: Any, tap: Tap) -> Any:
    if tap.key is None:
        return torch.zeros_like(output)
    return type(output)(
        torch.zeros_like(value) if index == tap.key else value for index, value in enumerate(output)
    )


def _zeroed_input(args: Any, kwargs: dict[str, Any], tap: Tap) -> tuple[Any, dict[str, Any]]:
    if isinstance(tap.key, int):
        return tuple(
            torch.zeros_like(value) if index == tap.key else value
            for index, value in enumerate(args)
        ), kwargs
    return args, {**kwargs, str(tap.key): torch.zeros_like(kwargs[str(tap.key)])}


@dataclass(frozen=True)
class Tap:
    """One tensor, as a module hook sees it.

    ``coefficient`` times the tensor is what enters the sum. A module that runs several times in one
    forward pass (looped or shared layers) carries a different tensor each time: ``call`` counts
    from 0, ``calls`` is how often the module runs in one pass.
    """

    path: str
    side: Literal["input", "output"]
    key: int | str | None
    coefficient: float
    call: int = 0
    calls: int = 1

    def select(self, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> Tensor:
        """Pick the tensor out of a module's arguments or result."""
        if self.side == "input":
            found = args[self.key] if isinstance(self.key, int) else kwargs[str(self.key)]
        else:
            found = output if self.key is None else output[self.key]
        assert isinstance(found, Tensor)
        return found


@dataclass(frozen=True)
class Site:
    """One attention branch: ``stream + update`` is the residual stream behind it.

    ``cores`` are the numbers, in order of execution, of the softmax operations that feed the
    update: one, except in differential attention.
    """

    update: Tap
    stream: Tap
    cores: tuple[int, ...] = (0,)
    block: Literal["sequential", "parallel"] = "sequential"


def layers_of(sites: Sequence[Site]) -> list[int]:
    """Each site's layer: its number in the model's own stack, from 0, as in the module's path.

    In a hybrid these are not 0, 1, 2, ...: attention stands in some layers only. Counted from 0
    where a path has no number.
    """
    numbers = [re.search(r"(?:^|\.)(\d+)(?:\.|$)", site.update.path) for site in sites]
    return [index if found is None else int(found[1]) for index, found in enumerate(numbers)]


def recomputing() -> bool:
    """Whether autograd runs a checkpointed forward again: what it shows was seen before."""
    return torch._C._current_graph_task_id() != -1  # no public name for it


OnSite = Callable[[int, Tensor, Tensor], None]


@dataclass
class SiteReader(AbstractContextManager["SiteReader"]):
    """Calls ``on_site(index, update, stream)`` at every site of every forward pass.

    The tensors are as the hooks find them, detached, in any shape whose last axis is the width;
    multiply them (or their norms) by ``sites[index].update.coefficient`` and by the stream's.
    Passes that gradient checkpointing repeats are not reported again.
    """

    model: nn.Module
    sites: Sequence[Site]
    on_site: OnSite
    _handles: list[Any] = field(default_factory=list, init=False)
    _pending: dict[int, dict[str, Tensor]] = field(default_factory=dict, init=False)
    _seen: Counter[tuple[str, str]] = field(default_factory=Counter, init=False)

    def start_batch(self) -> None:
        """Forget a pass that was broken off half-way."""
        self._pending.clear()
        self._seen.clear()

    def __enter__(self) -> SiteReader:
        self.start_batch()
        for (path, side), taps in self._by_module().items():
            module = self.model.get_submodule(path)
            if side == "input":
                handle = module.register_forward_pre_hook(
                    lambda _m, args, kwargs, key=(path, side), taps=taps: self._read(
                        key, taps, args, kwargs, None
                    ),
                    with_kwargs=True,
                )
            else:
                handle = module.register_forward_hook(
                    lambda _m, _a, output, key=(path, side), taps=taps: self._read(
                        key, taps, (), {}, output
                    )
                )
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

    def _by_module(self) -> dict[tuple[str, str], list[tuple[int, str, Tap]]]:
        grouped: dict[tuple[str, str], list[tuple[int, str, Tap]]] = {}
        for index, role, tap in _taps(self.sites):
            grouped.setdefault((tap.path, tap.side), []).append((index, role, tap))
        return grouped

    def _read(
        self,
        key: tuple[str, str],
        taps: list[tuple[int, str, Tap]],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        output: Any,
    ) -> None:
        if recomputing():
            return
        call = self._seen[key] % taps[0][2].calls
        self._seen[key] += 1
        for index, role, tap in taps:
            if tap.call == call:
                self._got(index, role, tap.select(args, kwargs, output).detach())

    def _got(self, index: int, role: str, tensor: Tensor) -> None:
        both = self._pending.setdefault(index, {})
        both[role] = tensor
        if len(both) == 2:
            del self._pending[index]
            self.on_site(index, both["update"], both["stream"])


def _taps(sites: Sequence[Site]) -> Iterator[tuple[int, str, Tap]]:
    for index, site in enumerate(sites):
        yield index, "update", site.update
        yield index, "stream", site.stream


Preference = Callable[[Place, float], tuple[float, ...]]


@dataclass(frozen=True)
class Recipe:
    """The sites found and, if any attention core has none, why.

    ``cores`` counts the softmax operations of one forward pass.
    """

    sites: tuple[Site, ...]
    problems: tuple[str, ...]
    cores: int


def write(tracker: ResidualTracker) -> Recipe:
    """Turn the tracker's branches into sites, one per update."""
    sites: dict[tuple[object, ...], Site] = {}
    problems: list[str] = []
    for branch in tracker.branches:
        key = (branch.sums_before, *sorted(branch.update.items()))
        if branch.met and key in sites:  # differential attention: two cores, one update
            first = sites[key]
            sites[key] = Site(first.update, first.stream, (*first.cores, branch.core), first.block)
            continue
        found = _site(tracker, branch)
        if isinstance(found, str):
            problems.append(found)
        else:
            sites[key] = found
    return Recipe(
        tuple(sites.values()), tuple(dict.fromkeys(problems)), cores=len(tracker.branches)
    )


def _site(tracker: ResidualTracker, branch: Branch) -> Site | str:
    if not branch.met:
        return (
            "the attention output is never added to the stream it was computed from: that is "
            "rescaled, interpolated or split on the way (learned scales, hyper-connections)"
        )
    later = [terms for terms in tracker.sums[branch.sums_before :] if _contains(terms, branch)]
    if later and not any(set(branch.update) <= set(terms) for terms in later):
        return "the attention update is not carried on along the residual stream"
    update = _find(tracker, branch.update, _outermost_output)
    stream = _find(tracker, branch.stream, _input_around(branch.path))
    if update is None or stream is None:
        missing = "update" if update is None else "stream"
        return f"no module's input or output carries the attention {missing}"
    if update.coefficient <= 0 or stream.coefficient <= 0:
        return (
            f"the residual stream enters with the factor {stream.coefficient:.3g} and the "
            f"attention update with {update.coefficient:.3g}: an interpolated residual"
        )
    return Site(update, stream, (branch.core,), _block(tracker, branch, later))


def _contains(terms: Terms, branch: Branch) -> bool:
    return set(branch.stream) <= set(terms)


def _block(
    tracker: ResidualTracker, branch: Branch, later: list[Terms]
) -> Literal["sequential", "parallel"]:
    """Is the next branch that joins the stream computed from the update, or beside it?"""
    update = sum(1 << atom for atom in branch.update)
    for terms in [branch.total, *later]:
        others = [a for a in terms if a not in branch.stream and a not in branch.update]
        if others:
            sequential = all(tracker.symbols.atoms[a].ancestors & update for a in others)
            return "sequential" if sequential else "parallel"
    return "sequential"


def _find(tracker: ResidualTracker, wanted: Terms, prefer: Preference) -> Tap | None:
    best: tuple[tuple[float, ...], Tap] | None = None
    for found, place in tracker.seen:
        factor = ratio(wanted, found)
        if factor is None:
            continue
        rank = prefer(place, factor)
        if best is None or rank > best[0]:
            tap = Tap(
                place.path,
                place.side,
                place.key,
                factor,
                place.call,
                tracker.calls[place.path],
            )
            best = (rank, tap)
    return best[1] if best else None


def _outermost_output(place: Place, _factor: float) -> tuple[float, ...]:
    """Outputs before inputs; of those the module closest to the addition."""
    return (place.side == "output", -place.path.count("."))


def _input_around(core_path: str) -> Preference:
    """The input of a module around the core, the innermost first; then any input."""

    def prefer(place: Place, _factor: float) -> tuple[float, ...]:
        is_input = place.side == "input"
        around = bool(place.path) and core_path.startswith(place.path + ".")
        return (is_input and around, is_input, place.path.count("."))

    return prefer
