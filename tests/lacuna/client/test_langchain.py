"""The document transformer in LangChain's own hands."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import httpx
import pytest

pytest.importorskip("langchain_core", reason="langchain-core is not installed")

from langchain_core.documents import BaseDocumentTransformer, Document
from langchain_core.runnables import RunnableLambda

from lacuna import LacunaError
from lacuna.langchain import LacunaReorder


def documents(n: int = 4) -> list[Document]:
    return [
        Document(page_content=f"text {i}", metadata={"relevance_score": 1.0 / (i + 1)})
        for i in range(n)
    ]


def test_it_is_a_document_transformer_that_changes_nothing(client: Any, reversing: Any) -> None:
    reorder = LacunaReorder(client(reversing), model="gpt2", timeout=30)
    assert isinstance(reorder, BaseDocumentTransformer)
    given = documents()
    before = [document.model_copy(deep=True) for document in given]
    result = reorder.transform_documents(given)
    assert list(result) == before[::-1]
    assert given == before
    assert result is not given
    assert all(one is other for one, other in zip(result, given[::-1], strict=True))


async def test_async_awaits_or_leaves_the_loop(
    client: Any, async_client: Any, reversing: Any
) -> None:
    for placer in (client(reversing), async_client(reversing)):
        result = await LacunaReorder(placer, model="gpt2", timeout=30).atransform_documents(
            documents()
        )
        assert list(result) == documents()[::-1]


def test_it_runs_in_a_chain(client: Any, reversing: Any) -> None:
    reorder = LacunaReorder(client(reversing), model="gpt2", timeout=30)
    chain = RunnableLambda(lambda _: documents(3)) | reorder.transform_documents
    assert chain.invoke("question") == documents(3)[::-1]


def test_documents_without_scores_count_best_first(client: Any, reversing: Any) -> None:
    plain = tuple(Document(page_content=str(i)) for i in range(3))
    reorder = LacunaReorder(client(reversing), model="gpt2", timeout=30)
    with pytest.warns(RuntimeWarning, match="'relevance_score'.* counts as best first"):
        result = reorder.transform_documents(plain)
    assert [document.page_content for document in result] == ["2", "1", "0"]


def test_scores_under_another_key_are_named_in_the_warning(client: Any, reversing: Any) -> None:
    given = [Document(page_content=str(i), metadata={"score": s}) for i, s in enumerate((0.5, 0.9))]
    reorder = LacunaReorder(client(reversing), model="gpt2", timeout=30)
    with pytest.warns(RuntimeWarning) as told:
        reorder.transform_documents(given)
    assert len(told) == 1
    assert "no document has 'relevance_score'" in str(told[0].message)
    assert "['score'] (score_key names another key)" in str(told[0].message)
    reorder.transform_documents(given)
    assert reorder.reorderer.counts == {"placed": 2, "unscored": 2}


def test_an_address_or_a_wrong_scale_is_found_when_it_is_made(client: Any, reversing: Any) -> None:
    with pytest.raises(LacunaError, match="placer is of type str"):
        LacunaReorder("http://127.0.0.1:8080")  # type: ignore[arg-type]
    with pytest.raises(LacunaError, match="relevance_scale"):
        LacunaReorder(client(reversing), relevance_scale="cosine")


async def test_a_key_that_was_named_must_be_there(client: Any, async_client: Any) -> None:
    def never(request: Any) -> Any:
        raise AssertionError("asked all the same")

    named: dict[str, Any] = {"score_key": "score", "model": "gpt2", "timeout": 30}
    strict = {**named, "on_error": "raise"}
    with pytest.raises(LacunaError, match=r"no document has 'score'.*\['relevance_score'\]"):
        LacunaReorder(client(never), **strict).transform_documents(documents())
    with pytest.raises(LacunaError, match="no document has 'score'"):
        await LacunaReorder(async_client(never), **strict).atransform_documents(documents())
    assert list(LacunaReorder(client(never), **named).transform_documents([])) == []


def test_without_the_key_that_was_named_the_given_order_counts(client: Any, reversing: Any) -> None:
    reorder = LacunaReorder(client(reversing), score_key="score", model="gpt2", timeout=30)
    with pytest.warns(RuntimeWarning, match="no document has 'score'"):
        assert list(reorder.transform_documents(documents())) == documents()[::-1]
    assert reorder.reorderer.counts["placed"] == 1


def test_a_named_key_is_read(client: Any) -> None:
    seen: list[Any] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content))
        raise httpx.ConnectError("gone", request=request)

    given = [Document(page_content=str(i), metadata={"score": i}) for i in range(3)]
    with pytest.warns(RuntimeWarning):
        LacunaReorder(
            client(handler, retries=0), score_key="score", model="gpt2"
        ).transform_documents(given)
    assert [chunk["relevance"] for chunk in seen[0]["chunks"]] == [0, 1, 2]


def test_away_keeps_the_order(client: Any, unreachable: Any) -> None:
    reorder = LacunaReorder(client(unreachable, retries=0), model="gpt2", timeout=30)
    with pytest.warns(RuntimeWarning, match="keeps the given order"):
        assert list(reorder.transform_documents(documents())) == documents()


def test_none_and_one(client: Any, unreachable: Any) -> None:
    reorder = LacunaReorder(client(unreachable, retries=0), model="gpt2", timeout=30)
    assert list(reorder.transform_documents([])) == []
    assert list(reorder.transform_documents(documents(1))) == documents(1)


def test_it_can_be_copied_and_pickled(client: Any, reversing: Any) -> None:
    one = LacunaReorder(client(reversing), model="gpt2", timeout=30)
    for twin in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert list(twin.transform_documents(documents())) == documents()[::-1]
