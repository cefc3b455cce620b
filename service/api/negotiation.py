"""What headers ask for: Accept, Accept-Encoding, If-None-Match (RFC 9110), Prefer (RFC 7240)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from starlette.types import Scope

FORMATS: dict[str, str] = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
}
_KEPT = 64
"""Headers whose meaning is remembered: clients send few different ones, but may be long."""
_TYPES = {media.partition(";")[0]: name for name, media in FORMATS.items()}


@dataclass
class Conditions:
    """The request headers that choose between representations."""

    accept: bytes = b""
    encoding: bytes = b""
    if_none_match: bytes = b""

    @classmethod
    def of(cls, scope: Scope) -> Conditions:
        """Read them from a request; repeated fields are one list (RFC 9110)."""
        found: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in (b"accept", b"accept-encoding", b"if-none-match"):
                found[name] = found[name] + b"," + value if name in found else value
        return cls(
            found.get(b"accept", b""),
            found.get(b"accept-encoding", b""),
            found.get(b"if-none-match", b""),
        )


def choose(accept: bytes) -> str | None:
    """The format that an Accept header asks for: JSON by default, None when none fits."""
    if accept in (b"", b"*/*", b"application/json"):
        return "json"
    return _choose(accept)


@lru_cache(maxsize=_KEPT)
def _choose(accept: bytes) -> str | None:
    """By the weight of each format: that of its most specific range (RFC 9110, 12.5.1)."""
    weights = _weights(accept)
    best, chosen = 0.0, None
    for media, name in _TYPES.items():
        ranges = (media, media.partition("/")[0] + "/*", "*/*")
        weight = next((weights[key] for key in ranges if key in weights), 0.0)
        if weight > best:
            best, chosen = weight, name
    return chosen


@lru_cache(maxsize=_KEPT)
def takes_gzip(accept_encoding: bytes) -> bool:
    """Whether gzip is welcome (RFC 9110, 12.5.3)."""
    weights = _weights(accept_encoding)
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def _weights(field: bytes) -> dict[str, float]:
    """The members of a list, each with its weight; the largest when one is named twice."""
    weights: dict[str, float] = {}
    for part in field.decode("latin-1").lower().split(","):
        name, _, parameters = part.partition(";")
        if name := name.strip():
            weights[name] = max(weights.get(name, 0.0), _quality(parameters))
    return weights


def _quality(parameters: str) -> float:
    for parameter in map(str.strip, parameters.split(";")):
        if parameter.startswith("q="):
            try:
                return min(max(float(parameter[2:]), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0


_TAG = re.compile(rb'("[\x21\x23-\x7e\x80-\xff]*")')
_ONE = rb'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"'
_TAGS = re.compile(rb"[ \t,]*" + _ONE + rb"(?:[ \t]*,[ \t,]*" + _ONE + rb")*[ \t,]*")


def matches(if_none_match: bytes, etag: bytes) -> bool:
    """Weak comparison, as If-None-Match has it (RFC 9110, 13.1.2).

    A malformed list matches nothing.
    """
    if if_none_match.strip() == b"*":
        return True
    return bool(_TAGS.fullmatch(if_none_match)) and etag in _TAG.findall(if_none_match)


# A quoted string that never ends runs to the end, a lone backslash included: where every character
# has one way to match, there is no other way to try, and the time stays linear.
_PREFERENCE = re.compile(r"""(?:[^,"]|"(?:[^"\\]|\\.)*(?:"|\\?\Z))+""", re.DOTALL)
_WAIT = re.compile(r"""\s*wait\s*=\s*(?:(\d{1,18})|"(\d{1,18})")\s*""", re.IGNORECASE | re.ASCII)


def wait_of(prefer: str) -> float:
    """Seconds of the first `wait` among the preferences; 0 without one.

    A parameter of another preference, as in `handling=lenient; wait=2`, is none.
    """
    for preference in _PREFERENCE.findall(prefer):
        found = _WAIT.fullmatch(preference.partition(";")[0])
        if found is not None:
            return float(found[1] or found[2])
    return 0.0
