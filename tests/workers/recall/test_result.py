from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from workers.recall import probes
from workers.recall.measure import measure
from workers.recall.result import Recall, densities

K = 4


def _measured(
    planted: Callable[..., Any],
    curve: tuple[float, ...],
    groups: int = 24,
    sd: float = 0.05,
    level: float = 0.1,
) -> Recall:
    noise = np.random.default_rng(1).normal(0, sd, (groups, K))
    levels = np.random.default_rng(2).normal(0, level, groups)

    def recall(number: int, depth: int, kind: str) -> float | None:
        if kind != "asked":
            return 0.01 if kind == "closed" else 0.9
        return float(np.clip(curve[depth] + levels[number] + noise[number, depth], 0, 1))

    reader = planted(probes.facts(groups, K), recall)
    return measure(reader, probes.facts, 500, probe="facts", groups=groups, depths=K)


def test_the_density_is_that_of_each_facts_own_tokens() -> None:
    influence = np.array([8.0, 1.0, 3.0, 0.0, 2.0, 2.0, 5.0, 1.0, 1.0, 1.0])
    starts = np.array([[[0.0, 4.0], [0.0, 5.0]]])
    tokens = np.array([[3.0, 2.0]])
    whole = influence[1:].sum() / 9  # token 0 is nobody's
    first = np.mean([(1 + 3) / 2, 1.0]) / whole
    second = np.mean([(2 + 2 + 5) / 3, (2 + 5) / 2]) / whole
    np.testing.assert_allclose(densities(influence, starts, tokens), [[first, second]])
    np.testing.assert_allclose(densities(np.ones(10), starts, tokens), 1.0)
    # A fact that ends behind the curve has the density of its last tokens.
    late = densities(influence, starts + 8.0, tokens)
    assert late[0, 1] == pytest.approx(np.mean([3 / 3, 2 / 2]) / whole)


def test_a_spike_at_token_0_moves_no_density(planted: Callable[..., Any]) -> None:
    found = _measured(planted, (0.5, 0.3, 0.3, 0.5), groups=2)
    curve = np.random.default_rng(0).exponential(size=500)
    spiked = np.concatenate([[1000.0], curve[1:]])
    np.testing.assert_allclose(found.density(spiked), found.density(curve))


def test_density_is_linear_in_the_shares_of_documents(planted: Callable[..., Any]) -> None:
    found = _measured(planted, (0.5, 0.3, 0.3, 0.5), groups=3)
    norms = np.random.default_rng(0).exponential(size=(5, 500))
    norms[:, 0] = 0.0
    shares = norms / norms.sum(axis=1, keepdims=True)
    each = np.mean([found.density(row) for row in norms], axis=0)
    np.testing.assert_allclose(found.density(shares.mean(axis=0)), each)


def test_verdicts(planted: Callable[..., Any]) -> None:
    assert _measured(planted, (0.6, 0.3, 0.3, 0.6)).flatness().verdict == "varies"
    flat = _measured(planted, (0.5,) * K, sd=0.02).flatness()
    assert flat.verdict == "flat"
    assert flat.curve is not None
    assert _measured(planted, (0.5, 0.4, 0.4, 0.5), groups=8).flatness().verdict == "undecided"
    assert _measured(planted, (-1.0,) * K).flatness().verdict == "floor"
    assert _measured(planted, (0.98,) * K, sd=0.004, level=0.002).flatness().verdict == "ceiling"


def test_a_control_that_nobody_could_read_judges_nothing(planted: Callable[..., Any]) -> None:
    def recall(number: int, depth: int, kind: str) -> float | None:
        return None if kind == "closed" else 0.5

    reader = planted(probes.facts(16, K), recall)
    found = measure(reader, probes.facts, 500, probe="facts", groups=16, depths=K)
    assert np.isnan(found.controls.closed_book).all()
    assert found.flatness().verdict in ("flat", "undecided")
