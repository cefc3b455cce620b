"""The profile that comes with Lacuna is whole, and only its own id finds it."""

from __future__ import annotations

import json

from lacuna.contract.profiles import Profile
from lacuna.placement.profile_curve import of_profile
from lacuna.views import joined
from service.store import shipped


def test_the_shipped_profile_is_whole() -> None:
    document = json.loads(shipped.FILE.read_bytes())
    stored = shipped.find(document["id"])
    assert stored is not None
    profile = Profile.model_validate_json(joined(stored.body, stored.envelope))
    assert profile == Profile.model_validate(document)
    # Every position and every document: what is placed along it has an interval.
    assert len(profile.influence.influence) == profile.request.sequence_length
    for source in ("recall", "measured"):
        curve = of_profile(stored.body, source)
        assert curve.documents is not None
        assert curve.unsure is None
    assert shipped.find("0" * 32) is None
