"""What a profile says of measured influence."""

from __future__ import annotations

import numpy as np

from lacuna.evidence import aggregates
from workers.influence import influence
from workers.influence.influence import InfluenceResult


def test_the_standard_error_is_the_spread_of_the_curve_over_probes() -> None:
    generator = np.random.default_rng(0)
    true = generator.lognormal(size=(5, 40))
    errors = 0.05 * true * generator.uniform(0.5, 1.5, size=(5, 40))
    main = aggregates.root_mean_square(true)
    found = InfluenceResult(true, np.ones(5), errors, batch_size=1, seconds=1.0)
    told = influence.standard_error(found, main)
    drawn = [
        aggregates.root_mean_square(np.abs(true + errors * generator.standard_normal((5, 40))))
        for _ in range(3_000)
    ]
    np.testing.assert_allclose(told, np.std(drawn, axis=0), rtol=0.12)
    wire, curve, draws = influence.measured_to_wire(found, "rms")
    assert wire.standard_error == told
    np.testing.assert_array_equal(curve, main)
    assert draws is not None
    assert draws.shape == (influence.DRAWS, 40)
    assert influence.measured_to_wire(found, "mean")[0].standard_error is None
    one_probe = InfluenceResult(true, np.ones(5), None, batch_size=1, seconds=1.0)
    assert influence.standard_error(one_probe, main) is None
