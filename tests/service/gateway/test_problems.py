from __future__ import annotations

import contextlib
import json
import re
from html import escape
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lacuna.contract.base import PATTERN_WORDS
from lacuna.contract.errors import BY_CODE, InvalidRequest
from lacuna.contract.profile_requests import ProfileRequest
from service.gateway.app import create_app
from service.gateway.bodies import BodyInvalid, parse
from service.gateway.problems import STATUS, field_errors, problem
from service.settings import Settings
from service.store import keys

POSTS = ["/v1/profiles", "/v1/rollouts", "/v1/placements"]
JSON = {"Content-Type": "application/json"}


def assert_problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text[:300]
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    document: dict[str, Any] = answer.json()
    assert document["code"] == code
    assert document["status"] == status
    assert document["type"] == f"/problems/{code}"
    assert document["request_id"] == answer.headers["x-request-id"]
    assert document["detail"]
    return document


def untouched(client: redis.Redis) -> bool:
    """Whether nothing is stored; a gateway tries now and then whether it can write at all."""
    return set(client.keys()) <= {keys.PROBE.encode(), keys.PROBE}


BAD_BODIES: list[tuple[bytes, str]] = [
    (b"\x80\x81\x82\xff", "body"),
    (b'{"model": "\x80\xff"}', "body"),
    (b"", "body"),
    (b"null", "body"),
    (b"[]", "body"),
    (b'"text"', "body"),
    (b"{", "body"),
    (b'{"model": "gpt2"} x', "body"),
    (b"\xef\xbb\xbf", "body"),
    (b'{\xef\xbb\xbf"model": "gpt2"}', "body"),
    (b'{"model": "\\ud800"}', "body"),
    (b'{"\\ud800": 1, "model": "gpt2"}', "body"),
    (b'{"model": "gpt2", "model": "gpt2"}', "model"),
    (b'{"model": "gpt2", "documents": {"count": 1, "count": 1}}', "count"),
    (b'{"model": "gpt2", "seed": NaN}', "seed"),
    (b'{"model": "gpt2", "seed": Infinity}', "seed"),
    (b'{"model": "gpt2", "seed": -Infinity}', "seed"),
    (b'{"model": "gpt2", "seed": 1e400}', "seed"),
    (b"[" * 100_000, "body"),
    (b'{"a":' * 100_000, "body"),
    (b'{"model": "gpt2", "seed": ' + b"9" * 5_000 + b"}", "body"),
    (b"{}", "model"),
    (b'{"modle": "gpt2"}', "modle"),
    (b'{"model": null}', "model"),
    (b'{"model": 1}', "model"),
    (b'{"model": "gpt2", "documents": {"texts": ["a"]}}', "documents.texts"),
    (b'{"model": "gpt2", "documents": {"source": "inline"}}', "documents.texts"),
    (b'{"model": "gpt2", "documents": {"source": "inline", "texts": [""]}}', "documents.texts.0"),
    (b'{"model": "gpt2", "documents": {"source": "corpus", "name": "../x"}}', "documents.name"),
    (b'{"model": "gpt2", "target": "x"}', "target"),
    (b'{"model": "preset:gpt2"}', "model"),
    (b'{"model": "gpt2", "predictions": ["residual", "residual"]}', "predictions"),
    (b'{"model": "gpt2", "objective": "loss"}', "objective"),
]
NUMBERS = ["-1", "0", "1000000000000", "1e3", '"256"', "true", "null", "1.5", "[256]", "NaN"]
IDS = [
    "", "a/b/c", "../x", "/etc", ".", "..", "%2e%2e", "a\\u0000b", "a" * 300, "/tmp", "local:../x",
    "demo:", "local:a/b", "a//b", "a b", "-x", "http://x/y", "é",
]  # fmt: skip


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("body", [body for body, field in BAD_BODIES if field == "body"])
async def test_what_is_no_json_object_is_refused_everywhere(
    client: httpx.AsyncClient, path: str, body: bytes
) -> None:
    answer = await client.post(path, content=body, headers=JSON)
    document = assert_problem(answer, 422, "invalid_request")
    assert [error["field"] for error in document["errors"]] == ["body"]


@pytest.mark.parametrize(("body", "field"), BAD_BODIES)
async def test_bad_bodies_are_refused_by_field(
    client: httpx.AsyncClient, redis_sync: redis.Redis, body: bytes, field: str
) -> None:
    answer = await client.post("/v1/profiles", content=body, headers=JSON)
    document = assert_problem(answer, 422, "invalid_request")
    assert field in {error["field"] for error in document["errors"]}
    assert untouched(redis_sync)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("field", ["sequence_length", "documents.count", "seed", "probes"])
