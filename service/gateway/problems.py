"""Errors over HTTP: the table from codes to statuses, problem documents (RFC 9457) and their pages.

`problem` makes a document. `HANDLERS` turn exceptions into documents. `/problems/CODE` explains a
code to people.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from http import HTTPStatus
from inspect import cleandoc
from typing import Any

from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from lacuna.contract import validation
from lacuna.contract.errors import BY_CODE, LacunaError
from lacuna.contract.jobs import Failure
from service.gateway.bodies import BodyInvalid, BodyTooSlow, MediaTypeRefused

MEDIA_TYPE = "application/problem+json"
STATUS: dict[str, int] = {
    "invalid_request": 422,
    "payload_too_large": 413,
    "too_long": 422,
    "too_large": 422,
    "unauthorized": 401,
    "forbidden": 403,
    "rate_limited": 429,
    "model_not_allowed": 403,
    "model_not_found": 404,
    "model_gated": 403,
    "model_unreachable": 503,
    "model_unsupported": 422,
    "weights_unsafe": 422,
    "profile_not_found": 404,
    "experiment_not_found": 404,
    "job_not_found": 404,
    "not_found": 404,
    "out_of_memory": 422,
    "not_finite": 422,
    "documents_unusable": 422,
    "worker_lost": 503,
    "cancelled": 409,
    "internal_error": 500,
    "endpoint_unknown": 404,
    "endpoint_unreachable": 503,
    "endpoint_refused": 422,
    "endpoint_incapable": 422,
    "endpoint_truncates": 422,
    "endpoint_changed": 409,
    "budget_spent": 422,
    "queue_full": 429,
    "store_unavailable": 503,
    # Only HTTP knows these, so they are not in the error tree:
    "method_not_allowed": 405,
    "not_acceptable": 406,
    "request_timeout": 408,
    "address_too_long": 414,
    "headers_too_large": 431,
    "unsupported_media_type": 415,
    "not_ready": 503,
}
_HTTP_MEANING = {
    "address_too_long": "The path and the query together are too long.",
    "headers_too_large": "The header fields are too long.",
    "method_not_allowed": "This address has other methods; `Allow` lists them.",
    "request_timeout": "The body did not arrive in time.",
    "not_acceptable": "`Accept` names no format that this address offers.",
    "unsupported_media_type": "The body is declared as something other than plain JSON.",
    "not_ready": "Redis does not answer, no worker is running, or this gateway is stopping.",
}
_HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 406: "not_acceptable"}
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_MAX_ERRORS = 20
_MAX_TEXT = 300
_NAMED_FIELD = re.compile(r"^`(\w+)`")


class FieldError(BaseModel):
    """What is wrong with one field."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    field: str
    """Dotted path in the body, or the name of a parameter; "body" for the body as a whole."""
    message: str


class Problem(BaseModel):
    """An error, as RFC 9457 has it, with a stable `code`."""

    model_config = ConfigDict(use_attribute_docstrings=True, extra="allow")

    type: str
    """A stable URI path, one per code."""
    title: str
    status: int = Field(ge=400, le=599)
    detail: str
    code: str
    retryable: bool
    """Whether the same request may succeed later."""
    errors: list[FieldError]
    request_id: str


class ProblemType(BaseModel):
    """Everything about one code: what the address in a problem's `type` answers."""

    type: str
    title: str
    status: int
    code: str
    retryable: bool
    meaning: str


def problem_type(code: str) -> ProblemType:
    """The entry of a code of STATUS; its meaning is the docstring of its class."""
    known = BY_CODE.get(code)
    status = STATUS[code]
    return ProblemType(
        type=f"/problems/{code}",
        title=code.replace("_", " ").capitalize(),
        status=status,
        code=code,
        retryable=known.retryable if known is not None else status in (408, 503),
        meaning=_HTTP_MEANING[code] if known is None else cleandoc(known.__doc__ or ""),
    )


def problem(
    scope: Scope,
    code: str,
    detail: str,
    *,
    errors: Sequence[tuple[str, str]] = (),
    headers: Mapping[str, str] | None = None,
    retry_after: float | None = None,
    members: Mapping[str, Any] | None = None,
) -> Response:
    """A problem document as a response.

    Args:
        scope: of the request, for its id.
        code: a key of STATUS.
        detail: one sentence.
        errors: (field, message) pairs.
        headers: further headers.
        retry_after: seconds for the Retry-After header.
        members: extension members.
    """
    kind = problem_type(code)
    status = kind.status
    document = {
        "type": kind.type,
        "title": kind.title,
        "status": status,
        "detail": _clean(detail),
        "code": code,
        "retryable": kind.retryable,
        "errors": [
            {"field": _clean(field), "message": _clean(message)}
            for field, message in errors[:_MAX_ERRORS]
        ],
        "request_id": scope.get("lacuna.request_id", ""),
        **(members or {}),
    }
    extra = {"Cache-Control": "no-store", **(headers or {})}
    if retry_after is not None:
        extra["Retry-After"] = str(max(1, math.ceil(retry_after)))
    if status == HTTPStatus.UNAUTHORIZED:
        extra.setdefault("WWW-Authenticate", "Bearer")
    body = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    return Response(body, status, extra, MEDIA_TYPE)


