"""Recall in a job: refusals before anything is measured, and how many groups are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tiny_families import build  # type: ignore[import-not-found, unused-ignore]

from lacuna.contract.errors import DocumentsUnusable, LacunaError, TooLong
from lacuna.contract.profile_requests import ProfileRequest
from lacuna.contract.recall import MOST_GROUPS
from workers.job import recall
from workers.lease import JobCancelled
from workers.models.loaded import LoadedModel
from workers.recall import sampled
from workers.recall.measure import measure
from workers.recall.result import Recall

TEMPLATE = "{% for m in messages %}<s>{{ m['content'] }}\n{% endfor %}"


@pytest.fixture
def loaded(
    as_loaded: Callable[..., LoadedModel], make_tokenizer: Callable[..., Any], one_thread: None
) -> LoadedModel:
    model = build("llama", vocab_size=300, max_position_embeddings=512)
    return as_loaded(model, make_tokenizer("<s> $A"))


def asked(length: int = 480, **fields: Any) -> ProfileRequest:
    return ProfileRequest.model_validate(
        {"model": "local:tiny", "sequence_length": length, "recall": {"depths": 3} | fields}
    )


def passages(count: int) -> list[dict[str, Any]]:
    return [
        {"question": f"Who built T{i}?", "answers": [f"M{i}M"], "text": f"M{i}M built T{i}."}
        for i in range(100, 100 + count)
    ]


def run(loaded: LoadedModel, request: ProfileRequest) -> dict[str, recall.Probed]:
    planned = recall.plan(loaded, request)
    assert planned is not None
    return recall.run(planned, on_share=lambda _share, _what: None, check=lambda: None)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], list[int]]:
    """Replaces what is read by recall with this much noise; returns the sizes of the steps."""

    def plant(noise: float) -> list[int]:
        steps: list[int] = []
        real = measure

        def read(*given: Any, groups: int, first: int, **named: Any) -> Recall:
            steps.append(groups)
            found = real(*given, groups=1, first=first, **named)
            draw = np.random.default_rng(first)
            k = found.probabilities.shape[1]
            table = 0.5 + noise * draw.uniform(-1, 1, (groups, k, k))
            again = np.repeat(0, groups)
            changes = {
                name: getattr(found, name)[again]
                for name in ("log_probabilities", "starts", "tokens", "prompt_tokens")
            }
            names = ("topics", "phrasings")
            labels = {name: tuple(str(i % 5) for i in range(groups)) for name in names}
            return dataclasses.replace(
                found,
                probabilities=table,
                numbers=first + np.arange(groups),
                controls=type(found.controls)(
                    found.controls.closed_book[again],
                    found.controls.oracle[again],
                    found.controls.repeated,
                ),
                **changes,
                **labels,
            )

        monkeypatch.setattr(sampled, "measure", read)
        return steps

    return plant


def test_no_request_no_recall(loaded: LoadedModel) -> None:
    assert recall.plan(loaded, ProfileRequest(model="local:tiny")) is None


@pytest.mark.parametrize(
    ("request_", "error", "field", "message"),
    [
        (asked(form="chat"), DocumentsUnusable, "recall.form", "no chat template"),
        (asked(length=60), DocumentsUnusable, "sequence_length", "recall needs"),
        (asked(length=600), TooLong, "sequence_length", "reads 512"),
    ],
)
def test_refusals_come_before_the_measurement(
    request_: ProfileRequest,
    error: type[LacunaError],
    field: str,
    message: str,
    loaded: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loaded.model, "forward", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(error, match=message) as caught:
        recall.plan(loaded, request_)
    assert caught.value.field == field


def test_passages_that_answer_each_other_are_too_few(loaded: LoadedModel) -> None:
    same = [{**one, "answers": ["M100M"], "text": "M100M built it."} for one in passages(60)]
    with pytest.raises(DocumentsUnusable, match="give 0 groups of 3 questions, 16 are needed") as e:
        recall.plan(loaded, asked(probes=["documents"], passages=same))
    assert e.value.field == "recall.passages"


def test_a_quiet_curve_takes_two_looks(
    loaded: LoadedModel, planted: Callable[[float], list[int]]
) -> None:
    steps = planted(0.01)
    found = run(loaded, asked())["facts"]
    assert steps == [24, 8]
    assert (found.ending, found.recall.groups) == ("narrow", 32)
    assert found.recall.numbers.tolist() == list(range(32))


def test_a_noisy_curve_takes_the_budget(
    loaded: LoadedModel, planted: Callable[[float], list[int]]
) -> None:
    steps = planted(0.5)
    found = run(loaded, asked())["facts"]
    assert steps == [24, 8, 8, 8]
    assert (found.ending, found.recall.groups) == ("budget", MOST_GROUPS)


def test_a_number_is_read_at_once(
    loaded: LoadedModel, planted: Callable[[float], list[int]]
) -> None:
    steps = planted(0.01)
    found = run(loaded, asked(groups=40))["facts"]
    assert (steps, found.ending) == ([40], "fixed")


def test_passages_may_end_before_the_rule(
    loaded: LoadedModel, planted: Callable[[float], list[int]]
) -> None:
    steps = planted(0.5)
    found = run(loaded, asked(probes=["documents"], passages=passages(90)))["documents"]
    assert steps == [24, 6]
    assert (found.ending, found.recall.groups) == ("exhausted", 30)


def test_steps_give_what_one_reading_gives(loaded: LoadedModel) -> None:
    whole = run(loaded, asked(groups=16))["facts"].recall
    planned = recall.plan(loaded, asked(groups=16))
    assert planned is not None
    parts = [
        measure(planned.reader, planned.sources[0].draw, 480, probe="facts", groups=8, depths=3,
                first=first)
        for first in (0, 8)
    ]  # fmt: skip
    np.testing.assert_allclose(
        parts[0].joined(parts[1]).probabilities, whole.probabilities, rtol=1e-4
    )


def test_the_chat_template_is_used_unless_it_is_declined(loaded: LoadedModel) -> None:
    loaded.tokenizer.chat_template = TEMPLATE  # type: ignore[union-attr]
    forms = {"auto": "continued", "chat": "continued", "plain": "plain"}
    for form, expected in forms.items():
        planned = recall.plan(loaded, asked(form=form))
        assert planned is not None
        assert planned.reader.form == expected


def test_progress_grows_over_all_probes_and_a_cancelled_job_ends(loaded: LoadedModel) -> None:
    request = asked(groups=16, probes=["facts", "pairs"])
    planned = recall.plan(loaded, request)
    assert planned is not None
    shares: list[float] = []
    recall.run(planned, on_share=lambda share, _what: shares.append(share), check=lambda: None)
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.1
    assert shares[-1] == pytest.approx(1)

    def cancelled() -> None:
        raise JobCancelled

    with pytest.raises(JobCancelled):
        recall.run(planned, on_share=lambda _share, _what: None, check=cancelled)


@pytest.mark.slow
def test_texts_are_right_or_wrong(loaded: LoadedModel) -> None:
    probability, text = (
        run(loaded, asked(groups=16, form="plain", scoring=scoring))["facts"].recall
        for scoring in ("probability", "text")
    )
    assert (probability.rung, text.rung) == ("answer", "text")
    assert set(np.unique(text.probabilities)) <= {0.0, 1.0}
    assert text.log_probability is None
    assert 0 < probability.probabilities.min() < probability.probabilities.max() < 1
