from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from lacuna.contract.errors import NotFinite
from workers.documents.tokens import policy
from workers.models.loaded import LoadedModel
from workers.recall import probes
from workers.recall.measure import measure
from workers.recall.reader import Message, Question
from workers.recall.weights_reader import WeightsReader


def _prompt_ids(reader: WeightsReader, question: Question) -> list[int]:
    """Tokens of the prompt as the model reads them."""
    (row,) = reader.rows([question])
    return row.ids[: row.prompt]


def _token_by_token(reader: WeightsReader, question: Question) -> float:
    """The chain rule, one pass a token, nothing shared."""
    prompt = _prompt_ids(reader, question)
    text, special = reader._encoding.rendered(question.prompt)
    tokenizer: Any = reader.loaded.tokenizer
    whole = tokenizer(text + question.answer, add_special_tokens=False)["input_ids"]
    if special:
        whole = [*policy(tokenizer).prefix, *whole]
    assert whole[: len(prompt)] == prompt
    total = 0.0
    for at in range(len(prompt), len(whole)):
        with torch.no_grad():
            logits = reader.loaded.model(torch.tensor([whole[:at]])).logits[0, -1]
        total += float(logits.double().log_softmax(-1)[whole[at]])
    return total


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "bloom", "mixtral", "mpt", "ctrl"])
@pytest.mark.parametrize("batch_size", [0, 3])
def test_log_probabilities_are_those_of_reading_token_by_token(
    family: str,
    batch_size: int,
    make: Callable[..., LoadedModel],
    colours: Callable[..., list[Question]],
) -> None:
    lengths = {"gpt2": "n_positions", "ctrl": "n_positions", "mpt": "max_seq_len"}
    limit = {} if family == "bloom" else {lengths.get(family, "max_position_embeddings"): 512}
    dtype, close = ("float32", 1e-4) if family == "mixtral" else ("float64", 1e-6)
    reader = WeightsReader(make(family, dtype=dtype, **limit), batch_size=batch_size)
    asked = colours()
    found = reader.read(asked)
    for question, reading in zip(asked, found, strict=True):
        assert reading is not None
        expected = _token_by_token(reader, question)
        assert reading.log_probability == pytest.approx(expected, abs=close)
        assert reading.probability == pytest.approx(np.exp(reading.log_probability))
        assert reading.prompt_tokens == len(_prompt_ids(reader, question))


@pytest.mark.parametrize("special", [None, "<s> $A", "<s> $A </s>"])
def test_a_kept_context_changes_nothing_and_saves_reading(
    special: str | None, make: Callable[..., LoadedModel], colours: Callable[..., list[Question]]
) -> None:
    loaded = make(template=special, dtype="float64", max_position_embeddings=512)
    shared, alone = WeightsReader(loaded), WeightsReader(loaded)
    alone._shares = False
    asked = colours()
    pairs = zip(shared.read(asked), alone.read(asked), strict=True)
    for one, other in pairs:
        assert one is not None
        assert other is not None
        assert one.log_probability == pytest.approx(other.log_probability, abs=1e-9)
    assert shared._shares
    assert shared.usage.cached_tokens > 300
    assert alone.usage.cached_tokens == 0


def test_a_cache_that_lies_is_found_out(
    make: Callable[..., LoadedModel],
    monkeypatch: pytest.MonkeyPatch,
    colours: Callable[..., list[Question]],
) -> None:
    loaded = make(dtype="float64", max_position_embeddings=512)
    reader = WeightsReader(loaded)
    real = reader._behind

    def wrong(rows: Sequence[Any], context: torch.Tensor, shared: int) -> list[float]:
        return real(rows, context.flip(1), shared)

    monkeypatch.setattr(reader, "_behind", wrong)
    asked = colours()
    for question, reading in zip(asked, reader.read(asked), strict=True):
        assert reading is not None
        assert reading.log_probability == pytest.approx(_token_by_token(reader, question), abs=1e-6)
    assert reader._shares is False


