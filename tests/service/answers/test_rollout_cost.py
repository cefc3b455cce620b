"""The estimate against the clock: what it charges follows what is done."""

from __future__ import annotations

import time
from typing import Any

import pytest

from lacuna.contract.rollouts import RolloutRequest
from service.answers import rollout_cost
from service.answers.rollout_inputs import Inputs, resolve
from service.answers.rollouts import Curves

_OFF_BY = 8
"""Shared machines are several times slower than quiet ones, caches larger or smaller."""


def inputs(**body: Any) -> Inputs:
    return resolve(RolloutRequest.model_validate(body))


@pytest.mark.parametrize(
    "body",
    [
        {"layers": 150, "heads": 1},
        {"layers": 150, "heads": 1, "gains": {"mlp": 1.0}},
        {"layers": 10, "heads": 60, "kernel": {"type": "alibi", "slopes": "geometric"}},
        {"layers": 4, "heads": 1, "sequence_length": 700},
        {"layers": 1_000, "heads": 1, "sequence_length": 1},
        {"layers": 8, "heads": 16, "sequence_length": 4_000, "kernel": {"type": "alibi"}},
    ],
)
def test_second_moment_against_the_clock(body: dict[str, Any]) -> None:
    one = inputs(**body)
    Curves(inputs(layers=1, sequence_length=8, gains={"mlp": 1.0})).of("second_moment")  # imports
    start = time.process_time()
    Curves(one).of("second_moment")
    took = time.process_time() - start
    assert took / _OFF_BY < rollout_cost.second_moment(one) / 1e9 < took * _OFF_BY


@pytest.mark.parametrize(
    "body",
    [
        {"layers": 100, "sequence_length": 16_384},
        {"layers": 16, "heads": 16, "sequence_length": 16_384, "kernel": {"type": "alibi"}},
        {
            "layers": 10,
            "heads": 50,
            "sequence_length": 2_048,
            "kernel": {"type": "alibi"},
            "mask": {"type": "full"},
        },
        {"layers": 3_000, "sequence_length": 1, "kernel": {"type": "alibi", "slopes": [0.1]}},
        {"sequence_length": 1, "kernel": {"type": "alibi", "slopes": [[1.0]] * 2_000}},
    ],
)
def test_rollouts_against_the_clock(body: dict[str, Any]) -> None:
    one = inputs(**body)
    start = time.process_time()
    curves = Curves(one)
    curves.of("attention_only")
    curves.after_each_force()
    took = time.process_time() - start
    assert took / _OFF_BY < rollout_cost.rollouts(one, 2) / 1e9 < took * _OFF_BY


def test_equal_heads_are_charged_once() -> None:
    same = inputs(layers=4, heads=64, predictions=["second_moment"])
    alone = inputs(layers=4, heads=1, predictions=["second_moment"])
    different = inputs(layers=4, heads=64, kernel={"type": "alibi", "slopes": "geometric"})
    assert rollout_cost.second_moment(same) == rollout_cost.second_moment(alone)
    assert rollout_cost.second_moment(different) > 10 * rollout_cost.second_moment(alone)
