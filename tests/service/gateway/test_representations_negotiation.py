from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.gateway.dependencies import _preferred_wait
from service.gateway.representations import choose, matches, takes_gzip


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        ("wait=3", 3),
        ("WAIT = 3", 3),
        ('wait="3"', 3),
        ("respond-async, wait=20", 20),
        ("wait=3; x=1", 3),
        ("wait=1, wait=2", 1),
        ('handling="a, b", wait=4', 4),
        ("wait=99999999", 99_999_999),
        ("", 0),
        ("nowait=1", 0),
        ("await=3", 0),
        ("x-wait=3", 0),
        ("handling=lenient; wait=2", 0),
        ('handling="a, wait=3"', 0),
        ('handling="a, wait=3', 0),
        ('handling="a\\", wait=3"', 0),
        ("wait=-1", 0),
        ("wait=1.5", 0),
        ("wait=3 4", 0),
        ('wait="3', 0),
        ("wait", 0),
        ('wait=3, x="\\', 3),
        ('x="a\\\n", wait=3', 3),
        ("wait=٣", 0),
    ],
)
def test_wait_is_a_preference_of_its_own(prefer: str, seconds: float) -> None:
    assert _preferred_wait(prefer) == seconds


@given(st.text())
def test_any_preference_is_survived(prefer: str) -> None:
    assert _preferred_wait(prefer) >= 0


@pytest.mark.parametrize(
    ("header", "matched"),
    [
        (b'"t"', True),
        (b'W/"t"', True),
        (b" * ", True),
        (b'"a", "t"', True),
        (b'"a","t" , ', True),
        (b', ,"t"', True),
        (b'"t", "a"', True),
        (b'"a"', False),
        (b"t", False),
        (b'"a"b"t"', False),
        (b'"a" "t"', False),
        (b'"t" x', False),
        (b'"t', False),
        (b'*, "t"', False),
        (b'w/"t"', False),
        (b"", False),
    ],
)
def test_a_malformed_list_of_tags_matches_nothing(header: bytes, matched: bool) -> None:
    assert matches(header, b'"t"') is matched


_LONG = 60_000


@pytest.mark.parametrize(
    "shape", ['"\\', '"', "\\", ",", " ", ";", '""', '",', "a,", "wait=", ";q="]
)
@pytest.mark.parametrize("read", [_preferred_wait, choose, takes_gzip, matches])
def test_a_long_header_takes_time_in_proportion(read: Callable[..., object], shape: str) -> None:
    header = (shape * _LONG)[:_LONG]
    started = time.process_time()
    if read is _preferred_wait:
        read(header)
    elif read is matches:
        read(header.encode(), b'"t"')
    else:
        read(header.encode())
    # Were it the square, it would be minutes.
    assert time.process_time() - started < 0.5


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        (b"text/csv", "csv"),
        (b"TEXT/CSV ; Q=0.5, image/png;q=0.4", "csv"),
        (b"text/*, image/svg+xml;q=0.9", "csv"),
        (b"*/*;q=0.1, image/*", "svg"),
        (b"*/*, application/json;q=0", "csv"),
        (b"text/html", None),
        (b",,;", None),
        (b"text/csv;q=x", None),
    ],
)
def test_the_most_specific_range_counts(accept: bytes, form: str | None) -> None:
    assert choose(accept) == form
