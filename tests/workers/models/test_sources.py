from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lacuna.contract.errors import ModelNotFound
from workers.models import sources


def test_finds_folders_below_the_model_folder(save: Callable[..., Path], tmp_path: Path) -> None:
    folder = save()
    assert sources.local_folder("tiny", tmp_path / "models") == folder.resolve()
    (tmp_path / "models" / "alias").symlink_to(folder)
    assert sources.local_folder("alias", tmp_path / "models") == folder.resolve()
    (tmp_path / "models" / "empty").mkdir()
    for name in ("my model", "Qwen2.5+x", "-dash"):  # no request can name them
        shutil.copytree(folder, tmp_path / "models" / name)
    assert sources.local_names(tmp_path / "models") == ["alias", "tiny"]


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "/etc",
        "a/b",
        "None",
        "%2e%2e",
        "ti\0ny",
        "x" * 300,
        "file",
        "outside",
    ],
)
def test_never_leads_outside(name: str, tmp_path: Path, save: Callable[..., Path]) -> None:
    save()
    root = tmp_path / "models"
    (tmp_path / "x").mkdir()
    (root / "file").write_text("{}")
    (root / "outside").symlink_to(tmp_path / "x")
    with pytest.raises(ModelNotFound):
        sources.local_folder(name, root)


def test_an_absolute_folder_that_exists_is_no_name(
    save: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(ModelNotFound):
        sources.local_folder(str(save()), tmp_path / "models")


def test_files_that_are_links_to_the_outside_are_not_read(
    save: Callable[..., Path], tmp_path: Path
) -> None:
    folder = save()
    shutil.move(folder / "model.safetensors", tmp_path / "elsewhere")
    (folder / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelNotFound):
        sources.local_folder("tiny", tmp_path / "models")
    assert sources.local_names(tmp_path / "models") == []


def test_switched_off_without_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="LACUNA_MODEL_DIR"):
        sources.local_folder("tiny", None)
    assert sources.local_names(None) == []
    assert sources.local_names(tmp_path / "absent") == []


def test_digest_is_of_contents_and_not_of_place_or_time(
    save: Callable[..., Path], tmp_path: Path
) -> None:
    folder = save()
    before = sources.folder_digest(folder)
    copy = tmp_path / "models" / "copy"
    shutil.copytree(folder, copy)
    os.utime(copy / "config.json", (1, 1))
    (copy / "README.md").write_text("not read by loading")
    assert sources.folder_digest(copy) == before
    weights = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    assert sources.folder_digest(copy) != before
    assert sources.folder_digest(folder) == before
