"""Odd machines: proxies, certificates, no home, stores with options, terminals without Unicode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = (
    Path(__file__).parents[3] / "openapi/examples/get_v1_profiles_profile_id.response-200.json"
)
NAMELESS = """
import os, pwd
def getpwuid(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = getpwuid
os.environ.pop("HOME", None)
"""


def run(*arguments: str, path: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    """A Python module with this environment; `path` is a folder to import from first."""
    mine = ("all_proxy", "http_proxy", "https_proxy", "no_proxy", "ssl_cert_file", "ssl_cert_dir")
    kept = {k: v for k, v in os.environ.items() if k.lower() not in mine}
    search = os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True, text=True, timeout=120, check=False,
        env={**kept, "COLUMNS": "100", "PYTHONPATH": search, **more},
        cwd=Path(__file__).parents[3], encoding="utf-8", errors="replace",
    )  # fmt: skip


def one_line(text: str) -> str:
    (line,) = [line for line in text.splitlines() if line.strip()]
    return line


PROXIES = [
    ("ALL_PROXY", "socks5://user:hidden@127.0.0.1:1", "pip install httpx[socks]"),
    ("all_proxy", "nonsense://user:hidden@127.0.0.1:1", "not an address of a proxy"),
    ("HTTP_PROXY", "::hidden::", "not an address of a proxy"),
    ("NO_PROXY", "localhost,[::1]", "NO_PROXY cannot be used: write an IPv6 address in it without"),
    ("SSL_CERT_FILE", "/nonexistent/hidden", "No such file"),
]


@pytest.mark.parametrize(("name", "value", "words"), PROXIES)
def test_a_proxy_that_cannot_be_used_is_one_line(name: str, value: str, words: str) -> None:
    answer = run("service.terminal", "profiles", "--server", "https://127.0.0.1:9", **{name: value})
    assert answer.returncode == 2, answer.stderr
    line = one_line(answer.stderr)
    assert line.startswith(f"lacuna: {name.upper()} ")
    assert " cannot be used: " in line
    assert words in line
    assert "hidden" not in line


STORES = [
    ("rediss://127.0.0.1:1/0?ssl_cert_reqs=CERT_NONE", "none, optional or required"),
    ("rediss://127.0.0.1:1/0?ssl_ca_certs=/nonexistent", "there is no file /nonexistent"),
    ("redis://:hidden@127.0.0.1:1/0?nonsense=hidden", "the option nonsense"),
    ("redis://:hidden@127.0.0.1:1/0?socket_timeout=abc", "the option socket_timeout"),
    ("redis://127.0.0.1:1/0?decode_responses=True", "the option decode_responses"),
    ("redis://127.0.0.1:1/0?ssl_cert_reqs=none", "the option ssl_cert_reqs"),
    ("redis://127.0.0.1:1/0?protocol=9", "protocol is 2 or 3"),
    ("rediss://127.0.0.1:1/0?ssl_nonsense=1", "impossible value: ssl_nonsense"),
    ("unix:///nonexistent?db=first", "impossible value: db"),
]


@pytest.mark.parametrize(("url", "words"), STORES)
def test_an_option_of_the_store_that_cannot_be_used_is_one_line(url: str, words: str) -> None:
    answer = run("service.terminal", "gateway", LACUNA_REDIS_URL=url)
    assert answer.returncode == 2
    line = one_line(answer.stderr)
    assert "LACUNA_REDIS_URL" in line
    assert words in line
    assert "hidden" not in line


def test_worker_and_uvicorn_say_the_same_in_one_line() -> None:
    url = "redis://127.0.0.1:1/0?nonsense=1"
    for arguments, status in (
        (["workers"], 78),
        (["uvicorn", "--factory", "service.gateway.app:factory"], 2),
    ):
        answer = run(*arguments, LACUNA_REDIS_URL=url)
        assert answer.returncode == status, answer.stderr
        assert "LACUNA_REDIS_URL: the option nonsense" in one_line(answer.stderr)


def test_options_that_make_sense_are_taken(redis_url: str, tmp_path: Path) -> None:
    for option in ("?db=3", "?client_name=lacuna&protocol=3"):
        answer = run(
            "service.terminal", "profiles",
            LACUNA_REDIS_URL=redis_url + option, LACUNA_DATA_DIR=str(tmp_path),
        )  # fmt: skip
        assert answer.returncode == 0, answer.stderr


def test_a_user_without_name_and_home_needs_a_data_folder(short_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NAMELESS)
    where = str(tmp_path)
    answer = run("service.terminal", "profiles", path=where)
    assert answer.returncode == 2
    assert "LACUNA_DATA_DIR: ~/.cache/lacuna: no home folder" in one_line(answer.stderr)
    answer = run("service.terminal", "profiles", path=where, LACUNA_DATA_DIR=str(short_dir))
    assert answer.returncode == 0, answer.stderr
    # What is computed here needs no folder.
    assert run("service.terminal", "rollout", "--layers", "2", path=where).returncode == 0
    assert run("service.terminal", "show", str(EXAMPLE), path=where).returncode == 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "cp437"])
def test_a_terminal_without_unicode_gets_a_chart_that_can_be_read(encoding: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "service.terminal", "show", str(EXAMPLE)],
        capture_output=True, timeout=120, check=False, cwd=EXAMPLE.parents[2],
        env={**os.environ, "COLUMNS": "100", "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    text = answer.stdout.decode(encoding)
    assert "density (log; 1 = an even share)" in text
    assert "####" in text
    assert "?" not in text
