"""Tiny random models of families that differ in structure, by a name of our own."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCABULARY, WIDTH, LAYERS, HEADS, WINDOW = 131, 64, 4, 4, 8

SPECIAL: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PLAIN: dict[str, Any] = SPECIAL | {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
}
GROUPED = PLAIN | {"num_key_value_heads": 2}
GPT: dict[str, Any] = SPECIAL | {
    "vocab_size": VOCABULARY,
    "n_positions": 512,
    "n_embd": WIDTH,
    "n_layer": LAYERS,
    "n_head": HEADS,
}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": WINDOW}
GEMMA = GROUPED | ALTERNATING | {"head_dim": 16, "query_pre_attn_scalar": 24}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_key_value_heads": HEADS,
}
FALCON = SPECIAL | {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "bias": False,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", GPT),
    "gpt2_scaled_by_layer": ("gpt2", GPT | {"scale_attn_by_inverse_layer_idx": True}),
    "gpt_neo": (
        "gpt_neo",
        PLAIN
        | {
            "num_layers": LAYERS,
            "num_heads": HEADS,
            "window_size": WINDOW,
            "attention_types": [[["global", "local"], 2]],
        },
    ),
    "gpt_neox": ("gpt_neox", PLAIN),
    "gpt_neox_sequential": ("gpt_neox", PLAIN | {"use_parallel_residual": False}),
    "gptj": ("gptj", GPT | {"rotary_dim": 8}),
    "openai_gpt": ("openai-gpt", GPT),
    "ctrl": ("ctrl", GPT | {"dff": 96}),
    "opt": ("opt", PLAIN | {"ffn_dim": 96, "word_embed_proj_dim": WIDTH}),
    "opt_post_norm": (
        "opt",
        PLAIN | {"ffn_dim": 96, "word_embed_proj_dim": 32, "do_layer_norm_before": False},
    ),
    "xglm": (
        "xglm",
        PLAIN | {"d_model": WIDTH, "num_layers": LAYERS, "attention_heads": HEADS, "ffn_dim": 96},
    ),
    "bloom": ("bloom", GPT | {"hidden_size": WIDTH}),
    "bloom_post_norm": (
        "bloom",
        GPT | {"hidden_size": WIDTH, "apply_residual_connection_post_layernorm": True},
    ),
    "mpt": (
        "mpt",
        {
            "vocab_size": VOCABULARY,
            "d_model": WIDTH,
            "n_heads": HEADS,
            "n_layers": LAYERS,
            "max_seq_len": 512,
        },
    ),
    "falcon_alibi": (
        "falcon",
        FALCON | {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    ),
    "falcon_parallel": ("falcon", FALCON | {"multi_query": True}),
    "falcon_new": ("falcon", FALCON | {"num_kv_heads": 2, "new_decoder_architecture": True}),
    "llama": ("llama", GROUPED),
    "mistral_window": ("mistral", GROUPED | {"sliding_window": WINDOW}),
    "qwen3": ("qwen3", GROUPED | {"head_dim": 16}),
    "phi": ("phi", GROUPED),
    "gemma2": ("gemma2", GEMMA),
    "gemma3": ("gemma3_text", GEMMA),
    "glm4": ("glm4", GROUPED | {"head_dim": 16}),
    "olmo2": ("olmo2", GROUPED),
    "cohere": ("cohere", GROUPED),
    "granite": (
        "granite",
        GROUPED
        | {"residual_multiplier": 0.22, "embedding_multiplier": 12.0, "attention_multiplier": 0.1},
    ),
    "minicpm3": ("minicpm3", GROUPED | LATENT | {"scale_depth": 1.4, "scale_emb": 12}),
    "mixtral": ("mixtral", GROUPED | EXPERTS),
    "gpt_oss": ("gpt_oss", GROUPED | EXPERTS | {"head_dim": 16, "sliding_window": WINDOW}),
    "deepseek_v3": (
        "deepseek_v3",
        GROUPED
        | LATENT
        | {
            "moe_intermediate_size": 32,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
    ),
    "llama4": (
        "llama4_text",
        GROUPED
        | {
            "head_dim": 16,
            "intermediate_size_mlp": 96,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": WINDOW,
        },
    ),
    "jamba": (
        "jamba",
        GROUPED
        | {
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "mamba_d_state": 8,
            "mamba_dt_rank": 8,
            "use_mamba_kernels": False,
        },
    ),
    "falcon_h1": (
        "falcon_h1",
        GROUPED
        | {
            "mamba_d_ssm": 64,
            "mamba_n_heads": 4,
            "mamba_d_head": 16,
            "mamba_n_groups": 1,
            "mamba_chunk_size": 8,
            "mamba_d_state": 16,
            "head_dim": 16,
        },
    ),
    "mamba": ("mamba", {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2}),
    "bert": ("bert", PLAIN),
    "bert_decoder": ("bert", PLAIN | {"is_decoder": True}),
    "t5": ("t5", {"vocab_size": VOCABULARY, "d_model": WIDTH, "num_layers": 1, "num_heads": HEADS}),
}


def build(family: str, attention: str | None = None, **changes: Any) -> PreTrainedModel:
    """A model whose norms, biases and content are far from their tame initial values."""
    model_type, fields = FAMILIES[family]
    config = AutoConfig.for_model(model_type, **(fields | changes))
    options = {} if attention is None else {"attn_implementation": attention}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **options)
        with torch.no_grad():
            for weights in model.parameters():
                spread = 0.3 if weights.dim() == 1 else 0.05
                weights.add_(spread * torch.randn_like(weights))
    return model.eval().requires_grad_(False)
