"""The `positional_encoding: off` ablation: every position of the prompt looks like the first.

Rotary, learned and sinusoidal positions: all position ids are 0, with an explicit attention mask of
ones (without one, transformers reads repeated position ids as packed sequences and masks them
apart). Models that take no position ids: lookups by position are frozen at the first row. ALiBi:
the functions that build the bias return zeros. Whether it worked is measured on entry.

How a model tells positions apart, seen while it runs.

Evidence, not names: a table row looked up for every position (learned or sinusoidal; a narrow one
holds rotary angles), cosines or complex rotations computed on the way (rotary), a bias on the
logits that falls linearly with distance (ALiBi) or otherwise depends on it (relative). When nothing
was seen, a prompt of one repeated token decides: without positions every attention row is uniform.
"""

from __future__ import annotations

import inspect as signatures
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from lacuna.contract.errors import ModelUnsupported
from lacuna.contract.models import PositionalEncoding
from workers.instrument.attention import AttentionCall, BatchShape, bias_of
from workers.instrument.capture import Capture, capturing
from workers.instrument.inspection import Instrumentation, inspect, probe_ids, stream_width


@contextmanager
def positions_off(
    model: PreTrainedModel, instrumentation: Instrumentation | None = None
) -> Iterator[None]:
    """Inside, ``model`` cannot tell positions apart; outside it is as before.

    Raises:
        ModelUnsupported: positions still show, or whether they do cannot be seen.
    """
    instrumentation = instrumentation or inspect(model)
    if instrumentation.capture == "none":
        raise ModelUnsupported(
            "positional_encoding: off needs a model whose attention can be watched, to verify it.",
            field="positional_encoding",
        )
    if instrumentation.other_mixers:
        raise ModelUnsupported(
            "positional_encoding: off does not apply: beside attention the model has state space, "
            "recurrent or convolution layers, which know the order of the tokens.",
            field="positional_encoding",
        )
    with ExitStack() as stack:
        stack.enter_context(_no_alibi(model))
        if "position_ids" in signatures.signature(model.forward).parameters:
            stack.enter_context(_all_first(model))
        else:
            stack.enter_context(PositionSpy(None, stream_width(model), freeze=True))
        remaining = unevenness(model, instrumentation.capture)
        if remaining > uneven(model):
            raise ModelUnsupported(
                "positional_encoding: off does not work for this model: on a prompt of one "
                f"repeated token attention still differs between positions by {remaining:.1e} "
                "of its size.",
                field="positional_encoding",
            )
        yield


