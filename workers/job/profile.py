"""From a measurement to a stored profile: its identity, its body, its envelope, its summary.

The wire forms of the measurements themselves stand next to them (`workers.influence`), those of
theory's results in `lacuna.views`.
"""

from __future__ import annotations

import hashlib
import platform
from datetime import UTC, datetime
from importlib.metadata import version

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from lacuna import views
from lacuna.architectures import table
from lacuna.contract.base import digest, rounded
from lacuna.contract.models import ModelDescription
from lacuna.contract.profile_requests import COSTLY_PREDICTION, METHOD_VERSION, ProfileRequest
from lacuna.contract.profiles import (
    Environment,
    MonotoneCheck,
    ProfileBody,
    ProfileEnvelope,
    ProfileSummary,
    RequestEcho,
    Timings,
)
from lacuna.contract.recall import RecallEcho, main_recall
from lacuna.evidence.bands import MIN_EFFECTIVE
from workers.documents import DocumentSet
from workers.influence.curves import (
    Curves,
    measured_to_wire,
    prediction_to_wire,
    shape_to_wire,
    zone_to_wire,
)
from workers.influence.mixing import mixing_to_wire
from workers.instrument import Instrumentation, describe_positions
from workers.job.measurement import Measurement, target_ids
from workers.models.loaded import LoadedModel
from workers.recall.wire import recall_to_wire

F64 = NDArray[np.float64]

MONOTONE_TOLERANCE = 1e-3
"""Rounding and the finite number of documents breach monotonicity by less than this."""
FEW_DOCUMENTS = (
    f"fewer than {MIN_EFFECTIVE:g} documents: no band is offered, and zone and shape are undecided"
)


def request_echo(request: ProfileRequest, loaded: LoadedModel, texts: DocumentSet) -> RequestEcho:
    """The request with everything that it left open, as it was resolved."""
    objective = request.resolved_objective
    target = request.target
    return RequestEcho(
        model=request.model,
        revision=loaded.revision,
        weights=request.weights,
        seed=request.seed,
        sequence_length=request.sequence_length,
        objective=objective,
        probes=request.probes if objective == "jacobian" else None,
        positional_encoding=request.positional_encoding,
        content_scale=request.content_scale,
        dtype=_dtype(loaded),
        documents_source=texts.source,
        documents_name=request.documents.name,
        documents_asked=request.documents.count,
        documents_most=request.documents.most if request.documents.count == "auto" else None,
        documents_digest=texts.digest,
        target_digest=None if target is None else hashlib.sha256(target.encode()).hexdigest()[:32],
        leading_bos=texts.leading_bos,
        leading_special_tokens=list(texts.leading),
        trailing_special_tokens=list(texts.trailing),
        target_tokens=None if target is None else len(target_ids(loaded, target)),
        recall=_recall_echo(request),
    )


def _recall_echo(request: ProfileRequest) -> RecallEcho | None:
    asked = request.recall
    if asked is None:
        return None
    return RecallEcho(
        probes=sorted(asked.probes),
        groups_asked=asked.groups,
        depths=asked.depths,
        form=asked.form,
        question=asked.question,
        scoring=asked.scoring,
        passages_digest=asked.passages_digest,
    )


def profile_id(
    echo: RequestEcho,
    loaded: LoadedModel,
    instrumentation: Instrumentation,
    request: ProfileRequest,
) -> str:
    """Digest (32 hex characters) of all that the numbers of a profile depend on."""
    names = None if request.predictions is None else sorted(request.predictions)
    return digest(
        {
            "method": METHOD_VERSION,
            "request": echo.model_dump(mode="json"),
            "predictions": names,
            "config": loaded.config_digest,
            "tokenizer": loaded.tokenizer_digest,
            "attention": _attention_implementation(loaded),
            "capture": instrumentation.capture,
        }
    )


