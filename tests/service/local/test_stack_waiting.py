"""Waiting for a store that others run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import redis

from lacuna.contract.errors import StoreUnavailable
from service.local import store
from service.local.stack import Stack, StackError, wait_for_store, without_credentials
from service.settings import Settings

NOBODY = "redis://someone:hush-hush@127.0.0.1:9/0"


@contextmanager
def configured(folder: Path, **options: str) -> Iterator[str]:
    """A server with these options, apart from the one of the other tests."""
    with store.ensure(folder) as server, closing(redis.Redis.from_url(server.url)) as client:
        for name, value in options.items():
            client.config_set(name.replace("_", "-"), value)
        yield server.url


def silent(line: str) -> None:
    pytest.fail(f"there is nothing to wait for: {line}")


def test_a_store_that_answers_is_not_waited_for(redis_url: str) -> None:
    wait_for_store(redis_url, 5.0, silent)


def test_a_store_may_start_later(short_dir: Path) -> None:
    told: list[str] = []
    started: list[store.EmbeddedServer] = []

    def start(line: str) -> None:
        told.append(line)
        starter.start()

    starter = threading.Thread(target=lambda: started.append(store.ensure(short_dir)))
    wait_for_store(f"unix://{short_dir}/redis.sock", 60.0, start)
    starter.join()
    started[0].close()
    (line,) = told
    assert line.startswith(f"waiting for the store at unix://{short_dir}/redis.sock: ")


def test_a_store_that_stays_away_is_named_without_its_password() -> None:
    told: list[str] = []
    with pytest.raises(StoreUnavailable) as raised:
        wait_for_store(NOBODY, 1.2, told.append)
    assert len(told) == 1
    for line in (*told, raised.value.detail):
        assert "redis://127.0.0.1:9/0" in line
        assert "refused" in line
        assert "hush" not in line
        assert "someone" not in line
    assert "correct LACUNA_REDIS_URL" in raised.value.detail


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("rediss://:p%40ss@example.org:6380/2?ssl_cert_reqs=none", "rediss://example.org:6380/2"),
        ("unix:///run/redis.sock?db=1&password=hush", "unix:///run/redis.sock"),
        ("redis://[::1]:6379", "redis://[::1]:6379"),
    ],
)
def test_an_address_is_shown_without_secrets(url: str, address: str) -> None:
    assert without_credentials(url) == address


def test_no_waiting_helps_against_a_wrong_password(short_dir: Path) -> None:
    with configured(short_dir, requirepass="hush-hush") as url:
        begun = time.monotonic()
        for wrong in (f"{url}?password=wrong", url):
            with pytest.raises(StoreUnavailable, match=r"at unix:\S+ refuses us: .* or password"):
                wait_for_store(wrong, 60.0, silent)
        assert time.monotonic() - begun < 10
        with closing(redis.Redis.from_url(f"{url}?password=hush-hush")) as client:
            wait_for_store(f"{url}?password=hush-hush", 5.0, silent)
            client.config_set("requirepass", "")


def test_no_waiting_helps_against_a_number_that_the_server_has_not(redis_url: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"refuses us: .*out of range"):
        wait_for_store(f"{redis_url}?db=999", 60.0, silent)


def test_a_service_says_which_store_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("service.local.stack.READY_SECONDS", 1.0)
    settings = Settings.model_validate({"data_dir": tmp_path, "redis_url": NOBODY})
    with pytest.raises(StackError, match=r"store at redis://127.0.0.1:9/0 did not answer in 1 s"):
        Stack(settings).__enter__()
    said = capsys.readouterr()
    assert said.err.startswith("waiting for the store at redis://127.0.0.1:9/0: ")
    assert said.out == ""


@pytest.mark.parametrize("style", ["json", "text"])
def test_a_store_that_would_drop_jobs_is_the_reason_that_is_shown(
    short_dir: Path, tmp_path: Path, style: str
) -> None:
    with configured(short_dir, maxmemory_policy="allkeys-lru") as url:
        settings = Settings.model_validate(
            {"data_dir": tmp_path, "redis_url": url, "log_format": style}
        )
        with pytest.raises(StackError) as raised:
            Stack(settings, workers=0).__enter__()
    assert str(raised.value).startswith(
        "the gateway ended with status 3: maxmemory-policy is allkeys-lru: "
    )
    assert "set it to noeviction" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "Traceback" not in str(raised.value)
