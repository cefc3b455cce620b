"""Loads what a request names: a frozen causal language model in evaluation mode. Start at `load`.

Policies:
    - code that comes with a repository is never run; weights are safetensors;
    - `dtype: auto` is float32 on the CPU and bfloat16 on CUDA; norms, softmax and sums are computed
      in float32 or float64 whatever the weights are (see `workers.influence`);
    - random weights are drawn by the model's own initialisation on the CPU in float32 under the
      request's seed, and only then moved and cast, so they are the same on every device. (Building
      on the meta device first would draw other numbers.) They are cast as a saved model's are;
    - a checkpoint that leaves parameters unset is refused, not filled with random numbers; one that
      has more than the model is loaded with a warning;
    - transformers sees only the files that were checked and that the revision's digest covers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging as transformers_logging

from lacuna.contract.errors import ModelUnsupported, OutOfMemory
from lacuna.contract.profile_requests import ProfileRequest
from service.panics import failures_as, one_line
from workers.faults import is_machine_fault, is_out_of_memory
from workers.models import leftovers, sources, weights
from workers.models.loaded import (
    LoadedModel,
    LoadOptions,
    available_bytes,
    check_length,
    device_of,
    dtype_of,
    gigabytes,
)
from workers.models.sources import Source
from workers.models.weights import judging

_AUTO: Any = AutoModelForCausalLM  # its class methods are half typed
_GENERATION: Any = GenerationConfig


def skeleton(config: Any, dtype: torch.dtype) -> PreTrainedModel | None:
    """The model of a configuration, with tensors of the right types but without memory.

    None where the model's code does not build on the meta device.
    """
    try:
        with torch.device("meta"):
            empty: PreTrainedModel = _AUTO.from_config(config, dtype=dtype, trust_remote_code=False)
    except Exception:  # a model's own code may fail in any way; then loading finds out
        return None
    return empty


def cast(model: PreTrainedModel, like: PreTrainedModel | None, dtype: torch.dtype) -> None:
    """Give every parameter and buffer, in place, the type that `from_pretrained` gives it.

    `model.to(dtype)` would round every floating buffer too. Rotary frequencies in bfloat16 are
    wrong by up to 0.4%, which is radians of phase after a thousand positions.

    Args:
        model: with parameters in float32.
        like: its `skeleton` in `dtype`; without it only parameters are cast.
        dtype: float32 or bfloat16.
    """
    kept = re.compile("|".join(model._get_dtype_plan(dtype)) or r"(?!)")
    wanted = {} if like is None else {name: tensor.dtype for name, tensor in _tensors(like)}
    for name, tensor in _tensors(model):
        default = dtype if isinstance(tensor, nn.Parameter) else tensor.dtype
        kind = torch.float32 if kept.search(name) else wanted.get(name, default)
        if tensor.is_floating_point() and tensor.dtype != kind:
            tensor.data = tensor.data.to(kind)


def _tensors(model: PreTrainedModel) -> list[tuple[str, Tensor]]:
    """Parameters and buffers by name; shared ones appear under each of their names."""
    parameters = model.named_parameters(remove_duplicate=False)
    return [*parameters, *model.named_buffers(remove_duplicate=False)]


def load(request: ProfileRequest, options: LoadOptions) -> LoadedModel:
    """Resolve, fetch and build the request's model.

    Raises:
        ModelNotFound, ModelGated, ModelUnreachable, ModelUnsupported, WeightsUnsafe: see each.
        TooLong: `sequence_length` exceeds what the model declares.
        TooLarge: it has more layers than the operator allows.
        OutOfMemory: the weights do not fit.
    """
    source = sources.fetch(sources.resolve(request, options), options)
    return build(source, request, options)


def build(source: Source, request: ProfileRequest, options: LoadOptions) -> LoadedModel:
    """Build the model from files that were fetched; errors as `load`."""
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if source.folder is None:
        return _build(source, request, options)
    with _view(source.folder) as folder:
        return _build(dataclasses.replace(source, folder=folder), request, options)


@contextmanager
def _view(folder: Path) -> Iterator[Path]:
    """A folder with links to the files that may be read; transformers would look for more."""
    with tempfile.TemporaryDirectory(prefix="lacuna-model-") as made:
        view = Path(made)
        for name in weights.loaded_files(sources.top_level_files(folder)):
            (view / name).symlink_to((folder / name).resolve())
        yield view


def _build(source: Source, request: ProfileRequest, options: LoadOptions) -> LoadedModel:
    with judging(source.model):
        sources.check_layer_count(source.model, source.config, options.max_layers)
        config = _config(source)
        sources.check_layer_count(source.model, config.to_dict(), options.max_layers)
        check_length(source.model, config.get_text_config(), request.sequence_length)
    device = device_of(options)
    dtype = dtype_of(request, device)
    empty = skeleton(config, dtype)
    _check_fits(source, empty, dtype, device)
    try:
        model, unused = _weights(source, config, dtype, request.seed, empty, device)
        model = model.to(device)
    except Exception as error:
        if is_out_of_memory(error):
            detail = f"the weights of {source.model} do not fit on {device}"
            raise OutOfMemory(detail, field="model") from error
        raise
    forget_lengths(model)
    return LoadedModel(
        model=model.requires_grad_(False).eval(),
        tokenizer=_tokenizer(source),
        id=source.model,
        revision=source.revision if source.pretrained else None,
        config_digest=_digest(config),
        device=model.get_input_embeddings().weight.device,
        dtype=dtype,
        weights="pretrained" if source.pretrained else "random",
        seed=None if source.pretrained else request.seed,
        warnings=(*source.warnings, *unused),
    )


def _config(source: Source) -> Any:
    kind = source.config.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise ModelUnsupported(
            f"`model`: transformers has no model type {str(kind)[:80]!r}; code that comes with a "
            f"repository ({source.model}) is never run",
            field="model",
        )
    try:
        if source.folder is None:
            config: Any = AutoConfig.for_model(**source.config)
        else:
            config = AutoConfig.from_pretrained(
                source.folder, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # any field of a foreign file may be wrong, each in its own way
        raise ModelUnsupported(
            f"`model`: the configuration of {source.model} is refused by transformers "
            f"({type(error).__name__}: {_reason(error, source)})",
            field="model",
        ) from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelUnsupported(
            f"`model`: {source.model} ({kind}) is not a causal language model in transformers",
            field="model",
        )
    if not source.pretrained:
        for part in (config, config.get_text_config()):
            if hasattr(part, "quantization_config"):
                del part.quantization_config
    _drop_wishes(config)
    return config


_IMPLEMENTATIONS = {
    "_attn_implementation_internal": (None, "eager", "sdpa"),
    "_experts_implementation_internal": (None, "eager", "batched_mm", "grouped_mm"),
}
"""What runs everywhere, by the name of the setting. Others need packages or fetch kernels."""


def _drop_wishes(config: Any) -> None:
    """Forget what a configuration wishes for its own use, where that would refuse the model.

    That is another implementation of attention or experts, and settings of text generation that
    transformers finds invalid.
    """
    parts = [config, *(getattr(config, name, None) for name in config.sub_configs)]
    for part in parts:
        for name, known in _IMPLEMENTATIONS.items():
            if getattr(part, name, None) not in known:
                setattr(part, name, None)
    try:
        _GENERATION.from_model_config(config)
    except Exception:  # any of its fields may be of any kind
        for name in set(vars(config)) & set(vars(_GENERATION())):
            if not name.endswith("_token_id") and name != "use_cache":
                delattr(config, name)


def _check_fits(
    source: Source, empty: PreTrainedModel | None, dtype: torch.dtype, device: torch.device
) -> None:
    """Compare the size of the weights with free memory before anything is allocated.

    On a CPU the kernel kills a process that allocates too much; no exception is raised.
    """
    if empty is None:
        return
    wanted = [(device, dtype, sum(p.numel() * p.element_size() for p in empty.parameters()))]
    if not source.pretrained:  # random weights are drawn on the CPU in float32 first
        drawn = sum(p.numel() * torch.float32.itemsize for p in empty.parameters())
        wanted.append((torch.device("cpu"), torch.float32, drawn))
    for place, kind, needed in wanted:
        available = available_bytes(place)
        if needed > available:
            raise OutOfMemory(
                f"the weights of {source.model} need {gigabytes(needed)} in {kind}, "
                f"{gigabytes(available)} are available on {place}",
                field="model",
            )


def _weights(
    source: Source,
    config: Any,
    dtype: torch.dtype,
    seed: int,
    empty: PreTrainedModel | None,
    device: torch.device,
) -> tuple[Any, tuple[str, ...]]:
    """The model, and warnings about tensors that it has no place for."""
    if not source.pretrained:
        drawn = _random(source.model, config, seed)
        cast(drawn, empty, dtype)
        return drawn, ()
    with leftovers.report() as lines:
        try:
            model, found = _AUTO.from_pretrained(
                source.folder,
                config=config,
                generation_config=_GENERATION(eos_token_id=_ends(source, config)),
                dtype=dtype,
                device_map={"": device},  # straight from the file: the host needs no room for it
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,  # they are reported instead, and refused below
                output_loading_info=True,
            )
        except Exception as error:  # a foreign file: each reader fails in its own way
            if is_machine_fault(error):
                raise
            tensor = leftovers.named(lines)
            raise ModelUnsupported(
                f"`model`: transformers cannot load the weights of {source.model}: "
                f"{_reason(error, source)}{f' ({tensor})' if tensor else ''}",
                field="model",
            ) from error
    leftovers.check_complete(source.model, found)
    return model, leftovers.unused(type(model).__name__, source.config, found)


def _ends(source: Source, config: Any) -> list[int] | None:
    """Tokens that end an answer: all that is read of generation_config.json, or config.json's."""
    assert source.folder is not None  # pretrained
    try:
        stated: Any = json.loads((source.folder / "generation_config.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        stated = None
    found = stated.get("eos_token_id") if isinstance(stated, dict) else None
    if found is None:
        found = getattr(config.get_text_config(), "eos_token_id", None)
    several = found if isinstance(found, list) else [found]
    return [token for token in several if type(token) is int] or None


def _reason(error: BaseException, source: Source) -> str:
    """What an exception says, without this machine's folders."""
    return one_line(error).replace(f"{source.folder}/", "").replace(str(source.folder), "it")


def _random(model: str, config: Any, seed: int) -> Any:
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _AUTO.from_config(config, dtype=torch.float32, trust_remote_code=False)
    except Exception as error:  # sizes that do not fit each other are found out here only
        if is_machine_fault(error):
            raise
        raise ModelUnsupported(
            f"`model`: transformers cannot build {model} from its configuration "
            f"({type(error).__name__}: {one_line(error)})",
            field="model",
        ) from error


def _tokenizer(source: Source) -> PreTrainedTokenizerBase | None:
    if source.folder is None or not source.tokenizer:
        return None

    def refusal(reason: str, file: str = "") -> ModelUnsupported:
        reason = reason.replace(f"{source.folder}/", "").replace(str(source.folder), "it")
        return ModelUnsupported(
            f"`model`: the tokenizer of {source.model} cannot be loaded: {file}{reason}",
            field="model",
        )

    # transformers reads it too, but falls back or fails elsewhere; the reason is here.
    content = source.folder / "tokenizer.json"
    if content.is_file():
        with failures_as(lambda reason: refusal(reason, "tokenizer.json: ")):
            Tokenizer.from_file(str(content))
    with failures_as(refusal):  # slow tokenizers may need packages that are missing here
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            source.folder, local_files_only=True, trust_remote_code=False
        )
    return tokenizer


def _digest(config: Any) -> str:
    fields = {k: v for k, v in config.to_dict().items() if k != "_name_or_path"}
    text = json.dumps(fields, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:40]


# Rotary positions whose frequencies follow the length of the input ("dynamic" scaling)

_CACHED = "max_seq_len_cached"


def forget_lengths(model: nn.Module) -> None:
    """Make every pass compute its frequencies from its own length, in place.

    transformers keeps those of the longest input so far, until an input is shorter than the
    original context. A model that stays in memory would then read a document otherwise after a
    longer one, and equal requests would give different numbers.
    """
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        named = kinds.values() if isinstance(kinds, dict) else [kinds]
        if hasattr(module, _CACHED) and any("dynamic" in str(kind) for kind in named):
            module.register_forward_pre_hook(_forget)


def _forget(module: nn.Module, _inputs: Any) -> None:
    for name in [one for one in vars(module) if one.endswith(_CACHED)]:
        setattr(module, name, 0)
