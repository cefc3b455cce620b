"""An experiment with a model by its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lacuna.architectures.table import max_length
from lacuna.contract.experiment_requests import ExperimentRequest
from lacuna.contract.experiments import ExperimentUsage
from lacuna.placement.curve import PlacementCurve
from workers.endpoints.ledger import FileLedger
from workers.experiments.run import About, Context, Finding, run
from workers.models.loaded import LoadedModel
from workers.recall.weights_reader import WeightsReader

AGAIN = 16
"""Prompts that are read twice: a model gives the same numbers to the same prompt."""


def run_weights(
    request: ExperimentRequest,
    loaded: LoadedModel,
    context: Context,
    *,
    curve: PlacementCurve | None = None,
    folder: Path | None = None,
    batch_size: int = 0,
) -> Finding:
    """Run an experiment with a loaded model.

    Args:
        request: passed by `lacuna.experiments.orders.check`.
        loaded: the model that the request names.
        context: of the job.
        curve: of the request's `profile_id`, if it has one.
        folder: where what was read is kept until the end, so that a job that was killed goes on;
            numbers alone. None: a killed job starts over.
        batch_size: prompts at once; 0 chooses.

    Raises:
        InvalidRequest, TooLong, DocumentsUnusable: about the request; name the field.
        BudgetSpent: more prompts than `budget.max_calls`.
        NotFinite, OutOfMemory: of the model.
    """
    text = request.scoring not in ("auto", "log_probability")
    reader = WeightsReader(
        loaded,
        rung="text" if text else "answer",
        chat=request.template.form != "plain",
        batch_size=batch_size,
        field="questions",
    )
    about = About(
        revision=loaded.revision,
        longest=max_length(loaded.text_config),
        free_counts=True,
        again=AGAIN,
    )

    def spending(prompts: int) -> ExperimentUsage:
        usage = reader.usage
        return ExperimentUsage(
            prompts=prompts,
            calls=usage.calls,
            replayed=0,
            prompt_tokens=usage.prompt_tokens,
            generated_tokens=None,
            cost=None,
        )

    with _kept(folder, request.job_id) as kept:
        return run(request, reader, context, about, spending, curve=curve, kept=kept)


@contextmanager
def _kept(folder: Path | None, job: str) -> Iterator[FileLedger | None]:
    """The job's file, which goes once the job has ended well; None where another worker has it."""
    if folder is None:
        yield None
        return
    path = folder / f"{job}.jsonl"
    try:
        ledger = FileLedger(path)
    except OSError:  # another worker's, or no room: nothing is kept then
        yield None
        return
    try:
        yield ledger
        path.unlink(missing_ok=True)
    finally:
        ledger.close()
