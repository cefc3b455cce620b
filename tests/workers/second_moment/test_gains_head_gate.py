"""A head let through alone is that head's share of the branch, in any family."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_families import HEADS, build

from workers.instrument import BranchReader, inspect
from workers.second_moment import moments
from workers.second_moment.gains import HeadGate

FAMILIES = ["gpt2", "bloom", "mpt", "gpt_neo", "xglm", "falcon_alibi", "falcon_new", "llama", "phi"]


def updates(family: str, heads: torch.Tensor | None, implementation: str | None = None) -> dict:
    """First attention update [B, d] of one-token prompts."""
    model = build(family, implementation)
    branch = inspect(model).branches[0]
    found: dict[int, torch.Tensor] = {}
    ids = torch.full((HEADS + 2, 1), 7)
    reader = BranchReader(model, [branch], lambda i, update, _stream: found.setdefault(i, update))
    with torch.no_grad(), reader:
        if heads is None:
            model(input_ids=ids, use_cache=False)
        else:
            with HeadGate(heads) as gate:
                model(input_ids=ids, use_cache=False)
            found[-1] = torch.tensor(gate.calls)
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_heads_add_up_to_the_branch(family: str, implementation: str) -> None:
    if implementation == "sdpa" and family in ("bloom", "mpt", "gpt_neo", "xglm"):
        pytest.skip("the family has no fused attention")
    gates = torch.tensor([*range(HEADS), -1, HEADS])  # each head, all of them, none
    found = updates(family, gates, implementation)
    whole = updates(family, None, implementation)[0].reshape(HEADS + 2, -1)
    update = found[0].reshape(HEADS + 2, -1)
    bias = update[-1]  # no head: what the output projection adds by itself
    torch.testing.assert_close(update[-2], whole[-2])
    torch.testing.assert_close(
        (update[:HEADS] - bias).sum(0), whole[0] - bias, rtol=1e-4, atol=1e-5
    )
    assert (update[:HEADS] - bias).norm(dim=-1).min() > 1e-3
    assert int(found[-1]) == inspect(build(family, implementation)).cores


def test_a_router_is_not_an_attention_head() -> None:
    found = updates("mixtral", torch.tensor([*range(HEADS), -1, HEADS]))
    assert int(found[-1]) == inspect(build("mixtral")).cores


def fused(value: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(value, value, value)


def eager(value: torch.Tensor) -> torch.Tensor:
    weights = torch.nn.functional.softmax(value @ value.transpose(-1, -2), dim=-1)
    return torch.matmul(torch.nn.functional.dropout(weights, 0.1, training=False), value)


def flattened(value: torch.Tensor) -> torch.Tensor:
    weights = (value @ value.transpose(-1, -2)).softmax(-1).view(-1, 1, 1)
    return torch.bmm(weights, value.reshape(-1, 1, 5)).view(value.shape)


@pytest.mark.parametrize("attention", [fused, eager, flattened])
def test_the_value_is_the_mix_and_the_gradient_is_the_tokens_own(attention: Any) -> None:
    value = torch.randn(3, HEADS, 1, 5, generator=torch.Generator().manual_seed(0))
    value.requires_grad_()
    mixed = torch.full((3, HEADS, 5), 2.0)
    with HeadGate(torch.tensor([-1, 0, 1]), lambda number, values: mixed * (number + 1)):
        out = attention(value)
    torch.testing.assert_close(out.detach(), mixed[:, :, None])
    (gradient,) = torch.autograd.grad(out.sum(), value)
    expected = torch.zeros(3, HEADS)
    expected[0], expected[1, 0], expected[2, 1] = 1, 1, 1
    torch.testing.assert_close(gradient[:, :, 0].mean(-1), expected)


def test_wide_heads_that_share_keys() -> None:
    """Beyond 256 wide, transformers packs a single query's heads along the axis of queries."""
    changes = {"head_dim": 288, "num_hidden_layers": 2}
    ids = torch.randint(3, 130, (2, 12), generator=torch.Generator().manual_seed(0))
    fused, eager = (
        moments.predict(model, inspect(model), ids)
        for model in (build("llama", how, **changes) for how in ("sdpa", "eager"))
    )
    assert fused.reason is None
    assert eager.influence is not None
    np.testing.assert_allclose(fused.influence, eager.influence, rtol=1e-3)
