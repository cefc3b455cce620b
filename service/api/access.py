"""Who may call, and how often: API keys and the rate limit, as pure ASGI middleware."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections import OrderedDict
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.metrics import Metrics
from service.api.problems import problem

_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_BUCKETS = 10_000
PUBLIC = frozenset({"/", "/healthz", "/readyz", "/docs", "/openapi.json"})
PUBLIC_PREFIXES = ("/docs/", "/assets/", "/problems/")
"""Answered without a key: nothing there depends on who asks."""


class Keys:
    """API keys and the rate limit per key.

    Args:
        keys: SHA-256 digests in hex, or plain keys; none means that everybody may call.
        per_minute: requests per key, or per address without keys; 0 is no limit.
    """

    def __init__(
        self, app: ASGIApp, keys: Sequence[str], per_minute: int, metrics: Metrics
    ) -> None:
        self.app = app
        self.digests = [_digest_of(key) for key in keys]
        self.limiter = RateLimiter(per_minute) if per_minute else None
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on with the owner noted."""
        if scope["type"] != "http" or is_public(scope["path"]):
            await self.app(scope, receive, send)
            return
        owner = None
        if self.digests:
            owner = self._owner(scope)
            if owner is None:
                self.metrics.refused.labels("unauthorized").inc()
                detail = "an API key is needed: Authorization: Bearer KEY, or X-API-Key: KEY"
                await problem(scope, "unauthorized", detail)(scope, receive, send)
                return
        scope["lacuna.owner"] = owner
        if self.limiter is not None:
            wait = self.limiter.take(owner or (scope.get("client") or ("",))[0])
            if wait > 0:
                self.metrics.refused.labels("rate_limited").inc()
                detail = f"more than {self.limiter.per_minute} requests per minute"
                refusal = problem(scope, "rate_limited", detail, retry_after=wait)
                await refusal(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _owner(self, scope: Scope) -> str | None:
        """The digest of the presented key if it is known. Every known key is compared."""
        presented = _presented(scope)
        if presented is None:
            return None
        digest = hashlib.sha256(presented).hexdigest().encode()
        hits = [hmac.compare_digest(digest, known) for known in self.digests]
        return digest.decode() if any(hits) else None


def is_public(path: str) -> bool:
    """Whether a path is answered without a key."""
    return path in PUBLIC or path.startswith(PUBLIC_PREFIXES)


def _digest_of(key: str) -> bytes:
    if _DIGEST.fullmatch(key):
        return key.encode()
    return hashlib.sha256(key.encode()).hexdigest().encode()


def _presented(scope: Scope) -> bytes | None:
    for name, value in scope["headers"]:
        if name == b"x-api-key" and value:
            return bytes(value)
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return bytes(value[7:].strip())
    return None


class RateLimiter:
    """A token bucket per caller, in this process: N gateway processes allow N times as much."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str, now: float | None = None) -> float:
        """Take one token; 0 when there was one, else the seconds until there is."""
        now = time.monotonic() if now is None else now
        level, since = self._buckets.pop(caller, (float(self.per_minute), now))
        level = min(float(self.per_minute), level + (now - since) * self.per_minute / 60)
        wait = 0.0 if level >= 1 else (1 - level) * 60 / self.per_minute
        self._buckets[caller] = (level - 1 if level >= 1 else level, now)
        if len(self._buckets) > _MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return wait
