"""The command line, as a user runs it."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from service.terminal import EXAMPLES, app


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


def test_every_command_shows_examples_that_can_be_run(capsys: pytest.CaptureFixture[str]) -> None:
    command = typer.main.get_command(app)
    assert set(EXAMPLES) == set(command.commands)  # type: ignore[attr-defined]
    for name, examples in EXAMPLES.items():
        for example in examples:
            words = shlex.split(example.partition(" <")[0])
            arguments = words[words.index("lacuna") + 1 :]
            assert arguments[0] == name
            with pytest.raises(SystemExit) as ended:  # parsed in full before help is shown
                app([*arguments, "--help"])
            assert ended.value.code == 0, example
            shown = " ".join(capsys.readouterr().out.split())
            assert "Examples:" in shown
            assert " ".join(example.split()) in shown


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


def test_a_request_file_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    answer = lacuna("place", f"@{tmp_path / 'nothing'}", "--server", "http://127.0.0.1:9")
    assert answer.returncode == 2
    assert "nothing" in one_line(answer.stderr)


@pytest.mark.parametrize("by_option", [False, True])
def test_a_port_in_use_is_one_clear_line(tmp_path: Path, by_option: bool) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        options, variable = (["--port", port], "1") if by_option else ([], port)
        answer = lacuna("serve", *options, LACUNA_PORT=variable, LACUNA_DATA_DIR=str(tmp_path))
    assert answer.returncode == 3
    assert f"port {port}" in one_line(answer.stderr)
    assert "LACUNA_PORT" in answer.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "LACUNA_API_KEYS"),
        (["--port", "70000"], "--port"),
        (["--port", "many"], "--port"),
    ],
)
def test_wrong_options_of_serve_are_one_clear_line(options: list[str], words: str) -> None:
    answer = lacuna("serve", *options, LACUNA_PORT="1")
    assert answer.returncode == 2
    assert words in one_line(answer.stderr)


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--port", "1_0"],
        ["serve", "--workers", "\uff12"],
        ["rollout", "--layers", "1_2"],
        ["profiles", "--limit", "1_0"],
        ["evaluate", "x", "--smallest-effect", "0.0_5"],
        ["evaluate", "x", "--max-cost", "nan"],
    ],
)
def test_numbers_are_written_as_everybody_reads_them(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        app(arguments)
    assert ended.value.code == 2
    assert f"{arguments[-1]!r} is not a valid number" in one_line(capsys.readouterr().err)


@pytest.mark.parametrize("option", ["--documents", "--groups"])
def test_counts_are_written_as_everybody_reads_them(
    capsys: pytest.CaptureFixture[str], option: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        app(["profile", "preset:gpt2", option, "\uff11\uff16", "--server", "http://127.0.0.1:9"])
    assert ended.value.code == 2
    assert option in one_line(capsys.readouterr().err)
