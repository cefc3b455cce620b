"""Measures one model and predicts its curves: plain arrays, before anything goes on the wire.

`measure` reads documents until the curve is known well enough, and takes influence, mixing and
attention in the same passes; then it measures recall and computes the predictions. A prediction
that fails becomes a warning; a measurement that fails ends the job.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lacuna.contract.errors import InvalidRequest, OutOfMemory
from lacuna.contract.profile_requests import (
    COSTLY_PREDICTION,
    DEFAULT_PREDICTIONS,
    PredictionName,
    ProfileRequest,
)
from lacuna.contract.profiles import DocumentSampling, SamplingEnd
from lacuna.evidence.sampling import DOCUMENTS, Sampling
from lacuna.theory import rollout
from workers import faults
from workers.attention.kernels import KernelRecorder, finest_detail
from workers.attention.statistics import KernelStatistics
from workers.documents import DocumentSet
from workers.documents.tokens import encode_continuation
from workers.influence import influence
from workers.influence.batching import Recorder
from workers.influence.curves import sampling_to_wire, tenths_half_width
from workers.influence.influence import InfluenceResult
from workers.influence.mixing import MixingRecorder
from workers.instrument import Instrumentation
from workers.instrument.positions import positions_off
from workers.job import predictions, recall
from workers.lease import Interruption
from workers.models.loaded import LoadedModel
from workers.recall.sampled import Probed
from workers.second_moment import moments

F64 = NDArray[np.float64]
log = logging.getLogger(__name__)
OnProgress = Callable[[float, str], None]
MeasureDocuments = Callable[[int, int], InfluenceResult]
"""Measures the documents `start` to `stop` - 1."""

# Where the phases end on the progress bar. What comes after the measurement and is not asked for
# takes next to nothing.
READ, MEASURED, PREDICTED = 0.05, 0.95, 0.98
MEASURED_WITH_RECALL, RECALLED = 0.20, 0.80
MEASURED_WITH_SECOND_MOMENT = 0.60


@dataclass(frozen=True)
class ProfileTask:
    """One profile to make: the model, what it reads, and what was asked.

    Attributes:
        loaded: the model.
        instrumentation: where to hook it.
        documents: what it reads.
        request: objective, predictions, ablation.
        on_progress: called with the share done and a message; what it raises ends the measurement.
        check: called several times a second, also within a pass; what it raises ends it too.
    """

    loaded: LoadedModel
    instrumentation: Instrumentation
    documents: DocumentSet
    request: ProfileRequest
    on_progress: OnProgress
    check: Callable[[], None]

    @property
    def length(self) -> int:
        """n, tokens per document."""
        return int(self.documents.ids.shape[1])

    @property
    def measured_share(self) -> float:
        """Share of the job after influence: recall takes several times as long."""
        if self.request.recall is not None:
            return MEASURED_WITH_RECALL
        costly = COSTLY_PREDICTION in (self.request.predictions or ())
        return MEASURED_WITH_SECOND_MOMENT if costly else MEASURED

    @property
    def recalled_share(self) -> float:
        """Share of the job before the predictions."""
        return self.measured_share if self.request.recall is None else RECALLED

    def progress_between(self, low: float, high: float, what: str) -> Callable[[int, int], None]:
        """A callback that reports (done, of) as progress from `low` to `high`."""

        def report(done: int, of: int) -> None:
            self.on_progress(low + (high - low) * done / max(of, 1), f"{what} {done}/{of}")

        return report


@dataclass(frozen=True)
class Sample:
    """The documents that were read.

    Attributes:
        influence: gradient norms of each.
        documents: their tokens.
        sampled: why reading stopped.
    """

    influence: InfluenceResult
    documents: DocumentSet
    sampled: DocumentSampling


@dataclass
class Measurement:
    """Everything that was found out about one model.

    Attributes:
        sample: the documents that were read, and their gradient norms.
        aggregate: how the papers combine documents into one curve.
        mixing: lambda; None where it is undefined.
        attention: what was seen of the kernels; None where they could not be watched.
        recall: by probe; empty when it was not asked for.
        predictions: by name, [n], each sums to 1.
        second_moment: rows of the documents that it read, and its curve of each, [K', n]; None
            without it.
        forces: mask, residual, positions and content, switched on in turn.
        collapse: the depth limit; None when no kernel is known.
        monotone: by attention layer, the largest violation of monotonicity; None when the kernels
            were not kept.
        warnings: what to know when reading the result.
        predict_seconds: wall time of the predictions.
        recall_seconds: wall time of recall.
    """

    sample: Sample
    aggregate: Literal["mean", "rms"]
    mixing: MixingRecorder | None = None
    attention: KernelStatistics | None = None
    recall: dict[str, Probed] = field(default_factory=dict)
    predictions: dict[PredictionName, F64] = field(default_factory=dict)
    second_moment: tuple[NDArray[np.intp], F64] | None = None
    forces: list[rollout.Force] = field(default_factory=list)
    collapse: rollout.Collapse | None = None
    monotone: list[float] | None = None
    warnings: list[str] = field(default_factory=list)
    predict_seconds: float = 0.0
    recall_seconds: float = 0.0


def measure(task: ProfileTask, *, batch_size: int) -> Measurement:
    """Measure influence, mixing and kernels in one pass, then recall, then predict.

    Args:
        task: what to measure.
        batch_size: documents at once; 0 chooses.

    Raises:
        LacunaError: what the parts raise.
    """
    request = task.request
    with ExitStack() as exits:
        if request.positional_encoding == "off":
            exits.enter_context(positions_off(task.loaded.model, task.instrumentation))
        planned = recall.plan(task.loaded, request)  # refuses what it can before measuring
        found = _measure_influence(task, batch_size)
        if planned is not None:
            started = time.perf_counter()
            low = task.measured_share
            found.recall = recall.run(
                planned,
                on_share=lambda share, what: task.on_progress(low + (RECALLED - low) * share, what),
                check=task.check,
            )
            found.recall_seconds = time.perf_counter() - started
        started = time.perf_counter()
        _predict(found, task)
        found.predict_seconds = time.perf_counter() - started
    return found


def _measure_influence(task: ProfileTask, batch_size: int) -> Measurement:
    """Influence, with mixing and kernels recorded in the same passes where they can be."""
    request = task.request
    mixing, kernels = _recorders(task)
    recorders: list[Recorder] = [one for one in (mixing, kernels) if one is not None]
    target = request.target
    wanted = None if target is None else target_ids(task.loaded, target)
    most = len(task.documents.ids)

    def read(start: int, stop: int) -> InfluenceResult:
        nonlocal batch_size
        low, high = (READ + (task.measured_share - READ) * at / most for at in (start, stop))
        found = influence.measure(
            task.loaded,
            task.documents.part(start, stop),
            objective=request.resolved_objective,
            probes=request.probes,
            seed=request.seed,
            target_ids=wanted,
            batch_size=batch_size,
            recorders=recorders,
            first_index=start,
            on_batch=task.progress_between(low, high, f"documents {start + 1} to {stop}:"),
            check=task.check,
        )
        # A part that starts over with a smaller size would make recorders forget earlier parts.
        batch_size = found.batch_size
        return found

    auto = request.documents.count == "auto"
    sample = read_documents(task.documents, read, most=request.documents.most if auto else None)
    return Measurement(
        sample=sample,
        aggregate="rms" if request.resolved_objective == "jacobian" else "mean",
        mixing=mixing,
        attention=None if kernels is None else kernels.result(),
    )


def _recorders(task: ProfileTask) -> tuple[MixingRecorder | None, KernelRecorder | None]:
    """Of mixing and of the kernels, where the model lets them be seen."""
    model, instrumentation = task.loaded.model, task.instrumentation
    mixing, kernels = None, None
    if instrumentation.branches:
        mixing = MixingRecorder(model, instrumentation.branches)
    if instrumentation.capture != "none":
        detail = finest_detail(instrumentation, task.length)
        kernels = KernelRecorder(model, instrumentation, detail, check=task.check)
    return mixing, kernels


def read_documents(offered: DocumentSet, measure: MeasureDocuments, *, most: int | None) -> Sample:
    """Measure documents from the first on.

    Args:
        offered: all documents, in an order in which the first ones represent all.
        measure: measures some of them.
        most: stop when the rule of `lacuna.evidence.sampling` says so, and at this number; None
            reads all.
    """
    there = len(offered.ids)
    if most is None:
        result = measure(0, there)
        return Sample(result, offered, sampling_to_wire("fixed", result.norms))
    state = Sampling(replace(DOCUMENTS, start=min(DOCUMENTS.start, most), budget=most))
    stop = min(state.rule.start, there)
    result = measure(0, stop)
    while True:
        exhausted = stop == there < most
        look = state.look(stop, tenths_half_width(result.norms), exhausted=exhausted)
        if look.stop:
            break
        start, stop = stop, min(stop + look.add, there)
        result = result.followed_by(measure(start, stop))
    end: SamplingEnd = "narrow" if look.reason == "narrow" else "budget"
    if end == "budget" and exhausted:
        end = "exhausted"
    return Sample(result, offered.part(0, stop), sampling_to_wire(end, result.norms))


def target_ids(loaded: LoadedModel, target: str) -> list[int]:
    """Tokens of the request's `target`, as the continuation of a document.

    Raises:
        InvalidRequest: the model has no tokenizer, or the text has no token.
    """
    if loaded.tokenizer is None:
        raise InvalidRequest("`target`: this model comes without a tokenizer", field="target")
    ids = encode_continuation(loaded.tokenizer, target)
    if not ids:
        raise InvalidRequest("`target`: no token is left of this text", field="target")
    return ids


def _predict(found: Measurement, task: ProfileTask) -> None:
    """Add the requested predictions, the forces and the depth limit; none without mixing."""
    if found.mixing is None:
        return
    inputs = predictions.PredictionInputs(
        length=task.length,
        mixing=found.mixing.per_document.mean(axis=0),
        attention=found.attention,
        content_scale=task.request.content_scale,
    )

    def predict(name: PredictionName) -> None:
        if name == COSTLY_PREDICTION:
            _second_moment(found, task)
        else:
            found.predictions[name] = predictions.predict(name, inputs)

    requested = task.request.predictions
    for name in DEFAULT_PREDICTIONS if requested is None else requested:
        task.on_progress(task.recalled_share, f"predicting {name}")
        _attempt(found, f"no prediction {name}", partial(predict, name))
    _attempt(found, "no forces and no depth diagnostics", lambda: _diagnose(found, inputs))
    task.on_progress(PREDICTED, "writing the profile")


def _attempt(found: Measurement, without: str, step: Callable[[], None]) -> None:
    """Run a step whose failure becomes a warning: the measurement took minutes and is complete.

    Only what ends the job or the process passes through.
    """
    try:
        step()
        return
    except Interruption:
        raise
    except predictions.Unavailable as reason:
        found.warnings.append(f"{without}: {reason}")
        return
    except Exception as error:  # a model's own code may fail in any way
        fault = faults.classify(error)
        if isinstance(fault, faults.Fatal):
            raise
        log.warning("a prediction fails", exc_info=error, extra={"without": without})
        why = f"{type(error).__name__}; the worker's log says more"
        if fault.code == OutOfMemory.code:
            why = "memory ran out; a shorter `sequence_length` needs less"
        found.warnings.append(f"{without}: {why}")
    faults.clean_up()  # only here, where the traceback that held tensors is gone


def _second_moment(found: Measurement, task: ProfileTask) -> None:
    ids = found.sample.documents.ids
    predicted = moments.predict(
        task.loaded.model,
        task.instrumentation,
        ids,
        seed=task.request.seed,
        check=task.check,
        on_document=task.progress_between(
            task.recalled_share, PREDICTED, "second moment of document"
        ),
    )
    if predicted.influence is None or predicted.per_document is None or predicted.rows is None:
        raise predictions.Unavailable(predicted.reason)
    found.predictions[COSTLY_PREDICTION] = predicted.influence
    found.second_moment = predicted.rows, predicted.per_document


def _diagnose(found: Measurement, inputs: predictions.PredictionInputs) -> None:
    """Forces, depth limit and the theorem's assumption, as far as the kernels are known."""
    if inputs.attention is not None and inputs.attention.detail != "distance":
        found.monotone = [
            rollout.monotone_violation(layer.stochastic_kernel())
            for layer in inputs.attention.layers
        ]
    found.forces = predictions.forces(inputs)
    found.collapse = predictions.collapse(inputs)
