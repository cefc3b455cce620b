"""`local:NAME`: a folder below the operator's model folder, never anything outside it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from service.contract.errors import ModelNotFound
from workers.models import weights

_Stamp = tuple[str, int, int, int]
_DIGESTS: dict[_Stamp, str] = {}  # by path, inode, size and time: large files are read once


def names(model_dir: Path | None) -> list[str]:
    """Local models that could be asked for, sorted: folders with a config.json."""
    if model_dir is None or not model_dir.is_dir():
        return []
    found = []
    for entry in sorted(model_dir.iterdir()):
        try:
            folder = find(entry.name, model_dir)
        except ModelNotFound:
            continue
        if (folder / "config.json").is_file():
            found.append(entry.name)
    return found


def find(name: str, model_dir: Path | None) -> Path:
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
    if not all(path.resolve().is_relative_to(root) for path in _read(folder)):
        raise missing
    return folder


def digest(folder: Path) -> str:
    """Content digest (40 hex characters) of every file that loading would read.

    Names and contents count, times and places do not: a copied folder is the same model.
    """
    whole = hashlib.sha256()
    for path in _read(folder):
        whole.update(f"{path.name}\0{_file_digest(path)}\n".encode())
    return whole.hexdigest()[:40]


def files(folder: Path) -> list[str]:
    """Names at the top level of a folder."""
    return sorted(entry.name for entry in folder.iterdir() if entry.is_file())


def _read(folder: Path) -> Iterator[Path]:
    present = files(folder)
    for name in sorted(weights.config_files(present) | weights.weight_files(present)):
        yield folder / name


def _file_digest(path: Path) -> str:
    stat = path.stat()
    stamp = (str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns)
    if stamp not in _DIGESTS:
        with path.open("rb") as file:
            _DIGESTS[stamp] = hashlib.file_digest(file, "sha256").hexdigest()
    return _DIGESTS[stamp]
