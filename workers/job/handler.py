"""Runs one job: a profile, or an experiment.

A profile's steps are in `ProfileHandler._profile`: load the model, build the documents, measure,
predict, assemble. `workers.job.measurement` measures and predicts, `workers.job.profile` assembles
what is stored. `run_experiment` runs an experiment.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from lacuna.architectures import table
from lacuna.contract.errors import LacunaError, TooLarge
from lacuna.contract.experiment_requests import ExperimentRequest, experiment_cost
from lacuna.contract.profile_requests import ProfileRequest, cost
from service.settings import Settings
from service.store.claims import ExperimentOutcome, Outcome, ProfileOutcome
from service.store.profiles import StoredProfile
from workers import documents
from workers.experiments.run import curve_of, outcome
from workers.experiments.weights import run_weights
from workers.instrument import Instrumentation, inspect
from workers.job import profile
from workers.job.measurement import ProfileTask, measure
from workers.lease import JobCancelled, JobContext
from workers.loop import Capabilities, JobRequest
from workers.models import sources
from workers.models.cache import ModelCache
from workers.models.loaded import LoadedModel, LoadOptions, device_of, require_device


class ProfileHandler:
    """Turns requests for models by their weights into profiles and results of experiments, and
    keeps recently used models in memory.

    Args:
        settings: of this worker.
        find_profile: the stored profile of an id, or None; a stored one saves the measurement.
        publish_tokenizer: offers a loaded model's tokenizer.json to the gateways.

    Raises:
        Misconfigured: the device that the settings name is missing.
    """

    def __init__(
        self,
        settings: Settings,
        find_profile: Callable[[str], StoredProfile | None],
        publish_tokenizer: Callable[[str], None] | None = None,
    ) -> None:
        torch.set_num_threads(settings.torch_threads)
        self._settings = settings
        self._find_profile = find_profile
        self._publish_tokenizer = publish_tokenizer
        self._options = LoadOptions.from_settings(settings)
        require_device(self._options)
        self._models = ModelCache(self._options)
        self._instruments: WeakKeyDictionary[PreTrainedModel, Instrumentation] = WeakKeyDictionary()
        self._device = str(device_of(self._options))
        self._warm: tuple[str, ...] = ()

    def describe(self) -> Capabilities:
        """The device, the models in memory and the local ones."""
        local = sources.local_names(self._options.model_dir)
        return Capabilities(self._device, self._warm, local, ("profile", "experiment"))

    def __call__(self, request: JobRequest, context: JobContext) -> Outcome:
        """Make what the request asks for.

        Raises:
            LacunaError: why it cannot be made.
        """
        if isinstance(request, ProfileRequest):
            return self._profile(request, context)
        loaded = self._load(request.loading(), context)
        return run_experiment(request, loaded, context, self._settings, self._find_profile)

    def _load(self, request: ProfileRequest, context: JobContext) -> LoadedModel:
        context.progress(0.0, "loading the model")
        context.check()
        loaded = self._models.get(request, context.check)
        self._warm = tuple(self._models.warm())
        if self._publish_tokenizer is not None and loaded.tokenizer_json is not None:
            self._publish_tokenizer(loaded.tokenizer_json)
        context.check()
        return loaded

    def _profile(self, request: ProfileRequest, context: JobContext) -> ProfileOutcome:
        def step(share: float, message: str) -> None:
            context.progress(share, message)
            context.check()

        started = time.perf_counter()
        loaded = self._load(request, context)
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
        echo = profile.request_echo(request, loaded, texts)
        profile_id = profile.profile_id(echo, loaded, instrumentation, request)
        known = self._find_profile(profile_id)
        if known is not None:
            return ProfileOutcome(profile_id, known.body, known.envelope, known.summary)
        check_cost(request, loaded, self._settings)
        found = measure(
            ProfileTask(loaded, instrumentation, texts, request, step, context.check),
            batch_size=self._settings.batch_size,
        )
        body = profile.profile_body(profile_id, echo, loaded, instrumentation, texts, found)
        envelope = profile.profile_envelope(loaded, found, load_seconds)
        return ProfileOutcome(
            profile_id,
            body.model_dump_json().encode(),
            envelope.model_dump_json().encode(),
            profile.profile_summary(body, envelope).model_dump_json().encode(),
        )

    def _instrument(self, loaded: LoadedModel) -> Instrumentation:
        found = self._instruments.get(loaded.model)
        if found is None:
            found = self._instruments[loaded.model] = inspect(loaded.model)
        return found


def check_cost(request: JobRequest, loaded: LoadedModel, settings: Settings) -> None:
    """Check the cost again, now with the model's own size; the gateway may have assumed one.

    Raises:
        TooLarge: names the limit.
    """
    depth, width = table.layers(loaded.text_config), loaded.width
    if isinstance(request, ProfileRequest):
        asked = cost(request, depth, table.heads(loaded.text_config), width)
        field, less = "sequence_length", "lower `sequence_length` or `documents`"
    else:
        asked = experiment_cost(request, depth, width)
        field, less = "questions", "ask fewer questions or compare fewer orders"
    gpu = loaded.device.type == "cuda"
    limit = settings.max_cost_gpu if gpu else settings.max_cost
    if asked > limit:
        raise TooLarge(
            f"`{field}`: {loaded.id} has {depth} layers of width {width}, so that this costs about "
            f"{asked:.2g} multiply-adds, above the limit of {limit:.2g} "
            f"({'LACUNA_MAX_COST_GPU' if gpu else 'LACUNA_MAX_COST'}); {less}",
            field=field,
        )


def run_experiment(
    request: ExperimentRequest,
    loaded: LoadedModel,
    context: JobContext,
    settings: Settings,
    find_profile: Callable[[str], StoredProfile | None],
) -> ExperimentOutcome:
    """What an experiment leaves behind.

    What was read is kept in the data folder until the job ends, as numbers alone. So nothing is
    read twice when a worker is killed or gives the job back.

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
