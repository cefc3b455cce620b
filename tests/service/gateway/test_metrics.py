"""Dead zones and drift by model in the exposition format."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from lacuna.contract.profiles import ProfileSummary
from service.answers.drift import Change, InfluenceDrift, ModelDrift, RecallDrift
from service.gateway.metrics import model_metrics

ZONE = {
    "start": 20, "end": 60, "fraction": 0.4, "mean_density": 0.5, "min_density": 0.3, "argmin": 40,
    "threshold": 0.75, "start_band": {"low": 15.0, "high": 30.0},
    "end_band": {"low": 55.0, "high": 70.0},
}  # fmt: skip


def summary(number: int, **changes: Any) -> ProfileSummary:
    fields = {
        "id": f"{number:032x}", "model": "gpt2", "revision": None, "weights": "pretrained",
        "sequence_length": 100, "objective": "argmax_probability", "documents": 16,
        "shape": "u_shaped", "dead_zone": ZONE, "dead_zone_verdict": "zone",
        "primacy_mass": 0.3, "recency_mass": 0.2,
        "created_at": "2026-01-01T00:00:00.000Z",
    }  # fmt: skip
    return ProfileSummary.model_validate({**fields, **changes})


def samples(summaries: list[ProfileSummary]) -> dict[tuple[str, str, str], float]:
    return {
        (
            sample.name.removeprefix("lacuna_model_"),
            sample.labels["model"],
            sample.labels["version"],
        ): (float(sample.value))
        for family in text_string_to_metric_families(model_metrics(summaries).decode())
        for sample in family.samples
    }


def test_newest_and_previous_version_of_a_model() -> None:
    found = samples(
        [
            summary(3),
            summary(2, dead_zone=None, dead_zone_verdict="none", primacy_mass=0.1),
            summary(1),
        ]
    )
    assert found["dead_zone_fraction", "gpt2", "newest"] == 0.4
    assert found["dead_zone_fraction", "gpt2", "previous"] == 0
    assert found["primacy_mass", "gpt2", "previous"] == 0.1
    assert len(found) == 2 * 5


def test_the_band_of_the_fraction_comes_from_the_bands_of_the_ends() -> None:
    found = samples([summary(1)])
    assert found["dead_zone_fraction_low", "gpt2", "newest"] == 0.25
    assert found["dead_zone_fraction_high", "gpt2", "newest"] == 0.55


def test_an_undecided_zone_may_be_anything_from_none_to_the_whole_prompt() -> None:
    without_bands = {**ZONE, "start_band": None, "end_band": None}
    for zone in (None, without_bands):
        found = samples([summary(1, dead_zone=zone, dead_zone_verdict="undecided")])
        assert found["dead_zone_fraction_low", "gpt2", "newest"] == 0
        assert found["dead_zone_fraction_high", "gpt2", "newest"] == 1


def test_without_a_zone_the_band_is_empty() -> None:
    found = samples([summary(1, dead_zone=None, dead_zone_verdict="none")])
    assert found["dead_zone_fraction_low", "gpt2", "newest"] == 0
    assert found["dead_zone_fraction_high", "gpt2", "newest"] == 0


def test_other_lengths_and_weights_are_no_versions_of_each_other() -> None:
    found = model_metrics(
        [summary(1), summary(2, sequence_length=50), summary(3, weights="random")]
    )
    assert b"previous" not in found


def test_labels_are_bounded_whatever_is_stored() -> None:
    found = samples([summary(n, model=f"m{n}") for n in range(500)])
    assert len({model for _, model, _ in found}) == 50


def test_nothing_stored_is_no_sample() -> None:
    assert samples([]) == {}


async def test_a_stored_profile_is_told(client: httpx.AsyncClient, stored: str) -> None:
    families = text_string_to_metric_families((await client.get("/metrics")).text)
    found = {sample.name: sample for family in families for sample in family.samples}
    told = found["lacuna_model_dead_zone_fraction"]
    assert told.labels["model"] == "preset:gpt2"
    assert told.labels["version"] == "newest"
    profile = (await client.get(f"/v1/profiles/{stored}")).json()
    assert told.value == profile["dead_zone"]["fraction"]


def test_an_undecided_zone_has_no_size() -> None:
    found = samples([summary(1, dead_zone_verdict="undecided")])
    assert ("dead_zone_fraction", "gpt2", "newest") not in found
    assert found["recency_mass", "gpt2", "newest"] == 0.2


def test_drift_is_told_by_statistic() -> None:
    changes = (Change("primacy", 0.02, 0.01, 0.03), Change("total_influence", -0.3, -0.4, -0.2))
    falls = (Change("depth_1", -0.1, -0.2, -0.05), Change("level", -0.05, -0.1, 0.0))
    recall = (RecallDrift("facts", 24, True, falls),)
    drift = ModelDrift(summary(2), InfluenceDrift(32, True, changes), recall)
    text = model_metrics([summary(2), summary(1)], [drift]).decode()
    found = {
        (sample.name, sample.labels.get("statistic")): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "drift" in sample.name
    }
    assert {key: sample.value for key, sample in found.items()} == {
        ("lacuna_model_drift", "primacy"): 0.02,
        ("lacuna_model_drift_low", "primacy"): 0.01,
        ("lacuna_model_drift_high", "primacy"): 0.03,
        ("lacuna_model_drift", "total_influence"): -0.3,
        ("lacuna_model_drift_low", "total_influence"): -0.4,
        ("lacuna_model_drift_high", "total_influence"): -0.2,
        ("lacuna_model_drift_documents", None): 32,
        ("lacuna_model_drift_alert", None): 1,
        ("lacuna_model_recall_drift", "depth_1"): -0.1,
        ("lacuna_model_recall_drift_low", "depth_1"): -0.2,
        ("lacuna_model_recall_drift_high", "depth_1"): -0.05,
        ("lacuna_model_recall_drift", "level"): -0.05,
        ("lacuna_model_recall_drift_low", "level"): -0.1,
        ("lacuna_model_recall_drift_high", "level"): 0.0,
        ("lacuna_model_recall_drift_groups", None): 24,
        ("lacuna_model_recall_drift_alert", None): 1,
    }
    assert {sample.labels.get("probe") for sample in found.values()} == {None, "facts"}
    for sample in found.values():
        assert sample.labels["tokens"] == "100"


async def test_a_stored_model_that_moved_alarms(
    client: httpx.AsyncClient, worker: Any, profile_of_norms: Any
) -> None:
    """Influence of the same documents falls to 0.7 before the last tenth."""
    generator = np.random.default_rng(0)
    position = np.linspace(0, 1, 256)
    norms = (0.7 + 2 * np.exp((position - 1) / 0.08)) * generator.lognormal(0, 0.6, (32, 256))
    lower = norms * generator.lognormal(0, 0.05, norms.shape)
    lower[:, 1:230] *= 0.7

    async def told() -> dict[str, float]:
        families = text_string_to_metric_families((await client.get("/metrics")).text)
        return {
            sample.labels.get("statistic", sample.name): sample.value
            for family in families
            for sample in family.samples
            if sample.name in ("lacuna_model_drift", "lacuna_model_drift_alert")
        }

    alarms = []
    again = norms * generator.lognormal(0, 0.05, norms.shape)
    for number, rows in enumerate((norms, again, lower)):
        asked = {"model": "preset:gpt2", "weights": "random", "seed": number}
        assert (await client.post("/v1/profiles", json=asked)).status_code == 202
        worker.finish(profile_of_norms(rows, f"{number:032x}"))
        found = await told()
        alarms.append(found.get("lacuna_model_drift_alert"))
    assert alarms == [None, 0, 1]
    assert found["recency"] > 0.02
    assert found["zone_density"] < 0
    assert found["total_influence"] < -0.1


def test_only_what_compares_is_told() -> None:
    """Ablations, single documents, callers' own texts and targets would show as drift."""
    odd = [
        summary(5, positional_encoding="off"),
        summary(4, documents=1),
        summary(3, documents_source="inline"),
        summary(6, objective="target_logprob"),
        summary(2, documents_source="random_tokens"),
    ]
    assert model_metrics([*odd, summary(1)]) == model_metrics([summary(1)])
    untrained = [summary(n, documents_source="random_tokens", weights="random") for n in (2, 1)]
    assert b"previous" in model_metrics(untrained)
    corpora = [summary(n, documents_source="corpus", documents_name=f"c{n}") for n in (2, 1)]
    assert b"previous" not in model_metrics(corpora)
