"""Experiments with fake servers whose model recalls by depth."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from lacuna.contract.errors import (
    BudgetSpent,
    EndpointIncapable,
    EndpointTruncates,
    InvalidRequest,
)
from lacuna.contract.experiment_requests import ExperimentRequest
from lacuna.experiments.rendering import Renderer
from service.endpoints.costs import LADDER_CALLS
from tests.workers.endpoints.fake_dialects import DIALECTS
from tests.workers.endpoints.fake_model import FakeModel, flat, recency, split
from tests.workers.endpoints.fake_server import FakeServer, Faults
from tests.workers.endpoints.harness import NAMES, client_of
from workers.endpoints.budget import Limits
from workers.endpoints.ledger import Ledger, MemoryLedger
from workers.experiments.run import Finding
from workers.experiments.served import run_served

if TYPE_CHECKING:
    from tests.workers.experiments.conftest import Told

CHUNKS = 6
TEMPLATE = {"instructions": "", "ask": "{question}", "answer": ""}


def request_of(count: int, **fields: Any) -> ExperimentRequest:
    """The model copies what followed the question's last words in the chunks."""
    questions = []
    for number in range(count):
        chunks = []
        for at in range(CHUNKS):
            key = number * CHUNKS + at
            text = f"In some town near here the owner of lantern n{key} was{NAMES[key % 8]} ."
            chunks.append({"id": f"c{at}", "text": text, "score": float(CHUNKS - at)})
        question = f"The owner of lantern n{number * CHUNKS} was"
        answer = NAMES[number * CHUNKS % 8].strip()
        for chunk in chunks[1:]:
            chunk["gold"] = False
        chunks[0]["gold"] = True
        questions.append({"question": question, "answers": [answer], "chunks": chunks})
    given = {"model": "endpoint:fake", "template": TEMPLATE, "orders": ["relevance_last"], **fields}
    return ExperimentRequest.model_validate({**given, "questions": questions})


@pytest.fixture
def go(told: type[Told]) -> Callable[..., Finding]:
    def start(
        server: FakeServer,
        request: ExperimentRequest,
        *,
        ledger: Ledger | None = None,
        limits: Limits | None = None,
        **fields: Any,
    ) -> Finding:
        client = client_of(server, ledger=ledger, limits=limits, **fields)
        return run_served(
            request, client.endpoint, None, told(), ledger=client.ledger, client=client
        )

    return start


def truth(model: FakeModel, request: ExperimentRequest, order: tuple[int, ...]) -> float:
    """Mean probability of the answers by the model itself, asked in plain text."""
    render = Renderer(request.template)
    found = []
    for asked in request.questions:
        tokens = split(render(asked, order).text)
        found.append(math.exp(model.nats(tokens, f" {asked.answers[0]}")))
    return sum(found) / len(found)


FORWARD, BACKWARD = tuple(range(CHUNKS)), tuple(reversed(range(CHUNKS)))


@pytest.mark.parametrize("dialect", ["vllm", "llama.cpp"])
def test_a_planted_effect_of_place_is_found_with_its_size(
    dialect: str, go: Callable[..., Finding]
) -> None:
    model, request = FakeModel(recency), request_of(24)
    with DIALECTS[dialect](model) as server:
        found = go(server, request, form="plain").result
    exact = truth(model, request, BACKWARD) - truth(model, request, FORWARD)
    assert exact > 0.35
    given, last = found.orders
    assert given.mean == pytest.approx(truth(model, request, FORWARD), abs=1e-3)
    assert last.difference.value == pytest.approx(exact, abs=1e-3)
    assert last.difference.low < exact < last.difference.high
    assert (found.verdict.decision, found.verdict.order) == ("use", "relevance_last")
    assert (found.rung, found.scoring, found.form) == ("first_token", "log_probability", "plain")
    control = found.controls.a_a
    assert control is not None
    assert (control.found, control.questions) == (False, 24)
    assert found.controls.closed_book is not None
    assert found.controls.closed_book < 0.1
    assert found.usage.calls > 24 * 4


