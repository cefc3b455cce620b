"""`lacuna profile`: its options are the request; where the result goes; jobs nobody waits for."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from lacuna import ServiceAway
from lacuna.contract.profile_requests import ProfileRequest
from lacuna.contract.profiles import Profile
from service.local.stack import Stack, StackError

RANDOM = {"model": "gpt2", "weights": "random"}
SAME: dict[str, tuple[list[str], dict[str, Any]]] = {
    "defaults": ([], {"model": "gpt2"}),
    "numbers": (
        ["--length", "64", "--documents", "2", "--seed", "7"],
        {"model": "gpt2", "sequence_length": 64, "documents": {"count": 2}, "seed": 7},
    ),
    "names": (
        ["--weights", "random", "--dtype", "float32", "--positional-encoding", "off",
         "--priority", "high", "--objective", "jacobian", "--source", "random_tokens"],
        {**RANDOM, "dtype": "float32", "positional_encoding": "off", "priority": "high",
         "objective": "jacobian", "documents": {"source": "random_tokens"}},
    ),
    "a revision": (["--revision", "main"], {"model": "gpt2", "revision": "main"}),
    "a corpus": (
        ["--corpus", "mine"], {"model": "gpt2", "documents": {"source": "corpus", "name": "mine"}},
    ),
    "a target": (
        ["--target", " Paris"],
        {"model": "gpt2", "objective": "target_logprob", "target": " Paris"},
    ),
    "predictions": (
        ["--predictions", "residual,cesaro"],
        {"model": "gpt2", "predictions": ["residual", "cesaro"]},
    ),
    "recall": (["--recall"], {"model": "gpt2", "recall": {}}),
    "groups": (["--groups", "16"], {"model": "gpt2", "recall": {"groups": 16}}),
    "probes": (
        ["--probes", "facts,pairs", "--groups", "auto"],
        {"model": "gpt2", "recall": {"probes": ["facts", "pairs"]}},
    ),
    "groups beside depths": (
        ["--groups", "16", "--request", '{"recall": {"depths": 4}}'],
        {"model": "gpt2", "recall": {"depths": 4, "groups": 16}},
    ),
    "a request": (
        ["--request", '{"sequence_length": 32, "probes": 2, "documents": {"count": 3}}'],
        {"model": "gpt2", "sequence_length": 32, "probes": 2, "documents": {"count": 3}},
    ),
    "options win": (
        ["--length", "48", "--request", '{"sequence_length": 32, "documents": {"count": 3}}'],
        {"model": "gpt2", "sequence_length": 48, "documents": {"count": 3}},
    ),
}  # fmt: skip


TEXTS = {
    "a text file": ("One text.\n\nThe same text.\n", ["One text.\n\nThe same text.\n"]),
    "a list": ('["one", {"text": "two", "id": 2}]', ["one", "two"]),
    "JSON lines": ('{"text": "one"}\n\n"two"\n', ["one", "two"]),
    "a text that looks like JSON": ('["one", two]', ['["one", two]']),
    "a quotation": ('"Yes," she said.', ['"Yes," she said.']),
}


@pytest.mark.parametrize(("content", "texts"), TEXTS.values(), ids=TEXTS)
def test_texts_of_ones_own_come_from_files(
    lacuna: Any, stack: Stack, worker: Any, tmp_path: Path, content: str, texts: list[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(content.encode("utf-8-sig"))
    second.write_text("another")
    files = ("--texts", str(first), "--texts", str(second))
    lacuna.prints("profile", "gpt2", *files, "--no-wait", server=stack.url)
    body = {"model": "gpt2", "documents": {"source": "inline", "texts": [*texts, "another"]}}
    claim = worker.claim()
    asked = ProfileRequest.model_validate_json(claim.request)
    assert asked.documents.texts == [*texts, "another"]
    assert claim.job_id == ProfileRequest.model_validate(body).job_id


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ('["a", 3]', "text 2 is neither a string nor an object with `text`"),
        ('{"txt": "a"}', "text 1 is neither"),
        ("[]", "--texts: List should have at least 1 item"),
    ],
)
def test_wrong_texts_are_one_clear_line(
    lacuna: Any, tmp_path: Path, content: str, words: str
) -> None:
    path = tmp_path / "texts"
    path.write_text(content)
    assert words in lacuna.fails(2, "profile", "gpt2", "--texts", str(path), server=None)
    both = ("--texts", str(path), "--corpus", "mine")
    lacuna.fails(2, "profile", "gpt2", *both, server=None)


@pytest.mark.parametrize(("options", "body"), SAME.values(), ids=SAME)
def test_options_are_the_request(
    lacuna: Any, stack: Stack, worker: Any, options: list[str], body: dict[str, Any]
) -> None:
    printed = lacuna.prints("profile", "gpt2", *options, "--no-wait", "--json", server=stack.url)
    expected = ProfileRequest.model_validate(body)
    assert json.loads(printed)["id"] == expected.job_id
    claim = worker.claim()
    assert ProfileRequest.model_validate_json(claim.request).job_id == expected.job_id
    assert claim.job_id == expected.job_id


def test_nobody_waits(
    lacuna: Any, stack: Stack, worker: Any, profile: Profile, tmp_path: Path
) -> None:
    first, address = lacuna.prints(
        "profile", "gpt2", "--weights", "random", "--no-wait", server=stack.url
    ).splitlines()
    identifier = ProfileRequest.model_validate(RANDOM).job_id
    assert first == f"job {identifier}: queued"
    assert httpx.get(address).json()["id"] == identifier
    assert "queued" in lacuna.prints("job", identifier, server=stack.url)
    worker.finish(profile)
    assert f"lacuna show {profile.id}" in lacuna.prints("job", identifier, server=stack.url)
    # Known by now: there is nothing to wait for.
    arguments = ("profile", "gpt2", "--weights", "random", "--no-wait", "--folder", str(tmp_path))
    assert "wrote " in lacuna.prints(*arguments, server=stack.url)


def test_a_job_is_withdrawn(lacuna: Any, stack: Stack, worker: Any) -> None:
    lacuna.prints("profile", "gpt2", "--weights", "random", "--no-wait", server=stack.url)
    identifier = ProfileRequest.model_validate(RANDOM).job_id
    assert "cancelled" in lacuna.prints("cancel", identifier, server=stack.url)
    result = lacuna("job", identifier, server=stack.url)
    assert result.exit_code == 1
    assert result.stderr.startswith("lacuna: cancelled: ")
    assert worker.idle()


@pytest.fixture
def known(stack: Stack, worker: Any, profile: Profile) -> str:
    """Address of a service that knows gpt2 with random weights."""
    httpx.post(f"{stack.url}/v1/profiles", json=RANDOM).raise_for_status()
    worker.finish(profile)
    return stack.url


@pytest.mark.parametrize(
    ("options", "files"),
    [
        ([], ["profile.json", "profile.svg"]),
        (["--folder", "new/deep"], ["new/deep/profile.json", "new/deep/profile.svg"]),
        (["--output", "new/gpt2.json"], ["new/gpt2.json", "new/gpt2.svg"]),
    ],
)
def test_the_profile_goes_where_it_should(
    lacuna: Any, known: str, profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    options: list[str], files: list[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    text = lacuna.prints("profile", "gpt2", "--weights", "random", *options, server=known)
    assert "primacy mass" in text
    assert text.endswith(f"wrote {files[0]} and {files[1]}\n")
    assert Profile.model_validate_json(Path(files[0]).read_bytes()) == profile
    assert Path(files[1]).read_text().startswith("<svg")
    printed = lacuna.prints("profile", "gpt2", "--weights", "random", "--json", server=known)
    assert Profile.model_validate_json(printed) == profile
    # What was written is what the other commands take.
    assert lacuna("place", "-", "--profile", files[0], "--ids", stdin="a, 1, 1").stdout == "a\n"


BAD: dict[str, tuple[list[str], str]] = {
    "a model": (["../x"], "MODEL: a model is a hub id"),
    "a length": (["gpt2", "--length", "0"], "--length: Input should be greater than or equal to 1"),
    "no number": (["gpt2", "--length", "x"], "'--length'"),
    "documents": (["gpt2", "--documents", "0"], "--documents: Input should be greater"),
    "weights": (["gpt2", "--weights", "randon"], "--weights: must be 'pretrained' or 'random'"),
    "a preset": (["preset:gpt2"], "MODEL: a preset has no trained weights"),
    "groups": (["gpt2", "--groups", "0"], "--groups: Input should be greater"),
    "a prediction": (["gpt2", "--predictions", "residual,x"], "--predictions number 2: must be"),
    "one twice": (["gpt2", "--predictions", "cesaro,cesaro"], "--predictions names one twice"),
    "a field": (["gpt2", "--request", '{"sed": 1}'], "sed: unknown field; did you mean `seed`?"),
    "no object": (["gpt2", "--request", "[]"], "must be a JSON object"),
    "documents of no kind": (["gpt2", "--request", '{"documents": 3}'], "documents: Input should"),
    "an option": (["gpt2", "--lenght", "3"], "--length"),
    "two places": (["gpt2", "--folder", "a", "--output", "b.json"], "exclude each other"),
    "one file for both": (["gpt2", "--output", "curve.svg"], "name it .json"),
    "a folder's name": (["gpt2", "--output", "."], "cannot write .: it is a folder"),
    "nobody to do it": (["gpt2", "--no-wait"], "--no-wait needs --server"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), BAD.values(), ids=BAD)
def test_wrong_usage_is_found_before_anything_starts(
    lacuna: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("service.local.stack.Stack.__enter__", None)
    assert words in lacuna.fails(2, "profile", *arguments, server=None)


def test_a_place_that_cannot_be_written_is_found_before_measuring(
    lacuna: Any, stack: Stack, worker: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    below = str(tmp_path / "file" / "below")
    line = lacuna.fails(2, "profile", "gpt2", "--folder", below, server=stack.url)
    assert "cannot make the folder" in line
    if os.getuid() != 0:  # root may write anywhere
        tmp_path.chmod(0o500)
        line = lacuna.fails(2, "profile", "gpt2", "--folder", str(tmp_path), server=stack.url)
        assert "cannot write" in line
    assert worker.idle()


def test_a_refusal_of_the_service_names_the_option_once(lacuna: Any, stack: Stack) -> None:
    arguments = ("profile", "preset:gpt2", "--weights", "random", "--length", "1024")
    line = lacuna.fails(1, *arguments, "--documents", "4096", server=stack.url)
    assert line.startswith("lacuna: too_large: --documents: 4096 documents of 1024 tokens cost ")


def test_a_job_that_fails_is_one_clear_line(
    lacuna: Any, stack: Stack, worker: Any, tmp_path: Path
) -> None:
    httpx.post(f"{stack.url}/v1/profiles", json=RANDOM).raise_for_status()
    worker.fail("not_finite", "gradients are NaN in float32")
    arguments = ("profile", "gpt2", "--weights", "random", "--no-wait")
    identifier = json.loads(lacuna.prints(*arguments, "--json", server=stack.url))["id"]
    worker.fail("not_finite", "gradients are NaN in float32")
    result = lacuna("job", identifier, server=stack.url)
    assert result.exit_code == 1
    assert result.stderr == "lacuna: not_finite: gradients are NaN in float32\n"


@pytest.fixture
def own(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Stack:
    """A service that `lacuna profile` takes for the one that it started."""
    monkeypatch.setattr("service.terminal.connection._started", lambda *_, **__: nullcontext(stack))
    return stack


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (KeyboardInterrupt(), 130, "stopped; the job was cancelled"),
        (StackError("the worker-1 ended by SIGKILL"), 3, "lacuna: the worker-1 ended by SIGKILL"),
    ],
    ids=["Ctrl-C", "its worker died"],
)
def test_a_service_of_our_own_leaves_no_job_behind(
    lacuna: Any, own: Stack, worker: Any, monkeypatch: pytest.MonkeyPatch,
    error: BaseException, status: int, words: str,
) -> None:  # fmt: skip
    # Checked with each request: the job is submitted, and the first poll finds the fault.
    monkeypatch.setattr(own, "check", Mock(side_effect=[None, error]))
    result = lacuna("profile", "gpt2", "--weights", "random", server=None)
    assert result.exit_code == status
    assert result.stderr == f"{words}\n"
    assert result.stdout == ""
    identifier = ProfileRequest.model_validate(RANDOM).job_id
    assert httpx.get(f"{own.url}/v1/jobs/{identifier}").json()["state"] == "cancelled"
    assert worker.idle()


def test_nothing_is_said_of_a_job_whose_gateway_is_gone(
    lacuna: Any, own: Stack, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "check", Mock(side_effect=[None, KeyboardInterrupt]))
    gone = Mock(side_effect=ServiceAway("refused"))
    monkeypatch.setattr("lacuna.client.clients.Client.cancel", gone)
    result = lacuna("profile", "gpt2", "--weights", "random", server=None)
    assert result.exit_code == 130
    assert result.stderr == "stopped\n"


def test_a_gateway_that_died_is_named_with_its_reason(
    lacuna: Any, own: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "_port", 9)  # nobody listens there
    said = StackError("the gateway ended by SIGKILL")
    monkeypatch.setattr(own, "check", Mock(side_effect=[None, said]))
    line = lacuna.fails(3, "profiles", server=None)
    assert line == "lacuna: the gateway ended by SIGKILL"


@pytest.mark.parametrize("name", ["profile.json", "profile.svg"])
def test_a_file_of_somebody_else_is_never_overwritten(
    lacuna: Any, known: str, tmp_path: Path, name: str
) -> None:
    arguments = ("profile", "gpt2", "--weights", "random", "--folder", str(tmp_path))
    for mine in ('{"id": "my own"}', "<svg>my own</svg>", "\x00 no text"):
        (tmp_path / name).write_text(mine)
        assert f"{name} is there already" in lacuna.fails(2, *arguments, server=known)
        assert (tmp_path / name).read_text() == mine
    (tmp_path / name).unlink()

    def appears(client: Any, profile_id: str, form: str) -> bytes:
        (tmp_path / name).write_text("meanwhile")
        return b"{}"

    # Measuring takes minutes: the file may appear after the first look.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lacuna.client.clients.Client.export", appears)
        assert f"{name} is there already" in lacuna.fails(2, *arguments, server=known)
    assert (tmp_path / name).read_text() == "meanwhile"
    (tmp_path / name).unlink()
    for _ in range(2):  # what it wrote itself may be written again
        assert "wrote " in lacuna.prints(*arguments, server=known)
