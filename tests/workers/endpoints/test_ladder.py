"""The ladder on one fake server per dialect: what is found, and what is refused and why."""

from __future__ import annotations

import json

import pytest

from service.endpoints.costs import LADDER_CALLS, LADDER_PROMPT_TOKENS
from tests.workers.endpoints.fake_dialects import DIALECTS
from tests.workers.endpoints.fake_model import FakeModel
from tests.workers.endpoints.harness import reader_of
from workers.endpoints.ladder import Ladder

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
        stored = Ladder.of_dict(json.loads(json.dumps(reader.ladder.as_dict())))
        assert stored == reader.ladder
