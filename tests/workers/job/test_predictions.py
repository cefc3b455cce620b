"""Predictions against dense products of eager kernels, with mixing coefficients made by hand."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "instrument"))
from tiny_families import HEADS, WIDTH, WINDOW, build

from lacuna.contract.profile_requests import DEFAULT_PREDICTIONS
from lacuna.theory.kernels import standard_slopes
from workers.attention.kernels import Detail, KernelRecorder, KernelStatistics
from workers.instrument import inspect
from workers.job import predictions

LENGTH = 24
LAMBDAS = np.array([0.2, 0.7, 0.4, 0.55])
FAMILIES = ["llama", "bloom", "mistral_window", "jamba"]
HEAD_WIDTH = WIDTH // HEADS
Scale = Literal["model", "raw"]


@pytest.fixture(autouse=True)
def alone(one_thread: None) -> None:
    """Tiny matrices gain nothing from more threads."""


@cache
def seen(family: str, detail: Detail = "mean") -> tuple[KernelStatistics, list[np.ndarray]]:
    """What the recorder kept, and eager kernels averaged over heads, [n, n] per layer."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(3, 131, (3, LENGTH), generator=generator)
    model, eager = build(family), build(family, "eager")
    with KernelRecorder(model, inspect(model), detail) as recorder, torch.no_grad():
        recorder.start_batch(ids)
        model(input_ids=ids, use_cache=False)
        recorder.end_batch()
        maps = eager(input_ids=ids, use_cache=False, output_attentions=True).attentions
    kept = [m.double().mean((0, 1)).numpy() for m in maps if m is not None]
    return recorder.result(), kept


def evidence(
    family: str, scale: Scale = "model", detail: Detail = "mean"
) -> predictions.PredictionInputs:
    found, _ = seen(family, detail)
    return predictions.PredictionInputs(LENGTH, LAMBDAS[: len(found.layers)], found, scale)


def test_every_name_but_the_costly_one_has_its_curve() -> None:
    assert set(predictions.BY_NAME) == set(DEFAULT_PREDICTIONS)


def theory(family: str, content: np.ndarray) -> np.ndarray:
    """Kernel [n, n] of mask, ALiBi slopes and a content logit per head [H], by its definition."""
    distance = np.arange(LENGTH)[:, None] - np.arange(LENGTH)[None, :]
    visible = (distance >= 0) & (distance < (WINDOW if family == "mistral_window" else LENGTH))
    slopes = standard_slopes(HEADS) if family == "bloom" else np.zeros(HEADS)
    heads = []
    for slope, diagonal in zip(slopes, content, strict=True):
        weights = np.exp(-slope * distance + diagonal * (distance == 0)) * visible
        heads.append(weights / weights.sum(axis=1, keepdims=True))
    return np.asarray(np.mean(heads, axis=0))


def last_row(kernels: list[np.ndarray], lambdas: np.ndarray) -> np.ndarray:
    """Of the product of (1 - lambda) I + lambda A over the layers, the first at the right."""
    whole = np.eye(LENGTH)
    for kernel, share in zip(kernels, lambdas, strict=True):
        whole = ((1 - share) * np.eye(LENGTH) + share * kernel) @ whole
    return np.asarray(whole[-1])


def by_hand(name: str, family: str, scale: Scale = "model") -> np.ndarray:
    found, eager = seen(family)
    count = len(found.layers)
    lambdas = LAMBDAS[:count]
    bare = [theory(family, np.zeros(HEADS))] * count
    gaps = [layer.diagonal - layer.off_diagonal for layer in found.layers]
    factor = HEAD_WIDTH**0.5 if scale == "raw" else 1.0  # these models divide q.k by its root
    full = [theory(family, factor * gap) for gap in gaps]
    plain = [np.tril(np.ones((LENGTH, LENGTH))) / np.arange(1, LENGTH + 1)[:, None]] * count
    return {
        "attention_only": lambda: last_row(bare, np.ones(count)),
        "half_residual": lambda: last_row(eager, np.full(count, 0.5)),
        "residual": lambda: last_row(bare, lambdas),
        "residual_content": lambda: last_row(full, lambdas),
        "measured_kernel": lambda: last_row(eager, lambdas),
        "cesaro": lambda: last_row(plain, np.full(count, lambdas.mean())),
        "causal_mask": lambda: last_row(plain, np.ones(count)),
        "residual_alone": lambda: last_row(plain, lambdas),
    }[name]()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", list(predictions.BY_NAME))
