"""Kernels watched in bins are the dense kernels' means."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dense_rivals import bin_kernels
from tiny_families import build

from lacuna.theory import binning
from workers.attention.kernels import document_kernels
from workers.instrument import inspect
from workers.instrument.attention import BatchShape
from workers.instrument.capture import capturing
from workers.second_moment.streams import BinnedKernelObserver


@pytest.mark.parametrize("family", ["llama", "bloom", "falcon_alibi", "mistral_window"])
@pytest.mark.parametrize("bins", [7, 30])
def test_bins_are_the_means_of_the_dense_kernels(family: str, bins: int) -> None:
    model = build(family)
    found = inspect(model)
    ids = torch.randint(3, 130, (30,), generator=torch.Generator().manual_seed(0))
    bounds = binning.edges(30, bins)
    watch = BinnedKernelObserver(torch.from_numpy(bounds))
    with torch.no_grad(), capturing(model, found.capture, watch, BatchShape(1, 30)):
        model(input_ids=ids[None], use_cache=False)
    for number, dense in enumerate(document_kernels(model, found, ids)):
        ours = watch.kernel(number)
        rival = bin_kernels(dense.astype(np.float64), bounds)
        assert watch.heads(number) == len(dense)
        np.testing.assert_allclose(ours.mass, rival.mass, atol=1e-5)
        value = torch.randn(len(bounds) - 1, len(dense), 3)
        mixed = watch.mix(number, value).numpy()
        share = rival.mass * np.diff(bounds) / np.diff(bounds)[:, None]
        np.testing.assert_allclose(mixed, np.einsum("hij,jhd->ihd", share, value), atol=1e-4)
        if bins == 30:
            assert ours.square is None
            continue
        assert ours.square is not None
        assert rival.square is not None
        assert ours.diagonal is not None
        assert rival.diagonal is not None
        np.testing.assert_allclose(ours.square, rival.square, atol=1e-5)
        np.testing.assert_allclose(ours.diagonal, rival.diagonal, atol=1e-5)
    assert watch.least_row_sum == pytest.approx(1, abs=1e-4)
