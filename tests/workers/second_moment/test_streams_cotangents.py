"""A column against the gradient written out."""

from __future__ import annotations

import torch
from tiny_families import WIDTH, build

from workers.instrument import inspect
from workers.second_moment import streams
from workers.second_moment.streams import Streams


def test_a_column_is_the_gradient_of_a_one_token_prompt() -> None:
    """For a document of one token the column is the gradient itself."""
    model = build("gpt2")
    branches = inspect(model).branches
    ids = torch.tensor([[9]])
    streams = Streams([], [])
    with torch.no_grad():
        streams.run_to_last_update(
            model,
            branches,
            ids,
            lambda _t, found: streams.stream.append(found[0].clone()),
            lambda _t, found: streams.update.append(found[0].clone()),
        )
    found = streams.column_cotangents(model, branches, ids, streams, torch.Generator().manual_seed(3))
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
