"""The dashboard: what its panels are made of, and that a real Prometheus fills each of them."""

from __future__ import annotations

import itertools
import json
import re
import runpy
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from service.local.stack import Stack
from service.settings import Settings

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboards/lacuna.json").read_text())
ALERTS = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]
CALLER, SCRAPER = "caller-key-0123456789", "metrics-key-0123456789"
FILLED_WITHIN = 120.0


def legends(panel: dict[str, Any]) -> str:
    """Every name that a series or column of a panel may have, as one pattern."""
    names = [re.escape(target.get("legendFormat", "")) for target in panel["targets"]]
    patterns = [re.sub(r"\\\{\\\{\w+\\\}\\\}", ".+", name) for name in names]
    for step in panel.get("transformations", []):
        patterns += map(re.escape, step["options"].get("renameByName", {}).values())
    if panel["type"] == "table":
        groups = [re.findall(r"by \(([^)]+)\)", target["expr"]) for target in panel["targets"]]
        patterns += {label for found in groups for by in found for label in by.split(", ")}
    return "|".join(filter(None, patterns))


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_says_what_it_shows_and_in_which_unit(panel: dict[str, Any]) -> None:
    assert panel["description"]
    rules = panel["fieldConfig"]["overrides"]
    units = {p["id"] for rule in rules for p in rule["properties"]}
    assert "unit" in units | set(panel["fieldConfig"]["defaults"])


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_an_override_is_for_a_series_that_the_panel_can_have(panel: dict[str, Any]) -> None:
    for rule in panel["fieldConfig"]["overrides"]:
        if rule["matcher"]["id"] == "byName":
            assert re.fullmatch(legends(panel), rule["matcher"]["options"])


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_colour_by_thresholds_has_thresholds_of_its_own(panel: dict[str, Any]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    if panel["type"] in {"stat", "gauge", "bargauge"} and (
        defaults.get("color", {}).get("mode", "thresholds") == "thresholds"
    ):
        assert "thresholds" in defaults, "Grafana's own are green, and red from 80 on"


@pytest.mark.parametrize(("title", "target"), TARGETS)
def test_a_rate_spans_what_a_point_of_the_graph_does(title: str, target: dict[str, Any]) -> None:
    windows = set(re.findall(r"\[([$\w]*[a-z]\w*)\]", target["expr"]))
    assert windows <= ({"$__range"} if target.get("instant") else {"$__rate_interval"})
    # The interval makes the window four minutes at least: jobs are rare.
    assert not windows or target.get("instant") or target["interval"] == "1m"


def test_probes_are_not_counted_among_the_requests() -> None:
    expressions = [target["expr"] for _, target in TARGETS]
    expressions += [rule["expr"] for group in ALERTS["groups"] for rule in group["rules"]]
    selected = re.findall(r"lacuna_http_request\w+(\{.*?\})?\[", " ".join(expressions))
    assert len(selected) > 4
    for labels in selected:
        assert 'route!~"/(healthz|readyz|metrics)"' in labels


def test_the_source_of_the_data_is_the_provisioned_one_or_any_other() -> None:
    path = ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml"
    (source,) = yaml.safe_load(path.read_text())["datasources"]
    variable = DASHBOARD["templating"]["list"][0]
    assert (variable["name"], variable["type"]) == ("datasource", "datasource")
    assert variable["current"] == {"text": source["name"], "value": source["uid"]}
    scraped = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["global"]
    assert source["jsonData"]["timeInterval"] == scraped["scrape_interval"]
    asked = [*PANELS, *(target for _, target in TARGETS), *DASHBOARD["templating"]["list"][1:]]
    assert {one["datasource"]["uid"] for one in asked} == {"${datasource}"}


def test_the_preview_draws_with_the_release_that_compose_runs() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    release = compose["services"]["grafana"]["image"].split(":")[1]
    wanted = json.loads((ROOT / "deploy/grafana/preview/package.json").read_text())["dependencies"]
    assert {v for name, v in wanted.items() if name.startswith("@grafana/")} == {release}
    locked = json.loads((ROOT / "deploy/grafana/preview/package-lock.json").read_text())["packages"]
    assert locked["node_modules/@grafana/ui"]["version"] == release
    assert all("integrity" in package for path, package in locked.items() if path)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def prometheus(gateway: str, folder: Path) -> Iterator[httpx.Client]:
    """A client of a Prometheus that reads the gateway each second, with the shipped rules."""
    (folder / "key").write_text(SCRAPER)
    source = ROOT / "deploy" / "prometheus"
    text = (source / "prometheus.yml").read_text()
    for old, new in (
        ("/etc/prometheus", str(source)),
        ("/run/secrets/metrics_key", str(folder / "key")),
        ("gateway:8080", gateway.removeprefix("http://")),
        ("15s", "1s"),
    ):
        text = text.replace(old, new)
    (folder / "prometheus.yml").write_text(text)
    binary, address = shutil.which("prometheus"), f"127.0.0.1:{free_port()}"
    if binary is None:
        pytest.skip("prometheus is not installed")
    command = [binary, f"--config.file={folder}/prometheus.yml", "--log.level=error"]
    command += [f"--storage.tsdb.path={folder}/tsdb", f"--web.listen-address={address}"]
    process = subprocess.Popen(command, cwd=folder)
    try:
        with httpx.Client(base_url=f"http://{address}/api/v1", timeout=30) as client:
            yield client
    finally:
        process.terminate()
        process.wait(30)


def live_once(client: httpx.Client, number: int) -> None:
    """A new job, a job with recall, a cached answer, a failing job, a refusal and reads.

    Every second job reads 12 documents, the others 13: the newest two can be paired. All jobs with
    recall ask the same groups.
    """
    tiny: dict[str, Any] = {"model": "local:tiny", "sequence_length": 32}
    documents = {"count": 12 + number % 2}
    tiny |= {"documents": documents, "predictions": ["residual"]}
    recall = {"sequence_length": 500, "documents": {"count": 11 + number}}
    for request in (
        {**tiny, "seed": number},
        {**tiny, **recall, "recall": {"groups": 16, "depths": 3, "form": "plain"}},
        {**tiny, "seed": 0},
        {**tiny, "sequence_length": 600 + number},
        {**tiny, "sequence_length": 0},
    ):
        client.post("/v1/profiles", json=request, headers={"Prefer": "wait=30"})
    for path in ("/v1/models", "/v1/profiles", "/v1/jobs/" + "0" * 32):
        client.get(path)


def unfilled(client: httpx.Client) -> set[tuple[str, str]]:
    """Panels, each with the query that found no number."""
    missing = set()
    for title, target in TARGETS:
        query = target["expr"].replace("$model", ".*")
        query = re.sub(r"\$__(rate_interval|range)", "60s", query)
        try:
            answer = client.get("/query", params={"query": query}).json()
            found = [sample["value"][1] for sample in answer["data"]["result"]]
        except httpx.HTTPError:
            found = []
        if not set(found) - {"NaN"}:
            missing.add((title, target["expr"]))
    return missing


@pytest.mark.slow
def test_prometheus_fills_every_panel(short_dir: Path, tmp_path: Path) -> None:
    end_to_end = runpy.run_path(str(ROOT / "tests/e2e/conftest.py"))
    end_to_end["save_tiny_llama"](tmp_path / "models" / "tiny")
    settings = Settings(
        data_dir=short_dir, model_dir=tmp_path / "models", api_keys=(CALLER, SCRAPER)
    )
    key = {"Authorization": f"Bearer {CALLER}"}
    with (
        Stack(settings) as stack,
        httpx.Client(base_url=stack.url, headers=key, timeout=60) as client,
        prometheus(stack.url, tmp_path) as asked,
    ):
        deadline = time.monotonic() + FILLED_WITHIN
        for number in itertools.count(1):
            live_once(client, number)
            missing = unfilled(asked)
            if not missing:
                break
            assert time.monotonic() < deadline, missing
