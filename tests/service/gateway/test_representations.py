from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.gateway.representations import (
    Representation,
    RepresentationCache,
    choose,
    matches,
    represent,
    takes_gzip,
)


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        (b"", "json"),
        (b"*/*", "json"),
        (b"application/json", "json"),
        (b"application/*", "json"),
        (b"text/csv", "csv"),
        (b"text/*", "csv"),
        (b"image/*", "svg"),
        (b"image/png", "png"),
        (b"IMAGE/PNG;q=0.9 , image/svg+xml; q=0.8", "png"),
        (b"text/html,application/xhtml+xml,image/avif,*/*;q=0.8", "json"),
        (b"application/json;q=0, */*", "csv"),
        (b"text/html", None),
        (b"*/*;q=0", None),
        (b"text/csv;q=x", None),
        (b"text/csv;q=nan", None),
        (b";;,,", None),
    ],
)
def test_accept_chooses_the_format(accept: bytes, form: str | None) -> None:
    assert choose(accept) == form


@pytest.mark.parametrize(
    ("header", "welcome"),
    [
        (b"gzip", True),
        (b"gzip, deflate, br", True),
        (b"*", True),
        (b"br", False),
        (b"identity", False),
        (b"gzip;q=0", False),
        (b"*;q=0, gzip", True),
        (b"gzip;q=0, *", False),
    ],
)
def test_accept_encoding(header: bytes, welcome: bool) -> None:
    assert takes_gzip(header) is welcome


@given(st.binary(max_size=60))
def test_any_header_is_survived(header: bytes) -> None:
    assert choose(header) in {"json", "csv", "svg", "png", None}
    assert takes_gzip(header) in {True, False}
    assert matches(header, b'"a"') in {True, False}


@given(st.binary(max_size=5_000))
def test_both_encodings_carry_the_same_bytes(body: bytes) -> None:
    kept = represent(body, "json", private=True)
    assert kept.plain.body == body
    assert (b"cache-control", b"private, max-age=31536000, immutable") in kept.plain.headers
    if kept.packed is not None:
        assert gzip.decompress(kept.packed.body) == body
        assert kept.packed.etag != kept.plain.etag
        assert len(kept.packed.body) < len(body)


def test_equal_bytes_have_equal_tags_and_others_do_not() -> None:
    first, again = (
        represent(b"a" * 600, "csv", private=False),
        represent(b"a" * 600, "csv", private=False),
    )
    other = represent(b"b" * 600, "csv", private=False)
    assert first.plain.etag == again.plain.etag != other.plain.etag
    assert first.packed is not None
    assert again.packed is not None
    assert first.packed.body == again.packed.body


def held(size: int) -> Representation:
    return represent(bytes(i % 251 for i in range(size)), "png", private=False)


def test_memory_is_bounded_and_keeps_what_is_used() -> None:
    memory = RepresentationCache(limit=1_000)
    for name in "abc":
        memory.put((name, "png", None), held(300))
    assert memory.get(("a", "png", None)) is not None
    memory.put(("d", "png", None), held(300))
    assert memory.get(("b", "png", None)) is None
    assert memory.get(("a", "png", None)) is not None
    memory.put(("huge", "png", None), held(2_000))
    assert memory.get(("huge", "png", None)) is None
    assert memory.get(("d", "png", None)) is not None


def test_memory_forgets_by_time_and_by_profile() -> None:
    memory = RepresentationCache(seconds=-1.0)
    memory.put(("a", "png", None), held(10))
    assert memory.get(("a", "png", None)) is None
    memory = RepresentationCache()
    memory.put(("a", "png", None), held(10))
    memory.put(("a", "svg", 5), held(10))
    memory.put(("b", "png", None), held(10))
    memory.forget("a")
    assert memory.get(("a", "png", None)) is None
    assert memory.get(("a", "svg", 5)) is None
    assert memory.get(("b", "png", None)) is not None
