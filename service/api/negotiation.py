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


@lru_cache(maxsize=1024)
def _choose(accept: bytes) -> str | None:
    best, chosen = 0.0, None
    for media, name in _TYPES.items():
        weight = _weight(accept.decode("latin-1"), media)
        if weight > best:
            best, chosen = weight, name
    return chosen


def _weight(accept: str, media: str) -> float:
    """The weight of a media type: its most specific range counts (RFC 9110, 12.5.1)."""
    ranges = {media: 3, media.partition("/")[0] + "/*": 2, "*/*": 1}
    found = (0, 0.0)
    for part in accept.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if name in ranges:
            found = max(found, (ranges[name], _quality(parameters)))
    return found[1]


@lru_cache(maxsize=1024)
def takes_gzip(accept_encoding: bytes) -> bool:
    """Whether gzip is welcome (RFC 9110, 12.5.3)."""
    weights = {}
    for part in accept_encoding.decode("latin-1").split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        weights[name] = _quality(parameters)
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
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


_PREFERENCE = re.compile(r"""(?:[^,"]|"(?:[^"\\]|\\.)*(?:"|$))+""")
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
