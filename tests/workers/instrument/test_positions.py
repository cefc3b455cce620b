from __future__ import annotations

import pytest
import torch
from tiny_families import FAMILIES, WINDOW, build
from torch import Tensor

from lacuna.contract.errors import ModelUnsupported
from workers.instrument import describe_positions, inspect, positions_off
from workers.instrument.positions import unevenness

KINDS = {
    "alibi": ["bloom", "bloom_post_norm", "mpt", "falcon_alibi"],
    "learned": [
        "gpt2",
        "gpt2_scaled_by_layer",
        "gpt_neo",
        "openai_gpt",
        "opt",
        "opt_post_norm",
        "bert_decoder",
    ],
    "sinusoidal": ["xglm", "ctrl"],
    "none": ["jamba"],
}
NAMES = [name for name in FAMILIES if name not in ("t5", "bert", "mamba")]
HYBRID = ["jamba", "falcon_h1"]


@pytest.mark.parametrize("family", NAMES)
def test_kind(family: str) -> None:
    expected = next((kind for kind, names in KINDS.items() if family in names), "rotary")
    assert describe_positions(build(family)).kind == expected


@pytest.mark.parametrize(
    "family", [*KINDS["alibi"], *KINDS["sinusoidal"], "openai_gpt", "gpt_neo", "gpt2", "llama"]
)
def test_rounding_is_no_bias(family: str) -> None:
    full, half = build(family), build(family).to(torch.bfloat16)
    assert describe_positions(half).kind == describe_positions(full).kind


@pytest.mark.parametrize(
    ("family", "windows"),
    [
        ("llama", (None,) * 4),
        ("mistral_window", (WINDOW,) * 4),
        ("gemma2", (WINDOW, None) * 2),
        ("gpt_neo", (None, WINDOW) * 2),
        ("llama4", (None,) * 4),
    ],
)
def test_declared_windows(family: str, windows: tuple[int | None, ...]) -> None:
    found = describe_positions(build(family))
    assert found.windows == windows
    assert found.window == (WINDOW if WINDOW in windows else None)


@pytest.mark.parametrize("family", [name for name in NAMES if name not in HYBRID])
def test_off_makes_attention_to_equal_tokens_uniform(family: str) -> None:
    model = build(family)
    capture = inspect(model).capture
    before = unevenness(model, capture, length=20)
    with positions_off(model):
        assert unevenness(model, capture, length=20) < 1e-5
    assert unevenness(model, capture, length=20) == before > 1e-3


@pytest.mark.parametrize("family", ["gpt2", "llama", "bloom", "falcon_alibi", "xglm"])
def test_off_still_reads_the_whole_prompt(family: str, ids: Tensor) -> None:
    """Repeated position ids alone would split the prompt into sequences of their own."""
    model = build(family)
    other = ids.clone()
    other[:, 0] = (other[:, 0] + 1) % 100 + 3
    with positions_off(model), torch.no_grad():
        a, b = (model(input_ids=x, use_cache=False).logits[:, -1] for x in (ids, other))
    assert float((a - b).abs().max()) > 1e-4


@pytest.mark.parametrize("family", ["llama", "bloom", "mpt", "falcon_alibi", "gpt2"])
def test_off_is_undone(family: str, ids: Tensor) -> None:
    model = build(family)
    before = model(input_ids=ids).logits
    with positions_off(model):
        changed = model(input_ids=ids).logits
    assert not torch.allclose(changed, before, rtol=1e-3, atol=1e-4)
    assert torch.equal(model(input_ids=ids).logits, before)


@pytest.mark.parametrize("family", HYBRID)
def test_hybrids_cannot_be_switched_off(family: str) -> None:
    with pytest.raises(ModelUnsupported, match="order of the tokens"), positions_off(build(family)):
        pass


def test_off_that_does_not_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose ALiBi hides behind another name keeps its positions: that must be noticed."""
    model = build("bloom")
    found = inspect(model)
    monkeypatch.setattr("workers.instrument.positions._zeros", lambda function: function)
    with pytest.raises(ModelUnsupported, match="does not work"), positions_off(model, found):
        pass
