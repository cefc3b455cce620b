"""A profile as a worker would write it, from theory alone: no model is needed to serve one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from lacuna.contract.models import ModelDescription
from lacuna.contract.profiles import (
    DeadZone,
    Environment,
    Measured,
    Mixing,
    Prediction,
    Profile,
    RequestEcho,
    Shape,
    Timings,
)
from lacuna.theory import agreement, shape

MakeProfile = Callable[..., Profile]


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


def make(
    *, identifier: str = "a" * 32, tokens: int = 64, seed: int = 0, model: str = "preset:gpt2"
) -> Profile:
    """A U-shaped profile with noise, its band and one prediction."""
    generator = np.random.default_rng(seed)
    position = (np.arange(tokens) + 0.5) / tokens
    ideal = 0.3 + 2 * np.exp(-8 * position) + 3 * np.exp(-25 * (1 - position))
    norms = ideal * generator.lognormal(0, 0.3, (8, tokens))
    influence = agreement.mean_of_norms(norms)
    curves = agreement.bootstrap(norms, "mean", draws=50, seed=0)
    low, high = agreement.band(curves)
    predicted = ideal / ideal.sum()
    zone = shape.dead_zone(influence, curves=curves)
    form = dataclasses.asdict(shape.shape(influence))
    form["class"] = form.pop("name")
    return Profile(
        id=identifier,
        model=ModelDescription(
            id=model, revision=None, architecture="gpt2", layers=2, attention_layers=2, heads=2,
            width=8, vocabulary=100, parameters=1_000, positional_encoding="learned", window=None,
            max_length=1_024, attention_implementation="sdpa", block="sequential",
            support="full", support_notes=[], tokenizer_digest=None,
        ),
        request=RequestEcho(
            model=model, revision=None, weights="random", seed=0, sequence_length=tokens,
            objective="jacobian", probes=4, positional_encoding="on", content_scale="model",
            dtype="float32", documents_source="random_tokens", documents_name=None,
            documents_asked=8, documents_digest="0" * 64, target_digest=None, leading_bos=False,
            needle=None,
        ),
        measured=Measured(
            influence=_rounded(influence), low=_rounded(low), high=_rounded(high),
            per_document=_rounded(agreement.per_document(norms)), documents=8,
            split_half_wasserstein=0.01,
        ),
        mixing=Mixing.model_validate(
            {"lambda": [0.3, 0.2], "std": [0.01, 0.01], "sum": 0.5,
             "by_token": [[0.3, 0.3], [0.2, 0.2]], "bins": 2}
        ),
        predictions={
            "residual": Prediction(
                influence=_rounded(predicted),
                wasserstein=agreement.wasserstein(influence, predicted),
                spearman=agreement.spearman(influence, predicted),
            )
        },
        forces=[],
        collapse=None,
        dead_zone=None if zone is None else DeadZone.model_validate(dataclasses.asdict(zone)),
        shape=Shape.model_validate(form),
        warnings=[],
        method_version="1",
        timings=Timings(
            load_seconds=0.1, measure_seconds=1.0, predict_seconds=0.1, tokens_per_second=512.0
        ),
        environment=Environment(
            lacuna="0.1.0", torch="2.13.0", transformers="5.24.0", python="3.11", device="cpu",
            dtype="float32", threads=1,
        ),
        created_at="2026-01-01T00:00:00.000Z",
    )  # fmt: skip


@pytest.fixture(scope="session")
def make_profile() -> MakeProfile:
    """Makes profiles; see `make`."""
    return make


@pytest.fixture
def profile(make_profile: MakeProfile) -> Profile:
    """One profile of 64 tokens."""
    return make_profile()
