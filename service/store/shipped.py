"""The one profile that comes with Lacuna, so that chunks can be placed before anything is measured.

It can be read by its id like a stored one. No list has it, and nobody can delete it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from lacuna.contract.profiles import ProfileBody, ProfileEnvelope
from service.store.profiles import StoredProfile

FILE = Path(__file__).parents[1] / "web" / "example.json"


def find(profile_id: str) -> StoredProfile | None:
    """The shipped profile if this is its id, else None."""
    shipped_id, shipped = _read()
    return shipped if profile_id == shipped_id else None


@cache
def _read() -> tuple[str, StoredProfile]:
    document = FILE.read_bytes()
    body = ProfileBody.of_stored(document)
    envelope = ProfileEnvelope.of_stored(document)
    # Nothing lists it, so it needs no summary.
    kept = StoredProfile(
        body.model_dump_json().encode(), envelope.model_dump_json().encode(), b"{}"
    )
    return body.id, kept
