from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from dense_kernels import head_kernels
from tiny_families import build
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from lacuna.theory.kernels import standard_slopes
from workers.attention.kernels import KernelRecorder, finest_detail
from workers.attention.statistics import Detail, KernelStatistics
from workers.instrument import attention, inspect
from workers.instrument.attention import AttentionCall, BatchShape
from workers.instrument.capture import capturing

LENGTH, WINDOW = 24, 8
# Falcon with ALiBi is missing: transformers adds its bias twice in eager mode.
TRUSTWORTHY = ["gpt2", "gpt2_scaled_by_layer", "gpt_neo", "gpt_neox", "openai_gpt", "opt", "xglm"]
TRUSTWORTHY += ["bloom", "mpt", "falcon_new", "llama", "mistral_window", "qwen3", "gemma2"]
TRUSTWORTHY += ["gemma3", "olmo2", "cohere", "granite", "minicpm3", "mixtral", "gpt_oss"]
TRUSTWORTHY += ["deepseek_v3", "llama4", "jamba", "falcon_h1", "bert_decoder"]
EVERY_PATH = ["llama", "mistral_window", "gemma2", "gpt_oss", "bloom", "falcon_alibi"]


@pytest.fixture
def ids(one_thread: None) -> Tensor:
    """Three documents, longer than the tiny models' windows."""
    generator = torch.Generator().manual_seed(5)
    return torch.randint(3, 131, (3, LENGTH), generator=generator)


def watched(
    model: PreTrainedModel, ids: Tensor, detail: Detail = "mean", size: int = 3
) -> KernelStatistics:
    with KernelRecorder(model, inspect(model), detail) as recorder, torch.no_grad():
        for batch in ids.split(size):
            recorder.start_batch(batch)
            model(input_ids=batch, use_cache=False)
            recorder.end_batch()
    return recorder.result()


@pytest.mark.parametrize("family", TRUSTWORTHY)
def test_kernels_equal_eager_attention(family: str, ids: Tensor) -> None:
    eager = build(family, "eager")
    with torch.no_grad():
        maps = eager(input_ids=ids, use_cache=False, output_attentions=True).attentions
    found = watched(build(family), ids)
    expected = [weights for weights in maps if weights is not None]
    assert len(found.layers) == len(expected)
    by_head = head_kernels(build(family), ids)
    for layer, heads, weights in zip(found.layers, by_head, expected, strict=True):
        mean = weights[..., :LENGTH].double().mean(0).numpy()
        np.testing.assert_allclose(heads, mean, atol=5e-6)
        np.testing.assert_allclose(layer.mean_kernel(), mean.mean(0), atol=5e-6)
        np.testing.assert_allclose(layer.last_row, mean[:, -1], atol=5e-6)
    last = np.mean([w[:, :, -1, :LENGTH].double().mean((0, 1)).numpy() for w in expected], axis=0)
    np.testing.assert_allclose(found.last_token_attention, last, atol=5e-6)


