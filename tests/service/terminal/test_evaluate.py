"""`lacuna evaluate`: its options are the request; files of questions; the report."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lacuna.contract.experiment_requests import ExperimentEstimate, ExperimentRequest
from lacuna.contract.experiments import ExperimentResult
from service.local.stack import Stack
from service.store.claims import ExperimentOutcome
from service.store.profiles import packed
from service.terminal.evaluate import estimate_report, experiment_report
from workers.loop import understood

EXAMPLES = Path(__file__).parents[3] / "openapi" / "examples"
ASKED = json.loads((EXAMPLES / "post_v1_experiments.request.json").read_text())
RESULT = json.loads((EXAMPLES / "get_v1_experiments_experiment_id.response-200.json").read_text())
MODEL = ["--model", ASKED["model"]]
PLAIN = {"model": ASKED["model"], "questions": ASKED["questions"]}
DENSITY = '{"density": [1, 2]}'
SAME: dict[str, tuple[list[str], dict[str, Any]]] = {
    "defaults": ([], {}),
    "orders": (
        ["--orders", "relevance_last,random", "--reference", "relevance_first"],
        {"orders": ["relevance_last", "random"], "reference": "relevance_first"},
    ),
    "numbers": (
        ["--smallest-effect", "0.1", "--seed", "3", "--max-calls", "500", "--max-tokens", "90000"],
        {"smallest_effect": 0.1, "seed": 3, "budget": {"max_calls": 500, "max_tokens": 90_000}},
    ),
    "names": (
        ["--scoring", "exact", "--scale", "logit", "--dtype", "float32"],
        {"scoring": "exact", "relevance_scale": "logit", "dtype": "float32"},
    ),
    "a request": (
        ["--orders", "optimal", "--request", DENSITY],
        {"orders": ["optimal"], "density": [1, 2]},
    ),
}


@pytest.fixture
def questions(tmp_path: Path) -> str:
    """A file of two questions, with a blank line."""
    path = tmp_path / "questions.jsonl"
    path.write_text("\n\n".join(json.dumps(one) for one in ASKED["questions"]))
    return str(path)


@pytest.mark.parametrize(("options", "changes"), SAME.values(), ids=SAME)
def test_options_are_the_request(
    lacuna: Any,
    stack: Stack,
    worker: Any,
    questions: str,
    options: list[str],
    changes: dict[str, Any],
) -> None:
    lacuna.prints("evaluate", questions, *MODEL, *options, "--no-wait", "--json", server=stack.url)
    request = understood(worker.claim())
    assert request == ExperimentRequest.model_validate(PLAIN | changes)


@pytest.mark.parametrize(
    ("name", "content", "template"),
    [
        ("p.j2", "{{ question }}\n{% for c in chunks %}{{ c.text }}{% endfor %}", None),
        ("p.json", '{\n  "instructions": "Answer.", "question": "both"}',
         {"instructions": "Answer.", "question": "both"}),
    ],
)  # fmt: skip
def test_the_prompt_comes_from_a_file(
    lacuna: Any,
    stack: Stack,
    worker: Any,
    questions: str,
    tmp_path: Path,
    name: str,
    content: str,
    template: Any,
) -> None:
    (tmp_path / name).write_text(content)
    options = ["--template", str(tmp_path / name), "--no-wait"]
    lacuna.prints("evaluate", questions, *MODEL, *options, server=stack.url)
    expected = PLAIN | {"template": template or {"jinja": content}}
    assert understood(worker.claim()) == ExperimentRequest.model_validate(expected)


def test_a_result_is_told_and_written(
    lacuna: Any, stack: Stack, worker: Any, questions: str, tmp_path: Path
) -> None:
    lacuna.prints("evaluate", questions, *MODEL, "--no-wait", server=stack.url)
    claim = worker.claim()
    document = json.dumps({**RESULT, "id": claim.job_id}).encode()
    worker.store.finish(claim, ExperimentOutcome(document, packed(["question,arm\r\n"])))
    rows, result = tmp_path / "rows.csv", tmp_path / "result.json"
    files = ["--csv", str(rows), "--output", str(result)]
    printed = lacuna.prints("evaluate", questions, *MODEL, *files, server=stack.url)
    assert RESULT["verdict"]["words"] in " ".join(printed.split())
    assert rows.read_bytes() == b"question,arm\r\n"
    assert ExperimentResult.model_validate_json(result.read_text()).id == claim.job_id
    as_json = lacuna.prints("evaluate", questions, *MODEL, "--json", server=stack.url)
    assert json.loads(as_json)["id"] == claim.job_id


def test_a_dry_run_says_what_it_takes(
    lacuna: Any, stack: Stack, worker: Any, questions: str
) -> None:
    printed = lacuna.prints("evaluate", questions, *MODEL, "--dry-run", server=stack.url)
    assert "2 questions, at most 12 prompts" in printed
    assert "seconds" in printed
    assert "note: 2 questions are too few: no verdict is given below 12" in printed
    assert worker.idle()


def test_a_file_is_one_json_value_too(
    lacuna: Any, stack: Stack, worker: Any, tmp_path: Path
) -> None:
    path = tmp_path / "guide.json"
    for asked in (ASKED["questions"][0], ASKED["questions"]):
        path.write_text(json.dumps(asked, indent=2))
        lacuna.prints("evaluate", str(path), *MODEL, "--no-wait", server=stack.url)
        found = understood(worker.claim()).questions
        assert len(found) == (1 if isinstance(asked, dict) else len(asked))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ 9 ** 9 }}", "a power"),
        ("{% for %}", "line 1: "),
        ("{{ question }}", "the prompt stays the same when the chunks change places"),
    ],
)
@pytest.mark.parametrize("dry", [["--dry-run"], ["--no-wait"]])
def test_a_template_is_refused_and_named_once(
    lacuna: Any, stack: Stack, questions: str, tmp_path: Path, source: str, said: str, dry: Any
) -> None:
    (tmp_path / "bad.jinja").write_text(source)
    options = ["--template", str(tmp_path / "bad.jinja"), *dry]
    refused = lacuna.fails(1, "evaluate", questions, *MODEL, *options, server=stack.url)
    assert said in refused
    assert refused.count("--template") == 1


def test_a_profile_is_an_id(lacuna: Any, questions: str, tmp_path: Path) -> None:
    saved = tmp_path / "profile.json"
    saved.write_text("{}")
    options = ["--orders", "advised", "--profile"]
    refused = lacuna.fails(2, "evaluate", questions, *MODEL, *options, str(saved))
    assert "is a file; give the id of a profile" in refused
    assert "32 hex digits" in lacuna.fails(2, "evaluate", questions, *MODEL, *options, "none")


def test_the_other_name_of_a_score_is_told(lacuna: Any, tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps(ASKED["questions"][0]).replace('"score"', '"relevance"'))
    assert "did you mean `score`?" in lacuna.fails(2, "evaluate", str(path), *MODEL)


def test_zero_has_no_sign() -> None:
    console = Console(width=80, file=io.StringIO(), color_system=None)
    small = {"value": -1e-9, "low": -1e-7, "high": -0.0}
    change = {"difference": small, "log_difference": small, "joint_low": -1e-7, "joint_high": -0.0}
    orders = [RESULT["orders"][0], {**RESULT["orders"][1], **change}]
    controls = {**RESULT["controls"], "a_a": {"difference": small, "questions": 2, "found": False}}
    result = {**RESULT, "orders": orders, "controls": controls}
    experiment_report(console, ExperimentResult.model_validate(result))
    assert "-0.0" not in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: not JSON"),
        ('{"question": "Q", "chunks": [], "answers": ["a"]}', "line 2: chunks"),
        ('{"query": "Q"}', "line 2: query: unknown field; did you mean `question`?"),
        ("[1]", "line 2: "),
    ],
)
def test_a_fault_names_the_line(lacuna: Any, tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps(ASKED["questions"][0]) + "\n" + line)
    assert said in lacuna.fails(2, "evaluate", str(path), *MODEL)


def test_wrong_use_is_one_line(lacuna: Any, stack: Stack, questions: str, tmp_path: Path) -> None:
    assert "--orders" in lacuna.fails(2, "evaluate", questions, *MODEL, "--orders", "best")
    away = str(tmp_path / "no" / "rows.csv")
    assert away in lacuna.fails(2, "evaluate", questions, *MODEL, "--csv", away)
    others = tmp_path / "others.csv"
    others.write_text("mine")
    assert "did not write it" in lacuna.fails(
        2, "evaluate", questions, *MODEL, "--csv", str(others)
    )
    refused = lacuna.fails(1, "evaluate", questions, "--model", "demo:nothing", server=stack.url)
    assert refused.startswith("lacuna: model_not_found: --model: ")


def test_the_report_fits_a_terminal_of_80_columns() -> None:
    console = Console(width=80, file=io.StringIO(), color_system=None)
    nats = {"value": -0.12345, "low": -1, "high": 1}
    other = {**RESULT["orders"][1], "p": 0.00024414, "flips": 0.5, "log_difference": nats}
    many = [{**other, "name": name} for name in ("zigzag_best_last", "random_again")]
    found = ExperimentResult.model_validate({**RESULT, "orders": [RESULT["orders"][0], *many]})
    experiment_report(console, found)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    table = text.partition("verdict:")[0]
    assert "zigzag, best last" in table
    assert "random, another draw" in table
    assert "<0.001" in table
    assert "…" not in table
    assert "+0.003" in table
    assert "-1.000 to +1.000" in table
    assert found.verdict.words in text


def test_an_estimate_of_an_endpoint_names_calls_and_money() -> None:
    found = ExperimentEstimate(
        questions=1, prompts=6, prompt_tokens=7_000, generated_tokens=6, calls=70,
        multiply_adds=None, cost=0.02, minutes=3.0,
    )  # fmt: skip
    lines = "; ".join(estimate_report(found))
    for words in ("1 question,", "7,000 tokens", "70 calls", "0.02", "3 minutes"):
        assert words in lines
