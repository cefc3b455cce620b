from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from lacuna.contract.errors import DocumentsUnusable
from workers.models.loaded import LoadedModel
from workers.recall import probes
from workers.recall.layout import Layout, Order, place
from workers.recall.reader import Message
from workers.recall.weights_reader import WeightsReader

K = 4


@pytest.fixture(scope="module")
def laid_out(smollm2: LoadedModel) -> dict[str, list[Layout]]:
    count = WeightsReader(smollm2).count
    return {
        name: place(draw(8, K, 0, 0), 512, count, "last") for name, draw in probes.PROBES.items()
    }


@pytest.mark.parametrize("name", list(probes.PROBES))
def test_prompts_have_the_length_and_facts_stand_where_it_is_said(
    name: str, laid_out: dict[str, list[Layout]], smollm2: LoadedModel
) -> None:
    count = WeightsReader(smollm2).count
    for layout in laid_out[name]:
        for item, depth, asked in layout.questions("plain", "last", 1):
            assert isinstance(asked.prompt, str)
            (length,) = count([asked.prompt + asked.answer])
            assert 0.88 * 512 <= length <= 1.01 * 512
            assert asked.expected_tokens <= length
            before = asked.prompt[: asked.prompt.index(layout.group.items[item].text)]
            at = layout.starts()[item, depth]
            assert abs(count([before])[0] - at) <= 0.02 * 512


@pytest.mark.parametrize("name", list(probes.PROBES))
def test_depths_are_even_in_tokens(name: str, laid_out: dict[str, list[Layout]]) -> None:
    for layout in laid_out[name]:
        assert layout.runs[0] == layout.runs[-1] == 0  # first and last place are the very ends
        inner = layout.runs[1:-1]
        largest = max(map(len, layout.group.filler[:50])) / 2  # half a piece, in characters
        assert np.abs(inner - inner.mean()).max() <= max(4, largest)


def test_every_fact_stands_at_every_depth_once(laid_out: dict[str, list[Layout]]) -> None:
    layout = laid_out["facts"][0]
    square = layout.rotations()
    assert all(sorted(row) == list(range(K)) for row in (*square, *square.T))
    seen = {(i, d) for prompt in range(K) for i, d, _ in layout.questions("plain", "last", prompt)}
    assert len(seen) == K * K
    starts = layout.starts()
    for prompt in range(K):
        context = layout.group.context(layout.cuts, layout.pieces, square[prompt].tolist())
        places = [context.index(layout.group.items[i].text) for i in square[prompt]]
        assert places == sorted(places)
        assert (np.diff(starts[square[prompt], np.arange(K)]) > 0).all()


def test_the_filler_is_the_same_in_all_prompts_of_a_group(
    laid_out: dict[str, list[Layout]],
) -> None:
    layout = laid_out["facts"][1]
    rests = set()
    for stands in layout.rotations():
        text = layout.group.context(layout.cuts, layout.pieces, stands.tolist())
        for item in layout.group.items:
            assert text.count(item.text) == 1
            text = text.replace(item.text, "§")
        rests.add(text)
    (rest,) = rests
    words = "".join(layout.group.filler[: layout.pieces]).split()
    assert rest.replace("§", " ").split() == words  # cut between words only


@pytest.mark.parametrize("order", get_args(Order))
def test_the_question_stands_where_it_is_asked_to(
    order: Order, laid_out: dict[str, list[Layout]]
) -> None:
    layout = laid_out["facts"][2]
    _, _, plain = layout.questions("plain", order, 0)[0]
    item, _, chat = layout.questions("continued", order, 0)[0]
    asked = layout.group.items[item]
    assert isinstance(plain.prompt, str)
    assert isinstance(chat.prompt, tuple)
    assert plain.prompt.endswith(f"Answer: {asked.lead}")
    assert chat.prompt[-1] == Message("assistant", asked.lead)
    for text in (plain.prompt, chat.prompt[0].content):
        assert text.count(asked.question) == (2 if order == "both" else 1)
        first = text.index(asked.question) < text.index(asked.text)
        last = text.rindex(asked.question) > text.index(asked.text)
        assert (first, last) == (order != "last", order != "first")


def test_a_reply_that_cannot_be_begun_is_asked_for_in_brief(
    laid_out: dict[str, list[Layout]],
) -> None:
    item, _, asked = laid_out["facts"][0].questions("chat", "last", 0)[1]
    assert isinstance(asked.prompt, tuple)
    assert asked.prompt[-1].role == "user"
    assert asked.prompt[-1].content.endswith("Answer with one word only.")
    assert asked.answer == laid_out["facts"][0].group.items[item].answer.strip()
    assert not any(other.startswith(" ") for other in asked.alternatives)


def test_documents_are_numbered_in_the_order_in_which_they_stand() -> None:
    passages = [
        probes.Passage(f"who is {i}", (f"Name{i}",), f"It is Name{i} here.", topic="t")
        for i in range(100, 140)
    ]
    (group,) = probes.documents(passages)(1, 3, 0, 0)
    text = group.context([0, 2, 5], 5, [1, 0, 2])
    labels = [line.partition("]")[0] for line in text.splitlines() if line.startswith("Document")]
    assert labels == [f"Document [{i}" for i in range(1, 9)]
    assert "Document [1]" in group.alone(2)


def test_too_short_says_how_long_it_must_be(smollm2: LoadedModel) -> None:
    count = WeightsReader(smollm2).count
    groups = probes.facts(4, 6)
    with pytest.raises(DocumentsUnusable, match=r"needs (\d+)$") as caught:
        place(groups, 60, count, "last", around=20)
    assert caught.value.field == "sequence_length"
    least = int(caught.value.detail.rsplit(" ", 1)[1])
    assert len(place(groups, least, count, "last", around=20)) == 4
    with pytest.raises(DocumentsUnusable):
        place(groups, least - 1, count, "last", around=20)


def test_filler_that_runs_out_is_refused(smollm2: LoadedModel) -> None:
    count = WeightsReader(smollm2).count
    passages = [
        probes.Passage(f"who is {i}", (f"Name{i}",), f"It is Name{i}.", topic="t") for i in range(6)
    ]
    with pytest.raises(DocumentsUnusable, match="filler has") as caught:
        place(probes.documents(passages)(1, 3, 0, 0), 2000, count, "last")
    assert caught.value.field == "recall"
