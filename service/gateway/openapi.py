"""The OpenAPI document, and /docs that shows it.

The document is what FastAPI derives, plus the bodies that we parse ourselves, problems, security
and examples. `python -m service.gateway.write_openapi` stores it in openapi/openapi.json; a test
fails when the stored one differs.

/docs is Swagger UI, served by the gateway itself: no external host and no inline script. The script
and the style come with the package `fastapi-offline`. Without it, /docs links the document.
"""

from __future__ import annotations

import asyncio
import json
import threading
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from service.gateway.access import ROLE_MEMBER, is_public
from service.gateway.bodies import REQUEST_MODELS
from service.gateway.problems import Problem, problem_responses

_EVENT = {
    "type": "object",
    "description": "One event of the stream; `event` is the job's state, `data` the Job as JSON.",
    "properties": {
        "event": {"type": "string"},
        "id": {"type": "string"},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}
REF = "#/components/schemas/{model}"
FOLDER = Path(__file__).parents[2] / "openapi"
"""Exists in a checkout; an installed package serves the document without examples."""
_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI 3.1 document of an app."""
    schema = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=app.description,
        routes=app.routes,
        separate_input_output_schemas=False,
    )
    components = schema.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    models: list[type[BaseModel]] = sorted([*REQUEST_MODELS, Problem], key=repr)
    _, ours = models_json_schema([(model, "validation") for model in models], ref_template=REF)
    for name, definition in ours["$defs"].items():
        if schemas.setdefault(name, definition) != definition:
            raise ValueError(f"two schemas are named {name}")
    for framework in ("HTTPValidationError", "ValidationError"):
        schemas.pop(framework, None)
    for definition in schemas.values():
        _without_default_of_union(definition)
    components["schemas"] = dict(sorted(schemas.items()))
    components["securitySchemes"] = _SECURITY
    schema["security"] = [{}, {"bearer": []}, {"header": []}]
    for path, item in schema["paths"].items():
        for method, operation in item.items():
            _finish(path, method, operation)
    return schema


def _without_default_of_union(definition: dict[str, Any]) -> None:
    """Say an object that is the default of a union in words: client generators fail on it."""
    for member in definition.get("properties", {}).values():
        if "oneOf" in member and isinstance(member.get("default"), dict):
            words = json.dumps(member.pop("default"))
            member["description"] = f"{member.get('description', '')} Default: `{words}`.".strip()


def _finish(path: str, method: str, operation: dict[str, Any]) -> None:
    operation["operationId"] = (
        f"{method}_{path.strip('/').replace('/', '_')}".replace("{", "")
        .replace("}", "")
        .replace("-", "_")
    )
    if not is_public(path):
        role = operation.setdefault(ROLE_MEMBER, "read")
        said = operation.get("description", "")
        operation["description"] = f"{said}\n\nWith keys switched on: role `{role}`.".strip()
    for given in operation["responses"].values():
        # OpenAPI 3.1, which most tools read, has no `itemSchema`: describe one event.
        if "text/event-stream" in given.get("content", {}):
            given["content"]["text/event-stream"] = {"schema": _EVENT}
    answer = operation["responses"].get("422", {}).get("content", {})
    if "application/json" in answer:  # FastAPI's own validation error, which we never send
        operation["responses"]["422"] = problem_responses(422)[422]
    for kind, content in _examples(operation["operationId"]).items():
        if kind == "request":
            operation["requestBody"]["content"]["application/json"]["example"] = content
        else:
            status = kind.removeprefix("response-")
            body = operation["responses"][status]["content"]
            body[next(iter(body))]["example"] = content


def _examples(operation: str) -> dict[str, Any]:
    """Files openapi/examples/<operation>.request.json and .response-<status>.json."""
    found = {}
    for path in sorted((FOLDER / "examples").glob(f"{operation}.*.json")):
        found[path.name.split(".")[1]] = json.loads(path.read_text())
    return found


def text(app: FastAPI) -> str:
    """The document as it is stored."""
    return json.dumps(document(app), indent=1, ensure_ascii=False) + "\n"


_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
}
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Lacuna API</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="docs/swagger-ui.css"></head>
<body><div id="swagger-ui"></div>
<noscript><p>The API is described in <a href="openapi.json">openapi.json</a>.</p></noscript>
<script src="docs/swagger-ui-bundle.js"></script><script src="docs/start.js"></script></body></html>
"""
_PLAIN_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Lacuna API</title></head>
<body><p>The API is described in <a href="openapi.json">openapi.json</a>.</p></body></html>
"""
_START = (
    'SwaggerUIBundle({url:"openapi.json",dom_id:"#swagger-ui",deepLinking:true,'
    "layout:'BaseLayout',presets:[SwaggerUIBundle.presets.apis],validatorUrl:null});\n"
)
_ASSETS = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}


@cache
def _swagger_folder() -> Path | None:
    spec = find_spec("fastapi_offline")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "static"


async def _document(request: Request) -> Response:
    # Making it takes a quarter of a second, once; the event loop must not stand still meanwhile.
    body = await asyncio.to_thread(_as_bytes, request.app)
    return Response(body, media_type="application/json")


_making = threading.Lock()


def _as_bytes(app: FastAPI) -> bytes:
    with _making:
        if not hasattr(app.state, "document"):
            made = json.dumps(app.openapi(), ensure_ascii=False, separators=(",", ":"))
            app.state.document = made.encode()
        body: bytes = app.state.document
        return body


async def _page(request: Request) -> Response:
    page = _PLAIN_PAGE if _swagger_folder() is None else _PAGE
    return Response(page, headers=_HEADERS, media_type="text/html")


async def _start(request: Request) -> Response:
    return Response(_START, media_type="text/javascript")


async def _asset(request: Request) -> Response:
    folder, name = _swagger_folder(), request.url.path.rpartition("/")[2]
    assert folder is not None
    headers = {"Cache-Control": "public, max-age=86400"}
    return FileResponse(folder / name, headers=headers, media_type=_ASSETS[name])


def mount_docs(app: FastAPI) -> None:
    """Add the document, and /docs with its assets, to an app."""
    app.add_route("/openapi.json", _document, include_in_schema=False)
    app.add_route("/docs", _page, include_in_schema=False)
    app.add_route("/docs/start.js", _start, include_in_schema=False)
    if _swagger_folder() is not None:
        for name in _ASSETS:
            app.add_route(f"/docs/{name}", _asset, include_in_schema=False)
