"""The node postprocessor in LlamaIndex's own hands."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any, cast

import httpx
import pytest

pytest.importorskip("llama_index.core", reason="llama-index-core is not installed")

from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from lacuna import LacunaError
from lacuna.llama_index import LacunaReorder


def nodes(n: int = 4, *, scores: bool = True) -> list[NodeWithScore]:
    return [
        NodeWithScore(
            node=TextNode(id_=f"n{i}", text=f"text {i}"), score=0.1 * i if scores else None
        )
        for i in range(n)
    ]


def ids(found: list[NodeWithScore]) -> list[str]:
    return [one.node.node_id for one in found]


def test_it_is_a_postprocessor_that_changes_nothing(client: Any, reversing: Any) -> None:
    reorder = LacunaReorder(client(reversing), model="gpt2", timeout=30)
    assert isinstance(reorder, BaseNodePostprocessor)
    given = nodes()
    result = reorder.postprocess_nodes(given, query_bundle=QueryBundle("question"))
    assert ids(result) == ["n3", "n2", "n1", "n0"]
    assert ids(given) == ["n0", "n1", "n2", "n3"]
    assert result[0] is given[3]
    assert given[3].score == pytest.approx(0.3)


async def test_async_awaits_or_leaves_the_loop(
    client: Any, async_client: Any, reversing: Any
) -> None:
    for placer in (client(reversing), async_client(reversing)):
        reorder = LacunaReorder(placer, model="gpt2", timeout=30)
        assert ids(await reorder.apostprocess_nodes(nodes(), query_str="q"))[0] == "n3"


def test_nodes_without_scores_count_best_first(client: Any, reversing: Any) -> None:
    reorder = LacunaReorder(client(reversing), model="gpt2", timeout=30)
    with pytest.warns(RuntimeWarning, match="counts as best first"):
        assert ids(reorder.postprocess_nodes(nodes(3, scores=False))) == ["n2", "n1", "n0"]
    mixed = nodes(2) + nodes(1, scores=False)
    with pytest.warns(RuntimeWarning, match="no score"):
        assert ids(reorder.postprocess_nodes(mixed)) == ids(mixed)
    strict = LacunaReorder(client(reversing), model="gpt2", on_error="raise")
    with pytest.raises(LacunaError, match="no score"):
        strict.postprocess_nodes(mixed)


def test_an_address_or_a_wrong_scale_is_found_when_it_is_made(client: Any, reversing: Any) -> None:
    with pytest.raises(LacunaError, match="placer is of type str"):
        LacunaReorder("http://127.0.0.1:8080")  # type: ignore[arg-type]
    with pytest.raises(LacunaError, match="relevance_scale"):
        LacunaReorder(client(reversing), relevance_scale="cosine")


def test_away_keeps_the_order(client: Any, unreachable: Any) -> None:
    reorder = LacunaReorder(client(unreachable, retries=0), model="gpt2", timeout=30)
    with pytest.warns(RuntimeWarning, match="keeps the given order"):
        assert ids(reorder.postprocess_nodes(nodes())) == ["n0", "n1", "n2", "n3"]


def test_the_questions_length_is_added_to_what_stands_behind(client: Any, reversing: Any) -> None:
    seen: list[Any] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content))
        return cast(httpx.Response, reversing(request))

    reorder = LacunaReorder(client(handler), model="gpt2", suffix_tokens=7, timeout=30)
    for question in ("x" * 40, "x" * 400):
        reorder.postprocess_nodes(nodes(), query_str=question)
    reorder.postprocess_nodes(nodes())
    assert [body["suffix_tokens"] for body in seen] == [17, 107, 7]


def test_it_can_be_saved_loaded_and_copied(client: Any, reversing: Any) -> None:
    one = LacunaReorder(url="http://elsewhere", model="gpt2", strategy="stable", timeout=2.5)
    loaded = LacunaReorder.from_dict(one.to_dict())
    assert loaded.to_dict() == one.to_dict()
    assert loaded.url == "http://elsewhere"
    assert loaded.options == {"model": "gpt2", "strategy": "stable"}
    assert loaded.timeout == 2.5
    own = LacunaReorder(client(reversing), model="gpt2", timeout=30)
    for twin in (copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
        assert ids(twin.postprocess_nodes(nodes()))[0] == "n3"
