"""Answers are kept through a kill, and a torn line is dropped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workers.endpoints.ledger import FileLedger, MemoryLedger, request_key


def test_answers_outlive_the_process_and_a_torn_line_does_not(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ledger"
    first = FileLedger(path)
    for i in range(5):
        first.put(f"{i:032x}", json.dumps({"n": i}).encode())
    first.close()
    whole = path.read_bytes()
    for cut in range(1, len(whole.splitlines()[-1]) + 1):
        path.write_bytes(whole[:-cut])
        again = FileLedger(path)
        assert len(again) == 4
        assert again.get(f"{4:032x}") is None
        again.put(f"{4:032x}", b'{"n": 4}')
        again.close()
        assert path.read_bytes() == whole


def test_keys_tell_every_part_apart() -> None:
    keys = {
        request_key("s", "POST", "http://x", {"a": 1}, reader="r"),
        request_key("t", "POST", "http://x", {"a": 1}, reader="r"),
        request_key("s", "GET", "http://x", {"a": 1}, reader="r"),
        request_key("s", "POST", "http://y", {"a": 1}, reader="r"),
        request_key("s", "POST", "http://x", {"a": 2}, reader="r"),
        request_key("s", "POST", "http://x", {"a": 1}, reader="q"),
        request_key("s", "POST", "http://x", {"a": 1}, reader="r", repeat=1),
    }
    assert len(keys) == 7
    assert request_key("s", "POST", "u", {"a": 1, "b": 2}, reader="r") == request_key(
        "s", "POST", "u", {"b": 2, "a": 1}, reader="r"
    )


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_both_kinds_give_back_what_was_kept(kind: str, tmp_path: Path) -> None:
    ledger = MemoryLedger() if kind == "memory" else FileLedger(tmp_path / "ledger")
    assert ledger.get("a") is None
    ledger.put("a", b'{"x":"\xc3\xa9"}')
    assert ledger.get("a") == b'{"x":"\xc3\xa9"}'
    if isinstance(ledger, FileLedger):
        ledger.close()
