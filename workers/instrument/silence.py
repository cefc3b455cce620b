"""Attention switched off, to see what else carries information between positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from workers.instrument.sites import Site, Tap


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
