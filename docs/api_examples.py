"""Writes openapi/examples: what a service started for it answers (a minute on one core).

The requests lie there already. `make examples` runs this and puts all into the document.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from service.local.stack import Stack
from service.settings import Settings

FOLDER = Path(__file__).parents[1] / "openapi" / "examples"
REQUEST_ID = {"X-Request-Id": "3f9c1d2e5a7b8c90"}
"""A fixed one: problems repeat it."""


def request(operation: str) -> dict[str, Any]:
    """The request that stands as the operation's example."""
    found: dict[str, Any] = json.loads((FOLDER / f"{operation}.request.json").read_text())
    return found


def write(name: str, content: object) -> None:
    """Keep one example."""
    (FOLDER / f"{name}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def keep(operation: str, answer: httpx.Response) -> Any:
    """Keep an answer as the example of its status."""
    content = answer.json()
    write(f"{operation}.response-{answer.status_code}", content)
    return content


def measure(client: httpx.Client, body: dict[str, Any]) -> str:
    """Path of the profile, measured now."""
    answer = client.post("/v1/profiles", json=body).raise_for_status()
    job = keep("post_v1_profiles", answer)
    path = f"/v1/jobs/{job['id']}"
    while job["state"] not in {"done", "failed"}:
        job = keep("get_v1_jobs_job_id", client.get(path, headers={"Prefer": "wait=30"}))
    keep("delete_v1_jobs_job_id", client.delete(path))
    return str(job["profile"])


def profiles(client: httpx.Client) -> None:
    """Everything that follows from a measurement."""
    body = request("post_v1_profiles")
    random = measure(client, {**body, "weights": "random", "objective": "jacobian"})
    demo = measure(client, body)
    identifier, other = (path.rpartition("/")[2] for path in (demo, random))
    keep("post_v1_profiles", client.post("/v1/profiles", json=body))
    keep("post_v1_profiles", client.post("/v1/profiles", json={**body, "sequence_length": 0}))
    keep("get_v1_profiles", client.get("/v1/profiles", params={"limit": 1}))
    get = "get_v1_profiles_profile_id"
    keep(get, client.get(demo))
    keep(get, client.get("/v1/profiles/" + 32 * "f"))
    keep(f"{get}_dead_zone", client.get(f"{demo}/dead-zone"))
    keep(f"{get}_series", client.get(f"{demo}/series", params={"bins": 4}))
    pair: dict[str, str | int] = {"a": identifier, "b": other, "bins": 4}
    keep("get_v1_comparisons", client.get("/v1/comparisons", params=pair))
    placement = {**request("post_v1_placements"), "profile_id": identifier}
    write("post_v1_placements.request", placement)
    keep("post_v1_placements", client.post("/v1/placements", json=placement))
    labelled = request("post_v1_calibrations")
    keep("post_v1_calibrations", client.post("/v1/calibrations", json=labelled))


def experiments(client: httpx.Client) -> None:
    """An experiment, from the question to the answer."""
    body, operation = request("post_v1_experiments"), "post_v1_experiments"
    keep(operation, client.post("/v1/experiments", json={**body, "reference": "none"}))
    job = keep(operation, client.post("/v1/experiments", json={**body, "seed": 1}))
    # It runs already, or it would be gone at once.
    while client.get(f"/v1/jobs/{job['id']}").json()["state"] == "queued":
        time.sleep(0.01)
    keep("delete_v1_experiments_experiment_id", client.delete(f"/v1/experiments/{job['id']}"))
    job = keep(operation, client.post("/v1/experiments", json=body).raise_for_status())
    while job["state"] not in {"done", "failed"}:
        headers = {"Prefer": "wait=30"}
        job = client.get(f"/v1/jobs/{job['id']}", headers=headers).json()
    keep("get_v1_experiments_experiment_id", client.get(job["experiment"]))
    keep(operation, client.post("/v1/experiments", json=body))


def main() -> None:
    """Entry point."""
    with tempfile.TemporaryDirectory(prefix="le", dir="/tmp") as folder:
        settings = Settings(data_dir=Path(folder), log_format="text")
        for workers in (0, 1):
            with (
                Stack(settings, workers=workers) as stack,
                httpx.Client(base_url=stack.url, timeout=120, headers=REQUEST_ID) as client,
            ):
                keep("get_readyz", client.get("/readyz"))
                if not workers:
                    continue
                keep("get_healthz", client.get("/healthz"))
                body = request("post_v1_rollouts")
                keep("post_v1_rollouts", client.post("/v1/rollouts", json=body))
                profiles(client)
                experiments(client)
                # Last: now a model is warm.
                models = client.get("/v1/models").json()
                models["workers"] = [{**each, "worker": "worker-1"} for each in models["workers"]]
                write("get_v1_models.response-200", models)
    for path in sorted(FOLDER.iterdir()):
        print(f"{path.stat().st_size:6} {path.name}")


if __name__ == "__main__":
    main()
