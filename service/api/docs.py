"""/docs: Swagger UI from the gateway itself, with no external host and no inline script.

The script and style come with the package `fastapi-offline`; without it /docs says where the
OpenAPI document is.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import FileResponse, Response

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
def _folder() -> Path | None:
    spec = find_spec("fastapi_offline")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "static"


async def _page(request: Request) -> Response:
    page = _PLAIN_PAGE if _folder() is None else _PAGE
    return Response(page, headers=_HEADERS, media_type="text/html")


async def _start(request: Request) -> Response:
    return Response(_START, media_type="text/javascript")


async def _asset(request: Request) -> Response:
    folder, name = _folder(), request.url.path.rpartition("/")[2]
    assert folder is not None
    headers = {"Cache-Control": "public, max-age=86400"}
    return FileResponse(folder / name, headers=headers, media_type=_ASSETS[name])


def mount(app: FastAPI) -> None:
    """Add the page and its assets."""
    app.add_route("/docs", _page, include_in_schema=False)
    app.add_route("/docs/start.js", _start, include_in_schema=False)
    if _folder() is not None:
        for name in _ASSETS:
            app.add_route(f"/docs/{name}", _asset, include_in_schema=False)
