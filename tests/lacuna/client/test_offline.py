"""Placement from a saved profile: the service's own arithmetic, without the service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lacuna import Chunk, LacunaError, OfflinePlacer, Profile, Refused, Reorderer


def saved(n: int = 40) -> dict[str, Any]:
    """A profile as the service sends it, with a curve that rises to the end."""
    total = n * (n + 1) / 2
    influence = [(i + 1) / total for i in range(n)]
    return {
        "id": "a" * 32,
        "model": {
            "id": "owner/name", "revision": None, "architecture": "llama", "layers": 2,
            "attention_layers": 2, "heads": 2, "width": 8, "vocabulary": 9, "parameters": 9,
            "positional_encoding": "rotary", "window": None, "max_length": 100,
            "attention_implementation": "sdpa", "block": "sequential", "support": "full",
            "support_notes": [], "tokenizer_digest": None,
        },
        "request": {
            "model": "owner/name", "revision": None, "weights": "pretrained", "seed": 0,
            "sequence_length": n, "objective": "argmax_probability", "probes": None,
            "positional_encoding": "on", "content_scale": "model", "dtype": "float32",
            "documents_source": "builtin", "documents_name": None, "documents_asked": 4,
            "documents_digest": "0" * 64, "target_digest": None, "leading_bos": False,
            "needle": None,
        },
        "measured": {
            "influence": influence, "low": influence, "high": influence,
            "per_document": influence[::-1], "documents": 4, "split_half_wasserstein": 0.01,
        },
        "mixing": None, "predictions": {}, "forces": [], "collapse": None, "dead_zone": None,
        "shape": {
            "class": "recency", "primacy_mass": 0.01, "recency_mass": 0.2, "middle_mass": 0.79,
            "primacy_excess": -0.09, "recency_excess": 0.1, "thresholds": {},
        },
        "warnings": [], "method_version": "1",
        "timings": {"load_seconds": 0.0, "measure_seconds": 0.0, "predict_seconds": 0.0,
                    "tokens_per_second": 0.0},
        "environment": {"lacuna": "0.1.0", "torch": "", "transformers": "", "python": "",
                        "device": "cpu", "dtype": "float32", "threads": 1},
        "created_at": "2026-01-01T00:00:00Z",
    }  # fmt: skip


def chunks() -> list[Chunk]:
    relevance = {"a": 0.9, "b": 0.1, "c": 0.5, "d": 0.2}
    return [Chunk(id=name, tokens=10, relevance=value) for name, value in relevance.items()]


def test_the_best_chunk_goes_where_the_curve_is_high(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(saved()))
    for source in (path, str(path), saved(), Profile.model_validate(saved())):
        placed = OfflinePlacer(source).place(chunks())
        assert placed.order == ["b", "d", "c", "a"]
    by_other_curve = OfflinePlacer(path).place(chunks(), source="per_document")
    assert by_other_curve.order == ["a", "c", "d", "b"]
    assert placed.gain.given is not None
    assert placed.gain.given > 0
    assert not placed.extrapolated
    assert OfflinePlacer(path).place([Chunk(id="x", tokens=9, relevance=1.0)]).extrapolated


def test_options_and_refusals() -> None:
    placer = OfflinePlacer(saved())
    assert placer.place(chunks(), max_chunks=2).dropped == ["b", "d"]
    assert placer.place(chunks(), model="owner/name", profile_id="a" * 32).order[-1] == "a"
    with pytest.raises(LacunaError, match="not"):
        placer.place(chunks(), model="other/name")
    with pytest.raises(Refused, match="needle"):
        placer.place(chunks(), source="needle")
    with pytest.raises(Refused, match="relevance"):
        placer.place([{"id": "a", "tokens": 1}])
    with pytest.raises(LacunaError, match="tokenizer"):
        placer.place([Chunk(id="a", relevance=1.0, text="words")])
    with pytest.raises(Refused):
        OfflinePlacer({"id": "a"})


async def test_reorderers_work_offline() -> None:
    reorderer = Reorderer(OfflinePlacer(saved()))
    assert reorderer.order(["x" * 40] * 3, [0.9, 0.1, 0.5]) == [1, 2, 0]
    assert await reorderer.aorder(["x" * 40] * 3, [0.9, 0.1, 0.5]) == [1, 2, 0]


def test_haystack_places_from_a_file(tmp_path: Path) -> None:
    haystack = pytest.importorskip("haystack", reason="haystack-ai is not installed")
    from lacuna.haystack import LacunaRanker

    path = tmp_path / "profile.json"
    path.write_text(json.dumps(saved()))
    documents = [haystack.Document(id=str(i), content="x" * 40, score=1.0 - i) for i in range(3)]
    result = LacunaRanker(profile_path=str(path)).run(documents)["documents"]
    assert [one.id for one in result] == ["2", "1", "0"]
