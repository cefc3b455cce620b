"""Runs one experiment with a model by its weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from lacuna.architectures import table
from lacuna.contract.errors import LacunaError, TooLarge
from lacuna.contract.experiment_requests import ExperimentRequest, experiment_cost
from service.settings import Settings
from service.store.claims import ExperimentOutcome
from service.store.profiles import StoredProfile
from workers.experiments.stored import curve_of, outcome
from workers.experiments.weights import run_weights
from workers.lease import JobCancelled, JobContext
from workers.models.loaded import LoadedModel


def run(
    request: ExperimentRequest,
    loaded: LoadedModel,
    context: JobContext,
    settings: Settings,
    find_profile: Callable[[str], StoredProfile | None],
) -> ExperimentOutcome:
    """What an experiment leaves behind.

    What was read is kept in the data folder until the job ends, numbers alone: a worker that is
    killed or gives the job back has not read in vain.

    Raises:
        LacunaError: why it cannot be run.
    """
    check_cost(request, loaded, settings)
    folder = settings.data_dir / "experiments"
    try:
        found = run_weights(
            request,
            loaded,
            context,
            curve=curve_of(request, find_profile),
            folder=_made(folder),
            batch_size=settings.batch_size,
        )
    except (JobCancelled, LacunaError):
        # It has ended for good, and nobody will come back for it.
        with contextlib.suppress(OSError):
            (folder / f"{request.job_id}.jsonl").unlink(missing_ok=True)
        raise
    return outcome(found, context.claim.job_id)


def _made(folder: Path) -> Path | None:
    """The folder, or None where it cannot be made: then a killed job starts over."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return None
    return folder


def check_cost(request: ExperimentRequest, loaded: LoadedModel, settings: Settings) -> None:
    """Check the cost again, now with the model's own size; the gateway may have assumed one.

    Raises:
        TooLarge: names the limit.
    """
    depth, width = table.layers(loaded.text_config), loaded.width
    asked = experiment_cost(request, depth, width)
    gpu = loaded.device.type == "cuda"
    limit = settings.max_cost_gpu if gpu else settings.max_cost
    if asked > limit:
        raise TooLarge(
            f"`questions`: {loaded.id} has {depth} layers of width {width}, so that this costs "
            f"about {asked:.2g} multiply-adds, above the limit of {limit:.2g} "
            f"({'LACUNA_MAX_COST_GPU' if gpu else 'LACUNA_MAX_COST'}); ask fewer questions or "
            "compare fewer orders",
            field="questions",
        )
