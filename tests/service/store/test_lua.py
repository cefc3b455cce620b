"""The Lua scripts compile, use names that keys.py defines, and spell no key by themselves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import pytest
import redis

from service.store import connection, keys
from service.store.connection import ROUTE, lua_arguments, lua_source

FOLDER = Path(connection.__file__).parent
NAMES: tuple[Literal["queue", "profiles", "upkeep", "endpoints"], ...] = (
    "queue",
    "profiles",
    "upkeep",
    "endpoints",
)
SCRIPTS = pytest.mark.parametrize("name", NAMES)


def test_every_script_of_the_folder_is_known() -> None:
    assert {path.stem for path in FOLDER.glob("*.lua")} == set(NAMES)


@SCRIPTS
def test_the_server_compiles_it(
    name: Literal["queue", "profiles", "upkeep"], redis_sync: redis.Redis
) -> None:
    assert len(redis_sync.script_load(lua_source(name))) == 40


@SCRIPTS
def test_no_key_is_spelt_in_a_script(name: str) -> None:
    text = (FOLDER / f"{name}.lua").read_text()
    assert not re.search(r"""['"][^'"]*(\{lacuna\}|:job:|:ready|:leased|:profile)""", text)


@SCRIPTS
def test_a_script_uses_only_names_that_it_is_given(name: str) -> None:
    """A misspelt name would be nil only when its line runs."""
    code = re.sub(r"--[^\n]*|'[^'\n]*'", "", (FOLDER / f"{name}.lua").read_text())
    given = set(re.findall(r"^local (\w+) =", keys.lua_header(), re.MULTILINE))
    assert set(re.findall(r"\b[A-Z][A-Z_]+\b", code)) - {"ARGV"} <= given


@SCRIPTS
def test_the_table_on_top_names_the_keys_that_the_script_uses(name: str) -> None:
    text = (FOLDER / f"{name}.lua").read_text()
    table, code = text.split("\nlocal ", 1)
    explained = set(re.findall(r"\b[A-Z][A-Z_]+\b", table))
    stored = {
        constant
        for constant, value in vars(keys).items()
        if constant.isupper() and isinstance(value, str) and value.startswith(f"{keys.PREFIX}:")
    }
    used = set(re.findall(r"\b[A-Z][A-Z_]+\b", re.sub(r"--[^\n]*|'[^'\n]*'", "", code))) & stored
    indexes_of_profiles = {"PROFILES", "PROFILES_MODEL", "PROFILES_BYTES", "PROFILES_USED"}
    assert used - (indexes_of_profiles if name == "queue" else set()) <= explained


def test_arguments_have_names_and_payloads_stay_as_they_are() -> None:
    assert lua_arguments("submit", {"id": "a", "high": True, "owner": None}, [b"\xff\x00"]) == [
        "submit", '{"id": "a", "high": true}', b"\xff\x00",
    ]  # fmt: skip


def test_an_operation_that_does_not_exist_is_an_error(redis_sync: redis.Redis) -> None:
    script = redis_sync.register_script(lua_source("queue"))
    with pytest.raises(redis.ResponseError):
        script(keys=ROUTE, args=lua_arguments("no_such_step", {}))


def test_every_key_is_explained_once() -> None:
    """The table in the module's docstring names every key that the module defines."""
    table = re.findall(r"^    (\{lacuna\}:\S+)", str(keys.__doc__), re.MULTILINE)
    assert len(set(table)) == len(table)
    described = {re.sub(r"<[^>]+>", "", name).rstrip(":") for name in table}
    defined = {
        value.rstrip(":")
        for name, value in vars(keys).items()
        if name.isupper() and isinstance(value, str) and value.startswith(f"{keys.PREFIX}:")
    }
    assert defined <= {re.sub(r":hi$|:jobs$", "", name).rstrip(":") for name in described}


def test_keys_of_queues_differ() -> None:
    assert keys.ready("cpu", "a/1", high=True) == f"{keys.ready('cpu', 'a/1')}:hi"
    lanes = [("cpu", "a/1"), ("gpu", "a/1"), ("cpu", "a/2")]
    names = {make(queue, needs) for make in (keys.ready, keys.wake) for queue, needs in lanes}  # type: ignore[operator]
    assert len({*names, keys.leased("cpu"), keys.lanes("cpu")}) == 8
