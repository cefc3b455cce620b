"""A model in memory, ready to be measured (`LoadedModel`), and the machine it is in.

`LoadOptions` is the worker's share of the settings. `device_of`, `dtype_of` and `available_bytes`
say where and in which type a model is loaded, and how much memory is left.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import psutil  # type: ignore[import-untyped, unused-ignore]
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lacuna.architectures.table import max_length
from lacuna.contract.errors import TooLong
from lacuna.contract.profile_requests import ProfileRequest
from service.settings import Settings
from workers.faults import Misconfigured

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def device_of(options: LoadOptions) -> torch.device:
    """The device that "auto" means here."""
    if options.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(options.device)


def require_device(options: LoadOptions) -> None:
    """Find out at the start, not with the first job, that the device is missing.

    Raises:
        Misconfigured: names the setting and the reason.
    """
    if options.device != "cuda" or torch.cuda.is_available():
        return
    built = torch.version.cuda or torch.version.hip
    why = "PyTorch sees no GPU" if built else "this PyTorch was built without CUDA"
    raise Misconfigured(f"LACUNA_DEVICE is cuda, but {why}; auto takes the CPU then")


def dtype_of(request: ProfileRequest, device: torch.device) -> torch.dtype:
    """The weights' type that the request means on this device."""
    if request.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return _DTYPES[request.dtype]


_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(device: torch.device) -> int:
    """Bytes that can be allocated on `device` now.

    CUDA: what the driver has free plus what torch holds unused. CPU: what the kernel calls
    available, or what the container's limit (cgroup v2) leaves, whichever is less.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + unused)
    machine = int(psutil.virtual_memory().available)
    container = _container_bytes(_CGROUP)
    return machine if container is None else min(machine, container)


def _container_bytes(cgroup: Path) -> int | None:
    """What a cgroup's memory limit leaves; None without a limit. Page cache counts as free."""
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    return max(0, int(limit) - used + int(stat.get("inactive_file", 0)))


def gigabytes(amount: float) -> str:
    """An amount of bytes as "1.3 GB"."""
    return f"{amount / 1e9:.1f} GB"


@dataclass(frozen=True)
class LoadOptions:
    """Folders, device and hub access of one worker.

    Attributes:
        data_dir: the worker's own folder; converted demo weights are in its `models` folder.
        model_dir: `local:NAME` resolves below it; None switches local models off.
        device: "auto" takes CUDA when torch sees it.
        hub_token: sent to the hub; None sends nothing, not even a token saved on this machine.
        hub_endpoint: another hub address; None is the public one.
        hub_cache: folder of snapshots; None is the hub library's own.
        cache_bytes: memory that warm models may take together.
        max_layers: layers (blocks, experts) that a configuration may state.
    """

    data_dir: Path
    model_dir: Path | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    hub_token: str | None = field(default=None, repr=False)
    hub_endpoint: str | None = None
    hub_cache: Path | None = None
    cache_bytes: int = 8_000_000_000
    max_layers: int = 512

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Pick the worker's share of the settings."""
        token = settings.hub_token
        return cls(
            data_dir=settings.data_dir,
            model_dir=settings.model_dir,
            device=settings.device,
            hub_token=None if token is None else token.get_secret_value(),
            cache_bytes=settings.model_cache_bytes,
            max_layers=settings.max_model_layers,
        )


@dataclass(frozen=True)
class LoadedModel:
    """An evaluated, frozen model with its tokenizer.

    Attributes:
        model: in eval mode, no parameter requires a gradient.
        tokenizer: None when the source has none (presets): then only random tokens can be read.
        id: as asked for.
        revision: commit of a hub model, content digest of a local folder, file digest of a demo;
            None for random weights.
        config_digest: SHA-256 (40 hex characters) of the configuration that was built.
        device: of the input embeddings.
        dtype: of the weights.
        weights: "pretrained" or "random".
        seed: of random weights, else None.
        warnings: what the files have that was not used.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    id: str
    revision: str | None
    config_digest: str
    device: torch.device
    dtype: torch.dtype
    weights: str
    seed: int | None
    warnings: tuple[str, ...] = ()

    @property
    def text_config(self) -> Any:
        """Configuration of the language model, also inside a multimodal wrapper."""
        return self.model.config.get_text_config()

    @cached_property
    def tokenizer_json(self) -> str | None:
        """The tokenizer in the format of the `tokenizers` library; None for slow tokenizers."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        return None if backend is None else str(backend.to_str())

    @cached_property
    def tokenizer_digest(self) -> str | None:
        """SHA-256 (32 hex characters) of `tokenizer_json`, or of a slow tokenizer's vocabulary."""
        if self.tokenizer is None:
            return None
        text = self.tokenizer_json
        if text is None:
            text = repr((type(self.tokenizer).__name__, sorted(self.tokenizer.get_vocab().items())))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def width(self) -> int:
        """Numbers in the input embedding of one token."""
        return int(self._embeddings.embedding_dim)

    @property
    def vocabulary(self) -> int:
        """Rows of the input embeddings: the model can only read ids below."""
        return int(self._embeddings.num_embeddings)

    @property
    def scored_vocabulary(self) -> int:
        """Rows of the LM head: only ids below have logits."""
        head: Any = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        weight = getattr(head, "weight", None)
        return self.vocabulary if weight is None else int(weight.shape[0])

    @property
    def _embeddings(self) -> Any:
        return self.model.get_input_embeddings()

    @property
    def parameters(self) -> int:
        """Number of parameters; tied ones count once, however often they are used."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def nbytes(self) -> int:
        """Memory of weights and buffers, in bytes."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def check_length(model: str, config: Any, length: int) -> None:
    """Refuse inputs longer than the model's position table or declared context.

    Args:
        model: id, for the message.
        config: the language model's own.
        length: in tokens.

    Raises:
        TooLong: names the limit.
    """
    limit = max_length(config)
    if limit is not None and length > limit:
        raise TooLong(
            f"`sequence_length`: {length} tokens are more than the {limit} that {model} can take",
            field="sequence_length",
        )
