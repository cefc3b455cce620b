"""`lacuna rollout`: options are the request, the table is the answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lacuna.contract.rollouts import RolloutRequest
from service.answers.rollouts import compute

ALIBI = {"type": "alibi"}
WINDOW = {"type": "window", "window": 64}
SAME: dict[str, tuple[list[str], dict[str, Any]]] = {
    "JSON": (['{"layers": 4}'], {"layers": 4}),
    "--request": (["--request", '{"layers": 4}'], {"layers": 4}),
    "numbers": (
        ["--layers", "4", "--heads", "2", "--length", "100", "--bins", "10"],
        {"layers": 4, "heads": 2, "sequence_length": 100, "bins": 10},
    ),
    "over JSON": (['{"layers": 4, "heads": 2}', "--layers", "5"], {"layers": 5, "heads": 2}),
    "a constant": (
        ["--layers", "4", "--lambda", "0.3"],
        {"layers": 4, "mixing": {"type": "constant", "value": 0.3}},
    ),
    "a schedule": (
        ["--lambda", "0.3, 0.2,0.1"],
        {"mixing": {"type": "list", "lambdas": [0.3, 0.2, 0.1]}},
    ),
    "a model": (["--model", "gpt2"], {"architecture": "gpt2"}),
    "predictions": (
        ["--layers", "4", "--predictions", "residual, second_moment"],
        {"layers": 4, "predictions": ["residual", "second_moment"]},
    ),
    "alibi": (["--layers", "4", "--positions", "alibi"], {"layers": 4, "kernel": ALIBI}),
    "rotary": (
        ["--layers", "4", "--positions", "rotary"], {"layers": 4, "kernel": {"type": "uniform"}},
    ),
    "a window": (["--layers", "4", "--window", "64"], {"layers": 4, "kernel": WINDOW}),
    "a window of a model with alibi": (
        ["--model", "bloom-560m", "--window", "64"],
        {"architecture": "bloom-560m", "kernel": {**WINDOW, "slopes": "standard"}},
    ),
    "alibi in a model with a window": (
        ["--model", "mistral-7b-v0.1", "--positions", "alibi"],
        {
            "architecture": "mistral-7b-v0.1",
            "kernel": {"type": "window", "window": 4_096, "slopes": "standard"},
        },
    ),
    "more fields": (
        ["--layers", "4", "--request", '{"threshold": 0.5, "content": {"diagonal": 1.0}}'],
        {"layers": 4, "threshold": 0.5, "content": {"diagonal": 1.0}},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "body"), SAME.values(), ids=SAME)
def test_options_are_the_request(lacuna: Any, arguments: list[str], body: dict[str, Any]) -> None:
    result = lacuna("rollout", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    answer = compute(RolloutRequest.model_validate(body))
    assert json.loads(result.stdout) == json.loads(answer.model_dump_json())
    assert result.stderr == ""


def test_a_request_from_a_file_or_stdin(lacuna: Any, tmp_path: Any) -> None:
    (tmp_path / "r.json").write_text('{"layers": 4}')
    first = lacuna("rollout", f"@{tmp_path / 'r.json'}", "--json")
    second = lacuna("rollout", "-", "--json", stdin='{"layers": 4}')
    assert json.loads(first.stdout) == json.loads(second.stdout)


def test_the_table_says_what_the_answer_says(lacuna: Any) -> None:
    answer = compute(RolloutRequest.model_validate({"architecture": "bloom-560m"}))
    result = lacuna("rollout", "--model", "bloom-560m")
    assert "bloom-560m: 24 layers, 16 heads, 256 tokens" in result.stdout
    for name, prediction in answer.predictions.items():
        row = next(line for line in result.stdout.splitlines() if f"│ {name} " in line)
        zone = prediction.dead_zone
        words = "none" if zone is None else f"{zone.start}-{zone.end - 1}"
        assert words in row
        assert prediction.shape.class_ in row
    for force in answer.forces:
        row = [line for line in result.stdout.splitlines() if f"│ {force.name} " in line][-1]
        assert f"{force.shift:+.4f}" in row
    for sentence in [*answer.summary, *answer.assumptions, answer.collapse.verdict]:
        assert sentence in result.stdout
    assert "density (log; 1 = an even share)" in result.stdout
    assert "\x1b" not in result.stdout


def test_a_long_prompt_is_drawn_without_being_told_to_bin(lacuna: Any) -> None:
    result = lacuna("rollout", "--layers", "2", "--length", "20000")
    assert result.exit_code == 0
    assert "20000 tokens" in result.stdout
    refused = lacuna.fails(2, "rollout", "--layers", "2", "--length", "20000", "--json")
    assert "--bins is required when --length exceeds 16384" in refused


def test_one_of_each_is_singular_and_says_no_nonsense(lacuna: Any) -> None:
    text = lacuna.prints("rollout", "--layers", "1", "--heads", "1", "--length", "1")
    assert "1 layer, 1 head, 1 token " in text
    assert "over 1 layer sum lambda" in text
    assert "A prompt of one token has no places to compare" in text
    assert "tenth of the prompt" not in text
    assert "In the closed form for 1 layer " in lacuna.prints("rollout", "--layers", "1")


BAD: dict[str, tuple[list[str], int, str]] = {
    "nothing": ([], 2, "--layers, --model or a request"),
    "no JSON": (["{"], 2, "not JSON"),
    "no object": (["[1]"], 2, "must be a JSON object"),
    "twice": (['{"layers": 4}', "--request", "{}"], 2, "give the request once"),
    "no such file": (["nothing.json"], 2, "cannot read nothing.json: No such file"),
    "a misspelt field": (['{"layer": 4}'], 2, "layer: unknown field; did you mean `layers`?"),
    "the word of the command line": (
        ['{"layers": 4, "length": 64}'], 2, "length: unknown field; did you mean `sequence_length`",
    ),
    "nothing like a field": (['{"zzz": 4}'], 2, "zzz: unknown field; known here: `architecture`, "),
    "a field in a field": (
        ['{"layers": 4, "kernel": {"type": "alibi", "windw": 3}}'],
        2,
        "kernel.windw: unknown field; did you mean `window`?",
    ),
    "below the bound": (["--layers", "0"], 2, "--layers: Input should be greater than"),
    "no number": (["--layers", "many"], 2, "'--layers'"),
    "above the bound": (["--layers", "2", "--length", "2000000"], 2, "--length: Input"),
    "a lambda above 1": (["--lambda", "0.1,1.5"], 2, "--lambda number 2: Input should be less"),
    "no lambda": (["--layers", "2", "--lambda", "x"], 2, "--lambda: 'x' is not a finite number"),
    "an encoding": (["--layers", "2", "--positions", "rope"], 2, "--positions: must be one of"),
    "an unknown model": (["--model", "blom-176b"], 2, "--model: must be one of"),
    "a prediction": (["--layers", "2", "--predictions", "magic"], 2, "--predictions number 1"),
    "lambdas that do not fit": (
        ["--layers", "3", "--lambda", "0.1,0.2"],
        1,
        "lacuna: invalid_request: --lambda has 2 entries for 3 layers",
    ),
    "too much work": (
        ["--layers", "60000", "--heads", "1000", "--positions", "alibi", "--length", "16000"],
        1,
        "too_large: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "status", "words"), BAD.values(), ids=BAD)
def test_bad_requests_are_one_clear_line(
    lacuna: Any, arguments: list[str], status: int, words: str
) -> None:
    assert words in lacuna.fails(status, "rollout", *arguments)
