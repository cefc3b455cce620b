from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from workers.documents import DocumentSet
from workers.influence import influence
from workers.influence.mixing import MixingRecorder
from workers.instrument.branches import AttentionBranch, HookPoint
from workers.models.loaded import LoadedModel


def llama_branches(layers: int = 3) -> list[AttentionBranch]:
    return [
        AttentionBranch(
            update=HookPoint(f"model.layers.{t}.self_attn", "output", 0, 1.0),
            stream=HookPoint(f"model.layers.{t}.input_layernorm", "input", 0, 1.0),
        )
        for t in range(layers)
    ]


def gpt2_branches(layers: int = 3) -> list[AttentionBranch]:
    return [
        AttentionBranch(
            update=HookPoint(f"transformer.h.{t}.attn", "output", 0, 1.0),
            stream=HookPoint(f"transformer.h.{t}.ln_1", "input", 0, 1.0),
        )
        for t in range(layers)
    ]


def some_documents(count: int = 5, length: int = 12) -> DocumentSet:
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(2, 300, (count, length), generator=generator)
    return DocumentSet(ids, leading_bos=False, source="random_tokens")


def by_hand(model: Any, layers: Any, norm: str, ids: torch.Tensor) -> np.ndarray:
    """Lambda [T, n] of one document from the residual stream before and after each addition."""
    streams: list[torch.Tensor] = []
    after: list[torch.Tensor] = []
    handles = []
    for layer in layers:
        handles.append(layer.register_forward_pre_hook(lambda _m, args: streams.append(args[0])))
        handles.append(
            getattr(layer, norm).register_forward_pre_hook(lambda _m, args: after.append(args[0]))
        )
    model(ids[None])
    for handle in handles:
        handle.remove()
    rows = []
    for stream, behind in zip(streams, after, strict=True):
        update = (behind - stream)[0].double().norm(dim=-1)
        present = stream[0].double().norm(dim=-1)
        rows.append((update / (update + present)).numpy())
    return np.array(rows)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_equals_the_stream_s_own_differences(
    family: str,
    batch_size: int,
    tiny_model: Callable[..., Any],
    as_loaded: Callable[..., LoadedModel],
) -> None:
    model, given = tiny_model(family, dtype="float64"), some_documents()
    branches = llama_branches() if family == "llama" else gpt2_branches()
    layers = model.model.layers if family == "llama" else model.transformer.h
    norm = "post_attention_layernorm" if family == "llama" else "ln_2"
    recorder = MixingRecorder(model, branches)
    influence.measure(as_loaded(model), given, batch_size=batch_size, recorders=[recorder])
    expected = np.array([by_hand(model, layers, norm, ids) for ids in given.ids])
    np.testing.assert_allclose(recorder.per_document, expected.mean(axis=-1), rtol=1e-9)
    np.testing.assert_allclose(recorder.by_token, expected.mean(axis=0), rtol=1e-9)


def test_is_a_share_and_leaves_the_result_as_it_was(
    tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    loaded, given = as_loaded(tiny_model()), some_documents()
    bare = influence.measure(loaded, given)
    recorder = MixingRecorder(loaded.model, llama_branches())
    tapped = influence.measure(loaded, given, recorders=[recorder])
    assert bare.norms.tobytes() == tapped.norms.tobytes()
    assert ((recorder.by_token > 0) & (recorder.by_token < 1)).all()
    assert not any(module._forward_hooks for module in loaded.model.modules())


def test_coefficients_scale_the_norms(tiny_model: Callable[..., Any]) -> None:
    model, given = tiny_model(), some_documents(count=1)
    plain = [MixingRecorder(model, llama_branches())]
    doubled = [
        AttentionBranch(
            HookPoint(s.update.path, "output", 0, 2.0), HookPoint(s.stream.path, "input", 0, -3.0)
        )
        for s in llama_branches()
    ]
    scaled = [MixingRecorder(model, doubled)]
    for (recorder,) in (plain, scaled):
        with recorder:
            recorder.start_batch(given.ids)
            model(given.ids)
            recorder.end_batch()
    odds = plain[0].by_token / (1 - plain[0].by_token)
    found = scaled[0].by_token / (1 - scaled[0].by_token)
    np.testing.assert_allclose(found, odds * 2 / 3, rtol=1e-6)


def test_no_update_is_no_mixing(tiny_model: Callable[..., Any]) -> None:
    model, given = tiny_model(), some_documents(count=1)
    model.get_input_embeddings().weight.data.zero_()
    with MixingRecorder(model, llama_branches()) as recorder:
        recorder.start_batch(given.ids)
        model(given.ids)
        recorder.end_batch()
    assert (recorder.by_token[0] == 0).all()


def test_a_pass_that_failed_leaves_no_trace(tiny_model: Callable[..., Any]) -> None:
    model, given = tiny_model(), some_documents(count=2)
    with (
        MixingRecorder(model, llama_branches()) as once,
        MixingRecorder(model, llama_branches()) as twice,
    ):
        once.start_batch(given.ids)
        twice.start_batch(given.ids.flip(0))
        model.model.layers[0](model.model.embed_tokens(given.ids), position_embeddings=(
            torch.ones(1, 12, 8), torch.zeros(1, 12, 8)))  # fmt: skip
        once.start_batch(given.ids)
        twice.start_batch(given.ids)
        model(given.ids)
        once.end_batch()
        twice.end_batch()
    assert once.per_document.shape == (2, 3)
    assert once.per_document.tobytes() == twice.per_document.tobytes()
    fresh = MixingRecorder(model, llama_branches())
    with fresh:
        fresh.start_batch(given.ids)
        model(given.ids)
        fresh.end_batch()
    assert fresh.per_document.tobytes() == once.per_document.tobytes()


def test_a_recipe_for_another_model_is_an_error(tiny_model: Callable[..., Any]) -> None:
    model, given = tiny_model(), some_documents(count=1)
    with MixingRecorder(model, llama_branches()) as recorder:
        recorder.start_batch(given.ids)
        with pytest.raises(RuntimeError, match="did not reach the attention branch"):
            recorder.end_batch()


def test_several_target_tokens_do_not_count_as_document(
    tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    loaded, given = as_loaded(tiny_model()), some_documents()
    with_target, without = (MixingRecorder(loaded.model, llama_branches()) for _ in range(2))
    influence.measure(
        loaded, given, objective="target_logprob", target_ids=[3, 4, 5], recorders=[with_target]
    )
    influence.measure(loaded, given, recorders=[without])
    np.testing.assert_allclose(with_target.by_token, without.by_token, rtol=1e-6)
