"""One layer's sums: what they allocate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from workers.attention.kernels import KernelSums
from workers.instrument.attention import AttentionCall, bias_of

LENGTH = 600


class Allocations(TorchDispatchMode):
    """The largest new tensor in bytes."""

    largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        known = {
            leaf.untyped_storage().data_ptr()
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, torch.Tensor)
        }
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage().data_ptr() not in known:
                self.largest = max(self.largest, leaf.untyped_storage().nbytes())
        return out


def call(length: int = LENGTH) -> AttentionCall:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 2, length, 4, generator=generator) for _ in range(2))
    return AttentionCall(0, query, key, 0.5)


def lower() -> torch.Tensor:
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril_()[None, None]


def test_a_plain_causal_mask_is_never_formed() -> None:
    with Allocations() as seen:
        plain = KernelSums(call(), "distance")
        plain.begin(call())
    assert seen.largest < LENGTH**2
    given = KernelSums(replace(call(), mask=lower()), "distance")
    assert plain.mask.kind == given.mask.kind == "causal"
    np.testing.assert_array_equal(plain.mask.visible, given.mask.visible)


def test_a_bias_is_read_from_two_of_its_rows() -> None:
    slope = torch.tensor([0.5, 0.25])[:, None, None]
    position = torch.arange(LENGTH)
    bias = (slope * (position - position[:, None]))[None]
    for mask in (None, lower()):
        with Allocations() as seen:
            found = bias_of(replace(call(), bias=bias, mask=mask))
        assert seen.largest < LENGTH**2
        assert found is not None
        np.testing.assert_allclose(found.slopes, slope.flatten())


def test_two_tokens_have_a_bias_and_one_has_none() -> None:
    slope = torch.tensor([0.5, 0.25])[:, None, None]
    position = torch.arange(2)
    two = replace(call(2), bias=(slope * (position - position[:, None]))[None])
    found = bias_of(two)
    assert found is not None
    np.testing.assert_allclose(found.slopes, slope.flatten())
    assert bias_of(replace(call(1), bias=torch.zeros(1, 2, 1, 1))) is None
