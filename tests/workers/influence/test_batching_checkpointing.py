from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from workers.attention.kernels import KernelRecorder
from workers.documents import DocumentSet
from workers.influence import batching, influence
from workers.influence.batching import BatchPlan, decoder_layers, gradient_checkpointing
from workers.influence.mixing import MixingRecorder
from workers.instrument import model_pass
from workers.instrument.inspection import inspect
from workers.models.loaded import LoadedModel

FAMILIES = ["llama", "gpt2", "bloom", "gemma2", "mixtral"]


def some_documents(count: int = 3, length: int = 20) -> DocumentSet:
    ids = torch.randint(2, 300, (count, length), generator=torch.Generator().manual_seed(4))
    return DocumentSet(ids, leading_bos=False, source="random_tokens")


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_and_statistics_are_the_same(
    family: str,
    tiny_model: Callable[..., Any],
    as_loaded: Callable[..., LoadedModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded, given = as_loaded(tiny_model(family)), some_documents()
    found = inspect(loaded.model)
    results = []
    for plan in (BatchPlan(2), BatchPlan(2, checkpointing=True)):
        monkeypatch.setattr(batching, "plan_batches", lambda *_args, plan=plan, **_options: plan)
        mixing, kernels = (
            MixingRecorder(loaded.model, found.branches),
            KernelRecorder(loaded.model, found),
        )
        measured = influence.measure(loaded, given, recorders=[mixing, kernels])
        results.append((measured, mixing, kernels.result()))
    (plain, mixing, kernels), (thrifty, mixing_again, kernels_again) = results
    np.testing.assert_array_equal(thrifty.norms, plain.norms)
    np.testing.assert_array_equal(mixing_again.by_token, mixing.by_token)
    assert kernels_again.documents == kernels.documents == 3
    for one, other in zip(kernels.layers, kernels_again.layers, strict=True):
        assert one.weights is not None
        assert other.weights is not None
        np.testing.assert_array_equal(one.weights, other.weights)


@pytest.mark.parametrize("family", FAMILIES)
def test_less_is_kept_for_the_backward_pass(
    family: str, tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    loaded = as_loaded(tiny_model(family))
    assert len(decoder_layers(loaded.model)) == 3
    ids = some_documents(count=1).ids
    plain = batching._saved_bytes(loaded, ids)
    with gradient_checkpointing(loaded.model):
        assert batching._saved_bytes(loaded, ids) < plain / 4
    assert batching._saved_bytes(loaded, ids) == plain


def test_the_model_is_as_it_was_afterwards(tiny_model: Callable[..., Any]) -> None:
    model = tiny_model()
    before = {name: module.forward for name, module in model.named_modules()}
    with gradient_checkpointing(model):
        assert model.model.layers[0].forward != before["model.layers.0"]
    assert {name: module.forward for name, module in model.named_modules()} == before
    with contextlib.suppress(RuntimeError), gradient_checkpointing(model):
        raise RuntimeError("broken")
    assert {name: module.forward for name, module in model.named_modules()} == before


def test_a_model_without_layers_is_left_alone() -> None:
    assert decoder_layers(torch.nn.Linear(2, 2)) == []
    with gradient_checkpointing(torch.nn.Linear(2, 2)):
        pass


def test_scarce_memory_switches_it_on(
    tiny_model: Callable[..., Any],
    as_loaded: Callable[..., LoadedModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded, given = as_loaded(tiny_model(num_hidden_layers=12)), some_documents()
    plain = influence.measure(loaded, given)
    one = batching.estimate_memory(loaded, given.ids).bytes(20)
    monkeypatch.setattr(batching, "available_bytes", lambda _device: int(one))
    wrapped: list[bool] = []
    real = model_pass.last_logits

    def listen(model: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        wrapped.append("forward" in vars(model.model.layers[0]))
        return real(model, *args, **kwargs)

    monkeypatch.setattr(model_pass, "last_logits", listen)
    thrifty = influence.measure(loaded, given)
    assert wrapped[-1]
    np.testing.assert_allclose(thrifty.norms, plain.norms, rtol=1e-4)
