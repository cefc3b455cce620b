"""Experiments with tiny models in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lacuna.contract.errors import DocumentsUnusable, TooLong
from lacuna.contract.experiment_requests import ExperimentRequest
from workers.experiments.weights import AGAIN, run_weights
from workers.recall.reader import Message, Question
from workers.recall.weights_reader import WeightsReader

if TYPE_CHECKING:
    from tests.workers.experiments.conftest import Told
    from workers.models.loaded import LoadedModel

    Ask = Callable[..., ExperimentRequest]


@pytest.fixture
def loaded(
    tiny_model: Callable[..., Any],
    make_tokenizer: Callable[..., Any],
    as_loaded: Callable[..., LoadedModel],
) -> LoadedModel:
    return as_loaded(tiny_model("llama", max_position_embeddings=1_024), make_tokenizer(None))


def test_scores_are_the_models_own(request_of: Ask, loaded: LoadedModel, told: type[Told]) -> None:
    request = request_of(13, orders=["given", "relevance_last"])
    found = run_weights(request, loaded, told())
    asked = request.questions[4]
    lines = [f"[{at + 1}] {chunk.text}" for at, chunk in enumerate(reversed(asked.chunks))]
    body = "\n\n".join([request.template.instructions, *lines, f"Question: {asked.question}"])
    reader = WeightsReader(loaded, chat=False)
    (reading,) = reader.read([Question(f"{body}\nAnswer:", f" {asked.answers[0]}")])
    assert reading is not None
    assert reading.log_probability is not None
    (row,) = [one for one in found.rows if (one.question, one.arm) == ("5", "relevance_last")]
    assert row.log_probability == pytest.approx(reading.log_probability, rel=1e-4)
    assert row.prompt_tokens == reading.prompt_tokens
    result = found.result
    assert (result.rung, result.form, result.scoring) == ("answer", "plain", "log_probability")
    assert result.revision == loaded.revision
    assert result.controls.a_a is not None
    assert result.controls.a_a.questions == min(13, AGAIN)
    assert result.controls.repeat == pytest.approx(0.0, abs=1e-9)
    assert not result.controls.a_a.found


def test_replies_are_written(request_of: Ask, loaded: LoadedModel, told: type[Told]) -> None:
    request = request_of(12, scoring="exact", max_answer_tokens=3, orders=["relevance_last"])
    found = run_weights(request, loaded, told()).result
    assert (found.rung, found.scoring) == ("text", "exact")


def test_a_chat_template_is_used(
    request_of: Ask,
    tiny_model: Callable[..., Any],
    make_tokenizer: Callable[..., Any],
    as_loaded: Callable[..., LoadedModel],
    told: type[Told],
) -> None:
    tokenizer = make_tokenizer(None)
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    )
    model = as_loaded(tiny_model("llama", max_position_embeddings=1_024), tokenizer)
    request = request_of(12, orders=["relevance_last"], template={"system": "Be brief."})
    found = run_weights(request, model, told())
    assert found.result.form == "continued"
    asked = request.questions[0]
    lines = [f"[{at + 1}] {chunk.text}" for at, chunk in enumerate(asked.chunks)]
    user = "\n\n".join([request.template.instructions, *lines, f"Question: {asked.question}"])
    turns = (Message("system", "Be brief."), Message("user", user), Message("assistant", "Answer:"))
    (reading,) = WeightsReader(model).read([Question(turns, f" {asked.answers[0]}")])
    assert reading is not None
    (row,) = [one for one in found.rows if (one.question, one.arm) == ("1", "given")]
    assert row.log_probability == pytest.approx(reading.log_probability, rel=1e-4)
    plain = request_of(12, orders=["relevance_last"], template={"form": "plain"})
    assert run_weights(plain, model, told()).result.form == "plain"


def test_a_killed_job_leaves_numbers_and_goes_on(
    request_of: Ask, loaded: LoadedModel, told: type[Told], tmp_path: Path
) -> None:
    request = request_of(40, orders=["relevance_last"])

    class Killed(told):  # type: ignore[misc,valid-type]
        def progress(self, fraction: float, message: str = "") -> None:
            if fraction > 0.5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_weights(request, loaded, Killed(), folder=tmp_path)
    (file,) = tmp_path.iterdir()
    kept = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(kept) >= 32
    assert all(isinstance(value, float | int) for _, row in kept for value in row)
    whole = run_weights(request, loaded, told())
    resumed = run_weights(request, loaded, told(), folder=tmp_path)
    assert resumed.rows == whole.rows
    assert resumed.result.usage.prompt_tokens < whole.result.usage.prompt_tokens
    assert list(tmp_path.iterdir()) == []


def test_prompts_longer_than_the_model_are_refused_by_name(
    request_of: Ask, loaded: LoadedModel, told: type[Told]
) -> None:
    asked = request_of(12).model_dump(mode="json")
    asked["questions"][2]["chunks"][0]["text"] = "word " * 9_000
    asked["questions"][2]["id"] = "much"
    with pytest.raises(TooLong, match="'much'"):
        run_weights(ExperimentRequest.model_validate(asked), loaded, told())


def test_a_model_without_a_tokenizer_is_refused(
    request_of: Ask,
    tiny_model: Callable[..., Any],
    as_loaded: Callable[..., LoadedModel],
    told: type[Told],
) -> None:
    bare = as_loaded(tiny_model("llama"), None)
    with pytest.raises(DocumentsUnusable, match=r"`questions`: .* no tokenizer") as caught:
        run_weights(request_of(12), bare, told())
    assert caught.value.field == "questions"
