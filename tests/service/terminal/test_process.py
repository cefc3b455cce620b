"""The command as a process: statuses, signals, pipes, and what it does not load or start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from lacuna.contract.profile_requests import ProfileRequest
from service.local.stack import Stack

HEAVY = {"torch", "transformers"}
SERVERS = {"fastapi", "starlette", "uvicorn", "httpx"}
CPU_SECONDS = 2.0
CHUNKS = "a, 120, 0.9\nb, 80, 0.4\nc, 200, 0.7\n"
WATCHED = """
import resource, sys
from service.terminal import app
try:
    app(sys.argv[1:])
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(used.ru_utime + used.ru_stime, children.ru_maxrss, *sys.modules, file=sys.stderr)
"""


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LACUNA_")}
    return {**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "100", **more}


def lacuna(*arguments: str, stdin: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "service.terminal", *arguments],
        input=stdin, capture_output=True, text=True, timeout=120, check=False,
        env=environment(**more),
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        ["rollout", "--model", "bloom-176b"],
        ["place", "-", "--density", "1.4,0.5,2"],
        ["place", "-", "--profile", "PROFILE"],
        ["compare", "PROFILE", "PROFILE"],
        ["show", "PROFILE"],
        ["--help"],
        ["--version"],
    ],
    ids=" ".join,
)
def test_pure_commands_load_little_and_start_nothing(
    saved: Any, tmp_path: Path, arguments: list[str]
) -> None:
    path = saved()
    data = tmp_path / "data"
    answer = subprocess.run(
        [sys.executable, "-c", WATCHED, *(a.replace("PROFILE", path) for a in arguments)],
        input=CHUNKS, capture_output=True, text=True, timeout=120, check=False,
        env=environment(LACUNA_DATA_DIR=str(data), LACUNA_SERVER="http://127.0.0.1:9"),
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout
    (line,) = answer.stderr.splitlines()
    seconds, children, *modules = line.split()
    loaded = {name.partition(".")[0] for name in modules}
    assert loaded.isdisjoint(HEAVY | SERVERS)
    assert {"service.local.stack", "service.local.store"}.isdisjoint(modules)
    assert children == "0", "a process was started"
    assert not data.exists()
    assert float(seconds) < CPU_SECONDS


def test_wrong_usage_is_status_2_and_one_line() -> None:
    for arguments, words in (
        (["plce"], "Did you mean 'place'"),
        (["place"], "Missing argument 'CHUNKS'; see lacuna place --help"),
        (["rollout", "--layer", "3"], "--layers"),
        (["profiles", "--limit", "0"], "--limit"),
    ):
        answer = lacuna(*arguments)
        assert answer.returncode == 2
        assert answer.stdout == ""
        (line,) = answer.stderr.splitlines()
        assert line.startswith("lacuna: ")
        assert words in line


def test_no_command_at_all_shows_the_help() -> None:
    answer = lacuna()
    assert answer.returncode == 2
    assert "Usage: lacuna" in answer.stdout + answer.stderr


def test_the_version_is_the_distributions() -> None:
    assert lacuna("--version").stdout.startswith("lacuna 0.")


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_ctrl_c_is_status_130_and_says_how_to_find_the_job(stack: Stack, worker: Any) -> None:
    arguments = ["profile", "gpt2", "--weights", "random", "--server", stack.url]
    # A shell lets commands in its background ignore interrupts, and so their children: ours too.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        [sys.executable, "-m", "service.terminal", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    signal.signal(signal.SIGINT, before)
    body = {"model": "gpt2", "weights": "random"}
    job = ProfileRequest.model_validate(body).job_id
    deadline = time.monotonic() + 60
    while httpx.get(f"{stack.url}/v1/jobs/{job}").status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == ""
    where = f"{job} --server {stack.url}"
    assert err == f"the job goes on: lacuna job {where}, or lacuna cancel {where}\n"


@pytest.mark.parametrize("form", [[], ["--json"], ["--ids"]])
def test_a_reader_that_goes_away_is_no_failure_to_tell(form: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    chunks = "".join(f"a long name number {i}, 10, 1\n" for i in range(4_000))
    with os.fdopen(writing, "wb") as closed:
        answer = subprocess.run(
            [sys.executable, "-m", "service.terminal", "place", "-", "--density", "1,2", *form],
            input=chunks.encode(), stdout=closed, stderr=subprocess.PIPE, timeout=120,
            check=False, env=environment(),
        )  # fmt: skip
    assert answer.returncode == 1
    assert answer.stderr == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_full_disk_is_one_clear_line(form: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        answer = subprocess.run(
            [sys.executable, "-m", "service.terminal", "rollout", "--layers", "2", *form],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False,
            env=environment(),
        )  # fmt: skip
    assert answer.returncode == 1
    assert answer.stderr == "lacuna: cannot write the output: No space left on device\n"


def test_any_encoding_of_the_terminal_will_do() -> None:
    chunks = "größte, 10, 1\n"
    for form in (["--ids"], ["--json"], []):
        answer = subprocess.run(
            [sys.executable, "-m", "service.terminal", "place", "-", "--density", "1,2", *form],
            input=chunks.encode(), capture_output=True, timeout=120, check=False,
            env=environment(PYTHONIOENCODING="ascii"),
        )  # fmt: skip
        assert answer.returncode == 0, answer.stderr
        assert answer.stderr == b""
        if form == ["--ids"]:
            assert answer.stdout.decode() == "größte\n"
        elif form == ["--json"]:
            assert json.loads(answer.stdout)["order"] == ["größte"]


def test_colour_is_for_terminals() -> None:
    for arguments in (["rollout", "--layers", "2"], ["plce"]):
        answer = lacuna(*arguments, TERM="xterm-256color")
        assert "\x1b" not in answer.stdout + answer.stderr
