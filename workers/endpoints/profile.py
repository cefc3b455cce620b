"""From the recall of a served model to a profile: body, envelope, summary. It has no influence."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib.metadata import version

from lacuna.contract.base import rounded
from lacuna.contract.endpoints import EndpointAbilities, ServedModel, Spending
from lacuna.contract.models import ModelDescription
from lacuna.contract.profile_requests import METHOD_VERSION
from lacuna.contract.profiles import (
    Environment,
    Profile,
    ProfileBody,
    ProfileEnvelope,
    ProfileSummary,
    RequestEcho,
    Timings,
)
from lacuna.contract.recall import RecallEcho, main_recall
from workers.endpoints.ladder import RUNGS
from workers.endpoints.measurement import Measured, Planned
from workers.endpoints.reader import EndpointReader
from workers.recall.wire import recall_to_wire

_UNKNOWN = "unknown"
NO_INFLUENCE = "a model behind an endpoint gives no gradients: recall alone was measured"


def profile_body(planned: Planned, found: Measured) -> ProfileBody:
    """The part of a profile that equal requests to the same model have in common."""
    request, reader = planned.request, planned.reader
    lost = {name: one.recall.lost for name, one in found.recall.items()}
    return ProfileBody(
        id=planned.id,
        model=_model(reader, request.model),
        request=_echo(planned),
        measured=None,
        recall={
            name: recall_to_wire(one.recall, None, one.ending, reader="endpoint")
            for name, one in found.recall.items()
        },
        mixing=None,
        predictions={},
        forces=[],
        collapse=None,
        dead_zone=None,
        dead_zone_verdict=None,
        shape=None,
        endpoint=_served(planned, found),
        warnings=[
            NO_INFLUENCE,
            *(
                f"{count} groups of {name} left out: a question had no answer"
                for name, count in lost.items()
                if count
            ),
        ],
        method_version=METHOD_VERSION,
    )


def _served(planned: Planned, found: Measured) -> ServedModel:
    reader = planned.reader
    served = reader.canary.served
    reasons: dict[str, str] = {}
    for way in planned.ways.values():
        reasons |= reader.ladder.why_not_higher(way)
    return ServedModel(
        name=reader.endpoint.name,
        model=reader.endpoint.model,
        served_model=served.model,
        fingerprint=served.fingerprint,
        canary=reader.canary.digest,
        ways={name: way.name for name, way in planned.ways.items()},
        why_not_higher=reasons,
        counts_by="usage" if reader.ladder.counts_by == "usage" else "tokenizer",
        censored={name: rounded(one.recall.censored) for name, one in found.recall.items()},
        groups_lost={name: one.recall.lost for name, one in found.recall.items()},
    )


def _model(reader: EndpointReader, name: str) -> ModelDescription:
    return ModelDescription(
        id=name,
        revision=None,
        architecture=_UNKNOWN,
        layers=None,
        attention_layers=None,
        heads=None,
        width=None,
        vocabulary=None,
        parameters=None,
        positional_encoding=None,
        window=None,
        max_length=reader.endpoint.context_length,
        attention_implementation=_UNKNOWN,
        block="unknown",
        support="recall_only",
        support_notes=[NO_INFLUENCE],
        tokenizer_digest=None,
    )


def _echo(planned: Planned) -> RequestEcho:
    request, asked = planned.request, planned.asked
    return RequestEcho(
        model=request.model,
        revision=None,
        weights="pretrained",
        seed=request.seed,
        sequence_length=request.sequence_length,
        objective="recall",
        probes=None,
        positional_encoding="on",
        content_scale="model",
        dtype=_UNKNOWN,
        documents_source="inline" if asked.passages is not None else "builtin",
        documents_name=None,
        documents_asked=0,
        documents_most=None,
        documents_digest=planned.prompts,
        target_digest=None,
        leading_bos=False,
        recall=RecallEcho(
            probes=sorted(asked.probes),
            groups_asked=asked.groups,
            depths=asked.depths,
            form=asked.form,
            question=asked.question,
            scoring=asked.scoring,
            passages_digest=asked.passages_digest,
        ),
    )


def profile_envelope(planned: Planned, found: Measured, load_seconds: float) -> ProfileEnvelope:
    """When and how fast the profile was made, and what it took."""
    spent, seconds = planned.reader.budget.spent, max(found.seconds, 1e-9)
    return ProfileEnvelope(
        timings=Timings(
            load_seconds=round(load_seconds, 3),
            measure_seconds=0.0,
            predict_seconds=0.0,
            recall_seconds=round(found.seconds, 3),
            tokens_per_second=rounded(spent.prompt_tokens / seconds),
        ),
        environment=Environment(
            lacuna=version("lacuna-service"),
            torch=None,
            transformers=None,
            python=platform.python_version(),
            device="endpoint",
            dtype=_UNKNOWN,
            threads=1,
        ),
        spending=Spending(
            calls=spent.calls,
            replayed=spent.replayed,
            retries=spent.retries,
            prompt_tokens=spent.prompt_tokens,
            cached_tokens=spent.cached_tokens,
            generated_tokens=spent.generated_tokens,
            cost=rounded(planned.reader.budget.money),
        ),
        created_at=_now(),
    )


def profile_summary(body: ProfileBody, envelope: ProfileEnvelope) -> ProfileSummary:
    """What a list of profiles shows; `documents` are groups of facts."""
    curve = main_recall(body.recall)
    assert curve is not None
    asked = body.request
    return ProfileSummary(
        id=body.id,
        model=body.model.id,
        revision=None,
        weights=asked.weights,
        sequence_length=asked.sequence_length,
        objective=asked.objective,
        documents=curve.groups,
        documents_source=asked.documents_source,
        seed=asked.seed,
        recall=True,
        recall_verdict=curve.verdict,
        recall_spread=curve.spread,
        shape=None,
        shape_decided=False,
        dead_zone=None,
        dead_zone_verdict=None,
        primacy_mass=None,
        recency_mass=None,
        created_at=envelope.created_at,
    )


def profile_of(body: ProfileBody, envelope: ProfileEnvelope) -> Profile:
    """Body and envelope as one."""
    return Profile.model_validate({**dict(body), **dict(envelope)})


def abilities_of(reader: EndpointReader) -> EndpointAbilities:
    """What the endpoint was found to offer, for the list of models."""
    ladder = reader.ladder
    best = ladder.choose(one_token=False).rung
    offered = [rung for rung in RUNGS if rung == best] or [reader.rung]
    return EndpointAbilities(
        rung=offered[0],
        ways=list(ladder.ways),
        refused=dict(ladder.refused),
        counts_by="usage" if ladder.counts_by == "usage" else "tokenizer",
        served_model=ladder.served.model,
        found_at=_now(),
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