def test_predictions_are_dense_products(name: str, family: str) -> None:
    found = predictions.predict(name, evidence(family))
    np.testing.assert_allclose(found, by_hand(name, family), atol=3e-6)
    assert found.sum() == pytest.approx(1)


@pytest.mark.parametrize("family", FAMILIES)
def test_raw_content_is_not_divided_by_the_root_of_the_head_s_width(family: str) -> None:
    raw = predictions.predict("residual_content", evidence(family, "raw"))
    np.testing.assert_allclose(raw, by_hand("residual_content", family, "raw"), atol=3e-6)
    assert np.abs(raw - predictions.predict("residual_content", evidence(family))).max() > 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_forces_are_switched_on_in_turn(family: str) -> None:
    forces = predictions.forces(evidence(family))
    names = ["causal_mask", "residual_alone", "residual", "residual_content"]
    position = np.arange(LENGTH) / (LENGTH - 1)
    before = 0.5
    for force, name in zip(forces, names, strict=True):
        curve = by_hand(name, family)
        np.testing.assert_allclose(force.influence, curve, atol=3e-6)
        assert force.mean_position == pytest.approx(curve @ position, abs=1e-5)
        assert force.shift == pytest.approx(curve @ position - before, abs=1e-5)
        before = curve @ position
    assert [force.name for force in forces] == [
        "causal_mask", "residual", "positional_encoding", "content"
    ]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_the_depth_limit_is_judged_by_the_measured_kernels(family: str) -> None:
    _, eager = seen(family)
    lambdas = LAMBDAS[: len(eager)]
    found = predictions.collapse(evidence(family))
    curve = by_hand("measured_kernel", family)
    assert found.last_to_first == pytest.approx(curve[0], abs=1e-5)
    assert found.last_to_last == pytest.approx(curve[-1], abs=1e-5)
    assert found.lambda_sum == pytest.approx(lambdas.sum())
    off = [(1 - np.diag(kernel)).max() for kernel in eager]
    assert found.off_diagonal_sum == pytest.approx(float(lambdas @ off), abs=1e-4)
    assert not found.collapses


def test_evidence_that_is_missing_is_said() -> None:
    blind = predictions.PredictionInputs(LENGTH, LAMBDAS, None)
    for name in set(predictions.BY_NAME) - {"cesaro"}:
        with pytest.raises(predictions.Unavailable, match="could not be watched"):
            predictions.predict(name, blind)
    assert predictions.predict("cesaro", blind).sum() == pytest.approx(1)
    found, _ = seen("llama")
    mask: Any = type(found.layers[0].mask)("other", None, found.layers[0].mask.visible)
    layers = tuple(layer.__class__(**{**vars(layer), "mask": mask}) for layer in found.layers)
    odd = predictions.PredictionInputs(
        LENGTH, LAMBDAS, KernelStatistics(layers, found.documents, found.length, found.detail)
    )
    with pytest.raises(predictions.Unavailable, match="neither causal nor a sliding window"):
        predictions.predict("residual", odd)
    np.testing.assert_allclose(
        predictions.predict("measured_kernel", odd), by_hand("measured_kernel", "llama"), atol=3e-6
    )


def test_long_inputs_are_predicted_from_what_was_kept() -> None:
    near = predictions.predict("measured_kernel", evidence("llama", detail="distance"))
    assert np.abs(near - by_hand("measured_kernel", "llama")).sum() < 0.2
    same = predictions.predict("residual", evidence("llama", detail="distance"))
    np.testing.assert_allclose(same, by_hand("residual", "llama"), atol=1e-12)
