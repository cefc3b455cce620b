"""Lacuna: where in a prompt a language model listens, and where to put each chunk.

    from lacuna import Chunk, Client

    with Client("http://127.0.0.1:8080") as client:
        profile = client.profile("demo:smollm2-135m-instruct", on_progress=print)
        placed = client.place(
            [Chunk("a", 120, 0.9), Chunk("b", 80, 0.4)], profile_id=profile.id
        )
        print(placed.order)

`AsyncClient` has the same methods as coroutines; `lacuna.client.offline` places without a service;
`lacuna.langchain`, `lacuna.llama_index` and `lacuna.haystack` are drop-in reorderers.
"""

from lacuna.client.clients import AsyncClient, Client
from lacuna.client.errors import JobFailed, LacunaError, Refused, ServiceAway, WaitedTooLong
from lacuna.client.reorder import Reorderer
from lacuna.client.types import (
    Chunk,
    Comparison,
    DeadZone,
    Job,
    Placed,
    Placement,
    Profile,
    ProfileSummary,
    Rollout,
)

__all__ = [
    "AsyncClient",
    "Chunk",
    "Client",
    "Comparison",
    "DeadZone",
    "Job",
    "JobFailed",
    "LacunaError",
    "Placed",
    "Placement",
    "Profile",
    "ProfileSummary",
    "Refused",
    "Reorderer",
    "Rollout",
    "ServiceAway",
    "WaitedTooLong",
]
