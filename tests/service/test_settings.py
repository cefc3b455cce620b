from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from service.local import store
from service.settings import Settings
from service.store.connection import connect

KEY = "a-key-of-sixteen-or-more"


def test_loopback_needs_no_keys() -> None:
    assert Settings().api_keys == ()


def test_another_address_needs_keys_or_a_word() -> None:
    with pytest.raises(ValidationError, match="LACUNA_API_KEYS"):
        Settings(host="0.0.0.0")
    assert Settings(host="0.0.0.0", api_keys=(KEY,)).api_keys == (KEY,)
    assert Settings(host="0.0.0.0", allow_anonymous=True).allow_anonymous


@pytest.mark.parametrize("key", ["changeme", "short"])
def test_placeholders_are_refused(key: str) -> None:
    with pytest.raises(ValidationError, match="placeholder"):
        Settings(api_keys=(key,))


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    unset = Settings()
    for name in Settings.model_fields:
        monkeypatch.setenv(f"LACUNA_{name.upper()}", "")
    assert Settings() == unset


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().port = 1  # type: ignore[misc]


def test_a_child_with_the_same_environment_has_the_same_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = Settings(
        api_keys=(KEY, KEY + "2"), data_dir=tmp_path, redis_url="redis://:word@127.0.0.1/1",
        allow_anonymous=True, allowed_models=("gpt2", "demo:*"), lease_seconds=3.5,
    )  # fmt: skip
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    assert Settings() == settings


def test_secrets_do_not_show() -> None:
    settings = Settings(redis_url="redis://:hidden@127.0.0.1", hub_token="hidden")
    assert "hidden" not in repr(settings)


@pytest.mark.parametrize(
    ("url", "passwords"),
    [
        ("redis://user:p%40ssw0rd@host:6379/0", {"p%40ssw0rd", "p@ssw0rd"}),
        ("unix:///run/redis.sock?db=1&password=p%40ssw0rd", {"p@ssw0rd"}),
        ("redis://host", set()),
    ],
)
def test_every_secret_is_known_to_the_logs(url: str, passwords: set[str]) -> None:
    settings = Settings(redis_url=url, api_keys=(KEY,), hub_token="hf_token")
    assert set(settings.secrets) == {KEY, "hf_token"} | passwords


@pytest.mark.parametrize(
    "url",
    [
        "redis://:sup3rSecretPa/tail@127.0.0.1:6379/0",
        "redis://:123/sup3rSecret@127.0.0.1:6379/0",
        "redis://u:123?sup3rSecret@127.0.0.1:6379/0",
        "redis://u:123#sup3rSecret@127.0.0.1:6379/0",
        "http://:sup3rSecret@127.0.0.1",
        "redis://:sup3rSecret@127.0.0.1:70000",
        "redis://:sup3rSecret@127.0.0.1/first",
        "rediss://",
        "unix://",
    ],
)
def test_an_address_that_is_none_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ValidationError, match=r"redis://\[\[user") as refusal:
        Settings(redis_url=url)
    assert "sup3rSecret" not in str(refusal.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://[::1]:6379/2",
        "rediss://user@host?ssl_cert_reqs=none",
        "unix:///run/redis.sock?db=1",
    ],
)
def test_addresses_of_every_kind(url: str) -> None:
    assert Settings(redis_url=url).store_url == url


def test_a_digest_may_have_capitals() -> None:
    assert Settings(api_keys=("A" * 64, "A-Key-Of-Sixteen")).api_keys == (
        "a" * 64,
        "A-Key-Of-Sixteen",
    )


def test_every_setting_is_explained() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_folders_are_what_a_shell_would_make_of_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("LACUNA_DATA_DIR", "data")
    monkeypatch.setenv("LACUNA_MODEL_DIR", "~/models")
    settings = Settings()
    assert settings.data_dir == tmp_path / "data"
    assert settings.store_url == f"unix://{tmp_path}/data/redis.sock"
    assert settings.model_dir == Path("/home/ada/models")
    assert settings.environment()["LACUNA_DATA_DIR"] == str(tmp_path / "data")
    monkeypatch.setenv("LACUNA_CORPUS_DIR", "~nobody-of-this-name/x")
    with pytest.raises(ValidationError, match="home"):
        Settings()


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%20b", "a b", "ä"])
def test_a_folder_of_any_name_holds_the_store(short_dir: Path, name: str) -> None:
    with store.ensure(short_dir / name) as server:
        url = Settings(data_dir=short_dir / name).store_url
        assert url == server.url
        connect(url).set("x", "1")
        assert connect(server.url).get("x") == b"1"
    assert (short_dir / name / "appendonlydir").is_dir()
