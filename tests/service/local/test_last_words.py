"""What is shown of the log of a process that ended."""

from __future__ import annotations

import logging
import sys

import pytest

from lacuna.contract.errors import StoreUnavailable
from service.local.stack import last_words
from service.logs import JsonFormatter, TextFormatter, _Formatter

FORMATTERS = [JsonFormatter([]), TextFormatter([])]
STYLES = pytest.mark.parametrize("style", FORMATTERS, ids=["json", "text"])


def logged(style: _Formatter, level: int, message: str, **fields: object) -> str:
    record = logging.LogRecord("lacuna", level, "", 0, message, (), None)
    vars(record).update(fields)
    return style.format(record)


def raised(style: _Formatter, message: str, error: Exception) -> str:
    try:
        raise error
    except Exception:
        record = logging.LogRecord("lacuna", logging.CRITICAL, "", 0, message, (), sys.exc_info())
    return style.format(record)


@STYLES
def test_the_last_error_that_was_logged_is_the_reason(style: _Formatter) -> None:
    lines = [
        logged(style, logging.ERROR, "an older one"),
        logged(style, logging.CRITICAL, "LACUNA_DEVICE is cuda, but there is no GPU"),
        logged(style, logging.INFO, "good bye"),
    ]
    assert last_words("\n".join(lines)) == "LACUNA_DEVICE is cuda, but there is no GPU"
    assert last_words(lines[-1]) == "", "what goes well is no reason"


@STYLES
def test_of_a_traceback_the_exception_is_the_reason(style: _Formatter) -> None:
    error = StoreUnavailable("maxmemory-policy is allkeys-lru\nand more of it")
    line = raised(style, "the worker ends by a fault of its own", error)
    assert last_words(line) == "StoreUnavailable: maxmemory-policy is allkeys-lru"


@STYLES
def test_the_server_logs_a_traceback_as_a_message_and_a_phrase_after_it(style: _Formatter) -> None:
    trace = (
        "Traceback (most recent call last):\n"
        '  File "routing.py", line 661, in lifespan\n'
        "    async with context:\n"
        "KeyError: 1\n"
        "\n"
        "During handling of the above exception, another exception occurred:\n"
        "\n"
        "Traceback (most recent call last):\n"
        '  File "app.py", line 172, in _check_policy\n'
        "    raise StoreUnavailable(found)\n"
        "lacuna.contract.errors.StoreUnavailable: set it to noeviction\n"
    )
    lines = [
        logged(style, logging.INFO, "Waiting for application startup."),
        logged(style, logging.ERROR, trace),
        logged(style, logging.ERROR, "Application startup failed. Exiting."),
    ]
    assert last_words("\n".join(lines)) == "StoreUnavailable: set it to noeviction"


def test_the_json_of_a_broken_device_says_why() -> None:
    line = logged(FORMATTERS[0], logging.CRITICAL, "worker ends: the device is broken", why="ECC")
    assert last_words(line) == "worker ends: the device is broken: ECC"


def test_what_is_printed_counts_where_nothing_was_logged() -> None:
    assert last_words("") == ""
    assert last_words("one\nno luck\n") == "no luck"
    trace = 'Traceback (most recent call last):\n  File "x", line 1\n    import y\n'
    assert last_words(f"{trace}ModuleNotFoundError: no y\n") == "ModuleNotFoundError: no y"
    assert last_words(f"{trace}ModuleNotFoundError: no y\nlater\n") == "later"
    assert last_words('{"a": 1}\n') == '{"a": 1}'
