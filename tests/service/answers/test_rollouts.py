"""Rollout requests from JSON to JSON: defaults, shapes, bounds, and no NaN for any input."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from lacuna.architectures.table import find
from lacuna.contract.errors import InvalidRequest
from lacuna.contract.profile_requests import PREDICTION_NAMES
from lacuna.contract.profiles import DeadZone
from lacuna.contract.rollouts import ARCHITECTURE_NAMES, RolloutRequest, RolloutResponse
from lacuna.theory import cesaro, kernels, rollout
from service.answers import rollouts
from service.answers.rollout_inputs import resolve
from service.answers.rollouts import summarise

EVERYTHING = [
    "attention_only",
    "half_residual",
    "residual",
    "residual_content",
    "cesaro",
    "second_moment",
]


def post(body: dict[str, Any]) -> RolloutResponse:
    """As a client would: through JSON both ways."""
    answer = rollouts.compute(RolloutRequest.model_validate_json(json.dumps(body)))
    return RolloutResponse.model_validate_json(answer.model_dump_json())


def influence(answer: RolloutResponse, name: str) -> np.ndarray:
    return np.array(answer.predictions[name].influence)


@pytest.mark.parametrize("name", PREDICTION_NAMES)
def test_every_name_has_its_curve(name: str) -> None:
    body: dict[str, Any] = {"sequence_length": 8, "layers": 3, "predictions": [name]}
    if name == "measured_kernel":
        matrix = np.tril(np.ones((8, 8))) / np.arange(1, 9)[:, None]
        body["kernel"] = {"type": "measured", "matrices": [matrix.tolist()] * 3}
    assert sum(influence(post(body), name)) == pytest.approx(1)


@pytest.mark.parametrize("body", [{"layers": 12, "sequence_length": 512}, {"layers": 32}])
def test_defaults(body: dict[str, Any]) -> None:
    answer = post(body)
    n, layers = body.get("sequence_length", 256), body["layers"]
    assert list(answer.predictions) == [
        "attention_only",
        "residual",
        "residual_content",
        "cesaro",
    ]
    for prediction in answer.predictions.values():
        assert len(prediction.influence) == n
        assert sum(prediction.influence) == pytest.approx(1)
    np.testing.assert_allclose(
        influence(answer, "residual"), cesaro.finite(n, layers, 0.1), rtol=1e-12
    )
    assert answer.predictions["residual"].dead_zone is not None
    assert [f.name for f in answer.forces] == [
        "causal_mask",
        "residual",
        "positional_encoding",
        "content",
    ]
    assert len(answer.assumptions) == 4
    assert any("trained weights change the curve" in one for one in answer.assumptions)
    assert any("Dead zone: tokens" in sentence for sentence in answer.summary)
    assert any("best places are" in sentence for sentence in answer.summary)
    assert answer.cesaro.width_by_depth[-1].layers == layers


@pytest.mark.parametrize(
    "name",
    [
        "all_content__fineweb-edu__bloom",
        "all_content__fineweb-edu__mpt-7b",
        "all_content__wikipedia__bloom-7b1",
        "no_content__bloom-7b1",
        "no_content__bloom",
        "no_content__mpt-7b-noresidual",
        "no_content__mpt-7b",
    ],
)
def test_published_configurations(name: str, reference: Path) -> None:
    """[S]'s own parameters, as a request; full float64 in the answer."""
    case = json.loads((reference / "rollouts" / f"{name}.json").read_text())
    body = {
        "sequence_length": case["sequence_length"],
        "layers": case["num_layers"],
        "heads": case["num_heads"],
        "kernel": {"type": "alibi", "slopes": case["alibi_slopes"]},
        "mixing": {"type": "list", "lambdas": case["lambdas"]},
    }
    if case["content_diagonal"] is not None:
        body["content"] = {"diagonal": case["content_diagonal"]}
    which = "residual" if case["content_diagonal"] is None else "residual_content"
    ours = influence(post(body), which)
    np.testing.assert_allclose(ours, case["expected_last_row"], rtol=1e-12, atol=0)


