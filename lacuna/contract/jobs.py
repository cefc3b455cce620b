"""Jobs: the life of an accepted request."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lacuna.contract.base import Digest, Fraction, Wire

JobState = Literal["queued", "running", "done", "failed", "cancelled"]
JobKind = Literal["profile", "experiment"]
TERMINAL: frozenset[JobState] = frozenset({"done", "failed", "cancelled"})


class Failure(Wire):
    """Why a job failed."""

    code: str
    """A code of the error tree (`lacuna.contract.errors`)."""
    detail: str
    """One sentence."""
    retryable: bool
    """Whether the same request may succeed later."""
    field: str | None = None
    """Dotted path of the request field at fault, if there is one."""


class Job(Wire):
    """One job as its owner sees it. Times are ISO 8601 in UTC."""

    id: Digest
    kind: JobKind = "profile"
    """What it makes."""
    state: JobState
    attempt: int = Field(ge=0)
    """How often a worker has taken it."""
    progress: Fraction
    message: str
    position: int | None
    """Jobs ahead in the queue; null unless queued."""
    eta_seconds: float | None
    failure: Failure | None
    profile: str | None
    """Address of the result of a profile's job once done."""
    experiment: str | None = None
    """Address of the result of an experiment once done; it goes when the job's record does."""
    created_at: str
    started_at: str | None
    finished_at: str | None

    @property
    def finished(self) -> bool:
        """Whether the state is final: done, failed or cancelled."""
        return self.state in TERMINAL

    @property
    def profile_id(self) -> str | None:
        """Id of the profile once done."""
        return None if self.profile is None else self.profile.rpartition("/")[2]

    @property
    def experiment_id(self) -> str | None:
        """Id of the experiment once done."""
        return None if self.experiment is None else self.experiment.rpartition("/")[2]
