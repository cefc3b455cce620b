from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lacuna.contract.errors import Cancelled, InvalidRequest, ModelUnsupported, NotFinite, TooLong
from lacuna.contract.profile_requests import Documents
from workers import documents
from workers.documents import DocumentSet
from workers.influence import influence
from workers.models.loaded import LoadedModel

FAMILIES = ["llama", "gpt2", "bloom", "mpt", "gemma2", "cohere", "granite", "mixtral", "ctrl"]


def some_documents(count: int = 3, length: int = 20, vocabulary: int = 300) -> DocumentSet:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, vocabulary, (count, length), generator=generator)
    return DocumentSet(ids, leading_bos=False, source="random_tokens")


def by_plain_autograd(model: Any, ids: torch.Tensor) -> tuple[np.ndarray, float]:
    """The definition: embeddings passed as the input, full logits, one document."""
    embeddings = model.get_input_embeddings()(ids[None]).detach().requires_grad_()
    logits = model(inputs_embeds=embeddings).logits[0, -1]
    probability = logits.softmax(-1).max()
    (gradient,) = torch.autograd.grad(probability, embeddings)
    return gradient[0].norm(dim=-1).numpy(), probability.item()


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("ctrl", "mixtral")])
def test_equals_plain_autograd_in_float64(
    family: str, tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    model, given = tiny_model(family, dtype="float64"), some_documents()
    found = influence.measure(as_loaded(model), given, batch_size=2)
    for row, ids in enumerate(given.ids):
        norms, probability = by_plain_autograd(model, ids)
        np.testing.assert_allclose(found.norms[row], norms, rtol=1e-9, atol=1e-14)
        assert found.scores[row] == pytest.approx(probability, rel=1e-12)


def sharpened(tiny_model: Callable[..., Any], by: float, dtype: str) -> Any:
    """A GPT-2 whose final norm is `by` times larger, so that its answers are nearly certain."""
    model = tiny_model("gpt2", n_embd=64, dtype=dtype)
    for parameter in model.transformer.ln_f.parameters():
        parameter.mul_(by)
    return model


def certain(model: Any, given: DocumentSet) -> torch.Tensor:
    with torch.no_grad():
        return model(given.ids).logits[:, -1].softmax(-1).max(-1).values == 1


@pytest.mark.parametrize("by", [20.0, 150.0, 10_000.0])
@pytest.mark.parametrize("objective", ["argmax_probability", "target_logprob"])
def test_saturated_documents_are_measured(
    by: float, objective: Any, tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    """Where p rounds to 1, in float32 its plain gradient vanishes."""
    single, double = (sharpened(tiny_model, by, kind) for kind in ("float32", "float64"))
    given = some_documents(16)
    if by > 20:
        assert certain(single, given).any()
    if by > 1000:
        assert certain(double, given).any()
    target = [int(double(given.ids[:1]).logits[0, -1].argmax())]
    found, exact = (
        influence.measure(
            as_loaded(model), given, batch_size=8, objective=objective, target_ids=target
        ).norms
        for model in (single, double)
    )
    assert (found.sum(axis=1) > 0).all()
    shares, expected = (one / one.sum(axis=1, keepdims=True) for one in (found, exact))
    np.testing.assert_allclose(shares, expected, rtol=2e-2, atol=1e-4)


def test_saturated_gradients_are_those_of_the_logits_difference(
    tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    """With two candidates left, dp = p (1 - p) d(z_1 - z_2), however small 1 - p is."""
    model, given = sharpened(tiny_model, 2_000.0, "float64"), some_documents(8)
    found = influence.measure(as_loaded(model), given, batch_size=8).norms
    saturated = certain(model, given)
    assert saturated.any()
    for row in saturated.nonzero()[:, 0].tolist():
        embeddings = model.get_input_embeddings()(given.ids[row][None]).detach().requires_grad_()
        logits = model(inputs_embeds=embeddings).logits[0, -1]
        (first, second), _ = logits.topk(2)
        (gradient,) = torch.autograd.grad(first - second, embeddings)
        norms = gradient[0].norm(dim=-1).numpy()
        np.testing.assert_allclose(found[row] / found[row].sum(), norms / norms.sum(), rtol=1e-6)
        gap = float((first - second).detach())
        if gap < 600:
            np.testing.assert_allclose(found[row], np.exp(-gap) * norms, rtol=1e-6)


def test_equals_plain_autograd_on_a_real_model(smollm2: LoadedModel) -> None:
    given = documents.build(Documents(count=2), smollm2, 64, seed=0)
    found = influence.measure(smollm2, given, batch_size=2)
    for row, ids in enumerate(given.ids):
        norms, _ = by_plain_autograd(smollm2.model, ids)
        assert np.abs(found.norms[row] / norms - 1).max() < 3e-3


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("objective", ["argmax_probability", "jacobian", "target_logprob"])
def test_does_not_depend_on_the_batch(
    family: str,
    objective: Any,
    tiny_model: Callable[..., Any],
    as_loaded: Callable[..., LoadedModel],
) -> None:
    loaded, given = as_loaded(tiny_model(family)), some_documents(count=5)
    options: dict[str, Any] = {"objective": objective, "target_ids": [5, 9, 3], "probes": 2}
    alone = influence.measure(loaded, given, batch_size=1, **options)
    for size in (2, 5):
        together = influence.measure(loaded, given, batch_size=size, **options)
        np.testing.assert_allclose(together.norms, alone.norms, rtol=3e-4, atol=1e-9)
        np.testing.assert_allclose(together.scores, alone.scores, rtol=1e-4)


def test_the_other_documents_in_the_batch_do_not_matter(
    tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    loaded, given = as_loaded(tiny_model(dtype="float64")), some_documents(count=2)
    other = given.ids.clone()
    other[1] = other[1].flip(0)
    first = influence.measure(loaded, given, batch_size=2).norms
    second = influence.measure(
        loaded, DocumentSet(other, leading_bos=False, source="inline"), batch_size=2
    ).norms
    np.testing.assert_allclose(first[0], second[0], rtol=1e-12)
    assert np.abs(first[1] - second[1]).max() > 1e-3 * first[1].max()


@pytest.mark.parametrize("objective", ["argmax_probability", "jacobian"])
def test_two_runs_give_the_same_bits(
    objective: Any, tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    loaded, given = as_loaded(tiny_model()), some_documents(count=5)
    one, two = (influence.measure(loaded, given, objective=objective, seed=3) for _ in range(2))
    assert one.norms.tobytes() == two.norms.tobytes()
    assert one.batch_size == two.batch_size


def test_the_leaf_is_what_the_embedding_module_puts_out(
    tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    # By finite differences, through a model whose embeddings cannot be passed in as they are.
    model, given = tiny_model("ctrl", dtype="float64"), some_documents(count=1, length=6)
    found = influence.measure(as_loaded(model), given).norms[0]
    nudge: dict[str, Any] = {"at": 0, "axis": 0, "by": 0.0}

    def add(_module: Any, _args: Any, output: torch.Tensor) -> torch.Tensor:
        moved = output.clone()
        moved[0, nudge["at"], nudge["axis"]] += nudge["by"]
        return moved

    handle = model.get_input_embeddings().register_forward_hook(add)
    try:
        token = int(model(given.ids).logits[0, -1].argmax())
        gradient = np.zeros((6, 32))
        for at in range(6):
            for axis in range(32):
                values = []
                for by in (1e-5, -1e-5):
                    nudge.update(at=at, axis=axis, by=by)
                    values.append(float(model(given.ids).logits[0, -1].softmax(-1)[token]))
                gradient[at, axis] = (values[0] - values[1]) / 2e-5
    finally:
        handle.remove()
    np.testing.assert_allclose(found, np.linalg.norm(gradient, axis=-1), rtol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_continuation_of_tokens_that_the_model_lacks_is_refused(
    family: str, tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    given = DocumentSet(torch.full((1, 8), 5), leading_bos=False, source="inline")
    with pytest.raises(InvalidRequest, match="token 300") as caught:
        influence.measure(
            as_loaded(tiny_model(family)), given, objective="target_logprob", target_ids=[3, 300]
        )
    assert caught.value.field == "target"


def test_target_logprob_is_the_logarithm_of_a_product_of_next_token_probabilities(
    tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    model, given, target = tiny_model(dtype="float64"), some_documents(count=2), [4, 8, 15]
    found = influence.measure(
        as_loaded(model), given, objective="target_logprob", target_ids=target
    )
    for row, ids in enumerate(given.ids):
        whole = torch.cat([ids, torch.tensor(target)])
        expected = sum(
            float(model(whole[None, : 20 + step]).logits[0, -1].log_softmax(-1)[token])
            for step, token in enumerate(target)
        )
        assert found.scores[row] == pytest.approx(expected, rel=1e-10)
    assert found.norms.shape == (2, 20)


def test_jacobian_probes_estimate_the_frobenius_norm(
    tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    model, given = tiny_model(dtype="float64"), some_documents(count=1, length=8)
    found = influence.measure(as_loaded(model), given, objective="jacobian", probes=600, seed=1)
    embeddings = model.get_input_embeddings()(given.ids).detach()
    exact = torch.autograd.functional.jacobian(
        lambda e: model.model(inputs_embeds=e).last_hidden_state[0, -1], embeddings
    )
    frobenius = exact[:, 0].pow(2).sum(dim=(0, 2)).sqrt().numpy()
    assert found.standard_error is not None
    assert np.abs((found.norms[0] - frobenius) / found.standard_error[0]).max() < 4
    assert found.standard_error[0].max() < 0.1 * frobenius.max()


def test_only_the_last_positions_reach_the_head(
    tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    for family in FAMILIES:
        model = tiny_model(family)
        seen: list[int] = []
        handle = model.get_output_embeddings().register_forward_hook(
            lambda _m, _a, output, seen=seen: seen.append(output.shape[1])
        )
        influence.measure(as_loaded(model), some_documents(count=1))
        influence.measure(
            as_loaded(model),
            some_documents(count=1),
            objective="target_logprob",
            target_ids=[3, 4],
        )
        handle.remove()
        assert set(seen) == {1, 2}, family


@pytest.mark.parametrize("length", [1, 2])
def test_shortest_documents(
    length: int, tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    found = influence.measure(as_loaded(tiny_model()), some_documents(length=length))
    assert found.norms.shape == (3, length)
    assert (found.norms > 0).all()


def test_nan_names_the_dtype(
    tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    model = tiny_model(dtype="bfloat16")
    model.model.norm.weight.data.fill_(float("nan"))
    with pytest.raises(NotFinite, match=r"bfloat16.*float32"):
        influence.measure(as_loaded(model), some_documents())


def test_vanishing_gradients_are_an_error_and_not_a_flat_profile(
    tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    model = tiny_model()
    model.model.norm.weight.data.zero_()
    with pytest.raises(NotFinite, match="vanish in float32"):
        influence.measure(as_loaded(model), some_documents())


def test_half_precision_gives_finite_float64_results(
    tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    exact = influence.measure(as_loaded(tiny_model()), some_documents()).norms
    half = influence.measure(as_loaded(tiny_model(dtype="bfloat16")), some_documents()).norms
    assert half.dtype == np.float64
    p, q = exact.sum(0) / exact.sum(), half.sum(0) / half.sum()
    assert 0 < np.abs(p - q).sum() / 2 < 0.1


def test_progress_after_each_batch_and_what_it_raises_ends_the_work(
    tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    loaded, steps = as_loaded(tiny_model()), []
    influence.measure(
        loaded, some_documents(count=5), batch_size=2, on_batch=lambda *at: steps.append(at)
    )
    assert steps == [(2, 5), (4, 5), (5, 5)]

    def cancel(_done: int, _total: int) -> None:
        raise Cancelled("withdrawn")

    with pytest.raises(Cancelled):
        influence.measure(loaded, some_documents(), on_batch=cancel)
    assert not loaded.model.get_input_embeddings()._forward_hooks


def test_continuation_counts_towards_the_model_s_length(
    tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    loaded = as_loaded(tiny_model("gpt2"))
    with pytest.raises(TooLong, match="130 tokens are more than the 128"):
        influence.measure(
            loaded,
            some_documents(length=128),
            objective="target_logprob",
            target_ids=[1, 2, 3],
        )


def test_jacobian_needs_a_head_to_read_from(
    tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    model = tiny_model()
    model.get_output_embeddings = lambda: None
    with pytest.raises(ModelUnsupported, match="no LM head"):
        influence.measure(as_loaded(model), some_documents(), objective="jacobian")


@pytest.mark.parametrize("family", ["llama", "gpt2", "cohere", "mixtral"])
def test_fused_and_plain_attention_agree(
    family: str, tiny_model: Callable[..., Any], as_loaded: Callable[..., LoadedModel]
) -> None:
    model, given = tiny_model(family), some_documents()
    norms = {}
    for implementation in ("sdpa", "eager"):
        model.set_attn_implementation(implementation)
        norms[implementation] = influence.measure(as_loaded(model), given).norms
    np.testing.assert_allclose(norms["sdpa"], norms["eager"], rtol=1e-3)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("bfloat16", 0.1)])
def test_does_not_depend_on_the_batch_in_any_dtype(
    dtype: str,
    tolerance: float,
    tiny_model: Callable[..., Any],
    as_loaded: Callable[..., LoadedModel],
) -> None:
    loaded, given = as_loaded(tiny_model(dtype=dtype)), some_documents(count=4)
    alone, together = (influence.measure(loaded, given, batch_size=b).norms for b in (1, 4))
    assert np.abs(alone - together).max() <= tolerance * alone.max()


def test_a_language_model_inside_a_multimodal_wrapper(
    as_loaded: Callable[..., LoadedModel], one_thread: None
) -> None:
    text = {
        "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8,
        "max_position_embeddings": 128,
    }  # fmt: skip
    vision = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
    }  # fmt: skip
    config = AutoConfig.for_model("gemma3", text_config=text, vision_config=vision)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    model = model.eval().requires_grad_(False)
    given = some_documents()
    found = influence.measure(as_loaded(model), given, batch_size=3)
    for row, ids in enumerate(given.ids):
        norms, _ = by_plain_autograd(model, ids)
        np.testing.assert_allclose(found.norms[row], norms, rtol=1e-6)


@pytest.mark.slow
def test_the_profile_of_a_real_model_is_as_it_was_once_measured(smollm2: LoadedModel) -> None:
    # n = 256, 32 documents of the built-in text, float32: p0 0.009, p[254] 0.060, p[255] 0.043.
    given = documents.build(Documents(count=32), smollm2, 256, seed=0)
    norms = influence.measure(smollm2, given).norms
    curve = norms.mean(axis=0) / norms.mean(axis=0).sum()
    for at, value in ((0, 0.009), (254, 0.060), (255, 0.043)):
        assert value / 2 < curve[at] < value * 2
