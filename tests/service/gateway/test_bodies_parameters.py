"""Query parameters: none that is misspelt or repeated becomes a silent default."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

ID = "a" * 32
DOCUMENT = json.loads((Path(__file__).parents[3] / "openapi" / "openapi.json").read_text())
OPERATIONS = [(method, path) for path, item in DOCUMENT["paths"].items() for method in item]


def errors(answer: httpx.Response) -> dict[str, str]:
    document = answer.json()
    assert (answer.status_code, document["code"]) == (422, "invalid_request"), answer.text
    return {error["field"]: error["message"] for error in document["errors"]}


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
async def test_no_address_takes_an_unknown_parameter(
    client: httpx.AsyncClient, method: str, path: str
) -> None:
    address = path.replace("{profile_id}", ID).replace("{job_id}", ID)
    answer = await client.request(method, f"{address}?zzzz=1", headers={"Accept": "*/*"})
    assert "unknown parameter" in errors(answer)["zzzz"]
    assert "422" in DOCUMENT["paths"][path][method]["responses"]


@pytest.mark.parametrize(
    ("address", "field", "words"),
    [
        ("/v1/profiles?modle=x", "modle", "did you mean `model`?"),
        (f"/v1/profiles/{ID}/dead-zone?treshold=0.2", "treshold", "did you mean `threshold`?"),
        (f"/v1/profiles/{ID}.svg?bin=4", "bin", "did you mean `bins`?"),
        (f"/v1/comparisons?a={ID}&b={ID}&Source=measured", "Source", "did you mean `source`?"),
        ("/v1/profiles?page=2", "page", "`model`, `limit`, `cursor`"),
        ("/readyz?verbose", "verbose", "none here"),
        (f"/v1/profiles/{ID}/series?bins=1&bins=2", "bins", "once"),
        ("/v1/profiles?limit=1&limit=1", "limit", "once"),
    ],
)
async def test_what_is_wrong_with_a_parameter_is_said(
    client: httpx.AsyncClient, address: str, field: str, words: str
) -> None:
    assert words in errors(await client.get(address))[field]


async def test_every_wrong_parameter_is_named(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/profiles?modle=x&limit=1&limit=2&cursors=y")
    assert list(errors(answer)) == ["modle", "limit", "cursors"]


async def test_a_profile_in_memory_obeys_too(client: httpx.AsyncClient, stored: str) -> None:
    address = f"/v1/profiles/{stored}"
    assert (await client.get(address)).status_code == 200
    assert "bin" in errors(await client.get(f"{address}?bin=4"))
    assert (await client.get(f"{address}?bins=4")).status_code == 200
    assert (await client.get(f"{address}?")).status_code == 200


async def test_the_page_may_be_given_what_its_script_reads(client: httpx.AsyncClient) -> None:
    assert (await client.get(f"/?profile={ID}")).status_code == 200


NUMERIC = [
    (method, path, parameter["name"])
    for method, path in OPERATIONS
    for parameter in DOCUMENT["paths"][path][method].get("parameters", ())
    if parameter["in"] == "query"
    and {"integer", "number"}
    & {one.get("type") for one in [parameter["schema"], *parameter["schema"].get("anyOf", ())]}
]


@pytest.mark.parametrize(("method", "path", "name"), NUMERIC)
async def test_numbers_are_written_as_everybody_reads_them(
    client: httpx.AsyncClient, method: str, path: str, name: str
) -> None:
    assert len(NUMERIC) >= 5
    address = path.replace("{profile_id}", ID).replace("{job_id}", ID)
    others = {"a": ID, "b": ID} if "comparisons" in path else {}
    for text in ("1_0", "\uff11\uff10", "0x10", " 10", "nan", "inf", "1e999", ""):
        answer = await client.request(method, address, params={**others, name: text})
        assert name in errors(answer), text


async def test_a_query_of_many_wrong_parameters_reports_the_first(
    client: httpx.AsyncClient,
) -> None:
    query = "&".join(f"limitt{number}=1" for number in range(600))
    answer = await client.get(f"/v1/profiles?{query}")
    assert len(errors(answer)) == 20
