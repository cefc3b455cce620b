"""Every script compiles, is named once, and spells no key by itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
import redis

from service.store import connection, keys
from service.store.connection import ScriptName, source

FOLDER = Path(connection.__file__).parent / "scripts"
NAMES = get_args(ScriptName)


def test_files_and_names_agree() -> None:
    assert {path.stem for path in FOLDER.glob("*.lua")} == {*NAMES, "common"}


@pytest.mark.parametrize("name", NAMES)
def test_the_server_compiles_it(name: ScriptName, redis_sync: redis.Redis) -> None:
    assert len(redis_sync.script_load(source(name))) == 40


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.lua")), ids=lambda path: path.stem)
def test_no_key_is_spelt_in_a_script(path: Path) -> None:
    assert not re.search(
        r"""['"][^'"]*(\{lacuna\}|:job:|:ready|:leased|:profile)""", path.read_text()
    )


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


def test_names_of_queues_are_told_apart() -> None:
    assert keys.ready("cpu", high=True) == f"{keys.ready('cpu')}:hi"
    assert len({keys.ready("cpu"), keys.ready("gpu"), keys.leased("cpu"), keys.wake("cpu")}) == 4
