"""Alerts and dashboard ask for metrics that the gateway has, by labels that these have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
import yaml
from prometheus_client.parser import text_string_to_metric_families

from lacuna.contract.profiles import ProfileSummary
from service.answers.drift import Change, InfluenceDrift, ModelDrift, RecallDrift
from service.gateway.metrics import Metrics, model_metrics
from service.store.monitoring import store_metrics

promql_parser = pytest.importorskip("promql_parser", reason="promql-parser is not installed")

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
PROMETHEUS = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "lacuna.json").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
OF_PROMETHEUS = {
    "up": {"job", "instance"},
    "ALERTS": {"alertname", "alertstate", "severity"},
}
SUMMARY = {
    "id": "0" * 32, "model": "gpt2", "revision": None, "weights": "pretrained",
    "sequence_length": 100, "objective": "jacobian", "documents": 16, "shape": "flat",
    "dead_zone": None, "dead_zone_verdict": "none", "primacy_mass": 0.1, "recency_mass": 0.1,
    "created_at": "2026-01-01",
}  # fmt: skip


def of_models() -> bytes:
    """What the gateway says of a model with a drift."""
    summary = ProfileSummary.model_validate(SUMMARY)
    changes = (Change("primacy", 0.0, -0.01, 0.01),)
    recall = RecallDrift("facts", 24, False, (Change("depth_1", 0.0, -0.01, 0.01),))
    drift = ModelDrift(summary, InfluenceDrift(16, False, changes), (recall,))
    return model_metrics([summary], [drift])


@pytest.fixture
async def exposed(redis_async: redis.asyncio.Redis) -> dict[str, set[str]]:
    """Every sample name that the gateway can expose, with its labels."""
    metrics = Metrics()
    metrics.request("GET", "/v1/profiles", 200, 0.01)
    metrics.submission("created")
    metrics.refused.labels("unauthorized").inc()
    text = metrics.text(await store_metrics(redis_async)) + of_models()
    found: dict[str, set[str]] = dict(OF_PROMETHEUS)
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def parsed(expression: str) -> Any:
    """Variables stand for a model's name and for durations."""
    return promql_parser.parse(re.sub(r"\$__\w+", "5m", expression).replace("$model", "m"))


def selectors(
    expression: Any, outer: frozenset[str] = frozenset()
) -> Iterator[tuple[str, set[str]]]:
    """Metric names, each with the labels that matchers and groupings around it name."""
    kind = type(expression).__name__
    if kind == "BinaryExpr":
        yield from selectors(expression.lhs)
        yield from selectors(expression.rhs)
    elif kind == "AggregateExpr":
        grouped = re.findall(r"\w+", str(expression.modifier or "").removeprefix("by"))
        yield from selectors(expression.expr, outer | set(grouped))
    elif kind == "Call":
        for argument in expression.args:
            yield from selectors(argument, outer)
    elif kind in {"ParenExpr", "SubqueryExpr", "UnaryExpr"}:
        yield from selectors(expression.expr, outer)
    elif kind == "MatrixSelector":
        yield from selectors(expression.vector_selector, outer)
    elif kind == "VectorSelector":
        matched = {matcher.name for matcher in expression.matchers.matchers}
        yield expression.name, matched | outer
    else:
        assert kind in {"NumberLiteral", "StringLiteral"}, kind


def expressions() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    adapter = yaml.safe_load((DEPLOY / "kubernetes" / "prometheus-adapter.yaml").read_text())
    for rule in adapter["rules"]["external"]:
        yield rule["name"]["as"], rule["metricsQuery"].replace("<<.LabelMatchers>>", "")


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_every_expression_parses_and_finds_its_metrics(
    where: str, expression: str, exposed: dict[str, set[str]]
) -> None:
    found = list(selectors(parsed(expression)))
    assert found, f"{where} asks for no metric"
    for name, labels in found:
        assert name in exposed, f"{where}: {name} is exposed by nobody"
        assert labels <= exposed[name], f"{where}: {name} has no label {labels - exposed[name]}"