@contextmanager
def _all_first(model: PreTrainedModel) -> Iterator[None]:
    def hook(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        ids = kwargs.get("input_ids", args[0] if args else None)
        shape = kwargs["inputs_embeds"].shape[:2] if ids is None else ids.shape
        kwargs["position_ids"] = torch.zeros(shape, dtype=torch.long, device=model.device)
        if kwargs.get("attention_mask") is None:
            kwargs["attention_mask"] = torch.ones(shape, dtype=torch.long, device=model.device)
        return args, kwargs

    handle = model.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _no_alibi(model: PreTrainedModel) -> Iterator[None]:
    """Make everything named *alibi* in the model's own code return zeros."""
    module = sys.modules[type(model).__module__]
    functions = [
        (name, function)
        for name, function in vars(module).items()
        if "alibi" in name.lower() and signatures.isfunction(function)
    ]
    methods = [
        (part, name)
        for part in model.modules()
        for name in dir(type(part))
        if "alibi" in name.lower() and callable(getattr(type(part), name, None))
    ]
    for name, function in functions:
        setattr(module, name, _zeros(function))
    for part, name in methods:
        object.__setattr__(part, name, _zeros(getattr(part, name)))
    try:
        yield
    finally:
        for name, function in functions:
            setattr(module, name, function)
        for part, name in methods:
            object.__delattr__(part, name)


def _zeros(function: Any) -> Any:
    def zeros(*args: Any, **kwargs: Any) -> Any:
        return torch.zeros_like(function(*args, **kwargs))

    return zeros


_WINDOW_FIELDS = ("sliding_window", "attention_window_size", "window_size")
_ROTATIONS = frozenset({"cos", "sin", "polar"})


@dataclass(frozen=True)
class Positions:
    """The positional encoding and, per decoder layer, the sliding window that is declared.

    ``window`` is the shortest of ``windows``, in keys with the query's own; None where a layer sees
    everything. What the mask really was stands in the kernel statistics of a measurement.
    """

    kind: PositionalEncoding
    windows: tuple[int | None, ...]

    @property
    def window(self) -> int | None:
        """Shortest window of any layer."""
        return min((w for w in self.windows if w is not None), default=None)


@torch.no_grad()
def describe_positions(
    model: PreTrainedModel, instrumentation: Instrumentation | None = None
) -> Positions:
    """Find the positional encoding with one or two forward passes over a few tokens.

    Raises:
        ModelUnsupported: as `inspect`, when no instrumentation is given.
    """
    instrumentation = instrumentation or inspect(model)
    windows = declared_windows(model, instrumentation.layers)
    ids = probe_ids(model)
    biases = BiasRows()
    spy = PositionSpy(int(ids.shape[1]), stream_width(model))
    with capturing(model, instrumentation.capture, biases, BatchShape(*ids.shape)), spy:
        model(input_ids=ids, use_cache=False)
    kind: PositionalEncoding
    if biases.kind is not None:
        kind = biases.kind
    elif spy.rotary:
        kind = "rotary"
    elif spy.table is not None:
        kind = spy.table
    elif instrumentation.other_mixers:
        kind = "none"  # attention has none of its own; the other mixers know the order
    elif instrumentation.capture == "none":
        kind = "other"
    else:
        kind = "none" if unevenness(model, instrumentation.capture) < uneven(model) else "other"
    return Positions(kind, windows)


def declared_windows(model: PreTrainedModel, layers: int) -> tuple[int | None, ...]:
    """Sliding window of every decoder layer according to the configuration."""
    config = model.config.get_text_config()
    declared = (getattr(config, name, None) for name in _WINDOW_FIELDS)
    window = next((w for w in declared if w), None)
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    if not isinstance(window, int) or window <= 0:
        return (None,) * layers
    if isinstance(kinds, (list, tuple)) and len(kinds) == layers:
        return tuple(window if "sliding" in k or k == "local" else None for k in kinds)
    if getattr(config, "use_sliding_window", True) is False:
        return (None,) * layers
    return (window,) * layers


class PositionSpy(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notices table lookups by position, and rotations, in a pass over ``length`` tokens.

    ``width`` is the residual stream's: a sinusoidal table of another width holds rotary angles.

    With ``freeze`` every such lookup returns the row of position 0 instead.
    """

    def __init__(self, length: int | None, width: int, freeze: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._length, self._width = length, width
        self._freeze = freeze
        self.rotary = False
        self.table: PositionalEncoding | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Look at lookups, and run them, frozen if asked."""
        name = func.overloadpacket.__name__
        if name in _ROTATIONS:
            self.rotary = True
        found = _lookup(name, args)
        if found is not None and self._by_position(found[1]):
            table, index, rebuild = found[0], found[1], found[2]
            self._classify(table)
            if self._freeze:
                args = rebuild(index.flatten()[0].expand(index.shape))
        return func(*args, **(kwargs or {}))

    def _by_position(self, index: Tensor) -> bool:
        """Whether the index counts 0, 1, 2, ... along its last axis, from any start."""
        n = index.shape[-1] if index.dim() else 0
        if n < 2 or (self._length is not None and n % self._length):
            return False
        n = self._length or n
        rows = index.reshape(-1, n)
        count = torch.arange(n, device=index.device)
        return bool((rows - rows[:, :1] == count).all())

    def _classify(self, table: Tensor) -> None:
        width = table.shape[-1]
        norms = table[: min(len(table), 64)].float().pow(2).sum(-1)
        # sin^2 + cos^2 = 1 per frequency: every row of a sinusoidal table has the norm width / 2.
        # (The row of a padding index may be zeroed.)
        fitting = ((norms - width / 2).abs() < 1e-2 * width).float().mean()
        sinusoidal = float(fitting) > 0.9
        if not sinusoidal:
            self.table = "learned"
        elif width != self._width:
            self.rotary = True
        else:
            self.table = "sinusoidal"


def _lookup(name: str, args: Any) -> tuple[Tensor, Tensor, Any] | None:
    """(table, index, arguments with another index) if the operation reads rows of a table."""
    table = args[0] if args and isinstance(args[0], Tensor) else None
    if table is None or table.dim() != 2 or not table.is_floating_point():
        return None
    index: Any = None
    rebuild: Any = None
    if name == "embedding":
        index, rebuild = args[1], lambda new: (table, new, *args[2:])
    elif name == "index_select" and args[1] == 0:
        index, rebuild = args[2], lambda new: (table, 0, new)
    elif name == "index" and len(args[1]) == 1:
        index, rebuild = args[1][0], lambda new: (table, [new])
    if not isinstance(index, Tensor) or index.is_floating_point() or index.dtype == torch.bool:
        return None
    return table, index, rebuild


@dataclass
class BiasRows:
    """Observer that asks of the first attention operations whether a positional bias is added."""

    kind: PositionalEncoding | None = None

    def begin(self, call: AttentionCall) -> None:
        """Look at the bias of one operation."""
        found = None if self.kind == "alibi" else bias_of(call)
        if found is not None:
            self.kind = "relative" if found.slopes is None else "alibi"

    def rows(self, call: AttentionCall, start: int, probabilities: Tensor) -> None:
        """Nothing to learn from the weights."""


@dataclass
class _Unevenness:
    """Largest relative spread of an attention row over its visible keys."""

    worst: float = 0.0
    _sinks: bool = False

    def begin(self, call: AttentionCall) -> None:
        if self._sinks:
            return
        weights = call.probabilities(0, call.length)
        visible = call.visible(0, call.length)
        mean = weights.sum(-1, keepdim=True) / visible.sum(-1, keepdim=True)
        spread = ((weights - mean) / mean.clamp_min(1e-30)).masked_fill(~visible, 0)
        self.worst = max(self.worst, float(spread.abs().max()))
        # A sink drains short rows more than long ones: behind it tokens differ without positions.
        self._sinks = bool((weights.sum(-1) < 1 - 1e-3).any())

    def rows(self, call: AttentionCall, start: int, probabilities: Tensor) -> None:
        pass


@torch.no_grad()
def unevenness(model: PreTrainedModel, capture: Capture, length: int = 12) -> float:
    """How far attention is from uniform on a prompt that repeats one token, 0 if exactly uniform.

    Equal tokens can only be told apart by their positions.
    """
    ids = probe_ids(model)[:1, :1].repeat(1, length)
    watcher = _Unevenness()
    with capturing(model, capture, watcher, BatchShape(1, length)):
        model(input_ids=ids, use_cache=False)
    return watcher.worst


def uneven(model: PreTrainedModel) -> float:
    """Unevenness that rounding alone may cause."""
    return 1e-4 if torch.finfo(model.dtype).eps < 1e-6 else 1e-1
