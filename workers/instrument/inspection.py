"""Can this model be measured, and how? `inspect` answers by running it on a few tokens.

The checks, in order: one stack that maps ids to logits of the same length; causal (the last token
must not move earlier logits: a BERT loads as a causal model without complaint); softmax attention
present; every attention update found on the residual stream; no other path between positions; the
attention statistics leave the logits alone and see every attention call.

Which positions reach which is read from gradients (`gradient_share`), not from differences between
two passes, which rounding alone can cause.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lacuna.contract.errors import ModelUnsupported
from workers.faults import is_machine_fault
from workers.instrument.branches import (
    AttentionBranch,
    BranchSearch,
    find_branches,
    updates_zeroed,
)
from workers.instrument.capture import Capture, choose
from workers.instrument.model_pass import embedding_leaf
from workers.instrument.tracker import track

PROBE_BATCH, PROBE_LENGTH = 2, 11
NO_PATH = 1e-6
"""Share of the gradient below which there is no path."""


@dataclass(frozen=True)
class Instrumentation:
    """What can be measured on a model, and with which instruments.

    Attributes:
        level: "full": influence, mixing and attention kernels; "influence_only": the input gradient
            only, because of `reasons`.
        branches: the attention branches, the first nearest the embeddings; empty where mixing is
            undefined.
        block: how attention and MLP join the stream, over all layers.
        capture: the way of watching the attention.
        reasons: why the level is not full.
        warnings: what to know when reading a result.
        attention_layers: layers with softmax attention.
        layers: decoder layers.
        cores: softmax attention operations in one pass.
        other_mixers: whether anything else carries information between positions (state space,
            convolution, ...).
    """

    level: Literal["full", "influence_only"]
    branches: tuple[AttentionBranch, ...]
    block: Literal["sequential", "parallel", "mixed", "unknown"]
    capture: Capture
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    attention_layers: int
    layers: int
    cores: int
    other_mixers: bool


@torch.no_grad()
def inspect(model: PreTrainedModel) -> Instrumentation:
    """Find the instruments for ``model`` with about eight forward passes over 2 x 11 tokens.

    Raises:
        ModelUnsupported: not a causal language model of one stack; the sentence says why.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        raise ModelUnsupported(
            "The model is an encoder-decoder: there is no single causal residual stream from the "
            "prompt to the last token."
        )
    ids = probe_ids(model)
    logits = _first_logits(model, ids)
    _refuse_not_causal(model, ids, logits)
    found = find_branches(track(model, ids, stream_width(model)))
    declared = getattr(model.config.get_text_config(), "num_hidden_layers", 0) or 0
    layers = max(int(declared), len(found.branches))  # BART counts its encoder's
    if not found.cores:
        raise ModelUnsupported(
            "The model has no softmax attention (it is a state space, recurrent or hashing model): "
            "there is no attention kernel whose position bias could be measured or predicted."
        )
    if found.problems:
        return _influence_only(found, layers)
    return _full(model, ids, logits, found, layers)


def probe_ids(model: PreTrainedModel) -> Tensor:
    """The tokens of the probe, [PROBE_BATCH, PROBE_LENGTH]; every call gives the same."""
    embedding = _embedding(model)
    vocabulary = int(embedding.shape[0])
    generator = torch.Generator().manual_seed(0)
    low = min(3, vocabulary - 1)  # the first ids are often padding and separators
    ids = torch.randint(low, vocabulary, (PROBE_BATCH, PROBE_LENGTH), generator=generator)
    return ids.to(embedding.device)


def tolerance_of(model: PreTrainedModel) -> float:
    """Largest difference, relative to the largest logit, that rounding may cause."""
    return 2e-4 if torch.finfo(model.dtype).eps < 1e-6 else 4e-2


