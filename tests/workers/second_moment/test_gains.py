"""Gains against Jacobians of the branches written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_families import HEADS, LAYERS, WIDTH, build
from torch import Tensor

from workers.instrument import inspect
from workers.second_moment import gains, streams
from workers.second_moment.streams import Cotangents, Streams

COUNT = 6


def document(model: object, branches: object) -> tuple[Tensor, Streams]:
    ids = torch.randint(3, 130, (COUNT,), generator=torch.Generator().manual_seed(2))
    streams = Streams([], [])
    with torch.no_grad():
        streams.run_to_last_update(
            model,  # type: ignore[arg-type]
            branches,  # type: ignore[arg-type]
            ids[None],
            lambda _t, found: streams.stream.append(found[0].clone()),
            lambda _t, found: streams.update.append(found[0].clone()),
        )
    return ids[:, None], streams


def measured(family: str, cotangent: Tensor) -> tuple[object, Streams, gains.Gains]:
    model = build(family)
    branches = inspect(model).branches
    ids, streams = document(model, branches)
    gains = gains.measure(
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
