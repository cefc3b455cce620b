from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from workers.instrument import model_pass

IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])


class Bare(nn.Module):
    """The least that `model_pass` needs of a model; subclasses call the head in their own ways."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(9, 6)
        self.head = nn.Linear(6, 9, bias=False)
        self.calls: list[torch.Size] = []

    def get_input_embeddings(self) -> nn.Module:
        return self.table

    def get_output_embeddings(self) -> nn.Module | None:
        return self.head

    def read(self, input_ids: Tensor) -> Tensor:
        return self.table(input_ids).cumsum(dim=1)

    def forward(self, input_ids: Tensor) -> Any:  # takes neither use_cache nor logits_to_keep
        return self.answer(self.head(self.read(input_ids)))

    def answer(self, logits: Tensor) -> Any:
        self.calls.append(logits.shape)
        return SimpleNamespace(logits=logits)


class ByKeyword(Bare):
    def forward(self, input_ids: Tensor, **_options: Any) -> Any:
        return self.answer(self.head(input=self.read(input_ids)))


class Flattened(Bare):
    def forward(self, input_ids: Tensor) -> Any:
        return self.answer(self.head(self.read(input_ids).flatten(0, 1)).unflatten(0, (2, 4)))


class Tied(Bare):
    """Reads its table once more on the way, and scales the embeddings in place."""

    def forward(self, input_ids: Tensor) -> Any:
        found = self.table(input_ids)
        found *= 2.0
        found = found.cumsum(dim=1) + 0.0 * self.table(input_ids)
        return self.answer(self.head(found))


class Headless(Bare):
    def get_output_embeddings(self) -> nn.Module | None:
        return None


@pytest.mark.parametrize("kind", [Bare, ByKeyword, Flattened, Tied, Headless])
@pytest.mark.parametrize("keep", [1, 3])
def test_logits_are_the_last_of_all(kind: Callable[[], Any], keep: int) -> None:
    model = kind()
    expected = model(IDS).logits[:, -keep:]
    with model_pass.pass_hooks(model, keep=keep, gradients=True) as seen:
        found = model_pass.last_logits(model, IDS, seen, keep=keep)
    torch.testing.assert_close(found, expected)
    assert seen.leaf is not None
    assert seen.leaf.shape == (2, 4, 6)
    whole = kind in (Flattened, Headless)
    assert model.calls[-1] == (2, 4 if whole else keep, 9)
    assert (seen.hidden is None) == whole


@pytest.mark.parametrize("kind", [Bare, ByKeyword, Flattened, Tied, Headless])
def test_the_gradient_reaches_every_token(kind: Callable[[], Any]) -> None:
    model = kind()
    with model_pass.pass_hooks(model, keep=1, gradients=True) as seen:
        scores = model_pass.last_logits(model, IDS, seen, keep=1)[:, -1].sum()
    assert seen.leaf is not None
    (gradient,) = torch.autograd.grad(scores, seen.leaf)
    expected = model.head.weight.sum(dim=0) * (2.0 if kind is Tied else 1.0)
    torch.testing.assert_close(gradient, expected.expand(2, 4, 6))


def test_hooks_go_even_when_the_pass_fails() -> None:
    model = Bare()
    with (
        pytest.raises(IndexError),
        model_pass.pass_hooks(model, keep=1, gradients=True) as seen,  # type: ignore[arg-type]
    ):
        model_pass.last_logits(model, IDS + 100, seen, keep=1)  # type: ignore[arg-type]
    assert not model.table._forward_hooks
    assert not model.head._forward_pre_hooks


def test_precision() -> None:
    for given, kept in (
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ):
        assert model_pass.at_least_float32(torch.zeros(1, dtype=given)).dtype == kept
