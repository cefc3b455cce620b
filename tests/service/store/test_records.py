"""From a script's answer to a job: times, estimates, failures."""

from __future__ import annotations

import pytest

from lacuna.contract.jobs import Failure
from service.store.queue import _FIELDS, iso, job_from_view

JOB = "a" * 32
SECOND = 1_000_000


def view(**fields: str) -> list[bytes | None]:
    known = {"state": "queued", "created": "0", "queue": "cpu", "now": "0", "workers": "1"} | fields
    return [known[name].encode() if name in known else None for name in _FIELDS]


def test_times_are_utc_to_the_millisecond() -> None:
    assert iso(1_767_225_600_123_456) == "2026-01-01T00:00:00.123Z"


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"ahead": "0", "expected": "10"}, 10),
        ({"ahead": "0", "expected": "?"}, None),
        ({"ahead": "2", "expected": "10", "before": "3;4"}, 17),
        ({"ahead": "2", "expected": "10", "before": "3;?"}, None),
        ({"ahead": "2", "expected": "10", "before": "3;4", "workers": "2"}, 13),
        ({"ahead": "3", "expected": "10", "before": "3;4;5", "workers": "2"}, 14),
        ({"ahead": "1", "expected": "10", "before": "3", "workers": "0"}, 13),
        ({"ahead": "4", "expected": "10", "before": "3;5"}, 8 + 2 * 4 + 10),
        ({"ahead": "4", "expected": "10", "before": "3;5", "workers": "2"}, 3 + 2 * 4 / 2 + 10),
        ({"ahead": "0", "expected": "10", "running": "30 0.75 ?"}, 20),
        ({"ahead": "0", "expected": "10", "running": "30 0.75 ?", "workers": "2"}, 10),
        ({"ahead": "0", "expected": "10", "running": "30 0.75 ?;5 0 60"}, 20),
        ({"ahead": "1", "expected": "10", "running": "30 0.75 ?;5 0 60", "before": "7"}, 27),
        ({"ahead": "0", "expected": "10", "running": "30 0.01 ?"}, None),
        ({"ahead": "0", "expected": "10", "running": "30 0.01 20"}, None),
        ({"ahead": "0", "expected": "10", "running": "30 1 20"}, 10),
    ],
)
def test_the_estimate_of_a_waiting_job(fields: dict[str, str], seconds: float | None) -> None:
    assert job_from_view(JOB, view(**fields)).eta_seconds == seconds


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"now": f"{30 * SECOND}", "progress": "0.75"}, 10),
        ({"now": f"{30 * SECOND}", "progress": "0.75", "expected": "50"}, 0.75 * 10 + 0.25 * 20),
        ({"now": f"{30 * SECOND}", "progress": "0.75", "expected": "20"}, 10),
        ({"now": f"{4 * SECOND}", "expected": "10"}, 6),
        ({"now": f"{40 * SECOND}", "expected": "10"}, None),
        ({"now": f"{4 * SECOND}", "progress": "0.04"}, None),
        ({"now": f"{4 * SECOND}", "progress": "1"}, 0),
        ({"state": "done", "expected": "10"}, None),
    ],
)
def test_the_estimate_of_a_running_job(fields: dict[str, str], seconds: float | None) -> None:
    running = {"state": "running", "started": "0"} | fields
    assert job_from_view(JOB, view(**running)).eta_seconds == seconds


def test_a_failure_carries_its_code_and_an_unknown_code_is_passed_on() -> None:
    known = job_from_view(JOB, view(state="failed", code="too_long", detail="d", retryable="0"))
    assert known.failure == Failure(code="too_long", detail="d", retryable=False)
    named = job_from_view(JOB, view(state="failed", code="too_long", retryable="0", field="needle"))
    assert named.failure is not None
    assert named.failure.field == "needle"
    newer = job_from_view(JOB, view(state="failed", code="of_tomorrow", retryable="1"))
    assert newer.failure == Failure(code="of_tomorrow", detail="", retryable=True)


def test_only_a_running_job_is_stopping() -> None:
    running = view(state="running", started="0", cancel="1", message="batch 3")
    assert job_from_view(JOB, running).message == "stopping"
    assert job_from_view(JOB, view(state="running", started="0", message="m")).message == "m"


def test_progress_is_a_fraction_whatever_the_store_says() -> None:
    assert job_from_view(JOB, view(progress="1.7")).progress == 1
    assert job_from_view(JOB, view(progress="-1")).progress == 0


@pytest.mark.parametrize("queue", ["cpu", "gpu"])
def test_a_job_for_which_no_worker_lives_says_so_while_it_waits(queue: str) -> None:
    said = f"waits for a {queue.upper()} worker: none lives"
    assert job_from_view(JOB, view(queue=queue, workers="0")).message == said
    assert job_from_view(JOB, view(queue=queue, workers="1")).message == ""
    ended = view(queue=queue, workers="0", state="done")
    assert job_from_view(JOB, ended).message == ""
