from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lacuna.contract.errors import DocumentsUnusable, NotFinite
from workers.documents.tokens import policy
from workers.models.loaded import LoadedModel
from workers.recall import needle

LENGTH = 500
Parts = tuple[LoadedModel, Any]


@pytest.fixture
def reader(
    tiny_model: Callable[..., Any],
    make_tokenizer: Callable[..., Any],
    as_loaded: Callable[..., LoadedModel],
) -> Callable[..., LoadedModel]:
    def make(template: str | None = None, dtype: str = "float32") -> LoadedModel:
        model = tiny_model(max_position_embeddings=LENGTH, dtype=dtype)
        return as_loaded(model, make_tokenizer(template))

    return make


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The prompts of the latest measurement."""
    prompts: list[torch.Tensor] = []
    real = needle._log_probabilities

    def listen(loaded: LoadedModel, rows: torch.Tensor, *rest: Any) -> Any:
        prompts.append(rows)
        return real(loaded, rows, *rest)

    monkeypatch.setattr(needle, "_log_probabilities", listen)
    return prompts


@pytest.mark.parametrize("template", [None, "<s> $A", "<s> $A </s>"])
def test_prompts_have_the_length_the_fact_its_depth_and_the_question_its_end(
    template: str | None, reader: Callable[..., LoadedModel], seen: list[torch.Tensor]
) -> None:
    loaded = reader(template)
    found = needle.measure(loaded, LENGTH, depths=3, facts=2, batch_size=4)
    (rows,) = seen
    assert rows.shape == (2 * 4, LENGTH + 1)
    tokenizer: Any = loaded.tokenizer
    prefix = list(policy(tokenizer).prefix)
    for number in range(2):
        texts = [tokenizer.decode(row) for row in rows[4 * number : 4 * number + 4]]
        code = texts[0][-5:]
        assert code.isdigit()
        for step, text in enumerate(texts[:3]):
            assert text.count(code) == 2
            before = text[: text.index("The access code of the")]
            at = len(tokenizer(before, add_special_tokens=False)["input_ids"])
            assert abs(at - len(prefix) * (template is None) - found.positions[step]) < 12
            assert text.endswith(f"Answer: The access code is {code}")
        assert texts[3].count(code) == 1
        assert {text[-5:] for text in texts} == {code}
    assert all(row[: len(prefix)].tolist() == prefix for row in rows)
    assert found.positions[0] == len(prefix)
    assert (np.diff(found.positions) > 0).all()
    np.testing.assert_allclose(found.depths, found.positions / LENGTH)


def test_log_probabilities_are_those_of_reading_token_by_token(
    reader: Callable[..., LoadedModel], seen: list[torch.Tensor]
) -> None:
    loaded = reader(dtype="float64")
    found = needle.measure(loaded, LENGTH, depths=2, facts=2)
    (rows,) = seen
    tokenizer: Any = loaded.tokenizer
    scores = []
    for row in rows.tolist():
        asked = tokenizer.decode(row)[:-5].rstrip()
        start = len(row)
        while tokenizer.decode(row[:start]) != asked:
            start -= 1
        with torch.no_grad():
            steps = [
                loaded.model(torch.tensor([row[:at]])).logits[0, -1].log_softmax(-1)[row[at]]
                for at in range(start, len(row))
            ]
        scores.append(float(sum(steps)))
    table = np.array(scores).reshape(2, 3)
    np.testing.assert_allclose(found.by_fact, table[:, :2], rtol=1e-6)
    assert found.baseline == pytest.approx(table[:, 2].mean(), rel=1e-6)
    np.testing.assert_allclose(found.log_probability, found.by_fact.mean(axis=0))


def test_batches_do_not_matter_and_the_seed_decides(
    reader: Callable[..., LoadedModel],
) -> None:
    loaded, steps = reader(), []
    one = needle.measure(
        loaded, LENGTH, depths=3, facts=3, seed=1, batch_size=1,
        on_batch=lambda *at: steps.append(at),
    )  # fmt: skip
    many = needle.measure(loaded, LENGTH, depths=3, facts=3, seed=1, batch_size=5)
    other = needle.measure(loaded, LENGTH, depths=3, facts=3, seed=2, batch_size=5)
    np.testing.assert_allclose(one.by_fact, many.by_fact, rtol=1e-4)
    assert np.abs(one.by_fact - other.by_fact).max() > 1e-2
    assert steps == [(i, 12) for i in range(1, 13)]


def test_the_band_holds_the_mean_and_narrows_with_more_facts(
    reader: Callable[..., LoadedModel],
) -> None:
    few = needle.measure(reader(), 300, depths=2, facts=3)
    many = needle.measure(reader(), 300, depths=2, facts=12)
    for found in (few, many):
        assert (found.low <= found.log_probability).all()
        assert (found.log_probability <= found.high).all()
    # The band of a mean goes with the spread over facts and the root of their number.
    expected = 2 * 1.96 * many.by_fact.std(axis=0) / 12**0.5
    np.testing.assert_allclose(many.high - many.low, expected, rtol=0.35)
    assert needle.measure(reader(), 300, depths=2, facts=1).low.shape == (2,)


def test_a_trained_model_finds_the_fact(smollm2: LoadedModel) -> None:
    found = needle.measure(smollm2, 120, depths=2, facts=1)
    assert (found.log_probability > found.baseline + 5).all()


def test_too_short_for_a_fact_says_how_long_it_must_be(
    reader: Callable[..., LoadedModel],
) -> None:
    with pytest.raises(DocumentsUnusable, match=r"the needle needs (\d+)") as info:
        needle.measure(reader(), 40)
    needed = int(info.value.detail.rsplit(" ", 1)[1])
    with pytest.raises(DocumentsUnusable):
        needle.measure(reader(), needed - 1)
    assert needle.measure(reader(), needed, depths=2).by_fact.shape == (8, 2)


def test_tokens_that_the_model_lacks_are_refused(
    tiny_model: Callable[..., Any],
    make_tokenizer: Callable[..., Any],
    as_loaded: Callable[..., LoadedModel],
) -> None:
    small = as_loaded(tiny_model(vocab_size=40, max_position_embeddings=1024), make_tokenizer())
    with pytest.raises(DocumentsUnusable, match="40 rows") as caught:
        needle.measure(small, 600, depths=3, facts=2)
    assert caught.value.field == "needle"


def test_without_a_tokenizer_there_is_no_fact(
    tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    with pytest.raises(DocumentsUnusable, match="no tokenizer"):
        needle.measure(as_loaded(tiny_model()), 300)


def test_nan_is_an_error(reader: Callable[..., LoadedModel]) -> None:
    loaded = reader()
    loaded.model.model.norm.weight.data.fill_(float("nan"))
    with pytest.raises(NotFinite, match="float32"):
        needle.measure(loaded, 300)


def test_the_density_of_a_fact_is_that_of_its_own_tokens() -> None:
    nothing = np.zeros(2)
    found = needle.NeedleResult(
        depths=np.array([0.0, 0.5]),
        positions=np.array([0.0, 4.5]),
        log_probability=nothing,
        low=nothing,
        high=nothing,
        baseline=0.0,
        by_fact=np.zeros((2, 2)),
        starts=np.array([[0.0, 4.0], [0.0, 5.0]]),
        tokens=np.array([3.0, 2.0]),
    )
    influence = np.array([8.0, 1.0, 3.0, 0.0, 2.0, 2.0, 5.0, 1.0, 1.0, 1.0])
    whole = influence.sum() / 10
    first = np.mean([(8 + 1 + 3) / 3, (8 + 1) / 2]) / whole
    second = np.mean([(2 + 2 + 5) / 3, (2 + 5) / 2]) / whole
    np.testing.assert_allclose(found.density(influence), [first, second])
    np.testing.assert_allclose(found.density(np.ones(10)), 1.0)
    assert found.facts == 2


def test_facts_lie_where_they_are_said_to(
    reader: Callable[..., LoadedModel], seen: list[torch.Tensor]
) -> None:
    loaded = reader("<s> $A")
    found = needle.measure(loaded, LENGTH, depths=3, facts=2)
    assert found.starts.shape == (2, 3)
    np.testing.assert_allclose(found.starts.mean(axis=0), found.positions)
    (rows,) = seen
    tokenizer: Any = loaded.tokenizer
    for number in range(2):
        for step in range(3):
            start, count = int(found.starts[number, step]), int(found.tokens[number])
            text = tokenizer.decode(rows[4 * number + step, start : start + count])
            assert text.strip().startswith("The access code of the ")
            assert text.endswith(".\n\n")
