"""The rollout against exact rationals, the whole product of layers, and the papers' numbers."""

import csv
import json
from fractions import Fraction
from pathlib import Path

import dense_rivals
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lacuna.theory import agreement, kernels, rollout
from lacuna.theory.kernels import Kernel

REFERENCES = [
    "all_content__fineweb-edu__bloom",
    "all_content__fineweb-edu__mpt-7b",
    "all_content__wikipedia__bloom-7b1",
    "no_content__bloom-7b1",
    "no_content__bloom",
    "no_content__mpt-7b-noresidual",
    "no_content__mpt-7b",
]


def exact_row(n: int, layers: int, a: Fraction) -> list[Fraction]:
    """Last row of ((1-a) I + a M)^layers in rational arithmetic."""
    row = [Fraction(int(j == n - 1)) for j in range(n)]
    for _ in range(layers):
        row = [
            (1 - a) * row[j] + a * sum((row[i] / (i + 1) for i in range(j, n)), Fraction(0))
            for j in range(n)
        ]
    return row


@pytest.mark.parametrize(
    ("layers", "a", "printed"),
    [
        (2, Fraction(1), "25/48 13/48 7/48 1/16"),
        (3, Fraction(1), "415/576 115/576 37/576 1/64"),
        (2, Fraction(1, 2), "49/192 37/192 31/192 25/64"),
    ],
)
def test_published_rational_rows(layers: int, a: Fraction, printed: str) -> None:
    expected = [Fraction(part) for part in printed.split()]
    assert exact_row(4, layers, a) == expected
    ours = rollout.rollout([kernels.uniform(4)] * layers, np.full(layers, float(a)))
    np.testing.assert_allclose(ours, [float(x) for x in expected], rtol=1e-15)


@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 8))
@settings(deadline=None)
def test_rational_rows(n: int, layers: int, eighths: int) -> None:
    ours = rollout.rollout([kernels.uniform(n)] * layers, np.full(layers, eighths / 8))
    expected = [float(x) for x in exact_row(n, layers, Fraction(eighths, 8))]
    np.testing.assert_allclose(ours, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("by_token", [False, True])
def test_against_the_product_of_all_layers(by_token: bool) -> None:
    """Layers of every kind, in an order that matters, scalar and token-resolved lambda."""
    n, generator = 30, np.random.default_rng(4)
    layers: list[Kernel] = [
        kernels.uniform(n),
        kernels.alibi(n, [0.1, 0.7], [2.0, -1.0]),
        kernels.uniform(n, window=4),
        kernels.alibi(n, [0.3], 1.0, window=6),
        kernels.distance(n, generator.normal(size=12), 1.5),
        kernels.alibi(n, [0.2], mask="prefix", prefix=9),
        kernels.uniform(n, mask="full"),
    ]
    mixing = generator.random((len(layers), n) if by_token else len(layers))
    rival = dense_rivals.rollout([layer.dense().mean(axis=0) for layer in layers], mixing)
    ours = rollout.rollout(layers, mixing)
    assert dense_rivals.relative_error(ours, rival) < 1e-12
    backwards = rollout.rollout(layers[::-1], mixing[::-1])
    assert np.abs(backwards - ours).max() > 1e-3


def test_lambda_by_token_that_does_not_vary_is_a_scalar() -> None:
    layers = [kernels.alibi(50, [0.1, 0.4])] * 5
    scalar = np.linspace(0, 1, 5)
    by_token = np.repeat(scalar[:, None], 50, axis=1)
    np.testing.assert_allclose(
        rollout.rollout(layers, by_token), rollout.rollout(layers, scalar), rtol=1e-14
    )


@given(
    st.integers(1, 30),
    st.lists(
        st.tuples(
            st.one_of(st.sampled_from([0.0, 1e-12, 50.0]), st.floats(0, 50)),
            st.one_of(st.sampled_from([1e4, -1e4, 0.0]), st.floats(-1e4, 1e4)),
            st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1)),
        ),
        min_size=1,
        max_size=6,
    ),
)
@settings(deadline=None)
def test_a_distribution_comes_out_whatever_goes_in(
    n: int, layers: list[tuple[float, float, float]]
) -> None:
    stack = [kernels.alibi(n, [slope, 0.1], [diagonal, 0.0]) for slope, diagonal, _ in layers]
    row = rollout.rollout(stack, [mixing for _, _, mixing in layers])
    assert np.isfinite(row).all()
    assert row.min() >= 0
    assert row.sum() == pytest.approx(1, abs=1e-12)


