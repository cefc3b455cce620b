"""What crosses processes: errors, clients and reorderers, by pickle and by copy."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import httpx
import pytest

import lacuna.client.errors
from lacuna import (
    AsyncClient,
    CachedPlacer,
    Client,
    JobFailed,
    LacunaError,
    OfflinePlacer,
    Refused,
    Reorderer,
    ServiceAway,
    WaitedTooLong,
)
from lacuna.client.errors import FieldError
from lacuna.contract.jobs import Job

assert lacuna.client.errors  # its classes are among the subclasses of LacunaError
JOB = Job(
    id="a" * 32, state="running", attempt=1, progress=0.5, message="", position=None,
    eta_seconds=None, failure=None, profile=None, created_at="2026-01-01T00:00:00Z",
    started_at=None, finished_at=None,
)  # fmt: skip
CHUNKS = [{"id": "a", "tokens": 1, "relevance": 1}, {"id": "b", "tokens": 1, "relevance": 0}]
MADE: dict[type[LacunaError], Callable[[], LacunaError]] = {
    Refused: lambda: Refused(
        "no", code="x", errors=[FieldError("a.0", "b")], status=422, request_id="r"
    ),
    JobFailed: lambda: JobFailed("worker_lost", "gone", retryable=True, field="model"),
    ServiceAway: lambda: ServiceAway("away", status=503),
    WaitedTooLong: lambda: WaitedTooLong(JOB),
}


def kinds(root: type[LacunaError] = LacunaError) -> list[type[LacunaError]]:
    return [root, *(kind for child in root.__subclasses__() for kind in kinds(child))]


def made(kind: type[LacunaError]) -> LacunaError:
    return MADE.get(kind, lambda: kind("detail", field="a.b", retry_after=2.0))()


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "copied",
    [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy],
    ids=["pickle", "copy", "deepcopy"],
)
def test_every_error_survives(kind: type[LacunaError], copied: Any) -> None:
    error = made(kind)
    error.add_note("a note")
    twin = copied(error)
    assert type(twin) is kind
    assert (str(twin), twin.args, vars(twin)) == (str(error), error.args, vars(error))


def test_a_client_works_in_another_process(reversing: Any, async_client: Any) -> None:
    transport = httpx.MockTransport(reversing)
    client = Client("http://test", api_key="k" * 20, timeout=3, retries=1, transport=transport)
    twin = pickle.loads(pickle.dumps(client))
    assert twin.place(CHUNKS, model="gpt2").order == ["b", "a"]
    assert twin._made_of == client._made_of._replace(transport=twin._made_of.transport)
    assert isinstance(pickle.loads(pickle.dumps(async_client(reversing))), AsyncClient)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_reorderers_and_placers_are_copied_before_and_after_use(
    copied: Any, profile: Any, client: Any, reversing: Any
) -> None:
    placers = [client(reversing), OfflinePlacer(profile)]
    kept = CachedPlacer(client(reversing), profile_id=profile.id)
    kept._kept = OfflinePlacer(profile)
    for placer in [*placers, kept]:
        reorderer = Reorderer(placer, timeout=30, count_tokens=len, profile_id=profile.id)
        expected = reorderer.order(["aa", "b", "c"], [0.9, 0.5, 0.1])
        twin = copied(reorderer)
        assert twin.order(["aa", "b", "c"], [0.9, 0.5, 0.1]) == expected
        assert copied(twin).order(["aa", "b", "c"], [0.9, 0.5, 0.1]) == expected


def _fails(kind: type[LacunaError]) -> None:
    raise made(kind)


def test_an_error_of_another_process_arrives_and_the_pool_goes_on() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        for kind in MADE:
            with pytest.raises(kind) as raised:
                pool.submit(_fails, kind).result(30)
            assert vars(raised.value) == vars(made(kind))
        assert pool.submit(len, "ab").result(30) == 2