async def test_numbers_are_strict_and_bounded(
    client: httpx.AsyncClient, redis_sync: redis.Redis, field: str, number: str
) -> None:
    if (field, number) == ("seed", "0"):
        return
    inner = f'"{field}": {number}'
    if "." in field:
        inner = f'"documents": {{"count": {number}}}'
    body = f'{{"model": "gpt2", {inner}}}'.encode()
    answer = await client.post("/v1/profiles", content=body, headers=JSON)
    document = assert_problem(answer, 422, "invalid_request")
    assert [error["field"] for error in document["errors"]] == [field]
    assert untouched(redis_sync)


@pytest.mark.parametrize("identifier", IDS)
async def test_model_ids_are_never_paths(
    client: httpx.AsyncClient, redis_sync: redis.Redis, identifier: str
) -> None:
    body = f'{{"model": "{identifier}"}}'.encode()
    answer = await client.post("/v1/profiles", content=body, headers=JSON)
    document = assert_problem(answer, 422, "invalid_request")
    assert document["errors"][0]["field"] == "model"
    assert untouched(redis_sync)


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "application", "é/json"]
)
async def test_the_body_must_be_declared_as_json(
    client: httpx.AsyncClient, kind: str | None
) -> None:
    headers = {} if kind is None else {"Content-Type": kind.encode()}
    answer = await client.post("/v1/profiles", content=b'{"model": "gpt2"}', headers=headers)
    assert_problem(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/merge+json"])
async def test_json_by_any_name(client: httpx.AsyncClient, kind: str) -> None:
    answer = await client.post(
        "/v1/profiles", content=b'{"model": "gpt2"}', headers={"Content-Type": kind}
    )
    assert answer.status_code == 202


async def test_large_bodies_are_refused_before_parsing(
    client: httpx.AsyncClient, redis_sync: redis.Redis
) -> None:
    ten_megabytes = b"[" * 10_000_000
    declared = await client.post("/v1/profiles", content=ten_megabytes, headers=JSON)
    assert_problem(declared, 413, "payload_too_large")

    async def chunks() -> Any:
        for _ in range(100):
            yield b"[" * 100_000

    streamed = await client.post("/v1/profiles", content=chunks(), headers=JSON)
    document = assert_problem(streamed, 413, "payload_too_large")
    assert document["errors"][0]["field"] == "body"
    assert untouched(redis_sync)


async def test_cost_is_bounded_before_queueing(
    client: httpx.AsyncClient, redis_sync: redis.Redis
) -> None:
    many = {"model": "x/y", "sequence_length": 131_072, "documents": {"count": 4_096}}
    document = assert_problem(await client.post("/v1/profiles", json=many), 422, "too_large")
    assert document["errors"][0]["field"] == "sequence_length"
    many = {"model": "gpt2", "sequence_length": 512, "documents": {"count": 4_096}}
    document = assert_problem(await client.post("/v1/profiles", json=many), 422, "too_large")
    assert document["errors"][0]["field"] == "documents.count"
    assert untouched(redis_sync)


async def test_models_outside_the_allow_list_are_refused(
    gateway: Any, redis_sync: redis.Redis
) -> None:
    client = await gateway(allowed_models="demo:*,openai-community/*")
    refused = await client.post("/v1/profiles", json={"model": "evil/model"})
    document = assert_problem(refused, 403, "model_not_allowed")
    assert document["errors"][0]["field"] == "model"
    assert untouched(redis_sync)
    allowed = await client.post("/v1/profiles", json={"model": "openai-community/gpt2"})
    assert allowed.status_code == 202


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "allow"),
    [
        ("GET", "/nothing", 404, "not_found", None),
        ("GET", "/v1/profiles/", 404, "not_found", None),
        ("POST", "/v1/profiles/" + "a" * 32, 405, "method_not_allowed", "GET, HEAD, DELETE"),
        ("PUT", "/v1/profiles", 405, "method_not_allowed", "GET, HEAD, POST"),
        ("OPTIONS", "/v1/models", 405, "method_not_allowed", "GET, HEAD"),
        ("BREW", "/healthz", 405, "method_not_allowed", "GET, HEAD"),
        ("GET", "/v1/profiles/xyz", 422, "invalid_request", None),
        ("GET", "/v1/profiles/" + "a" * 32, 404, "profile_not_found", None),
        ("GET", "/v1/profiles/" + "a" * 32 + ".pdf", 404, "not_found", None),
        ("GET", "/v1/profiles/" + "a" * 32 + ".json.json", 404, "not_found", None),
        ("GET", "/v1/jobs/" + "a" * 32, 404, "job_not_found", None),
        ("DELETE", "/v1/jobs/" + "a" * 32, 404, "job_not_found", None),
        ("GET", "/v1/jobs/" + "a" * 32 + "/events", 404, "job_not_found", None),
        ("GET", "/v1/comparisons", 422, "invalid_request", None),
        ("GET", "/v1/profiles/%2e%2e%2f%00", 404, "not_found", None),
    ],
)
async def test_every_error_is_a_problem(
    client: httpx.AsyncClient, method: str, path: str, status: int, code: str, allow: str | None
) -> None:
    answer = await client.request(method, path)
    assert_problem(answer, status, code)
    assert answer.headers.get("allow") == allow