def test_the_check_finds_what_is_wrong(exposed: dict[str, set[str]]) -> None:
    ((name, labels),) = selectors(parsed("sum by (colour) (rate(lacuna_queue_depth[5m]))"))
    assert name in exposed
    assert not labels <= exposed[name]


def test_alerts_cover_what_operators_must_know() -> None:
    names = {rule["alert"] for rule in RULES}
    assert {
        "LacunaInfluenceMoved",
        "LacunaRecallFell",
        "LacunaNoLiveWorker",
        "LacunaOldestJobTooOld",
        "LacunaDeadLetters",
        "LacunaStoreAway",
    } <= names
    assert len(names) == len(RULES)
    guide = (DEPLOY.parent / "docs" / "operating.md").read_text()
    assert [name for name in names if name not in guide] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert {"summary", "description"} <= set(rule["annotations"])
    used = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    for _, labels in selectors(parsed(rule["expr"])):
        assert used <= labels, "a label in the text is lost in the aggregation"


def test_prometheus_reads_the_gateway_with_a_key_from_a_file() -> None:
    (job,) = PROMETHEUS["scrape_configs"]
    assert job["job_name"] == "lacuna"
    assert job["authorization"] == {"credentials_file": "/run/secrets/metrics_key"}
    assert PROMETHEUS["rule_files"] == ["/etc/prometheus/alerts.yml"]


def test_panels_have_a_place_of_their_own() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_the_dashboard_shows_queue_workers_latencies_and_models() -> None:
    asked = {name for _, e in expressions() for name, _ in selectors(parsed(e))}
    assert {
        "lacuna_queue_depth",
        "lacuna_queue_workers",
        "lacuna_job_wait_seconds_bucket",
        "lacuna_http_request_seconds_bucket",
        "lacuna_model_dead_zone_fraction",
        "lacuna_model_primacy_mass",
        "lacuna_model_recency_mass",
        "lacuna_model_drift",
        "lacuna_model_drift_alert",
        "lacuna_model_recall_drift",
        "lacuna_model_recall_drift_alert",
    } <= asked


def test_the_dashboard_is_where_grafana_is_told_to_look() -> None:
    provider = yaml.safe_load(
        (DEPLOY / "grafana" / "provisioning" / "dashboards" / "lacuna.yml").read_text()
    )["providers"][0]
    compose = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text())
    mounts = dict(volume.split(":")[:2] for volume in compose["services"]["grafana"]["volumes"])
    folder = {inside: outside for outside, inside in mounts.items()}[provider["options"]["path"]]
    assert (DEPLOY.parent / folder / "lacuna.json").is_file()


def promtool(*arguments: str, given: bytes = b"") -> str:
    """Prometheus' own checker, where it is installed (Debian: apt-get install prometheus)."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed")
    answer = subprocess.run([found, *arguments], input=given, capture_output=True, check=False)
    text = (answer.stdout + answer.stderr).decode()
    assert answer.returncode == 0, text
    return text


def test_alerts_fire_when_they_should_and_only_then() -> None:
    assert "SUCCESS" in promtool("test", "rules", str(DEPLOY / "prometheus" / "alerts_test.yml"))


def test_promtool_takes_configuration_and_rules(tmp_path: Path) -> None:
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    (tmp_path / "key").write_text("secret")
    (tmp_path / "prometheus.yml").write_text(
        text.replace("/etc/prometheus", str(DEPLOY / "prometheus")).replace(
            "/run/secrets/metrics_key", str(tmp_path / "key")
        )
    )
    promtool("check", "config", str(tmp_path / "prometheus.yml"))


async def test_promtool_finds_no_fault_with_the_metrics(redis_async: redis.asyncio.Redis) -> None:
    text = Metrics().text(await store_metrics(redis_async)) + of_models()
    assert promtool("check", "metrics", given=text) == ""
