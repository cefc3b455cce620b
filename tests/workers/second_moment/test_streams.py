"""What the hooks show, and that putting it back changes nothing."""

from __future__ import annotations

import pytest
import torch
from tiny_families import build
from torch import Tensor

from workers.instrument import BranchReader, inspect
from workers.second_moment import streams

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
        streams.run_to_last_update(
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
        streams.run_to_last_update(
            model,
            branches,
            first,
            lambda _t, found: streams.append(found.clone()),
            lambda _t, found: updates.append(found.clone()),
        )
        streams.run_to_last_update(
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
        streams.run_to_last_update(model, branches, ids, fail, fail)
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
