"""The page at `/`: files of service/web, with no external host and a strict policy."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from service.gateway.representations import Conditions, matches, takes_gzip

router = APIRouter(include_in_schema=False)

FOLDER = Path(__file__).parents[2] / "web"
_MEDIA = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
# Kept by the browser, asked for again each time: a new version shows at once, for a 304 otherwise.
_CACHING = "public, no-cache"


@dataclass(frozen=True)
class _Asset:
    body: bytes
    packed: bytes
    etag: str
    media: str


@cache
def _assets() -> dict[str, _Asset]:
    """Every file that may be served, by its path below the folder: nothing else is reachable."""
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.is_file() and path.suffix in _MEDIA:
            body = path.read_bytes()
            etag = hashlib.sha256(body).hexdigest()[:32]
            packed = gzip.compress(body, compresslevel=9, mtime=0)
            name = path.relative_to(FOLDER).as_posix()
            found[name] = _Asset(body, packed, etag, _MEDIA[path.suffix])
    return found


@router.get("/")
async def page(request: Request) -> Response:
    """The page itself."""
    return _answer(request, "index.html")


@router.get("/assets/{name:path}")
async def asset(request: Request, name: str) -> Response:
    """Script, style and icon of the page."""
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    kept = _assets().get(name)
    if kept is None:
        raise HTTPException(404)
    conditions = Conditions.of(request.scope)
    packed = bool(conditions.encoding) and takes_gzip(conditions.encoding)
    etag = f'"{kept.etag}{"-gzip" if packed else ""}"'
    headers = {"Cache-Control": _CACHING, "ETag": etag, "Vary": "Accept-Encoding"}
    if name == "index.html":
        headers["Content-Security-Policy"] = _POLICY
    if conditions.if_none_match and matches(conditions.if_none_match, etag.encode()):
        return Response(status_code=304, headers=headers)
    if packed:
        headers["Content-Encoding"] = "gzip"
    return Response(kept.packed if packed else kept.body, headers=headers, media_type=kept.media)
