"""The command line, as a user runs it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from lacuna.contract.jobs import Job
from service.client import Client, Refused


def lacuna(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "service.terminal", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "100", **environment},
        check=False,
    )


def one_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) == 1, text
    return lines[0]


def test_help_names_every_command() -> None:
    text = lacuna("--help").stdout
    for command in ("profile", "rollout", "place", "compare", "serve", "gateway", "worker"):
        assert re.search(rf"\b{command}\b", text), command


def test_a_wrong_setting_is_one_clear_line() -> None:
    answer = lacuna("serve", LACUNA_PORT="many")
    assert answer.returncode == 2
    assert "LACUNA_PORT" in one_line(answer.stderr)


def test_an_open_door_is_refused_in_one_line() -> None:
    answer = lacuna("serve", LACUNA_HOST="0.0.0.0")
    assert answer.returncode == 2
    assert "LACUNA_API_KEYS" in one_line(answer.stderr)


def test_a_service_that_is_not_there_is_one_clear_line() -> None:
    answer = lacuna("profiles", "--server", "http://127.0.0.1:9")
    assert answer.returncode == 3
    assert "does not answer" in one_line(answer.stderr)


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_request_that_is_no_object_is_wrong_usage(text: str) -> None:
    answer = lacuna("rollout", text)
    assert answer.returncode == 2


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = lacuna("profile", "gpt2", LACUNA_DATA_DIR=str(tmp_path / "file" / "data"))
    assert answer.returncode == 3
    one_line(answer.stderr)


def test_a_refusal_names_the_field() -> None:
    problem = {
        "code": "invalid_request",
        "errors": [{"field": "sequence_length", "message": "at least 1"}],
    }

    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(
            422, content=json.dumps(problem), headers={"content-type": "application/problem+json"}
        )

    client = Client("http://lacuna.invalid", transport=httpx.MockTransport(handle))

    def on_job(job: Job) -> None:
        raise AssertionError("no job was accepted")

    with client, pytest.raises(Refused, match="sequence_length: at least 1"):
        client.profile({"model": "gpt2"}, on_job=on_job, check=lambda: None)


def test_a_request_file_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    answer = lacuna("place", f"@{tmp_path / 'nothing'}", "--server", "http://127.0.0.1:9")
    assert answer.returncode == 2
    assert "nothing" in one_line(answer.stderr)


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        answer = lacuna("serve", LACUNA_PORT=port, LACUNA_DATA_DIR=str(tmp_path))
    assert answer.returncode == 3
    assert "LACUNA_PORT" in one_line(answer.stderr)