def test_the_chat_template_wraps_question_and_reply(
    make: Callable[..., LoadedModel], colours: Callable[..., list[Question]]
) -> None:
    loaded = make(chat=True, template="<s> $A", dtype="float64", max_position_embeddings=512)
    reader = WeightsReader(loaded)
    tokenizer: Any = loaded.tokenizer
    assert reader.form == "continued"
    asked = colours(chat=True)
    text = tokenizer.decode(_prompt_ids(reader, asked[0]))
    assert text.startswith("<s>user\nThe lantern")  # no second beginning of text
    assert text.endswith("</s>\n<s>assistant\nThe lantern is")
    assert reader.preamble == reader.count(["<s>user\n"])[0]
    for question, reading in zip(asked, reader.read(asked), strict=True):
        assert reading is not None
        assert reading.log_probability == pytest.approx(_token_by_token(reader, question), abs=1e-6)
    own = Question((Message("user", "What?"),), "red", ("green",))
    assert tokenizer.decode(_prompt_ids(reader, own)).endswith("<s>assistant\n")
    assert WeightsReader(loaded, chat=False).form == "plain"


def test_the_model_writes_what_generate_writes(
    make: Callable[..., LoadedModel], colours: Callable[..., list[Question]]
) -> None:
    loaded = make(dtype="float64", max_position_embeddings=512)
    tokenizer: Any = loaded.tokenizer
    reader = WeightsReader(loaded, rung="text")
    (question,) = colours()[:1]
    ids = torch.tensor([_prompt_ids(reader, question)])
    model: Any = loaded.model
    whole = model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)
    expected = tokenizer.decode(whole[0, ids.shape[1] :], skip_special_tokens=True)
    (reading,) = reader.read([question])
    assert reading is not None
    assert reading.said == expected
    assert reading.log_probability is None
    assert reading.probability == 0.0
    several = [*colours()[:3], question]  # one context, kept; then one alone
    texts = [r.said for r in reader.read(several) if r is not None]
    apart = [r.said for q in several for r in reader.read([q]) if r is not None]
    assert texts == apart
    assert reader._shares
    hit = Question(question.prompt, " x", accepted=(expected[2:6],), scoring="contains")
    (found,) = reader.read([hit])
    assert found is not None
    assert found.probability == 1.0
    assert len(found.said or "") <= len(expected)


def test_nan_is_an_error(
    make: Callable[..., LoadedModel], colours: Callable[..., list[Question]]
) -> None:
    loaded = make(max_position_embeddings=512)
    loaded.model.model.norm.weight.data.fill_(float("nan"))
    with pytest.raises(NotFinite, match="float32"):
        WeightsReader(loaded).read(colours())


def test_a_check_ends_the_reading(
    make: Callable[..., LoadedModel], colours: Callable[..., list[Question]]
) -> None:
    class Stopped(Exception):
        pass

    def stop() -> None:
        raise Stopped

    with pytest.raises(Stopped):
        WeightsReader(make(max_position_embeddings=512)).read(colours(), check=stop)


def test_progress_counts_every_question_once(
    make: Callable[..., LoadedModel], colours: Callable[..., list[Question]]
) -> None:
    seen: list[tuple[int, int]] = []
    reader = WeightsReader(make(max_position_embeddings=512))
    reader.read(colours(), on_progress=lambda *at: seen.append(at))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1] == (9, 9)
    assert reader.read([]) == []


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("rung", ["answer", "text"])
def test_every_probe_can_be_read(rung: Any, chat: bool, make: Callable[..., LoadedModel]) -> None:
    passages = [
        probes.Passage(f"who is {i}", (f"Name{i}",), f"It is Name{i} here.", topic="t")
        for i in range(100, 130)
    ]
    draws = {**probes.PROBES, "documents": probes.documents(passages)}
    loaded = make(chat=chat, max_position_embeddings=2048)
    for name, draw in draws.items():
        reader = WeightsReader(loaded, rung=rung)
        groups = 2 if rung == "answer" else 1
        found = measure(reader, draw, 900, probe=name, groups=groups, depths=2)
        assert found.probabilities.shape == (groups, 2, 2)
        assert np.isfinite(found.probabilities).all()
        assert found.form == ("continued" if chat else "plain")
        assert found.controls.repeat_difference < 1e-4
        assert (found.log_probability is None) == (rung == "text")
        if rung == "answer":
            assert reader.usage.cached_tokens > 0.3 * reader.usage.prompt_tokens


def test_a_trained_model_recalls_the_fact_alone_and_not_without_it(smollm2: LoadedModel) -> None:
    found = measure(WeightsReader(smollm2), probes.facts, 170, probe="facts", groups=1, depths=3)
    assert found.controls.ceiling > 0.1
    assert found.controls.floor < 0.001
    assert (found.probability > 10 * found.controls.floor).all()
    assert found.controls.repeat_difference < 1e-5
    assert (np.abs(found.prompt_tokens - 170) < 20).all()
