"""How a model knows the positions of tokens: `describe_positions` finds out by running it, and
`positions_off` switches them off.

What counts is what the pass does, not names: a table row looked up for every position (learned or
sinusoidal; a narrow table holds rotary angles), cosines or complex rotations (rotary), a bias on
the logits that falls linearly with distance (ALiBi) or depends on it in another way (relative).
When none of these is seen, a prompt of one repeated token decides: without positions every
attention row is uniform.
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

_WINDOW_FIELDS = ("sliding_window", "attention_window_size", "window_size")
_ROTATIONS = frozenset({"cos", "sin", "polar"})


@dataclass(frozen=True)
class Positions:
    """The positional encoding, and the sliding windows that the configuration declares.

    Attributes:
        kind: the encoding that was seen.
        windows: by decoder layer, keys that a query sees, itself included; None where it sees all.
            The kernel statistics of a measurement have the mask that was really used.
    """

    kind: PositionalEncoding
    windows: tuple[int | None, ...]

    @property
    def window(self) -> int | None:
        """The shortest window of any layer, in keys; None when no layer has one."""
        return min((w for w in self.windows if w is not None), default=None)


@torch.no_grad()
def describe_positions(
    model: PreTrainedModel, instrumentation: Instrumentation | None = None
) -> Positions:
    """Find the positional encoding, with one or two forward passes over a few tokens.

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
        kind = "none"  # attention has no encoding; the other layers know the order
    elif instrumentation.capture == "none":
        kind = "other"
    else:
        kind = "none" if unevenness(model, instrumentation.capture) < uneven(model) else "other"
    return Positions(kind, windows)


def declared_windows(model: PreTrainedModel, layers: int) -> tuple[int | None, ...]:
    """Sliding window of every decoder layer, in keys, as the configuration declares it."""
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
    """Notices table lookups by position, and rotations, in a pass.

    Args:
        length: of the pass in tokens; None accepts any.
        width: of the residual stream: a sinusoidal table of another width holds rotary angles.
        freeze: return the row of position 0 for every lookup by position.

    Attributes:
        rotary: whether a rotation was seen.
        table: "learned" or "sinusoidal" when a table was read by position.
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
        """Look at an operation, then run it; a lookup by position may be frozen."""
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
    """Attention observer that looks for a positional bias."""

    kind: PositionalEncoding | None = None

    def begin(self, call: AttentionCall) -> None:
        """Look at the bias of one operation."""
        found = None if self.kind == "alibi" else bias_of(call)
        if found is not None:
            self.kind = "relative" if found.slopes is None else "alibi"

    def rows(self, call: AttentionCall, start: int, probabilities: Tensor) -> None:
        """Ignore the weights: the bias is in the logits."""


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
        # A sink takes more from short rows than from long ones: in the layers behind it, tokens
        # differ even without positions.
        self._sinks = bool((weights.sum(-1) < 1 - 1e-3).any())

    def rows(self, call: AttentionCall, start: int, probabilities: Tensor) -> None:
        pass


@torch.no_grad()
def unevenness(model: PreTrainedModel, capture: Capture, length: int = 12) -> float:
    """How far attention is from uniform on a prompt that repeats one token; 0 is exactly uniform.

    Only their positions distinguish equal tokens.
    """
    ids = probe_ids(model)[:1, :1].repeat(1, length)
    watcher = _Unevenness()
    with capturing(model, capture, watcher, BatchShape(1, length)):
        model(input_ids=ids, use_cache=False)
    return watcher.worst


def uneven(model: PreTrainedModel) -> float:
    """Unevenness that rounding alone may cause."""
    return 1e-4 if torch.finfo(model.dtype).eps < 1e-6 else 1e-1


@contextmanager
def positions_off(
    model: PreTrainedModel, instrumentation: Instrumentation | None = None
) -> Iterator[None]:
    """Inside, every position of a prompt looks like the first to ``model``.

    Rotary, learned and sinusoidal positions: all position ids are 0, with an explicit attention
    mask of ones (without it, transformers reads repeated position ids as packed sequences and masks
    them from each other). Models that take no position ids: lookups by position return the first
    row. ALiBi: the functions that build the bias return zeros. Entering measures whether it worked.

    Raises:
        ModelUnsupported: positions still show, or the attention cannot be watched to verify it.
    """
    instrumentation = instrumentation or inspect(model)
    if instrumentation.capture == "none":
        raise ModelUnsupported(
            "positional_encoding: off needs a model whose attention can be watched, to verify it.",
            field="positional_encoding",
        )
    if instrumentation.other_mixers:
        raise ModelUnsupported(
            "positional_encoding: off does not apply: the model also has state space, recurrent or "
            "convolution layers, which know the order of the tokens.",
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
    """Make every function named *alibi* in the model's own code return zeros."""
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
