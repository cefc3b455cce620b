"""`lacuna place`: what it takes, what it prints, what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lacuna.contract.base import percent
from lacuna.contract.placements import MAX_CHUNKS, PlacementRequest
from lacuna.contract.profiles import Profile
from lacuna.placement import curve as curves
from lacuna.placement.answer import place
from lacuna.placement.profile_curve import of_body

DENSITY = [1.4, 0.9, 0.5, 0.5, 0.7, 2.0]
LISTED = ",".join(map(str, DENSITY))
CHUNKS: list[dict[str, Any]] = [
    {"id": "a", "tokens": 120, "relevance": 0.9},
    {"id": "b", "tokens": 80, "relevance": 0.4},
    {"id": "c", "tokens": 200, "relevance": 0.7},
    {"id": "d", "tokens": 150, "relevance": 0.2},
]
TABLE = "".join(f"{c['id']}, {c['tokens']}, {c['relevance']}\n" for c in CHUNKS)
Save = Callable[..., str]


def expected(**fields: Any) -> dict[str, Any]:
    request = PlacementRequest.model_validate({"density": DENSITY, "chunks": CHUNKS, **fields})
    answer: dict[str, Any] = json.loads(
        place(request, curves.of_density(DENSITY)).model_dump_json()
    )
    return answer


FORMS = {
    "commas": TABLE,
    "semicolons": TABLE.replace(",", ";"),
    "tabs": TABLE.replace(", ", "\t"),
    "spaces": TABLE.replace(",", " "),
    "decimal commas": TABLE.replace(",", ";").replace(".", ","),
    "header": "id,tokens,relevance\n" + TABLE,
    "columns in another order": "relevance;id;tokens\n"
    + "".join(f"{c['relevance']};{c['id']};{c['tokens']}\n" for c in CHUNKS),
    "blank lines, Windows ends, a BOM": "\ufeff\r\n" + TABLE.replace("\n", "\r\n\r\n"),
    "no newline at the end": TABLE.rstrip(),
    "a list": json.dumps(CHUNKS, indent=1),
    "JSON lines": "\n".join(map(json.dumps, CHUNKS)),
    "a request": json.dumps({"chunks": CHUNKS}, indent=1),
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_chunks_in_any_form_give_the_answer_of_the_service(
    lacuna: Any, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "chunks"
    file.write_text(text, encoding="utf-8", newline="")
    for source, stdin in ((str(file), None), (f"@{file}", None), ("-", text)):
        result = lacuna("place", source, "--density", LISTED, "--json", stdin=stdin)
        assert result.exit_code == 0, result.stderr
        assert json.loads(result.stdout) == expected()
        assert result.stderr == ""


def test_a_whole_request_on_the_command_line(lacuna: Any) -> None:
    request = {"density": DENSITY, "prefix_tokens": 40, "chunks": CHUNKS}
    result = lacuna("place", json.dumps(request), "--json")
    assert json.loads(result.stdout) == expected(prefix_tokens=40)


def test_every_option_reaches_the_request_and_wins_over_it(lacuna: Any) -> None:
    request = {"density": [1, 2], "prefix_tokens": 7, "chunks": CHUNKS}
    options = {
        "objective": "total_mass", "prefix_tokens": 40, "suffix_tokens": 20,
        "separator_tokens": 3, "max_tokens": 500, "max_chunks": 3,
    }  # fmt: skip
    flags = [part for k, v in options.items() for part in (f"--{k.replace('_', '-')}", str(v))]
    chosen = ("--scale", "distance", "--strategy", "optimal")
    result = lacuna("place", json.dumps(request), "--density", LISTED, *chosen, "--json", *flags)
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer == expected(**options, relevance_scale="distance", strategy="optimal")
    assert len(answer["dropped"]) == 1


def test_a_saved_profile_needs_no_service(lacuna: Any, saved: Save) -> None:
    path = saved(tokens=128)
    profile = Profile.model_validate_json(Path(path).read_bytes())
    request = PlacementRequest.model_validate(
        {"profile_id": profile.id, "source": "residual", "chunks": CHUNKS}
    )
    answer = place(request, of_body(profile, "residual"))
    result = lacuna("place", "-", "--profile", path, "--source", "residual", "--json", stdin=TABLE)
    assert json.loads(result.stdout) == json.loads(answer.model_dump_json())


def test_an_architecture_needs_no_service(lacuna: Any) -> None:
    request = {"architecture": {"layers": 4, "heads": 4}, "chunks": CHUNKS}
    result = lacuna("place", json.dumps(request), "--json")
    assert json.loads(result.stdout)["source"] == "theory"


def test_layers_give_a_theory_curve(lacuna: Any) -> None:
    architecture: dict[str, Any] = {
        "layers": 8, "heads": 4, "positional_encoding": "alibi", "window": 64,
    }  # fmt: skip
    options = ("--layers", "8", "--heads", "4", "--positions", "alibi", "--window", "64")
    by_options = lacuna.prints("place", "-", *options, "--json", stdin=TABLE)
    request = json.dumps({"architecture": architecture, "chunks": CHUNKS})
    assert by_options == lacuna.prints("place", request, "--json")
    assert json.loads(by_options)["source"] == "theory"
    # Heads differ with ALiBi alone.
    plain = lacuna.prints("place", "-", "--layers", "8", "--json", stdin=TABLE)
    assert plain == lacuna.prints(
        "place", "-", "--layers", "8", "--heads", "4", "--json", stdin=TABLE
    )
    # Options win over the request.
    assert lacuna.prints("place", request, "--layers", "2", "--json") != by_options


@pytest.mark.parametrize("flag", ["--ids", "--quiet", "-q"])
def test_ids_alone_are_for_scripts(lacuna: Any, flag: str) -> None:
    result = lacuna("place", "-", "--density", LISTED, flag, stdin=TABLE)
    assert result.stdout.splitlines() == expected()["order"]
    assert result.stderr == ""


def test_ids_alone_still_say_what_is_missing_and_what_to_doubt(lacuna: Any) -> None:
    request = {"architecture": {"layers": 4, "heads": 4}, "chunks": CHUNKS}
    result = lacuna("place", json.dumps(request), "--ids", "--max-chunks", "3")
    assert len(result.stdout.splitlines()) == 3
    dropped, undecided, doubt = result.stderr.splitlines()
    assert dropped == "lacuna: dropped: d (only 3 may stay)"
    assert undecided.startswith("lacuna: undecided: the curve comes from the architecture alone")
    assert doubt.startswith("lacuna: confidence: low (computed from the architecture alone")


def test_nothing_fits(lacuna: Any) -> None:
    said = lacuna.prints("place", "-", "--density", LISTED, "--max-tokens", "79", stdin=TABLE)
    assert "note: no chunk fits: with prefix and suffix the prompt may have 79 tokens" in said
    one = lacuna.prints("place", "-", "--density", LISTED, "--max-tokens", "80", stdin=TABLE)
    assert "no chunk fits" not in one


def test_the_profile_is_named(lacuna: Any, saved: Save) -> None:
    path = saved(tokens=128)
    known = Profile.model_validate_json(Path(path).read_bytes()).id
    said = lacuna.prints("place", "-", "--profile", path, stdin=TABLE)
    assert f"curve: measured, profile {known} of 128 tokens" in said


def test_an_id_of_two_lines_is_no_line(lacuna: Any) -> None:
    chunks = [{"id": "a\nb", "tokens": 1, "relevance": 1}]
    assert "--json" in lacuna.fails(1, "place", json.dumps(chunks), "--density", LISTED, "--ids")


def test_the_table_says_what_the_answer_says(lacuna: Any) -> None:
    answer = expected(prefix_tokens=40, suffix_tokens=20, max_chunks=3)
    result = lacuna(
        "place", "-", "--density", LISTED, "--prefix-tokens", "40", "--suffix-tokens", "20",
        "--max-chunks", "3", stdin=TABLE,
    )  # fmt: skip
    rows = [line.split() for line in result.stdout.splitlines() if line[:4].strip().isdigit()]
    assert [row[1] for row in rows] == answer["order"]
    relevance = {chunk["id"]: chunk["relevance"] for chunk in CHUNKS}
    for row, one in zip(rows, answer["placements"], strict=True):
        assert row[2:4] == [str(one["offset"]), str(one["tokens"])]
        assert float(row[4]) == relevance[one["id"]]
        assert float(row[5]) == pytest.approx(one["visibility"], abs=0.005)
        assert (row[-2:] == ["dead", "zone"]) == one["in_dead_zone"]
    longest = max(rows, key=lambda row: row[6].count("█"))
    assert longest[6] == 12 * "█"
    assert longest == max(rows, key=lambda row: float(row[5]))
    for words in (
        f"advice: {answer['advice']['decision']}: {answer['advice']['reason']}",
        f"over your order           {percent(answer['gain']['given']['value'])}",
        f"over most relevant first  {percent(answer['gain']['relevance_first']['value'])}",
        f"over zigzag, best last    {percent(answer['gain']['zigzag_best_last']['value'])}",
        "relevance: by rank: how often the chunk of each rank holds the answer; lengths do not",
        "confidence: medium (the curve is the caller's own)",
        f"dropped: {answer['dropped'][0]['id']} (only 3 may stay)",
    ):
        assert words in result.stdout


def test_long_orders_are_shown_by_their_ends(lacuna: Any) -> None:
    lines = "".join(f"chunk {i}, 10, {i % 7}\n" for i in range(1_000))
    result = lacuna("place", "-", "--density", LISTED, stdin=lines)
    assert "800 more: --ids or --json" in result.stdout
    assert result.stdout.count("\n") < 250


def test_ids_cannot_command_the_terminal(lacuna: Any) -> None:
    chunks = [{"id": "\x1b[31mred [bold]x[/bold] :smile:", "tokens": 1, "relevance": 1}]
    result = lacuna("place", json.dumps(chunks), "--density", LISTED)
    assert "\x1b" not in result.stdout
    assert "[bold]x[/bold] :smile:" in result.stdout


BAD_INPUT = {
    "empty": ("", "stdin is empty"),
    "blank": ("\n \n", "stdin is empty"),
    "binary": (b"\x93\x00\xff\xfe", "not text in UTF-8: byte 0"),
    "a zero byte": ("a, 1\0, 2", "byte 4 is 0"),
    "no JSON": ("[[[", "not JSON"),
    "too deep": ("[" * 100_000, "stdin: "),
    "NaN in JSON": ('[{"id": "a", "tokens": 1, "relevance": NaN}]', "NaN is not a JSON number"),
    "too large a number": ('[{"id": "a", "tokens": 1, "relevance": 1e999}]', "too large a number"),
    "a key twice": ('[{"id": "a", "id": "b", "tokens": 1, "relevance": 1}]', "'id' is given twice"),
    "a lone surrogate": ('[{"id": "\\ud800", "tokens": 1, "relevance": 1}]', "Invalid JSON"),
    "an unknown field": ('[{"id": "a", "tokens": 1, "relevnce": 1}]', "did you mean `relevance`?"),
    "no place for a pin": (
        '[{"id": "a", "tokens": 1, "relevance": 1, "pinned": "middle"}]',
        "chunks.0.pinned: must be 'first' or 'last'",
    ),
    "NaN in a table": ("a, 1, nan", "line 1: relevance: 'nan' is not a finite number"),
    "infinity": ("a, 1, inf", "line 1: relevance: 'inf' is not a finite number"),
    "no number": ("a, 1, 0.5\nb, 2, much", "line 2: relevance: 'much'"),
    "underscores": ("a, 1_0, 0.5", "line 1: tokens: '1_0'"),
    "no token": ("a, 0, 0.5", "line 1: tokens: '0' is not a whole number from 1"),
    "a comma for a point": ("10,0,9", "line 1: tokens: '0' is not a whole number from 1"),
    "half a token": ("a, 1.5, 0.5", "line 1: tokens: '1.5' is not a whole number"),
    "negative tokens": ("a, 1, 1\n\nb, -1, 1", "line 3: tokens: '-1' is not a whole number from 1"),
    "too many tokens": ("a, 1000001, 1", "line 1: tokens: Input should be less than or equal to"),
    "too much relevance": ("a, 1, 1e13", "line 1: relevance: Input should be less than or equal"),
    "an id twice": ("a, 1, 1\na, 2, 1", "the id 'a' repeats"),
    "decimal commas": ("a, 120, 0,9", "line 1: expected an id, a number of tokens and a relevance"),
    "a list with commas": ("a;1;0,5,3", "line 1: relevance: '0.5,3'"),
    "one cell": ("a", "line 1: expected an id, a number of tokens and a relevance"),
    "a column missing": ("id, tokens\na, 1", "line 1: no column `relevance`"),
    "no lengths": ("id, relevance\na, 1", "line 1: no column `tokens`"),
    "an unknown column": (
        "id, tokens, score\na, 1, 1",
        "line 1: unknown column 'score' (did you mean `relevance`?)",
    ),
    "unknown columns": (
        "chunk_id,score,length\na,0.9,10",
        "line 1: unknown column 'chunk_id' (did you mean `id`?); a header names the columns id,",
    ),
    "a word for a number": ("a;ten;0,5", "line 1: tokens: 'ten' is not a finite"),
    "a column twice": ("id, tokens, tokens, relevance\n", "the column tokens is there twice"),
    "a short row": ("id, tokens, relevance\na, 1", "line 2: 2 cells under 3 columns"),
    "an open quote": ('id, tokens, relevance\n"a, 1, 2\n', "line 2: 1 cells under 3 columns"),
    "a bad JSON line": (
        '{"id": "a", "tokens": 1, "relevance": 1}\n{"id": "b", "tokens": -1, "relevance": 1}',
        "line 2: tokens: Input should be greater than or equal to 0",
    ),
    "too many lines": ("a, 1, 1\n" * 1_000_000, f"more than {MAX_CHUNKS:,} chunks"),
    "too many objects": ("[" + "{}," * 200_000 + "{}]", "more than 10,000 objects"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_chunks_are_one_clear_line(lacuna: Any, text: str | bytes, words: str) -> None:
    assert words in lacuna.fails(2, "place", "-", "--density", LISTED, stdin=text)


BAD_OPTIONS = {
    "no curve": ([], 2, "--profile, --model, --density or --layers"),
    "ALiBi without heads": (["--layers", "2", "--positions", "alibi"], 2, "needs --heads"),
    "heads alone": (["--heads", "2"], 2, "architecture.layers: Field required"),
    "no layers": (["--layers", "0"], 2, "--layers: Input should be greater"),
    "layers and a density": (["--density", "1", "--layers", "2"], 2, "goes alone or with `model`"),
    "two curves": (["--density", "1,2", "--model", "gpt2"], 2, "--model"),
    "no number": (["--density", "1,x"], 2, "--density: 'x' is not a finite number"),
    "silence": (["--density", "0,0"], 2, "--density is zero everywhere"),
    "below a bound": (["--density", "1", "--prefix-tokens", "-1"], 2, "--prefix-tokens: Input"),
    "an unknown name": (["--density", "1", "--objective", "x"], 2, "--objective: must be"),
    "an unknown scale": (["--density", "1", "--scale", "cosine"], 2, "--scale: must be"),
    "an unknown strategy": (["--density", "1", "--strategy", "x"], 2, "--strategy: must be"),
    "neither number nor auto": (["--density", "1", "--max-chunks", "few"], 2, "--max-chunks"),
    "no calibration": (["--density", "1", "--calibration", "none.json"], 2, "none.json"),
    "two forms": (["--density", "1", "--ids", "--json"], 2, "exclude each other"),
    "no such file": (["--profile", "nowhere.json"], 2, "nowhere.json: No such file"),
    "a folder": (["--profile", "."], 2, "cannot read .: Is a directory"),
    "no room": (
        ["--density", "1", "--prefix-tokens", "9", "--max-tokens", "5"],
        1,
        "invalid_request: --max-tokens: prefix and suffix alone exceed",
    ),
    "a prompt too long": (
        ["--density", "1", "--prefix-tokens", "1000000"], 1, "too_long: chunks: the prompt has",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("options", "status", "words"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_bad_options_are_one_clear_line(
    lacuna: Any, options: list[str], status: int, words: str
) -> None:
    assert words in lacuna.fails(status, "place", "-", *options, stdin=TABLE)


def test_texts_need_a_tokenizer(lacuna: Any, saved: Save) -> None:
    said = lacuna.fails(
        1, "place", "-", "--profile", saved(), stdin="id, text, relevance\na, hello, 1\n"
    )
    assert "chunks.text: `text` needs a tokenizer" in said
    assert "by its id, not by its file, or for the model" in said


@pytest.mark.parametrize("text", ["{}", "[]", "nothing", '{"id": 3}'])
def test_a_file_without_a_profile_is_one_clear_line(lacuna: Any, tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    assert "x.json holds no profile: " in lacuna.fails(
        2, "place", "-", "--profile", str(path), stdin=TABLE
    )
