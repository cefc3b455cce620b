from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny_families import build

from lacuna.theory import kernels, rollout
from workers.attention.kernels import KernelRecorder
from workers.attention.statistics import MarginKernel, fit_margins, measured_kernel
from workers.instrument import inspect

F64 = NDArray[np.float64]


def margins(kernel: F64) -> tuple[F64, F64]:
    """(distance, first) of a dense kernel [H, n, n], the slow way."""
    heads, n, _ = kernel.shape
    distance = np.zeros((heads, n))
    for d in range(n - 1):
        distance[:, d] = np.mean([kernel[:, i, i - d] for i in range(d + 1, n)], axis=0)
    return distance, kernel[:, :, 0]


def random_kernel(n: int, heads: int, seed: int) -> F64:
    logits = np.random.default_rng(seed).normal(scale=2, size=(heads, n, n))
    logits[:, np.triu(np.ones((n, n), dtype=bool), 1)] = -np.inf
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True))


@settings(deadline=None, max_examples=40)
@given(n=st.integers(1, 40), heads=st.integers(1, 3), seed=st.integers(0, 1000))
def test_has_the_margins_of_any_kernel(n: int, heads: int, seed: int) -> None:
    distance, first = margins(random_kernel(n, heads, seed))
    dense = fit_margins(distance, first, steps=5000, tolerance=1e-9).dense()
    again = margins(dense)
    np.testing.assert_allclose(dense.sum(-1), 1, atol=1e-9)
    assert (dense >= 0).all()
    np.testing.assert_allclose(again[1], first, atol=1e-12)
    np.testing.assert_allclose(again[0], distance, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("window", [None, 7])
def test_recovers_a_distance_kernel_exactly(window: int | None) -> None:
    """ALiBi's kernel is of the fitted form, so two margins say everything about it."""
    n = 50
    kernel = kernels.alibi(n, kernels.standard_slopes(4), window=window).dense()
    found = fit_margins(*margins(kernel), steps=5000, tolerance=1e-12)
    np.testing.assert_allclose(found.dense(), kernel, atol=1e-7)


@settings(deadline=None, max_examples=40)
@given(n=st.integers(1, 40), seed=st.integers(0, 1000))
def test_apply_is_the_dense_product(n: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    kernel = MarginKernel(
        generator.random((3, n)), 0.5 * generator.random((3, n)), 0.5 + generator.random((3, n))
    )
    row = generator.normal(size=n)
    np.testing.assert_allclose(kernel.dense().mean(0).sum(-1), 1, atol=1e-12)
    np.testing.assert_allclose(kernel.apply(row), row @ kernel.dense().mean(0), atol=1e-10)
    mass = (1 - np.diagonal(kernel.dense().mean(0))).max()
    assert kernel.off_diagonal_mass() == pytest.approx(mass, abs=1e-12)
    assert kernel.length == n
    assert kernel.heads == 3


def test_heads_that_never_look_at_themselves() -> None:
    distance, first = np.array([[0.0, 1.0, 0.0]]), np.array([[1.0, 1.0, 0.0]])
    dense = fit_margins(distance, first).dense()[0]
    np.testing.assert_allclose(dense, [[1, 0, 0], [1, 0, 0], [0, 1, 0]])


@pytest.mark.parametrize("family", ["llama", "mistral_window", "bloom", "gpt_oss"])
def test_long_inputs_predict_like_short_ones(family: str) -> None:
    """The rollout of the fitted kernels stays close to that of the kernels themselves."""
    model = build(family)
    found = inspect(model)
    ids = torch.randint(3, 131, (4, 48), generator=torch.Generator().manual_seed(0))
    mixing, curves = np.full(4, 0.4), []
    for detail in ("mean", "distance"):
        with KernelRecorder(model, found, detail) as recorder, torch.no_grad():
            recorder.start_batch(ids)
            model(input_ids=ids, use_cache=False)
        layers = [measured_kernel(layer) for layer in recorder.result().layers]
        curves.append(rollout.rollout(layers, mixing))
    assert np.abs(np.cumsum(curves[0] - curves[1])).mean() < 5e-3
