"""Gradients in a fixed order of sums, and what happens where there is none."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from workers.documents import DocumentSet
from workers.influence import influence
from workers.instrument import inspect
from workers.instrument.model_pass import deterministic_grad
from workers.models.loaded import LoadedModel
from workers.second_moment import moments


class Unordered(torch.autograd.Function):
    """Doubles; its backward pass refuses the deterministic mode, as some of torch's own do."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        if torch.are_deterministic_algorithms_enabled():
            raise RuntimeError("double_backward_cuda does not have a deterministic implementation")
        return 2 * gradient


def test_operations_without_a_fixed_order_are_told_once_and_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x = torch.ones(3, requires_grad=True)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            (found,) = deterministic_grad(Unordered.apply(x).sum(), [x])
    assert torch.equal(found, torch.full((3,), 2.0))
    assert len(caplog.records) == 1
    assert not torch.are_deterministic_algorithms_enabled()


def test_other_failures_pass_and_the_mode_is_left() -> None:
    x = torch.ones(3, requires_grad=True)
    y = (x * 2).sum()
    y.register_hook(lambda _g: (_ for _ in ()).throw(RuntimeError("shape mismatch")))
    with pytest.raises(RuntimeError, match="shape mismatch"):
        deterministic_grad(y, [x])
    assert not torch.are_deterministic_algorithms_enabled()


class Modes(TorchDispatchMode):
    """Whether sums in no fixed order, and backward passes, ran in the deterministic mode."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: list[bool] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name == "index_add_" or name.endswith("_backward"):
            self.sums.append(torch.are_deterministic_algorithms_enabled())
        return func(*args, **(kwargs or {}))


def test_every_measurement_is_taken_so(
    tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    model = tiny_model()
    found = inspect(model)
    ids = torch.randint(3, 130, (2, 20), generator=torch.Generator().manual_seed(0))
    given = DocumentSet(ids, leading_bos=False, source="inline")
    with Modes() as modes:
        influence.measure(as_loaded(model), given, objective="jacobian", probes=2)
        assert len(modes.sums) > 3
        assert moments.predict(model, found, ids, bins=8).reason is None
    assert all(modes.sums)
