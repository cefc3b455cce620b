"""One model measured and predicted: plain arrays, before anything goes on the wire."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from lacuna.contract.errors import InvalidRequest, OutOfMemory
from lacuna.contract.profile_requests import PREDICTION_NAMES, PredictionName, ProfileRequest
from lacuna.evidence import aggregates
from lacuna.theory import rollout
from workers import faults
from workers.attention.kernels import KernelTap, detail_that_fits
from workers.attention.statistics import KernelStatistics
from workers.documents import DocumentSet
from workers.influence import influence
from workers.influence.influence import InfluenceResult
from workers.influence.mixing import MixingTap, Tap
from workers.instrument import Instrumentation
from workers.instrument.positions import positions_off
from workers.job import predictions
from workers.lease import Interruption
from workers.models.loaded import LoadedModel
from workers.recall import needle
from workers.recall.needle import NeedleResult, Plan, plan
from workers.second_moment import moments

F64 = NDArray[np.float64]
log = logging.getLogger(__name__)
OnProgress = Callable[[float, str], None]

# Where the phases end, for the progress bar: the second moment takes as long as all the rest.
READ, MEASURED, NEEDLED, PREDICTED = 0.05, 0.50, 0.58, 0.98


@dataclass(frozen=True)
class Subject:
    """What is measured, on what, and what was asked.

    Attributes:
        loaded: the model.
        instrumentation: where to hook it.
        documents: what it reads.
        request: objective, predictions, ablation.
        on_progress: called with the share done and what is being done; what it raises ends it.
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

    def share(self, low: float, high: float, what: str) -> Callable[[int, int], None]:
        """What tells (done, of) as progress between two shares of the whole."""

        def tell(done: int, of: int) -> None:
            self.on_progress(low + (high - low) * done / max(of, 1), f"{what} {done}/{of}")

        return tell


@dataclass
class Measurement:
    """Everything that was found out about one model. Shapes as in the parts' own docstrings."""

    influence: InfluenceResult
    how: aggregates.Aggregate
    mixing: MixingTap | None = None
    attention: KernelStatistics | None = None
    needle: NeedleResult | None = None
    predictions: dict[PredictionName, F64] = field(default_factory=dict)
    forces: list[rollout.Force] = field(default_factory=list)
    collapse: rollout.Collapse | None = None
    monotone: list[float] | None = None
    warnings: list[str] = field(default_factory=list)
    predict_seconds: float = 0.0


def measure(subject: Subject, *, batch_size: int) -> Measurement:
    """Measure influence, mixing and kernels in one pass, then predictions.

    Args:
        subject: what to measure.
        batch_size: documents at once; 0 chooses.

    Raises:
        LacunaError: what the parts raise.
    """
    request = subject.request
    with ExitStack() as exits:
        if request.positional_encoding == "off":
            exits.enter_context(positions_off(subject.loaded.model, subject.instrumentation))
        planned = _needle_plan(subject)  # what may be refused is, before anything is measured
        found = _pass(subject, batch_size)
        if planned is not None:
            found.needle = needle.run(
                subject.loaded,
                planned,
                on_batch=subject.share(MEASURED, NEEDLED, "needle prompt"),
                check=subject.check,
            )
        started = time.perf_counter()
        _predict(found, subject)
        found.predict_seconds = time.perf_counter() - started
    return found


def _needle_plan(subject: Subject) -> Plan | None:
    asked, seed = subject.request.needle, subject.request.seed
    if asked is None:
        return None
    return plan(subject.loaded, subject.length, depths=asked.depths, facts=asked.facts, seed=seed)


def _pass(subject: Subject, batch_size: int) -> Measurement:
    model, sites = subject.loaded.model, subject.instrumentation.sites
    mixing = MixingTap(model, sites) if sites else None
    kernels = _kernel_tap(subject)
    taps: list[Tap] = [tap for tap in (mixing, kernels) if tap is not None]
    request = subject.request
    result = influence.measure(
        subject.loaded,
        subject.documents,
        objective=request.resolved_objective,
        probes=request.probes,
        seed=request.seed,
        target_ids=_target_ids(subject.loaded, request),
        batch_size=batch_size,
        taps=taps,
        on_batch=subject.share(READ, MEASURED, "document"),
        check=subject.check,
    )
    return Measurement(
        influence=result,
        how="rms" if request.resolved_objective == "jacobian" else "mean",
        mixing=mixing,
        attention=None if kernels is None else kernels.result(),
    )


def _kernel_tap(subject: Subject) -> KernelTap | None:
    model, instrumentation = subject.loaded.model, subject.instrumentation
    if instrumentation.capture == "none":
        return None
    detail = detail_that_fits(model, instrumentation, subject.length)
    # The head average is all that the profile needs; it costs a fraction of every head's kernel.
    kept = "mean" if detail == "per_head" else detail
    return KernelTap(model, instrumentation, kept, check=subject.check)


def _target_ids(loaded: LoadedModel, request: ProfileRequest) -> Sequence[int] | None:
    if request.target is None:
        return None
    if loaded.tokenizer is None:
        raise InvalidRequest("`target`: this model comes without a tokenizer", field="target")
    ids = list(loaded.tokenizer(request.target, add_special_tokens=False).input_ids)
    if not ids:
        raise InvalidRequest("`target`: no token is left of this text", field="target")
    return ids


def _predict(found: Measurement, subject: Subject) -> None:
    if found.mixing is None:
        return
    request = subject.request
    evidence = predictions.Evidence(
        length=subject.length,
        mixing=found.mixing.per_document.mean(axis=0),
        attention=found.attention,
        content_scale=request.content_scale,
    )
    names = PREDICTION_NAMES if request.predictions is None else request.predictions
    for name in names:
        subject.on_progress(NEEDLED, f"predicting {name}")
        make = _second_moment if name == "second_moment" else partial(_by_theory, name, evidence)
        _attempt(found, f"no prediction {name}", partial(make, found, subject))
    _attempt(found, "no forces and no depth diagnostics", lambda: _diagnose(found, evidence))
    subject.on_progress(PREDICTED, "writing the profile")


def _attempt(found: Measurement, without: str, step: Callable[[], None]) -> None:
    """A step whose failure becomes a warning: what was measured took minutes and is complete.

    Only what ends the job or the process goes through.
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
    faults.clean_up()  # here, where no traceback holds tensors any more


def _by_theory(
    name: PredictionName, evidence: predictions.Evidence, found: Measurement, _subject: Subject
) -> None:
    found.predictions[name] = predictions.predict(name, evidence)


def _second_moment(found: Measurement, subject: Subject) -> None:
    ids = subject.documents.ids
    predicted = moments.predict(
        subject.loaded.model,
        subject.instrumentation,
        ids,
        seed=subject.request.seed,
        check=subject.check,
        on_document=subject.share(NEEDLED, PREDICTED, "second moment of document"),
    )
    if predicted.influence is None or predicted.per_document is None:
        raise predictions.Unavailable(predicted.reason)
    found.predictions["second_moment"] = predicted.influence
    used = len(predicted.per_document)
    if used < len(ids):
        found.warnings.append(f"second_moment: {used} of {len(ids)} documents, evenly spaced")


def _diagnose(found: Measurement, evidence: predictions.Evidence) -> None:
    """Forces, depth limit and the theorem's assumption, as far as the evidence goes."""
    if evidence.attention is not None and evidence.attention.detail != "distance":
        found.monotone = [
            rollout.monotone_violation(predictions.stochastic(layer.mean_kernel()))
            for layer in evidence.attention.layers
        ]
    found.forces = predictions.forces(evidence)
    found.collapse = predictions.collapse(evidence)
