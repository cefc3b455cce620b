from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from lacuna.contract.errors import EndpointIncapable, InvalidRequest, TooLong
from lacuna.contract.experiment_requests import ExperimentRequest, prompts
from lacuna.contract.experiments import ExperimentUsage
from lacuna.placement.curve import of_density
from workers.endpoints.ledger import MemoryLedger
from workers.experiments.run import About, Finding, run
from workers.recall.reader import Question

if TYPE_CHECKING:
    from tests.workers.experiments.conftest import PlaceReader, Told

    Ask = Callable[..., ExperimentRequest]

ALL = ["given", "relevance_first", "relevance_last", "zigzag_best_last", "random"]


def recency(depth: float) -> float:
    return 0.2 + 0.5 * depth


def about(**fields: Any) -> About:
    return About(**{"revision": "r", "longest": None, "free_counts": True, "again": 16, **fields})


def spending(prompts: int) -> ExperimentUsage:
    return ExperimentUsage(
        prompts=prompts, calls=prompts, replayed=0, prompt_tokens=1, generated_tokens=None,
        cost=None,
    )  # fmt: skip


@pytest.fixture
def go(told: type[Told]) -> Callable[..., Finding]:
    def start(request: ExperimentRequest, reader: PlaceReader, **more: Any) -> Finding:
        given = more.pop("about", about())
        return run(request, reader, told(), given, spending, **more)

    return start


def test_a_planted_effect_is_found_with_its_size(
    request_of: Ask, place_reader: type[PlaceReader], go: Callable[..., Finding]
) -> None:
    found = go(request_of(60, orders=ALL), place_reader(recency, noise=0.05)).result
    by_name = {one.name: one for one in found.orders}
    # The answer moves from the first place to the last, or from the second to the one before.
    truth = 0.5 * (0.8 * 1.0 + 0.2 * 0.5)
    last = by_name["relevance_last"].difference
    assert last.low < truth < last.high
    assert last.high - last.low < 0.08
    nats = by_name["relevance_last"].log_difference
    assert nats is not None
    assert nats.low < 0.8 * math.log(0.7 / 0.2) + 0.2 * math.log(0.575 / 0.325) < nats.high
    assert found.verdict.decision == "use"
    assert found.verdict.order in ("relevance_last", "zigzag_best_last")
    assert found.verdict.words.startswith("Use ")
    assert by_name["given"].difference.value == 0
    assert by_name["relevance_first"].changed == 0  # the request has them by score
    assert "relevance_first gives the same prompts as given" in found.warnings
    assert found.minimum_detectable_effect is not None
    assert found.gold_known == 60
    place = found.recall_by_place
    assert place is not None
    assert place.value == pytest.approx([recency(depth) for depth in place.depth], abs=0.03)


def test_a_flat_model_makes_no_difference(
    request_of: Ask, place_reader: type[PlaceReader], go: Callable[..., Finding]
) -> None:
    found = go(request_of(60, orders=ALL), place_reader(lambda _: 0.5, noise=0.02)).result
    assert found.verdict.decision == "no_difference"
    assert "less than 0.05" in found.verdict.words
    assert found.verdict.order is None


def test_scores_too_low_to_differ_are_said(
    request_of: Ask, place_reader: type[PlaceReader], go: Callable[..., Finding]
) -> None:
    """Ten times as probable at the end, and yet "less than .05"."""
    found = go(request_of(60, orders=ALL), place_reader(lambda depth: 0.003 * 10**depth)).result
    assert (found.verdict.decision, found.verdict.more_questions) == ("not_enough", None)
    assert "no order scores more than 0.0" in found.verdict.words
    assert any("could hardly show" in one for one in found.warnings)
    nats = {one.name: one.log_difference for one in found.orders}["relevance_last"]
    assert nats is not None
    assert nats.low > 1
    room = go(request_of(60, orders=ALL), place_reader(lambda _: 0.5)).result
    assert not any("could hardly show" in one for one in room.warnings)


def test_a_model_that_never_answers_shows_nothing(
    request_of: Ask, place_reader: type[PlaceReader], go: Callable[..., Finding]
) -> None:
    """Answers that stand nowhere: no evidence that order makes no difference."""
    asked = request_of(12).model_dump(mode="json")
    for question in asked["questions"]:
        question["answers"] = ["zzz"]
    nowhere = ExperimentRequest.model_validate(asked)
    for request, rung in ((nowhere, "text"), (request_of(12), "answer")):
        found = go(request, place_reader(lambda _: 0.0, rung=rung)).result
        assert (found.verdict.decision, found.verdict.order) == ("not_enough", None)
        assert found.verdict.more_questions is None
        assert "A model that answers almost nothing" in found.verdict.words
        assert "no difference (" not in found.verdict.words
        assert any("12 questions are few" in one for one in found.warnings)
        missing = [one for one in found.warnings if "12 of 12 questions (100%)" in one]
        assert len(missing) == (request is nowhere)


