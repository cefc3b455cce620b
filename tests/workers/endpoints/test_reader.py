"""The reader: planted curves, resuming after a kill, budgets, prefix order, progress and checks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lacuna.contract.endpoints import Rung
from lacuna.contract.errors import (
    BudgetSpent,
    EndpointIncapable,
    EndpointUnreachable,
)
from tests.workers.endpoints.fake_dialects import DIALECTS, NewerOpenAI
from tests.workers.endpoints.fake_model import (
    Curve,
    FakeModel,
    flat,
    primacy,
    recency,
    step,
    u_shaped,
)
from tests.workers.endpoints.fake_server import Faults
from tests.workers.endpoints.harness import asked, question, reader_of, truth
from workers.endpoints.budget import Limits
from workers.endpoints.ledger import FileLedger, MemoryLedger
from workers.endpoints.reader import EndpointReader
from workers.recall.reader import Question, Reader

ROOT = Path(__file__).parents[3]
DEPTHS = (0.05, 0.3, 0.5, 0.7, 0.95)


def _is_a_reader(reader: EndpointReader) -> Reader:
    """mypy checks that the protocol is met."""
    return reader


@pytest.mark.parametrize("curve", [flat, u_shaped, recency, primacy, step])
@pytest.mark.parametrize(("dialect", "rung"), [("vllm", "answer"), ("openai", "first_token")])
def test_planted_curves_come_back(dialect: str, rung: Rung, curve: Curve) -> None:
    """The base distribution adds up to 5%, the question moves depths by some hundredths."""
    with DIALECTS[dialect](FakeModel(curve)) as server, reader_of(server, rung=rung) as reader:
        asked = [question(reader.form, depth, words=200) for depth in DEPTHS]
        found = [r.probability if r else -1.0 for r in reader.read(asked)]
    for depth, one in zip(DEPTHS, found, strict=True):
        near = [curve(depth + move / 100) for move in range(-8, 6)]
        assert min(near) - 0.005 <= one <= max(near) + 0.05


def test_text_falls_where_the_curve_is_low() -> None:
    """Facts differ in strength, so the hit rate follows the planted curve."""
    with (
        DIALECTS["anthropic"](FakeModel(lambda depth: 0.02 + 0.1 * depth, spread=1.5)) as server,
        reader_of(server) as reader,
    ):
        rates = []
        for depth in (0.05, 0.95):
            asked = [question(reader.form, depth, fact=i) for i in range(24)]
            rates.append(sum(r.probability for r in reader.read(asked) if r) / 24)
    assert reader.rung == "text"
    assert rates[1] - rates[0] > 0.25


def test_one_token_answers_are_read_by_their_first_token_and_longer_ones_are_not() -> None:
    with DIALECTS["vllm"](FakeModel()) as server:
        with reader_of(server, form="plain", one_token=True) as reader:
            assert reader.rung == "first_token"
            assert reader.ladder.why_not_higher(reader.way) == {
                name: why for name, why in reader.ladder.refused.items() if ".top" not in name
            }
        with reader_of(server, form="plain", one_token=False) as reader:
            assert reader.way.name == "completions.echo"
            one = question("plain", 0.5, name=" John Mary")
            both = reader.read([one])[0]
            reader.way = reader.ladder.choose(rung="first_token")
            first = reader.read([one])[0]
            assert both is not None
            assert first is not None
            assert 0 < both.probability < first.probability


def test_answers_that_begin_alike_are_not_told_apart_by_their_first_token() -> None:
    with (
        DIALECTS["vllm"](FakeModel()) as server,
        reader_of(server, rung="first_token") as reader,
    ):
        one = question(reader.form, 0.5, name=" John Mary")
        alike = Question(one.prompt, one.answer, alternatives=(" John David",))
        with pytest.raises(EndpointIncapable, match="begins with the same token"):
            reader.read([alike])
        apart = Question(one.prompt, one.answer, alternatives=(" Sarah David",))
        assert reader.read([apart, alike])[1] is None


def test_questions_about_one_context_follow_its_first() -> None:
    with (
        DIALECTS["vllm"](FakeModel()) as server,
        reader_of(server, form="plain", rung="answer", concurrency=3) as reader,
    ):
        server.bodies.clear()
        questions = []
        for fact in range(4):
            text = str(question("plain", 0.5, fact=fact).prompt)
            for lead in range(3):
                prompt = asked("plain", text, f"Lead {lead} is")
                questions.append(Question(prompt, " John"))
        reader.read(questions)
        assert server.most_under_way <= 3
        seen = [str(body["prompt"])[:200] for _, body in server.bodies]
        assert len(seen) == 12
        for start in (0, 9):  # whole contexts stand together
            assert len(set(seen[start : start + 3])) <= 3
        assert len(set(seen)) == 4


def test_counts_and_preamble() -> None:
    with DIALECTS["tgi"](FakeModel()) as server, reader_of(server, form="plain") as reader:
        assert reader.count([" lantern", " one two.", ""]) == [1, 3, 0]
        assert reader.preamble == 1
        assert reader.ladder.counts_by == "tokenizer"
    with DIALECTS["ollama"](FakeModel()) as server, reader_of(server) as reader:
        before = reader.budget.spent.prompt_tokens
        assert reader.count([" lantern", " one two.", "London"]) == [1, 3, 1]
        assert reader.ladder.counts_by == "usage"
        assert reader.budget.spent.prompt_tokens > before
        assert reader.usage.counting_calls > 0


def test_progress_and_a_check_that_ends_the_reading() -> None:
    class Stop(Exception):
        pass

    seen: list[tuple[int, int]] = []

    def check() -> None:
        if len(seen) >= 3:
            raise Stop

    with (
        DIALECTS["openai"](FakeModel(), Faults(slow=0.05)) as server,
        reader_of(server, concurrency=1) as reader,
    ):
        asked = [question(reader.form, 0.5, fact=i) for i in range(200)]
        began = time.monotonic()
        with pytest.raises(Stop):
            reader.read(asked, on_progress=lambda *at: seen.append(at), check=check)
        assert time.monotonic() - began < 5
    assert seen[:3] == [(1, 200), (2, 200), (3, 200)]
    assert len(seen) < 100


def test_the_budget_ends_the_reading_and_what_was_read_stays() -> None:
    with (
        DIALECTS["openai"](FakeModel()) as server,
        reader_of(server, limits=Limits(calls=40), concurrency=4) as reader,
    ):
        asked = [question(reader.form, 0.5, fact=i) for i in range(100)]
        before = server.requests
        found = reader.read(asked)
        assert server.requests == 40
        assert 0 < sum(r is not None for r in found) <= 40 - before
        assert reader.exhausted is not None
        with pytest.raises(BudgetSpent, match="40 calls"):
            reader.read(asked)


@pytest.mark.parametrize("fact_words", [60, 400])
def test_money_is_kept_to(fact_words: int) -> None:
    with (
        DIALECTS["openai"](FakeModel()) as server,
        reader_of(
            server, limits=Limits(money=0.02), input_price=1.0, output_price=2.0, concurrency=4
        ) as reader,
    ):
        asked = [question(reader.form, 0.5, fact=i, words=fact_words) for i in range(600)]
        reader.read(asked)
        one = (fact_words + 40) / 1e6
        assert reader.exhausted is not None
        assert 0.02 - 6 * one < reader.budget.money <= 0.02 + 4 * one


def test_an_endpoint_that_goes_away_ends_the_reading() -> None:
    with DIALECTS["openai"](FakeModel()) as server, reader_of(server) as reader:
        asked = [question(reader.form, 0.5, fact=i) for i in range(50)]
        server.faults.busy = 10**6
        with pytest.raises(EndpointUnreachable):
            reader.read(asked)


def test_the_same_measurement_pays_once_and_another_pays_anew() -> None:
    ledger = MemoryLedger()
    with DIALECTS["llama.cpp"](FakeModel()) as server:
        paid, found = [], []
        for measurement in ("m", "m", "n"):
            before = sum(server.answered.values())
            with reader_of(server, ledger=ledger, measurement=measurement) as reader:
                found.append(reader.read([question(reader.form, 0.5, fact=i) for i in range(9)]))
                tokens = reader.budget.spent.prompt_tokens
            paid.append((sum(server.answered.values()) - before, tokens))
    assert paid[1][0] == 3, "the canary alone is asked again"
    assert paid[0][0] == paid[2][0] > 30
    assert found[0] == found[1] == found[2]
    assert paid[1][1] >= paid[0][1], "what was paid before counts"


def test_another_model_on_resuming_starts_anew() -> None:
    ledger = MemoryLedger()
    with DIALECTS["vllm"](FakeModel()) as server:
        asked = None
        found = []
        for changed in (False, True):
            server.model.flavour = "other" if changed else ""
            server.model.curve = recency if changed else flat
            with reader_of(server, ledger=ledger) as reader:
                asked = asked or [question(reader.form, depth) for depth in DEPTHS]
                found.append([r.probability if r else -1.0 for r in reader.read(asked)])
    assert found[0] != found[1]


KILLED = """
import sys
from pathlib import Path
from pydantic import SecretStr
from tests.workers.endpoints.harness import KEY, question
from workers.endpoints.budget import Budget, Limits
from workers.endpoints.ledger import FileLedger
from workers.endpoints.reader import EndpointReader
from service.endpoints.table import Endpoint
endpoint = Endpoint(name="x", base_url=sys.argv[1], model="m", context_length=4096, concurrency=3)
ledger = FileLedger(Path(sys.argv[2]))
budget = Budget.of(endpoint, Limits())
reader = EndpointReader(
    endpoint, SecretStr(KEY), budget=budget, ledger=ledger, measurement="m", rung="text"
)
found = reader.read([question(reader.form, 0.5, fact=i) for i in range(80)])
print(sum(r is not None for r in found))
"""


def test_a_killed_measurement_pays_no_call_twice_but_those_in_flight(tmp_path: Path) -> None:
    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", KILLED, f"{server.url}/v1", str(tmp_path / "ledger")]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )

    with DIALECTS["openai"](FakeModel(), Faults(slow=0.02)) as server:
        process = start()
        deadline = time.monotonic() + 60
        while sum(server.answered.values()) < 60 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        time.sleep(0.2)
        before = dict(server.answered)
        assert 60 <= sum(before.values()) < 100
        out, _ = start().communicate(timeout=60)
    assert out.strip() == "80"
    canary = 3
    twice = sum(count - before[name] for name, count in server.answered.items() if name in before)
    assert twice <= 3 + canary
    kept = FileLedger(tmp_path / "ledger")
    assert len(kept) >= 80
    kept.close()


def test_a_server_that_wants_the_newer_limit_is_asked_with_it_from_then_on() -> None:
    with NewerOpenAI(FakeModel()) as server, reader_of(server) as reader:
        asked = [question(reader.form, 0.5, fact=i) for i in range(6)]
        refused = server.requests - sum(server.answered.values())
        found = reader.read(asked)
        assert server.requests - sum(server.answered.values()) == refused > 0
        for one, reading in zip(asked, found, strict=True):
            assert reading is not None
            expected = truth(server, reader.form, one)
            assert reading.log_probability == pytest.approx(expected, abs=1e-3)
