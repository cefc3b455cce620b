"""The whole prediction against measured gradients of small models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_families import build
from transformers import PreTrainedModel

from lacuna.evidence import aggregates
from lacuna.theory import agreement
from workers.instrument import inspect
from workers.second_moment import moments
from workers.second_moment.gains import HeadGate

LENGTH, DOCUMENTS, PROBES = 32, 6, 8


def some_ids(count: int = DOCUMENTS, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, 130, (count, length), generator=torch.Generator().manual_seed(0))


def jacobian_norms(model: PreTrainedModel, ids: torch.Tensor) -> np.ndarray:
    """Root mean square over random read-outs of |d<v, h>/d e_j|, by plain autograd."""
    found: dict[str, torch.Tensor] = {}

    def embedded(_m: object, _a: object, out: torch.Tensor) -> torch.Tensor:
        found["leaf"] = out.detach().requires_grad_()
        return found["leaf"].clone()

    handles = [
        model.get_input_embeddings().register_forward_hook(embedded),
        model.get_output_embeddings().register_forward_pre_hook(
            lambda _m, args: found.__setitem__("hidden", args[0])
        ),
    ]
    model(input_ids=ids, use_cache=False)
    for handle in handles:
        handle.remove()
    generator = torch.Generator().manual_seed(1)
    last, squares = found["hidden"][:, -1], torch.zeros(ids.shape, dtype=torch.float64)
    for _ in range(PROBES):
        read = (last * torch.randn(last.shape, generator=generator)).sum()
        (gradient,) = torch.autograd.grad(read, found["leaf"], retain_graph=True)
        squares += gradient.norm(dim=-1).double() ** 2
    return np.asarray(squares.sqrt())


@pytest.mark.parametrize(
    "family",
    ["gpt2", "gpt_neox_sequential", "openai_gpt", "opt", "bloom", "mistral_window", "phi",
     "granite", "mixtral"],
)  # fmt: skip
def test_it_predicts_what_is_measured(family: str) -> None:
    model, ids = build(family), some_ids()
    prediction = moments.predict(model, inspect(model), ids)
    assert prediction.reason is None
    assert prediction.influence is not None
    measured = aggregates.per_document(jacobian_norms(model, ids))
    assert agreement.wasserstein(measured, prediction.influence) < 0.03
    rank = agreement.spearman(measured, prediction.influence)
    assert rank is not None
    assert rank > 0.85


@pytest.mark.parametrize("family", ["glm4", "olmo2", "gemma2", "llama", "bloom", "gpt2"])
def test_norm_layers_behind_the_attention_are_noticed(family: str) -> None:
    model = build(family)
    behind = moments._rehearse(model, inspect(model), some_ids()[0, :8])
    assert behind is (family in ("glm4", "olmo2", "gemma2"))


def test_a_norm_layer_behind_the_attention_works_at_its_true_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, ids = build("glm4"), some_ids()
    found = inspect(model)
    measured = aggregates.per_document(jacobian_norms(model, ids))
    right = moments.predict(model, found, ids).influence
    # As if each token's own value were what the norm layer sees.
    monkeypatch.setattr(HeadGate, "_mixed", lambda _self, gated: gated)
    monkeypatch.setattr(moments, "_rehearse", lambda *_: False)
    wrong = moments.predict(model, found, ids).influence
    assert right is not None
    assert wrong is not None
    assert agreement.wasserstein(measured, right) < 0.05
    assert agreement.wasserstein(measured, right) < 0.5 * agreement.wasserstein(measured, wrong)


def test_bins_stay_close_to_every_token() -> None:
    model, ids = build("bloom"), some_ids(4, 96)
    found = inspect(model)
    fine, coarse = (moments.predict(model, found, ids, bins=bins).influence for bins in (96, 48))
    assert fine is not None
    assert coarse is not None
    assert coarse.shape == (96,)
    assert agreement.wasserstein(fine, coarse) < 0.02


def test_equal_seeds_equal_predictions_and_few_documents() -> None:
    model, ids = build("llama"), some_ids(5, 16)
    found = inspect(model)
    first, again, other = (moments.predict(model, found, ids, seed=s) for s in (3, 3, 4))
    assert first.influence is not None
    assert again.influence is not None
    assert other.influence is not None
    np.testing.assert_array_equal(first.influence, again.influence)
    assert agreement.wasserstein(first.influence, other.influence) < 0.02
    assert first.per_document is not None
    assert first.per_document.shape == (5, 16)
    np.testing.assert_allclose(first.per_document.sum(1), 1)
    few = moments.predict(model, found, ids, documents=2)
    assert few.per_document is not None
    assert len(few.per_document) == 2


@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_shortest_prompts(length: int) -> None:
    model = build("llama")
    prediction = moments.predict(model, inspect(model), some_ids(2, length))
    assert prediction.influence is not None
    assert prediction.influence.shape == (length,)
    assert prediction.influence.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("family", "reason"), [("gpt_oss", "sinks"), ("jamba", "other paths between positions")]
)
def test_what_it_does_not_cover_has_a_reason(family: str, reason: str) -> None:
    model = build(family)
    prediction = moments.predict(model, inspect(model), some_ids(2, 16))
    assert prediction.influence is None
    assert reason in (prediction.reason or "")


def test_giving_up_passes_through() -> None:
    model = build("llama")

    class GiveUp(Exception):
        pass

    def check() -> None:
        raise GiveUp

    with pytest.raises(GiveUp):
        moments.predict(model, inspect(model), some_ids(2, 16), check=check)
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
