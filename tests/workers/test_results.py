"""Results on disk until the store takes them."""

from __future__ import annotations

import errno
import json
import stat
from pathlib import Path

import pytest

from service.store.claims import Claim, ExperimentOutcome, ProfileOutcome
from workers.results import PendingResults

CLAIM = Claim("a" * 32, "host-1/f00d", b"{}", 2, "trace")
OUTCOME = ProfileOutcome("b" * 32, '{"text": "ÿ"}'.encode(), b"{}", b'{"model": "m"}')


def test_a_result_comes_back_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "pending"
    PendingResults(folder).keep(CLAIM, OUTCOME)
    (found,) = PendingResults(folder)
    assert (found.claim.job_id, found.claim.token) == (CLAIM.job_id, CLAIM.token)
    assert found.outcome == OUTCOME
    assert stat.S_IMODE(found.path.stat().st_mode) == 0o600


def test_a_dropped_result_is_gone_and_dropping_twice_does_no_harm(tmp_path: Path) -> None:
    pending = PendingResults(tmp_path)
    kept = pending.keep(CLAIM, OUTCOME)
    pending.drop(kept)
    pending.drop(kept)
    assert list(pending) == []


def test_an_unreadable_file_is_set_aside_and_the_others_are_read(tmp_path: Path) -> None:
    pending = PendingResults(tmp_path)
    pending.keep(CLAIM, OUTCOME)
    (tmp_path / "0.json").write_text("{")
    (tmp_path / "1.json").write_text("[]")
    assert len(list(pending)) == 1
    assert (tmp_path / "0.unreadable").exists()
    assert len(list(pending)) == 1


def test_a_folder_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    assert list(PendingResults(tmp_path / "none")) == []


def test_files_that_cannot_be_read_or_sent_are_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pending = PendingResults(tmp_path)
    good = pending.keep(CLAIM, OUTCOME)
    (tmp_path / "0.json").mkdir()  # stands for a disk that fails: root may read all
    no_model = json.loads(good.path.read_text())
    no_model["outcome"]["summary"] = "{}"
    (tmp_path / "1.json").write_text(json.dumps(no_model))
    no_model["outcome"]["body"] = 3
    (tmp_path / "2.json").write_text(json.dumps(no_model))
    for _ in range(2):
        assert [found.path for found in pending] == [good.path]
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".unreadable"}
    assert len(caplog.records) == 3


def test_what_cannot_be_set_aside_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: object, **named: object) -> None:
        raise OSError(errno.EROFS, "read-only")

    pending = PendingResults(tmp_path)
    kept = pending.keep(CLAIM, OUTCOME)
    (tmp_path / "0.json").write_text("{")
    monkeypatch.setattr(Path, "replace", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    assert [found.path for found in pending] == [kept.path]
    pending.drop(kept)
    assert list(pending) == []
    assert len(caplog.records) == 2
    monkeypatch.setattr(Path, "glob", refuse)
    assert list(pending) == list(pending) == []
    assert len(caplog.records) == 3


def test_an_experiment_survives_on_disk(tmp_path: Path) -> None:
    outcome = ExperimentOutcome('{"words": "ÿ"}'.encode(), b"\x00\xff\x9c")
    folder = PendingResults(tmp_path / "kept")
    kept = folder.keep(CLAIM, outcome)
    assert [result.outcome for result in folder] == [outcome]
    folder.drop(kept)
    assert list(folder) == []