def profile_body(
    id_: str,
    echo: RequestEcho,
    loaded: LoadedModel,
    instrumentation: Instrumentation,
    texts: DocumentSet,
    found: Measurement,
) -> ProfileBody:
    """The part of a profile that equal requests have in common, byte for byte."""
    attention = None if found.attention is None else found.attention.last_token_attention
    result, read = found.sample.influence, found.sample.documents
    curves = Curves(result.norms, read.keys, found.aggregate)
    measured = measured_to_wire(curves, found.sample.sampled, result.standard_error, attention)
    zone, verdict = zone_to_wire(curves)
    return ProfileBody(
        id=id_,
        model=describe_model(loaded, instrumentation),
        request=echo.model_copy(update={"documents_digest": read.digest}),
        measured=measured,
        recall={
            name: recall_to_wire(one.recall, result.norms, one.ending)
            for name, one in found.recall.items()
        }
        or None,
        mixing=None if found.mixing is None else mixing_to_wire(found.mixing),
        predictions={
            name: prediction_to_wire(
                curve, curves, found.second_moment if name == COSTLY_PREDICTION else None
            )
            for name, curve in found.predictions.items()
        },
        forces=[views.force_to_wire(force) for force in found.forces],
        collapse=None if found.collapse is None else views.collapse_to_wire(found.collapse),
        monotone=_monotone_to_wire(found),
        dead_zone=zone,
        dead_zone_verdict=verdict,
        shape=shape_to_wire(curves),
        warnings=[
            *([FEW_DOCUMENTS] if curves.band is None else []),
            *loaded.warnings,
            *texts.warnings,
            *instrumentation.reasons,
            *instrumentation.warnings,
            *found.warnings,
        ],
        method_version=METHOD_VERSION,
    )


def describe_model(loaded: LoadedModel, instrumentation: Instrumentation) -> ModelDescription:
    """What the configuration says, and the positions as the model was seen to use them."""
    model, config = loaded.model, loaded.text_config
    positions = describe_positions(model, instrumentation)
    return ModelDescription(
        id=loaded.id,
        revision=loaded.revision,
        architecture=str(model.config.model_type),
        layers=table.layers(config),
        attention_layers=instrumentation.attention_layers,
        heads=table.heads(config),
        width=loaded.width,
        vocabulary=loaded.vocabulary,
        parameters=loaded.parameters,
        positional_encoding=positions.kind,
        window=positions.window,
        max_length=table.max_length(config),
        attention_implementation=_attention_implementation(loaded),
        block=instrumentation.block,
        support=instrumentation.level,
        support_notes=[*instrumentation.reasons, *instrumentation.warnings],
        tokenizer_digest=loaded.tokenizer_digest,
    )


def _attention_implementation(loaded: LoadedModel) -> str:
    return str(getattr(loaded.text_config, "_attn_implementation", None) or "eager")


def _monotone_to_wire(found: Measurement) -> list[MonotoneCheck] | None:
    if found.monotone is None or found.mixing is None:
        return None
    return [
        MonotoneCheck(layer=layer, violation=rounded(value), monotone=value <= MONOTONE_TOLERANCE)
        for layer, value in zip(found.mixing.layers, found.monotone, strict=True)
    ]


def profile_envelope(
    loaded: LoadedModel, found: Measurement, load_seconds: float
) -> ProfileEnvelope:
    """When, where and how fast the profile was made; no part of its identity."""
    seconds = found.sample.influence.seconds
    device = loaded.device
    return ProfileEnvelope(
        timings=Timings(
            load_seconds=round(load_seconds, 3),
            measure_seconds=round(seconds, 3),
            predict_seconds=round(found.predict_seconds, 3),
            recall_seconds=round(found.recall_seconds, 3),
            tokens_per_second=rounded(found.sample.documents.ids.numel() / max(seconds, 1e-9)),
        ),
        environment=Environment(
            lacuna=version("lacuna-service"),
            torch=torch.__version__,
            transformers=transformers.__version__,
            python=platform.python_version(),
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
            dtype=_dtype(loaded),
            threads=torch.get_num_threads(),
        ),
        created_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
    )


def profile_summary(body: ProfileBody, envelope: ProfileEnvelope) -> ProfileSummary:
    """What a list of profiles shows."""
    measured, shape, recall = body.influence, body.shape, main_recall(body.recall)
    assert shape is not None
    return ProfileSummary(
        id=body.id,
        model=body.model.id,
        revision=body.model.revision,
        weights=body.request.weights,
        sequence_length=body.request.sequence_length,
        objective=body.request.objective,
        documents=measured.documents,
        documents_source=body.request.documents_source,
        documents_name=body.request.documents_name,
        seed=body.request.seed,
        positional_encoding=body.request.positional_encoding,
        content_scale=body.request.content_scale,
        recall=recall is not None,
        recall_verdict=None if recall is None else recall.verdict,
        recall_spread=None if recall is None else recall.spread,
        shape=shape.class_,
        shape_decided=shape.decided,
        dead_zone=body.dead_zone,
        dead_zone_verdict=body.dead_zone_verdict,
        primacy_mass=shape.primacy_mass,
        recency_mass=shape.recency_mass,
        created_at=envelope.created_at,
    )


def _dtype(loaded: LoadedModel) -> str:
    return str(loaded.dtype).removeprefix("torch.")
