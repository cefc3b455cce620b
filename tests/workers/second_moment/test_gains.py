"""Gains against Jacobians of the branches written out; a head let through alone is that head."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_families import HEADS, LAYERS, WIDTH, build
from torch import Tensor

from workers.instrument import BranchReader, inspect
from workers.second_moment import moments
from workers.second_moment.gains import Gains, HeadGate, measure
from workers.second_moment.streams import Cotangents, Streams, run_to_last_update

COUNT = 6


def document(model: object, branches: object) -> tuple[Tensor, Streams]:
    ids = torch.randint(3, 130, (COUNT,), generator=torch.Generator().manual_seed(2))
    streams = Streams([], [])
    with torch.no_grad():
        run_to_last_update(
            model,  # type: ignore[arg-type]
            branches,  # type: ignore[arg-type]
            ids[None],
            lambda _t, found: streams.stream.append(found[0].clone()),
            lambda _t, found: streams.update.append(found[0].clone()),
        )
    return ids[:, None], streams


def measured(family: str, cotangent: Tensor) -> tuple[object, Streams, Gains]:
    model = build(family)
    branches = inspect(model).branches
    ids, streams = document(model, branches)
    gains = measure(
        model,
        branches,
        ids,
        streams,
        Cotangents([cotangent[None]] * LAYERS, [cotangent[None]] * LAYERS),
        heads=HEADS,
        gram_tokens=torch.arange(COUNT),
        mix=None,
        apart_from_rows=False,
        probes=1,
        generator=torch.Generator().manual_seed(0),
        check=lambda: None,
    )
    return model, streams, gains


def unit(seed: int = 5) -> Tensor:
    v = torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed))
    return v / v.norm()


def test_value_path_of_llama_head_by_head() -> None:
    v = unit()
    model, streams, gains = measured("llama", v)
    assert gains.gram is not None
    for t, layer in enumerate(model.model.layers):  # type: ignore[attr-defined]

        def values(x: Tensor, layer: torch.nn.Module = layer) -> Tensor:
            value = layer.self_attn.v_proj(layer.input_layernorm(x))
            return value.view(2, -1).repeat_interleave(HEADS // 2, 0)

        out = layer.self_attn.o_proj.weight.view(WIDTH, HEADS, -1)
        paths = np.zeros((COUNT, HEADS + 1, WIDTH))
        paths[:, 0] = v.numpy()
        for j in range(COUNT):
            x = streams.stream[t][j]
            jacobian = torch.autograd.functional.jacobian(values, x)  # [H, d_h, d]
            paths[j, 1:] = torch.einsum("d,dhk,hke->he", v, out, jacobian).numpy()
        draw = np.linalg.norm(paths[:, 1:].sum(1), axis=-1)
        np.testing.assert_allclose(gains.draw[t], draw, rtol=1e-4)
        paths[:, 1:] /= draw[:, None, None]
        gram = np.einsum("jad,jbd->ab", paths, paths) / COUNT
        np.testing.assert_allclose(gains.gram[t], gram, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_the_rest_of_the_layer_is_identity_and_mlp(family: str) -> None:
    """Sequential: the MLP reads stream + update; parallel: the stream."""
    v = unit()
    model, streams, gains = measured(family, v)
    layers = model.model.layers if family == "llama" else model.gpt_neox.layers  # type: ignore[attr-defined]
    for t in range(LAYERS - 1):
        layer, outgoing = layers[t], streams.stream[t + 1]
        u = outgoing / outgoing.norm(dim=-1, keepdim=True)
        facing = v - u * (u @ v)[:, None]
        pulled = torch.zeros(COUNT, WIDTH)
        for j in range(COUNT):
            at = streams.stream[t][j]
            if family == "llama":
                at = at + streams.update[t][j]
            jacobian = torch.autograd.functional.jacobian(
                lambda x, layer=layer: layer.mlp(layer.post_attention_layernorm(x)), at
            )
            pulled[j] = facing[j] + facing[j] @ jacobian
        size = facing.norm(dim=-1)
        expected = 1 + (pulled @ pulled.T - facing @ facing.T) / torch.outer(size, size)
        np.testing.assert_allclose(gains.local[t], expected.numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "family", ["gpt2", "bloom", "mpt", "opt", "falcon_new", "granite", "cohere", "minicpm3"]
)
def test_heads_add_up_whatever_the_family(family: str) -> None:
    """The Gram matrix is taken where the whole value path has gain 1, so its heads sum to 1."""
    _, _, gains = measured(family, unit())
    assert gains.gram is not None
    assert gains.gram.shape == (LAYERS, HEADS + 1, HEADS + 1)
    np.testing.assert_allclose(gains.gram[:, 1:, 1:].sum((1, 2)), 1, rtol=1e-3)
    np.testing.assert_allclose(gains.gram[:, 0, 0], 1, rtol=1e-4)
    assert np.linalg.eigvalsh(gains.gram).min() > -1e-6


# --- one head at a time ---

GATED_FAMILIES = [
    "gpt2",
    "bloom",
    "mpt",
    "gpt_neo",
    "xglm",
    "falcon_alibi",
    "falcon_new",
    "llama",
    "phi",
]


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


@pytest.mark.parametrize("family", GATED_FAMILIES)
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
