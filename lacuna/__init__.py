"""Lacuna: where in a prompt a language model listens, and where to put each chunk.

    from lacuna import Chunk, Client

    with Client("http://127.0.0.1:8080") as client:
        profile = client.profile("demo:smollm2-135m-instruct", on_progress=print)
        chunks = [
            Chunk(id="a", tokens=120, relevance=0.9),
            Chunk(id="b", tokens=80, relevance=0.4),
        ]
        print(client.place(chunks, profile_id=profile.id).order)

`AsyncClient` has the same methods as coroutines; `OfflinePlacer` places without a service;
`lacuna.langchain`, `lacuna.llama_index` and `lacuna.haystack` are drop-in reorderers. Answers are
the models of `lacuna.contract`; profiles, placements, comparisons and experiments show
themselves in notebooks, and have `plot()` and `to_pandas()`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lacuna.client.answers import Comparison, ExperimentResult, PlacementResponse, Profile
    from lacuna.client.cached import CachedPlacer
    from lacuna.client.clients import AsyncClient, Client
    from lacuna.client.errors import (
        JobFailed,
        LacunaError,
        Refused,
        ServiceAway,
        UnexpectedAnswer,
        WaitedTooLong,
    )
    from lacuna.client.offline import OfflinePlacer
    from lacuna.client.reorder import Reorderer
    from lacuna.contract.calibrations import Calibration
    from lacuna.contract.experiment_requests import ExperimentEstimate
    from lacuna.contract.jobs import Job
    from lacuna.contract.placements import Chunk
    from lacuna.contract.profiles import DeadZone, ProfileSummary
    from lacuna.contract.rollouts import RolloutResponse

__all__ = [
    "AsyncClient",
    "CachedPlacer",
    "Calibration",
    "Chunk",
    "Client",
    "Comparison",
    "DeadZone",
    "ExperimentEstimate",
    "ExperimentResult",
    "Job",
    "JobFailed",
    "LacunaError",
    "OfflinePlacer",
    "PlacementResponse",
    "Profile",
    "ProfileSummary",
    "Refused",
    "Reorderer",
    "RolloutResponse",
    "ServiceAway",
    "UnexpectedAnswer",
    "WaitedTooLong",
]

_MODULES = {
    "AsyncClient": "client.clients",
    "CachedPlacer": "client.cached",
    "Calibration": "contract.calibrations",
    "Chunk": "contract.placements",
    "Client": "client.clients",
    "Comparison": "client.answers",
    "DeadZone": "contract.profiles",
    "ExperimentEstimate": "contract.experiment_requests",
    "ExperimentResult": "client.answers",
    "Job": "contract.jobs",
    "JobFailed": "client.errors",
    "LacunaError": "client.errors",
    "OfflinePlacer": "client.offline",
    "PlacementResponse": "client.answers",
    "Profile": "client.answers",
    "ProfileSummary": "contract.profiles",
    "Refused": "client.errors",
    "Reorderer": "client.reorder",
    "RolloutResponse": "contract.rollouts",
    "ServiceAway": "client.errors",
    "UnexpectedAnswer": "client.errors",
    "WaitedTooLong": "client.errors",
}
"""Where each name is. It is imported at its first use: httpx and scipy take longer than the rest,
and most programs need one of the two."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
