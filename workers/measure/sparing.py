"""Trading time for memory: each decoder layer's forward pass is repeated during the backward pass.

Only the layers' inputs stay in memory in between. Gradients are the same to the bit; the pass
takes about a third longer (the forward pass twice). transformers' own gradient checkpointing does
nothing in evaluation mode, so the layers are wrapped here. Hooks see a layer's inside twice: taps
have to leave out the repetition, as those of `workers.instrument` do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The stack that holds most parameters; empty when the model has no list of layers."""
    stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    largest = max(stacks, key=_size, default=None)
    return [] if largest is None or len(largest) < 2 else list(dict.fromkeys(largest))


@contextmanager
def sparing(model: nn.Module) -> Iterator[None]:
    """Passes inside recompute every decoder layer for the backward pass."""
    layers = decoder_layers(model)
    for layer in layers:
        layer.forward = _repeating(layer.forward)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # the class's own comes back


def _repeating(forward: Callable[..., Any]) -> Callable[..., Any]:
    def repeated(*args: Any, **kwargs: Any) -> Any:
        # Nothing is random in evaluation mode: no generator state to keep.
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return repeated


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
