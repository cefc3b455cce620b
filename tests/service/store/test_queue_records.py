"""From an answer of queue.lua to a job: times, failures, and when the job will end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lacuna.contract.jobs import Failure
from service.store.kinds import needs
from service.store.queue import JobRecord, iso, job_record

JOB = "a" * 32
SECOND = 1_000_000


def record(**fields: Any) -> JobRecord:
    """A job of these fields on top of those that every job has."""
    known = {"state": "queued", "attempts": "0", "progress": "0", "message": "", "queue": "cpu"}
    kind = {"kind": "profile", "needs": needs("profile")}
    live = {"created": "0", "now": "0", "workers": 1, "others": 0, "running": 0}
    like_it = {"ahead_seconds": fields.get("ahead", 0) * float(fields.get("mean_run", 0))}
    return job_record(JOB, known | kind | live | like_it | fields)


def test_times_are_utc_to_the_millisecond() -> None:
    assert iso(1_767_225_600_123_456) == "2026-01-01T00:00:00.123Z"


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"ahead": 0, "mean_run": "10"}, 10),
        ({"ahead": 0}, None),
        ({"mean_run": "10"}, None),
        ({"ahead": 2, "mean_run": "10"}, 30),
        ({"ahead": 2, "mean_run": "10", "workers": 2}, 20),
        ({"ahead": 2, "mean_run": "10", "workers": 0}, 30),
        ({"ahead": 0, "running": 1, "mean_run": "10"}, 15),
        ({"ahead": 0, "running": 1, "mean_run": "10", "workers": 2}, 10),
        ({"ahead": 1, "running": 2, "mean_run": "10", "workers": 2}, 20),
    ],
)
def test_the_estimate_of_a_waiting_job(fields: dict[str, Any], seconds: float | None) -> None:
    assert record(**fields).eta_seconds == seconds


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"reported": f"{30 * SECOND}", "progress": "0.75"}, 10),
        ({"reported": f"{30 * SECOND}", "progress": "0.75", "now": f"{34 * SECOND}"}, 6),
        ({"reported": f"{30 * SECOND}", "progress": "0.75", "now": f"{90 * SECOND}"}, 0),
        ({"reported": f"{30 * SECOND}", "progress": "0.04"}, None),
        ({"reported": f"{30 * SECOND}", "progress": "1"}, 0),
        # 20 s to load the model, then 10 s for the first half.
        (
            {"reported": f"{30 * SECOND}", "progress": "0.5", "loaded": f"{20 * SECOND}",
             "loaded_progress": "0"},
            10,
        ),
        # Too little since then to tell a pace: what there is tells, loading included.
        (
            {"reported": f"{30 * SECOND}", "progress": "0.5", "loaded": f"{29 * SECOND}",
             "loaded_progress": "0.48"},
            30,
        ),
        ({"state": "done", "progress": "1", "finished": "0"}, None),
    ],
)  # fmt: skip
def test_the_estimate_of_a_running_job(fields: dict[str, Any], seconds: float | None) -> None:
    running = {"state": "running", "started": "0", "now": f"{30 * SECOND}"} | fields
    assert record(**running).eta_seconds == seconds


def beats(load: float, work: float, documents: int) -> Iterator[dict[str, Any]]:
    """What the store holds of a job at each second: loading, then documents of equal length.

    Args:
        load: seconds that its model takes to load; progress is 0 until then.
        work: seconds that its documents take.
        documents: how many; progress goes from 0.04 to 1 in as many steps.
    """
    held: dict[str, Any] = {"progress": "0.0000"}
    for second in range(1, int(load + work) + 1):
        share = int(max(0.0, second - load) / work * documents) / documents
        progress = f"{0.04 + 0.96 * share if second >= load else 0:.4f}"
        if progress != held["progress"]:
            held |= {"progress": progress, "reported": f"{second * SECOND}"}
            if "loaded" not in held:
                held |= {"loaded": f"{second * SECOND}", "loaded_progress": progress}
        yield {**held, "now": f"{second * SECOND}"}


@pytest.mark.parametrize("documents", [16, 64, 400])
@pytest.mark.parametrize("work", [30.0, 68.0, 780.0])
@pytest.mark.parametrize("load", [0.3, 5.0, 40.0, 300.0])
def test_from_a_tenth_on_the_estimate_is_within_a_factor_of_two(
    load: float, work: float, documents: int
) -> None:
    checked = 0
    for fields in beats(load, work, documents):
        left = load + work - float(fields["now"]) / SECOND
        if float(fields["progress"]) >= 0.1:
            eta = record(state="running", started="0", **fields).eta_seconds
            assert eta is not None
            # Beats come once a second, so a moment is known to a second only.
            assert left / 2 - 2 <= eta <= 2 * left + 2, fields
            checked += 1
    assert checked >= 0.7 * work


@pytest.mark.parametrize(("ahead", "running"), [(0, 0), (0, 1), (1, 1), (5, 1), (40, 1)])
def test_among_equal_jobs_a_waiting_job_ends_within_a_factor_of_two(
    ahead: int, running: int
) -> None:
    """Whatever share of the running job is done."""
    eta = record(ahead=ahead, running=running, mean_run="60").eta_seconds
    assert eta is not None
    for done in (0.0, 0.5, 1.0):
        true = 60 * (running * (1 - done) + ahead + 1)
        assert true / 2 <= eta <= 2 * true


def test_jobs_ahead_take_as_long_as_their_kind() -> None:
    """Ten profiles of a second in front of an experiment of an hour."""
    assert record(ahead=10, ahead_seconds=10.0, mean_run="3600").eta_seconds == 3_610


def test_a_failure_carries_its_code_and_an_unknown_code_is_passed_on() -> None:
    known = record(state="failed", code="too_long", detail="d", retryable="0", field="")
    assert known.failure == Failure(code="too_long", detail="d", retryable=False)
    named = record(state="failed", code="too_long", retryable="0", field="recall")
    assert named.failure is not None
    assert named.failure.field == "recall"
    newer = record(state="failed", code="of_tomorrow", retryable="1")
    assert newer.failure == Failure(code="of_tomorrow", detail="", retryable=True)


def test_only_a_running_job_is_stopping() -> None:
    running = {"state": "running", "started": "0"}
    assert record(**running, cancel="1", message="batch 3").message == "stopping"
    assert record(**running, message="m").message == "m"


def test_progress_is_a_fraction_whatever_the_store_says() -> None:
    assert record(progress="1.7").progress == 1
    assert record(progress="-1").progress == 0


@pytest.mark.parametrize("queue", ["cpu", "gpu"])
def test_a_job_for_which_no_worker_runs_says_so_while_it_waits(queue: str) -> None:
    said = f"waits for a {queue.upper()} worker: none is running"
    assert record(queue=queue, workers=0).message == said
    assert record(queue=queue, workers=1).message == ""
    assert record(queue=queue, workers=0, state="done").message == ""


def test_a_job_that_only_workers_of_other_versions_could_take_names_its_own() -> None:
    newer = record(workers=0, others=2, needs="profile/9/abc").message
    assert newer.startswith("waits for a CPU worker of method version 9:")
    kind = {"kind": "experiment", "needs": "experiment/2/abc"}
    assert "that knows experiments of version 2" in record(workers=0, others=1, **kind).message
    assert "newer worker" in record(workers=1, declined="1").message