def _embedding(model: PreTrainedModel) -> Tensor:
    embedding = model.get_input_embeddings()
    weight = getattr(embedding, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        raise ModelUnsupported("The model has no table of input embeddings to differentiate.")
    return weight


def stream_width(model: PreTrainedModel) -> int:
    """Width of the residual stream; the input embeddings may be narrower or wider."""
    width = getattr(model.config.get_text_config(), "hidden_size", None)
    return int(width) if isinstance(width, int) else int(_embedding(model).shape[1])


def _logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    logits = model(input_ids=ids, use_cache=False).logits
    assert isinstance(logits, Tensor)
    return logits


def _first_logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    try:
        logits = _logits(model, ids)
    except Exception as error:
        if is_machine_fault(error):
            raise
        raise ModelUnsupported(
            f"The model cannot run on token ids alone: {type(error).__name__}: {str(error)[:200]}"
        ) from error
    if logits.shape[:2] != ids.shape:
        raise ModelUnsupported(
            f"The model maps {ids.shape[1]} tokens to logits of shape {tuple(logits.shape)}, not "
            "to one row of logits per token."
        )
    if not bool(logits.isfinite().all()):
        raise ModelUnsupported("The model's logits are not finite on ordinary tokens.")
    return logits


def _refuse_not_causal(model: PreTrainedModel, ids: Tensor, logits: Tensor) -> None:
    share = gradient_share(model, ids, slice(None, -1), slice(-1, None))
    if share <= NO_PATH:
        return
    if not math.isfinite(share):  # some attention kernels turn NaN into zeros on the way forward
        raise ModelUnsupported("The model's gradients are not finite on ordinary tokens.")
    vocabulary = int(_embedding(model).shape[0])
    low = min(3, vocabulary - 1)
    other = ids.clone()
    other[:, -1] = (other[:, -1] - low + 1) % max(vocabulary - low, 1) + low
    moved = (_logits(model, other) - logits)[:, :-1].float().abs().max()
    leak = float(moved / logits[:, :-1].float().abs().max().clamp_min(1e-30))
    raise ModelUnsupported(
        f"The model is not causal: changing the last token moves earlier logits by {leak:.1e} of "
        "their size (an encoder or a prefix model)."
    )


def gradient_share(model: PreTrainedModel, ids: Tensor, read: slice, asked: slice) -> float:
    """How much the embeddings at ``asked`` move the logits at ``read``, in [0, 1].

    It is their largest gradient as a share of the largest of all, for a random combination of the
    logits. A path that a mask cuts has a gradient of exactly 0 in every precision, while two passes
    over different tokens may group their sums differently, and so differ by rounding.

    Raises:
        ModelUnsupported: no gradient can be taken, or the model adds tokens of its own.
    """
    try:
        with torch.enable_grad(), embedding_leaf(model) as trace:
            logits = model(input_ids=ids, use_cache=False).logits[:, read]
            drawn = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
            assert trace.leaf is not None, "it does not read its input embeddings"
            (found,) = torch.autograd.grad((logits * drawn.to(logits)).sum(), [trace.leaf])
    except Exception as error:  # a model's own code may fail in any way
        if is_machine_fault(error):
            raise
        raise ModelUnsupported(
            f"The model cannot be differentiated: {type(error).__name__}: {str(error)[:200]}"
        ) from error
    if found.shape[:-1] != ids.shape:
        raise ModelUnsupported(
            f"The model does not embed the tokens it is given, one vector each: token ids of shape "
            f"{list(ids.shape)} become a tensor of shape {list(found.shape)}."
        )
    sizes = found.float().abs()
    return float(sizes[:, asked].max() / sizes.max().clamp_min(1e-30))


def _influence_only(found: BranchSearch, layers: int) -> Instrumentation:
    return Instrumentation(
        level="influence_only",
        branches=(),
        block="unknown",
        capture="none",
        reasons=tuple(f"mixing is undefined: {problem}" for problem in found.problems),
        warnings=(),
        attention_layers=len(found.branches) or min(found.cores, layers),
        layers=layers,
        cores=found.cores,
        other_mixers=False,
    )


def _full(
    model: PreTrainedModel, ids: Tensor, logits: Tensor, found: BranchSearch, layers: int
) -> Instrumentation:
    branches = found.branches
    blocks = {branch.block for branch in branches}
    mixed = _other_mixers(model, ids, branches)
    choice = choose(model, ids, logits, found.cores, tolerance_of(model))
    reasons: tuple[str, ...] = ()
    if choice.capture == "none":
        reasons = (
            "the attention weights cannot be watched without changing the model ("
            + "; ".join(choice.rejected)
            + "): mixing, but no kernels",
        )
    return Instrumentation(
        level="full" if choice.capture != "none" else "influence_only",
        branches=branches,
        block=blocks.pop() if len(blocks) == 1 else "mixed",
        capture=choice.capture,
        reasons=reasons,
        warnings=tuple(_warnings(branches, layers, mixed=mixed, sinks=choice.sinks)),
        attention_layers=len(branches),
        layers=layers,
        cores=found.cores,
        other_mixers=mixed,
    )


def _warnings(
    branches: Sequence[AttentionBranch], layers: int, *, mixed: bool, sinks: bool
) -> Iterator[str]:
    """What the predictions leave out, and how to read the kernels."""
    if layers > len(branches):
        yield (
            f"hybrid: softmax attention in {len(branches)} of {layers} layers; the predictions "
            "leave out what the others mix"
        )
    elif mixed:
        yield (
            "other paths between positions than softmax attention (state space, convolution); the "
            "predictions leave them out"
        )
    if sinks:
        yield "attention sinks: the rows of the kernels sum to less than one"
    if any(len(branch.cores) > 1 for branch in branches):
        yield "several softmax maps feed one update; they count as separate heads"


def _other_mixers(model: PreTrainedModel, ids: Tensor, branches: Sequence[AttentionBranch]) -> bool:
    """Whether earlier tokens still reach the last logits when every attention update is zero."""
    with updates_zeroed(model, branches):
        return gradient_share(model, ids, slice(-1, None), slice(None, -1)) > NO_PATH