def test_falcon_with_alibi_equals_the_softmax_of_its_own_operands(
    ids: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, seen = build("falcon_alibi"), []
    fused = nn.functional.scaled_dot_product_attention

    def spy(query: Tensor, key: Tensor, value: Tensor, **given: Any) -> Tensor:
        scores = query @ key.mT / query.shape[-1] ** 0.5
        seen.append(torch.softmax(scores + given["attn_mask"], -1))
        return fused(query, key, value, **given)

    found = watched(model, ids)
    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", spy)
    with torch.no_grad():
        model(input_ids=ids, use_cache=False)
    assert len(seen) == len(found.layers)
    monkeypatch.undo()
    for layer, heads, weights in zip(found.layers, head_kernels(model, ids), seen, strict=True):
        np.testing.assert_allclose(heads, weights.mean(0).numpy(), atol=1e-6)
        np.testing.assert_allclose(layer.mean_kernel(), weights.mean((0, 1)).numpy(), atol=1e-6)


def gradient(model: PreTrainedModel, ids: Tensor) -> Tensor:
    leaves: list[Tensor] = []

    def leaf(_module: nn.Module, _args: Any, out: Tensor) -> Tensor:
        leaves.append(out.detach().requires_grad_())
        return leaves[0].clone()

    handle = model.get_input_embeddings().register_forward_hook(leaf)
    try:
        score = model(input_ids=ids, use_cache=False).logits[:, -1].softmax(-1).max(-1).values
        (found,) = torch.autograd.grad(score.sum(), leaves[0])
    finally:
        handle.remove()
    return found


@pytest.mark.parametrize("family", [*EVERY_PATH, "mpt", "xglm", "minicpm3", "granite"])
def test_watching_leaves_the_gradient_alone(family: str, ids: Tensor) -> None:
    model = build(family)
    with KernelRecorder(model, inspect(model)) as recorder:
        recorder.start_batch(ids)
        under_watch = gradient(model, ids)
    alone = gradient(model, ids)
    torch.testing.assert_close(under_watch, alone, rtol=1e-4, atol=1e-6 * float(alone.abs().max()))
    without_gradient = watched(model, ids)
    for a, b in zip(recorder.result().layers, without_gradient.layers, strict=True):
        np.testing.assert_allclose(a.mean_kernel(), b.mean_kernel(), atol=1e-6)


@contextmanager
def checkpointed(model: PreTrainedModel) -> Iterator[None]:
    layers = next(m for m in model.modules() if isinstance(m, nn.ModuleList))
    for layer in layers:
        run = layer.forward
        layer.forward = lambda *a, run=run, **k: checkpoint(run, *a, use_reentrant=False, **k)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


@pytest.mark.parametrize("family", EVERY_PATH)
def test_recomputed_layers_count_once(family: str, ids: Tensor) -> None:
    model = build(family)
    plain = watched(model, ids)
    with KernelRecorder(model, inspect(model)) as recorder, checkpointed(model):
        recorder.start_batch(ids)
        gradient(model, ids)
    for a, b in zip(recorder.result().layers, plain.layers, strict=True):
        np.testing.assert_allclose(a.mean_kernel(), b.mean_kernel(), atol=1e-6)
        np.testing.assert_allclose(a.diagonal, b.diagonal, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", EVERY_PATH)
def test_what_is_kept_follows_from_the_kernels_of_every_head(family: str, ids: Tensor) -> None:
    model = build(family)
    mean, distance = watched(model, ids, "mean"), watched(model, ids, "distance")
    by_head = head_kernels(model, ids)
    for kernels, average, profile in zip(by_head, mean.layers, distance.layers, strict=True):
        np.testing.assert_allclose(average.mean_kernel(), kernels.mean(0), atol=1e-6)
        assert profile.distance is not None
        assert profile.first is not None
        np.testing.assert_allclose(profile.first, kernels[:, :, 0], atol=1e-6)
        assert profile.row_sums is not None
        np.testing.assert_allclose(profile.row_sums, kernels.sum(-1), atol=1e-6)
        for d in range(LENGTH - 1):
            along = [kernels[:, i, i - d] for i in range(d + 1, LENGTH)]
            np.testing.assert_allclose(profile.distance[:, d], np.mean(along, 0), atol=1e-6)
        np.testing.assert_allclose(average.last_row, kernels[:, -1], atol=1e-6)
        np.testing.assert_allclose(profile.last_row, average.last_row, atol=1e-9)
        np.testing.assert_allclose(profile.content(), average.content(), atol=1e-9)


@pytest.mark.parametrize("family", EVERY_PATH)
def test_blocks_and_batches_do_not_matter(
    family: str, ids: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(family)
    at_once = watched(model, ids)
    monkeypatch.setitem(attention._BLOCK_BYTES, "cpu", 1)
    in_parts = watched(model, ids, size=2)
    assert at_once.documents == in_parts.documents == 3
    for a, b in zip(at_once.layers, in_parts.layers, strict=True):
        np.testing.assert_allclose(a.mean_kernel(), b.mean_kernel(), atol=1e-6)
        np.testing.assert_allclose(a.off_diagonal, b.off_diagonal, rtol=1e-4, atol=1e-6)


class Operands:
    """Observer that keeps queries, keys and masks."""

    def __init__(self) -> None:
        self.calls: list[AttentionCall] = []

    def begin(self, call: AttentionCall) -> None:
        self.calls.append(call)

    def rows(self, call: AttentionCall, start: int, probabilities: Tensor) -> None:
        pass


@pytest.mark.parametrize("family", [*EVERY_PATH, "gpt2_scaled_by_layer", "llama4", "gpt_neo"])
def test_content_logits(family: str, ids: Tensor) -> None:
    """Means over all pairs, the slow way."""
    model = build(family)
    operands, shape = Operands(), BatchShape(*ids.shape)
    with capturing(model, inspect(model).capture, operands, shape), torch.no_grad():
        model(input_ids=ids, use_cache=False)
    for layer, call in zip(watched(model, ids).layers, operands.calls, strict=True):
        key = call.key.repeat_interleave(call.heads // call.key.shape[1], 1)
        raw = (call.query @ key.mT).double().numpy()
        visible = call.visible(0, LENGTH).expand(3, 1, -1, -1)[:, 0].numpy()
        on = np.eye(LENGTH, dtype=bool)
        diagonal = raw[:, :, on].mean((0, 2))
        off = np.stack([raw[:, h][visible & ~on].mean() for h in range(call.heads)])
        np.testing.assert_allclose(layer.content("raw"), diagonal - off, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(
            layer.content("model"), call.scaling * (diagonal - off), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("family", ["bloom", "mpt"])
def test_recovers_the_alibi_slopes(family: str, ids: Tensor) -> None:
    for layer in watched(build(family), ids).layers:
        assert layer.bias is not None
        assert layer.bias.slopes is not None
        np.testing.assert_allclose(layer.bias.slopes, standard_slopes(4), rtol=1e-4)


def test_falcons_bias_is_the_one_it_computes_with(ids: Tensor) -> None:
    """transformers divides it by the root of the head width and rounds it to bfloat16."""
    for layer in watched(build("falcon_alibi"), ids).layers:
        assert layer.bias is not None
        assert layer.bias.slopes is not None
        np.testing.assert_allclose(layer.bias.slopes, standard_slopes(4) / 4, rtol=1e-2)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neo", "opt", "gpt_oss"])
def test_no_bias_where_there_is_none(family: str, ids: Tensor) -> None:
    assert all(layer.bias is None for layer in watched(build(family), ids).layers)


@pytest.mark.parametrize(
    ("family", "kinds"),
    [
        ("llama", ["causal"] * 4),
        ("mistral_window", ["window"] * 4),
        ("gemma2", ["window", "causal"] * 2),
        ("gpt_oss", ["window", "causal"] * 2),
        ("gpt_neo", ["causal", "window"] * 2),
        ("llama4", ["other", "other", "other", "causal"]),
    ],
)
def test_mask_as_the_model_sees_it(family: str, kinds: list[str], ids: Tensor) -> None:
    """The window's edge is exact: WINDOW keys with the query's own, not one more or less."""
    model = build(family)
    for layer, kind in zip(watched(model, ids).layers, kinds, strict=True):
        assert layer.mask.kind == kind
        assert layer.mask.window == (WINDOW if kind == "window" else None)
        seen = layer.mean_kernel() > 0
        np.testing.assert_array_equal(seen.sum(-1), layer.mask.visible)
        if kind == "window":
            assert seen[-1].nonzero()[0][0] == LENGTH - WINDOW
    short = watched(model, ids[:, :WINDOW])
    assert all(layer.mask.kind == "causal" for layer in short.layers)


def test_rows_sum_to_one_except_with_sinks(ids: Tensor) -> None:
    for layer in watched(build("llama"), ids).layers:
        np.testing.assert_allclose(layer.mean_kernel().sum(-1), 1, atol=1e-5)
    for layer in watched(build("gpt_oss"), ids).layers:
        assert layer.mean_kernel().sum(-1).max() < 1 - 1e-3


@pytest.mark.parametrize("family", EVERY_PATH)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_shortest_documents(family: str, length: int, ids: Tensor) -> None:
    for detail in ("mean", "distance"):
        found = watched(build(family), ids[:, :length], detail)
        assert np.isfinite(found.last_token_attention).all()
        assert all(np.isfinite(layer.content()).all() for layer in found.layers)


@pytest.mark.parametrize("family", ["llama", "gemma2", "bloom", "falcon_alibi"])
@pytest.mark.parametrize("failing", [False, True])
def test_the_model_is_as_it_was(family: str, failing: bool, ids: Tensor) -> None:
    model = build(family)
    before = (model.config._attn_implementation, model(input_ids=ids).logits)
    with pytest.raises(KeyError) if failing else nullcontext():  # noqa: SIM117
        with KernelRecorder(model, inspect(model)) as recorder:
            recorder.start_batch(ids)
            model(input_ids=ids)
            if failing:
                raise KeyError
    assert model.config._attn_implementation == before[0]
    assert torch.equal(model(input_ids=ids).logits, before[1])


@pytest.mark.parametrize("complete", [0, 1])
def test_passes_may_be_begun_anew(complete: int, ids: Tensor) -> None:
    model = build("llama")
    with KernelRecorder(model, inspect(model)) as recorder, torch.no_grad():
        for _ in range(complete):
            recorder.start_batch(ids)
            model(input_ids=ids)
            recorder.end_batch()
        recorder.start_batch(ids)
        model.model(input_ids=ids.flip(0))  # broken off: never ended
        with pytest.raises(RuntimeError, match="broken off"):
            recorder.start_batch(ids)
        recorder.reset()
        for batch in ids.split(2):
            recorder.start_batch(batch)
            model(input_ids=batch)
            recorder.end_batch()
        found = recorder.result()
    assert found.documents == 3
    np.testing.assert_allclose(
        found.layers[0].mean_kernel(), watched(model, ids).layers[0].mean_kernel(), atol=1e-6
    )


def test_documents_of_two_lengths_do_not_mix(ids: Tensor) -> None:
    model = build("llama")
    with KernelRecorder(model, inspect(model)) as recorder, torch.no_grad():
        recorder.start_batch(ids)
        model(input_ids=ids)
        recorder.end_batch()
        recorder.start_batch(ids[:, :9])
        with pytest.raises(ValueError, match="9 and 24"):
            model(input_ids=ids[:, :9])


def test_detail_follows_the_budget() -> None:
    found = inspect(build("llama"))
    size = 4 * 4 * 100**2  # layers x bytes x n^2
    assert finest_detail(found, 100, budget=size) == "mean"
    assert finest_detail(found, 100, budget=size - 1) == "distance"


def test_kernels_that_were_not_kept_are_refused(ids: Tensor) -> None:
    layer = watched(build("llama"), ids, "distance").layers[0]
    with pytest.raises(ValueError, match="detail"):
        layer.mean_kernel()
