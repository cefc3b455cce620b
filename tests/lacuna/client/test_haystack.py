"""The ranker in Haystack's own hands."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("haystack", reason="haystack-ai is not installed")

from haystack import Document, Pipeline
from haystack.utils import Secret

import lacuna.haystack
from lacuna import Client, LacunaError
from lacuna.contract.profiles import Profile
from lacuna.haystack import LacunaRanker


def documents(n: int = 4) -> list[Document]:
    return [Document(id=f"d{i}", content=f"text {i}", score=1.0 / (i + 1)) for i in range(n)]


def ids(found: list[Document]) -> list[str]:
    return [one.id for one in found]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, reversing: Any) -> None:
    """Clients that the component makes talk to the fake service."""

    def blocking(url: str, **options: Any) -> Client:
        return Client(url, transport=httpx.MockTransport(reversing), **options)

    monkeypatch.setattr(lacuna.haystack, "Client", blocking)


@pytest.mark.usefixtures("served")
def test_it_runs_in_a_pipeline_and_changes_nothing() -> None:
    pipeline = Pipeline()
    pipeline.add_component("ranker", LacunaRanker(timeout=30, options={"model": "gpt2"}))
    given = documents()
    result = pipeline.run({"ranker": {"documents": given}})["ranker"]["documents"]
    assert ids(result) == ["d3", "d2", "d1", "d0"]
    assert given == documents()


@pytest.mark.usefixtures("served")
async def test_it_runs_in_a_pipeline_without_blocking() -> None:
    pipeline = Pipeline()
    pipeline.add_component("ranker", LacunaRanker(timeout=30, options={"model": "gpt2"}))
    result = await pipeline.run_async({"ranker": {"documents": documents()}})
    assert ids(result["ranker"]["documents"])[0] == "d3"


def test_pipelines_can_be_saved_and_loaded() -> None:
    ranker = LacunaRanker(
        "http://elsewhere", Secret.from_env_var("LACUNA_KEY"), options={"model": "gpt2"}
    )
    pipeline = Pipeline()
    pipeline.add_component("ranker", ranker)
    loaded = Pipeline.loads(pipeline.dumps(), allowed_modules=["lacuna.haystack"]).get_component(
        "ranker"
    )
    assert isinstance(loaded, LacunaRanker)
    assert loaded.to_dict() == ranker.to_dict()


def test_away_keeps_the_order() -> None:
    ranker = LacunaRanker("http://127.0.0.1:9", options={"model": "gpt2"})
    with pytest.warns(RuntimeWarning, match="keeps the given order"):
        assert ids(ranker.run(documents())["documents"]) == ["d0", "d1", "d2", "d3"]


@pytest.mark.usefixtures("served")
def test_documents_without_text_count_as_empty_or_are_refused() -> None:
    given = [Document(id="d0"), Document(id="d1")]
    with pytest.raises(LacunaError, match="has no text"):
        LacunaRanker(on_error="raise").run(given)
    ranker = LacunaRanker(timeout=30, options={"model": "gpt2"})
    with pytest.warns(RuntimeWarning) as told:
        assert ids(ranker.run(given)["documents"]) == ["d1", "d0"]
    words = [str(one.message) for one in told]
    assert sum("has no text" in one for one in words) == 2
    assert sum("no document has a score" in one for one in words) == 1


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"url": "profile.json"}, "url"),
        ({"options": {"relevance_scale": "cosine"}}, "relevance_scale"),
        ({"options": {"max_tokens": 10}}, "max_tokens"),
        ({"on_error": "ignore"}, "on_error"),
    ],
)
def test_what_no_run_can_use_is_found_when_it_is_made(
    arguments: dict[str, Any], field: str
) -> None:
    with pytest.raises(LacunaError) as refused:
        LacunaRanker(**arguments)
    assert refused.value.field == field


@pytest.mark.parametrize("name", ["profile_path", "fallback_path"])
def test_a_profile_is_read_when_it_is_made(name: str, tmp_path: Path, profile: Profile) -> None:
    path = tmp_path / "profile.json"
    with pytest.raises(FileNotFoundError):
        LacunaRanker(**{name: str(path)})
    path.write_text("{}")
    with pytest.raises(LacunaError, match="holds no profile"):
        LacunaRanker(**{name: str(path)})
    path.write_text(profile.model_dump_json(by_alias=True))
    options = {} if name == "profile_path" else {"model": "gpt2"}
    ranker = LacunaRanker("http://127.0.0.1:9", **{name: str(path)}, options=options)
    assert len(copy.deepcopy(ranker).run(documents())["documents"]) == 4
    path.unlink()
    assert len(ranker.run(documents())["documents"]) == 4
    path.write_text(profile.model_dump_json(by_alias=True))
    assert LacunaRanker.from_dict(ranker.to_dict()).to_dict() == ranker.to_dict()


@pytest.mark.usefixtures("served")
def test_top_k_keeps_the_most_relevant() -> None:
    ranker = LacunaRanker(timeout=30, options={"model": "gpt2"})
    assert len(ranker.run(documents(), top_k=2)["documents"]) == 2
    assert len(ranker.run(documents())["documents"]) == 4
    assert ranker.reorderer().counts == {"placed": 2}


def test_top_k_holds_without_a_service_and_without_a_curve() -> None:
    given = documents()[::-1]
    with pytest.warns(RuntimeWarning, match="keeps the given order"):
        found = LacunaRanker().run(documents=given, top_k=2)["documents"]
    assert ids(found) == ["d1", "d0"]
    away = LacunaRanker("http://127.0.0.1:9", options={"model": "gpt2"})
    with pytest.warns(RuntimeWarning, match="keeps the given order"):
        assert ids(away.run(documents=given, top_k=2)["documents"]) == ["d1", "d0"]


@pytest.mark.usefixtures("served")
def test_it_can_be_copied_before_and_after_a_run() -> None:
    ranker = LacunaRanker(timeout=30, options={"model": "gpt2"})
    for one in (copy.deepcopy(ranker), ranker, copy.deepcopy(ranker)):
        assert ids(one.run(documents())["documents"])[0] == "d3"
    assert ids(pickle.loads(pickle.dumps(ranker)).run(documents())["documents"])[0] == "d3"
