"""One document's streams, binned kernels and cotangents against the same written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dense_kernels import head_kernels
from dense_rivals import bin_kernels
from tiny_families import WIDTH, build
from torch import Tensor

from lacuna.theory import binning
from workers.instrument import BranchReader, inspect
from workers.instrument.attention import BatchShape
from workers.instrument.capture import capturing
from workers.second_moment.streams import (
    BinnedKernelObserver,
    Streams,
    column_cotangents,
    run_to_last_update,
)

FAMILIES = ["gpt2", "llama", "bloom", "opt", "falcon_parallel", "granite", "gemma2", "openai_gpt"]


@pytest.mark.parametrize("family", FAMILIES)
def test_it_shows_what_the_reader_reads_and_stops_behind_the_last_site(family: str) -> None:
    model = build(family)
    branches = inspect(model).branches
    ids = torch.randint(3, 130, (2, 9), generator=torch.Generator().manual_seed(0))
    read: dict[int, tuple[Tensor, Tensor]] = {}
    seen: dict[tuple[str, int], Tensor] = {}
    with (
        torch.no_grad(),
        BranchReader(model, branches, lambda i, u, s: read.__setitem__(i, (s, u)) or None),
    ):
        model(input_ids=ids, use_cache=False)
    head_ran: list[bool] = []
    handle = model.get_output_embeddings().register_forward_hook(
        lambda *_: head_ran.append(True) or None
    )
    with torch.no_grad():
        run_to_last_update(
            model,
            branches,
            ids,
            lambda t, found: seen.__setitem__(("stream", t), found.clone()),
            lambda t, found: seen.__setitem__(("update", t), found.clone()),
        )
    handle.remove()
    assert not head_ran
    for t, (stream, update) in read.items():
        torch.testing.assert_close(seen["stream", t], stream)
        torch.testing.assert_close(seen["update", t], update)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_put_in_goes_on(family: str) -> None:
    """Streams of one document put into the pass of another make its updates."""
    model = build(family)
    branches = inspect(model).branches
    first, second = torch.randint(3, 130, (2, 1, 9), generator=torch.Generator().manual_seed(1))
    streams: list[Tensor] = []
    updates: list[Tensor] = []
    again: list[Tensor] = []
    with torch.no_grad():
        run_to_last_update(
            model,
            branches,
            first,
            lambda _t, found: streams.append(found.clone()),
            lambda _t, found: updates.append(found.clone()),
        )
        run_to_last_update(
            model,
            branches,
            second,
            lambda t, _found: streams[t],
            lambda _t, found: again.append(found.clone()),
        )
    for expected, found in zip(updates, again, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_model_is_left_without_hooks() -> None:
    model = build("llama")
    branches = inspect(model).branches
    ids = torch.ones(1, 4, dtype=torch.long)

    def fail(_t: int, _found: Tensor) -> None:
        raise KeyError("from a callback")

    with torch.no_grad(), pytest.raises(KeyError):
        run_to_last_update(model, branches, ids, fail, fail)
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


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
    for number, dense in enumerate(head_kernels(model, ids[None])):
        ours = watch.kernel(number)
        rival = bin_kernels(dense, bounds)
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


def test_a_column_is_the_gradient_of_a_one_token_prompt() -> None:
    """For a document of one token the column is the gradient itself."""
    model = build("gpt2")
    branches = inspect(model).branches
    ids = torch.tensor([[9]])
    streams = Streams([], [])
    with torch.no_grad():
        run_to_last_update(
            model,
            branches,
            ids,
            lambda _t, found: streams.stream.append(found[0].clone()),
            lambda _t, found: streams.update.append(found[0].clone()),
        )
    found = column_cotangents(model, branches, ids, streams, torch.Generator().manual_seed(3))
    read = torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(3))
    x = streams.stream[0][None].requires_grad_()
    hidden = x
    for block in model.transformer.h[:-1]:
        hidden = block(hidden)
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
    last = model.transformer.h[-1]
    end = hidden + last.attn(last.ln_1(hidden))[0]
    (gradient,) = torch.autograd.grad((end * read).sum(), x)
    torch.testing.assert_close(found.stream[0][0], gradient[0, 0] / gradient.norm())
    assert all(
        vectors.norm(dim=-1).sub(1).abs().max() < 1e-5 for vectors in found.stream + found.update
    )
