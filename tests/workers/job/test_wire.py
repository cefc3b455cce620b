"""Arrays to wire models: what is computed on the way."""

from __future__ import annotations

import numpy as np
import pytest

from lacuna.evidence import aggregates
from workers.influence.influence import InfluenceResult
from workers.job import wire
from workers.job.measurement import Measurement
from workers.recall.needle import NeedleResult


def result(norms: np.ndarray, errors: np.ndarray | None) -> InfluenceResult:
    return InfluenceResult(norms, np.ones(len(norms)), errors, 1, 1.0)


def test_the_standard_error_is_the_spread_of_the_curve_over_probes() -> None:
    generator = np.random.default_rng(0)
    true = generator.lognormal(size=(5, 40))
    errors = 0.05 * true * generator.uniform(0.5, 1.5, size=(5, 40))
    found = Measurement(influence=result(true, errors), how="rms")
    main = aggregates.root_mean_square(true)
    told = wire.standard_error(found, main)
    drawn = [
        aggregates.root_mean_square(np.abs(true + errors * generator.standard_normal((5, 40))))
        for _ in range(3_000)
    ]
    np.testing.assert_allclose(told, np.std(drawn, axis=0), rtol=0.12)
    plain = Measurement(influence=result(true, None), how="mean")
    assert wire.standard_error(plain, main) is None


def test_retrieval_agrees_with_the_facts_own_tokens_and_not_with_their_first() -> None:
    values = np.array([-3.0, -2.0, -1.0])
    influence = np.repeat([0.1, 1.0, 2.0], 10)
    influence[0] = 5.0  # a spike on the first token of the first fact
    starts = np.array([[0.0, 10.0, 20.0]])
    told = wire.needle_curve(
        NeedleResult(
            depths=starts[0] / 30,
            positions=starts[0],
            log_probability=values,
            low=values,
            high=values,
            baseline=-9.0,
            by_fact=values[None],
            starts=starts,
            tokens=np.array([9.0]),
        ),
        influence,
    )
    assert told.spearman_with_influence == pytest.approx(1.0)
    assert (told.facts, told.baseline, told.position) == (1, -9.0, [0, 10, 20])
