"""What a job needs of the worker that runs it: its kind, its version, the fields of its request.

Gateways and workers may be of different versions. A gateway writes down what a job needs; a worker
takes only what it knows. Otherwise an older worker would answer by an older method, under the id of
a newer one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, get_args

from lacuna.contract import experiment_requests, profile_requests
from lacuna.contract.experiment_requests import (
    ExperimentChunk,
    ExperimentQuestion,
    ExperimentRequest,
)
from lacuna.contract.jobs import JobKind
from lacuna.contract.profile_requests import Documents, ProfileRequest, RecallRequest

KINDS: Final[tuple[JobKind, ...]] = get_args(JobKind)


def needs(kind: JobKind) -> str:
    """What jobs of a kind need that this version's gateway makes, and what its workers know.

    Returns:
        `kind/version/id`. The id is that of a sample request with all its parts. It differs where
        another version would name the same request otherwise: by the method's version, a field or
        a default.
    """
    version, sample = _SAMPLES[kind]()
    return f"{kind}/{version}/{sample[:8]}"


def known() -> tuple[str, ...]:
    """What this version's workers know, all kinds."""
    return tuple(map(needs, KINDS))


def described(needed: str) -> str:
    """In words, e.g. "method version 4" or "experiments of version 1"."""
    kind, _, rest = needed.partition("/")
    version = rest.partition("/")[0]
    return f"method version {version}" if kind == "profile" else f"{kind}s of version {version}"


def _profile() -> tuple[str, str]:
    sample = ProfileRequest(model="demo:a", documents=Documents(), recall=RecallRequest())
    return profile_requests.METHOD_VERSION, sample.job_id


def _experiment() -> tuple[str, str]:
    chunks = [ExperimentChunk(id=name, text=name, score=0.5) for name in ("a", "b")]
    question = ExperimentQuestion(question="a", answers=["a"], chunks=chunks)
    sample = ExperimentRequest(model="demo:a", questions=[question])
    return experiment_requests.EXPERIMENT_METHOD_VERSION, sample.job_id


_SAMPLES: Mapping[JobKind, Callable[[], tuple[str, str]]] = {
    "profile": _profile,
    "experiment": _experiment,
}
