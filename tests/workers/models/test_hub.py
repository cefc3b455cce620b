from __future__ import annotations

import dataclasses
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from huggingface_hub import close_session

from lacuna.architectures.table import DEMO
from lacuna.contract.errors import (
    LacunaError,
    ModelGated,
    ModelNotFound,
    ModelUnreachable,
    ModelUnsupported,
    WeightsUnsafe,
)
from lacuna.contract.profile_requests import ProfileRequest
from workers.models import hub
from workers.models.loaded import LoadOptions
from workers.models.loading import load


def _fake_hub() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fake_hub", Path(__file__).parent / "fake_hub.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fake_hub"] = module
    spec.loader.exec_module(module)
    return module


fake_hub = _fake_hub()


@pytest.fixture
def server() -> Iterator[Any]:
    with fake_hub.serving() as running:
        yield running


@pytest.fixture
def online(server: Any, options: LoadOptions) -> LoadOptions:
    return dataclasses.replace(options, hub_endpoint=server.url)


def request(model: str, **fields: Any) -> ProfileRequest:
    return ProfileRequest(model=model, sequence_length=16, **fields)


def publish(server: Any, name: str, folder: Path, **more: bytes) -> None:
    server.files[name] = {path.name: path.read_bytes() for path in folder.iterdir()} | more


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "socks5://user:hidden@127.0.0.1:1"),
        ("ALL_PROXY", "nonsense://user:hidden@127.0.0.1:1"),
        ("HTTP_PROXY", "::hidden::"),
        ("SSL_CERT_FILE", "/nonexistent/hidden"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_a_hub_that_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch, online: LoadOptions, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    close_session()  # the hub's library keeps a client that was made before
    try:
        with pytest.raises(ModelUnreachable, match=f"cannot use its .*{name}") as raised:
            hub.resolve("someone/tiny", None, online)
    finally:
        monkeypatch.undo()
        close_session()
    assert "hidden" not in raised.value.detail


def test_a_revision_becomes_a_commit_and_a_model(
    server: Any, online: LoadOptions, save: Callable[..., Path], tiny_model: Callable[..., Any]
) -> None:
    publish(server, "someone/tiny", save())
    loaded = load(request("someone/tiny", revision="v1"), online)
    assert loaded.revision == fake_hub.COMMIT
    ids = torch.arange(2, 12)[None]
    assert torch.equal(loaded.model(ids).logits, tiny_model()(ids).logits)
    assert loaded.tokenizer is not None


def test_only_safe_top_level_files_are_fetched(
    server: Any, online: LoadOptions, save: Callable[..., Path]
) -> None:
    unwanted = {
        "pytorch_model.bin": b"pickle",
        "modeling_evil.py": b"raise SystemExit",
        "original/consolidated.safetensors": b"large",
        "consolidated.safetensors": b"large",
        "onnx/model.onnx": b"large",
        "tokenizer.py": b"raise SystemExit",
    }
    publish(server, "someone/tiny", save(), **unwanted)
    load(request("someone/tiny"), online)
    assert set(server.downloaded) & set(unwanted) == set()
    assert "model.safetensors" in server.downloaded


def test_random_weights_fetch_no_weights(
    server: Any, online: LoadOptions, save: Callable[..., Path]
) -> None:
    publish(server, "someone/tiny", save())
    loaded = load(request("someone/tiny", weights="random"), online)
    assert loaded.revision is None
    assert "model.safetensors" not in server.downloaded


def test_the_token_goes_along_only_when_it_is_set(
    server: Any, online: LoadOptions, save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_machine")
    publish(server, "someone/tiny", save())
    hub.resolve("someone/tiny", None, online)
    assert server.authorizations == {None}
    hub.resolve("someone/tiny", None, dataclasses.replace(online, hub_token="hf_ours"))
    assert server.authorizations == {None, "Bearer hf_ours"}
    assert "hf_ours" not in repr(dataclasses.replace(online, hub_token="hf_ours"))


def test_missing_gated_and_unreachable_never_look_the_same(
    server: Any, online: LoadOptions, options: LoadOptions, save: Callable[..., Path]
) -> None:
    publish(server, "someone/gated", save())
    publish(server, "someone/disabled", save("other"))
    server.gated.add("someone/gated")
    server.disabled.add("someone/disabled")
    expected: list[tuple[str, type[LacunaError], str]] = [
        ("someone/missing", ModelNotFound, "no repository someone/missing"),
        ("someone/gated", ModelGated, "LACUNA_HUB_TOKEN"),
        ("someone/disabled", ModelNotFound, "disabled"),
    ]
    for model, kind, words in expected:
        with pytest.raises(kind, match=words) as info:
            load(request(model), online)
        assert info.value.field == "model"
    with pytest.raises(ModelUnreachable, match="could not be reached"):
        load(request("someone/tiny"), options)


@pytest.mark.parametrize(
    ("model", "preset"),
    [
        ("gpt2", "preset:gpt2"),
        ("openai-community/gpt2", "preset:gpt2"),
        ("gpt3", "preset:NAME"),
        ("someone/tiny", "preset:NAME"),
    ],
)
def test_without_the_hub_what_needs_none_is_named(
    model: str, preset: str, options: LoadOptions
) -> None:
    with pytest.raises(ModelUnreachable) as info:
        load(request(model), options)
    said = info.value.detail
    assert (
        f"no hub is needed for `{preset}` with `weights: random`, `local:NAME` and `demo:" in said
    )
    for name in re.findall(r"demo:[\w-]+", said):
        assert name in DEMO


def test_a_missing_revision_is_named(
    server: Any, online: LoadOptions, save: Callable[..., Path]
) -> None:
    publish(server, "someone/tiny", save())
    with pytest.raises(ModelNotFound, match="no revision 'v9'") as info:
        load(request("someone/tiny", revision="v9"), online)
    assert info.value.field == "revision"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_hub_in_trouble_says_nothing_about_the_model(
    status: int, server: Any, online: LoadOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    server.status = status
    with pytest.raises(ModelUnreachable) as info:
        load(request("someone/tiny"), online)
    assert info.value.retryable
    assert info.value.retry_after is not None


def test_a_pinned_commit_in_the_cache_needs_no_hub(
    server: Any, online: LoadOptions, options: LoadOptions, save: Callable[..., Path]
) -> None:
    publish(server, "someone/tiny", save())
    load(request("someone/tiny", weights="random"), online)
    with pytest.raises(ModelUnreachable):  # its weights were never fetched
        load(request("someone/tiny", revision=fake_hub.COMMIT), options)
    load(request("someone/tiny"), online)
    pinned = load(request("someone/tiny", revision=fake_hub.COMMIT), options)
    assert pinned.revision == fake_hub.COMMIT
    with pytest.raises(ModelUnreachable):
        load(request("someone/tiny", revision="f" * 40), options)
    with pytest.raises(ModelUnreachable):
        load(request("someone/tiny"), options)


@pytest.mark.parametrize(
    ("files", "kind", "words"),
    [
        ({"config.json": b"{}", "pytorch_model.bin": b""}, WeightsUnsafe, "pickle weights only"),
        ({"adapter_config.json": b"{}", "adapter_model.safetensors": b""}, ModelUnsupported,
         "adapter only"),
        ({"tiny.Q4_0.gguf": b""}, ModelUnsupported, "GGUF weights only"),
        ({"config.json": b"{}", "tiny.Q4_0.gguf": b""}, ModelUnsupported, "GGUF weights only"),
        ({"README.md": b""}, ModelUnsupported, "no config.json"),
        ({"config.json": b"{}"}, ModelUnsupported, "no safetensors weights"),
    ],
)  # fmt: skip
def test_refused_before_anything_is_fetched(
    files: dict[str, bytes],
    kind: type[LacunaError],
    words: str,
    server: Any,
    online: LoadOptions,
) -> None:
    server.files["someone/odd"] = files
    with pytest.raises(kind, match=words):
        load(request("someone/odd"), online)
    assert server.downloaded == []
