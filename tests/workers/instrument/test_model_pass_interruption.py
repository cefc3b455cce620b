"""A pass that is broken off anywhere leaves the model as it was."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from workers.attention.kernels import KernelRecorder
from workers.documents import DocumentSet
from workers.influence import batching, influence
from workers.influence.batching import BatchPlan
from workers.influence.mixing import MixingRecorder
from workers.instrument import model_pass
from workers.instrument.inspection import inspect
from workers.instrument.model_pass import interruptible, throttled
from workers.models.loaded import LoadedModel
from workers.second_moment import moments

FAMILIES = ["llama", "gpt2", "bloom", "mixtral"]


class Stop(Exception):
    """Raised by the checks of these tests."""


@pytest.fixture(autouse=True)
def unthrottled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_pass.throttled, "__defaults__", (0.0,))


def some_documents(count: int = 3, length: int = 20) -> DocumentSet:
    ids = torch.randint(2, 300, (count, length), generator=torch.Generator().manual_seed(4))
    return DocumentSet(ids, leading_bos=False, source="random_tokens")


class Counted:
    """A check that raises at a given call; remembers whether that was in a backward pass."""

    def __init__(self, last: int | None = None) -> None:
        self.calls, self.last = 0, last
        self.backward: list[bool] = []

    def __call__(self) -> None:
        self.calls += 1
        self.backward.append(torch._C._current_graph_task_id() != -1)
        if self.calls == self.last:
            raise Stop


def hooks(model: nn.Module) -> int:
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._backward_hooks)
        for module in model.modules()
    )


def measured(loaded: LoadedModel, check: Callable[[], None]) -> tuple[Any, ...]:
    found = inspect(loaded.model)
    mixing, kernels = (
        MixingRecorder(loaded.model, found.branches),
        KernelRecorder(loaded.model, found),
    )
    result = influence.measure(
        loaded, some_documents(), batch_size=2, recorders=[mixing, kernels], check=check
    )
    return result.norms, mixing.by_token, [layer.weights for layer in kernels.result().layers]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("thrifty", [False, True])
def test_a_broken_off_measurement_leaves_the_model_as_it_was(
    family: str,
    thrifty: bool,
    tiny_model: Callable[..., Any],
    as_loaded: Callable[..., LoadedModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        batching, "plan_batches", lambda *_args, **_more: BatchPlan(2, checkpointing=thrifty)
    )
    loaded = as_loaded(tiny_model(family))
    counted = Counted()
    before = measured(loaded, counted)
    hooked, names = hooks(loaded.model), [set(vars(m)) for m in loaded.model.modules()]
    in_forward = counted.backward.index(True) // 2
    in_backward = counted.backward.index(True) + counted.backward.count(True) // 4
    late = counted.calls - 1
    assert not counted.backward[in_forward]
    assert counted.backward[in_backward]
    assert counted.backward[late]
    for call in (in_forward, in_backward, late):
        with pytest.raises(Stop):
            measured(loaded, Counted(call + 1))
        assert hooks(loaded.model) == hooked
        assert [set(vars(m)) for m in loaded.model.modules()] == names
        np.testing.assert_equal(measured(loaded, model_pass.no_check), before)


def test_a_broken_off_pass_keeps_no_memory(
    tiny_model: Callable[..., Any],
    as_loaded: Callable[..., LoadedModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = as_loaded(tiny_model("llama"))
    seen: list[weakref.ref[torch.Tensor]] = []
    whole = model_pass.last_logits

    def listen(*args: Any, **kwargs: Any) -> torch.Tensor:
        found = whole(*args, **kwargs)
        seen.append(weakref.ref(found))
        return found

    monkeypatch.setattr(model_pass, "last_logits", listen)
    counted = Counted()
    influence.measure(loaded, some_documents(1), check=counted)
    seen.clear()
    with pytest.raises(Stop):
        influence.measure(loaded, some_documents(1), check=Counted(counted.calls))
    gc.collect()
    assert len(seen) == 1
    assert seen[0]() is None


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_broken_off_second_moment_leaves_the_model_as_it_was(
    family: str, tiny_model: Callable[..., Any]
) -> None:
    model, ids = tiny_model(family), some_documents(2).ids
    found = inspect(model)
    counted = Counted()
    before = moments.predict(model, found, ids, check=counted).influence
    assert before is not None
    hooked = hooks(model)
    assert any(counted.backward)
    for call in (counted.calls // 4, counted.backward.index(True) + 1, counted.calls):
        with pytest.raises(Stop):
            moments.predict(model, found, ids, check=Counted(call))
        assert hooks(model) == hooked
        np.testing.assert_array_equal(moments.predict(model, found, ids).influence, before)


def test_every_layer_asks_in_both_directions(tiny_model: Callable[..., Any]) -> None:
    model = tiny_model("llama")
    counted = Counted()
    with interruptible(model, counted):
        leaf = model.get_input_embeddings()(some_documents(1).ids).detach().requires_grad_()
        model(inputs_embeds=leaf).logits.sum().backward()
    layers = model.config.num_hidden_layers
    assert counted.backward.count(False) >= layers
    assert counted.backward.count(True) >= layers


def test_a_throttled_check_is_called_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    counted = Counted()
    check = throttled(counted, 0.2)
    for _ in range(100):
        check()
        now[0] += 0.01
    assert counted.calls == 5
