"""A whole service on real processes: embedded store, gateway, workers, a tiny real model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from service.local.stack import Stack
from service.settings import Settings


def save_tiny_llama(folder: Path, *, layers: int = 2, longest: int = 512) -> None:
    """A random Llama of a few thousand parameters with a byte tokenizer, as a model folder."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    wrapped.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=longest,
        bos_token_id=0,
        eos_token_id=1,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_tiny_llama(folder / "tiny")
    save_tiny_llama(folder / "deep", layers=12)
    save_tiny_llama(folder / "long", layers=24, longest=16_384)
    return folder


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Settings:
    # A short path: a unix socket's address has at most 107 bytes.
    folder = tmp_path_factory.mktemp("s")
    return Settings(data_dir=folder, model_dir=model_dir, lease_seconds=3.0, log_format="text")


@pytest.fixture(scope="module")
def stack(settings: Settings) -> Iterator[Stack]:
    with Stack(settings) as running:
        yield running
