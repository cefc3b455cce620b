"""Who may do what: API keys, the roles that routes need, and the rate of each caller.

`ApiKeys` finds the key of a request before routing. A route declares its role with `needs`, and
`allowed`, a dependency of every route, compares. What declares none needs `read` where it only
reads, else `admin`.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from lacuna.contract.errors import Forbidden
from service.gateway.metrics import Metrics
from service.gateway.problems import problem
from service.settings import ROLES, ApiKey, Role

PUBLIC = frozenset({"/", "/healthz", "/readyz", "/docs", "/openapi.json"})
PUBLIC_PREFIXES = ("/docs/", "/assets/", "/problems/")
"""Answered without a key: nothing there depends on the caller."""
ROLE_MEMBER = "x-role"
"""Where an operation of the OpenAPI document says its role."""
_MAX_BUCKETS = 10_000
"""Callers whose rate is remembered; the one seen longest ago goes first."""
_MISSING = "an API key is required: Authorization: Bearer KEY, or X-API-Key: KEY"
_WRONG = "the API key is wrong: this service knows no such key"
_NOT_BEARER = "the Authorization header does not hold a key: it must be `Bearer KEY`"


class ApiKeys:
    """Finds the key of each request, and limits the rate of each key.

    Args:
        keys: without any, every caller is allowed.
        per_minute: requests per key, or per address without keys; 0 is no limit.
    """

    def __init__(
        self, app: ASGIApp, keys: Sequence[ApiKey], per_minute: int, metrics: Metrics
    ) -> None:
        self.app = app
        self.keys = tuple(keys)
        self.limiter = RateLimiter(per_minute) if per_minute else None
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass the request on with its key noted in its scope."""
        if scope["type"] != "http" or is_public(scope["path"]):
            await self.app(scope, receive, send)
            return
        key = None
        if self.keys:
            presented = _presented(scope)
            key = None if presented is None else self._known(presented)
            if key is None:
                self.metrics.refused.labels("unauthorized").inc()
                await _unauthorized(scope, presented)(scope, receive, send)
                return
        scope["lacuna.key"] = key
        if self.limiter is not None:
            wait = self.limiter.take(caller_of(scope))
            if wait > 0:
                self.metrics.refused.labels("rate_limited").inc()
                detail = f"more than {self.limiter.per_minute} requests per minute"
                refusal = problem(scope, "rate_limited", detail, retry_after=wait)
                await refusal(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _known(self, presented: bytes) -> ApiKey | None:
        """The key that was presented. Compares with every one, so that the time tells nothing."""
        digest = hashlib.sha256(presented).hexdigest()
        hits = [key for key in self.keys if hmac.compare_digest(digest, key.digest)]
        return hits[0] if hits else None


def _unauthorized(scope: Scope, presented: bytes | None) -> ASGIApp:
    """The 401 that says what is wrong: a key is missing, or wrong (RFC 6750, 3.1)."""
    if presented is not None:
        headers = {"WWW-Authenticate": 'Bearer error="invalid_token"'}
        return problem(scope, "unauthorized", _WRONG, headers=headers)
    given = any(name == b"authorization" and value.strip() for name, value in scope["headers"])
    return problem(scope, "unauthorized", _NOT_BEARER if given else _MISSING)


def caller_of(scope: Scope) -> str:
    """Who counts as one caller: the owner of a key, or without keys a network."""
    key: ApiKey | None = scope.get("lacuna.key")
    return key.digest if key else network((scope.get("client") or ("",))[0])


@lru_cache(maxsize=4_096)
def network(address: str) -> str:
    """An IPv4 address itself; of an IPv6 address the /64, because its holder has all of it."""
    if ":" not in address:
        return address
    try:
        whole = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if whole.ipv4_mapped is not None:
        return str(whole.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(whole) >> 64 << 64, 64)))


def is_public(path: str) -> bool:
    """Whether a path is answered without an API key."""
    return path in PUBLIC or path.startswith(PUBLIC_PREFIXES)


def _presented(scope: Scope) -> bytes | None:
    for name, value in scope["headers"]:
        if name == b"x-api-key" and value:
            return bytes(value)
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return bytes(value[7:].strip()) or None
    return None


def needs(role: Role) -> dict[str, Any]:
    """The declaration of a route's role, for its `openapi_extra`."""
    return {ROLE_MEMBER: role}


def role_of(route: Any) -> Role:
    """The role that a route needs."""
    declared = (getattr(route, "openapi_extra", None) or {}).get(ROLE_MEMBER)
    reading = (getattr(route, "methods", None) or {"?"}) <= {"GET", "HEAD"}
    return next((role for role in ROLES if role == declared), "read" if reading else "admin")


async def allowed(request: Request) -> None:
    """A dependency of every route: the key's role includes the route's.

    Raises:
        Forbidden: it does not; the detail names the role needed.
    """
    key: ApiKey | None = request.scope.get("lacuna.key")
    if key is None:
        return
    needed = role_of(request.scope["route"])
    if not key.may(needed):
        request.state.services.metrics.refused.labels("forbidden").inc()
        raise Forbidden(f"this needs a key with the role {needed}; {key.name} has {key.role}")


class RateLimiter:
    """A token bucket per caller. N gateway processes allow N times the rate.

    Args:
        per_minute: requests.
    """

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str, now: float | None = None) -> float:
        """Take one token; returns 0, or without a token the seconds until there is one."""
        now = time.monotonic() if now is None else now
        level, since = self._buckets.pop(caller, (float(self.per_minute), now))
        level = min(float(self.per_minute), level + (now - since) * self.per_minute / 60)
        wait = 0.0 if level >= 1 else (1 - level) * 60 / self.per_minute
        self._buckets[caller] = (level - 1 if level >= 1 else level, now)
        if len(self._buckets) > _MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return wait
