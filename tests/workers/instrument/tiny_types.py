"""A tiny model of any causal model type that transformers registers, built by shrinking its config.

One table of small numbers serves nearly all types; `OVERRIDES` holds what single types need beyond
it, `ATTEMPTS` variations tried in turn until a model builds and runs.
"""

from __future__ import annotations

from typing import Any

import torch
from tiny_families import HEADS, LAYERS, SPECIAL, VOCABULARY, WIDTH, WINDOW
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

MODEL_TYPES: list[str] = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
LARGEST = 30e6

SMALL: dict[str, Any] = SPECIAL | {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "head_dim": 16,
    "sliding_window": WINDOW,
    # Older names of the same things.
    "n_embd": WIDTH,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "n_positions": 512,
    "d_model": WIDTH,
    "num_layers": LAYERS,
    "num_heads": HEADS,
    "attention_heads": HEADS,
    "decoder_layers": LAYERS,
    "decoder_attention_heads": HEADS,
    "encoder_layers": 2,
    "encoder_attention_heads": HEADS,
    "ffn_dim": 96,
    "ffn_hidden_size": 96,
    "decoder_ffn_dim": 96,
    "encoder_ffn_dim": 96,
    "d_ff": 96,
    "d_kv": 16,
    "vocab_size_per_layer_input": VOCABULARY,
    # Experts.
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    # Latent attention.
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    # Linear attention and state spaces beside softmax attention.
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "depth": 1,
    "num_heads": 2,
    "embed_dim": 32,
    "d_model": 32,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "num_global_layers": 1,
    "out_hidden_size": WIDTH,
}
"""For the image and audio towers that come with a language model and stay idle."""

PLAIN_NAMES = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"]
PLAIN_NAMES += [
    "num_key_value_heads",
    "intermediate_size",
    "d_model",
    "n_embd",
    "n_layer",
    "n_head",
]

ATTEMPTS: list[dict[str, Any]] = [
    {},
    {"num_key_value_heads": None},
    {"num_key_value_heads": HEADS},
]

