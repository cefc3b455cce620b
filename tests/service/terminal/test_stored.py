"""`lacuna compare`, `show`, `profiles`, `job` and `cancel`: files, and what a service has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from lacuna import Client, OfflinePlacer
from lacuna.comparisons import compare
from lacuna.contract.placements import PlacementRequest
from lacuna.contract.profile_requests import ProfileRequest
from lacuna.contract.profiles import Profile
from lacuna.placement.answer import place
from lacuna.placement.profile_curve import of_body
from service.local.stack import Stack

Make = Callable[..., Profile]
Save = Callable[..., str]
A, B = "a" * 32, "b" * 32


@pytest.fixture
def pair(make_profile: Make) -> tuple[Profile, Profile]:
    return (
        make_profile(identifier=A, tokens=64),
        make_profile(identifier=B, tokens=96, seed=5, model="preset:bloom-560m"),
    )


@pytest.fixture
def stored(stack: Stack, worker: Any, pair: tuple[Profile, Profile]) -> str:
    """Address of a service that has both."""
    for number, profile in enumerate(pair):
        body = {"model": "preset:gpt2", "weights": "random", "seed": number}
        httpx.post(f"{stack.url}/v1/profiles", json=body).raise_for_status()
        worker.finish(profile)
    return stack.url


def test_files_are_compared_without_a_service(
    lacuna: Any, saved: Save, pair: tuple[Profile, Profile]
) -> None:
    files = (saved("a.json", identifier=A), saved("b.json", identifier=B, tokens=96, seed=5))
    profiles = [Profile.model_validate_json(Path(file).read_bytes()) for file in files]
    answer = compare(*profiles, source="residual", bins=10)
    printed = lacuna.prints("compare", *files, "--source", "residual", "--bins", "10", "--json")
    assert json.loads(printed) == json.loads(answer.model_dump_json())


def test_the_table_says_how_b_differs(
    lacuna: Any, stored: str, pair: tuple[Profile, Profile]
) -> None:
    answer = compare(*pair)
    text = lacuna.prints("compare", A, B, server=stored)
    assert f"{answer.primacy_change:+.4f}" in text
    assert f"{answer.recency_change:+.4f}" in text
    assert f"distance: {answer.wasserstein:.4f}" in text
    assert f"B against A: {answer.summary}" in text
    band = answer.recency_change_band
    assert band is not None
    assert f"({band.low:+.4f} to {band.high:+.4f})" in text
    assert answer.dead_zone_change is not None
    assert f"{100 * answer.dead_zone_change.fraction:+.1f} points" in text
    assert f"B: {B}, preset:bloom-560m, random, 96 tokens" in text


def test_an_id_and_a_file_are_compared(lacuna: Any, saved: Save, stored: str) -> None:
    both = lacuna.prints("compare", A, B, "--json", server=stored)
    file = saved("b.json", identifier=B, tokens=96, seed=5, model="preset:bloom-560m")
    assert lacuna.prints("compare", A, file, "--json", server=stored) == both


def test_a_comparison_of_a_curve_that_is_not_there(lacuna: Any, saved: Save) -> None:
    file = saved()
    line = lacuna.fails(1, "compare", file, file, "--source", "cesaro")
    assert "--source: this profile has no curve cesaro; it has measured" in line
    assert "--bins" in lacuna.fails(2, "compare", file, file, "--bins", "0")


def test_show_prints_a_file_as_it_prints_an_id(lacuna: Any, saved: Save, stored: str) -> None:
    file = saved(identifier=A)
    text = lacuna.prints("show", file)
    assert lacuna.prints("show", A, server=stored) == text
    for words in ("preset:gpt2, 64 tokens", "primacy mass", "dead zone", "closest: residual"):
        assert words in text
    printed = json.loads(lacuna.prints("show", A, "--json", server=stored))
    assert printed == json.loads(Path(file).read_text())


def test_profiles_are_listed_newest_first_a_line_each(lacuna: Any, stored: str) -> None:
    lines = lacuna.prints("profiles", server=stored).splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        [B, "preset:bloom-560m", "96"],
        [A, "preset:gpt2", "64"],
    ]
    one = lacuna.prints("profiles", "--model", "preset:gpt2", "--json", server=stored)
    assert [item["id"] for item in json.loads(one)["items"]] == [A]


def test_a_list_of_nothing_says_so(lacuna: Any, stack: Stack, worker: Any) -> None:
    result = lacuna("profiles", "--model", "gpt2", server=stack.url)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "no profile of gpt2 yet: lacuna profile gpt2\n"
    assert json.loads(lacuna.prints("profiles", "--json", server=stack.url))["items"] == []


def test_a_limit_says_that_there_are_more(lacuna: Any, stored: str) -> None:
    result = lacuna("profiles", "--limit", "1", server=stored)
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr == "there are more: --limit 10\n"


def test_pages_are_read_until_the_limit(lacuna: Any, stored: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("lacuna.client.flows._PAGE", 1)
    printed = json.loads(lacuna.prints("profiles", "--json", server=stored))
    assert [item["id"] for item in printed["items"]] == [B, A]
    assert printed["next"] is None


def test_chunks_are_placed_by_an_id(
    lacuna: Any, stored: str, pair: tuple[Profile, Profile]
) -> None:
    chunks = [{"id": str(i), "tokens": 10 + i, "relevance": i / 7} for i in range(7)]
    request = PlacementRequest.model_validate({"profile_id": B, "chunks": chunks})
    answer = place(request, of_body(pair[1], None))
    arguments = ("place", "-", "--profile", B)
    printed = lacuna.prints(*arguments, "--json", stdin=json.dumps(chunks), server=stored)
    assert json.loads(printed) == json.loads(answer.model_dump_json())
    ids = lacuna(*arguments, "--ids", stdin=json.dumps(chunks), server=stored)
    assert ids.stdout.split() == answer.order


def test_offline_placement_equals_the_answer_of_a_service(
    stored: str, pair: tuple[Profile, Profile]
) -> None:
    chunks = [{"id": str(i), "tokens": 10 + i, "relevance": i * 5 % 7 / 7} for i in range(20)]
    for options in ({}, {"source": "residual", "prefix_tokens": 5}, {"max_chunks": 9}):
        with Client(stored) as client:
            answer = client.place(chunks, profile_id=B, **options)
        assert OfflinePlacer(pair[1]).place(chunks, **options) == answer


def test_theory_stands_in_for_a_profile_that_is_missing(lacuna: Any, stored: str) -> None:
    chunks = "".join(f"c{i}, 100, {i}\n" for i in range(4))
    options = ("--model", "gpt2", "--allow-theory", "--json")
    answer = json.loads(lacuna.prints("place", "-", *options, stdin=chunks, server=stored))
    assert answer["source"] == "theory"
    given = ("--model", "owner/unknown", "--allow-theory", "--layers", "4", "--json")
    answer = json.loads(lacuna.prints("place", "-", *given, stdin=chunks, server=stored))
    assert answer["source"] == "theory"


def test_models_are_listed_by_the_names_that_profile_takes(
    lacuna: Any, stored: str, worker: Any
) -> None:
    assert "no worker is running" in lacuna.prints("models", server=stored)
    found = json.loads(lacuna.prints("models", "--json", server=stored))
    said = lacuna.prints("models", server=stored)
    for name in (*found["demo"], *found["presets"]):
        assert f"\n  {name}\n" in said
        ProfileRequest.model_validate({"model": name, "weights": "random"})


def test_what_is_not_there_is_refused(lacuna: Any, stored: str) -> None:
    missing = "0" * 32
    assert "profile_not_found" in lacuna.fails(1, "show", missing, server=stored)
    assert "job_not_found" in lacuna.fails(1, "job", missing, server=stored)
    assert "job_not_found" in lacuna.fails(1, "cancel", missing, server=stored)
    assert "32 hex digits" in lacuna.fails(2, "job", "../profiles", server=stored)
    line = lacuna.fails(1, "place", "-", "--model", "gpt2", stdin="a, 1, 1", server=stored)
    assert "no profile of gpt2 with trained weights" in line
    assert "`lacuna profile`" in line
    assert "or set --allow-theory" in line
    assert "POST" not in line
    assert "model: " in lacuna.fails(1, "profiles", "--model", "no model", server=stored)


@pytest.mark.parametrize(
    ("server", "status", "words"),
    [
        ("http://127.0.0.1:9", 3, "does not answer"),
        ("nowhere", 2, "--server: 'nowhere' does not begin with http"),
        ("http://[::1", 2, "--server: "),
        ("http://host:port", 2, "--server: "),
    ],
)
def test_a_service_that_cannot_be_reached(
    lacuna: Any, server: str, status: int, words: str
) -> None:
    for arguments in (["show", A], ["profiles"], ["job", A], ["compare", A, B]):
        assert words in lacuna.fails(status, *arguments, "--server", server)


def test_a_wrong_variable_is_blamed_itself(lacuna: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "lacuna: LACUNA_SERVER: 'nowhere'" in lacuna.fails(2, "profiles", server="nowhere")
    monkeypatch.setenv("LACUNA_API_KEY", "schlüssel")
    assert "lacuna: LACUNA_API_KEY: " in lacuna.fails(2, "profiles")
    assert "lacuna: --key: " in lacuna.fails(2, "profiles", "--key", "schlüssel two")


def test_part_of_an_id_is_no_file_name(lacuna: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (["show"], ["compare", "609d3761"], ["place", "-", "--profile"]):
        line = lacuna.fails(2, *arguments, "609d3761", stdin="a, 1, 1")
        assert "609d3761 is neither a file nor an id: ids have 32 digits" in line
    (tmp_path / "609d3761").write_text("{}")
    assert "609d3761 holds no profile" in lacuna.fails(2, "show", "609d3761")


def test_a_key_that_no_header_can_carry(lacuna: Any) -> None:
    assert "--key" in lacuna.fails(2, "profiles", "--key", "schlüssel")
    assert "--key" in lacuna.fails(2, "profiles", "--key", "two\nlines")