async def test_an_event_stream_has_no_head(client: httpx.AsyncClient) -> None:
    answer = await client.head("/v1/jobs/" + "a" * 32 + "/events")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET"


async def test_redis_away_is_a_quick_503(gateway: Any, tmp_path: Any) -> None:
    client = await gateway(redis_url=f"unix://{tmp_path}/nothing.sock")
    for answer in (
        await client.post("/v1/profiles", json={"model": "gpt2"}),
        await client.get("/v1/profiles"),
        await client.get("/v1/profiles/" + "a" * 32),
        await client.get("/v1/jobs/" + "a" * 32),
        await client.get("/v1/models"),
    ):
        assert_problem(answer, 503, "store_unavailable")
        assert int(answer.headers["retry-after"]) >= 1
    ready = await client.get("/readyz")
    document = assert_problem(ready, 503, "not_ready")
    assert document["redis"]["ok"] is False
    assert (await client.get("/healthz")).status_code == 200


async def test_a_full_queue_says_when_to_come_back(gateway: Any) -> None:
    client = await gateway(max_queued=2)
    for seed in range(2):
        answer = await client.post("/v1/profiles", json={"model": "gpt2", "seed": seed})
        assert answer.status_code == 202
    full = await client.post("/v1/profiles", json={"model": "gpt2", "seed": 2})
    assert_problem(full, 429, "queue_full")
    assert int(full.headers["retry-after"]) >= 1
    joined = await client.post("/v1/profiles", json={"model": "gpt2", "seed": 1})
    assert joined.status_code == 202


