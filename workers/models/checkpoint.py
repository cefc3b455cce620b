"""What the headers of safetensors files say, before anything is loaded.

A quantised tensor is a number only together with its scales. transformers casts it as it is where
nothing in the configuration says that it is quantised, and the curve of such a model looks as good
as any.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lacuna.contract.errors import ModelUnsupported

_MOST_HEADER_BYTES = 100_000_000
"""The format's own limit."""
_POINTER = b"version https://git-lfs"
_PLAIN = ("F64", "F32", "F16", "BF16")
_SMALL = re.compile(r"(F8|F6|F4|E8|E5|E4)(_.*)?")
"""Floating types that are never used without scales."""
_OF_QUANTISATION = re.compile(
    r"(.*\.)?_?(weight_?scales?(_inv|_2)?|weight_zero_point|weight_packed|weight_global_scale"
    r"|SCB|(nested_)?absmax|(nested_)?quant_map|quant_state(\..*)?|qweight|qzeros|g_idx|W_q)"
)
"""Names that only quantised layers have."""
_MASK = re.compile(r"(.*\.)?(masked_)?bias")


@dataclass(frozen=True)
class StoredTensor:
    """One entry of a header.

    Attributes:
        name: as in the file.
        dtype: in the format's letters, such as "BF16".
        shape: numbers along each axis.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


def stored_tensors(model: str, file: Path) -> Iterator[StoredTensor]:
    """The tensors of a safetensors file, by its header.

    Raises:
        ModelUnsupported: names the file and what is wrong with it.
    """
    try:
        header, rest = _header(file)
        header.pop("__metadata__", None)
        entries = [
            StoredTensor(name, str(entry["dtype"]), tuple(int(size) for size in entry["shape"]))
            for name, entry in header.items()
        ]
        ends = [int(entry["data_offsets"][1]) for entry in header.values()]
    except _Broken as error:
        raise _unreadable(model, file, str(error)) from None
    except Exception as error:  # a foreign file: any field may be missing or of another kind
        raise _unreadable(model, file, "it has no header of safetensors") from error
    if max(ends, default=0) > rest:
        raise _unreadable(model, file, f"it is cut off, {max(ends) - rest} bytes are missing")
    yield from entries


class _Broken(Exception):
    """What is wrong with a file, in words."""


def _header(file: Path) -> tuple[dict[str, Any], int]:
    """The header, and the bytes after it."""
    whole = file.stat().st_size
    with file.open("rb") as content:
        start = content.read(len(_POINTER))
        if start == _POINTER:
            raise _Broken("it is a pointer of Git LFS; fetch the file itself (git lfs pull)")
        size = int.from_bytes(start[:8], "little")
        if not 0 < size <= min(_MOST_HEADER_BYTES, whole - 8):
            raise _Broken("it has no header of safetensors")
        content.seek(8)
        header = json.loads(content.read(size))
    if not isinstance(header, dict):
        raise _Broken("its header is not a JSON object")
    return header, whole - 8 - size


def _unreadable(model: str, file: Path, why: str) -> ModelUnsupported:
    return ModelUnsupported(
        f"`model`: transformers cannot load the weights of {model}: {file.name}: {why}",
        field="model",
    )


def check_plain(model: str, files: Iterable[Path]) -> None:
    """Refuse weights that are quantised, whether or not the configuration says so.

    Args:
        model: id, for the message.
        files: the safetensors files.

    Raises:
        ModelUnsupported: names the first quantised tensor and its type, or a file that cannot be
            read.
    """
    for file in files:
        found = [tensor for tensor in stored_tensors(model, file) if _quantised(tensor)]
        if found:
            # A weight says more than its scale, which may be an ordinary number.
            first = min(found, key=lambda tensor: (tensor.dtype in _PLAIN, tensor.name))
            raise ModelUnsupported(
                f"`model`: the weights of {model} are quantised: {file.name} has "
                f"{first.name[:200]} as {first.dtype}; profile the unquantised model, or ask for "
                "`weights: random`",
                field="model",
            )


def _quantised(tensor: StoredTensor) -> bool:
    """Integers that are not weights are indices and causal masks, which old checkpoints have."""
    if _OF_QUANTISATION.fullmatch(tensor.name) or _SMALL.fullmatch(tensor.dtype):
        return True
    if tensor.dtype in _PLAIN:
        return False
    if tensor.dtype in ("I8", "U8"):
        mask = _MASK.fullmatch(tensor.name) and tensor.shape[:2] == (1, 1)
        return not mask and tensor.shape != ()
    return tensor.name.endswith("weight")
