"""From a model id to files and a revision: hub, `local:`, `demo:` and presets.

`resolve` finds the revision, `fetch` brings the files here. `check_layer_count` limits what a
configuration may ask for. A local model is a folder below the operator's model folder, and nothing
outside that folder is ever read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lacuna.architectures.table import KnownArchitecture, find_preset, presets
from lacuna.contract.base import MODEL_ID_PATTERN
from lacuna.contract.errors import ModelNotFound, ModelUnsupported, TooLarge
from lacuna.contract.profile_requests import ProfileRequest
from workers.models import checkpoint, demo, hub, weights
from workers.models.loaded import LoadOptions


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
        warnings: what in the folder is not used.
    """

    model: str
    revision: str
    pretrained: bool
    config: dict[str, Any]
    folder: Path | None
    tokenizer: bool
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Resolved:
    """A model id whose revision is known, before anything large is fetched."""

    model: str
    revision: str
    pretrained: bool
    place: hub.Snapshot | KnownArchitecture | Path


def resolve(request: ProfileRequest, options: LoadOptions) -> Resolved:
    """Find the revision that the request means now.

    Raises:
        ModelNotFound, ModelGated, ModelUnreachable.
    """
    model, pretrained = request.model, request.weights == "pretrained"
    place: hub.Snapshot | KnownArchitecture | Path
    if model.startswith("demo:"):
        _no_revision(request)
        name = model.removeprefix("demo:")
        revision = demo.find(name).sha256[:40]
        place = demo.folder(name, options.data_dir)
    elif model.startswith("local:"):
        _no_revision(request)
        place = local_folder(model.removeprefix("local:"), options.model_dir)
        revision = folder_digest(place)
    elif not pretrained and request.revision is None and (preset := find_preset(model)):
        place, revision = preset, _digest(preset.config)
    elif model.startswith("preset:"):
        _no_revision(request)
        known = ", ".join(presets())
        raise ModelNotFound(
            f"`model`: no preset is named {model!r}; there is {known}", field="model"
        )
    else:
        place = hub.resolve(model, request.revision, options)
        revision = place.commit
    return Resolved(model, revision, pretrained, place)


def fetch(resolved: Resolved, options: LoadOptions) -> Source:
    """Bring the files here and refuse kinds that cannot be used.

    Raises:
        ModelNotFound, ModelGated, ModelUnreachable, ModelUnsupported, WeightsUnsafe.
    """
    model, pretrained, place = resolved.model, resolved.pretrained, resolved.place
    if isinstance(place, KnownArchitecture):
        return Source(model, resolved.revision, False, dict(place.config), None, False)
    if isinstance(place, hub.Snapshot):
        folder = hub.fetch(place, options, pretrained=pretrained)
    else:
        folder = place
        weights.check_files(model, top_level_files(folder), pretrained=pretrained)
    names = top_level_files(folder)
    if pretrained:
        weights.check_index(model, folder, names)
        shards = sorted(n for n in weights.weight_files(names) if n.endswith(".safetensors"))
        checkpoint.check_plain(model, [folder / name for name in shards])
        weights.check_no_quantisation_file(model, names)
    with weights.judging(model):
        config = _read_config(model, folder)
        weights.check_config(model, config, pretrained=pretrained)
    if not pretrained:
        config.pop("quantization_config", None)
    unused = weights.unused(names, config) if pretrained else ()
    tokenizer = weights.has_tokenizer(names)
    return Source(model, resolved.revision, pretrained, config, folder, tokenizer, unused)


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
        raise ModelUnsupported(
            f"`model`: config.json of {model} is not a JSON object", field="model"
        )
    return config


def _digest(config: Mapping[str, Any]) -> str:
    text = json.dumps(dict(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


# --- local models ---------------------------------------------------------------------------------

_Stamp = tuple[str, int, int, int]
_DIGESTS: dict[_Stamp, str] = {}  # by path, inode, size and time: a large file is read once


def local_names(model_dir: Path | None) -> list[str]:
    """Names of the local models, sorted: folders with a config.json, as a request can name them."""
    if model_dir is None or not model_dir.is_dir():
        return []
    found = []
    for entry in sorted(model_dir.iterdir()):
        if not re.fullmatch(MODEL_ID_PATTERN, f"local:{entry.name}"):
            continue
        try:
            folder = local_folder(entry.name, model_dir)
        except ModelNotFound:
            continue
        if (folder / "config.json").is_file():
            found.append(entry.name)
    return found


def local_folder(name: str, model_dir: Path | None) -> Path:
    """Folder of a local model, symlinks resolved.

    Raises:
        ModelNotFound: local models are switched off, there is no such folder, or the name or one
            of the files that would be read leads outside the model folder.
    """
    if model_dir is None:
        raise ModelNotFound(
            "`model`: this worker serves no local models (LACUNA_MODEL_DIR is not set)",
            field="model",
        )
    missing = ModelNotFound(f"`model`: no local model is named {name!r}", field="model")
    if not name or name.startswith(".") or any(sign in name for sign in "/\\\0"):
        raise missing
    root = model_dir.resolve()
    try:
        folder = (root / name).resolve(strict=True)
    except OSError as error:  # no such folder, a loop of links, a name too long for the disk
        raise missing from error
    if not folder.is_relative_to(root) or folder == root or not folder.is_dir():
        raise missing
    if not all(path.resolve().is_relative_to(root) for path in _files_read(folder)):
        raise missing
    return folder


def folder_digest(folder: Path) -> str:
    """Digest (40 hex characters) of the names and contents of all files that loading would read.

    Paths and times do not count: a copied folder is the same model.
    """
    whole = hashlib.sha256()
    for path in _files_read(folder):
        whole.update(f"{path.name}\0{_file_digest(path)}\n".encode())
    return whole.hexdigest()[:40]


def top_level_files(folder: Path) -> list[str]:
    """Names at the top level of a folder."""
    return sorted(entry.name for entry in folder.iterdir() if entry.is_file())


def _files_read(folder: Path) -> Iterator[Path]:
    """All that transformers sees, and what warnings speak of."""
    present = top_level_files(folder)
    for name in sorted(weights.config_files(present) | weights.weight_files(present)):
        yield folder / name


def _file_digest(path: Path) -> str:
    stat = path.stat()
    stamp = (str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns)
    if stamp not in _DIGESTS:
        with path.open("rb") as file:
            _DIGESTS[stamp] = hashlib.file_digest(file, "sha256").hexdigest()
    return _DIGESTS[stamp]


# --- the size that a configuration states ---------------------------------------------------------

_COUNTS = re.compile(r"(.*_)?(n_?)?(layers?|blocks?|depths?|experts?)")
"""Names under which configurations state how many modules there are."""


def check_layer_count(model: str, config: Mapping[str, Any], most: int) -> None:
    """Refuse a configuration with more layers (blocks, experts), in any of its parts, than `most`.

    Building takes time in proportion to the number of modules, even without memory for weights.

    Raises:
        TooLarge: names the field of the configuration, the limit and its setting.
    """
    for name, count in _counts(config):
        if count > most:
            raise TooLarge(
                f"`model`: {model} has {name} = {count}, above the limit of {most} "
                "(LACUNA_MAX_MODEL_LAYERS)",
                field="model",
            )


def _counts(config: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _counts(value)
        elif isinstance(name, str) and name == "layer_types" and isinstance(value, (list, tuple)):
            yield f"len({name})", len(value)
        elif (
            isinstance(name, str)
            and _COUNTS.fullmatch(name)
            and isinstance(value, (int, float))
            and not isinstance(value, bool)
        ):
            yield name, value