HALF = ["linear_attention", "full_attention"] * (LAYERS // 2)
SLIDING = ["sliding_attention", "full_attention"] * (LAYERS // 2)
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LATENT = {"head_dim": 8, "num_key_value_heads": HEADS, "first_k_dense_replace": 1}
MAMBA2 = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_chunk_size": 8,
}
GEMMA4: dict[str, Any] = {
    "head_dim": 16,
    "layer_types": SLIDING,
    "per_layer_config": None,
    "hidden_size_per_layer_input": 16,
}
LINEAR = {
    "layer_types": HALF,
    "linear_head_dim": 16,
    "linear_num_heads": 4,
    "num_experts_per_token": 2,
    "num_expert_group": 1,
    "head_dim": 8,
    "num_key_value_heads": HEADS,
}

OVERRIDES: dict[str, dict[str, Any]] = {
    "axk1": LATENT,
    "bailing_hybrid": LINEAR,
    "bamba": MAMBA2 | {"attn_layer_indices": [1, 3]},
    "blt": {
        "encoder_hash_byte_group_vocab": 50,
        "encoder_hash_byte_group_size": [3, 4],
        "vocab_size": 260,
    },
    "codegen": {"rotary_dim": 8},
    "cohere_compass_text": {"rope_parameters": {"full_attention": ROPE}},
    "dbrx": {
        "n_heads": HEADS,
        "n_layers": LAYERS,
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    },
    "deepseek_v3": LATENT,
    "dots3_note_text": {"per_layer_config": None, "head_dim": 24, "num_key_value_heads": HEADS},
    "falcon_h1": MAMBA2 | {"mamba_d_ssm": 128},
    "gemma3n_text": {
        "num_kv_shared_layers": 0,
        "layer_types": SLIDING,
        "intermediate_size": [96] * LAYERS,
        "activation_sparsity_pattern": [0.0] * LAYERS,
        "hidden_size_per_layer_input": 16,
        "laurel_rank": 8,
    },
    "gemma4": {"text_config": GEMMA4},
    "gemma4_text": GEMMA4,
    "gemma4_unified": {"text_config": GEMMA4},
    "gpt_neo": {"attention_types": [[["global", "local"], LAYERS // 2]], "window_size": WINDOW},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": MAMBA2 | {"layer_types": HALF, "shared_intermediate_size": 64},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_d_state": 8,
        "mamba_dt_rank": 8,
        "use_mamba_kernels": False,
    },
    "kimi_linear": LINEAR,
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * (LAYERS // 2)},
    "longcat_flash": LATENT | {"zero_expert_num": 2, "expert_ffn_hidden_size": 32},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1, "state_size": 16},
    "musicgen": {},
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 1, "chunk_size": 8},
    "prophetnet": {
        "num_hidden_layers": None,
        "num_encoder_layers": 1,
        "num_decoder_layers": LAYERS,
        "num_encoder_attention_heads": HEADS,
        "num_decoder_attention_heads": HEADS,
    },
    "qwen4_exp_text": {"layer_types": ["linear_attention", "indexed_attention"] * (LAYERS // 2)},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "lru_width": WIDTH},
    "xmod": {"default_language": "en_XX"},
    "xlnet": {"max_position_embeddings": None},
    "youtu": LATENT,
    "zaya": {"num_experts_per_tok": 1},
    "zamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "use_mamba_kernels": False,
        "attention_hidden_size": 2 * WIDTH,
        "attention_head_dim": 32,
        "num_key_value_heads": HEADS,
        "mamba_d_state": 8,
        "mamba_dt_rank": 8,
        "num_hidden_layers": 6,
    },
    "zamba2": {
        "mamba_d_state": 16,
        "mamba_headdim": 16,
        "n_mamba_heads": 8,
        "adapter_rank": 8,
        "layers_block_type": ["mamba", "hybrid"] * (LAYERS // 2),
        "hybrid_layer_ids": [1, 3],
        "attention_head_dim": 32,
        "attention_hidden_size": 2 * WIDTH,
        "num_key_value_heads": HEADS,
        "kv_channels": 16,
        "num_query_groups": HEADS,
    },
}


class NotBuilt(Exception):
    """No tiny model of this type could be built; the sentence says why."""


def tiny(model_type: str) -> PreTrainedModel:
    """Build a model of the type with random weights and run it once.

    Raises:
        NotBuilt: with the last failure.
    """
    reason = ""
    for attempt in ATTEMPTS:
        try:
            return _runs(_model(_config(model_type, attempt)))
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    raise NotBuilt(reason)


def _config(model_type: str, attempt: dict[str, Any]) -> PreTrainedConfig:
    kind = CONFIG_MAPPING[model_type]
    overrides = OVERRIDES.get(model_type, {})
    try:
        default = kind()
    except Exception:  # some types have no default configuration
        return kind(**{**SMALL, **attempt, **overrides})
    fields = _known(default, {**SMALL, **attempt})
    for name in default.sub_configs:
        part = getattr(default, name, None)
        if isinstance(part, PreTrainedConfig):
            small = {**SMALL, **attempt} if "text" in name or "decoder" in name else TOWER
            fields[name] = _known(part, small)
    for name, value in overrides.items():
        both = isinstance(value, dict) and isinstance(fields.get(name), dict)
        fields[name] = {**fields[name], **value} if both else value
    return kind(**{name: value for name, value in fields.items() if value is not None})


def _known(config: PreTrainedConfig, fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in fields.items()
        if value is not None and _has(config, name) and not _read_only(config, name)
    }


def _has(config: PreTrainedConfig, name: str) -> bool:
    try:
        return hasattr(config, name)
    except Exception:  # an attribute that differs between layers may refuse to be read
        return True


def _read_only(config: PreTrainedConfig, name: str) -> bool:
    found = getattr(type(config), name, None)
    return isinstance(found, property) and found.fset is None


def _model(config: PreTrainedConfig) -> PreTrainedModel:
    with torch.device("meta"):
        parameters = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if parameters > LARGEST:
        raise NotBuilt(f"{parameters / 1e6:.0f} million parameters are left after shrinking")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model.eval().requires_grad_(False)


@torch.no_grad()
def _runs(model: PreTrainedModel) -> PreTrainedModel:
    model(input_ids=torch.arange(3, 27).view(2, 12), use_cache=False)
    return model
