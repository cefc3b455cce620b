"""The page's files: what they may load, how they are cached, and that all of them are there."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import get_args

import httpx
import pytest

from lacuna.contract.profile_requests import COSTLY_PREDICTION, PREDICTION_NAMES
from lacuna.contract.profiles import Source
from service.gateway.routes.page import FOLDER

VENDOR = FOLDER / "vendor"
OURS = [p for p in sorted(FOLDER.rglob("*")) if p.is_file() and VENDOR not in p.parents]
MAX_BYTES = 1_500_000


async def test_the_page_is_public_and_its_policy_is_strict(gateway: object) -> None:
    client = await gateway(api_keys=("k" * 20,))  # type: ignore[operator]
    answer = await client.get("/")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    for loose in ("unsafe", "http:", "https:", "*", "data:", "blob:"):
        assert loose not in policy
    assert "frame-ancestors 'none'" in policy


async def test_everything_that_the_page_names_is_served(client: httpx.AsyncClient) -> None:
    page = (await client.get("/")).text
    pending = re.findall(r'(?:src|href)="(assets/[^"]+)"', page)
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        seen.add(name)
        answer = await client.get(f"/{name}")
        assert answer.status_code == 200, name
        media = answer.headers["content-type"].partition(";")[0]
        assert media in {"text/css", "text/javascript", "image/svg+xml"}, name
        imported = {f"assets/{file}" for file in re.findall(r'from "\./([^"]+)"', answer.text)}
        pending += imported - seen
    assert {f"assets/{p.name}" for p in OURS if p.suffix == ".js"} <= seen


async def test_what_is_known_is_not_sent_again(client: httpx.AsyncClient) -> None:
    first = await client.get("/assets/style.css")
    assert first.headers["content-encoding"] == "gzip"
    again = await client.get("/assets/style.css", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
    plain = await client.get("/assets/style.css", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.headers["etag"] != first.headers["etag"]
    assert plain.text == first.text == (FOLDER / "style.css").read_text()


@pytest.mark.parametrize(
    "path", ["nothing.js", "../settings.py", "%2e%2e/settings.py", "..%2fsettings.py", "vendor", ""]
)
async def test_nothing_else_can_be_read(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(f"/assets/{path}")).status_code == 404


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_no_other_host_no_inline_code_no_markup_from_text(path: Path) -> None:
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert "http://" not in text
    assert "https://" not in text
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)
    if path.suffix == ".html":
        assert not re.search(r"\sstyle=|\son\w+=|<style|<script(?![^>]*\ssrc=)", text)


def test_the_page_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < MAX_BYTES


def test_the_vendored_library_is_pinned_and_licensed() -> None:
    wanted = json.loads((VENDOR / "package.json").read_text())["dependencies"]["d3"]
    locked = json.loads((VENDOR / "package-lock.json").read_text())["packages"]["node_modules/d3"]
    assert locked["version"] == wanted
    assert len(base64.b64decode(locked["integrity"].removeprefix("sha512-"))) == 64
    assert f"v{wanted} Copyright" in (VENDOR / "d3.min.js").read_text()[:100]
    licence = (VENDOR / "LICENSE.d3").read_text()
    assert "Permission to use, copy, modify, and/or distribute" in licence
    assert "d3-ease" in licence


def test_the_vendored_file_is_the_package_s_own() -> None:
    digest = "912111098ea99503a6f4967361d2bbdc9dbf58cf9c678c8e27e5b02d1a07f0c1"
    assert hashlib.sha256((VENDOR / "d3.min.js").read_bytes()).hexdigest() == digest


def test_the_shipped_example_shows_what_a_profile_can_have() -> None:
    example = json.loads((FOLDER / "example.json").read_text())
    assert example["model"]["id"] == "demo:smollm2-135m-instruct"
    assert example["measured"]["documents"] >= 12
    assert example["recall"]["facts"]["groups"] >= 16
    assert example["dead_zone_verdict"] == "zone"


def test_the_page_knows_every_prediction_and_every_curve() -> None:
    state = (FOLDER / "state.js").read_text()

    def names(constant: str) -> list[str]:
        listed = re.search(rf"export const {constant} = \[(.*?)\]", state, re.DOTALL)
        assert listed is not None
        return re.findall(r'"(\w+)"', listed[1])

    assert names("PREDICTIONS") == list(PREDICTION_NAMES)
    assert {*names("SOURCES"), *PREDICTION_NAMES} == set(get_args(Source))
    assert f'COSTLY = "{COSTLY_PREDICTION}"' in (FOLDER / "measure.js").read_text()
    assert f'id="{COSTLY_PREDICTION}"' in (FOLDER / "index.html").read_text()
