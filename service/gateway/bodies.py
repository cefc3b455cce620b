"""Request bodies and query parameters, checked more strictly than the framework does.

FastAPI parses with `json.loads`, which takes NaN, lone surrogates and duplicate keys, and answers
bytes that are not UTF-8 with a server error. Here pydantic's parser (RFC 8259 only, bounded
nesting) reads the bytes, and a second pass refuses objects that give one key twice. Long bodies are
parsed in a thread, after `lacuna.contract.validation` has counted what they hold.

Unknown query parameters are refused like unknown fields of a body: a misspelt one would silently
leave the default.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from email.message import Message
from typing import Any, NoReturn, TypeVar, get_args

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from lacuna.contract import validation
from lacuna.contract.errors import InvalidRequest
from service.gateway.dependencies import while_connected
from service.gateway.pools import Pool

BodyModel = TypeVar("BodyModel", bound=BaseModel)
REQUEST_MODELS: set[type[BaseModel]] = set()
"""Every model of a body; the OpenAPI document takes their schemas from here."""
_MAX_ERRORS = 100
"""Faults of one body that are reported."""
_MAX_FAULTS = 20
"""Faults of one query that are reported."""


class MediaTypeRefused(Exception):
    """The body is declared as something other than plain JSON."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(detail)
        self.field = field
        self.detail = detail


class BodyTooSlow(Exception):
    """The body did not arrive in time."""


class BodyInvalid(Exception):
    """The body breaks its model; carries pydantic's error list."""

    def __init__(self, errors: list[Any]) -> None:
        super().__init__("invalid body")
        self.errors = errors


class _Duplicate(ValueError):
    """An object gives one key twice."""


def body_of(model: type[BodyModel]) -> Callable[[Request], Awaitable[BodyModel]]:
    """A dependency that reads the request's body as `model`."""
    REQUEST_MODELS.add(model)

    async def read(request: Request) -> BodyModel:
        _check_media_type(request)
        # Read as a stream: what the framework keeps would stay in memory as long as the answer
        # takes.
        raw = b"".join([part async for part in request.stream()])
        if len(raw) <= validation.SMALL_BYTES:
            return parse(model, raw)
        pool: Pool = request.state.services.parsing_pool
        return await while_connected(request, pool.run(parse, model, raw))

    return read


def openapi_body(model: type[BaseModel]) -> dict[str, Any]:
    """What `body_of` takes, for a route's `openapi_extra`."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def parse(model: type[BodyModel], raw: bytes) -> BodyModel:
    """A model from JSON bytes.

    Raises:
        InvalidRequest: not JSON, too many values, or a key twice in one object.
        BodyInvalid: JSON of the wrong shape.
    """
    raw = raw.removeprefix(BOM_UTF8)  # which a reader may ignore (RFC 8259, 8.1)
    validation.check_json_size(raw)
    try:
        value = model.model_validate_json(raw)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        if errors[0]["type"] == "json_invalid":
            _refuse(errors[0]["msg"].removeprefix("Invalid JSON: "))
        document = from_json(validation.without_numbers(raw), allow_inf_nan=True)
        raise BodyInvalid([_reported(e, model, document) for e in errors[:_MAX_ERRORS]]) from None
    try:
        # The bytes are valid JSON of bounded depth by now, so this cannot fail otherwise.
        json.loads(validation.without_numbers(raw), object_pairs_hook=_unique)
    except _Duplicate as error:
        raise InvalidRequest(f"the key {error} is given twice", field=str(error)) from None
    return value


def _reported(error: Mapping[str, Any], model: type[BaseModel], document: Any) -> dict[str, Any]:
    """An item of pydantic's list, with the path and the words that the caller knows."""
    path, value = _path(error, document)
    item = {**error, "loc": path}
    if error["type"] == "extra_forbidden":
        item["msg"] = validation.unknown_field(model, error["loc"])
    if validation.is_choice(str(error["type"])):
        item["input"] = value
    return item


def _path(error: Mapping[str, Any], document: Any) -> tuple[tuple[str | int, ...], Any]:
    """The location as the caller knows it, and the value there.

    Pydantic's own location also names members of unions. A number is always an index of a list,
    which may have been left empty.
    """
    path: list[str | int] = []
    value = document
    last = len(error["loc"]) - 1
    for number, part in enumerate(error["loc"]):
        if isinstance(part, int):
            value = value[part] if isinstance(value, list) and part < len(value) else None
        elif isinstance(value, dict) and part in value:
            value = value[part]
        elif number < last or error["type"] != "missing":
            continue
        path.append(part)
    return tuple(path), value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _Duplicate(next(key for key in found if keys.count(key) > 1))
    return found


def _refuse(reason: str) -> NoReturn:
    raise InvalidRequest(f"the body is not valid JSON: {reason}", field="body")


def _check_media_type(request: Request) -> None:
    """Refuse what is not plain JSON, by its headers.

    Raises:
        MediaTypeRefused: another type, or an encoding.
    """
    if not _is_json(request.headers.get("content-type")):
        detail = "the body must be JSON: Content-Type: application/json"
        raise MediaTypeRefused("content-type", detail)
    encodings = ",".join(request.headers.getlist("content-encoding"))
    if any(name.strip().lower() not in ("", "identity") for name in encodings.split(",")):
        raise MediaTypeRefused("content-encoding", "the body must not be compressed or encoded")


def _is_json(content_type: str | None) -> bool:
    if content_type is None:
        return False
    message = Message()
    message["content-type"] = content_type
    return message.get_content_type() == "application/json" or (
        message.get_content_maintype() == "application"
        and message.get_content_subtype().endswith("+json")
    )


async def known_parameters(request: Request) -> None:
    """A dependency of every route of the API: each query parameter is known and given once, and a
    number is written as everybody reads it (Python also takes 1_0).

    Raises:
        RequestValidationError: lists those that are not.
    """
    if not request.scope["query_string"]:
        return
    known = dict(_parameters(request.scope["route"].dependant))
    faults = []
    for name, times in Counter(name for name, _ in request.query_params.multi_items()).items():
        if name not in known:
            message = validation.unknown_parameter(name, tuple(known))
        elif times > 1:
            message = f"is given {times} times; give it once"
        elif known[name] and not validation.is_number(request.query_params[name]):
            message = validation.NOT_A_NUMBER
        else:
            continue
        faults.append({"type": "query", "loc": ("query", name), "msg": message})
        if len(faults) == _MAX_FAULTS:
            break  # to find what each was meant to be takes time
    if faults:
        raise RequestValidationError(faults)


def _parameters(dependant: Dependant) -> Iterator[tuple[str, bool]]:
    """Names of query parameters, and whether each is a number."""
    for field in dependant.query_params:
        kind = field.field_info.annotation
        yield field.alias, not {int, float}.isdisjoint((kind, *get_args(kind)))
    for inner in dependant.dependencies:
        yield from _parameters(inner)