def test_residual_ignores_content_and_attention_only_ignores_lambda() -> None:
    body = {
        "layers": 3,
        "sequence_length": 40,
        "kernel": {"type": "alibi", "slopes": [0.1, 0.4]},
        "content": {"diagonal": [2.0, -1.0]},
        "mixing": {"type": "constant", "value": 0.3},
    }
    answer = post(body)
    plain = [kernels.alibi(40, [0.1, 0.4])] * 3
    content = [kernels.alibi(40, [0.1, 0.4], [2.0, -1.0])] * 3
    for name, layers, mixing in (
        ("attention_only", plain, 1.0),
        ("residual", plain, 0.3),
        ("residual_content", content, 0.3),
    ):
        expected = rollout.rollout(layers, np.full(3, mixing))
        np.testing.assert_allclose(influence(answer, name), expected, rtol=1e-14)
    forces = [f.influence for f in answer.forces]
    np.testing.assert_allclose(forces[2], influence(answer, "residual"), rtol=1e-12)
    np.testing.assert_allclose(forces[3], influence(answer, "residual_content"), rtol=1e-12)


@pytest.mark.parametrize(
    ("given_", "table"),
    [
        (1.5, [[1.5, 1.5]] * 3),
        ([1.0, 2.0], [[1.0, 2.0]] * 3),
        ([1.0, 2.0, 3.0], [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]),
        ([[1.0], [2.0], [3.0]], [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]),
        ([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
    ],
)
def test_numbers_per_head_per_layer_or_both(given_: Any, table: list[list[float]]) -> None:
    body = {"layers": 3, "heads": 2, "sequence_length": 30, "kernel": {"type": "alibi"}}
    expected = post(body | {"content": {"diagonal": table}})
    answer = post(body | {"content": {"diagonal": given_}})
    assert answer.predictions == expected.predictions
    if not isinstance(given_, float):
        slopes = post(body | {"kernel": {"type": "alibi", "slopes": given_}})
        nested = post(body | {"kernel": {"type": "alibi", "slopes": table}})
        assert slopes.predictions == nested.predictions


def test_content_scale_is_that_of_the_logits() -> None:
    body = {"layers": 2, "heads": 2, "sequence_length": 20, "kernel": {"type": "alibi"}}
    raw = post(body | {"content": {"diagonal": 8.0, "scale": 0.125}})
    assert raw.predictions == post(body | {"content": {"diagonal": 1.0}}).predictions


def test_content_of_a_uniform_kernel_is_per_head() -> None:
    answer = post({"layers": 2, "sequence_length": 20, "content": {"diagonal": [0.0, 3.0]}})
    expected = rollout.rollout([kernels.alibi(20, [0.0, 0.0], [0.0, 3.0])] * 2, [0.1, 0.1])
    assert answer.heads == 2
    np.testing.assert_allclose(influence(answer, "residual_content"), expected, rtol=1e-14)


def test_window_with_and_without_alibi() -> None:
    body = {"layers": 4, "heads": 4, "sequence_length": 60}
    plain = post(body | {"kernel": {"type": "window", "window": 7}})
    expected = rollout.rollout([kernels.uniform(60, window=7)] * 4, np.full(4, 0.1))
    np.testing.assert_allclose(influence(plain, "residual"), expected, rtol=1e-14)
    both = [
        post(body | {"kernel": {"type": kind, "window": 7, "slopes": "standard"}})
        for kind in ("window", "alibi")
    ]
    assert both[0].predictions == both[1].predictions
    assert influence(both[0], "residual")[-2] > influence(plain, "residual")[-2]


@pytest.mark.parametrize(
    ("mask", "reach"),
    [({"type": "causal"}, 0), ({"type": "full"}, 30), ({"type": "prefix", "prefix": 12}, 12)],
)
def test_masks(mask: dict[str, Any], reach: int) -> None:
    answer = post({"layers": 1, "sequence_length": 30, "mask": mask, "heads": 2})
    same = {"causal": {}, "full": {"mask": "full"}, "prefix": {"mask": "prefix", "prefix": reach}}
    kernel = kernels.uniform(30, **same[mask["type"]])
    np.testing.assert_allclose(
        influence(answer, "attention_only"), rollout.rollout([kernel], [1.0]), rtol=1e-14
    )
    assert answer.collapse.collapses is (mask["type"] == "causal")


def test_distance_profile_with_a_sink() -> None:
    body = {
        "layers": 2,
        "sequence_length": 25,
        "kernel": {"type": "distance", "bias": [0.0, -1.0, -1.5], "sink_bias": 2.0},
    }
    kernel = kernels.distance(25, [0.0, -1.0, -1.5], 2.0)
    expected = rollout.rollout([kernel] * 2, [0.1, 0.1])
    np.testing.assert_allclose(influence(post(body), "residual"), expected, rtol=1e-14)


def test_measured_kernels_and_their_monotonicity() -> None:
    straight = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.25, 0.25, 0.5]]
    crossed = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.25, 0.25, 0.5]]
    answer = post(
        {
            "sequence_length": 3,
            "kernel": {"type": "measured", "matrices": [straight, crossed]},
            "mixing": {"type": "list", "lambdas": [1.0, 0.5]},
        }
    )
    # top layer: 1/2 [0, 0, 1] + 1/2 [1/4, 1/4, 1/2]; then the straight one
    np.testing.assert_allclose(influence(answer, "measured_kernel"), [0.375, 0.25, 0.375])
    assert answer.monotone is not None
    assert [m.monotone for m in answer.monotone] == [True, False]
    assert answer.monotone[1].violation == pytest.approx(0.25)


