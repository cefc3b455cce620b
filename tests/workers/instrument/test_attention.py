from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workers.instrument.attention import AttentionCall, feed, grouped_scores, split_mask


def dense(call: AttentionCall) -> Tensor:
    """The definition, whole matrices at once, float64."""
    key = call.key.repeat_interleave(call.heads // call.key.shape[1], 1)
    scores = call.scaling * (call.query.double() @ key.double().mT)
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.bias is not None:
        scores = scores + call.bias
    if call.mask is not None:
        scores = scores.masked_fill(~call.mask, -math.inf)
    elif call.causal:
        future = torch.ones(call.length, call.keys, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    if call.sink is not None:
        sink = call.sink.double().reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sink], -1)
    return torch.softmax(scores, -1)[..., : call.keys]


def some_call(n: int, heads: int, groups: int, seed: int = 0) -> AttentionCall:
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(2, heads, n, 8, generator=generator)
    key = torch.randn(2, groups, n, 8, generator=generator)
    return AttentionCall(0, query, key, scaling=0.35)


class Gather:
    def __init__(self) -> None:
        self.begun = 0
        self.rows_seen: list[tuple[int, Tensor]] = []

    def begin(self, call: AttentionCall) -> None:
        self.begun += 1

    def rows(self, call: AttentionCall, start: int, probabilities: Tensor) -> None:
        self.rows_seen.append((start, probabilities))


@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(1, 70),
    heads=st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1)]),
    mask=st.sampled_from(["causal", "full", "window", "bias", "bias per head"]),
    softcap=st.sampled_from([None, 2.0]),
    sinks=st.booleans(),
)
def test_blocks_add_up_to_the_definition(
    n: int, heads: tuple[int, int], mask: str, softcap: float | None, sinks: bool
) -> None:
    call = some_call(n, *heads)
    call.softcap = softcap
    row = torch.arange(n)
    distance = row[:, None] - row
    if mask == "full":
        call.causal = False
    elif mask == "window":
        call.mask = ((distance >= 0) & (distance < 5))[None, None]
    elif mask.startswith("bias"):
        per_head = heads[0] if mask == "bias per head" else 1
        call.bias = -torch.rand(1, per_head, 1, 1) * distance
    if sinks:
        call.sink = torch.linspace(-1, 1, heads[0])
    gathered = Gather()
    feed(gathered, call)
    assert gathered.begun == 1
    whole = torch.zeros(2, heads[0], n, n)
    for start, weights in gathered.rows_seen:
        whole[:, :, start : start + weights.shape[2], : weights.shape[3]] = weights
    torch.testing.assert_close(whole.double(), dense(call), rtol=1e-5, atol=1e-6)


def test_shared_keys_need_no_repetition() -> None:
    call = some_call(9, heads=6, groups=2)
    expected = call.query @ call.key.repeat_interleave(3, 1).mT
    torch.testing.assert_close(grouped_scores(call.query, call.key, 2.0), 2 * expected)


@pytest.mark.parametrize("masked", [-math.inf, torch.finfo(torch.float32).min, -10_000.0])
def test_additive_masks(masked: float) -> None:
    causal = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]
    additive = torch.zeros(1, 1, 5, 5).masked_fill(~causal, masked)
    visible, bias = split_mask(additive, 5)
    assert visible is not None
    assert torch.equal(visible, causal)
    assert bias is None
    slopes = torch.tensor([0.5, 0.25]).view(1, 2, 1, 1)
    alibi = slopes * torch.arange(5.0) - 2
    visible, bias = split_mask(additive + alibi, 5)
    assert visible is not None
    assert torch.equal(visible, causal), "one mask for all heads"
    assert bias is not None
    assert split_mask(None, 5) == (None, None)
    visible, bias = split_mask(causal, 5)
    assert visible is not None
    assert torch.equal(visible, causal)
    assert bias is None


def test_double_precision_stays() -> None:
    call = some_call(5, 2, 2)
    call = AttentionCall(0, call.query.double(), call.key.double(), 0.35)
    weights = call.probabilities(0, 5)
    assert weights.dtype == torch.float64
    torch.testing.assert_close(weights, dense(call), rtol=1e-12, atol=1e-14)
