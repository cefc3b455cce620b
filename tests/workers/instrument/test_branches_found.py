"""Residual forms by hand: what is found where, on blocks whose wiring is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from workers.instrument import branches
from workers.instrument.branches import AttentionBranch, HookPoint
from workers.instrument.tracker import add, ratio, scale, track

WIDTH = 12


class Attention(nn.Module):
    def __init__(self, fused: bool = False) -> None:
        super().__init__()
        self.fused = fused
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.project(x)[:, None].chunk(3, -1)
        if self.fused:
            mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            scores = query @ key.transpose(-1, -2) / WIDTH**0.5
            hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            mixed = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1) @ value
        return self.out(mixed[:, 0])


class Block(nn.Module):
    """One residual form, chosen by name."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.attention, self.second = Attention(fused=form == "fused"), Attention()
        self.norm, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp, self.router = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 7)
        self.scales = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, x: Tensor) -> Tensor:  # noqa: PLR0912
        read = self.norm(x)
        match self.form:
            case "plain" | "fused":
                x = x + self.attention(read)
            case "multiplier":
                x = x + 0.25 * self.attention(read)
            case "scaled stream":
                x = 0.5 * x + self.attention(read)
            case "in place":
                x = x.clone().add_(self.attention(read), alpha=2)
            case "post norm":
                return self.norm(x + self.attention(x))
            case "sandwich":
                x = x + self.after(self.attention(read))
            case "parallel":
                return x + self.attention(read) + self.mlp(read)
            case "negative":
                x = self.attention(read) - x
            case "rescaled":
                x = self.scales * x + self.attention(read)
            case "differential":
                x = x + self.after(self.attention(read) - 0.3 * self.second(read))
            case "router":
                weights = torch.softmax(self.router(read), -1)
                x = x + self.attention(read)
                return x + weights[..., :1] * self.mlp(self.norm(x))
            case "side branch":
                return x + self.mlp(x + self.attention(read))
        if self.form == "rescaled twice":
            x = self.scales * x + self.attention(read)
            return self.scales * x + self.mlp(self.norm(x))
        return x + self.mlp(self.norm(x))


class Stack(nn.Module):
    def __init__(self, form: str, blocks: int = 2, rounds: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, WIDTH)
        self.blocks = nn.ModuleList(Block(form) for _ in range(blocks))
        self.rounds = rounds

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> Tensor:
        x = self.embed(input_ids)
        for _ in range(self.rounds):
            for block in self.blocks:
                x = block(x)
        return x


def written(form: str, **shape: int) -> branches.BranchSearch:
    ids = torch.arange(14).view(2, 7)
    return branches.find_branches(track(Stack(form, **shape), ids, WIDTH))


def recorders(branch: AttentionBranch) -> tuple[tuple[str, str, float], tuple[str, str, float]]:
    update, stream = branch.update, branch.stream
    return (
        (update.path, update.side, round(update.coefficient, 9)),
        (stream.path, stream.side, round(stream.coefficient, 9)),
    )


@pytest.mark.parametrize(
    ("form", "update", "stream"),
    [
        ("plain", ("attention", 1.0), 1.0),
        ("fused", ("attention", 1.0), 1.0),
        ("multiplier", ("attention", 0.25), 1.0),
        ("scaled stream", ("attention", 1.0), 0.5),
        ("in place", ("attention", 2.0), 1.0),
        ("post norm", ("attention", 1.0), 1.0),
        ("sandwich", ("after", 1.0), 1.0),
        ("parallel", ("attention", 1.0), 1.0),
        ("router", ("attention", 1.0), 1.0),
    ],
)
def test_forms(form: str, update: tuple[str, float], stream: float) -> None:
    found = written(form)
    assert found.problems == ()
    assert found.cores == len(found.branches) == 2
    for index, branch in enumerate(found.branches):
        where, factor = update
        (path, side, coefficient), (_, stream_side, stream_coefficient) = recorders(branch)
        assert (path, side, coefficient) == (f"blocks.{index}.{where}", "output", factor)
        assert (stream_side, stream_coefficient) == ("input", stream)
        assert branch.block == ("parallel" if form == "parallel" else "sequential")


def test_two_cores_may_feed_one_update() -> None:
    found = written("differential")
    assert found.cores == 4
    assert [branch.cores for branch in found.branches] == [(0, 1), (2, 3)]


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ("negative", "interpolated residual"),
        ("rescaled", "no module's input or output carries the attention update"),
        ("rescaled twice", "never added to the stream"),
        ("side branch", "not carried on"),
    ],
)
def test_undefined_mixing_has_a_reason(form: str, reason: str) -> None:
    found = written(form)
    assert found.branches == ()
    assert all(reason in problem for problem in found.problems)
    assert found.problems


def test_looped_layers_are_numbered_by_call() -> None:
    found = written("plain", rounds=3)
    assert [branch.update.path for branch in found.branches] == [
        "blocks.0.attention",
        "blocks.1.attention",
    ] * 3
    assert [branch.update.call for branch in found.branches] == [0, 0, 1, 1, 2, 2]
    assert {branch.update.calls for branch in found.branches} == {3}
    assert [branch.stream.call for branch in found.branches] == [0, 0, 1, 1, 2, 2]


def test_a_tap_reads_what_it_names() -> None:
    x, y = torch.zeros(2), torch.ones(2)
    assert HookPoint("m", "input", 1, 1.0).select((x, y), {}, None) is y
    assert HookPoint("m", "input", "h", 1.0).select((), {"h": x}, None) is x
    assert HookPoint("m", "output", None, 1.0).select((), {}, y) is y
    assert HookPoint("m", "output", 1, 1.0).select((), {}, (x, y)) is y


def test_algebra() -> None:
    total = add({0: 1.0, 1: 2.0}, {1: 1.0, 2: 1.0}, -2.0)
    assert total == {0: 1.0, 1: 0.0, 2: -2.0}
    assert scale({0: 1.0, 3: -2.0}, 0.5) == {0: 0.5, 3: -1.0}
    assert ratio({0: 1.0, 1: 2.0}, {0: 0.5, 1: 1.0}) == 2.0
    assert ratio({0: 1.0, 1: 2.0}, {0: 0.5, 1: 2.0}) is None
    assert ratio({0: 1.0}, {1: 1.0}) is None
    assert ratio({}, {}) is None
