"""`python -m workers.experiments` against a fake server: estimate, result, resuming, errors."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lacuna.contract.experiments import ROW_COLUMNS, ExperimentResult
from service.endpoints.costs import LADDER_CALLS
from tests.workers.endpoints.fake_dialects import DIALECTS
from tests.workers.endpoints.fake_model import FakeModel, recency
from tests.workers.endpoints.fake_server import KEY, FakeServer
from tests.workers.experiments.test_served import TEMPLATE, request_of
from workers.experiments.__main__ import main

Run = Callable[..., tuple[int, str, str]]
COUNT = 14


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with DIALECTS["vllm"](FakeModel(recency)) as running:
        yield running


@pytest.fixture
def run(
    server: FakeServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    (tmp_path / "endpoints.toml").write_text(
        f'[prod]\nbase_url = "{server.url}/v1"\nmodel = "fake"\nkey_variable = "PROD_KEY"\n'
        'context_length = 4096\nform = "plain"\nconcurrency = 4\ninput_price = 2.0\n'
    )
    lines = [
        question.model_dump_json(exclude_none=True) for question in request_of(COUNT).questions
    ]
    (tmp_path / "questions.jsonl").write_text("\n".join(lines) + "\n\n")
    (tmp_path / "template.json").write_text(json.dumps(TEMPLATE, indent=1))
    (tmp_path / "wrong.jsonl").write_text(lines[0] + "\n{not json\n")
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "bad.jinja").write_text("{{ 9 ** 9 }}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROD_KEY", KEY)

    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(arguments)
        return status, *capsys.readouterr()

    return call


ASK = ("prod", "questions.jsonl", "--template", "template.json", "--orders", "relevance_last")


def test_a_planted_effect_comes_out_and_is_paid_once(run: Run, server: FakeServer) -> None:
    status, out, err = run(*ASK, "--json", "--csv", "rows.csv")
    assert (status, err) == (0, "")
    found = ExperimentResult.model_validate_json(out)
    assert (found.verdict.decision, found.verdict.order) == ("use", "relevance_last")
    assert found.usage.cost is not None
    assert found.usage.cost > 0
    rows = list(csv.DictReader(Path("rows.csv").read_text().splitlines()))
    assert tuple(rows[0]) == ROW_COLUMNS
    assert len(rows) == COUNT * 4
    assert {row["place"] for row in rows} == {"0", "5", ""}
    before, asked = server.requests, len(server.bodies)
    status, text, _ = run(*ASK)
    assert status == 0
    assert server.requests - before <= LADDER_CALLS, "how it can be read is found anew"
    assert "The owner of lantern" in str(server.bodies[:asked])
    assert "The owner of lantern" not in str(server.bodies[asked:])
    assert "Use relevance_last: it scores 0." in text
    assert "the reference again: +0.000" in text


def test_a_jinja_file_is_the_template(run: Run, tmp_path: Path) -> None:
    source = "{% for c in chunks %}{{ c.text }}\n{% endfor %}\n{{ question }}"
    (tmp_path / "own.jinja").write_text(source)
    status, out, _ = run("prod", "questions.jsonl", "--template", "own.jinja", "--dry-run")
    assert status == 0
    assert "calls" in out


def test_an_estimate_calls_nobody(run: Run, server: FakeServer) -> None:
    before = server.requests
    status, out, _ = run(*ASK, "--dry-run", "--json")
    assert (status, server.requests) == (0, before)
    assert json.loads(out)["calls"] > COUNT * 4


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("nobody", "questions.jsonl"), 1, "endpoint_unknown: "),
        (("prod", "none.jsonl"), 2, "none.jsonl"),
        (("prod", "wrong.jsonl"), 2, "wrong.jsonl line 2: not JSON"),
        (("prod", "empty.jsonl"), 2, "questions: List should have at least 1 item"),
        (("prod", "questions.jsonl", "--orders", "best"), 2, "orders.0: "),
        (("prod", "questions.jsonl", "--template", "bad.jinja"), 1, "a power is refused"),
        ((*ASK, "--max-calls", "100"), 1, "max_calls"),
        ((*ASK, "--max-cost", "0.000001"), 1, "budget_spent: the cost is"),
        (("prod", "questions.jsonl", "--profile", "questions.jsonl"), 2, "profile"),
    ],
)
def test_errors_are_one_line(run: Run, arguments: tuple[str, ...], status: int, words: str) -> None:
    found, out, err = run(*arguments)
    assert (found, out) == (status, "")
    assert words in err
    assert err.count("\n") == 1