def test_a_measured_kernel_is_judged_at_its_depth() -> None:
    """Token 1 sees itself alone, so it keeps what it has, however many layers there are."""
    absorbing = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.5, 0.5]]
    answer = post(
        {
            "sequence_length": 3,
            "layers": 400,
            "kernel": {"type": "measured", "matrices": [absorbing]},
            "mixing": {"type": "constant", "value": 0.5},
        }
    )
    np.testing.assert_allclose(influence(answer, "measured_kernel"), [0.0, 1.0, 0.0], atol=1e-12)
    assert not answer.collapse.collapses
    assert "says nothing about further" in answer.collapse.evidence


def test_lambda_by_token() -> None:
    lambdas = np.linspace(0, 1, 24).reshape(2, 12)
    answer = post(
        {"sequence_length": 12, "mixing": {"type": "by_token", "lambdas": lambdas.tolist()}}
    )
    expected = rollout.rollout([kernels.uniform(12)] * 2, lambdas)
    np.testing.assert_allclose(influence(answer, "residual"), expected, rtol=1e-14)
    assert answer.collapse.lambda_sum == pytest.approx(lambdas.mean(axis=1).sum())


@pytest.mark.parametrize(
    ("mixing", "collapses"),
    [
        ({"type": "constant", "value": 0.3}, True),
        ({"type": "constant", "value": 0.0}, False),
        ({"type": "power_law", "initial": 0.5, "exponent": 1.0}, True),
        ({"type": "power_law", "initial": 0.5, "exponent": 1.5}, False),
        ({"type": "list", "lambdas": [0.1] * 5}, False),
        ({"type": "list", "lambdas": [1.0] * 5}, False),
    ],
)
def test_verdict_on_depth(mixing: dict[str, Any], collapses: bool) -> None:
    answer = post({"layers": 5, "mixing": mixing})
    assert answer.collapse.collapses is collapses
    limit = "collapses onto the first token" if collapses else "no collapse"
    limit += " as layers are added"
    here = mixing["type"] == "list"
    assert answer.collapse.verdict == ("not collapsed at this depth" if here else limit)


def test_any_depth() -> None:
    body = {"layers": 5_000, "sequence_length": 64, "mixing": {"type": "constant", "value": 0.05}}
    answer = post(body)
    assert influence(answer, "residual")[0] == pytest.approx(1)
    assert answer.predictions["residual"].shape.class_ == "collapsed"


@pytest.mark.parametrize("name", ARCHITECTURE_NAMES)
def test_architectures(name: str) -> None:
    answer = post({"architecture": name, "sequence_length": 64})
    known = find(name)
    assert known is not None
    assert (answer.layers, answer.heads) == (known.layers, known.heads)
    moved = answer.forces[2].shift
    assert (moved > 1e-6) is (known.kernel == "alibi")


def test_an_explicit_field_beats_the_architecture() -> None:
    answer = post({"architecture": "bloom-7b1", "layers": 3, "kernel": {"type": "uniform"}})
    assert (answer.layers, answer.heads) == (3, 32)
    assert influence(answer, "residual") == pytest.approx(cesaro.finite(256, 3, 0.1))


