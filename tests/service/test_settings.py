from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

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


HASH = "0123456789abcdef" * 4


def test_a_key_has_a_name_a_role_and_a_hash() -> None:
    keys = Settings(api_keys=f"dash:read:{HASH.upper()}, {KEY}, {HASH[::-1]}").keys
    assert [(key.name, key.role) for key in keys] == [
        ("dash", "read"),
        ("key-2", "measure"),
        ("key-3", "measure"),
    ]
    assert keys[0].digest == HASH
    assert keys[1].digest == hashlib.sha256(KEY.encode()).hexdigest()
    assert keys[2].digest == HASH[::-1]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (f"a:read:{HASH},a:admin:{HASH[::-1]}", "API keys 1 and 2 have the name a"),
        (f"a:read:{HASH},b:admin:{HASH.upper()}", "API keys 1 and 2 have the same key"),
        (f"a:read:{HASH},{HASH}", "API keys 1 and 2 have the same key"),
        (f"{KEY},{KEY}", "API keys 1 and 2 have the same key"),
        (f"key-2:read:{HASH},{KEY}", "API keys 1 and 2 have the name key-2"),
        (f"{KEY},a:reader:{HASH}", "API key 2 is not name:role:hash: the role is one of read,"),
        (f"a:read:{HASH[1:]}", "API key 1 is not name:role:hash: the hash is"),
        (f"a:read:{KEY}", "the hash is the key's SHA-256, 64 hex digits"),
        (f"a:read:{HASH}:x", "the hash is the key's SHA-256, 64 hex digits"),
        ("a-plain-key:with-a-colon", "API key 1 is not name:role:hash: the role is one of"),
        (f":read:{HASH}", "the name has 1 to 32 letters"),
        (f"two words:read:{HASH}", "the name has 1 to 32 letters"),
    ],
)
def test_a_wrong_list_of_keys_is_refused_without_showing_it(keys: str, said: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        Settings(api_keys=keys)
    (error,) = refusal.value.errors()
    assert said in error["msg"]
    assert "\n" not in error["msg"]
    for secret in (KEY, HASH, "with-a-colon"):
        assert secret not in str(refusal.value)


def test_the_hash_of_a_named_key_is_a_secret_and_its_name_is_not() -> None:
    assert Settings(api_keys=f"dash:read:{HASH}").secrets == (HASH,)


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
    assert Settings(api_keys=("A" * 64,)).keys[0].digest == "a" * 64


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


@pytest.mark.parametrize("value", ["inf", "nan", "1e12", "-1"])
@pytest.mark.parametrize("name", ["job_ttl", "lease_seconds", "profile_ttl", "max_wait_seconds"])
def test_times_that_no_store_can_count_are_refused(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"LACUNA_{name.upper()}", value)
    with pytest.raises(ValidationError, match=name):
        Settings()


@pytest.mark.parametrize("text", ["1_0", "\uff11\uff10", "0x10", "nan", "inf", "10 000"])
@pytest.mark.parametrize("name", ["PORT", "JOB_TTL", "MAX_COST", "EXIT_REASON_FD"])
def test_numbers_are_written_as_everybody_reads_them(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setenv(f"LACUNA_{name}", text)
    with pytest.raises(ValidationError, match="must be a number, written in the digits 0 to 9"):
        Settings()


def test_a_number_may_have_blanks_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LACUNA_PORT", " 8081\n")
    assert Settings().port == 8081


def test_the_number_of_a_database_has_ascii_digits() -> None:
    with pytest.raises(ValidationError, match="this is not redis://"):
        Settings(redis_url=SecretStr("redis://x/\uff11"))