def test_a_flat_endpoint_makes_no_difference(go: Callable[..., Finding]) -> None:
    with DIALECTS["vllm"](FakeModel(flat)) as server:
        found = go(server, request_of(24), form="plain").result
    assert found.verdict.decision == "no_difference"


def test_replies_of_a_chat_are_compared(go: Callable[..., Finding]) -> None:
    """Facts differ in strength, so the rate of right replies follows the place."""
    model = FakeModel(lambda depth: 0.01 + 0.12 * depth, spread=1.5)
    request = request_of(40, max_answer_tokens=2)
    with DIALECTS["anthropic"](model) as server:
        found = go(server, request).result
    assert (found.rung, found.scoring) == ("text", "contains")
    assert found.orders[1].difference.low > 0.1
    assert found.usage.generated_tokens is not None
    assert found.usage.generated_tokens > 100


def test_answers_of_several_tokens_are_read_whole(go: Callable[..., Finding]) -> None:
    asked = request_of(12).model_dump(mode="json")
    for question in asked["questions"]:
        question["answers"] = [f"{question['answers'][0]} ."]
    request = ExperimentRequest.model_validate(asked)
    with DIALECTS["vllm"](FakeModel(recency)) as server:
        found = go(server, request, form="plain").result
    assert found.rung == "answer"


def test_probabilities_that_a_server_does_not_give_are_refused(go: Callable[..., Finding]) -> None:
    with (
        DIALECTS["anthropic"](FakeModel()) as server,
        pytest.raises(EndpointIncapable, match="ask for contains"),
    ):
        go(server, request_of(12, scoring="log_probability"))


def test_what_was_paid_for_is_not_paid_again(go: Callable[..., Finding]) -> None:
    ledger, request = MemoryLedger(), request_of(14)
    with DIALECTS["vllm"](FakeModel(recency)) as server:
        first = go(server, request, ledger=ledger, form="plain")
        before = server.requests
        second = go(server, request, ledger=ledger, form="plain")
        anew = server.requests - before
        assert anew <= LADDER_CALLS, "how it can be read is found anew, and no question asked"
    assert second.rows == first.rows
    assert second.result.usage.replayed > 14 * 4


def test_the_budget_is_estimated_before(go: Callable[..., Finding]) -> None:
    with DIALECTS["vllm"](FakeModel()) as server:
        with pytest.raises(BudgetSpent, match="the limit is 100"):
            go(server, request_of(30, budget={"max_calls": 100}), form="plain")
        assert server.requests == 0
        with pytest.raises(BudgetSpent, match="the cost is"):
            go(server, request_of(30, budget={"max_cost": 1e-6}), form="plain", input_price=5.0)


def test_a_budget_that_ends_early_leaves_what_was_answered(go: Callable[..., Finding]) -> None:
    """Retries and tokens are not foreseen exactly: the limit of the client holds."""
    request = request_of(30)
    with DIALECTS["vllm"](FakeModel(recency)) as server:
        found = go(server, request, limits=Limits(calls=150), form="plain").result
        assert 12 <= found.questions < 30
        assert found.lost == 30 - found.questions
        assert any("budget was spent before the end" in one for one in found.warnings)
        with pytest.raises(BudgetSpent):
            go(server, request, limits=Limits(calls=60), form="plain")


def test_the_form_is_the_operators(go: Callable[..., Finding]) -> None:
    with (
        DIALECTS["vllm"](FakeModel()) as server,
        pytest.raises(InvalidRequest, match=r"`template\.form`.* in the form chat"),
    ):
        go(server, request_of(12, template={**TEMPLATE, "form": "plain"}))


def test_a_server_that_cuts_prompts_is_refused(go: Callable[..., Finding]) -> None:
    with (
        DIALECTS["vllm"](FakeModel(), Faults(keeps=90)) as server,
        pytest.raises(EndpointTruncates),
    ):
        go(server, request_of(12), form="plain")
