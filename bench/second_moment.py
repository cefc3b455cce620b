"""How well theory predicts measured influence: the second moment beside the rollouts.

    python bench/second_moment.py [--models gpt2 bloom qwen2 smollm2] [--documents 16] [--draws 3]

Every row: normalised Wasserstein distance and Spearman correlation of a prediction against the
measured curve, n = 256, and beside them the split-half distance of the measurement (half the
documents against the other half: what noise alone gives). Random weights: objective `jacobian`,
random tokens. SmolLM2 (trained): objective `argmax_probability`, Python's documentation of
language topics, several draws of documents.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, BloomConfig, PreTrainedConfig, Qwen2Config

from lacuna.contract.profile_requests import Objective, ProfileRequest
from lacuna.evidence import aggregates
from lacuna.theory import agreement
from lacuna.theory.curve import F64
from service.settings import Settings
from workers.attention.kernels import KernelRecorder
from workers.documents import corpus
from workers.documents.build import DocumentSet
from workers.influence import influence
from workers.influence.mixing import MixingRecorder
from workers.instrument import inspect
from workers.job import predictions as predict
from workers.models.loading import LoadedModel, LoadOptions, load
from workers.second_moment import moments

_AUTO: Any = AutoModelForCausalLM  # its class methods are half typed
LENGTH = 256
SEED = 0
TRAINED = "demo:smollm2-135m-instruct"


def random_model(name: str) -> LoadedModel:
    if name == "gpt2":
        request = ProfileRequest(model="preset:gpt2", weights="random", dtype="float32")
        return load(request, options())
    configs: dict[str, PreTrainedConfig] = {
        "bloom": BloomConfig(vocab_size=2000, hidden_size=512, n_layer=24, n_head=16),
        "qwen2": Qwen2Config(
            vocab_size=2000,
            hidden_size=448,
            intermediate_size=1216,
            num_hidden_layers=24,
            num_attention_heads=14,
            num_key_value_heads=2,
        ),
    }
    torch.manual_seed(SEED)
    model = _AUTO.from_config(configs[name], dtype=torch.float32)
    model.eval().requires_grad_(False)
    cpu = torch.device("cpu")
    return LoadedModel(model, None, name, None, "", cpu, torch.float32, "random", SEED)


def options() -> LoadOptions:
    return LoadOptions(data_dir=Settings().data_dir, device="cpu")


def random_tokens(loaded: LoadedModel, count: int) -> DocumentSet:
    generator = torch.Generator().manual_seed(SEED)
    high = int(loaded.text_config.vocab_size)
    ids = torch.randint(3, high, (count, LENGTH), generator=generator)
    return DocumentSet(ids, leading_bos=False, source="random_tokens")


def topics(loaded: LoadedModel, count: int, draw: int) -> DocumentSet:
    """Draw number `draw` of `count` stretches of the text, spread evenly and disjoint."""
    assert loaded.tokenizer is not None
    ids = loaded.tokenizer(corpus.builtin_text()).input_ids
    pieces = [ids[i : i + LENGTH] for i in range(0, len(ids) - LENGTH + 1, LENGTH)]
    chosen = pieces[draw :: len(pieces) // count][:count]
    return DocumentSet(torch.tensor(chosen), leading_bos=False, source="inline")


def table(title: str, loaded: LoadedModel, texts: DocumentSet, objective: Objective) -> None:
    found = inspect(loaded.model)
    mixing = MixingRecorder(loaded.model, found.branches)
    attention = KernelRecorder(loaded.model, found)
    measured = influence.measure(
        loaded, texts, objective=objective, probes=4, seed=SEED, recorders=(mixing, attention)
    )
    started = time.process_time()
    second = moments.predict(loaded.model, found, texts.ids, seed=SEED, documents=len(texts.ids))
    seconds = (time.process_time() - started) / len(texts.ids)
    assert second.influence is not None, second.reason
    evidence = predict.PredictionInputs(LENGTH, mixing.per_document.mean(0), attention.result())
    predictions = {
        name: predict.predict(name, evidence)
        for name in ("attention_only", "residual", "residual_content", "measured_kernel")
    } | {"second_moment": second.influence}
    jacobian = objective == "jacobian"
    whole = aggregates.root_mean_square if jacobian else aggregates.mean_of_norms
    columns = {"rms" if jacobian else "mean": whole, "per document": aggregates.per_document}
    print(f"\n{title}: {len(texts.ids)} documents, {objective}; "
          f"second moment {seconds:.1f} CPU s per document")  # fmt: skip
    print(f"{'W1 / Spearman against':24s}" + "".join(f"{name:>20s}" for name in columns))
    for name, curve in predictions.items():
        cells = [compare(curve, how(measured.norms)) for how in columns.values()]
        print(f"{name:24s}" + "".join(f"{cell:>20s}" for cell in cells), flush=True)
    noise = [aggregates.split_half(measured.norms, how) or np.nan for how in columns.values()]
    print(f"{'split-half noise':24s}" + "".join(f"{value:>20.4f}" for value in noise), flush=True)


def compare(prediction: F64, measured: F64) -> str:
    rank = agreement.spearman(prediction, measured)
    distance = agreement.wasserstein(prediction, measured)
    return f"{distance:.4f} / {'-' if rank is None else f'{rank:.4f}'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = ["gpt2", "bloom", "qwen2", "smollm2"]
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    parser.add_argument("--documents", type=int, default=16, help="for random weights")
    parser.add_argument("--draws", type=int, default=3, help="of 32 documents, for SmolLM2")
    parser.add_argument("--first-draw", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    for name in arguments.models:
        if name != "smollm2":
            loaded = random_model(name)
            texts = random_tokens(loaded, arguments.documents)
            table(f"{name}, random weights", loaded, texts, "jacobian")
            continue
        loaded = load(ProfileRequest(model=TRAINED, dtype="float32"), options())
        for draw in range(arguments.first_draw, arguments.first_draw + arguments.draws):
            texts = topics(loaded, 32, draw)
            table(f"SmolLM2-135M-Instruct, draw {draw}", loaded, texts, "argmax_probability")


if __name__ == "__main__":
    main()
