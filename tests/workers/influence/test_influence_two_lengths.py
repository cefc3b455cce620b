"""Profiles measured at two lengths: reading one at the other's length, with anchored ends."""

from __future__ import annotations

import numpy as np
import pytest

from lacuna.contract.profile_requests import Documents
from lacuna.evidence import aggregates
from lacuna.theory import agreement
from lacuna.theory.curve import cumulative
from workers import documents
from workers.influence import influence
from workers.models.loaded import LoadedModel


@pytest.mark.slow
def test_anchored_ends_are_nearer_to_the_measurement_than_plain_stretching(
    smollm2: LoadedModel,
) -> None:
    profile = {}
    for length, count in ((64, 24), (128, 16)):
        texts = documents.build(Documents(count=count), smollm2, length, 0)
        profile[length] = aggregates.mean_of_norms(influence.measure(smollm2, texts).norms)
    for measured, wanted in ((64, 128), (128, 64)):
        miss = {
            anchored: agreement.wasserstein(
                np.diff(cumulative(profile[measured], wanted, anchored=anchored))[:wanted],
                profile[wanted],
            )
            for anchored in (True, False)
        }
        assert miss[True] < miss[False] < 0.1
