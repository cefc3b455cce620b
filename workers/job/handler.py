"""Runs one profile job: load, instrument, read, measure, predict, write."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from weakref import WeakKeyDictionary

import torch
import transformers
from transformers import PreTrainedModel

from lacuna import views
from lacuna.architectures import table
from lacuna.contract.base import digest, rounded
from lacuna.contract.errors import TooLarge
from lacuna.contract.models import ModelDescription
from lacuna.contract.profile_requests import METHOD_VERSION, ProfileRequest, cost
from lacuna.contract.profiles import (
    Environment,
    ProfileBody,
    ProfileEnvelope,
    ProfileSummary,
    RequestEcho,
    Timings,
)
from lacuna.theory import shape
from service.settings import Settings
from service.store.claims import Outcome
from service.store.profiles import StoredProfile
from workers import documents
from workers.documents import DocumentSet
from workers.instrument import Instrumentation, describe_positions, inspect
from workers.job import wire
from workers.job.measurement import Measurement, Subject, measure
from workers.lease import JobContext
from workers.loop import Capabilities
from workers.models import facts, sources
from workers.models.cache import ModelCache
from workers.models.loaded import LoadedModel, LoadOptions, device_of, require_device

ONE_DOCUMENT = (
    "one document alone: how noisy the curve is cannot be told, and its band has no width"
)


class ProfileHandler:
    """Turns profile requests into profiles, with recently used models kept warm.

    Args:
        settings: of this worker.
        profile_exists: the stored profile of an id, if there is one: the work is then spared.
        publish_tokenizer: offers a loaded model's tokenizer.json to the gateways.

    Raises:
        Misconfigured: the device that the settings name is not there.
    """

    def __init__(
        self,
        settings: Settings,
        profile_exists: Callable[[str], StoredProfile | None],
        publish_tokenizer: Callable[[str], None] | None = None,
    ) -> None:
        torch.set_num_threads(settings.torch_threads)
        self._settings = settings
        self._exists = profile_exists
        self._publish_tokenizer = publish_tokenizer
        self._options = LoadOptions.from_settings(settings)
        require_device(self._options)
        self._models = ModelCache(self._options)
        self._instruments: WeakKeyDictionary[PreTrainedModel, Instrumentation] = WeakKeyDictionary()
        self._device = str(device_of(self._options))
        self._warm: tuple[str, ...] = ()

    def describe(self) -> Capabilities:
        """The device, the warm models and the local ones."""
        return Capabilities(self._device, self._warm, sources.names(self._options.model_dir))

    def __call__(self, request: ProfileRequest, context: JobContext) -> Outcome:
        """Make the request's profile.

        Raises:
            LacunaError: with the reason for which there is none.
        """

        def step(share: float, message: str) -> None:
            context.progress(share, message)
            context.check()

        step(0.0, "loading the model")
        started = time.perf_counter()
        loaded = self._models.get(request, context.check)
        self._warm = tuple(self._models.warm())
        if self._publish_tokenizer is not None and loaded.tokenizer_json is not None:
            self._publish_tokenizer(loaded.tokenizer_json)
        context.check()
        instrumentation = self._instrument(loaded)
        load_seconds = time.perf_counter() - started
        step(0.04, "reading the documents")
        texts = documents.build(
            request.documents,
            loaded,
            request.sequence_length,
            request.seed,
            corpus_dir=self._settings.corpus_dir,
            check=context.check,
        )
        context.check()
        echo = _echo(request, loaded, texts)
        profile_id = _profile_id(echo, loaded, instrumentation, request)
        known = self._exists(profile_id)
        if known is not None:
            return Outcome(profile_id, known.body, known.envelope, known.summary)
        check_cost(request, loaded, self._settings)
        found = measure(
            Subject(loaded, instrumentation, texts, request, step, context.check),
            batch_size=self._settings.batch_size,
        )
        body = _body(profile_id, echo, loaded, instrumentation, texts, found)
        envelope = self._envelope(loaded, texts, found, load_seconds)
        return Outcome(
            profile_id,
            body.model_dump_json().encode(),
            envelope.model_dump_json().encode(),
            _summary(body, envelope).model_dump_json().encode(),
        )

    def _instrument(self, loaded: LoadedModel) -> Instrumentation:
        found = self._instruments.get(loaded.model)
        if found is None:
            found = self._instruments[loaded.model] = inspect(loaded.model)
        return found

    def _envelope(
        self, loaded: LoadedModel, texts: DocumentSet, found: Measurement, load_seconds: float
    ) -> ProfileEnvelope:
        seconds = found.influence.seconds
        return ProfileEnvelope(
            timings=Timings(
                load_seconds=round(load_seconds, 3),
                measure_seconds=round(seconds, 3),
                predict_seconds=round(found.predict_seconds, 3),
                tokens_per_second=rounded(texts.ids.numel() / max(seconds, 1e-9)),
            ),
            environment=Environment(
                lacuna=version("lacuna-service"),
                torch=torch.__version__,
                transformers=transformers.__version__,
                python=platform.python_version(),
                device=_device_name(loaded.device),
                dtype=_dtype(loaded),
                threads=torch.get_num_threads(),
            ),
            created_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        )


def check_cost(request: ProfileRequest, loaded: LoadedModel, settings: Settings) -> None:
    """Once more, with the model's own size: the gateway had to assume that of an unknown model.

    Raises:
        TooLarge: naming the limit.
    """
    depth, width = table.layers(loaded.text_config), facts.width(loaded.model)
    asked = cost(request, depth, table.heads(loaded.text_config), width)
    gpu = loaded.device.type == "cuda"
    limit = settings.max_cost_gpu if gpu else settings.max_cost
    if asked > limit:
        raise TooLarge(
            f"`sequence_length`: {loaded.id} has {depth} layers of width {width}, so that this "
            f"costs about {asked:.2g} multiply-adds, above the limit of {limit:.2g} "
            f"({'LACUNA_MAX_COST_GPU' if gpu else 'LACUNA_MAX_COST'}); lower `sequence_length` or "
            "`documents.count`",
            field="sequence_length",
        )


def _echo(request: ProfileRequest, loaded: LoadedModel, texts: DocumentSet) -> RequestEcho:
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
        documents_digest=texts.digest,
        target_digest=None if target is None else hashlib.sha256(target.encode()).hexdigest()[:32],
        leading_bos=texts.leading_bos,
        needle=request.needle,
    )


def _profile_id(
    echo: RequestEcho,
    loaded: LoadedModel,
    instrumentation: Instrumentation,
    request: ProfileRequest,
) -> str:
    names = None if request.predictions is None else sorted(request.predictions)
    return digest(
        {
            "method": METHOD_VERSION,
            "request": echo.model_dump(mode="json"),
            "predictions": names,
            "config": loaded.config_digest,
            "tokenizer": loaded.tokenizer_digest,
            "attention": facts.describe(loaded, instrumentation)["attention_implementation"],
            "capture": instrumentation.capture,
        }
    )


def _description(loaded: LoadedModel, instrumentation: Instrumentation) -> ModelDescription:
    """What the configuration says, and the positions as the model was seen to use them."""
    positions = describe_positions(loaded.model, instrumentation)
    seen = {"positional_encoding": positions.kind, "window": positions.window}
    return ModelDescription(**(facts.describe(loaded, instrumentation) | seen))


def _body(
    profile_id: str,
    echo: RequestEcho,
    loaded: LoadedModel,
    instrumentation: Instrumentation,
    texts: DocumentSet,
    found: Measurement,
) -> ProfileBody:
    measured, main, draws = wire.measured(found)
    return ProfileBody(
        id=profile_id,
        model=_description(loaded, instrumentation),
        request=echo,
        measured=measured,
        mixing=None if found.mixing is None else wire.mixing(found.mixing),
        predictions={
            name: wire.prediction(curve, main) for name, curve in found.predictions.items()
        },
        forces=[views.force_to_wire(force) for force in found.forces],
        collapse=None if found.collapse is None else views.collapse_to_wire(found.collapse),
        monotone=wire.monotone(found),
        dead_zone=views.zone_to_wire(shape.dead_zone(main, curves=draws)),
        shape=views.shape_of(main),
        warnings=[
            *([ONE_DOCUMENT] if draws is None else []),
            *texts.warnings,
            *instrumentation.reasons,
            *instrumentation.warnings,
            *found.warnings,
        ],
        method_version=METHOD_VERSION,
    )


def _summary(body: ProfileBody, envelope: ProfileEnvelope) -> ProfileSummary:
    return ProfileSummary(
        id=body.id,
        model=body.model.id,
        revision=body.model.revision,
        weights=body.request.weights,
        sequence_length=body.request.sequence_length,
        objective=body.request.objective,
        documents=body.measured.documents,
        documents_source=body.request.documents_source,
        documents_name=body.request.documents_name,
        seed=body.request.seed,
        positional_encoding=body.request.positional_encoding,
        content_scale=body.request.content_scale,
        needle=body.measured.needle is not None,
        shape=body.shape.class_,
        dead_zone=body.dead_zone,
        primacy_mass=body.shape.primacy_mass,
        recency_mass=body.shape.recency_mass,
        created_at=envelope.created_at,
    )


def _dtype(loaded: LoadedModel) -> str:
    return str(loaded.dtype).removeprefix("torch.")


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
