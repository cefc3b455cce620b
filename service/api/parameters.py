"""Query parameters that a route does not have are refused, as unknown fields of a body are.

A misspelt one would else be a silent default.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError

from service.api import wording


async def known_once(request: Request) -> None:
    """A dependency of every route of the API: each parameter is known, and given once.

    Raises:
        RequestValidationError: which are not.
    """
    if not request.scope["query_string"]:
        return
    names = tuple(_names(request.scope["route"].dependant))
    faults = []
    for name, times in Counter(name for name, _ in request.query_params.multi_items()).items():
        if name not in names:
            message = wording.unknown_parameter(name, names)
        elif times > 1:
            message = f"given {times} times, may be given once"
        else:
            continue
        faults.append({"type": "query", "loc": ("query", name), "msg": message})
    if faults:
        raise RequestValidationError(faults)


def _names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _names(inner)
