"""Which way of watching the attention suits a model: tried out, not looked up.

Path A, "interface": transformers' attention registry (most models). Path C, "sdpa": watching fused
attention calls. Path B, "softmax": watching the softmax itself. A way is accepted when it leaves
the logits alone, sees every attention operation once, and its rows sum to one (less with sinks).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workers.faults import ours
from workers.instrument.attention import AttentionCall, BatchShape, Observer
from workers.instrument.interface import through_interface
from workers.instrument.sdpa_tap import SdpaTap
from workers.instrument.softmax_tap import SoftmaxTap

Capture = Literal["interface", "sdpa", "softmax", "none"]


@contextmanager
def capturing(
    model: PreTrainedModel, capture: Capture, observer: Observer, shape: BatchShape
) -> Iterator[None]:
    """Show ``observer`` every attention operation of the passes inside.

    ``shape.start`` announces each pass.
    """
    if capture == "interface":
        with through_interface(model, observer, shape):
            yield
    elif capture == "sdpa":
        with SdpaTap(observer, shape):
            yield
    elif capture == "softmax":
        with SoftmaxTap(observer, shape):
            yield
    else:
        yield


@dataclass
class _Check:
    """Counts operations and keeps the sum of every row."""

    calls: list[AttentionCall] = field(default_factory=list)
    sums: list[Tensor] = field(default_factory=list)

    def begin(self, call: AttentionCall) -> None:
        self.calls.append(call)

    def rows(self, call: AttentionCall, start: int, probabilities: Tensor) -> None:
        self.sums.append(probabilities.sum(-1).flatten().cpu())


@dataclass(frozen=True)
class Choice:
    """A way to watch, whether attention sinks draw weight, and why other ways were rejected."""

    capture: Capture
    sinks: bool
    rejected: tuple[str, ...]


@torch.no_grad()
def choose(
    model: PreTrainedModel, ids: Tensor, logits: Tensor, cores: int, tolerance: float
) -> Choice:
    """The first way of watching that passes every check on ``ids``, whose logits are known."""
    ways: list[Capture] = ["sdpa", "softmax"]
    if model._can_set_attn_implementation():
        ways.insert(0, "interface")
    rejected: list[str] = []
    for way in ways:
        check = _Check()
        try:
            shape = BatchShape(*ids.shape)
            with capturing(model, way, check, shape):
                seen = model(input_ids=ids, use_cache=False).logits
        except Exception as error:  # a model's own code may fail in any way: try the next
            if ours(error):
                raise
            rejected.append(f"{way}: {type(error).__name__}: {str(error)[:100]}")
            continue
        problem = _problem(check, seen, logits, cores, tolerance)
        if problem is None:
            sums = torch.cat(check.sums)
            return Choice(way, bool((sums < 1 - 1e-3).any()), tuple(rejected))
        rejected.append(f"{way}: {problem}")
    return Choice("none", False, tuple(rejected))


def _problem(
    check: _Check, seen: Tensor, logits: Tensor, cores: int, tolerance: float
) -> str | None:
    if len(check.calls) != cores:
        return f"it sees {len(check.calls)} of {cores} attention operations"
    if any(call.length != call.keys for call in check.calls):
        return "queries and keys differ in number"
    scale = logits.float().abs().max().clamp_min(1e-30)
    moved = float((seen.float() - logits.float()).abs().max() / scale)
    if not moved <= tolerance:
        return f"it moves the logits by {moved:.1e} of their size"
    if bool((torch.cat(check.sums) > 1 + 1e-3).any()):
        return "its rows sum to more than one"
    return None
