"""Placement from a saved profile: the service's own arithmetic, without the service."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lacuna import Chunk, LacunaError, OfflinePlacer, Profile, Refused, Reorderer


@pytest.fixture
def saved(make_profile: Callable[..., Profile]) -> dict[str, Any]:
    """A profile as the service sends it, with a curve that rises to the end."""
    found: dict[str, Any] = json.loads(
        make_profile(tokens=40, model="owner/name").model_dump_json()
    )
    total = 40 * 41 / 2
    rising = [(i + 1) / total for i in range(40)]
    found["measured"]["influence"] = rising
    found["measured"]["last_token_attention"] = rising[::-1]
    kept = found["measured"]["summaries"]
    kept["masses"] = [rising for _ in kept["masses"]]
    kept["first"] = [rising[0] for _ in kept["first"]]
    return found


def chunks() -> list[Chunk]:
    relevance = {"a": 0.9, "b": 0.1, "c": 0.5, "d": 0.2}
    return [Chunk(id=name, tokens=10, relevance=value) for name, value in relevance.items()]


def test_the_best_chunk_goes_where_the_curve_is_high(tmp_path: Path, saved: dict[str, Any]) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(saved))
    for source in (path, str(path), saved, Profile.of_answer(json.dumps(saved))):
        placed = OfflinePlacer(source).place(chunks())
        # The rising curve asks for b, d, c, a; that gains too little over a zigzag to be trusted.
        assert placed.order == ["c", "b", "d", "a"]
        optimal = OfflinePlacer(source).place(chunks(), strategy="optimal")
        assert optimal.order == ["b", "d", "c", "a"]
    by_other_curve = OfflinePlacer(path).place(
        chunks(), source="last_token_attention", strategy="optimal"
    )
    assert by_other_curve.order == ["a", "c", "d", "b"]
    assert by_other_curve.advice.decision == "undecided"
    assert placed.advice.decision == "reorder"
    assert placed.gain.given is not None
    assert placed.gain.given.low is not None
    assert placed.gain.given.low > 0
    assert not placed.extrapolated
    assert OfflinePlacer(path).place([Chunk(id="x", tokens=9, relevance=1.0)]).extrapolated


def test_options_and_refusals(saved: dict[str, Any]) -> None:
    placer = OfflinePlacer(saved)
    dropped = placer.place(chunks(), max_chunks=2).dropped
    assert [one.id for one in dropped] == ["b", "d"]
    assert placer.place(chunks(), model="owner/name", profile_id="a" * 32).order[-1] == "a"
    with pytest.raises(LacunaError, match="not"):
        placer.place(chunks(), model="other/name")
    with pytest.raises(Refused, match="recall"):
        placer.place(chunks(), source="recall")
    with pytest.raises(Refused, match="relevance"):
        placer.place([{"id": "a", "tokens": 1}])
    with pytest.raises(LacunaError, match="tokenizer"):
        placer.place([Chunk(id="a", relevance=1.0, text="words")])
    with pytest.raises(Refused):
        OfflinePlacer({"id": "a"})


async def test_reorderers_work_offline(saved: dict[str, Any]) -> None:
    reorderer = Reorderer(OfflinePlacer(saved))
    assert reorderer.order(["x" * 40] * 3, [0.9, 0.1, 0.5]) == [2, 1, 0]
    assert await reorderer.aorder(["x" * 40] * 3, [0.9, 0.1, 0.5]) == [2, 1, 0]


def test_haystack_places_from_a_file(tmp_path: Path, saved: dict[str, Any]) -> None:
    haystack = pytest.importorskip("haystack", reason="haystack-ai is not installed")
    from lacuna.haystack import LacunaRanker

    path = tmp_path / "profile.json"
    path.write_text(json.dumps(saved))
    documents = [haystack.Document(id=str(i), content="x" * 40, score=1.0 - i) for i in range(3)]
    result = LacunaRanker(profile_path=str(path)).run(documents)["documents"]
    assert [one.id for one in result] == ["1", "2", "0"]


def test_a_profile_of_a_newer_service_is_read(saved: dict[str, Any]) -> None:
    saved["shape"]["class"] = "w_shaped"
    saved["of_the_next_release"] = 1
    assert OfflinePlacer(saved).place(chunks()).order[-1] == "a"


@pytest.mark.slow
def test_placing_twenty_chunks_takes_milliseconds(make_profile: Callable[..., Profile]) -> None:
    placer = OfflinePlacer(make_profile(tokens=4_096))
    generator = random.Random(0)
    given = [
        {"id": str(i), "tokens": generator.randint(50, 350), "relevance": generator.random()}
        for i in range(20)
    ]
    seconds = []
    for _ in range(500):
        begun = time.process_time()
        placer.place(given)
        seconds.append(time.process_time() - begun)
    # Two on an idle core. What else runs on the machine only adds, so the least counts.
    assert min(seconds) < 0.003