def load(folder: Path, name: str) -> tuple[list[Kernel], list[float], np.ndarray]:
    case = json.loads((folder / "rollouts" / f"{name}.json").read_text())
    content = case["content_diagonal"] or [0.0] * case["num_layers"]
    layers = [
        kernels.alibi(case["sequence_length"], case["alibi_slopes"], extra) for extra in content
    ]
    return layers, case["lambdas"], np.array(case["expected_last_row"])


@pytest.mark.parametrize("name", REFERENCES)
def test_published_rollouts(name: str, reference: Path) -> None:
    """[S], the authors' own code on seven of their configurations."""
    layers, mixing, expected = load(reference, name)
    ours = rollout.rollout(layers, mixing)
    np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=0)


def test_published_agreement_of_bloom_176b(reference: Path) -> None:
    """[S]: W1 to the measured curve falls from 0.6511 to 0.0790 to 0.0159."""
    with (reference / "bloom176b_fineweb_256.csv").open() as file:
        measured = np.array([float(row["d_measured"]) for row in csv.DictReader(file)])
    measured = np.maximum(measured, 0)
    plain, mixing, _ = load(reference, "no_content__bloom")
    content, _, _ = load(reference, "all_content__fineweb-edu__bloom")
    curves = [
        rollout.rollout(plain, np.ones(len(plain))),
        rollout.rollout(plain, mixing),
        rollout.rollout(content, mixing),
    ]
    distances = [agreement.wasserstein(curve, measured) for curve in curves]
    assert [round(d, 4) for d in distances] == [0.6511, 0.0790, 0.0159]


def test_schedules() -> None:
    np.testing.assert_array_equal(rollout.constant(3, 0.2), [0.2, 0.2, 0.2])
    np.testing.assert_allclose(rollout.power_law(4, 0.8, 2.0), [0.8, 0.2, 0.8 / 9, 0.05])


def test_summable_mixing_keeps_the_diagonal_and_divergent_mixing_collapses() -> None:
    """[S], the theorem, at a depth of twenty thousand layers."""
    kernel = [kernels.uniform(6)] * 20_000
    fading = rollout.rollout(kernel, rollout.power_law(20_000, 0.5, 2.0))
    steady = rollout.rollout(kernel, rollout.constant(20_000, 0.01))
    slow = rollout.rollout(kernel, rollout.power_law(20_000, 0.5, 1.0))
    assert fading[-1] > 0.4  # bounded below by prod (1 - lambda_t)
    assert steady[0] == pytest.approx(1, abs=1e-12)
    assert slow[-1] < 0.02


@pytest.mark.parametrize(
    ("mixing", "diverges", "collapses"),
    [
        (rollout.constant(4, 0.3), True, True),
        (rollout.power_law(4, 0.5, 2.0), False, False),
        ([0.1, 0.2, 0.1, 0.1], None, False),
        ([1.0, 1.0, 1.0, 1.0], None, False),
        ([1.0] * 30, None, True),
        ([0.0] * 4, True, False),
    ],
)
def test_verdict(mixing: np.ndarray, diverges: bool | None, collapses: bool) -> None:
    layers = [kernels.uniform(50)] * len(mixing)
    row = rollout.rollout(layers, mixing)
    found = rollout.collapse(layers, mixing, row, diverges=diverges)
    assert found.collapses is collapses
    if diverges is None:  # a list has no limit to speak of
        assert found.verdict.endswith("at this depth")
        assert found.verdict.startswith("collapsed") is collapses
    else:
        assert found.verdict == (rollout.COLLAPSES if collapses else rollout.NO_COLLAPSE)
    assert found.lambda_sum == pytest.approx(float(np.sum(mixing)))
    assert found.off_diagonal_sum == pytest.approx(float(np.sum(mixing)) * 49 / 50)
    assert found.last_to_first == row[0]
    assert found.last_to_last == row[-1]
    assert "P[n-1,0]" in found.evidence


