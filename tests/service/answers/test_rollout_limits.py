"""Sizes that are refused at once, and the deadline by a clock of the test's own."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lacuna.contract.errors import TooLarge
from lacuna.contract.rollouts import RolloutRequest
from service.answers import rollouts
from service.answers.rollout_inputs import Inputs, resolve
from service.answers.rollout_limits import (
    MAX_PER_LAYER,
    MAX_SECONDS,
    Deadline,
    check_kernel,
    check_size,
)


def inputs(**body: Any) -> Inputs:
    return resolve(RolloutRequest.model_validate({"bins": 1, **body}))


def clock(step: float) -> Callable[[], float]:
    """Every look at it is `step` seconds later."""
    return itertools.count(step=step).__next__


def compute(step: float, **body: Any) -> Callable[[], float]:
    """Compute by such a clock; returns it."""
    ticking = clock(step)
    rollouts.compute(RolloutRequest.model_validate(body), ticking)
    return ticking


def test_a_deadline_passes_when_its_seconds_have() -> None:
    now = 100.0
    deadline = Deadline(lambda: now)
    deadline.check()
    now += MAX_SECONDS
    deadline.check()
    now += 0.01
    with pytest.raises(
        TooLarge, match=f"limit of {MAX_SECONDS:g} seconds: lower `sequence_length`"
    ):
        deadline.check()


@pytest.mark.parametrize("layers", [40, 80])
def test_time_is_looked_at_before_every_layer_of_every_curve(layers: int) -> None:
    """`attention_only`, `residual`, the closed form, and two of the forces; then the collapse."""
    ticking = compute(1e-9, layers=layers, sequence_length=8)
    looks = ticking() / 1e-9
    assert looks == pytest.approx(5 * layers + 3, abs=1)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"kernel": {"type": "alibi"}, "heads": 4},
        {"kernel": {"type": "alibi"}, "mask": {"type": "full"}},
        {"kernel": {"type": "distance", "bias": [0.0, 1.0]}},
        {"kernel": {"type": "alibi", "slopes": [[0.1 * k] for k in range(50)]}},
        {"predictions": ["cesaro"]},
        {"predictions": ["half_residual"], "content": {"diagonal": 1.0}},
    ],
)
def test_a_rollout_that_takes_too_long_is_ended(body: dict[str, Any]) -> None:
    request = {"layers": 50, "sequence_length": 8, **body}
    with pytest.raises(TooLarge, match="limit of 10 seconds: lower") as ended:
        compute(MAX_SECONDS / 40, **request)
    assert ended.value.field == "sequence_length"
    compute(MAX_SECONDS / 2_000, **request)


@pytest.mark.parametrize("mlp", [0.0, 1.0])
def test_where_the_second_moment_takes_the_time_it_is_named(mlp: float) -> None:
    request = {
        "layers": 50,
        "sequence_length": 8,
        "predictions": ["second_moment"],
        "gains": {"mlp": mlp},
    }
    with pytest.raises(TooLarge, match="10 seconds: leave out `second_moment`") as ended:
        compute(MAX_SECONDS / 40, **request)
    assert ended.value.field == "predictions"
    with_mlp = MAX_SECONDS / 90  # forth and back; the rollouts behind it end later
    if mlp:
        with pytest.raises(TooLarge, match="leave out `second_moment`"):
            compute(with_mlp, **request)
    else:
        with pytest.raises(TooLarge, match="lower `sequence_length`"):
            compute(with_mlp, **request)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"layers": 65_536, "sequence_length": 1_048_576}, r"`sequence_length` x `layers` is 6.87"),
        (
            {"layers": 32, "sequence_length": 1_048_576,
             "kernel": {"type": "alibi", "slopes": [0.0] * 64}},
            r"`sequence_length` x `heads` is 6.71e\+07, above the limit of 4e\+07",
        ),
        (
            {"layers": 1_000, "heads": 1_000, "sequence_length": 16_384,
             "kernel": {"type": "alibi"}},
            r"x `heads` x `layers` is 1.64e\+10, above the limit of 1e\+10",
        ),
        (
            {"layers": 2, "heads": 50, "sequence_length": 16_384,
             "kernel": {"type": "distance", "bias": [0.0] * 16_384}},
            r"x 64 \(for the logits of `kernel.bias`\) is 5.24e\+07",
        ),
        (
            {"layers": 9_600, "sequence_length": 1_024,
             "kernel": {"type": "measured", "matrices": [[[1.0]]]}},
            "`sequence_length` squared x `layers`",
        ),
    ],
)  # fmt: skip
def test_hopeless_sizes_are_refused_at_once(body: dict[str, Any], said: str) -> None:
    with pytest.raises(TooLarge, match=said) as refused:
        check_size(inputs(**body))
    assert refused.value.field == "sequence_length"


def with_slopes(layers: int) -> Inputs:
    return inputs(sequence_length=1, kernel={"type": "alibi", "slopes": [[1.0]] * layers})


def with_content(layers: int) -> Inputs:
    return inputs(
        sequence_length=1_024,
        heads=1_000,
        layers=layers,
        content={"diagonal": [0.5] * layers},
        kernel={"type": "distance", "bias": [0.0] * 16_384},
    )


@pytest.mark.parametrize(("build", "most"), [(with_slopes, 1_525), (with_content, 48)])
def test_kernels_of_very_many_layers_do_not_fill_the_memory(
    build: Callable[[int], Inputs], most: int
) -> None:
    check_size(build(most))
    with pytest.raises(TooLarge, match=f"at most {most} layers") as refused:
        check_size(build(most + 1))
    assert refused.value.field == "layers"


HEADS = [[0.01 * layer + 0.1 * head for head in range(112)] for layer in range(70)]


@pytest.mark.parametrize(
    "body",
    [
        {"layers": 32, "heads": 32, "sequence_length": 1_048_576, "kernel": {"type": "alibi"}},
        {"layers": 32, "heads": 1_024, "sequence_length": 1_048_576},
        {"architecture": "bloom-176b", "sequence_length": 131_072},
        {"architecture": "mistral-7b-v0.1", "sequence_length": 1_048_576},
        {"layers": 70, "heads": 112, "kernel": {"type": "alibi"}, "content": {"diagonal": HEADS}},
        {"layers": 512, "sequence_length": 1_048_576},
    ],
)
def test_long_prompts_and_large_models_are_within_the_limits(body: dict[str, Any]) -> None:
    one = inputs(**body)
    check_kernel(one)
    check_size(one)


@pytest.mark.parametrize(
    "body",
    [
        {"kernel": {"type": "alibi"}, "mask": {"type": "full"}},
        {"kernel": {"type": "window", "window": 8, "slopes": "geometric"}},
        {"kernel": {"type": "distance", "bias": [0.0, -1.0]}},
    ],
)
def test_a_layer_of_the_largest_size_takes_seconds(body: dict[str, Any]) -> None:
    """Measured on a twentieth of it."""
    heads = 5 if body["kernel"]["type"] == "distance" else 20
    one = inputs(layers=1, heads=heads, sequence_length=MAX_PER_LAYER // 20 // 20, **body)
    check_size(one)
    (kernel,) = one.kernels(lambda: None, content=False)
    row = kernel.apply(one.uniform().apply(np.ones(one.length) / one.length))
    start = time.process_time()
    kernel.apply(row)
    assert 20 * (time.process_time() - start) < 40
