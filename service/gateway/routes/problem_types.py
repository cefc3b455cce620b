"""/problems/CODE: what the `type` of a problem document leads to."""

from __future__ import annotations

from html import escape

from fastapi import APIRouter, Request, Response

from service.gateway.problems import STATUS, problem, problem_type

router = APIRouter(include_in_schema=False)
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"></head>
<body><h1>{title}</h1><p>{meaning}</p>
<p>Code <code>{code}</code>, status {status}. {advice}</p></body></html>
"""
_ADVICE = {
    True: "The same request may succeed later.",
    False: "The same request will be refused again.",
}


@router.get("/problems/{code}")
async def read(request: Request, code: str) -> Response:
    """Title, status and meaning of a code: a page for browsers, else JSON."""
    if code not in STATUS:
        return problem(request.scope, "not_found", "there is no problem with this code")
    kind = problem_type(code)
    headers = {"Cache-Control": "public, max-age=3600", "Vary": "Accept"}
    if "text/html" not in request.headers.get("accept", ""):
        return Response(kind.model_dump_json(), headers=headers, media_type="application/json")
    words = {name: escape(str(value)) for name, value in kind.model_dump().items()}
    page = _PAGE.format(**words, advice=_ADVICE[kind.retryable])
    return Response(page, headers=headers, media_type="text/html; charset=utf-8")
