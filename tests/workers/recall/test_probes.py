from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from lacuna.contract.errors import DocumentsUnusable
from lacuna.experiments.scoring import normalized
from workers.recall import probes, wording
from workers.recall.probes import PROBES, Passage, documents

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT.parent / "shared" / "reference" / "nq-open-a.jsonl.gz"
_FUNCTION_WORDS = frozenset(
    "a an the is was be it its of in on at by up to for from with without over through who which "  # noqa: SIM905
    "what whom that this one can you me i say tell and as our had".split()
)


@pytest.mark.parametrize("name", list(PROBES))
def test_topics_and_phrasings_are_many_and_balanced(name: str) -> None:
    cells = len(probes._CELLS[name][0]) * len(probes._CELLS[name][1])
    groups = PROBES[name](cells, 5, 3, 0)
    assert len({g.topic for g in groups}) >= 6
    assert len({g.phrasing for g in groups}) >= 6
    assert set(Counter((g.topic, g.phrasing) for g in groups).values()) == {1}


@pytest.mark.parametrize("name", list(PROBES))
def test_a_group_depends_on_seed_and_number_alone(name: str) -> None:
    draw = PROBES[name]
    assert draw(6, 4, 1, 0)[4:] == draw(2, 4, 1, 4)
    assert draw(2, 4, 1, 0) != draw(2, 4, 2, 0)


@pytest.mark.parametrize("name", list(PROBES))
def test_facts_of_a_group_compete_and_name_their_answer_once(name: str) -> None:
    for group in PROBES[name](40, 6, 0, 0):
        answers = [item.answer.strip() for item in group.items]
        assert len(set(answers)) == len({i.question for i in group.items}) == 6
        for item in group.items:
            assert len(re.findall(rf"\b{item.answer.strip()}\b", item.text)) == 1
            assert not re.search(rf"\b{item.answer.strip()}\b", item.question + item.lead)
            assert {i.answer for i in group.items} <= set(group.choices)


def _content_words(text: str) -> set[str]:
    """Beginnings of words: "repairs" and "repaired" are one word here."""
    words = re.findall(r"[a-z]+", text.casefold().replace("'s", ""))
    return {word[:5] for word in words if word not in _FUNCTION_WORDS}


def test_a_paraphrase_shares_no_content_word_with_its_question() -> None:
    for topic, clues in wording.PARAPHRASE_TOPICS.items():
        for phrasing in wording.PARAPHRASE_PHRASINGS.values():
            for said, asked in clues:
                fact = phrasing.fact.format(v="", f=said)
                question = phrasing.question.format(q=asked) + " " + phrasing.lead
                shared = _content_words(fact) & _content_words(question)
                assert not shared, (topic, said, asked, shared)


def test_each_clue_fits_one_fact_of_its_topic() -> None:
    for clues in wording.PARAPHRASE_TOPICS.values():
        assert len({said for said, _ in clues}) == len({asked for _, asked in clues}) == len(clues)


def test_no_other_record_has_an_asked_value_or_key() -> None:
    for group in probes.pairs(12, 6, 0):
        asked = {item.answer.strip() for item in group.items}
        records = "\n".join(group.filler[:400])
        assert not any(re.search(rf"\b{value}\b", records) for value in asked)
        assert len(set(group.filler)) == len(group.filler)


def test_json_records_are_json() -> None:
    for group in probes.pairs(42, 4, 0):
        if group.phrasing == "json":
            text = group.context([0, 3, 6, 9], 9, [2, 0, 3, 1])
            found = json.loads(text[text.index("{") :])
            assert len(found) == 13
            key = group.items[2].question.partition('"')[2].rstrip('"')
            assert found[key] == group.items[2].answer.strip()
            assert next(iter(found)) == key


def test_too_many_facts_are_refused() -> None:
    with pytest.raises(DocumentsUnusable, match="2 to 10 facts") as caught:
        probes.facts(1, 11)
    assert caught.value.field == "recall"


def _passage(number: int, topic: str = "") -> Passage:
    return Passage(
        f"who is number {number}",
        (f"Person{number} Smith",),
        f"The one at place {number} is Person{number} Smith, they say.",
        f"Title {number}",
        topic,
    )


def test_each_question_is_used_once_and_its_answer_stands_in_one_document() -> None:
    passages = [_passage(i, "ab"[i % 2]) for i in range(1000, 1030)]
    groups = documents(passages)(6, 4, 0, 0)
    used = [item.question for group in groups for item in group.items]
    assert len(set(used)) == len(used) == 24
    for group in groups:
        for i, item in enumerate(group.items):
            others = [o.text for j, o in enumerate(group.items) if j != i]
            answer = normalized(item.accepted[0])
            assert answer in normalized(item.text)
            assert not any(answer in normalized(t) for t in [*others, *group.filler])
        assert len(group.filler) == 26
        assert {
            p.topic for p in passages for item in group.items if item.text.endswith(p.text)
        } == {group.topic}


def test_passages_that_answer_each_other_never_meet() -> None:
    twins = [Passage(f"who is {i}", ("Ann",), f"Ann is {i}") for i in range(8)]
    with pytest.raises(DocumentsUnusable, match="8 passages give 0 groups"):
        documents(twins)(1, 2, 0, 0)


def test_distractors_have_the_words_of_the_questions_first() -> None:
    near = [Passage("x", ("none",), f"number at some place {i}") for i in range(3)]
    far = [Passage("x", ("none",), f"unlike text x{i}") for i in range(50)]
    asked = [_passage(i) for i in (1, 2)]
    (group,) = documents([*asked, *far, *near])(1, 2, 0, 0)
    assert {text[-12:] for text in group.filler[:3]} == {f"some place {i}" for i in range(3)}


def test_the_reference_questions_give_groups_of_several_topics() -> None:
    if not REFERENCE.exists():
        pytest.skip("the reference questions of Liu et al. are not here")
    with gzip.open(REFERENCE) as lines:
        rows = [json.loads(line) for line in lines]
    passages = [Passage(r["question"], tuple(r["answers"]), r["text"], r["title"]) for r in rows]
    groups = documents(passages)(64, 5, 0, 0)
    assert len({g.topic for g in groups}) >= 4
    assert len({g.phrasing for g in groups}) >= 6
    assert len({item.question for g in groups for item in g.items}) == 320


def test_probes_need_no_torch() -> None:
    code = (
        "import sys, workers.recall.measure, workers.recall.probes as p; p.facts(1, 3)\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
