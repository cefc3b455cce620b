from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lacuna.contract.errors import TooLarge
from lacuna.contract.profile_requests import ProfileRequest
from service.settings import Settings
from workers.job.handler import check_cost
from workers.models.loaded import LoadedModel


def test_the_cost_is_checked_again_with_the_size_of_the_model(
    tiny_model: Callable[..., Any],
) -> None:
    model = tiny_model()
    loaded = LoadedModel(
        model=model,
        tokenizer=None,
        id="local:tiny",
        revision=None,
        config_digest="0" * 40,
        device=torch.device("cpu"),
        dtype=torch.float32,
        weights="random",
        seed=0,
    )
    request = ProfileRequest(model="local:tiny", weights="random", sequence_length=16)
    check_cost(request, loaded, Settings(max_cost_gpu=1))
    with pytest.raises(TooLarge, match=r"local:tiny has 3 layers .*LACUNA_MAX_COST\)") as info:
        check_cost(request, loaded, Settings(max_cost=1))
    assert info.value.field == "sequence_length"
