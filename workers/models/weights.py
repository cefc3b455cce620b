"""Which files of a repository or folder are read, and which kinds of repository are refused.

Only files at the top level count: repositories keep other formats (ONNX, the original checkpoint)
in subfolders.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lacuna.contract.errors import LacunaError, ModelUnsupported, WeightsUnsafe
from service.panics import one_line

_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
_INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
_QUANTISATION_FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
"""Written by exporters that leave config.json as it was."""
_QUANTISATION_FIELDS = ("quantization_config", "compression_config", "quantization")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".msgpack", ".h5")
_TOKENIZER = re.compile(
    r"tokenizer.*\.json|tokenizer\.model(\..*)?|special_tokens_map\.json|added_tokens\.json"
    r"|vocab\.(json|txt)|merges\.txt|spiece\.model|sentencepiece\.bpe\.model|.*\.tiktoken"
    r"|tekken\.json"
)
_TOKENIZER_SETTINGS = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}


def top_level(files: Iterable[str]) -> set[str]:
    """Names without a folder in them."""
    return {name for name in files if "/" not in name}


def config_files(files: Iterable[str]) -> set[str]:
    """Configuration and tokenizer: all that random weights need, and what warnings speak of."""
    wanted = {"config.json", "generation_config.json", "chat_template.jinja", ADAPTER}
    return {name for name in top_level(files) if name in wanted or _TOKENIZER.fullmatch(name)}


def weight_files(files: Iterable[str]) -> set[str]:
    """The safetensors files that transformers would load, and their index."""
    return {
        name for name in top_level(files) if _WEIGHTS.fullmatch(name) is not None or name == _INDEX
    }


def loaded_files(files: Iterable[str]) -> set[str]:
    """What transformers gets to see: no adapter, which peft would apply without a word."""
    return (config_files(files) | weight_files(files)) - {ADAPTER}


def has_tokenizer(files: Iterable[str]) -> bool:
    """Whether there is a vocabulary, and not only a tokenizer's settings."""
    return any(
        _TOKENIZER.fullmatch(name) and name not in _TOKENIZER_SETTINGS for name in top_level(files)
    )


def check_files(model: str, files: Iterable[str], *, pretrained: bool) -> None:
    """Refuse a repository whose weights cannot be loaded safely, or cannot be loaded alone.

    Raises:
        WeightsUnsafe: only pickle (or other executable or foreign) checkpoints are offered.
        ModelUnsupported: an adapter without its base model, GGUF files only, no weights at all,
            or no configuration.
    """
    files = set(files)
    names = top_level(files)
    if "config.json" not in names:
        raise ModelUnsupported(_no_config(model, names), field="model")
    if not pretrained or weight_files(names) - {_INDEX}:
        return
    if ADAPTER in names:
        raise ModelUnsupported(_no_config(model, names), field="model")
    if any(name.endswith(_PICKLES) for name in names):
        raise WeightsUnsafe(
            f"`model`: {model} offers pickle weights only; Lacuna loads safetensors, because a "
            "pickle can run code. Convert the repository, or ask for `weights: random`.",
            field="model",
        )
    if any(name.endswith(".gguf") for name in names):
        raise ModelUnsupported(_no_config(model, {"x.gguf"}), field="model")
    raise ModelUnsupported(
        f"`model`: {model} has no safetensors weights at its top level", field="model"
    )


def _no_config(model: str, names: set[str]) -> str:
    if ADAPTER in names:
        return f"`model`: {model} is an adapter only; merge it into its base model and profile that"
    if any(name.endswith(".gguf") for name in names):
        return (
            f"`model`: {model} offers GGUF weights only, and Lacuna reads safetensors; name the "
            "original repository that they were made from"
        )
    return f"`model`: {model} has no config.json, so it is not a transformers model"


@contextmanager
def judging(model: str) -> Iterator[None]:
    """Blame the configuration for whatever fails inside: any field of a foreign file may be wrong.

    Raises:
        ModelUnsupported: names the file and what was wrong.
    """
    try:
        yield
    except (LacunaError, MemoryError):
        raise
    except Exception as error:
        raise ModelUnsupported(
            f"`model`: config.json of {model} cannot be read ({_what(error)})",
            field="model",
        ) from error


def _what(error: Exception) -> str:
    """Kind and words of an exception; of a `KeyError` the words are the name alone."""
    said = one_line(error)
    return said if said.startswith(type(error).__name__) else f"{type(error).__name__}: {said}"


def unused(files: Iterable[str], config: Mapping[str, Any]) -> tuple[str, ...]:
    """Warnings about what comes with the weights and is not used, though other tools may use it."""
    found = []
    if ADAPTER in top_level(files):
        found.append("the adapter next to the weights (adapter_config.json) is not applied")
    if config.get("auto_map"):
        found.append(
            "the model's own code (auto_map in config.json) is never run; transformers' own code "
            f"for {config.get('model_type')!r} read the weights"
        )
    return tuple(found)


def check_index(model: str, folder: Path, files: Iterable[str]) -> None:
    """Refuse an index of shards that names any file but the weights next to it.

    Such a file would be read although it was not checked and is not part of the digest.

    Raises:
        WeightsUnsafe: names the index and the first such file.
    """
    names = top_level(files)
    if _INDEX not in names:
        return
    try:
        shards = set(json.loads((folder / _INDEX).read_text("utf-8"))["weight_map"].values())
    except Exception as error:
        raise WeightsUnsafe(
            f"`model`: {_INDEX} of {model} is not an index of weights ({_what(error)})",
            field="model",
        ) from error
    strange = sorted(str(shard)[:80] for shard in shards - (weight_files(names) - {_INDEX}))
    if strange:
        raise WeightsUnsafe(
            f"`model`: {_INDEX} of {model} names {strange[0]!r}, which is not a safetensors "
            "file of weights next to it",
            field="model",
        )


def check_config(model: str, config: Mapping[str, Any], *, pretrained: bool) -> None:
    """Refuse quantised weights, and weights under another name than the usual one.

    Quantised kernels have no backward pass to the embeddings; a file of another name was never
    checked.

    Raises:
        ModelUnsupported: names the quantisation method.
        WeightsUnsafe: the configuration names its own file of weights.
    """
    if pretrained and config.get("transformers_weights") is not None:
        raise WeightsUnsafe(
            f"`model`: config.json of {model} names its own file of weights "
            "(transformers_weights); Lacuna reads model*.safetensors only",
            field="model",
        )
    text = config.get("text_config")
    parts = [config, text] if isinstance(text, dict) else [config]
    for part in parts if pretrained else ():
        for field in _QUANTISATION_FIELDS:
            if part.get(field):
                raise _quantised(model, _method(part[field], field))


def check_no_quantisation_file(model: str, files: Iterable[str]) -> None:
    """Refuse a repository with a file that only quantised weights come with.

    Raises:
        ModelUnsupported: names the file.
    """
    for name in sorted(top_level(files) & set(_QUANTISATION_FILES)):
        raise _quantised(model, name)


def _method(stated: Any, field: str) -> str:
    named = stated.get("quant_method") if isinstance(stated, dict) else None
    return str(named or f"{field} in config.json")[:80]


def _quantised(model: str, how: str) -> ModelUnsupported:
    return ModelUnsupported(
        f"`model`: the weights of {model} are quantised ({how}) and give no gradients; "
        "profile the unquantised model, or ask for `weights: random`",
        field="model",
    )