def error_problem(
    scope: Scope, error: LacunaError, members: Mapping[str, Any] | None = None
) -> Response:
    """The response for an error of the tree."""
    errors = [] if error.field is None else [(error.field, error.detail)]
    return problem(
        scope,
        error.code,
        error.detail,
        errors=errors,
        retry_after=_retry_after(error),
        members=members,
    )


def failure_problem(
    scope: Scope, failure: Failure, members: Mapping[str, Any] | None = None
) -> Response:
    """The response for the stored failure of a job; an unknown code counts as `internal_error`."""
    kind = BY_CODE.get(failure.code, BY_CODE["internal_error"])
    return error_problem(scope, kind(failure.detail, field=failure.field), members)


def _invalid_request(scope: Scope, errors: Sequence[tuple[str, str]]) -> Response:
    """A 422 that names its fields."""
    field, message = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    detail = message if message.startswith("`") else f"{field}: {message}"
    return problem(scope, "invalid_request", detail + more, errors=errors)


def field_errors(items: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Pydantic's error list as (field, message) pairs, one for each field, without any input."""
    messages: dict[str, list[str]] = {}
    for item in items:
        path = [str(part) for part in item["loc"]]
        message = validation.error_message(item)
        # A rule about several fields is reported at their parent; its sentence begins with one.
        named = _NAMED_FIELD.match(message)
        if item["type"] == "value_error" and named:
            path.append(named.group(1))
        said = messages.setdefault(".".join(path) or "body", [])
        if message not in said:
            said.append(message)
    # Several at one place are the members of a union, such as a number or "auto".
    return [(field, "; or: ".join(said)) for field, said in messages.items()]


def _retry_after(error: LacunaError) -> float | None:
    if error.retry_after is not None:
        return error.retry_after
    return 5.0 if STATUS[error.code] in (429, 503) else None


def _clean(text: str) -> str:
    """Bounded valid UTF-8: field names come from the caller, who may send lone surrogates."""
    clean = text.encode("utf-8", "replace").decode()
    if len(clean) <= _MAX_TEXT:
        return clean
    return clean[: _MAX_TEXT - 1].rsplit(" ", 1)[0] + "…"  # between words


async def _on_lacuna_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, LacunaError)
    return error_problem(request.scope, error)


async def _on_body_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, BodyInvalid)
    return _invalid_request(request.scope, field_errors(error.errors))


async def _on_media_type(request: Request, error: Exception) -> Response:
    assert isinstance(error, MediaTypeRefused)
    errors = [(error.field, error.detail)]
    # Which encodings a second attempt may use (RFC 9110, 12.5.3).
    headers = {"Accept-Encoding": "identity"} if error.field == "content-encoding" else {}
    return problem(
        request.scope, "unsupported_media_type", error.detail, errors=errors, headers=headers
    )


async def _on_body_too_slow(request: Request, error: Exception) -> Response:
    """The connection closes, because the rest of the body would be taken for a request."""
    detail = "the body did not arrive in time"
    errors = [("body", detail)]
    return problem(
        request.scope, "request_timeout", detail, errors=errors, headers={"Connection": "close"}
    )


async def _on_parameters_invalid(request: Request, error: Exception) -> Response:
    """For parameters, which FastAPI itself validates."""
    assert isinstance(error, RequestValidationError)
    # The first part of the location says where (path, query, header), not what.
    errors = field_errors({**item, "loc": item["loc"][1:]} for item in error.errors())
    return _invalid_request(request.scope, errors)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """For what the framework raises: no route, no such method."""
    assert isinstance(error, HTTPException)
    code = _HTTP_CODES.get(error.status_code, "invalid_request")
    if code == "method_not_allowed":
        # Only an event stream has no HEAD: it has no end and no length to report.
        methods = [one for one in _allowed_methods(request) if one != request.method]
        allowed = ", ".join(methods)
        detail = f"{request.method} is not allowed here; allowed: {allowed}"
        return problem(request.scope, code, detail, headers={"Allow": allowed})
    detail = "there is nothing at this address" if code == "not_found" else str(error.detail)
    return problem(request.scope, code, detail)


def _allowed_methods(request: Request) -> list[str]:
    """Every method with a route at this path; the framework reports only the first route's."""
    allowed = []
    for method in _METHODS:
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes):
            allowed += ["GET", "HEAD"] if method == "GET" else [method]
    return allowed


HANDLERS: dict[int | type[Exception], Any] = {
    LacunaError: _on_lacuna_error,
    BodyInvalid: _on_body_invalid,
    BodyTooSlow: _on_body_too_slow,
    MediaTypeRefused: _on_media_type,
    RequestValidationError: _on_parameters_invalid,
    HTTPException: _on_http_exception,
}
"""What answers each kind of exception."""


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI `responses` for the error statuses of a route."""
    return {status: _problem_response(status) for status in statuses}


def _problem_response(status: int) -> dict[str, Any]:
    codes = ", ".join(f"`{code}`" for code, known in STATUS.items() if known == status)
    answer: dict[str, Any] = {
        "description": f"Problem: {codes}.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    if status in (429, 503):
        answer["headers"] = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}}}
    return answer


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
async def explain(request: Request, code: str) -> Response:
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
