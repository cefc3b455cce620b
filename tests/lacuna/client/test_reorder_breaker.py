"""The circuit breaker, with a clock that tests move."""

from __future__ import annotations

import copy
import pickle

from lacuna.client.reorder import Breaker


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_it_opens_after_failures_in_a_row_only() -> None:
    breaker = Breaker(failures=3, clock=Clock())
    for _ in range(5):
        breaker.failed()
        breaker.failed()
        breaker.succeeded()
    assert breaker.may_try()
    for _ in range(3):
        assert breaker.may_try()
        breaker.failed()
    assert not breaker.may_try()


def test_one_call_tries_after_a_while() -> None:
    clock = Clock()
    breaker = Breaker(failures=1, seconds=30, clock=clock)
    breaker.failed()
    clock.now = 29.9
    assert not breaker.may_try()
    clock.now = 30.0
    assert breaker.may_try()
    assert not breaker.may_try()  # one at a time
    breaker.failed()
    clock.now = 59.0
    assert not breaker.may_try()
    clock.now = 61.0
    assert breaker.may_try()
    breaker.succeeded()
    assert breaker.may_try()
    assert breaker.may_try()


def test_copies_start_afresh() -> None:
    breaker = Breaker(failures=1)
    breaker.failed()
    assert copy.deepcopy(breaker).may_try()
    assert pickle.loads(pickle.dumps(breaker)).may_try()
    assert not breaker.may_try()
