"""One forward pass in which every attention site may look at, and replace, its two tensors.

Hooks only, at the places that `workers.instrument` found; parameters are never named. The pass ends
at the last site: the last MLP and the language-model head are not run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from workers.instrument import Site, Tap

OnTensor = Callable[[int, Tensor], Tensor | None]
"""(site, tensor as found) -> what goes on in its place, or None for the tensor itself."""


class PassOver(Exception):
    """Raised by a callback (and here, behind the last site) when nothing after it is wanted."""


def run(
    model: PreTrainedModel,
    sites: Sequence[Site],
    ids: Tensor,
    on_stream: OnTensor,
    on_update: OnTensor,
) -> None:
    """Run the model over ``ids`` [B, n] up to the last site's update.

    Tensors are handed over as the hooks find them: the stream is ``site.stream.coefficient`` times
    the one, the update ``site.update.coefficient`` times the other.
    """
    last = len(sites) - 1

    def stop_after(index: int, tensor: Tensor) -> Tensor | None:
        replaced = on_update(index, tensor)
        if index == last:
            raise PassOver
        return replaced

    hooks = _Hooks(model)
    for index, site in enumerate(sites):
        hooks.add(site.stream, index, on_stream)
        hooks.add(site.update, index, stop_after)
    with ExitStack() as exit_:
        hooks.install(exit_)
        try:
            model(input_ids=ids, use_cache=False)
        except PassOver:
            return


class _Hooks:
    """Hooks of all taps, one per module and side, in the order in which the taps were added."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._wanted: dict[tuple[str, str], list[tuple[Tap, int, OnTensor]]] = {}
        self._calls: Counter[tuple[str, str]] = Counter()

    def add(self, tap: Tap, index: int, on_tensor: OnTensor) -> None:
        self._wanted.setdefault((tap.path, tap.side), []).append((tap, index, on_tensor))

    def install(self, exit_: ExitStack) -> None:
        for key in self._wanted:
            module = self._model.get_submodule(key[0])
            handle: Any
            if key[1] == "input":
                handle = module.register_forward_pre_hook(
                    lambda _m, args, kwargs, key=key: self._input(key, args, kwargs),
                    with_kwargs=True,
                )
            else:
                handle = module.register_forward_hook(
                    lambda _m, _a, output, key=key: self._output(key, output)
                )
            exit_.callback(handle.remove)

    def _due(self, key: tuple[str, str]) -> list[tuple[Tap, int, OnTensor]]:
        wanted = self._wanted[key]
        call = self._calls[key] % wanted[0][0].calls
        self._calls[key] += 1
        return [entry for entry in wanted if entry[0].call == call]

    def _input(
        self, key: tuple[str, str], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        positional, named = list(args), dict(kwargs)
        for tap, index, on_tensor in self._due(key):
            replaced = on_tensor(index, tap.select(positional, named, None))
            if replaced is None:
                continue
            if isinstance(tap.key, int):
                positional[tap.key] = replaced
            else:
                named[str(tap.key)] = replaced
        return tuple(positional), named

    def _output(self, key: tuple[str, str], output: Any) -> Any:
        for tap, index, on_tensor in self._due(key):
            replaced = on_tensor(index, tap.select((), {}, output))
            if replaced is None:
                continue
            if tap.key is None:
                output = replaced
            else:
                parts = [replaced if i == tap.key else part for i, part in enumerate(output)]
                output = type(output)(parts)
        return output