async def test_a_fault_of_ours_is_a_problem_without_details(
    gateway: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = await gateway()

    def broken(*arguments: object, **named: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("service.answers.profiles.Profiles.catalogue", broken)
    answer = await client.get("/v1/models", headers={"X-Request-ID": "abc-1"})
    document = assert_problem(answer, 500, "internal_error")
    assert "secret" not in answer.text
    assert document["request_id"] == "abc-1"
    assert "secret detail" in caplog.text


@pytest.mark.parametrize("code", STATUS)
async def test_the_type_of_a_problem_leads_to_its_meaning(
    client: httpx.AsyncClient, code: str
) -> None:
    answer = await client.get(f"/problems/{code}")
    assert answer.status_code == 200
    found = answer.json()
    assert found["type"] == f"/problems/{code}"
    assert found["status"] == STATUS[code]
    assert found["retryable"] == json.loads(problem({}, code, "x").body)["retryable"]
    assert re.fullmatch(r"[A-Z`].+\.", found["meaning"], re.DOTALL)
    page = await client.get(f"/problems/{code}", headers={"Accept": "text/html,*/*;q=0.8"})
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert f"<title>{found['title']}</title>" in page.text
    assert escape(found["meaning"]) in page.text


async def test_a_problem_that_does_not_exist_has_no_page(client: httpx.AsyncClient) -> None:
    assert_problem(await client.get("/problems/nonsense"), 404, "not_found")


def test_the_documentation_lists_every_code_with_its_status() -> None:
    page = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
    table = page[page.index("| code | status |") :].split("\n\n")[0].splitlines()[2:]
    listed = {}
    for row in table:
        codes, statuses = row.split("|")[1:3]
        numbers = [int(number) for number in statuses.split(",")]
        names = re.findall(r"`(\w+)`", codes)
        assert len(numbers) in {1, len(names)}, row
        listed |= dict(zip(names, numbers * (len(names) // len(numbers)), strict=True))
    assert listed == STATUS


def test_every_code_of_the_tree_has_a_status() -> None:
    assert set(BY_CODE) <= set(STATUS)
    assert all(400 <= status < 600 for status in STATUS.values())


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(raw: bytes) -> None:
    with contextlib.suppress(InvalidRequest, BodyInvalid):
        parse(ProfileRequest, raw)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*ProfileRequest.model_fields, "x", "\ud800"]), _json, max_size=5
    )
)
def test_any_json_becomes_a_request_or_an_encodable_problem(value: dict[str, Any]) -> None:
    raw = json.dumps(value).encode()
    try:
        found = parse(ProfileRequest, raw)
    except InvalidRequest as error:
        errors = [(error.field or "", error.detail)]
    except BodyInvalid as error:
        errors = field_errors(error.errors)
    else:
        assert found.job_id
        return
    answer = problem({"type": "http"}, "invalid_request", "detail", errors=errors)
    assert json.loads(answer.body)["errors"]
    assert len(answer.body) < 30_000


async def test_field_names_of_the_caller_do_not_break_the_answer(
    client: httpx.AsyncClient,
) -> None:
    long = "x" * 10_000
    body = json.dumps({"model": "gpt2", long: 1, "é\u0000": 2}).encode()
    answer = await client.post("/v1/profiles", content=body, headers=JSON)
    document = assert_problem(answer, 422, "invalid_request")
    assert all(len(error["field"]) <= 300 for error in document["errors"])


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"content": {"diagonal": "x"}, "layers": 2}, {"content.diagonal"}),
        ({"mixing": {"type": "constant", "value": 2}, "layers": 2}, {"mixing.value"}),
        ({"mixing": {"type": "list"}, "layers": 2}, {"mixing.lambdas"}),
        ({"mixing": {"type": "list", "lambdas": [0.1, "x"]}}, {"mixing.lambdas.1"}),
        ({"mixing": {"type": "wrong"}}, {"mixing"}),
        ({"kernel": {"type": "alibi", "slopes": [[1, "x"]]}}, {"kernel.slopes", "kernel.slopes.0.1",
                                                               "kernel.slopes.0"}),
        ({"layers": 2, "extra": {"list[int]": 1}}, {"extra"}),
    ],
)  # fmt: skip
async def test_fields_are_named_as_the_caller_knows_them(
    client: httpx.AsyncClient, body: dict[str, Any], fields: set[str]
) -> None:
    document = assert_problem(await client.post("/v1/rollouts", json=body), 422, "invalid_request")
    assert {error["field"] for error in document["errors"]} == fields


@pytest.mark.parametrize(
    ("method", "path", "body", "words"),
    [
        ("GET", "/v1/profiles/xyz", None, "an id is 32 hex digits"),
        ("GET", "/v1/profiles/xyz/dead-zone", None, "an id is 32 hex digits"),
        ("GET", "/v1/jobs/XYZ", None, "an id is 32 hex digits"),
        ("GET", "/v1/comparisons?a=1&b=2", None, "an id is 32 hex digits"),
        ("GET", "/v1/profiles?cursor=!", None, "a cursor is"),
        ("GET", "/v1/profiles?model=a/b/c", None, "`owner/name`"),
        ("POST", "/v1/profiles", {"model": "../x"}, "`owner/name`"),
        ("POST", "/v1/profiles", {"model": "gpt2", "revision": "-x"}, "a revision is"),
        ("POST", "/v1/placements", {"profile_id": "x", "chunks": []}, "an id is 32 hex digits"),
    ],
)
async def test_forms_are_explained_in_words(
    client: httpx.AsyncClient, method: str, path: str, body: Any, words: str
) -> None:
    document = assert_problem(await client.request(method, path, json=body), 422, "invalid_request")
    assert words in document["errors"][0]["message"]
    assert "^" not in document["detail"]


def test_every_pattern_of_the_interface_has_words() -> None:
    app_document = create_app(Settings()).openapi()
    found = set(re.findall(r'"pattern": ("(?:[^"\\\\]|\\\\.)*")', json.dumps(app_document)))
    assert len(found) >= 4
    assert {json.loads(one) for one in found} <= set(PATTERN_WORDS)


