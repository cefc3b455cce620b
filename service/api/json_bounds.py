"""How much JSON one body may hold, told from its bytes: native parsers lock the interpreter.

A parser keeps every other thread waiting until it returns, the event loop's included, and its time
grows with the number of values rather than of bytes. So the values are counted first, at the speed
of memory. The bounds leave room for the largest requests that are valid: a matrix of 1,024 x 1,024
numbers, or 5,000 chunks.
"""

from __future__ import annotations

import re

from service.contract.errors import InvalidRequest

MAX_VALUES = 1_100_000
MAX_ARRAYS = 20_000
MAX_OBJECTS = 10_000
MAX_KEYS = 35_000
MAX_STRINGS = 80_000
"""Keys are strings as well."""
SMALL_BYTES = 65_536
"""What is not larger is parsed within a few milliseconds, whatever it holds."""
_NUMBERS = re.compile(rb"\[[-+0-9.eE,\s]*\]")


def check(raw: bytes) -> None:
    """Refuse a body that would take long to parse.

    Args:
        raw: the body; need not be valid JSON.

    Raises:
        InvalidRequest: it holds too many values of one kind; names the kind and the limit.
    """
    if len(raw) <= SMALL_BYTES:
        return
    # Without escapes, every second piece between quotation marks is outside of strings.
    bare = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    _bound("strings", bare.count(b'"') // 2, MAX_STRINGS)
    outside = b"".join(bare.split(b'"')[::2])
    arrays, objects = outside.count(b"["), outside.count(b"{")
    _bound("arrays", arrays, MAX_ARRAYS)
    _bound("objects", objects, MAX_OBJECTS)
    _bound("keys", outside.count(b":"), MAX_KEYS)
    _bound("values", outside.count(b",") + arrays + objects, MAX_VALUES)


def without_numbers(raw: bytes) -> bytes:
    """The same keys in the same objects, with arrays of numbers left empty.

    Args:
        raw: valid JSON.
    """
    return raw if len(raw) <= SMALL_BYTES else _NUMBERS.sub(b"[]", raw)


def _bound(kind: str, found: int, limit: int) -> None:
    if found > limit:
        raise InvalidRequest(f"the body holds more than {limit:,} {kind}", field="body")
