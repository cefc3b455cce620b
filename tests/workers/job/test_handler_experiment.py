"""A whole experiment through the handler, on a tiny model: what it leaves, and how it goes on."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_families import build  # type: ignore[import-not-found, unused-ignore]

from lacuna.contract.errors import InvalidRequest, ProfileNotFound, TooLarge, TooLong
from lacuna.contract.experiment_requests import ExperimentRequest
from lacuna.contract.experiments import ROW_COLUMNS, ExperimentResult
from service.settings import Settings
from service.store.claims import Claim, ExperimentOutcome
from service.store.profiles import unpacked
from workers.job import ProfileHandler
from workers.lease import GiveBack, JobCancelled

JOB = "a" * 32
SECRET = "never on disk"


class Context:
    """A queue that ends the job at the first check after so large a share of it."""

    def __init__(self, stop: type[Exception] | None = None, after: float = 0.6) -> None:
        self.claim = Claim(JOB, "w/1", b"", 1, "", "experiment")
        self.shares: list[float] = []
        self.stop, self.after = stop, after

    def progress(self, share: float, message: str = "") -> None:
        self.shares.append(share)

    def check(self) -> None:
        if self.stop is not None and self.shares[-1] >= self.after:
            raise self.stop("the job must stop")


def body(questions: int = 12, **changes: Any) -> ExperimentRequest:
    letters = "abcdefghijklmnopqrstuvwxyz"
    found = [
        {
            "question": f"Which word is number {n}?",
            "chunks": [
                {"id": f"{k}", "text": f"{SECRET} {letters[n]} {letters[k]}", "score": score}
                for k, score in enumerate([0.1, 0.7, 0.4, 0.2])
            ],
            "answers": [letters[n % 4]],
        }
        for n in range(questions)
    ]
    given = {"model": "local:tiny", "questions": found, "template": {"instructions": ""}} | changes
    return ExperimentRequest.model_validate(given)


Run = Callable[..., ExperimentOutcome]


@pytest.fixture
def folder(tmp_path: Path, make_tokenizer: Callable[..., Any], one_thread: None) -> Path:
    """A folder with a tiny model."""
    model = tmp_path / "models" / "tiny"
    build("llama", vocab_size=300, max_position_embeddings=512).save_pretrained(model)
    make_tokenizer("<s> $A").save_pretrained(model)
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Run:
    """Runs a request through a handler of its own, as another process would."""

    def make(
        request: ExperimentRequest, context: Context | None = None, **settings: Any
    ) -> ExperimentOutcome:
        where = {"data_dir": folder / "data", "model_dir": folder / "models", "device": "cpu"}
        handler = ProfileHandler(Settings(**where, **settings), lambda _id: None)
        assert set(handler.describe().kinds) == {"profile", "experiment"}
        found = handler(request, context or Context())  # type: ignore[arg-type]
        assert isinstance(found, ExperimentOutcome)
        return found

    return make


def kept(folder: Path) -> list[Path]:
    return list((folder / "data" / "experiments").iterdir())


def test_an_experiment_leaves_a_result_and_every_reading(run: Run, folder: Path) -> None:
    context = Context()
    found = run(body(), context)
    result = ExperimentResult.model_validate_json(found.result)
    assert (result.id, result.questions, result.lost) == (JOB, 12, 0)
    rows = list(csv.reader(io.StringIO(unpacked(found.rows).decode(), newline="")))
    assert tuple(rows[0]) == ROW_COLUMNS
    arms = [order.name for order in result.orders]
    for order in result.orders:
        scores = [float(row[4]) for row in rows[1:] if row[1] == order.name]
        assert len(scores) == 12
        assert sum(scores) / 12 == pytest.approx(order.mean, rel=1e-4)
    assert {row[1] for row in rows[1:]} == {*arms, "a_a", "closed_book"}
    assert SECRET.encode() not in found.result + unpacked(found.rows)
    assert context.shares == sorted(context.shares)
    assert kept(folder) == []


def test_a_job_that_is_given_back_goes_on_where_it_was(run: Run, folder: Path) -> None:
    whole = run(body())
    with pytest.raises(GiveBack):
        run(body(), Context(GiveBack))
    (file,) = kept(folder)
    lines = file.read_text().splitlines()
    assert lines
    assert SECRET not in file.read_text()
    context = Context()
    again = run(body(), context)
    before, after = (json.loads(one.result) for one in (whole, again))
    assert before.pop("usage") != after.pop("usage")
    assert before == after
    assert again.rows == whole.rows
    assert kept(folder) == []


@pytest.mark.parametrize("end", [JobCancelled, InvalidRequest])
def test_a_job_that_ends_leaves_nothing_on_disk(
    run: Run, folder: Path, end: type[Exception]
) -> None:
    with pytest.raises(end):
        run(body(), Context(end))
    assert kept(folder) == []


def test_what_cannot_be_run_is_refused(run: Run) -> None:
    with pytest.raises(TooLarge, match="local:tiny has"):
        run(body(), max_cost=1e3)
    long = body().model_dump()
    long["questions"][0]["chunks"][0]["text"] = "word " * 2_000
    with pytest.raises(TooLong, match="'1'"):
        run(ExperimentRequest.model_validate(long))
    with pytest.raises(ProfileNotFound):
        run(body(orders=["advised"], profile_id="b" * 32))
