"""The profile of a served model: what its request and its readings become."""

from __future__ import annotations

from pydantic import SecretStr

from lacuna.contract.profile_requests import ProfileRequest
from service.endpoints.costs import TEXT_TOKENS, least_cost
from tests.workers.endpoints.fake_dialects import DIALECTS
from tests.workers.endpoints.fake_model import FakeModel
from tests.workers.endpoints.fake_server import KEY
from tests.workers.endpoints.harness import endpoint_of
from workers.endpoints.ledger import MemoryLedger
from workers.endpoints.measurement import open_reader, plan, run
from workers.endpoints.profile import profile_body


def test_texts_are_compared_where_the_request_says_so() -> None:
    """Though the server would list probabilities."""
    asked = {"depths": 3, "groups": 16, "scoring": "text", "question": "both"}
    request = ProfileRequest.model_validate(
        {"model": "endpoint:prod", "sequence_length": 160, "recall": asked}
    )
    with DIALECTS["vllm"](FakeModel(lambda depth: 0.9 * depth, spread=1.5)) as server:
        endpoint = endpoint_of(server, name="prod", form="plain")
        with open_reader(endpoint, SecretStr(KEY), request, MemoryLedger()) as reader:
            planned = plan(reader, request)
            assert planned.ways["facts"].rung == "text"
            body = profile_body(planned, run(planned, on_share=lambda *_: None, check=lambda: None))
    assert body.recall is not None
    assert body.recall["facts"].rung == "text"
    echo = body.request.recall
    assert echo is not None
    assert (echo.scoring, echo.question, echo.depths) == ("text", "both", 3)
    first = request.model_copy(
        update={"recall": request.recall.model_copy(update={"scoring": "probability"})}
    )
    text, listed = (least_cost(one, endpoint) for one in (request, first))
    assert text.calls == listed.calls == listed.generated_tokens
    answers, _ = divmod(text.generated_tokens - text.calls, TEXT_TOKENS - 1)
    assert answers > 16 * 9
