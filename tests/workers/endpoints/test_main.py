"""`python -m workers.endpoints` against a fake server: estimate, curve, resuming, plain errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lacuna.client.offline import OfflinePlacer
from lacuna.contract.profiles import Profile
from lacuna.contract.recall import RecallCurve
from service.endpoints.costs import LADDER_CALLS
from tests.workers.endpoints.fake_dialects import DIALECTS
from tests.workers.endpoints.fake_model import FakeModel, recency
from tests.workers.endpoints.fake_server import KEY, FakeServer
from workers.endpoints.__main__ import main
from workers.endpoints.ledger import FileLedger

ROOT = Path(__file__).parents[3]
SMALL = ("--length", "256", "--depths", "3", "--groups", "16")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with DIALECTS["vllm"](FakeModel(recency)) as running:
        yield running


@pytest.fixture(scope="module")
def folder(server: FakeServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Settings of the fake server, and the answers that tests leave to each other."""
    found = tmp_path_factory.mktemp("endpoints")
    (found / "endpoints.toml").write_text(
        f'[prod]\nbase_url = "{server.url}/v1"\nmodel = "fake"\nkey_variable = "PROD_KEY"\n'
        'context_length = 4096\nform = "plain"\nconcurrency = 4\ninput_price = 2.0\n'
    )
    return found


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PROD_KEY", KEY)

    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(arguments)
        return status, *capsys.readouterr()

    return call


def test_a_planted_curve_comes_out_and_is_paid_once(
    run: Run, server: FakeServer, folder: Path
) -> None:
    before = server.requests
    status, out, err = run("prod", *SMALL, "--json")
    assert (status, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    paid = server.requests - before
    spent = found["spending"]
    assert spent["calls"] == paid
    _, costs, _ = run("prod", *SMALL, "--json", "--dry-run")
    least = json.loads(costs)["least"]
    assert 0.7 < paid / least["calls"] < 1.2
    assert 0.6 < spent["prompt_tokens"] / least["prompt_tokens"] < 1.2

    assert found["measured"] is found["shape"] is None
    curve = RecallCurve.model_validate(found["recall"]["facts"])
    assert (curve.reader, curve.rung, curve.groups) == ("endpoint", "first_token", 16)
    assert curve.influence_density is None
    assert curve.verdict == "varies"
    assert curve.probability == sorted(curve.probability)
    assert curve.controls.repeat == pytest.approx(0.0, abs=1e-9)
    assert found["endpoint"]["why_not_higher"]["completions.grammar"]
    prompts = Counter(str(body.get("prompt")) for _, body in server.bodies)
    long = [count for prompt, count in prompts.items() if len(prompt) > 600]
    assert sum(long) - len(long) >= 8 * 3, "the repeat comes from the server, not from the ledger"
    assert KEY not in out + (folder / "prod.answers.jsonl").read_text()

    status, again, _ = run("prod", *SMALL, "--json")
    twice = json.loads(again)
    assert (twice["id"], twice["recall"]) == (found["id"], found["recall"])
    again_spent = twice["spending"]
    anew = server.requests - before - paid
    assert anew == again_spent["calls"] <= LADDER_CALLS, "how it can be read is found anew"
    assert again_spent["prompt_tokens"] == spent["prompt_tokens"]

    status, text, _ = run("prod", *SMALL)
    assert status == 0
    assert re.search(r"verdict: varies \(p = 0\.0\d+\)", text)
    assert "  not completions.grammar: " in text


def test_the_profile_is_what_a_placement_takes(run: Run) -> None:
    """Reads the answers that the test before has paid for, or pays for them itself."""
    _, out, _ = run("prod", *SMALL, "--json")
    chunks = [{"id": f"c{i}", "tokens": 50, "relevance": 1 / (i + 1)} for i in range(4)]
    answer = OfflinePlacer(Profile.of_answer(out)).place(chunks)
    assert answer.order[-1] == "c0", "the best stands where recall is best"
    assert answer.confidence.basis == "recall"


def test_an_estimate_calls_nobody(run: Run, server: FakeServer, folder: Path) -> None:
    before = server.requests
    status, out, _ = run("endpoint:prod", "--dry-run", "--length", "2048")
    assert (status, server.requests) == (0, before)
    assert re.search(r"at least +1,\d{3} +1,\d{3},\d{3} ", out)
    _, told, _ = run("prod", "--dry-run", "--json")
    costs = json.loads(told)
    assert costs["most"]["cost"] > costs["least"]["cost"] > 1.0


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("nobody",), 1, "endpoint_unknown: .*the settings name prod"),
        (("prod", "--max-calls", "100"), 1, "budget_spent: .* calls are needed, the limit is 100"),
        (("prod", "--max-cost", "0.01"), 1, "budget_spent: .*the cost is"),
        (("prod", "--length", "9999"), 1, "too_long: .*takes 4,096 tokens, 9,999 are asked"),
        (("prod", "--settings", "nothing.toml"), 2, ".*No such file.*nothing.toml"),
        (("prod", "--ledger", "taken.jsonl"), 2, "another process measures with taken.jsonl"),
    ],
)
def test_errors_are_one_line(
    run: Run, folder: Path, arguments: tuple[str, ...], status: int, words: str
) -> None:
    ledger = FileLedger(folder / "taken.jsonl")
    try:
        found, out, err = run(*arguments)
    finally:
        ledger.close()
    assert (found, out) == (status, "")
    assert re.match(words, err)
    assert err.count("\n") == 1
    assert KEY not in err


def test_a_missing_key_is_named_by_its_endpoint(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROD_KEY")
    status, _, err = run("prod")
    assert status == 1
    assert err.startswith("endpoint_refused: `model`: the key of endpoint 'prod' is not set")


def test_it_runs_as_a_module(folder: Path) -> None:
    settings = str(folder / "endpoints.toml")
    answer = subprocess.run(
        [sys.executable, "-m", "workers.endpoints", "prod", "--settings", settings, "--dry-run"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert answer.stdout.count("\n") == 4


@pytest.mark.parametrize("wrong", [("--groups", "0"), ("--max-cost", "-1"), ("--depths", "x")])
def test_a_wrong_option_is_refused(run: Run, wrong: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as refusal:
        run("prod", *wrong)
    assert refusal.value.code == 2