def test_orders_that_change_no_prompt_show_nothing(
    request_of: Ask, place_reader: type[PlaceReader], go: Callable[..., Finding]
) -> None:
    same = request_of(20, orders=["relevance_first"])
    found = go(same, place_reader(lambda _: 0.5, noise=0.1)).result.verdict
    assert (found.decision, found.more_questions) == ("not_enough", None)
    assert "no order changes a single prompt" in found.words


@pytest.mark.parametrize(
    ("smallest", "words"),
    [
        (0.02, None),
        (0.05, "perhaps by less than the 0.05 that matters"),
        (0.1, "but by less than the 0.1 that matters"),
    ],
)
def test_a_gain_is_held_against_what_matters(
    request_of: Ask,
    place_reader: type[PlaceReader],
    go: Callable[..., Finding],
    smallest: float,
    words: str | None,
) -> None:
    """The best chunk stands in the middle; first is far worse, last a little better."""
    fields = {"orders": ["relevance_first", "relevance_last"], "smallest_effect": smallest}
    asked = request_of(60, **fields).model_dump(mode="json")
    for question in asked["questions"]:
        chunks = question["chunks"]
        question["chunks"] = [*chunks[2:4], chunks[0], chunks[4], chunks[1]]
        if chunks[1]["text"].endswith(question["answers"][0]):
            question["chunks"][2], question["chunks"][4] = chunks[1], chunks[0]
    reader = place_reader(lambda depth: (0.1, 0.6, 0.65)[round(2 * depth)], noise=0.02)
    found = go(ExperimentRequest.model_validate(asked), reader).result
    assert (found.verdict.decision, found.verdict.order) == ("use", "relevance_last")
    said = found.verdict.words
    assert ("surely better" in said) == (words is not None)
    assert (words or "Use") in said


def test_few_questions_are_not_enough(
    request_of: Ask, place_reader: type[PlaceReader], go: Callable[..., Finding]
) -> None:
    found = go(request_of(16), place_reader(lambda _: 0.5, noise=0.3)).result
    assert found.verdict.decision == "not_enough"
    assert found.verdict.more_questions is not None
    assert f"about {found.verdict.more_questions:,} more" in found.verdict.words


def test_replies_are_scored_as_asked(
    request_of: Ask, place_reader: type[PlaceReader], go: Callable[..., Finding]
) -> None:
    for scoring in ("auto", "contains", "exact"):
        found = go(request_of(30, scoring=scoring), place_reader(recency, rung="text"))
        assert found.result.scoring == ("contains" if scoring == "auto" else scoring)
        assert {row.score for row in found.rows} == {0.0, 1.0}
        assert found.result.orders[0].log_probability is None
    asked = request_of(30, scoring="regex").model_dump(mode="json")
    for question in asked["questions"]:
        question["answers"] = [r"^no\w+g$"]
    wrong = go(ExperimentRequest.model_validate(asked), place_reader(recency, rung="text")).rows
    right = go(request_of(30, scoring="exact"), place_reader(recency, rung="text")).rows
    assert [1 - row.score for row in wrong] == [row.score for row in right]


def test_each_prompt_is_read_once_but_for_the_control(
    request_of: Ask, place_reader: type[PlaceReader], go: Callable[..., Finding]
) -> None:
    request, reader = request_of(20, orders=ALL), place_reader(recency)
    found = go(request, reader, about=about(again=7))
    counts = Counter(reader.asked)
    assert sorted(counts.values()) == [1] * (len(counts) - 7) + [2] * 7
    # `relevance_first` is `given` here.
    assert len(reader.asked) <= 20 * 4 + 20 + 7 < prompts(request)
    assert found.result.usage.prompts == len(counts)
    rows = Counter(row.arm for row in found.rows)
    assert rows == dict.fromkeys(ALL, 20) | {"a_a": 7, "closed_book": 20}
    without = place_reader(recency)
    bare = go(request_of(20, a_a=False, closed_book=False), without).result
    assert (bare.controls.a_a, bare.controls.closed_book, bare.controls.repeat) == (None,) * 3
    assert max(Counter(without.asked).values()) == 1


def test_controls_tell_what_bounds_the_experiment(
    request_of: Ask, place_reader: type[PlaceReader], go: Callable[..., Finding]
) -> None:
    steady = go(request_of(30), place_reader(recency)).result.controls
    assert steady.a_a is not None
    assert (steady.a_a.difference.low, steady.a_a.difference.high) == (0.0, 0.0)
    assert (steady.a_a.found, steady.repeat) == (False, 0.0)
    assert steady.closed_book == pytest.approx(0.02)
    noisy = go(request_of(30), place_reader(recency, noise=0.1), about=about(again=30))
    control = noisy.result.controls
    assert control.repeat is not None
    assert control.repeat > 0.05
    assert control.a_a is not None
    assert control.a_a.questions == 30
    assert control.a_a.difference.low < 0 < control.a_a.difference.high
    knows = go(request_of(30), place_reader(lambda _: 0.021)).result
    assert any("hardly" in one or "rarely" in one for one in knows.warnings)


