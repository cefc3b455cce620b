from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lacuna.contract.errors import OutOfMemory
from workers.attention.kernels import KernelRecorder
from workers.documents import DocumentSet
from workers.influence import batching, influence
from workers.influence.batching import BatchPlan, MemoryEstimate
from workers.influence.mixing import MixingRecorder
from workers.instrument import inspect, model_pass
from workers.instrument.branches import AttentionBranch, HookPoint
from workers.models import loaded as memory
from workers.models.loaded import LoadedModel


def some_ids(count: int = 8, length: int = 100) -> torch.Tensor:
    return torch.randint(2, 300, (count, length), generator=torch.Generator().manual_seed(3))


@given(
    linear=st.floats(1.0, 1e7),
    quadratic=st.one_of(st.just(0.0), st.floats(1e-3, 1e4)),
    available=st.floats(1e3, 1e12),
)
def test_the_longest_document_fits_and_a_longer_one_does_not(
    linear: float, quadratic: float, available: float
) -> None:
    model = MemoryEstimate(linear, quadratic)
    longest = model.longest(available)
    assert model.bytes(longest) <= available * (1 + 1e-9)
    assert model.bytes(longest + 2) > available


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_two_short_passes_foretell_what_a_long_one_saves(
    implementation: str, tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    model = tiny_model()
    model.set_attn_implementation(implementation)
    loaded, ids = as_loaded(model), some_ids(1, 120)
    foretold = batching.estimate_memory(loaded, ids).bytes(120)
    assert foretold == pytest.approx(batching._saved_bytes(loaded, ids), rel=0.03)


def test_attention_that_is_not_fused_needs_quadratic_memory(
    tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    model = tiny_model()
    quadratic = {}
    for implementation in ("sdpa", "eager"):
        model.set_attn_implementation(implementation)
        quadratic[implementation] = batching.estimate_memory(as_loaded(model), some_ids()).quadratic
    assert quadratic["eager"] >= 3 * 4 * 4  # layers x heads x bytes of the softmax alone
    assert quadratic["sdpa"] < quadratic["eager"] / 3


def test_size_follows_from_the_length_alone_when_memory_is_plenty(
    tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    loaded = as_loaded(tiny_model())
    assert batching.plan_batches(loaded, some_ids(64, 128), 0) == BatchPlan(4)
    assert batching.plan_batches(loaded, some_ids(2, 128), 0) == BatchPlan(2)
    assert batching.plan_batches(loaded, some_ids(64, 128), 7) == BatchPlan(7)
    assert batching.plan_batches(loaded, some_ids(3, 128), 7) == BatchPlan(3)


def test_scarce_memory_lowers_it_then_spares_and_too_little_names_the_longest(
    tiny_model: Callable[..., Any],
    as_loaded: Callable[..., LoadedModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = as_loaded(tiny_model(num_hidden_layers=12))
    ids = some_ids(64, 100)
    one = batching.estimate_memory(loaded, ids).bytes(100)
    for documents, expected in (
        (8, BatchPlan(4)),
        (4, BatchPlan(2)),
        (2, BatchPlan(1)),
        (1, BatchPlan(2, True)),
    ):
        available = int(documents * one)
        monkeypatch.setattr(batching, "available_bytes", lambda _device, n=available: n)
        assert batching.plan_batches(loaded, ids, 0) == expected
    monkeypatch.setattr(batching, "available_bytes", lambda _device: int(one / 10))
    with pytest.raises(OutOfMemory, match="largest length that fits is about") as info:
        batching.plan_batches(loaded, ids, 0)
    assert info.value.field == "sequence_length"
    longest = int(info.value.detail.rsplit(" ", 1)[1])
    assert 1 < longest < 100
    assert batching.plan_batches(loaded, ids[:, :longest], 0).checkpointing
    with pytest.raises(OutOfMemory):
        batching.plan_batches(loaded, ids[:, : longest + 2], 0)


def test_forward_passes_need_one_layer_s_memory(
    tiny_model: Callable[..., Any],
    as_loaded: Callable[..., LoadedModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = as_loaded(tiny_model(num_hidden_layers=12))
    ids = some_ids(64, 100)
    one = batching.estimate_memory(loaded, ids).bytes(100)
    monkeypatch.setattr(batching, "available_bytes", lambda _device: int(2 * one))
    assert batching.plan_batches(loaded, ids, 0) == BatchPlan(1)
    forward = batching.plan_batches(loaded, ids, 0, gradients=False)
    assert forward.size >= 3
    assert not forward.checkpointing


def test_logits_and_the_sums_of_taps_count_too(
    tiny_model: Callable[..., Any],
    as_loaded: Callable[..., LoadedModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded, ids = as_loaded(tiny_model()), some_ids(8, 100)
    found = inspect(loaded.model)
    one = batching.estimate_memory(loaded, ids).bytes(100)
    monkeypatch.setattr(batching, "available_bytes", lambda _device: int(8 * one / 0.6))
    assert batching.plan_batches(loaded, ids, 8).size == 8
    keep = int(one / (7 * 4 * 300))  # their logits take as much as all the rest
    assert (
        batching.plan_batches(loaded, ids, 0, keep=keep).size
        == 4
        != batching.plan_batches(loaded, ids, 0).size
    )
    for detail in ("mean", "distance"):
        recorder = KernelRecorder(loaded.model, found, detail)
        with recorder:
            recorder.start_batch(ids[:1])
            loaded.model(input_ids=ids[:1], use_cache=False)
        kept = sum(
            value.nbytes
            for sums in recorder._sums.values()
            for value in vars(sums).values()
            if isinstance(value, torch.Tensor) and value.dim() > 1
        )
        block = 3 * 4 * 4 * 100**2
        assert recorder.held_bytes(100) == kept + block
    for share, spares in ((1.05, False), (0.95, True)):
        available = int(share * (one + recorder.held_bytes(100)) / 0.6)
        monkeypatch.setattr(batching, "available_bytes", lambda _device, n=available: n)
        assert batching.plan_batches(loaded, ids, 1, recorders=[recorder]).checkpointing is spares


class TestFailedAllocations:
    """Allocations of more than `fits` documents fail, as a full device's do."""

    def crowd(self, monkeypatch: pytest.MonkeyPatch, fits: int) -> list[int]:
        sizes: list[int] = []
        real = influence._argmax_probability

        def crowded(loaded: LoadedModel, ids: torch.Tensor) -> Any:
            sizes.append(len(ids))
            found = real(loaded, ids)  # hooks have seen the pass when memory runs out
            if len(ids) > fits:
                raise torch.OutOfMemoryError("full")
            return found

        monkeypatch.setattr(influence, "_argmax_probability", crowded)
        return sizes

    def test_the_batch_is_halved_and_nothing_counts_twice(
        self,
        tiny_model: Callable[..., Any],
        as_loaded: Callable[..., LoadedModel],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        loaded = as_loaded(tiny_model())
        given = DocumentSet(some_ids(8, 12), leading_bos=False, source="inline")
        branches = [
            AttentionBranch(
                HookPoint(f"model.layers.{t}.self_attn", "output", 0, 1.0),
                HookPoint(f"model.layers.{t}.input_layernorm", "input", 0, 1.0),
            )
            for t in range(3)
        ]
        calm_recorder, recorder = (
            MixingRecorder(loaded.model, branches),
            MixingRecorder(loaded.model, branches),
        )
        calm = influence.measure(loaded, given, batch_size=2, recorders=[calm_recorder])
        sizes = self.crowd(monkeypatch, fits=2)
        found = influence.measure(loaded, given, batch_size=8, recorders=[recorder])
        assert sizes == [8, 4, 2, 2, 2, 2]
        assert found.batch_size == 2
        np.testing.assert_array_equal(found.norms, calm.norms)
        np.testing.assert_array_equal(recorder.per_document, calm_recorder.per_document)

    @pytest.mark.parametrize("target", [1, 3])
    def test_memory_that_runs_out_late_is_made_up_for(
        self,
        target: int,
        tiny_model: Callable[..., Any],
        as_loaded: Callable[..., LoadedModel],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        loaded = as_loaded(tiny_model())
        given = DocumentSet(some_ids(8, 12), leading_bos=False, source="inline")
        found = inspect(loaded.model)
        sizes: list[int] = []
        real = model_pass.last_logits

        def late(model: Any, ids: torch.Tensor, *rest: Any, **options: Any) -> Any:
            logits = real(model, ids, *rest, **options)
            sizes.append(len(ids))
            if len(sizes) == 2:  # the recorders have counted the first batch, and seen the second
                raise torch.OutOfMemoryError("full")
            return logits

        def measure() -> tuple[Any, MixingRecorder, KernelRecorder]:
            recorders = (
                MixingRecorder(loaded.model, found.branches),
                KernelRecorder(loaded.model, found),
            )
            result = influence.measure(
                loaded,
                given,
                objective="target_logprob",
                target_ids=list(range(3, 3 + target)),
                batch_size=4,
                recorders=recorders,
            )
            return result, *recorders

        calm, calm_mixing, calm_kernels = measure()
        monkeypatch.setattr(model_pass, "last_logits", late)
        result, mixing, kernels = measure()
        assert sizes[:6] == [4, 4, 2, 2, 2, 2]
        np.testing.assert_allclose(result.norms, calm.norms, rtol=1e-5)
        np.testing.assert_allclose(mixing.per_document, calm_mixing.per_document, rtol=1e-5)
        np.testing.assert_allclose(mixing.by_token, calm_mixing.by_token, rtol=1e-5)
        assert kernels.result().documents == 8
        for one, other in zip(kernels.result().layers, calm_kernels.result().layers, strict=True):
            np.testing.assert_allclose(one.mean_kernel(), other.mean_kernel(), atol=1e-6)
            np.testing.assert_allclose(one.last_row, other.last_row, atol=1e-6)

    def test_one_document_that_does_not_fit_is_the_end(
        self,
        tiny_model: Callable[..., Any],
        as_loaded: Callable[..., LoadedModel],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        given = DocumentSet(some_ids(2, 50), leading_bos=False, source="inline")
        self.crowd(monkeypatch, fits=0)
        with pytest.raises(OutOfMemory, match="largest length that fits is about 49"):
            influence.measure(as_loaded(tiny_model()), given)

    @pytest.mark.parametrize(
        ("objective", "target"),
        [("argmax_probability", None), ("jacobian", None), ("target_logprob", [3, 4])],
    )
    def test_it_is_the_end_under_the_taps_of_a_job_too(
        self,
        objective: Any,
        target: list[int] | None,
        tiny_model: Callable[..., Any],
        as_loaded: Callable[..., LoadedModel],
    ) -> None:
        """The estimate in the sentence takes passes of other lengths, which no recorder may see."""
        loaded = as_loaded(tiny_model())
        found = inspect(loaded.model)

        def full(_module: Any, args: tuple[torch.Tensor, ...]) -> None:
            if args[0].shape[1] > 40:
                raise torch.OutOfMemoryError("full")

        loaded.model.model.layers[1].mlp.register_forward_pre_hook(full)
        recorders = (
            MixingRecorder(loaded.model, found.branches),
            KernelRecorder(loaded.model, found, "mean"),
        )
        given = DocumentSet(some_ids(2, 50), leading_bos=False, source="inline")
        with pytest.raises(OutOfMemory, match="largest length that fits is about 49"):
            influence.measure(
                loaded,
                given,
                objective=objective,
                target_ids=target,
                batch_size=1,
                recorders=recorders,
            )

    def test_one_document_that_fits_only_when_layers_are_computed_twice(
        self,
        tiny_model: Callable[..., Any],
        as_loaded: Callable[..., LoadedModel],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The plan's estimate was too low: the passes are taken again, and counted once."""
        loaded = as_loaded(tiny_model())
        found = inspect(loaded.model)
        given = DocumentSet(some_ids(3, 20), leading_bos=False, source="inline")

        def measure() -> tuple[Any, MixingRecorder, KernelRecorder]:
            recorders = (
                MixingRecorder(loaded.model, found.branches),
                KernelRecorder(loaded.model, found),
            )
            return influence.measure(loaded, given, batch_size=1, recorders=recorders), *recorders

        calm, calm_mixing, calm_kernels = measure()
        real = influence._argmax_probability
        passed: list[bool] = []

        def scarce(of: LoadedModel, ids: torch.Tensor) -> Any:
            result = real(of, ids)
            passed.append("forward" in vars(of.model.model.layers[0]))
            if len(passed) == 2:
                raise torch.OutOfMemoryError("full")
            return result

        monkeypatch.setattr(influence, "_argmax_probability", scarce)
        result, mixing, kernels = measure()
        assert passed == [False, False, True, True, True]
        np.testing.assert_array_equal(result.norms, calm.norms)
        np.testing.assert_array_equal(mixing.per_document, calm_mixing.per_document)
        for one, other in zip(kernels.result().layers, calm_kernels.result().layers, strict=True):
            np.testing.assert_array_equal(one.mean_kernel(), other.mean_kernel())


def test_documents_go_to_the_device_batch_by_batch(
    tiny_model: Callable[..., Any],
    as_loaded: Callable[..., LoadedModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved: list[int] = []
    real = torch.Tensor.to

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args and isinstance(args[0], torch.device) and self.dtype == torch.int64:
            moved.append(len(self))
        return real(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", to)
    batching.run_batches(
        as_loaded(tiny_model()), some_ids(7, 4), BatchPlan(3), lambda _first, _batch: None
    )
    assert moved == [3, 3, 1]


def test_other_failures_pass_through(
    tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    def broken(_first: int, _batch: torch.Tensor) -> None:
        raise RuntimeError("shape mismatch")

    with pytest.raises(RuntimeError, match="shape mismatch"):
        batching.run_batches(as_loaded(tiny_model()), some_ids(), BatchPlan(4), broken)


def test_container_limits_count(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 500000\ninactive_file 150000\n")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert memory.available_bytes(torch.device("cpu")) == 450_000
    (tmp_path / "memory.max").write_text("max\n")
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=123_456))
    assert memory.available_bytes(torch.device("cpu")) == 123_456
