"""Models that stay in memory between jobs; the least recently used leaves first."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from lacuna.contract.errors import OutOfMemory
from lacuna.contract.profile_requests import ProfileRequest
from workers.models import loading, sources
from workers.models.loaded import LoadedModel, LoadOptions, check_length, device_of, dtype_of

_Key = tuple[str, str, str, int | None, torch.dtype]


@dataclass
class ModelCache:
    """Keeps models while their weights together stay below `options.cache_bytes`.

    The model asked for last always stays, however large. Only the cache may keep a model beyond its
    job; otherwise its memory is not freed. It is not safe to use from several threads.
    """

    options: LoadOptions
    _held: OrderedDict[_Key, LoadedModel] = field(default_factory=OrderedDict, init=False)

    def get(self, request: ProfileRequest, check: Callable[[], None] = lambda: None) -> LoadedModel:
        """The request's model, from memory or loaded now; a branch is resolved each time.

        Args:
            request: names the model.
            check: called between the steps; may raise to give up.

        Raises:
            LacunaError: as `loading.load`.
        """
        resolved = sources.resolve(request, self.options)
        check()
        key = self._key(request, resolved)
        loaded = self._held.get(key)
        if loaded is None:
            source = sources.fetch(resolved, self.options)
            check()
            loaded = self._build(source, request)
        else:
            check_length(loaded.id, loaded.text_config, request.sequence_length)
        self._held[key] = loaded
        self._held.move_to_end(key)
        self._shrink(keep=1)
        return loaded

    def warm(self) -> list[str]:
        """Ids of the models in memory, least recently used first, each once."""
        return list(dict.fromkeys(loaded.id for loaded in self._held.values()))

    def clear(self) -> None:
        """Drop every model."""
        self._held.clear()
        self._release()

    def _key(self, request: ProfileRequest, resolved: sources.Resolved) -> _Key:
        seed = None if resolved.pretrained else request.seed
        dtype = dtype_of(request, device_of(self.options))
        return (resolved.model, resolved.revision, request.weights, seed, dtype)

    def _build(self, source: sources.Source, request: ProfileRequest) -> LoadedModel:
        """Load; when memory is short, drop the models in memory and load again."""
        try:
            return loading.build(source, request, self.options)
        except OutOfMemory:
            if not self._held:
                raise
        self.clear()
        return loading.build(source, request, self.options)

    def _shrink(self, keep: int) -> None:
        dropped = False
        while len(self._held) > keep and self._bytes() > self.options.cache_bytes:
            self._held.popitem(last=False)
            dropped = True
        if dropped:
            self._release()

    def _bytes(self) -> int:
        return sum(loaded.nbytes for loaded in self._held.values())

    def _release(self) -> None:
        gc.collect()  # hooks tie models into cycles
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