@pytest.mark.parametrize("bins", [1, 7, 64, 100])
def test_bins_keep_the_mass(bins: int) -> None:
    whole, binned = (
        post({"layers": 6, "sequence_length": 100}),
        post({"layers": 6, "sequence_length": 100, "bins": bins}),
    )
    for name in whole.predictions:
        curve = influence(binned, name)
        assert len(curve) == bins
        assert curve.sum() == pytest.approx(1)
        if 100 % bins == 0:
            np.testing.assert_allclose(
                curve, influence(whole, name).reshape(bins, -1).sum(axis=1), atol=1e-15
            )
        assert binned.predictions[name].dead_zone == whole.predictions[name].dead_zone
    assert all(len(force.influence) == bins for force in binned.forces)


def test_a_million_tokens() -> None:
    answer = post({"layers": 2, "sequence_length": 1_048_576, "heads": 4, "bins": 64})
    assert sum(answer.predictions["residual"].influence) == pytest.approx(1)


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ({}, "`layers` is required"),
        ({"layers": 3, "content": {"diagonal": [1.0, 2.0]}, "heads": 5}, "content.diagonal"),
        ({"layers": 3, "content": {"diagonal": [[1.0], [2.0]]}, "heads": 1}, "content.diagonal"),
        ({"layers": 3, "mixing": {"type": "list", "lambdas": [0.5]}}, "mixing.lambdas"),
        (
            {"layers": 1, "mixing": {"type": "by_token", "lambdas": [[0.5]]}},
            "mixing.lambdas",
        ),
        ({"layers": 3, "mask": {"type": "prefix", "prefix": 300}}, "mask.prefix"),
        (
            {"layers": 3, "kernel": {"type": "distance", "bias": [1.0]}, "mask": {"type": "full"}},
            "causal mask",
        ),
        ({"layers": 3, "predictions": ["measured_kernel"]}, "measured"),
        (
            {
                "layers": 3,
                "predictions": ["second_moment"],
                "kernel": {"type": "window", "window": 5},
            },
            "second_moment",
        ),
        (
            {"layers": 3, "predictions": ["second_moment"], "gains": {"mlp": [0.1, 0.2]}},
            "gains.mlp",
        ),
        (
            {"layers": 2, "heads": 3, "kernel": {"type": "alibi", "head_weights": [1.0]}},
            "head_weights",
        ),
        (
            {
                "layers": 2,
                "sequence_length": 3,
                "kernel": {"type": "measured", "matrices": [[[1]]]},
            },
            "matrices",
        ),
        (
            {
                "layers": 1,
                "sequence_length": 1,
                "kernel": {"type": "measured", "matrices": [[[0.5]]]},
            },
            "rows",
        ),
        (
            {
                "layers": 2,
                "sequence_length": 2,
                "kernel": {
                    "type": "measured",
                    "matrices": [[[1, 0], [0.5, 0.5]], [[0.25, 0.75], [0.5, 0.5]]],
                },
            },
            r"matrices\[1\]\[0\]\[1\]` must be 0",
        ),
    ],
)
def test_fields_that_do_not_fit(body: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidRequest, match=match) as refusal:
        post(body)
    assert refusal.value.field is not None


