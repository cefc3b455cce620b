"""One model measured and predicted: plain arrays, before anything goes on the wire."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel

from service.contract.errors import InvalidRequest
from service.contract.profiles import PREDICTION_NAMES, PredictionName, ProfileRequest
from service.theory import aggregate, rollout
from workers import predict
from workers.documents import DocumentSet
from workers.instrument import Instrumentation
from workers.instrument.positions import positions_off
from workers.measure import gains, influence, needle
from workers.measure.influence import InfluenceResult
from workers.measure.kernels import KernelStatistics, KernelTap, detail_that_fits
from workers.measure.mixing import MixingTap
from workers.measure.needle import NeedleResult
from workers.measure.taps import Tap
from workers.models.loaded import LoadedModel

F64 = NDArray[np.float64]
OnProgress = Callable[[float, str], None]

# Shares of a job's time, for the progress bar.
MEASURED, NEEDLED, PREDICTED = 0.80, 0.90, 0.98


@dataclass
class Measurement:
    """Everything that was found out about one model. Shapes as in the parts' own docstrings."""

    influence: InfluenceResult
    how: aggregate.How
    mixing: MixingTap | None = None
    attention: KernelStatistics | None = None
    needle: NeedleResult | None = None
    predictions: dict[PredictionName, F64] = field(default_factory=dict)
    forces: list[rollout.Force] = field(default_factory=list)
    collapse: rollout.Collapse | None = None
    monotone: list[float] | None = None
    warnings: list[str] = field(default_factory=list)
    predict_seconds: float = 0.0


def measure(
    loaded: LoadedModel,
    instrumentation: Instrumentation,
    documents: DocumentSet,
    request: ProfileRequest,
    *,
    batch_size: int,
    on_progress: OnProgress,
) -> Measurement:
    """Measure influence, mixing and kernels in one pass, then predict.

    Args:
        loaded: the model.
        instrumentation: where to hook it.
        documents: what it reads.
        request: objective, predictions, ablation.
        batch_size: documents at once; 0 chooses.
        on_progress: called with the share done and what is being done; what it raises ends it.

    Raises:
        LacunaError: what the parts raise.
    """
    with ExitStack() as exits:
        if request.positional_encoding == "off":
            exits.enter_context(positions_off(loaded.model, instrumentation))
        found = _pass(loaded, instrumentation, documents, request, batch_size, on_progress)
        if request.needle is not None:
            found.needle = needle.measure(
                loaded,
                documents.ids.shape[1],
                depths=request.needle.depths,
                facts=request.needle.facts,
                seed=request.seed,
                on_batch=_share(on_progress, MEASURED, NEEDLED, "needle"),
            )
        started = time.perf_counter()
        _predict(found, loaded, instrumentation, documents, request, on_progress)
        found.predict_seconds = time.perf_counter() - started
    return found


def _pass(
    loaded: LoadedModel,
    instrumentation: Instrumentation,
    documents: DocumentSet,
    request: ProfileRequest,
    batch_size: int,
    on_progress: OnProgress,
) -> Measurement:
    mixing = MixingTap(loaded.model, instrumentation.sites) if instrumentation.sites else None
    kernels = _kernel_tap(loaded.model, instrumentation, documents.ids.shape[1])
    taps: list[Tap] = [tap for tap in (mixing, kernels) if tap is not None]
    result = influence.measure(
        loaded,
        documents,
        objective=request.resolved_objective,
        probes=request.probes,
        seed=request.seed,
        target_ids=_target_ids(loaded, request),
        batch_size=batch_size,
        taps=taps,
        on_batch=_share(on_progress, 0.05, MEASURED, "documents"),
    )
    return Measurement(
        influence=result,
        how="rms" if request.resolved_objective == "jacobian" else "mean",
        mixing=mixing,
        attention=None if kernels is None else kernels.result(),
    )


def _kernel_tap(
    model: PreTrainedModel, instrumentation: Instrumentation, length: int
) -> KernelTap | None:
    if instrumentation.capture == "none":
        return None
    detail = detail_that_fits(model, instrumentation, length)
    # The head average is all that the profile needs; it costs a fraction of every head's kernel.
    return KernelTap(model, instrumentation, "mean" if detail == "per_head" else detail)


def _target_ids(loaded: LoadedModel, request: ProfileRequest) -> Sequence[int] | None:
    if request.target is None:
        return None
    if loaded.tokenizer is None:
        raise InvalidRequest("`target`: this model comes without a tokenizer", field="target")
    ids = list(loaded.tokenizer(request.target, add_special_tokens=False).input_ids)
    if not ids:
        raise InvalidRequest("`target`: no token is left of this text", field="target")
    return ids


def _predict(
    found: Measurement,
    loaded: LoadedModel,
    instrumentation: Instrumentation,
    documents: DocumentSet,
    request: ProfileRequest,
    on_progress: OnProgress,
) -> None:
    if found.mixing is None:
        return
    evidence = predict.Evidence(
        length=documents.ids.shape[1],
        mixing=found.mixing.per_document.mean(axis=0),
        attention=found.attention,
        content_scale=request.content_scale,
    )
    for name in request.predictions or PREDICTION_NAMES:
        on_progress(NEEDLED, f"predicting {name}")
        try:
            if name == "second_moment":
                found.predictions[name] = _second_moment(
                    loaded, instrumentation, documents, request, on_progress
                )
            else:
                found.predictions[name] = predict.predict(name, evidence)
        except predict.Unavailable as reason:
            found.warnings.append(f"no prediction {name}: {reason}")
    _diagnose(found, evidence)
    on_progress(PREDICTED, "writing the profile")


def _second_moment(
    loaded: LoadedModel,
    instrumentation: Instrumentation,
    documents: DocumentSet,
    request: ProfileRequest,
    on_progress: OnProgress,
) -> F64:
    found = gains.predict(
        loaded.model,
        instrumentation,
        documents.ids,
        seed=request.seed,
        check=lambda: on_progress(NEEDLED, "predicting second_moment"),
    )
    if found.influence is None:
        raise predict.Unavailable(found.reason)
    return found.influence


def _diagnose(found: Measurement, evidence: predict.Evidence) -> None:
    """Forces, depth limit and the theorem's assumption, as far as the evidence goes."""
    try:
        found.forces = predict.forces(evidence)
        found.collapse = predict.collapse(evidence)
    except predict.Unavailable as reason:
        found.warnings.append(f"no forces and no depth diagnostics: {reason}")
    if evidence.attention is not None and evidence.attention.detail != "distance":
        found.monotone = [
            rollout.monotone_violation(predict.stochastic(layer.mean_kernel()))
            for layer in evidence.attention.layers
        ]


def _share(
    on_progress: OnProgress, low: float, high: float, what: str
) -> Callable[[int, int], None]:
    def on_batch(done: int, of: int) -> None:
        on_progress(low + (high - low) * done / max(of, 1), f"{what} {done}/{of}")

    return on_batch
