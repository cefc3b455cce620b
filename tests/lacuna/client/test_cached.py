"""A profile that is kept, and refreshed behind the caller's back."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from lacuna import CachedPlacer, Profile, Refused, Reorderer, ServiceAway
from lacuna.contract.profiles import ProfilePage, ProfileSummary

CHUNKS = [{"id": str(i), "tokens": 10, "relevance": 0.9 - 0.1 * i} for i in range(4)]


def summary_of(one: Profile) -> ProfileSummary:
    return ProfileSummary(
        id=one.id, model=one.model.id, revision=None, weights=one.request.weights,
        sequence_length=one.request.sequence_length, objective="jacobian",
        documents=one.measured.documents, shape="u_shaped", dead_zone=None,
        dead_zone_verdict="none", primacy_mass=0.3, recency_mass=0.3, created_at=one.created_at,
    )  # fmt: skip


class Service:
    """Knows some profiles, newest first; counts what it is asked."""

    def __init__(self, *profiles: Profile) -> None:
        self.profiles = list(profiles)
        self.asked: list[str] = []
        self.away = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        if self.away:
            raise httpx.ConnectError("gone", request=request)
        if request.url.path == "/v1/profiles":
            page = ProfilePage(items=[summary_of(one) for one in self.profiles], next=None)
            return httpx.Response(200, content=page.model_dump_json())
        found = next(one for one in self.profiles if request.url.path.endswith(one.id))
        return httpx.Response(200, content=found.model_dump_json())


def trained(make_profile: Callable[..., Profile], identifier: str) -> Profile:
    one = make_profile(identifier=identifier * 32, model="owner/name")
    return one.model_copy(
        update={"request": one.request.model_copy(update={"weights": "pretrained"})}
    )


def wait_until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_it_asks_once_and_answers_as_the_service(
    client: Any, make_profile: Callable[..., Profile]
) -> None:
    service = Service(trained(make_profile, "a"))
    placer = CachedPlacer(client(service), model="owner/name")
    orders = [placer.place(CHUNKS).order for _ in range(5)]
    assert service.asked == ["/v1/profiles", f"/v1/profiles/{'a' * 32}"]
    assert all(order == orders[0] for order in orders)
    assert placer.place(CHUNKS).profile_id == "a" * 32


def test_a_newer_profile_is_read_in_the_background(
    client: Any, make_profile: Callable[..., Profile]
) -> None:
    service = Service(trained(make_profile, "a"))
    placer = CachedPlacer(client(service), model="owner/name", refresh=0.0)
    assert placer.place(CHUNKS).profile_id == "a" * 32
    service.profiles.insert(0, trained(make_profile, "b"))
    assert placer.place(CHUNKS).profile_id == "a" * 32  # the old one answers at once
    wait_until(lambda: placer.place(CHUNKS).profile_id == "b" * 32)


def test_the_old_profile_serves_while_the_service_is_away(
    client: Any, make_profile: Callable[..., Profile]
) -> None:
    service = Service(trained(make_profile, "a"))
    placer = CachedPlacer(client(service, retries=0), profile_id="a" * 32, refresh=0.0)
    placer.place(CHUNKS)
    named = CachedPlacer(client(service, retries=0), model="owner/name", refresh=0.0)
    named.place(CHUNKS)
    service.away = True
    count = len(service.asked)
    for _ in range(3):
        assert placer.place(CHUNKS).profile_id == named.place(CHUNKS).profile_id == "a" * 32
    wait_until(lambda: len(service.asked) > count)
    fresh = CachedPlacer(client(service, retries=0), model="owner/name")
    with pytest.raises(ServiceAway):
        fresh.place(CHUNKS)


def test_threads_share_one_reading(client: Any, make_profile: Callable[..., Profile]) -> None:
    service = Service(trained(make_profile, "a"))
    placer = copy.deepcopy(CachedPlacer(client(service), profile_id="a" * 32))
    threads = [threading.Thread(target=placer.place, args=(CHUNKS,)) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert service.asked == [f"/v1/profiles/{'a' * 32}"]


def test_refusals(client: Any) -> None:
    with pytest.raises(Refused, match="one of the two"):
        CachedPlacer(client(Service()))
    with pytest.raises(Refused, match="with trained weights"):
        CachedPlacer(client(Service()), model="owner/name").place(CHUNKS)


async def test_a_reorderer_takes_it(client: Any, make_profile: Callable[..., Profile]) -> None:
    placer = CachedPlacer(client(Service(trained(make_profile, "a"))), model="owner/name")
    reorderer = Reorderer(placer, timeout=30, strategy="optimal")
    order = await reorderer.aorder(["x" * 40] * 4, [0.9, 0.8, 0.7, 0.6])
    assert sorted(order) == [0, 1, 2, 3]
    assert reorderer.counts == {"placed": 1}
