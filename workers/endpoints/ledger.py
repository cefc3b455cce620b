"""Keeps every answer that was paid for: a killed measurement resumes without paying twice.

A kept answer is found by the digest of the request that it answered. Only what a reader needs of
the answer is kept: numbers, usage, the generated text; never the prompt, never the key.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any, Protocol

from lacuna.contract.base import canonical, digest


class Ledger(Protocol):
    """Where answers are kept. Calls are short and block; both may raise what the store raises."""

    def get(self, key: str) -> bytes | None:
        """The answer kept under this digest, or None."""
        ...

    def put(self, key: str, answer: bytes) -> None:
        """Keep an answer (JSON). It is safe from a kill of this process once this returns."""
        ...


def request_key(
    scope: str, method: str, address: str, body: Any, *, reader: str, repeat: int = 0
) -> str:
    """Digest of a request: 32 hex digits.

    Args:
        scope: whose answers these are: a digest of the measurement and of the served model.
        method: GET or POST.
        address: where it is sent.
        body: what is sent, as JSON values.
        reader: what is taken from the answer; two readers may send the same request.
        repeat: 0, 1, ... where the same request is asked again on purpose.
    """
    return digest([scope, method, address, body, reader, repeat])


class MemoryLedger:
    """Answers of this process alone: nothing outlives it."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        """The answer kept under this digest, or None."""
        return self._kept.get(key)

    def put(self, key: str, answer: bytes) -> None:
        """Keep an answer."""
        self._kept[key] = answer

    def __len__(self) -> int:
        return len(self._kept)


class PrivateLedger:
    """Notes which answers went to another ledger, so that they can be dropped with their job.

    Args:
        kept: where they are.
    """

    def __init__(self, kept: Ledger) -> None:
        self._kept = kept
        self._names: set[str] = set()

    @property
    def names(self) -> list[str]:
        """Of all answers that this job wrote or read."""
        return sorted(self._names)

    def get(self, key: str) -> bytes | None:
        """The answer kept under this digest, or None."""
        self._names.add(key)
        return self._kept.get(key)

    def put(self, key: str, answer: bytes) -> None:
        """Keep an answer."""
        self._names.add(key)
        self._kept.put(key, answer)


class FileLedger:
    """Answers in a file, one JSON line each, written through to the disk.

    A line that a kill cut short is dropped when the file is opened.

    Raises:
        BlockingIOError: another process has the file open; two of them would pay twice.
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._kept: dict[str, bytes] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "a+b")  # noqa: SIM115  (closed by `close`)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise
        self._file.seek(0)
        whole = 0
        for line in self._file:
            try:
                key, answer = json.loads(line)
                fine = line.endswith(b"\n")
            except (ValueError, TypeError):
                fine = False
            if not fine:
                break
            self._kept[key] = canonical(answer)
            whole += len(line)
        self._file.truncate(whole)
        self._file.seek(0, os.SEEK_END)

    def get(self, key: str) -> bytes | None:
        """The answer kept under this digest, or None."""
        return self._kept.get(key)

    def put(self, key: str, answer: bytes) -> None:
        """Keep an answer; returns once the disk has it."""
        self._kept[key] = answer
        self._file.write(canonical([key, json.loads(answer)]) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; what was kept stays on the disk."""
        self._file.close()

    def __len__(self) -> int:
        return len(self._kept)
