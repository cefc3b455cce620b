"""Logs: one line per event, JSON or text, with the ids of the current request and job.

Secrets never reach a line. What the roots register as secret is replaced in messages, fields and
tracebacks.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Literal

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Id of the HTTP request being served, here or by the gateway that queued the job."""
job_id: ContextVar[str] = ContextVar("job_id", default="")
"""Id of the job being run."""

_PLAIN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_MASK: Final = "[secret]"


@contextmanager
def context(*, request: str | None = None, job: str | None = None) -> Iterator[None]:
    """Add ids to every line that is logged within the context."""
    tokens = []
    if request is not None:
        tokens.append((request_id, request_id.set(request)))
    if job is not None:
        tokens.append((job_id, job_id.set(job)))
    try:
        yield
    finally:
        for variable, token in reversed(tokens):
            variable.reset(token)


class _Formatter(logging.Formatter):
    """What both formats share: the fields of a line, and the mask for secrets."""

    def __init__(self, secrets: Iterable[str]) -> None:
        super().__init__()
        # Short strings would mask half of every line; no real secret is that short.
        self._secrets = tuple(sorted({s for s in secrets if len(s) >= 6}, key=len, reverse=True))

    def masked(self, text: str) -> str:
        """The text with every secret replaced."""
        for secret in self._secrets:
            text = text.replace(secret, _MASK)
        return text

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """All fields of an event, in the order in which they are written."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, variable in (("request_id", request_id), ("job_id", job_id)):
            if value := variable.get():
                fields[name] = value
        fields |= {k: v for k, v in vars(record).items() if k not in _PLAIN}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return fields


class JsonFormatter(_Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, secrets masked."""
        # Escaping could hide a secret from the mask, so the mask works on the values.
        fields = {
            key: value if isinstance(value, int | float | None) else self.masked(str(value))
            for key, value in self.fields(record).items()
        }
        return json.dumps(fields, ensure_ascii=False, default=str)


class TextFormatter(_Formatter):
    """For people: time, level, message, then the other fields as key=value."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, secrets masked, and the traceback below it."""
        fields = self.fields(record)
        trace = fields.pop("traceback", "")
        head = f"{fields.pop('time')} {fields.pop('level'):7} {fields.pop('message')}"
        rest = " ".join(f"{key}={value}" for key, value in fields.items())
        return self.masked(f"{head}  {rest}" + (f"\n{trace}" if trace else ""))


class _ExitReason(logging.Handler):
    """Writes one line for each critical event to a pipe: why this process ends."""

    def __init__(self, descriptor: int, secrets: Iterable[str]) -> None:
        super().__init__(logging.CRITICAL)
        self._descriptor, self._formatter = descriptor, _Formatter(secrets)

    def emit(self, record: logging.LogRecord) -> None:
        """Write the exception that ended the process, or the message and its `why`."""
        error = record.exc_info[1] if record.exc_info else None
        reason = f": {why}" if (why := getattr(record, "why", "")) else ""
        said = (
            f"{record.getMessage()}{reason}"
            if error is None
            else f"{type(error).__name__}: {error}"
        )
        line = next(iter(self._formatter.masked(said).splitlines()), "")
        # Without a reader, or one that does not read, the log has it all the same.
        with contextlib.suppress(OSError):
            os.write(self._descriptor, f"{line}\n".encode(errors="replace"))


def configure(
    level: Literal["debug", "info", "warning", "error"] = "info",
    style: Literal["json", "text"] = "json",
    secrets: Iterable[str] = (),
    exit_reason_fd: int | None = None,
) -> None:
    """Send all logs, warnings and uncaught exceptions to standard error in one format.

    Only the roots call it. Uncaught exceptions are logged because a traceback may show a secret.

    Args:
        level: the lowest level that is written.
        style: JSON for machines or text for people.
        secrets: strings that must never appear (keys, tokens, the password in the store's URL).
        exit_reason_fd: a pipe that gets a line for each critical event; see `local.child`.
    """
    secrets = tuple(secrets)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(secrets) if style == "json" else TextFormatter(secrets))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    if exit_reason_fd is not None:
        root.addHandler(_ExitReason(exit_reason_fd, secrets))
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread
    # uvicorn sets up its own format when it is started by its own command.
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = name != "uvicorn.access"  # the gateway writes that
    # Libraries that log every request at level info.
    for name in ("httpx", "httpcore", "filelock", "urllib3"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        logging.getLogger("lacuna").info("interrupted")
        return
    logging.getLogger("lacuna").critical("the process ends", exc_info=(kind, error, trace))


def _uncaught_in_thread(what: threading.ExceptHookArgs) -> None:
    if what.exc_value is not None:
        trace = (what.exc_type, what.exc_value, what.exc_traceback)
        logging.getLogger("lacuna").critical("a thread ends", exc_info=trace)
