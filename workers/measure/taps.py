"""What gathers statistics during somebody else's pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from torch import Tensor


class Tap(Protocol):
    """Reads a model from the side while `influence.measure` runs it: no pass of its own.

    Hooks stand while the context is open. `start_batch` announces every forward pass.
    """

    def __enter__(self) -> Any:
        """Set the hooks."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> bool | None:
        """Remove the hooks."""
        ...

    def start_batch(self, ids: Tensor) -> None:
        """A forward pass over `ids` [B, n] comes next."""
        ...


@runtime_checkable
class Revocable(Tap, Protocol):
    """A tap that can begin anew.

    With such taps alone documents that ran out of memory are read again in smaller batches.
    """

    def reset(self) -> None:
        """Forget all passes."""
        ...

    def end_batch(self) -> None:
        """Forward and backward pass are complete: keep what they showed."""
        ...


@runtime_checkable
class Holding(Tap, Protocol):
    """A tap that keeps much on the device."""

    def held_bytes(self, length: int) -> int:
        """How much, for documents of `length` tokens."""
        ...


@contextmanager
def opened(taps: Sequence[Tap]) -> Iterator[None]:
    """All taps open at once."""
    with ExitStack() as stack:
        for tap in taps:
            stack.enter_context(tap)
        yield


def start(taps: Sequence[Tap], ids: Tensor) -> None:
    """Announce a pass to all taps."""
    for tap in taps:
        tap.start_batch(ids)


def end(taps: Sequence[Tap]) -> None:
    """Tell those that ask for it that the pass succeeded."""
    for tap in taps:
        if isinstance(tap, Revocable):
            tap.end_batch()


def reset(taps: Sequence[Tap]) -> bool:
    """Have all of them forget what they saw; False when one of them cannot."""
    revocable = [tap for tap in taps if isinstance(tap, Revocable)]
    for tap in revocable:
        tap.reset()
    return len(revocable) == len(taps)


def held_bytes(taps: Sequence[Tap], length: int) -> int:
    """Memory that their sums take on the device, for documents of `length` tokens."""
    return sum(tap.held_bytes(length) for tap in taps if isinstance(tap, Holding))
