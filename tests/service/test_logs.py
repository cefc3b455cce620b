"""Logs: ids, formats, and no secret anywhere."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator

import pytest

from service import logs

SECRET = 'hf_s3cr3t/"token"'


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """What went to standard error; afterwards logging is as it was."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    hooks = sys.excepthook, threading.excepthook
    yield lambda: capsys.readouterr().err
    logging.captureWarnings(False)
    sys.excepthook, threading.excepthook = hooks
    root.handlers[:], root.level = before, level


def test_json_lines_carry_ids_and_fields(written: Callable[[], str]) -> None:
    logs.configure("info", "json")
    with logs.context(request="req-1", job="job-1"):
        logging.getLogger("a.b").info("made %d", 3, extra={"seconds": 1.5})
    logging.getLogger("a.b").info("outside")
    logging.getLogger("a.b").debug("not at this level")
    first, second = map(json.loads, written().splitlines())
    assert first["message"] == "made 3"
    assert (first["request_id"], first["job_id"], first["seconds"]) == ("req-1", "job-1", 1.5)
    assert (first["level"], first["logger"]) == ("info", "a.b")
    assert first["time"].endswith("Z")
    assert "request_id" not in second


@pytest.mark.parametrize("style", ["json", "text"])
def test_no_secret_in_message_field_or_traceback(written: Callable[[], str], style: str) -> None:
    logs.configure("info", "json" if style == "json" else "text", [SECRET, "", "ab"])
    log = logging.getLogger("x")
    log.info("using %s", SECRET, extra={"url": f"redis://:{SECRET}@host"})
    try:
        raise ValueError(SECRET)
    except ValueError:
        log.exception("about to fail")
    text = written()
    assert "s3cr3t" not in text
    assert text.count("[secret]") >= 3
    assert "about" in text  # short strings are no secrets


def test_warnings_and_what_nobody_caught_are_lines_without_secrets(
    written: Callable[[], str],
) -> None:
    logs.configure("info", "json", [SECRET])

    def fail() -> None:
        raise ValueError(SECRET)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn(SECRET, stacklevel=1)
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    error = ValueError(SECRET)
    sys.excepthook(ValueError, error, None)
    text = written()
    assert "s3cr3t" not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["level"] for line in lines] == ["warning", "critical", "critical"]
    assert "in fail" in lines[1]["traceback"]


def test_text_is_for_people(written: Callable[[], str]) -> None:
    logs.configure("warning", "text")
    with logs.context(job="job-1"):
        logging.getLogger("x").warning("look", extra={"code": "oops"})
    line = written().strip()
    assert "warning" in line
    assert "look" in line
    assert "job_id=job-1" in line
    assert "code=oops" in line


def test_a_value_of_any_kind_is_one_line(written: Callable[[], str]) -> None:
    logs.configure("info", "json")
    logging.getLogger("x").info("a\nb", extra={"thing": object(), "none": None})
    (line,) = written().splitlines()
    assert json.loads(line)["message"] == "a\nb"
    assert json.loads(line)["none"] is None


def test_contexts_nest_and_end() -> None:
    with logs.context(request="a"):
        with logs.context(request="b", job="c"):
            assert (logs.request_id.get(), logs.job_id.get()) == ("b", "c")
        assert (logs.request_id.get(), logs.job_id.get()) == ("a", "")
    assert logs.request_id.get() == ""


def test_critical_events_say_on_a_pipe_why_the_process_ends(written: Callable[[], str]) -> None:
    reader, writer = os.pipe()
    logs.configure("info", "json", [SECRET], writer)
    log = logging.getLogger("x")
    log.error("one job failed; that ends nothing")
    log.critical("the device %s is broken", "cuda:0", extra={"why": "ECC"})
    log.critical(f"{SECRET} does not work\nand more of it")
    log.critical("the process ends", exc_info=ValueError(SECRET))
    assert os.read(reader, 65_536).decode().splitlines() == [
        "the device cuda:0 is broken: ECC",
        "[secret] does not work",
        "ValueError: [secret]",
    ]
    os.close(reader)
    log.critical("nobody reads any more")
    os.close(writer)
    assert len(written().splitlines()) == 5
