"""The measurements on a CUDA device, against the same on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from lacuna.contract.errors import OutOfMemory
from lacuna.contract.profile_requests import Documents, ProfileRequest
from workers import documents
from workers.documents import DocumentSet
from workers.influence import batching, influence
from workers.influence.mixing import MixingRecorder
from workers.instrument.inspection import inspect
from workers.models.loading import LoadedModel, LoadOptions, load
from workers.recall import probes
from workers.recall.measure import measure as measure_recall
from workers.recall.weights_reader import WeightsReader

pytestmark = pytest.mark.gpu

PRESET = "preset:smollm2-135m"


@pytest.fixture
def on(tmp_path: Any) -> Iterator[Callable[..., LoadedModel]]:
    """The preset with random weights on a device; TF32 off, so that float32 means it."""
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False

    def make(device: Any, dtype: Any = "float32") -> LoadedModel:
        request = ProfileRequest(model=PRESET, weights="random", dtype=dtype)
        return load(request, LoadOptions(data_dir=tmp_path, device=device))

    yield make
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.cuda.empty_cache()


def texts(loaded: LoadedModel, count: int = 4, length: int = 128) -> DocumentSet:
    spec = Documents(source="random_tokens", count=count)
    return documents.build(spec, loaded, length, seed=0)


def test_random_weights_are_those_of_the_cpu(on: Callable[..., LoadedModel]) -> None:
    for one, other in zip(on("cpu").model.parameters(), on("cuda").model.parameters(), strict=True):
        assert torch.equal(one, other.cpu())


@pytest.mark.parametrize("objective", ["argmax_probability", "jacobian"])
def test_float32_agrees_with_the_cpu(objective: Any, on: Callable[..., LoadedModel]) -> None:
    results = {}
    for device in ("cpu", "cuda"):
        loaded = on(device)
        recorder = MixingRecorder(loaded.model, inspect(loaded.model).branches)
        found = influence.measure(
            loaded, texts(loaded), objective=objective, probes=2, recorders=[recorder]
        )
        results[device] = (found.norms, recorder.per_document)
    for one, other in zip(results["cpu"], results["cuda"], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-2)
        assert np.abs(one - other).sum() < 1e-3 * one.sum()


def test_auto_is_bfloat16_and_near_float32(on: Callable[..., LoadedModel]) -> None:
    half, full = on("cuda", "auto"), on("cuda", "float32")
    assert half.dtype == torch.bfloat16
    p, q = (influence.measure(loaded, texts(loaded)).norms.sum(axis=0) for loaded in (half, full))
    assert np.abs(p / p.sum() - q / q.sum()).sum() / 2 < 0.05


def test_batches_do_not_matter(on: Callable[..., LoadedModel]) -> None:
    loaded = on("cuda")
    one = influence.measure(loaded, texts(loaded), batch_size=1)
    all_ = influence.measure(loaded, texts(loaded), batch_size=4)
    np.testing.assert_allclose(one.norms, all_.norms, rtol=1e-2)


def test_a_full_device_halves_the_batch(on: Callable[..., LoadedModel]) -> None:
    loaded = on("cuda")
    given = texts(loaded, count=64, length=512)
    need = batching.estimate_memory(loaded, given.ids).bytes(512)
    total = torch.cuda.get_device_properties(0).total_memory
    held = torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction(min(1.0, (held + 20 * need) / total))
    try:
        found = influence.measure(loaded, given, batch_size=64)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert found.batch_size < 64
    assert found.norms.shape == (64, 512)


def test_one_document_that_does_not_fit_names_the_longest(on: Callable[..., LoadedModel]) -> None:
    loaded = on("cuda")
    given = texts(loaded, count=1, length=4_096)
    held = torch.cuda.memory_allocated()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((held + 200e6) / total)
    try:
        with pytest.raises(OutOfMemory, match="largest length that fits is about"):
            influence.measure(loaded, given, batch_size=1)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_recall_runs_on_the_device(smollm2_on_cuda: LoadedModel) -> None:
    reader = WeightsReader(smollm2_on_cuda)
    found = measure_recall(reader, probes.facts, 256, probe="facts", groups=4, depths=3)
    assert (found.probability > found.controls.floor).all()


@pytest.fixture
def smollm2_on_cuda(tmp_path: Any) -> LoadedModel:
    pytest.importorskip("gguf", reason="the demo model cannot be converted")
    request = ProfileRequest(model="demo:smollm2-135m-instruct", dtype="float32")
    return load(request, LoadOptions(data_dir=tmp_path, device="cuda"))
