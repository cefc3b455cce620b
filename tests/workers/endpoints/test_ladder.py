"""The ladder on one fake server per dialect: what is found, and what is refused and why."""

from __future__ import annotations

import pytest

from lacuna.contract.errors import EndpointTruncates
from service.endpoints.costs import LADDER_CALLS, LADDER_PROMPT_TOKENS
from tests.workers.endpoints.fake_dialects import DIALECTS
from tests.workers.endpoints.fake_model import FakeModel
from tests.workers.endpoints.fake_server import FakeServer, Faults
from tests.workers.endpoints.harness import question, reader_of
from workers.endpoints.ledger import MemoryLedger
from workers.endpoints.reader import EndpointReader

FOUND: dict[tuple[str, str], tuple[str, list[str]]] = {
    ("vllm", "plain"): (
        "plain",
        [
            "completions.echo",
            "completions.prompt_logprobs",
            "completions.logit_bias",
            "completions.top",
            "completions.text",
        ],
    ),
    ("vllm", "chat"): (
        "continued",
        ["chat.prompt_logprobs", "chat.logit_bias", "chat.top", "chat.text"],
    ),
    ("llama.cpp", "plain"): (
        "plain",
        ["completions.grammar", "completions.logit_bias", "completions.top", "completions.text"],
    ),
    ("llama.cpp", "chat"): (
        "continued",
        ["chat.grammar", "chat.logit_bias", "chat.top", "chat.text"],
    ),
    ("llama-cpp-python", "plain"): ("plain", ["completions.top", "completions.text"]),
    ("llama-cpp-python", "chat"): ("chat", ["chat.top", "chat.text"]),
    ("sglang", "plain"): (
        "plain",
        ["generate.return_logprob", "completions.top", "completions.text"],
    ),
    ("sglang", "chat"): ("continued", ["chat.top", "chat.text"]),
    ("tgi", "plain"): ("plain", ["generate.decoder_input_details", "completions.text"]),
    ("tgi", "chat"): ("chat", ["chat.top", "chat.text"]),
    ("ollama", "plain"): ("plain", ["completions.text"]),
    ("ollama", "chat"): ("continued", ["chat.top", "chat.text"]),
    ("openai", "chat"): ("chat", ["chat.top", "chat.text"]),
    ("anthropic", "chat"): ("chat", ["messages.text"]),
}


@pytest.mark.parametrize(("dialect", "form"), FOUND)
def test_each_dialect_shows_what_it_can(dialect: str, form: str) -> None:
    with (
        DIALECTS[dialect](FakeModel()) as server,
        reader_of(server, form=form, longest=600) as reader,
    ):
        assert (reader.form, list(reader.ladder.ways)) == FOUND[dialect, form]
        assert server.without_limit == 0
        spent = reader.budget.spent
        assert spent.calls <= LADDER_CALLS
        assert spent.prompt_tokens <= LADDER_PROMPT_TOKENS + 600
        assert all(reader.ladder.refused.values())


def ways_of(server: FakeServer, ledger: MemoryLedger) -> tuple[list[str], int, EndpointReader]:
    """What a start over a ledger finds, and the calls that it makes."""
    before = server.requests
    with reader_of(server, ledger=ledger, form="plain") as reader:
        return list(reader.ladder.ways), server.requests - before, reader


def test_a_start_that_resumes_asks_the_canary_alone() -> None:
    ledger = MemoryLedger()
    with DIALECTS["vllm"](FakeModel()) as server:
        first, whole, _ = ways_of(server, ledger)
        again, calls, _ = ways_of(server, ledger)
    assert (again, calls) == (first, 3)
    assert whole > 15


def test_a_new_version_of_the_server_is_tried_anew_and_its_answers_stay() -> None:
    """The same model answers, but `echo` is gone; what was read by other ways is not paid twice."""
    ledger = MemoryLedger()
    with DIALECTS["vllm"](FakeModel()) as server:
        first, _, before = ways_of(server, ledger)
        with reader_of(server, ledger=ledger, form="plain") as reader:
            asked = [question("plain", 0.5, fact=fact) for fact in range(5)]
            read = reader.read(asked)
        server.version, server.faults.echo_ignored = "fp_2", True
        again, calls, after = ways_of(server, ledger)
        assert "completions.echo" in set(first) - set(again)
        assert calls > 15, "every way is tried"
        requests = server.requests
        with reader_of(server, ledger=ledger, form="plain") as reader:
            assert list(reader.ladder.ways) == again
            assert reader.read(asked) == read
        assert server.requests == requests + 3
    assert before.canary.served.fingerprint == "fp_1"
    assert after.canary.served.fingerprint == "fp_2"
    assert before.canary.digest == after.canary.digest


def test_a_version_that_was_seen_before_is_not_tried_anew() -> None:
    """Several machines behind one address answer with fingerprints of their own."""
    ledger = MemoryLedger()
    with DIALECTS["vllm"](FakeModel()) as server:
        ways_of(server, ledger)
        for version, least in (("fp_2", 15), ("fp_1", 0), ("fp_2", 0)):
            server.version = version
            _, calls, _ = ways_of(server, ledger)
            assert calls == 3 if least == 0 else calls > least


def test_the_next_measurement_finds_what_the_operator_changed() -> None:
    ledger = MemoryLedger()
    with DIALECTS["vllm"](FakeModel(), Faults(echo_ignored=True)) as server:
        with reader_of(server, ledger=ledger, form="plain") as reader:
            assert "completions.echo" in reader.ladder.refused
            reader.verify()
        server.faults.echo_ignored = False
        assert "completions.echo" in ways_of(server, ledger)[0]


def test_a_refusal_is_tried_anew() -> None:
    """The server cut prompts, or said nothing of their length, until its operator saw to it."""
    for faults, longest in (({"keeps": 300}, 900), ({"usage": "constant"}, 0)):
        ledger = MemoryLedger()
        with DIALECTS["vllm"](FakeModel()) as server:
            for name, value in faults.items():
                setattr(server.faults, name, value)
            with pytest.raises(EndpointTruncates):
                reader_of(server, ledger=ledger, form="plain", longest=longest)
            server.faults = Faults()
            with reader_of(server, ledger=ledger, form="plain", longest=longest) as reader:
                assert "completions.echo" in reader.ladder.ways


def test_prompts_that_were_cut_are_read_anew() -> None:
    ledger = MemoryLedger()
    with DIALECTS["vllm"](FakeModel()) as server:
        asked = [question("plain", 0.5, words=400)]
        with reader_of(server, ledger=ledger, form="plain") as reader:
            server.faults.keeps = 200
            with pytest.raises(EndpointTruncates):
                reader.read(asked)
        server.faults.keeps = 0
        with reader_of(server, ledger=ledger, form="plain") as reader:
            (found,) = reader.read(asked)
            assert found is not None
