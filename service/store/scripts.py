"""The Lua scripts: every step of the queue that must be atomic, each one round trip.

A script is the names of `keys`, then `scripts/common.lua`, then its own file. It is sent once and
called by digest afterwards; redis-py sends it again to a server that has forgotten it.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Final, Literal

from service.store import keys

ScriptName = Literal[
    "submit", "view", "cancel", "claim", "beat", "finish", "release", "expire", "mend",
    "profile_delete", "profile_evict", "profile_pin", "worker_beat",
]  # fmt: skip

ROUTE: Final = [keys.STATS]
"""The one key that is declared: any key of ours leads a cluster client to the right node."""


@cache
def source(name: ScriptName) -> str:
    """The full text of a script."""
    folder = resources.files("service.store") / "scripts"
    common = (folder / "common.lua").read_text(encoding="utf-8")
    return keys.lua_header() + common + (folder / f"{name}.lua").read_text(encoding="utf-8")
