"""Numbers of NumPy wherever numbers are taken."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pytest

from lacuna import Chunk, LacunaError, OfflinePlacer, Reorderer
from lacuna.client.offline import curve_of, parse_request, place_along
from lacuna.contract.base import plain
from lacuna.contract.placements import PlacementRequest


@pytest.fixture
def seen(client: Any) -> Any:
    """A client whose service keeps what it is sent, and refuses it."""
    bodies: list[Any] = []

    def handler(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content) if request.content else dict(request.url.params))
        return httpx.Response(422, json={"code": "invalid_request", "detail": "seen"})

    return client(handler), bodies


def test_a_chunk_takes_numbers_of_numpy() -> None:
    chunk = Chunk(
        id="a", tokens=np.int64(10), relevance=np.float32(0.5), document="d", position=np.int8(2),
        pinned=np.int64(3),
    )  # type: ignore[arg-type]  # fmt: skip
    assert (chunk.tokens, chunk.relevance, chunk.position, chunk.pinned) == (10, 0.5, 2.0, 3)
    assert [type(v) for v in (chunk.tokens, chunk.relevance, chunk.pinned)] == [int, float, int]


@pytest.mark.parametrize("value", [np.float64(10.5), np.bool_(True), np.array([1, 2]), "10", True])
def test_what_is_no_whole_number_stays_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="tokens"):
        Chunk(id="a", tokens=value, relevance=1.0)


def test_requests_carry_plain_numbers(seen: Any) -> None:
    client, bodies = seen
    chunks = [{"id": "a", "tokens": np.int32(7), "relevance": np.float32(0.5)}]
    scored = [{"id": "a", "text": "x", "score": np.float32(0.5)}]
    question = {"question": "?", "answers": ["x"], "chunks": scored}
    calls = [
        lambda: client.place(chunks, density=np.array([1, 2.5]), max_tokens=np.int64(9)),
        lambda: client.profile("m", sequence_length=np.int64(64), documents={"count": np.int8(4)}),
        lambda: client.rollout(sequence_length=np.int64(64), lambdas=np.linspace(0, 1, 3)),
        lambda: client.calibrate(
            np.arange(3.0), np.array([True, False, True]), np.array(["a"] * 3)
        ),
        lambda: client.compare("a" * 32, "b" * 32, bins=np.int64(10)),
        lambda: client.experiment("m", [question], seed=np.int64(3), density=np.ones(2)),
    ]
    for call in calls:
        with pytest.raises(LacunaError, match="seen"):
            call()
    place, profile, rollout, calibrate, compare, experiment = bodies
    assert place == {
        "density": [1.0, 2.5], "max_tokens": 9,
        "chunks": [{"id": "a", "tokens": 7, "relevance": 0.5}],
    }  # fmt: skip
    assert profile == {"model": "m", "sequence_length": 64, "documents": {"count": 4}}
    assert rollout == {"sequence_length": 64, "lambdas": [0.0, 0.5, 1.0]}
    assert calibrate["labels"] == [True, False, True]
    assert calibrate["questions"] == ["a", "a", "a"]
    assert compare["bins"] == "10"
    assert experiment["questions"][0]["chunks"][0]["score"] == 0.5
    assert (experiment["seed"], experiment["density"]) == (3, [1.0, 1.0])


def test_offline_placement_takes_them_too(profile: Any) -> None:
    rng = np.random.default_rng(0)
    tokens, scores = rng.integers(5, 50, 6), rng.random(6, dtype=np.float32)
    chunks = [{"id": str(i), "tokens": tokens[i], "relevance": scores[i]} for i in range(6)]
    plainly = [
        {"id": str(i), "tokens": int(tokens[i]), "relevance": float(scores[i])} for i in range(6)
    ]
    placer = OfflinePlacer(profile)
    assert placer.place(chunks, suffix_tokens=np.int64(4)) == placer.place(plainly, suffix_tokens=4)
    density = rng.random(10)
    asked = parse_request(chunks, {"density": density})
    assert place_along(asked, curve_of(asked)).order
    made = PlacementRequest(density=density, chunks=[])  # type: ignore[arg-type]
    assert made.density == density.tolist()


def test_reorderers_take_arrays_of_scores_and_counts(client: Any, reversing: Any) -> None:
    reorderer = Reorderer(
        client(reversing), model="gpt2", timeout=30, count_tokens=lambda text: np.int64(len(text))
    )
    assert reorderer.order(["a", "b"], np.array([0.5, 0.1], dtype=np.float16)) == [1, 0]  # type: ignore[arg-type]


def test_plain_leaves_what_is_plain_alone() -> None:
    value = {"a": [1, 2.5, None, True, "x"], "b": (1,)}
    assert plain(value) == {"a": [1, 2.5, None, True, "x"], "b": [1]}
    assert plain(np.float32(0.5)) == 0.5
    assert type(plain(np.float64(1.5))) is float