@pytest.mark.parametrize(
    ("path", "body", "field", "meant"),
    [
        (
            "/v1/profiles",
            {"model": "gpt2", "sequence_lenght": 9},
            "sequence_lenght",
            "sequence_length",
        ),
        ("/v1/profiles", {"modle": "gpt2"}, "modle", "model"),
        ("/v1/profiles", {"model": "gpt2", "documents": {"cuont": 1}}, "documents.cuont", "count"),
        ("/v1/profiles", {"model": "gpt2", "recall": {"depth": 3}}, "recall.depth", "depths"),
        (
            "/v1/placements",
            {"density": [1], "chunks": [{"id": "a", "tokens": 1, "relevanse": 1}]},
            "chunks.0.relevanse",
            "relevance",
        ),
        ("/v1/rollouts", {"kernel": {"type": "alibi", "slope": 1}}, "kernel.slope", "slopes"),
        ("/v1/rollouts", {"mixing": {"type": "list", "lambda": []}}, "mixing.lambda", "lambdas"),
        (
            "/v1/rollouts",
            {"mixing": {"type": "constant", "lambdas": []}},
            "mixing.lambdas",
            "value",
        ),
        ("/v1/rollouts", {"lenght": 64}, "lenght", "sequence_length"),
        ("/v1/rollouts", {"length": 64}, "length", "sequence_length"),
        ("/v1/rollouts", {"tokens": 64}, "tokens", "sequence_length"),
        ("/v1/rollouts", {"lambda": 0.1}, "lambda", "mixing"),
        ("/v1/profiles", {"model": "gpt2", "Token-Count": 64}, "Token-Count", None),
        ("/v1/placements", {"chunks": [{"id": "a", "score": 1}]}, "chunks.0.score", "relevance"),
        ("/v1/placements", {"chunks": [], "budget": 1}, "budget", "max_tokens"),
        ("/v1/placements", {"chunks": [], "score": 1}, "score", None),
        ("/v1/profiles", {"model": "gpt2", "zzz": 1}, "zzz", None),
        ("/v1/profiles", {"model": "gpt2", "sequence_length" * 1000: 1}, None, None),
    ],
)
async def test_a_misspelt_field_is_told_what_it_was_meant_to_be(
    client: httpx.AsyncClient, path: str, body: Any, field: str | None, meant: str | None
) -> None:
    document = assert_problem(await client.post(path, json=body), 422, "invalid_request")
    messages = {error["field"]: error["message"] for error in document["errors"]}
    said = "known here: `" if meant is None else f"did you mean `{meant}`?"
    message = messages[field] if field else messages.popitem()[1]
    assert message.startswith(f"unknown field; {said}")


@pytest.mark.parametrize(
    ("path", "body", "field", "words"),
    [
        ("/v1/rollouts", {"architecture": "gpt-2"}, "architecture", "the nearest: gpt2"),
        ("/v1/rollouts", {"architecture": "LLaMA-3-8B"}, "architecture", "the nearest: llama-3-8b"),
        ("/v1/rollouts", {"architecture": "zzz"}, "architecture", "/openapi.json has them all"),
        ("/v1/rollouts", {"architecture": 3}, "architecture", "/openapi.json has them all"),
        ("/v1/rollouts", {"architecture": "a" * 9_999}, "architecture", "has them all"),
        ("/v1/rollouts", {"kernel": {"type": "alibbi"}}, "kernel.type", "did you mean 'alibi'?"),
        ("/v1/rollouts", {"mixing": {"type": "constnt"}}, "mixing", "did you mean 'constant'?"),
        ("/v1/rollouts", {"predictions": ["cesaro", "residul"]}, "predictions.1", "'residual'"),
        (
            "/v1/placements",
            {"density": [1], "chunks": [], "objective": "total"},
            "objective",
            "must be 'mean_visibility', 'total_mass' or 'worst_case'; did you mean 'total_mass'?",
        ),
    ],
)
async def test_an_unknown_name_is_told_the_nearest_ones(
    client: httpx.AsyncClient, path: str, body: Any, field: str, words: str
) -> None:
    document = assert_problem(await client.post(path, json=body), 422, "invalid_request")
    messages = {error["field"]: error["message"] for error in document["errors"]}
    assert words in messages[field]
    assert words in document["detail"]
    assert all(len(text) < 300 for text in [document["detail"], *messages.values()])  # uncut
    assert "aaaaa" not in document["detail"]
    assert "alibbi" not in document["detail"]


async def test_an_unknown_name_in_the_query_is_told_the_nearest_one(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.get(f"/v1/profiles/{'a' * 32}/dead-zone?source=measurd")
    document = assert_problem(answer, 422, "invalid_request")
    assert "measured" in document["detail"]
    assert "measurd" not in document["detail"]


def test_a_long_detail_is_cut_between_words() -> None:
    words = [f"word{i}" for i in range(100)]
    document = json.loads(problem({"type": "http"}, "not_found", " ".join(words)).body)
    assert len(document["detail"]) <= 300
    head, end = document["detail"][:-1].split(" "), document["detail"][-1]
    assert end == "…"
    assert head == words[: len(head)]
    whole = json.loads(problem({"type": "http"}, "not_found", "x" * 400).body)["detail"]
    assert len(whole) == 300
