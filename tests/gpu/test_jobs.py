"""Whole jobs, and the models that are hard on a device, on CUDA."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parents[1] / "workers" / "instrument"))

from tiny_families import build

from lacuna.contract.errors import OutOfMemory
from lacuna.contract.profile_requests import Documents, ProfileRequest
from service.settings import Settings
from workers.attention.kernels import KernelRecorder
from workers.documents import DocumentSet
from workers.influence import batching, influence
from workers.influence.batching import BatchPlan
from workers.influence.mixing import MixingRecorder
from workers.instrument import describe_positions, inspect
from workers.job import ProfileHandler
from workers.models.loaded import LoadedModel
from workers.second_moment import moments

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda")
HARD = ["gemma2", "gpt_oss", "mixtral", "bloom", "openai_gpt", "falcon_alibi", "llama"]


class Context:
    """A job that nobody stops."""

    def progress(self, _share: float, _message: str) -> None:
        """Nobody looks."""

    def check(self) -> None:
        """Nobody stops it."""


def dressed(model: Any) -> LoadedModel:
    weights = model.get_input_embeddings().weight
    return LoadedModel(
        model=model,
        tokenizer=None,
        id="local:tiny",
        revision="0" * 40,
        config_digest="0" * 40,
        device=weights.device,
        dtype=weights.dtype,
        weights="pretrained",
        seed=None,
    )


def some_documents(count: int = 3, length: int = 32) -> DocumentSet:
    ids = torch.randint(3, 131, (count, length), generator=torch.Generator().manual_seed(1))
    return DocumentSet(ids, leading_bos=False, source="random_tokens")


def measured(model: Any, **options: Any) -> tuple[Any, ...]:
    """Norms, mixing, mean kernels and last rows."""
    found = inspect(model)
    recorders = MixingRecorder(model, found.branches), KernelRecorder(model, found, "mean")
    result = influence.measure(dressed(model), some_documents(), recorders=recorders, **options)
    layers = recorders[1].result().layers
    kernels = np.stack([layer.mean_kernel() for layer in layers])
    rows = np.stack([layer.last_row for layer in layers])
    return result.norms, recorders[0].per_document, kernels, rows


@pytest.mark.parametrize("objective", ["argmax_probability", "jacobian"])
def test_a_whole_job_in_bfloat16_gives_equal_bytes_twice(objective: Any, tmp_path: Path) -> None:
    models = tmp_path / "models"
    build("llama").save_pretrained(models / "tiny")
    request = ProfileRequest(
        model="local:tiny",
        sequence_length=100,
        objective=objective,
        documents=Documents(source="random_tokens", count=3),
        predictions=["residual", "second_moment"],
    )
    settings = Settings(data_dir=tmp_path / "data", model_dir=models, device="cuda")
    bodies = []
    for _ in range(2):
        handler = ProfileHandler(settings, lambda _id: None)
        bodies.append(handler(request, Context()).body)  # type: ignore[arg-type]
    assert bodies[0] == bodies[1]
    body = json.loads(bodies[0])
    assert body["request"]["dtype"] == "bfloat16"
    assert body["model"]["support"] == "full"
    assert "second_moment" in body["predictions"]


@pytest.mark.parametrize("family", HARD)
def test_statistics_and_gradients_are_those_of_the_cpu(family: str) -> None:
    there, here = measured(build(family).to(DEVICE)), measured(build(family))
    for one, other in zip(there, here, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-4 * np.abs(other).max())


@pytest.mark.parametrize("family", HARD)
def test_bfloat16_finds_the_instruments_of_float32(family: str) -> None:
    full, half = build(family), build(family).to(torch.bfloat16).to(DEVICE)
    expected, found = inspect(full), inspect(half)
    assert (found.level, found.capture) == (expected.level, expected.capture)
    assert found.other_mixers == expected.other_mixers
    assert describe_positions(half, found) == describe_positions(full, expected)


@pytest.mark.parametrize("family", HARD)
def test_equal_measurements_give_equal_bits(family: str) -> None:
    model = build(family).to(torch.bfloat16).to(DEVICE)
    for one, other in zip(measured(model), measured(model), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("family", ["bloom", "llama", "gemma2", "mixtral"])
def test_layers_computed_twice_change_nothing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(family).to(DEVICE)
    results = []
    for plan in (BatchPlan(3), BatchPlan(3, checkpointing=True)):
        monkeypatch.setattr(batching, "plan_batches", lambda *_args, plan=plan, **_options: plan)
        results.append(measured(model))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("family", ["llama", "bloom", "olmo2"])
def test_the_second_moment_is_that_of_the_cpu(family: str) -> None:
    curves = []
    for device in ("cpu", "cuda"):
        model = build(family).to(device)
        found = moments.predict(model, inspect(model), some_documents().ids, bins=12)
        assert found.reason is None
        curves.append(found.influence)
    np.testing.assert_allclose(curves[1], curves[0], rtol=1e-2)


def test_a_full_device_is_told_under_the_taps_of_a_job(make_full: Callable[[float], None]) -> None:
    model = build("llama", max_position_embeddings=8_192).to(DEVICE)
    found = inspect(model)
    recorders = MixingRecorder(model, found.branches), KernelRecorder(model, found, "distance")
    given = some_documents(1, 8_192)
    make_full(8e6)
    with pytest.raises(OutOfMemory, match="largest length that fits is about"):
        influence.measure(dressed(model), given, batch_size=1, recorders=recorders)


@pytest.fixture
def make_full() -> Any:
    """Allows only so many more bytes than are in use."""

    def limit(room: float) -> None:
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        share = (torch.cuda.memory_reserved() + room) / total
        torch.cuda.set_per_process_memory_fraction(share)

    yield limit
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()
