from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest

from lacuna.contract.endpoints import Form
from lacuna.contract.errors import InternalError, InvalidRequest
from workers.recall import probes
from workers.recall.layout import Order
from workers.recall.measure import measure

CURVE = (0.5, 0.2, 0.1, 0.3, 0.6)
K = len(CURVE)


def _recall(number: int, depth: int, kind: str) -> float | None:
    return {"closed": 0.02, "alone": 0.9}.get(kind, CURVE[depth])


@pytest.mark.parametrize("form", get_args(Form))
@pytest.mark.parametrize("name", list(probes.PROBES))
def test_a_planted_curve_is_recovered(name: str, form: Form, planted: Callable[..., Any]) -> None:
    draw = probes.PROBES[name]
    reader = planted(draw(4, K, 0, 0), _recall, form=form, preamble=7)
    found = measure(reader, draw, 700, probe=name, groups=4, depths=K)
    np.testing.assert_allclose(found.probabilities, np.broadcast_to(CURVE, (4, K, K)))
    np.testing.assert_allclose(found.probability, CURVE)
    np.testing.assert_allclose(found.log_probability, np.log(CURVE))
    assert found.controls.floor == pytest.approx(0.02)
    assert found.controls.ceiling == pytest.approx(0.9)
    assert found.controls.repeat_difference == 0
    assert (np.diff(found.positions) > 0).all()
    assert found.starts.min() >= 7
    assert len(reader.asked) == 4 * K * K + 2 * 4 * K + 8 * K


@pytest.mark.parametrize("order", get_args(Order))
def test_where_the_question_stands_does_not_move_the_table(
    order: Order, planted: Callable[..., Any]
) -> None:
    reader = planted(probes.facts(3, K), _recall)
    found = measure(reader, probes.facts, 600, probe="facts", groups=3, depths=K, order=order)
    np.testing.assert_allclose(found.probability, CURVE)
    assert found.order == order


def test_expected_probability_is_not_the_exponential_of_the_mean_logarithm(
    planted: Callable[..., Any],
) -> None:
    levels = (0.05, 0.9, 0.5, 0.01)
    reader = planted(probes.facts(4, K), lambda number, depth, kind: levels[number])
    found = measure(reader, probes.facts, 600, probe="facts", groups=4, depths=K)
    np.testing.assert_allclose(found.probability, np.mean(levels))
    assert found.log_probability is not None
    np.testing.assert_allclose(found.log_probability, np.mean(np.log(levels)))


def test_a_group_with_a_question_unanswered_is_left_out(planted: Callable[..., Any]) -> None:
    def some(number: int, depth: int, kind: str) -> float | None:
        return None if (number, depth, kind) == (1, 2, "asked") else _recall(number, depth, kind)

    reader = planted(probes.facts(3, K), some)
    found = measure(reader, probes.facts, 600, probe="facts", groups=3, depths=K)
    assert (found.groups, found.lost) == (2, 1)
    assert found.numbers.tolist() == [0, 2]
    np.testing.assert_allclose(found.probability, CURVE)
    nothing = planted(probes.facts(2, K), lambda *_: None)
    with pytest.raises(InternalError, match="no group"):
        measure(nothing, probes.facts, 600, probe="facts", groups=2, depths=K)


def test_the_repeat_finds_a_reader_that_wavers(planted: Callable[..., Any]) -> None:
    calls = iter(range(10_000))
    draw = np.random.default_rng(0)
    noise = draw.uniform(-0.1, 0.1, 10_000)
    reader = planted(probes.facts(8, K), lambda *_: 0.5 + noise[next(calls)])
    found = measure(reader, probes.facts, 600, probe="facts", groups=8, depths=K)
    # The mean distance of two uniform numbers on an interval of length 0.2 is a third of it.
    assert found.controls.repeated.shape == (8 * K, 2)
    assert found.controls.repeat_difference == pytest.approx(0.2 / 3, rel=0.3)


def test_hits_have_no_logarithm(planted: Callable[..., Any]) -> None:
    reader = planted(probes.facts(2, K), lambda n, d, kind: float(d % 2), rung="text")
    found = measure(reader, probes.facts, 600, probe="facts", groups=2, depths=K)
    assert found.log_probability is None
    np.testing.assert_allclose(found.probability, [0, 1, 0, 1, 0])


def test_more_groups_join_those_that_were_measured(planted: Callable[..., Any]) -> None:
    def noisy(number: int, depth: int, kind: str) -> float | None:
        return 0.5 + 0.4 * math.sin(number + depth)

    groups = probes.facts(6, K)
    whole = measure(planted(groups, noisy), probes.facts, 600, probe="facts", groups=6, depths=K)
    reader = planted(groups, noisy)
    one = measure(reader, probes.facts, 600, probe="facts", groups=4, depths=K)
    two = measure(reader, probes.facts, 600, probe="facts", groups=2, depths=K, first=4)
    both = one.joined(two)
    np.testing.assert_allclose(both.probabilities, whole.probabilities)
    np.testing.assert_allclose(both.starts, whole.starts)
    assert (both.topics, both.phrasings) == (whole.topics, whole.phrasings)
    assert both.controls.closed_book.shape == (6, K)
    with pytest.raises(InvalidRequest, match="share groups"):
        both.joined(two)
    other = measure(reader, probes.facts, 500, probe="facts", groups=1, depths=K, first=5)
    with pytest.raises(InvalidRequest, match="length"):
        one.joined(other)


def test_questions_about_a_context_stand_in_a_row(planted: Callable[..., Any]) -> None:
    reader = planted(probes.facts(3, K), _recall)
    measure(reader, probes.facts, 600, probe="facts", groups=3, depths=K)
    asked = [q.prompt for q in reader.asked[: 3 * K * K] if isinstance(q.prompt, str)]
    contexts = [prompt.partition("\n\nQuestion:")[0] for prompt in asked]
    for i in range(0, len(contexts), K):
        assert len(set(contexts[i : i + K])) == 1
    assert len(set(contexts)) == 3 * K
