from __future__ import annotations

from collections import Counter
from typing import Any, get_args

import pytest

from lacuna.contract.errors import InvalidRequest
from lacuna.contract.experiment_requests import ExperimentRequest, OrderName
from lacuna.contract.placements import PlacementRequest
from lacuna.experiments.orders import orders
from lacuna.placement.answer import place
from lacuna.placement.curve import of_density

DENSITY = [3.0, 1.0, 1.0, 2.0]


def request(scores: list[float], count: int = 1, **fields: Any) -> ExperimentRequest:
    pins = fields.pop("pins", {})
    chunks = [
        {"id": str(at), "text": "x" * (40 + at), "score": score, "pinned": pins.get(at)}
        for at, score in enumerate(scores)
    ]
    for at, (document, position) in fields.pop("documents", {}).items():
        chunks[at] |= {"document": document, "position": position}
    question = {"question": "q", "answers": ["a"], "chunks": chunks}
    return ExperimentRequest.model_validate(
        {"model": "gpt2", "questions": [question] * count, **fields}
    )


EVERY = list(get_args(OrderName))


def test_fixed_rules_and_their_names() -> None:
    made = orders(request([1.0, 4.0, 2.0, 3.0, 0.0], orders=EVERY, density=DENSITY), 0)
    assert list(made) == EVERY
    assert made["given"] == (0, 1, 2, 3, 4)
    assert made["relevance_first"] == (1, 3, 2, 0, 4)
    assert made["relevance_last"] == (4, 0, 2, 3, 1)
    assert made["zigzag_best_first"] == (1, 2, 4, 0, 3)
    assert made["zigzag_best_last"] == (3, 0, 4, 2, 1)
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in made.values())


def test_a_distance_is_better_when_it_is_smaller() -> None:
    made = orders(request([1.0, 4.0, 2.0], relevance_scale="distance"), 0)
    assert made["relevance_first"] == (0, 2, 1)


def test_documents_stand_by_position() -> None:
    documents = {0: ("d", 2), 1: ("e", 1), 2: ("d", 1)}
    made = orders(request([1.0, 2.0, 3.0], orders=["document_order"], documents=documents), 0)
    assert made["document_order"] == (2, 0, 1)


def test_pins_hold_in_every_order() -> None:
    asked = request([1.0, 4.0, 2.0, 3.0], orders=EVERY, density=DENSITY, pins={2: "first", 0: 3})
    for order in orders(asked, 0).values():
        assert (order[0], order[3]) == (2, 0)


def test_random_orders_are_drawn_evenly_and_again_the_same() -> None:
    asked = request([1.0, 2.0, 3.0], count=300, orders=["random", "random_again"])
    drawn = [orders(asked, number) for number in range(300)]
    assert drawn[7] == orders(asked, 7)
    seen = Counter(one["random"] for one in drawn)
    assert len(seen) == 6
    assert min(seen.values()) > 25
    agree = sum(one["random"] == one["random_again"] for one in drawn)
    assert 25 < agree < 80  # one in six
    other = request([1.0, 2.0, 3.0], count=300, orders=["random"], seed=1)
    assert [orders(other, number)["random"] for number in range(9)] != [
        one["random"] for one in drawn[:9]
    ]


def test_orders_along_a_curve_are_those_of_a_placement() -> None:
    asked = request([1.0, 4.0, 2.0, 3.0], orders=["advised", "optimal"], density=DENSITY)
    made = orders(asked, 0, lengths=lambda _: ([9, 8, 7, 6], 5, 4, 1))
    for strategy in ("advised", "optimal"):
        wanted = PlacementRequest.model_validate(
            {
                "density": DENSITY, "strategy": strategy, "prefix_tokens": 5, "suffix_tokens": 4,
                "separator_tokens": 1,
                "chunks": [
                    {"id": str(at), "tokens": 9 - at, "relevance": score}
                    for at, score in enumerate([1.0, 4.0, 2.0, 3.0])
                ],
            }
        )  # fmt: skip
        answer = place(wanted, of_density(DENSITY))
        assert made[strategy] == tuple(int(one) for one in answer.order)  # type: ignore[index]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"scores": [2.0, 1.0], "relevance_scale": "probability"}, "between 0 and 1"),
        ({"scores": [2.0, 1.0], "pins": {0: "first", 1: 0}}, "place"),
        ({"scores": [2.0, 1.0], "orders": ["advised"], "profile_id": "0" * 32}, "no curve"),
    ],
)
def test_faults_name_the_question(fields: dict[str, Any], words: str) -> None:
    asked = request(fields.pop("scores"), **fields)
    with pytest.raises(InvalidRequest, match=f"question '1'.*{words}") as caught:
        orders(asked, 0)
    assert caught.value.field == "questions.0.chunks"
