"""Kernels of every head by an observer of our own: the rival of what the workers keep in sums."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from workers.instrument import inspect
from workers.instrument.attention import AttentionCall, BatchShape
from workers.instrument.capture import capturing


class HeadKernels:
    """Observer that keeps every weight of every document, [B, H, n, n] per attention operation."""

    def __init__(self) -> None:
        self.weights: list[Tensor] = []

    def begin(self, call: AttentionCall) -> None:
        self.weights.append(torch.zeros(call.batch, call.heads, call.length, call.keys))

    def rows(self, call: AttentionCall, start: int, probabilities: Tensor) -> None:
        stop, reach = start + probabilities.shape[2], probabilities.shape[3]
        self.weights[-1][:, :, start:stop, :reach] = probabilities


def head_kernels(model: PreTrainedModel, ids: Tensor) -> list[NDArray[np.float64]]:
    """Mean over the documents ``ids`` [K, n], per attention operation [H, n, n]."""
    seen, shape = HeadKernels(), BatchShape(*ids.shape)
    with capturing(model, inspect(model).capture, seen, shape), torch.no_grad():
        model(input_ids=ids, use_cache=False)
    return [weights.double().mean(0).numpy() for weights in seen.weights]