@pytest.mark.parametrize(
    "body",
    [
        {"layers": 3, "unknown": 1},
        {"layers": 0},
        {"layers": "3"},
        {"layers": 3, "sequence_length": 1_048_577, "bins": 10},
        {"layers": 3, "sequence_length": 16_385},
        {"layers": 3, "sequence_length": 10, "bins": 11},
        {"layers": 3, "kernel": {"type": "window"}},
        {"layers": 3, "kernel": {"type": "uniform", "slopes": [1.0]}},
        {"layers": 3, "kernel": {"type": "alibi", "slopes": [-1.0]}},
        {"layers": 3, "kernel": {"type": "alibi", "bias": [1.0]}},
        {"layers": 3, "kernel": {"type": "alibi", "sink_bias": 1.0}},
        {"layers": 3, "kernel": {"type": "alibi", "matrices": [[[1.0]]]}},
        {"layers": 3, "mask": {"type": "prefix"}},
        {"layers": 3, "mixing": {"type": "constant", "value": 1.01}},
        {"layers": 3, "mixing": {"type": "power_law", "initial": 0.5}},
        {"layers": 3, "predictions": ["residual", "residual"]},
        {"layers": 3, "threshold": 0},
        {"architecture": "gpt-7"},
    ],
)
def test_what_the_contract_refuses(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RolloutRequest.model_validate_json(json.dumps(body))


@pytest.mark.parametrize(
    "text", ['{"layers": 2, "threshold": NaN}', '{"layers": 2, "threshold": 1e999}']
)
def test_json_that_is_not_finite(text: str) -> None:
    with pytest.raises(ValidationError):
        RolloutRequest.model_validate_json(text)


NUMBER = st.one_of(st.sampled_from([0.0, 1e4, -1e4, 740.0, -740.0, 1e-12]), st.floats(-1e4, 1e4))
SLOPE = st.one_of(st.sampled_from([0.0, 1e-12, 50.0, 1e3]), st.floats(0, 50))
LAMBDA = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    layers, heads = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    n = draw(st.integers(1, 24))
    kind = draw(st.sampled_from(["uniform", "alibi", "window", "distance"]))
    kernel: dict[str, Any] = {"type": kind, "temperature": draw(st.sampled_from([1.0, 0.1, 1e3]))}
    if kind == "distance":
        kernel["bias"] = draw(st.lists(NUMBER, min_size=1, max_size=6))
        kernel["sink_bias"] = draw(st.one_of(st.none(), NUMBER))
    if kind in {"alibi", "window"}:
        kernel["slopes"] = draw(
            st.one_of(st.none(), st.lists(SLOPE, min_size=heads, max_size=heads))
        )
        if kind == "window" or draw(st.booleans()):
            kernel["window"] = draw(st.integers(1, 30))
    mask: dict[str, Any] = {"type": "causal"}
    if kind != "distance":
        mask["type"] = draw(st.sampled_from(["causal", "full", "prefix"]))
    if mask["type"] == "prefix":
        mask["prefix"] = draw(st.integers(0, n))
    names = EVERYTHING
    if kind in {"window", "distance"} or mask["type"] != "causal" or "window" in kernel:
        names = EVERYTHING[:-1]
    return {
        "layers": layers,
        "heads": heads,
        "sequence_length": n,
        "kernel": kernel,
        "mask": mask,
        "content": {
            "diagonal": draw(st.one_of(NUMBER, st.lists(NUMBER, min_size=heads, max_size=heads)))
        },
        "mixing": {
            "type": "list",
            "lambdas": draw(st.lists(LAMBDA, min_size=layers, max_size=layers)),
        },
        "predictions": names,
        "gains": {"mlp": draw(st.sampled_from([0.0, 1.0, 100.0]))},
        "threshold": draw(st.floats(1e-3, 100)),
        "bins": draw(st.one_of(st.none(), st.integers(1, n))),
    }


@given(requests())
@settings(deadline=None, max_examples=120)
def test_no_nan_for_any_request(body: dict[str, Any]) -> None:
    answer = post(body)
    for prediction in answer.predictions.values():
        assert all(math.isfinite(x) and x >= 0 for x in prediction.influence)
        assert sum(prediction.influence) == pytest.approx(1)
    for force in answer.forces:
        assert sum(force.influence) == pytest.approx(1)
    assert math.isfinite(answer.collapse.row_entropy)
    assert "nan" not in " ".join(answer.summary)


def zone_at(argmin: int, n: int) -> DeadZone:
    return DeadZone(
        start=1,
        end=n,
        fraction=0.9,
        mean_density=0.4,
        min_density=0.3,
        argmin=argmin,
        threshold=0.75,
    )


@pytest.mark.parametrize(
    ("argmin", "n", "words"),
    [
        (998, 1000, "is just before the last token."),
        (997, 1000, "is 2 tokens before the last."),
        (999, 1000, "is the last token."),
        (0, 1000, "is the first token."),
        (500, 1001, "is at 50% of the prompt."),
        (990, 1000, "is at 99% of the prompt."),
        (1, 3, "is just before the last token."),
    ],
)
def test_the_quietest_place_in_words(argmin: int, n: int, words: str) -> None:
    inputs = resolve(RolloutRequest(layers=2, sequence_length=n))
    report = post({"layers": 2}).cesaro
    sentences = summarise(inputs, np.full(n, 1 / n), zone_at(argmin, n), report)
    assert any(f"the quietest place {words}" in sentence for sentence in sentences)


@pytest.mark.parametrize(
    ("body", "advice"),
    [
        ({"architecture": "bloom-176b"}, "241; the very end is not among them."),
        ({"layers": 12}, " and the very end."),
        ({"layers": 24, "heads": 16, "kernel": {"type": "alibi"}}, "best places are after token "),
        (
            {"layers": 12, "mixing": {"type": "constant", "value": 0.02}},
            "Apart from the very end, no place in this prompt is heard well.",
        ),
        (
            {"layers": 24, "mixing": {"type": "constant", "value": 0.9}},
            "Apart from the very beginning, no place in this prompt is heard well.",
        ),
        (
            {"layers": 2, "threshold": 5, "kernel": {"type": "uniform"}, "mask": {"type": "full"},
             "mixing": {"type": "constant", "value": 1}},
            "No place in this prompt is heard well.",
        ),
    ],
)  # fmt: skip
def test_advice_sends_the_question_where_the_curve_is_heard(
    body: dict[str, Any], advice: str
) -> None:
    answer = post(body)
    assert any(advice in sentence for sentence in answer.summary), answer.summary
    name = "residual_content" if "residual_content" in answer.predictions else "residual"
    last = answer.sequence_length * answer.predictions[name].influence[-1]
    assert (" and the very end." in " ".join(answer.summary)) <= (last >= 0.75)


def test_the_quietest_place_of_a_plain_model_is_just_before_the_end() -> None:
    answer = post({"layers": 24, "sequence_length": 512})
    assert any("is just before the last token." in sentence for sentence in answer.summary)
    assert not any("100% of the prompt;" in sentence for sentence in answer.summary)


@pytest.mark.parametrize(
    ("change", "coincide"),
    [
        ({}, True),
        ({"kernel": {"type": "alibi"}}, True),
        ({"content": {"diagonal": 2.0, "scale": 0.0}}, True),
        ({"content": {"diagonal": 2.0}}, False),
    ],
)
def test_curves_that_coincide_are_said_to(change: dict[str, Any], coincide: bool) -> None:
    answer = post({"layers": 3, "sequence_length": 40, **change})
    same = bool((influence(answer, "residual") == influence(answer, "residual_content")).all())
    assert same is coincide
    said = any("`residual` and `residual_content` coincide" in one for one in answer.assumptions)
    assert said is coincide


def test_measured_matrices_are_said_to_hold_the_content() -> None:
    answer = post(
        {
            "sequence_length": 2,
            "layers": 2,
            "kernel": {"type": "measured", "matrices": [[[1.0, 0.0], [0.5, 0.5]]]},
        }
    )
    assert any("`measured_kernel` coincide" in one for one in answer.assumptions)
    np.testing.assert_array_equal(
        influence(answer, "residual"), influence(answer, "measured_kernel")
    )


def test_what_has_no_effect_is_said() -> None:
    def said(**fields: Any) -> str:
        request = {"layers": 3, "sequence_length": 16, **fields}
        return " ".join(post(request).assumptions)

    idle = "change nothing"
    assert idle in said(kernel={"temperature": 2.0})
    assert idle in said(kernel={"head_weights": [1.0, 2.0]}, heads=2)
    assert idle not in said()
    assert idle not in said(kernel={"temperature": 2.0}, content={"diagonal": 1.0})
    assert idle not in said(kernel={"type": "alibi", "temperature": 2.0})
    moment = {"predictions": ["second_moment"]}
    assert "that of token 0" in said(**moment)
    by_token = {"type": "by_token", "lambdas": [[0.1] * 16] * 3}
    assert "mean of lambda over the tokens" in said(mixing=by_token, **moment)
    assert "mean of lambda" not in said(mixing=by_token)


def test_the_closed_form_is_told_apart_from_other_attention() -> None:
    def last(**fields: Any) -> str:
        request = {"layers": 8, "sequence_length": 64, **fields}
        return post(request).summary[-1]

    assert "instead" not in last()
    assert "with uniform causal attention instead" in last(kernel={"type": "alibi"})
    assert "instead" in last(mask={"type": "full"})
