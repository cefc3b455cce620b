"""Watching the attention operations of a model, in whichever of three ways suits it.

`choose` tries the ways on a few tokens and takes the first that leaves the logits unchanged, sees
every attention operation once, and whose rows sum to one (less with sinks). `capturing` then shows
an observer the attention of any pass.

    interface   transformers' attention registry, for the models that look their attention up there
    sdpa        calls of `scaled_dot_product_attention`, for models that call it themselves (Falcon)
    softmax     the softmax itself, for models with an attention of their own (BLOOM, MPT, XGLM,
                GPT-Neo, OpenAI GPT)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from workers.faults import is_machine_fault
from workers.instrument.attention import (
    AttentionCall,
    AttentionObserver,
    BatchShape,
    feed,
    split_mask,
    visible_scores,
)
from workers.instrument.branches import recomputing
from workers.instrument.tracker import is_core

Capture = Literal["interface", "sdpa", "softmax", "none"]


@contextmanager
def capturing(
    model: PreTrainedModel, capture: Capture, observer: AttentionObserver, shape: BatchShape
) -> Iterator[None]:
    """Show ``observer`` every attention operation of the passes inside.

    Call ``shape.start`` before each pass. ``capture`` "none" shows nothing.
    """
    if capture == "interface":
        with _through_interface(model, observer, shape):
            yield
    elif capture == "sdpa":
        with _FusedAttentionMode(observer, shape):
            yield
    elif capture == "softmax":
        with _SoftmaxMode(observer, shape):
            yield
    else:
        yield


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
    """The first way of watching that passes every check on ``ids``, whose logits are known.

    Args:
        model: a causal language model.
        ids: a few tokens, [B, n].
        logits: the model's own for them, [B, n, vocabulary].
        cores: attention operations that it must see.
        tolerance: how far the logits may move, relative to the largest.
    """
    ways: list[Capture] = ["sdpa", "softmax"]
    if model._can_set_attn_implementation():
        ways.insert(0, "interface")
    rejected: list[str] = []
    for way in ways:
        sums = _RowSums()
        try:
            shape = BatchShape(*ids.shape)
            with capturing(model, way, sums, shape):
                seen = model(input_ids=ids, use_cache=False).logits
        except Exception as error:  # a model's own code may fail in any way: try the next
            if is_machine_fault(error):
                raise
            rejected.append(f"{way}: {type(error).__name__}: {str(error)[:100]}")
            continue
        problem = _problem(sums, seen, logits, cores, tolerance)
        if problem is None:
            return Choice(way, bool((torch.cat(sums.rows_sum) < 1 - 1e-3).any()), tuple(rejected))
        rejected.append(f"{way}: {problem}")
    return Choice("none", False, tuple(rejected))


@dataclass
class _RowSums:
    """Observer that keeps the operations and the sum of every row."""

    calls: list[AttentionCall] = field(default_factory=list)
    rows_sum: list[Tensor] = field(default_factory=list)

    def begin(self, call: AttentionCall) -> None:
        self.calls.append(call)

    def rows(self, call: AttentionCall, start: int, probabilities: Tensor) -> None:
        self.rows_sum.append(probabilities.sum(-1).flatten().cpu())


def _problem(
    sums: _RowSums, seen: Tensor, logits: Tensor, cores: int, tolerance: float
) -> str | None:
    if len(sums.calls) != cores:
        return f"it sees {len(sums.calls)} of {cores} attention operations"
    if any(call.length != call.keys for call in sums.calls):
        return "queries and keys differ in number"
    scale = logits.float().abs().max().clamp_min(1e-30)
    moved = float((seen.float() - logits.float()).abs().max() / scale)
    if not moved <= tolerance:
        return f"it moves the logits by {moved:.1e} of their size"
    if bool((torch.cat(sums.rows_sum) > 1 + 1e-3).any()):
        return "its rows sum to more than one"
    return None


# --- transformers' attention registry -------------------------------------------------------------

_NAME = "lacuna"
_observer: ContextVar[AttentionObserver | None] = ContextVar("observer", default=None)
_shape: ContextVar[BatchShape] = ContextVar("shape")


@contextmanager
def _through_interface(
    model: PreTrainedModel, observer: AttentionObserver, shape: BatchShape
) -> Iterator[None]:
    """Make the model compute with `attention`; afterwards it computes as before."""
    AttentionInterface.register(_NAME, attention)
    # Without a mask function of the same name, transformers passes no mask and the model silently
    # loses its sliding window.
    AttentionMaskInterface.register(_NAME, sdpa_mask)
    before = _implementations(model)
    model.set_attn_implementation(_NAME)
    observers, shapes = _observer.set(observer), _shape.set(shape)
    try:
        yield
    finally:
        _observer.reset(observers)
        _shape.reset(shapes)
        for config, implementation in before:
            config._attn_implementation_internal = implementation


def _implementations(model: nn.Module) -> list[tuple[Any, Any]]:
    """Every configuration inside the model, with the attention that it names."""
    found: dict[int, tuple[Any, Any]] = {}
    pending: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    while pending:
        config = pending.pop()
        if id(config) in found or not hasattr(config, "_attn_implementation_internal"):
            continue
        found[id(config)] = (config, config._attn_implementation_internal)
        pending += [getattr(config, name, None) for name in getattr(config, "sub_configs", {})]
    return list(found.values())


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls; output [B, n, H, d_v].

    The output comes from the same fused kernel that the model would use without us. Soft-capping
    and sinks have no fused kernel: there it is computed in blocks of rows, which are recomputed for
    the gradient.
    """
    observer = None if recomputing() else _observer.get()
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    visible, bias = split_mask(attention_mask, key.shape[2])
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    call = AttentionCall(
        number=-1 if observer is None else _shape.get().next(),
        query=query.detach(),
        key=key.detach(),
        scaling=float(query.shape[-1] ** -0.5 if scaling is None else scaling),
        mask=visible,
        causal=causal,
        bias=None if bias is None else bias.detach(),
        softcap=softcap,
        sink=s_aux if s_aux is not None else sinks,
    )
    if call.softcap is not None or call.sink is not None:
        return _in_blocks(call, query, key, value, bias, observer), None
    if observer is not None:
        feed(observer, call)
    output, _ = sdpa_attention_forward(
        module,
        query,
        key,
        value,
        attention_mask,
        dropout=dropout,
        scaling=call.scaling,
        is_causal=is_causal,
        position_bias=position_bias,
    )
    return output, None


