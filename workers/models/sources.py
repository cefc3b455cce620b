"""From a model id to files and a revision: hub, `local:`, `demo:` and presets."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.contract.errors import ModelNotFound, ModelUnsupported
from service.contract.profile_requests import ProfileRequest
from workers.models import demo, hub, local, presets, weights
from workers.models.options import LoadOptions


@dataclass(frozen=True)
class Source:
    """Where a model's configuration, tokenizer and weights come from.

    Attributes:
        model: the id as asked for.
        revision: commit (hub), content digest (local folder) or file digest (demo), 40 hex
            characters; for a preset the digest of its configuration.
        pretrained: whether weights are read, or drawn at random.
        config: the configuration, quantisation removed when weights are random.
        folder: tokenizer and weights; None for a preset.
        tokenizer: whether the folder holds a tokenizer.
    """

    model: str
    revision: str
    pretrained: bool
    config: dict[str, Any]
    folder: Path | None
    tokenizer: bool


@dataclass(frozen=True)
class Resolved:
    """A model id whose revision is known, before anything large is fetched."""

    model: str
    revision: str
    pretrained: bool
    place: hub.Snapshot | presets.Preset | Path


def resolve(request: ProfileRequest, options: LoadOptions) -> Resolved:
    """Find the revision that the request means now.

    Raises:
        ModelNotFound, ModelGated, ModelUnreachable.
    """
    model, pretrained = request.model, request.weights == "pretrained"
    place: hub.Snapshot | presets.Preset | Path
    if model.startswith("demo:"):
        _no_revision(request)
        name = model.removeprefix("demo:")
        revision = demo.find(name).sha256[:40]
        place = demo.folder(name, options.data_dir)
    elif model.startswith("local:"):
        _no_revision(request)
        place = local.find(model.removeprefix("local:"), options.model_dir)
        revision = local.digest(place)
    elif not pretrained and request.revision is None and (preset := presets.find(model)):
        place, revision = preset, _digest(preset.config)
    elif model.startswith("preset:"):
        _no_revision(request)
        known = ", ".join(presets.presets())
        raise ModelNotFound(
            f"`model`: no preset is named {model!r}; there is {known}", field="model"
        )
    else:
        place = hub.resolve(model, request.revision, options)
        revision = place.commit
    return Resolved(model, revision, pretrained, place)


def fetch(resolved: Resolved, options: LoadOptions) -> Source:
    """Bring the files here and check that they are of a kind that can be used.

    Raises:
        ModelNotFound, ModelGated, ModelUnreachable, ModelUnsupported, WeightsUnsafe.
    """
    model, pretrained, place = resolved.model, resolved.pretrained, resolved.place
    if isinstance(place, presets.Preset):
        return Source(model, resolved.revision, False, dict(place.config), None, False)
    if isinstance(place, hub.Snapshot):
        folder = hub.fetch(place, options, pretrained=pretrained)
    else:
        folder = place
        weights.check_files(model, local.files(folder), pretrained=pretrained)
    if pretrained:
        weights.check_index(model, folder, local.files(folder))
    with weights.judging(model):
        config = _read_config(model, folder)
        weights.check_config(model, config, pretrained=pretrained)
    if not pretrained:
        config.pop("quantization_config", None)
    has_tokenizer = weights.has_tokenizer(local.files(folder))
    return Source(model, resolved.revision, pretrained, config, folder, has_tokenizer)


def _no_revision(request: ProfileRequest) -> None:
    if request.revision is not None:
        raise ModelNotFound(
            f"`revision`: {request.model} has no revisions; leave it out", field="revision"
        )


def _read_config(model: str, folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelUnsupported(
            f"`model`: config.json of {model} is not readable JSON", field="model"
        ) from error
    if not isinstance(config, dict):
        raise ModelUnsupported(f"`model`: config.json of {model} is no object", field="model")
    return config


def _digest(config: dict[str, Any]) -> str:
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:40]
