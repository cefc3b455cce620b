"""What is computed from profiles is tagged, compressed, and asked for again without its bytes."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from lacuna import views
from lacuna.contract.profiles import Profile

IMMUTABLE = "max-age=31536000, immutable"


def addresses(identifier: str) -> dict[str, str]:
    profile = f"/v1/profiles/{identifier}"
    return {
        f"{profile}/series": IMMUTABLE,
        f"{profile}/series?bins=16": IMMUTABLE,
        f"{profile}/dead-zone?threshold=0.5": "max-age=3600",
        f"/v1/comparisons?a={identifier}&b={identifier}": "max-age=3600",
    }


@pytest.mark.parametrize("number", range(4))
async def test_views_have_strong_tags_and_are_revalidated(
    client: httpx.AsyncClient, stored: str, number: int
) -> None:
    address, caching = list(addresses(stored).items())[number]
    plain = {"Accept-Encoding": "identity"}
    first = await client.get(address, headers=plain)
    assert first.headers["cache-control"] == f"public, {caching}"
    assert first.headers["vary"] == "Accept-Encoding"
    tag = first.headers["etag"]
    assert tag.startswith('"')
    same = await client.get(address, headers=plain | {"If-None-Match": tag})
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    other = await client.get(address, headers=plain | {"If-None-Match": '"x"'})
    assert other.content == first.content
    head = await client.head(address, headers=plain)
    assert head.headers["content-length"] == str(len(first.content))
    assert (head.content, head.headers["etag"]) == (b"", tag)


async def test_series_leave_compressed_and_are_made_once(
    client: httpx.AsyncClient, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, rows = [], views.rows

    def counted(profile: Profile, bins: int | None) -> Any:
        made.append(bins)
        return rows(profile, bins)

    monkeypatch.setattr(views, "rows", counted)
    address = f"/v1/profiles/{stored}/series"
    packed = [await client.get(address, headers={"Accept-Encoding": "gzip"}) for _ in range(3)]
    plain = await client.get(address, headers={"Accept-Encoding": "identity"})
    assert made == [None]
    assert {answer.headers["content-encoding"] for answer in packed} == {"gzip"}
    assert int(packed[0].headers["content-length"]) < 0.6 * len(plain.content)
    assert packed[0].headers["etag"] != plain.headers["etag"]
    assert packed[0].content == plain.content
    await client.get(f"{address}?bins=8")
    assert made == [None, 8]


async def test_a_column_of_series_holds_masses(
    client: httpx.AsyncClient, stored: str, profile: Profile
) -> None:
    for query in ("", "?bins=10"):
        table = (await client.get(f"/v1/profiles/{stored}/series{query}")).json()
        for name in ("measured", "residual"):
            assert sum(row[name] for row in table) == pytest.approx(1, abs=1e-4)


async def test_views_are_private_where_there_are_keys(
    gateway: Any, worker: Any, profile: Profile
) -> None:
    key = {"X-API-Key": "a-key-of-sixteen-or-more"}
    client = await gateway(api_keys=tuple(key.values()))
    body = {"model": "preset:gpt2", "weights": "random"}
    await client.post("/v1/profiles", json=body, headers=key)
    for address, caching in addresses(worker.finish(profile)).items():
        answer = await client.get(address, headers=key)
        assert answer.headers["cache-control"] == f"private, {caching}"