def _in_blocks(
    call: AttentionCall,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    observer: AttentionObserver | None,
) -> Tensor:
    if observer is not None:
        observer.begin(call)

    def block(query: Tensor, key: Tensor, value: Tensor, start: int, stop: int) -> Tensor:
        live = AttentionCall(
            call.number,
            query,
            key,
            call.scaling,
            call.mask,
            call.causal,
            bias,
            call.softcap,
            call.sink,
        )
        weights = live.probabilities(start, stop)
        if observer is not None and not recomputing():
            with torch.no_grad():
                observer.rows(call, start, weights.detach())
        return _weighted(weights.to(value.dtype), value[:, :, : weights.shape[-1]])

    differentiable = torch.is_grad_enabled() and query.requires_grad
    outputs = []
    for start, stop in call.blocks():
        if differentiable:
            outputs.append(checkpoint(block, query, key, value, start, stop, use_reentrant=False))
        else:
            outputs.append(block(query, key, value, start, stop))
    return torch.cat(outputs, 2).transpose(1, 2).contiguous()


def _weighted(weights: Tensor, value: Tensor) -> Tensor:
    """Weighted values [B, H, c, d_v]; heads that share values stay unrepeated."""
    batch, heads, rows, keys = weights.shape
    groups = value.shape[1]
    stacked = weights.reshape(batch * groups, heads // groups * rows, keys)
    mixed = torch.bmm(stacked, value.reshape(batch * groups, keys, value.shape[-1]))
    return mixed.view(batch, heads, rows, value.shape[-1])


# --- calls of scaled_dot_product_attention --------------------------------------------------------

_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


class _FusedAttentionMode(TorchFunctionMode):
    """Shows every fused attention call over equally many queries and keys.

    The call itself is not changed. For Falcon with ALiBi this is the only way: transformers adds
    its bias twice in eager mode.
    """

    def __init__(self, observer: AttentionObserver, shape: BatchShape) -> None:
        super().__init__()
        self._observer = observer
        self._shape = shape

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Look, then run the call unchanged."""
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention and not recomputing():
            given = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
            query, key = given["query"], given["key"]
            if query.dim() == 4 and query.shape[-2] == key.shape[-2]:
                with torch.no_grad():
                    feed(self._observer, self._call(query, key, given))
        return func(*args, **kwargs)

    def _call(self, query: Tensor, key: Tensor, given: dict[str, Any]) -> AttentionCall:
        visible, bias = split_mask(given.get("attn_mask"), key.shape[2])
        scale = given.get("scale")
        return AttentionCall(
            number=self._shape.next(),
            query=query.detach(),
            key=key.detach(),
            scaling=float(query.shape[-1] ** -0.5 if scale is None else scale),
            mask=visible,
            causal=bool(given.get("is_causal", False)),
            bias=bias,
        )


# --- the softmax itself ---------------------------------------------------------------------------

_PRODUCTS = frozenset({"bmm", "baddbmm", "matmul", "mm"})


class _SoftmaxMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Shows every softmax over a matrix of ``shape.length`` queries by keys.

    These models ignore the attention registry; some accept another implementation and then compute
    with a wrong mask. So the softmax is watched, and the matrix product in front of it: what enters
    the softmax, less the scaled product of queries and keys, is the model's positional bias.
    """

    def __init__(self, observer: AttentionObserver, shape: BatchShape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._observer = observer
        self._shape = shape
        self._product: tuple[Tensor, Tensor] | None = None
        self._scores: Tensor | None = None
        self._scaling = 1.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, then look at it."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        n = self._shape.length
        if isinstance(out, Tensor) and out.dim() >= 3 and out.shape[-2] == n:
            name = func.overloadpacket.__name__
            if is_core(name, args, out, n):
                if not recomputing():
                    self._report(args[0], out)
            elif out.shape[-1] == n:
                self._content(name, args, kwargs, out)
        return out

    def _content(self, name: str, args: Any, kwargs: dict[str, Any], out: Tensor) -> None:
        """Follow the scores from the product of queries and keys to the softmax."""
        if name in _PRODUCTS:
            self._product = (args[1], args[2]) if name == "baddbmm" else (args[0], args[1])
            self._scaling = float(kwargs.get("alpha", 1.0)) if name == "baddbmm" else 1.0
            self._scores = out
        elif self._scores is not None and args[0] is self._scores:
            by = args[1] if len(args) > 1 else 1.0
            number = not isinstance(by, Tensor) or by.numel() == 1
            if name.rstrip("_") in ("mul", "div") and number:
                factor = float(by)
                self._scaling *= factor if name.startswith("mul") else 1.0 / factor
            self._scores = out

    @torch.no_grad()
    def _report(self, logits: Tensor, weights: Tensor) -> None:
        assert self._product is not None
        if weights.dtype.itemsize < 4:  # half precision rounds: the rows would not sum to one
            weights = torch.softmax(logits.float(), -1)
        n, batch = self._shape.length, self._shape.batch
        query, key = self._product
        query = query.reshape(batch, -1, n, query.shape[-1])
        key = key.reshape(batch, -1, key.shape[-2], n).transpose(-1, -2)
        heads = query.shape[1]
        logits = logits.reshape(batch, heads, n, -1)[..., :n]
        visible = visible_scores(logits[:1, :1])
        call = AttentionCall(
            number=self._shape.next(),
            query=query,
            key=key,
            scaling=self._scaling,
            mask=visible,
            formed=weights.reshape(batch, heads, n, -1)[..., :n],
        )
        call.observed_bias = _bias(call, logits)
        self._product = self._scores = None
        feed(self._observer, call)


def _bias(call: AttentionCall, logits: Tensor) -> Tensor:
    """What the logits hold apart from the content, [H, 2, n]: last query and middle query."""
    rows = [call.length - 1, call.length // 2]
    content = torch.cat([call.scores(row, row + 1) for row in rows], dim=2)
    return (logits[0, :, rows].float() - content[0]).masked_fill(
        ~call.visible(0, call.length)[0, :, rows], torch.nan
    )
