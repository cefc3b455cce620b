"""Whole jobs on tiny models: what a profile says in numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_families import HEADS, WIDTH, build  # type: ignore[import-not-found, unused-ignore]

from lacuna import views
from lacuna.contract.profile_requests import DEFAULT_PREDICTIONS, MOST_DOCUMENTS, ProfileRequest
from lacuna.contract.profiles import Profile
from lacuna.theory import agreement
from service.settings import Settings
from workers.job import ProfileHandler
from workers.job.profile import FEW_DOCUMENTS

Run = Callable[..., Profile]


class Context:
    """A queue that never ends the job."""

    def __init__(self) -> None:
        self.shares: list[float] = []

    def progress(self, share: float, message: str = "") -> None:
        self.shares.append(share)

    def check(self) -> None:
        pass


@pytest.fixture
def run(tmp_path: Path, make_tokenizer: Callable[..., Any], one_thread: None) -> Run:
    """Save a tiny model, and make its profile through the handler."""

    def make(family: str = "llama", *, length: int = 32, **fields: Any) -> Profile:
        folder = tmp_path / "models" / "tiny"
        build(family, vocab_size=300, max_position_embeddings=512).save_pretrained(folder)
        make_tokenizer("<s> $A").save_pretrained(folder)
        settings = Settings(data_dir=tmp_path / "data", model_dir=tmp_path / "models", device="cpu")
        context = Context()
        given = {"documents": {"count": 3}, "sequence_length": length} | fields
        handler = ProfileHandler(settings, lambda _id: None)
        outcome = handler(ProfileRequest(model="local:tiny", **given), context)  # type: ignore[arg-type]
        assert context.shares == sorted(context.shares)
        profile = views.parse(views.joined(outcome.body, outcome.envelope))
        assert profile.id == outcome.profile_id
        return profile

    return make


def test_a_profile_is_whole_and_consistent(run: Run) -> None:
    profile = run()
    measured, mixing = profile.measured, profile.mixing
    assert sum(measured.influence) == pytest.approx(1, rel=1e-4)
    assert sum(measured.mean_of_norms) == pytest.approx(1, rel=1e-4)
    assert measured.low is None
    assert profile.shape.decided is False
    assert profile.dead_zone_verdict == "undecided"
    assert measured.standard_error is None
    assert mixing is not None
    assert mixing.layers == [0, 1, 2, 3]
    assert mixing.sum == pytest.approx(sum(mixing.lambda_), rel=1e-4)
    assert np.mean(mixing.by_token, axis=1) == pytest.approx(mixing.lambda_, rel=1e-4)
    assert profile.monotone is not None
    assert [check.layer for check in profile.monotone] == [0, 1, 2, 3]
    assert set(profile.predictions) == set(DEFAULT_PREDICTIONS)
    for prediction in profile.predictions.values():
        distance = agreement.wasserstein(prediction.influence, measured.influence)
        assert prediction.wasserstein == pytest.approx(distance, abs=1e-4)
        assert sum(prediction.influence) == pytest.approx(1, rel=1e-4)
    assert profile.forces[0].name == "causal_mask"
    assert profile.forces[-1].influence == profile.predictions["residual_content"].influence
    assert profile.forces[2].influence == profile.predictions["residual"].influence
    assert profile.collapse is not None
    assert profile.collapse.lambda_sum == pytest.approx(mixing.sum, rel=1e-4)
    assert profile.warnings == [FEW_DOCUMENTS]


def test_enough_documents_have_bands_and_summaries(run: Run) -> None:
    profile = run(documents={"count": 14}, predictions=["residual", "second_moment"])
    measured = profile.measured
    assert profile.warnings == []
    for inner, outer in (("low", "simultaneous_low"), ("simultaneous_high", "high")):
        bounds = zip(getattr(measured, inner), getattr(measured, outer), strict=True)
        assert inner != "low" or all(a >= b - 1e-9 for a, b in bounds)
    assert all(
        a <= b <= c
        for a, b, c in zip(measured.low, measured.smoothed, measured.high, strict=True)  # type: ignore[arg-type]
    )
    kept = measured.summaries
    assert len(kept.keys) == len(set(kept.keys)) == 14
    assert np.sum(kept.masses, axis=1) == pytest.approx(np.ones(14), abs=1e-4)
    assert np.mean(kept.masses, axis=0) == pytest.approx(measured.influence, abs=1e-5)
    assert np.mean(kept.first) == pytest.approx(measured.influence[0], rel=1e-4)
    weights = np.array(kept.totals)
    assert measured.effective_documents == pytest.approx(
        weights.sum() ** 2 / np.square(weights).sum(), rel=1e-4
    )
    assert sum((profile.shape.support or {}).values()) == pytest.approx(1, rel=1e-4)
    residual, second = (profile.predictions[name] for name in ("residual", "second_moment"))
    assert residual.same_documents is None
    assert second.same_documents is not None
    assert second.same_documents.noise is not None
    assert residual.wasserstein_band is not None
    assert residual.wasserstein_band.low <= residual.wasserstein <= residual.wasserstein_band.high


def test_the_digest_is_of_the_documents_that_were_read(run: Run) -> None:
    auto, fixed = run(predictions=[], documents={}), run(predictions=[], documents={"count": 48})
    assert auto.request.documents_asked == "auto"
    assert auto.request.documents_most == MOST_DOCUMENTS
    assert (fixed.request.documents_asked, fixed.request.documents_most) == (48, None)
    count = auto.measured.documents
    assert auto.measured.summaries.keys[:32] == fixed.measured.summaries.keys[:32]
    same = auto.request.documents_digest == fixed.request.documents_digest
    assert same == (count == 48)
    assert auto.id != fixed.id


def test_a_hybrid_names_the_layers_that_have_attention(run: Run) -> None:
    profile = run("jamba")
    assert profile.mixing is not None
    assert profile.mixing.layers == [1, 3]
    assert len(profile.mixing.lambda_) == 2
    assert profile.monotone is not None
    assert [check.layer for check in profile.monotone] == [1, 3]
    assert "second_moment" not in profile.predictions
    assert any("2 of 4 layers" in warning for warning in profile.warnings)


def test_recall_stands_beside_influence(run: Run) -> None:
    profile = run(length=480, documents={"count": 1}, predictions=["residual"],
                  recall={"probes": ["pairs", "facts"], "groups": 16, "depths": 3})  # fmt: skip
    assert profile.request.recall is not None
    assert profile.request.recall.probes == ["facts", "pairs"]
    assert profile.recall is not None
    assert set(profile.recall) == {"facts", "pairs"}
    for curve in profile.recall.values():
        assert (curve.groups, curve.facts, curve.reader, curve.form) == (16, 3, "weights", "plain")
        assert len(curve.by_group) == 16
        np.testing.assert_allclose(np.mean(curve.by_group, axis=0), curve.probability, rtol=1e-4)
        assert curve.position == sorted(curve.position)
        assert curve.sampling.reason == "fixed"
        assert curve.controls.repeat == 0 or curve.controls.repeat < 1e-4
        assert curve.spearman_with_influence is None
        assert len(curve.influence_density or []) == 3
    assert profile.timings.recall_seconds > 0


def test_one_document_has_no_noise_and_says_so(run: Run) -> None:
    profile = run(documents={"count": 1}, predictions=["residual"])
    assert profile.measured.split_half_wasserstein is None
    assert profile.measured.low is None
    assert profile.measured.influence == profile.measured.mean_of_norms
    assert profile.measured.sampling.half_width is None
    assert profile.warnings[0] == FEW_DOCUMENTS
    assert profile.predictions["residual"].wasserstein_band is None
    if profile.dead_zone is not None:
        assert profile.dead_zone.start_band is None


def test_it_says_what_was_added_to_the_texts_and_what_was_not_used(run: Run) -> None:
    profile = run(predictions=[], objective="target_logprob", target=" and")
    assert profile.request.leading_special_tokens == ["<s>"]
    assert profile.request.trailing_special_tokens == []
    assert profile.request.target_tokens is not None
    assert 1 <= profile.request.target_tokens <= 4
    assert profile.warnings == [FEW_DOCUMENTS]


def test_what_the_checkpoint_has_too_much_is_said(run: Run, tmp_path: Path) -> None:
    plain = run(predictions=[])
    assert plain.request.target_tokens is None
    (tmp_path / "models" / "tiny" / "adapter_config.json").write_text("{}")
    again = run(predictions=[])
    assert again.warnings == [
        FEW_DOCUMENTS,
        "the adapter next to the weights (adapter_config.json) is not applied",
    ]
    assert again.id != plain.id
    assert again.measured.influence == plain.measured.influence


def test_random_weights_have_probes_and_their_error(run: Run) -> None:
    given = {"weights": "random", "documents": {"count": 16}, "predictions": []}
    few, many = (run(probes=probes, **given).measured for probes in (2, 32))
    for measured in (few, many):
        assert measured.standard_error is not None
        assert len(measured.standard_error) == 32
        assert min(measured.standard_error) >= 0
    ratio = np.mean(few.standard_error) / np.mean(many.standard_error)  # type: ignore[arg-type]
    assert 2 < ratio < 5  # 16 times as many draws: a quarter of the error
    assert run(probes=1, **given).measured.standard_error is None


def test_without_positions_the_kernels_are_uniform(run: Run) -> None:
    profile = run("bloom", positional_encoding="off", predictions=["attention_only", "residual"])
    flat = profile.predictions["attention_only"].influence
    row = np.eye(32)[-1]
    uniform = np.tril(np.ones((32, 32))) / np.arange(1, 33)[:, None]
    for _ in range(4):
        row = row @ uniform
    np.testing.assert_allclose(flat, row, rtol=1e-4, atol=1e-9)
    assert profile.request.positional_encoding == "off"


def test_the_raw_scale_is_another_content_alone(run: Run) -> None:
    names = ["residual", "residual_content"]
    model, raw = (run(content_scale=scale, predictions=names) for scale in ("model", "raw"))
    assert model.id != raw.id
    assert model.measured == raw.measured
    assert model.predictions["residual"] == raw.predictions["residual"]
    assert model.predictions["residual_content"] != raw.predictions["residual_content"]


def test_equal_requests_give_equal_bodies(run: Run) -> None:
    once, again = run(), run()
    volatile = {"timings", "environment", "created_at"}
    assert once.model_dump_json(exclude=volatile) == again.model_dump_json(exclude=volatile)


def test_the_description_states_what_was_used(run: Run) -> None:
    model = run("bloom", predictions=[]).model
    assert (model.architecture, model.id, model.support) == ("bloom", "local:tiny", "full")
    assert (model.layers, model.attention_layers, model.heads) == (4, 4, HEADS)
    assert (model.width, model.vocabulary, model.max_length) == (WIDTH, 300, 512)
    assert (model.positional_encoding, model.window, model.block) == ("alibi", None, "sequential")
    assert model.attention_implementation == "eager"
    assert len(model.revision or "") == 40
    assert len(model.tokenizer_digest or "") == 32
    hybrid = run("jamba", predictions=[]).model
    assert "2 of 4 layers" in hybrid.support_notes[0]