def test_rows_hold_places_and_no_texts(
    request_of: Ask, place_reader: type[PlaceReader], go: Callable[..., Finding]
) -> None:
    found = go(request_of(20, orders=ALL), place_reader(recency))
    first = {row.arm: row.place for row in found.rows if row.question == "2"}
    assert (first["given"], first["relevance_last"], first["closed_book"]) == (0, 4, None)
    assert {row.chunks for row in found.rows} == {0, 5}
    everything = found.result.model_dump_json() + "".join(map(str, found.rows))
    assert "is word" not in everything
    assert "The key" not in everything


def test_questions_without_an_answer_are_left_out_of_every_order(
    request_of: Ask, place_reader: type[PlaceReader], go: Callable[..., Finding]
) -> None:
    found = go(request_of(30), place_reader(recency, lost=[1, 2, 3])).result
    assert (found.questions, found.lost) == (27, 3)
    assert any("3 questions were not answered" in one for one in found.warnings)
    with pytest.raises(EndpointIncapable, match="only 1 questions"):
        go(request_of(4), place_reader(recency, lost=[1, 2, 3]))


def test_what_drifts_falls_on_no_order(
    request_of: Ask, place_reader: type[PlaceReader], go: Callable[..., Finding]
) -> None:
    reader = place_reader(recency)
    go(request_of(60, a_a=False, closed_book=False), reader)
    texts = list(map(_text, reader.asked))
    numbers = [int(text.split("Question: key ")[1].split()[0]) for text in texts]
    assert numbers != sorted(numbers)
    firsts: dict[int, str] = {}
    for number, text in zip(numbers, texts, strict=True):
        firsts.setdefault(number, text.splitlines()[2])
    best = sum("is word" + str(number) in line for number, line in firsts.items())
    assert 8 < best < 40  # `given` is read first in about a third of the questions


def _text(question: Question) -> str:
    assert isinstance(question.prompt, str)
    return question.prompt


def test_an_order_along_a_profile_needs_its_curve(
    request_of: Ask, place_reader: type[PlaceReader], go: Callable[..., Finding]
) -> None:
    request = request_of(20, orders=["optimal"], profile_id="0" * 32)
    with pytest.raises(InvalidRequest, match="no curve"):
        go(request, place_reader(recency))
    falling = of_density([1.0, 1.0, 1.0, 9.0])
    found = go(request, place_reader(recency), curve=falling).result
    assert found.orders[1].difference.value > 0.3


def test_prompts_that_are_too_long_are_named(
    request_of: Ask, place_reader: type[PlaceReader], go: Callable[..., Finding]
) -> None:
    asked = request_of(20).model_dump(mode="json")
    asked["questions"][3]["chunks"][0]["text"] += " word" * 200
    asked["questions"][3]["id"] = "the long one"
    request = ExperimentRequest.model_validate(asked)
    with pytest.raises(TooLong, match="'the long one'") as caught:
        go(request, place_reader(recency), about=about(longest=150))
    assert caught.value.field == "questions"
    assert "'4'" not in str(caught.value)
    go(request, place_reader(recency), about=about(longest=400))


def test_a_chat_is_refused_where_there_is_none(
    request_of: Ask, place_reader: type[PlaceReader], go: Callable[..., Finding]
) -> None:
    request = request_of(20, template={"form": "chat"})
    with pytest.raises(InvalidRequest, match="no chat template"):
        go(request, place_reader(recency))
    assert go(request, place_reader(recency, form="continued")).result.form == "continued"


def test_probabilities_that_cannot_be_read_are_refused(
    request_of: Ask, place_reader: type[PlaceReader], go: Callable[..., Finding]
) -> None:
    with pytest.raises(EndpointIncapable, match="ask for contains"):
        go(request_of(20, scoring="log_probability"), place_reader(recency, rung="text"))


def test_a_killed_job_goes_on_where_it_was(
    request_of: Ask, place_reader: type[PlaceReader], told: type[Told], go: Callable[..., Finding]
) -> None:
    request, kept = request_of(40, orders=ALL), MemoryLedger()
    first = place_reader(recency)
    with pytest.raises(KeyboardInterrupt):
        run(request, first, told(stop_after=250), about(), spending, kept=kept)
    assert len(kept) >= 32
    second = place_reader(recency)
    resumed = go(request, second, kept=kept)
    whole = place_reader(recency)
    assert resumed == go(request, whole)
    assert len(second.asked) == len(whole.asked) - (len(kept) - len(second.asked))
    assert all(b"word" not in kept.get(key) for key in list(kept._kept))  # type: ignore[operator]


def test_progress_rises_to_nearly_one(
    request_of: Ask, place_reader: type[PlaceReader], told: type[Told]
) -> None:
    job = told()
    run(request_of(20), place_reader(recency), job, about(), spending)
    assert job.shares == sorted(job.shares)
    assert 0.97 < job.shares[-1] <= 1


def test_the_same_request_gives_the_same_answer(
    request_of: Ask, place_reader: type[PlaceReader], go: Callable[..., Finding]
) -> None:
    a, b = (go(request_of(20), place_reader(recency, noise=0.1)) for _ in range(2))
    assert a == b
    assert a.result.id == request_of(20).job_id
