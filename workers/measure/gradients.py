"""Gradients that are the same to the bit whenever they are taken, on a GPU too.

There the backward passes of fused attention add up in whatever order their blocks finish, unless
torch is told otherwise (and cuBLAS, by an environment variable that `python -m workers` sets). A
request's answer is stored under its content, so it must not vary.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

# Never deterministic: were it chosen in a forward pass, a repeated one would choose another.
torch.backends.cuda.enable_cudnn_sdp(False)

log = logging.getLogger(__name__)
_modes: Any = torch.utils.deterministic  # its property is not typed
_told: set[str] = set()


@contextmanager
def deterministic() -> Iterator[None]:
    """Operations inside add up in a fixed order; those that cannot raise a RuntimeError.

    Not the milder form that warns: it leaves fused attention as it is.
    """
    enabled = torch.are_deterministic_algorithms_enabled()
    mild = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = _modes.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    _modes.fill_uninitialized_memory = False  # costs time, changes nothing here
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=mild)
        _modes.fill_uninitialized_memory = filled


def gradients(
    output: Tensor,
    sources: Sequence[Tensor],
    cotangent: Tensor | None = None,
    *,
    again: bool = False,
) -> tuple[Tensor, ...]:
    """`torch.autograd.grad`, deterministic wherever all operations can be.

    Args:
        output: a scalar, or any shape with `cotangent`.
        sources: what to differentiate by.
        cotangent: like `output`.
        again: the graph is needed once more.
    """
    try:
        with deterministic():  # the graph is kept for the second way
            return torch.autograd.grad(output, sources, cotangent, retain_graph=True)
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        why = str(error)[:200]
    if why not in _told:
        _told.add(why)
        log.warning("gradients vary from run to run by rounding", extra={"why": why})
    return torch.autograd.grad(output, sources, cotangent, retain_graph=again)
