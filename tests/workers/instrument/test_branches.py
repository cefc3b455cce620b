from __future__ import annotations

import pytest
import torch
from layer_formulas import FORMULAS, from_formula
from tiny_families import build
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from workers.instrument import AttentionBranch, BranchReader, HookPoint, inspect
from workers.instrument.branches import layer_numbers


def norms(
    model: nn.Module, branches: tuple[AttentionBranch, ...], ids: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """(|A|, |X|) per branch and token, float64, as the hooks show them."""
    found: dict[int, tuple[Tensor, Tensor]] = {}

    def on_branch(index: int, update: Tensor, stream: Tensor) -> None:
        branch = branches[index]
        found[index] = (
            update.double().norm(dim=-1).reshape(ids.shape) * branch.update.coefficient,
            stream.double().norm(dim=-1).reshape(ids.shape) * branch.stream.coefficient,
        )

    with BranchReader(model, branches, on_branch), torch.no_grad():
        model(input_ids=ids, use_cache=False)
    return [found[index] for index in range(len(branches))]


@pytest.mark.parametrize("family", FORMULAS)
def test_equals_the_layers_formula(family: str, ids: Tensor) -> None:
    model = build(family)
    expected = from_formula(family, model, ids)
    found = norms(model, inspect(model).branches, ids)
    assert len(found) == len(expected)
    for (update, stream), (x, a, error) in zip(found, expected, strict=True):
        assert error < 1e-5, "the formula is not this layer's"
        size, stream_size = a.double().norm(dim=-1), x.double().norm(dim=-1)
        mixing = update / (update + stream)
        torch.testing.assert_close(mixing, size / (size + stream_size), rtol=0, atol=1e-6)
        torch.testing.assert_close(stream, stream_size, rtol=1e-5, atol=0)


class Shared(nn.Module):
    """One block run three times: each call has a stream and an update of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, x: Tensor, checkpointed: bool = False) -> Tensor:
        for _ in range(3):
            x = checkpoint(self.step, x, use_reentrant=False) if checkpointed else self.step(x)
        return x

    def step(self, x: Tensor) -> Tensor:
        return x + self.mix(x)


SHARED_BRANCHES = tuple(
    AttentionBranch(
        update=HookPoint("mix", "output", None, 1.0, call, calls=3),
        stream=HookPoint("mix", "input", 0, 1.0, call, calls=3),
    )
    for call in range(3)
)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_shared_layers_are_told_apart_by_call(checkpointed: bool) -> None:
    torch.manual_seed(0)
    model = Shared()
    seen: list[tuple[int, Tensor]] = []
    with BranchReader(model, SHARED_BRANCHES, lambda i, _a, x: seen.append((i, x))):
        for start in (torch.zeros(2, 4), torch.ones(2, 4)):
            seen.clear()
            model(start.requires_grad_(), checkpointed).sum().backward()
            assert [index for index, _ in seen] == [0, 1, 2]
            x = start
            for _, stream in seen:
                torch.testing.assert_close(stream, x)
                x = x + nn.functional.linear(x, model.mix.weight, model.mix.bias)


def test_leaves_no_hook_behind() -> None:
    model = build("llama")
    branches = inspect(model).branches
    before = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    with pytest.raises(KeyError), BranchReader(model, branches, lambda *_: None):
        raise KeyError
    after = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    assert before == after == 0


@pytest.mark.parametrize(
    ("family", "expected"),
    [("jamba", [1, 3]), ("llama", [0, 1, 2, 3]), ("gpt2", [0, 1, 2, 3]), ("bloom", [0, 1, 2, 3])],
)
def test_layers_are_numbered_as_in_the_model(family: str, expected: list[int]) -> None:
    assert layer_numbers(inspect(build(family)).branches) == expected


def test_layers_without_a_number_are_counted() -> None:
    branches = [
        AttentionBranch(HookPoint(path, "output", 0, 1.0), HookPoint(path, "input", 0, 1.0))
        for path in ("a", "b")
    ]
    assert layer_numbers(branches) == [0, 1]
