from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_families import build
from tiny_types import tiny
from torch import Tensor

from workers.attention.kernels import KernelRecorder
from workers.instrument import inspect
from workers.instrument.capture import choose


def logits(model: object, ids: Tensor) -> Tensor:
    with torch.no_grad():
        found = model(input_ids=ids, use_cache=False).logits  # type: ignore[operator]
    assert isinstance(found, Tensor)
    return found


@pytest.mark.parametrize("family", ["bloom", "mpt", "xglm"])
def test_a_foreign_attention_that_is_ignored_is_noticed(
    family: str, ids: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These take any implementation's name, and then build their mask as that name says."""
    model = build(family)
    before = model.config._attn_implementation
    monkeypatch.setattr(type(model), "_can_set_attn_implementation", classmethod(lambda _: True))
    found = choose(model, ids, logits(model, ids), cores=4, tolerance=2e-4)
    assert found.capture == "softmax"
    assert any(reason.startswith("interface") for reason in found.rejected)
    assert model.config._attn_implementation == before


def test_a_way_that_moves_the_logits_is_rejected(ids: Tensor) -> None:
    model = build("llama")
    found = choose(model, ids, 1.01 * logits(model, ids), cores=4, tolerance=2e-4)
    assert found.capture == "none"
    assert any("moves the logits" in reason for reason in found.rejected)


def test_a_way_that_misses_operations_is_rejected(ids: Tensor) -> None:
    model = build("llama")
    found = choose(model, ids, logits(model, ids), cores=5, tolerance=2e-4)
    assert found.capture == "none"
    assert any("4 of 5" in reason for reason in found.rejected)


def test_without_a_way_there_is_no_tap() -> None:
    model = build("llama")
    with pytest.raises(ValueError, match="cannot be watched"):
        KernelRecorder(model, replace(inspect(model), capture="none"))


def test_every_part_keeps_the_attention_it_had() -> None:
    """Text and image towers may differ in their implementation."""
    model = tiny("gemma3")
    towers = {"text_config": "sdpa", "vision_config": "eager"}
    model.set_attn_implementation(towers)
    assert inspect(model).capture == "interface"
    for name, implementation in towers.items():
        assert getattr(model.config, name)._attn_implementation == implementation