@pytest.mark.parametrize("diverges", [True, False, None])
@pytest.mark.parametrize("value", [0.02, 0.9])
def test_evidence_begins_with_what_holds_at_this_depth(value: float, diverges: bool | None) -> None:
    layers = [kernels.uniform(50)] * 30
    row = rollout.rollout(layers, rollout.constant(30, value))
    evidence = rollout.collapse(layers, [value] * 30, row, diverges=diverges).evidence
    here, rest = evidence.split("; ", 1)
    assert here.startswith(f"at 30 layers this rollout gives the first token {row[0]:.4g} of the ")
    assert ("at least the 0.9" in here) is bool(row[0] >= 0.9)
    assert ("below the 0.9" in here) is bool(row[0] < 0.9)
    assert ("as layers are added without end" in rest) is (diverges is not None)
    assert ("goes to the first token" in rest) is (diverges is True)


def test_no_collapse_without_a_causal_mask_or_onto_oneself() -> None:
    full = [kernels.uniform(9, mask="full")] * 3
    ones = np.ones(3)
    row = rollout.rollout(full, ones)
    assert not rollout.collapse(full, ones, row, causal=False, diverges=True).collapses
    alone = [kernels.uniform(1)] * 3
    assert not rollout.collapse(alone, ones, np.ones(1), diverges=True).collapses


def test_entropy_of_a_flat_row_is_log_n() -> None:
    full = [kernels.uniform(9, mask="full")]
    found = rollout.collapse(full, [1.0], rollout.rollout(full, [1.0]), causal=False)
    assert found.row_entropy == pytest.approx(np.log(9))


def test_forces_push_in_the_directions_that_the_papers_name() -> None:
    """The mask pulls to the beginning; residual stream, decay and self-attention to the end."""
    n, layers = 100, 8
    mixing, ones = rollout.constant(layers, 0.4), np.ones(layers)
    uniform = [kernels.uniform(n)] * layers
    decay = [kernels.alibi(n, [0.05])] * layers
    content = [kernels.alibi(n, [0.05], 3.0)] * layers
    found = rollout.forces(
        [
            ("causal_mask", rollout.rollout(uniform, ones)),
            ("residual", rollout.rollout(uniform, mixing)),
            ("positional_encoding", rollout.rollout(decay, mixing)),
            ("content", rollout.rollout(content, mixing)),
        ]
    )
    assert found[0].shift < 0
    assert all(force.shift > 0 for force in found[1:])
    assert 0.5 + sum(force.shift for force in found) == pytest.approx(found[-1].mean_position)
    assert 0.1 + sum(f.primacy_shift for f in found) == pytest.approx(found[-1].primacy_mass)
    assert 0.1 + sum(f.recency_shift for f in found) == pytest.approx(found[-1].recency_mass)


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.uniform(20),
        kernels.uniform(20, window=5),
        kernels.alibi(20, [0.1]),
        kernels.alibi(20, [0.5, 0.0]),
    ],
)
def test_positional_kernels_are_monotone(kernel: Kernel) -> None:
    assert rollout.monotone_violation(kernel.dense()) < 1e-12


def test_a_kernel_that_looks_back_is_not_monotone() -> None:
    backwards = np.array([[1.0, 0, 0], [0.0, 1.0, 0.0], [0.75, 0.0, 0.25]])
    assert rollout.monotone_violation(backwards) == pytest.approx(0.75)
    assert rollout.monotone_violation([[1.0]]) == 0


@pytest.mark.parametrize(
    ("count", "mixing"),
    [(0, []), (2, [0.5]), (1, [1.5]), (1, [-0.1]), (1, [float("nan")]), (1, [[0.5, 0.5]])],
)
def test_refusals(count: int, mixing: list[float]) -> None:
    with pytest.raises(ValueError, match="mixing"):
        rollout.rollout([kernels.uniform(3)] * count, mixing)


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="same length"):
        rollout.rollout([kernels.uniform(3), kernels.uniform(4)], [0.5, 0.5])
