"""A model in memory reads a document alike, whatever it has read before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lacuna.contract.errors import TooLong
from lacuna.contract.profile_requests import ProfileRequest
from workers.models.loading import LoadOptions, load


def test_dynamic_frequencies_forget_longer_documents(
    save: Callable[..., Path], options: LoadOptions
) -> None:
    scaling = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}
    save(hidden_size=64, max_position_embeddings=32, rope_parameters=scaling)
    model = load(ProfileRequest(model="local:tiny", sequence_length=16), options).model
    short, middle, long = (torch.arange(2, 2 + size)[None] for size in (16, 48, 120))
    first = [model(ids).logits for ids in (short, middle)]
    model(long)
    again = [model(ids).logits for ids in (middle, short)]
    assert torch.equal(first[1], again[0])
    assert torch.equal(first[0], again[1])


@pytest.mark.parametrize("kind", ["linear", "yarn", "dynamic"])
def test_scaled_positions_are_read_to_their_real_length(
    kind: str, save: Callable[..., Path], options: LoadOptions
) -> None:
    scaling = {"rope_type": kind, "factor": 4.0, "rope_theta": 10_000.0}
    save(
        hidden_size=64, max_position_embeddings=64, max_sequence_length=256, rope_parameters=scaling
    )
    for length in (65, 256):
        model = load(ProfileRequest(model="local:tiny", sequence_length=length), options).model
        assert model(torch.arange(2, 2 + length)[None]).logits.isfinite().all()
    with pytest.raises(TooLong, match="257 tokens are more than the 256"):
        load(ProfileRequest(model="local:tiny", sequence_length=257), options)
