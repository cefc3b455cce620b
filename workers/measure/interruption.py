"""Giving up in the middle of a pass: a forward or backward pass over long inputs takes minutes.

Hooks on every module that has parameters of its own, and on every element of a module list, call a
check during the forward pass; hooks on what those modules return call it during the backward pass,
also where layers are computed twice. What the check raises unwinds the pass: autograd hands on
exceptions of its hooks unchanged, the graph goes with them, and the model stays as it was. No hook
changes a value.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

Check = Callable[[], None]
EVERY_SECONDS = 0.2


def go_on() -> None:
    """The check of those whom nobody stops."""


def throttled(check: Check, every: float = EVERY_SECONDS) -> Check:
    """`check`, called at most once in `every` seconds however often this is."""
    due = float("-inf")

    def now_and_then() -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due:
            due = now + every
            check()

    return now_and_then


@contextmanager
def interruptible(model: nn.Module, check: Check) -> Iterator[None]:
    """Passes of the model inside call `check` again and again, about once per layer and step.

    Args:
        model: any; its hooks are removed in the end, whatever ends it.
        check: cheap (see `throttled`); what it raises ends the pass.
    """

    def before(_module: nn.Module, _args: Any) -> None:
        check()

    def after(_module: nn.Module, _args: Any, output: Any) -> None:
        found = _first_tensor(output)
        if found is not None and found.grad_fn is not None:
            found.register_hook(backward)  # type: ignore[no-untyped-call]

    def backward(_gradient: Tensor) -> None:
        check()

    handles = []
    try:
        for module in _steps(model):
            handles.append(module.register_forward_pre_hook(before))
            handles.append(module.register_forward_hook(after))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _steps(model: nn.Module) -> list[nn.Module]:
    listed = {
        child
        for module in model.modules()
        if isinstance(module, nn.ModuleList)
        for child in module.children()
    }
    return [
        module
        for module in model.modules()
        if module in listed or next(module.parameters(recurse=False), None) is not None
    ]


def _first_tensor(output: Any) -> Tensor | None:
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple | list):
        return next((part for part in output if isinstance(part, Tensor)), None)
    return None
