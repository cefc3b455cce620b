"""Every kernel and mask against a dense rival in extended precision; no NaN for any input."""

import tracemalloc

import dense_rivals
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lacuna.theory import _alibi, _blocked, _distance, _recursion, _windowed, kernels
from lacuna.theory.kernels import Kernel

SLOPE = st.one_of(st.sampled_from([0.0, 1e-12, 1e-3, 0.5, 50.0]), st.floats(0, 50))
DIAGONAL = st.one_of(st.sampled_from([0.0, -1e4, 1e4, 740.0, -740.0, 70.0]), st.floats(-1e4, 1e4))
WINDOW = st.one_of(st.none(), st.integers(1, 45))
MASKS = [("causal", None), ("full", None), ("prefix", 0), ("prefix", 1), ("prefix", 17)]


def row_of(n: int, seed: int = 0) -> np.ndarray:
    row = np.random.default_rng(seed).random(n) ** 4
    return row / row.sum()


def through(matrices: np.ndarray, weights: np.ndarray, row: np.ndarray) -> np.ndarray:
    return np.einsum("h,i,hij->j", weights.astype(np.longdouble), row, matrices)


def prefix_of(n: int, mask: str, prefix: int | None) -> int:
    return n if mask == "full" else (prefix or 0)


@pytest.mark.parametrize(("mask", "prefix"), MASKS)
@pytest.mark.parametrize("window", [None, 1, 2, 5, 17, 40])
@pytest.mark.parametrize("n", [17, 40])
def test_uniform(n: int, window: int | None, mask: kernels.Mask, prefix: int | None) -> None:
    kernel = kernels.uniform(n, window=window, mask=mask, prefix=prefix)
    seen = dense_rivals.visible(n, window, prefix_of(n, mask, prefix))
    rival = (seen / seen.sum(axis=1, keepdims=True))[None]
    check(kernel, rival, np.ones(1))


@given(
    st.integers(1, 48),
    st.lists(st.tuples(SLOPE, DIAGONAL, st.floats(0.01, 1)), min_size=1, max_size=4),
    WINDOW,
    st.sampled_from(MASKS),
    st.sampled_from([1.0, 0.25, 7.0]),
)
@settings(deadline=None, max_examples=150)
def test_alibi(
    n: int,
    heads: list[tuple[float, float, float]],
    window: int | None,
    mask: tuple[kernels.Mask, int | None],
    temperature: float,
) -> None:
    prefix = None if mask[1] is None else min(mask[1], n)
    slopes, diagonal, weights = (np.array(column) for column in zip(*heads, strict=True))
    kernel = kernels.alibi(
        n,
        slopes,
        diagonal,
        window=window,
        temperature=temperature,
        head_weights=weights,
        mask=mask[0],
        prefix=prefix,
    )
    rival = dense_rivals.alibi(
        n, slopes / temperature, diagonal / temperature, window, prefix_of(n, mask[0], prefix)
    )
    check(kernel, rival, weights / weights.sum())


@given(
    st.integers(1, 48),
    st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=60),
    st.one_of(st.sampled_from([0.0, 1e4, -1e4]), st.floats(-50, 50)),
    DIAGONAL,
    WINDOW,
)
@settings(deadline=None, max_examples=150)
def test_distance(
    n: int, bias: list[float], sink: float, diagonal: float, window: int | None
) -> None:
    kernel = kernels.distance(n, bias, sink, diagonal=diagonal, window=window)
    rival = dense_rivals.distance(n, bias, sink, diagonal, window)
    check(kernel, rival[None], np.ones(1))


@pytest.mark.parametrize("heads", [1, 3])
def test_distance_per_head_with_weights(heads: int) -> None:
    bias = np.random.default_rng(1).normal(size=(heads, 9))
    weights = np.arange(1.0, heads + 1)
    kernel = kernels.distance(30, bias, 2.0, head_weights=weights, temperature=0.5)
    rival = np.stack([dense_rivals.distance(30, 2 * row, 4.0) for row in bias])
    check(kernel, rival, weights / weights.sum())


def test_long_profiles_by_fft(monkeypatch: pytest.MonkeyPatch) -> None:
    """The FFT's error is absolute; it must never turn a weight negative."""
    monkeypatch.setattr(_distance, "_DIRECT_PRODUCTS", 0)
    bias = -0.3 * np.arange(400)
    row = row_of(400)
    ours = kernels.distance(400, bias).apply(row)
    rival = row @ dense_rivals.distance(400, bias)
    assert ours.min() >= 0
    np.testing.assert_allclose(ours, rival.astype(float), atol=1e-15)


def test_distance_profile_of_alibi_is_alibi() -> None:
    """Two implementations of one kernel that share no code."""
    row = row_of(3000)
    ours = kernels.distance(3000, -0.01 * np.arange(3000), diagonal=1.5).apply(row)
    theirs = kernels.alibi(3000, [0.01], 1.5).apply(row)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@given(st.integers(1, 30), st.integers(1, 3), st.integers(0, 1000))
@settings(deadline=None)
def test_measured(n: int, heads: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    matrices = np.tril(generator.random((heads, n, n)) + 1e-3)
    matrices /= matrices.sum(axis=2, keepdims=True)
    weights = generator.random(heads) + 0.1
    kernel = kernels.measured(matrices.astype(np.float32), weights)
    row = row_of(n)
    rival = through(matrices, weights / weights.sum(), row)
    np.testing.assert_allclose(kernel.apply(row), rival.astype(float), rtol=1e-5)
    assert kernel.apply(row).sum() == pytest.approx(1, abs=1e-13)


def check(kernel: Kernel, rival: np.ndarray, weights: np.ndarray) -> None:
    n = kernel.length
    for row in (row_of(n), np.eye(n)[-1]):
        out = kernel.apply(row)
        assert np.isfinite(out).all()
        assert out.min() >= 0
        assert out.sum() == pytest.approx(1, abs=1e-13)
        assert dense_rivals.relative_error(out, through(rival, weights, row)) < 1e-12
    np.testing.assert_allclose(kernel.dense(), rival.astype(float), rtol=1e-9, atol=1e-13)
    own = np.einsum("h,hii->i", weights.astype(np.longdouble), rival)
    assert kernel.off_diagonal_mass() == pytest.approx(float((1 - own).max()), abs=1e-12)


@pytest.mark.parametrize(
    "slopes",
    [[0.0, 1e-12, 0.01, 0.3, 50.0], [0.5, 0.25, 2.0], [0.0], [0.1, 0.11, 0.9], [0.05], [30.0]],
)
@pytest.mark.parametrize("sizes", [(64, 32, 16, 2), (64, 16, 16, 3), (400, 64, 32, 4)])
def test_segments_join_without_a_seam(
    slopes: list[float], sizes: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments so small that a short prompt has many, near ones and far ones."""
    for name, size in zip(
        ("NEAR_ELEMENTS", "NEAR_MINIMUM", "FAR_BLOCK", "FAR_BLOCKS"), sizes, strict=True
    ):
        monkeypatch.setattr(_blocked, name, size)
    _alibi._shared_heads.cache_clear()
    generator = np.random.default_rng(len(slopes))
    for n in (33, 100, 515):
        diagonal = generator.normal(size=len(slopes)) * 40
        kernel = kernels.alibi(n, slopes, diagonal)
        rival = dense_rivals.alibi(n, slopes, diagonal.tolist())
        check(kernel, rival, np.full(len(slopes), 1 / len(slopes)))
    _alibi._shared_heads.cache_clear()


@pytest.mark.parametrize("window", [16, 17, 31, 32, 33, 48, 150, 299])
@pytest.mark.parametrize("sizes", [(1 << 15, 1 << 21), (64, 40)])
def test_windows_of_several_blocks(
    window: int, sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every remainder of the block size, with heads and positions in one group or in many."""
    monkeypatch.setattr(_windowed, "_NEAR_ELEMENTS", sizes[0])
    monkeypatch.setattr(_windowed, "_STATES", sizes[1])
    slopes, weights = [0.0, 1e-12, 0.02, 0.4, 50.0], np.arange(1.0, 6.0)
    for diagonal in ([0.0] * 5, [1e4, -1e4, 3.0, -2.0, 70.0]):
        for n in (window + 1, 300):
            kernel = kernels.alibi(n, slopes, diagonal, window=window, head_weights=weights)
            rival = dense_rivals.alibi(n, slopes, diagonal, window)
            check(kernel, rival, weights / weights.sum())


@pytest.mark.parametrize(("mask", "prefix"), MASKS)
@pytest.mark.parametrize("window", [None, 3, 20])
def test_without_tables(
    mask: kernels.Mask, prefix: int | None, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long prompts have no table of normalisers, and heads go in small groups."""
    monkeypatch.setattr(_recursion, "_TABLE_LIMIT", 0)
    monkeypatch.setattr(_alibi, "_GENERAL_ELEMENTS", 80)
    _alibi._shared_heads.cache_clear()
    slopes, diagonal = [0.0, 0.02, 0.4, 50.0], [1.0, 1e4, -1e4, 0.0]
    kernel = kernels.alibi(40, slopes, diagonal, window=window, mask=mask, prefix=prefix)
    rival = dense_rivals.alibi(40, slopes, diagonal, window, prefix_of(40, mask, prefix))
    check(kernel, rival, np.full(4, 0.25))
    _alibi._shared_heads.cache_clear()


@pytest.mark.parametrize("n", [16_384, 40_000])
def test_long_rows_against_a_filter_per_head(n: int) -> None:
    """Beyond the dense rival's reach: the plain first-order recursion, head by head."""
    slopes = kernels.standard_slopes(8)
    diagonal = np.random.default_rng(2).normal(size=8) * 3
    row = row_of(n)
    expected = np.zeros(n)
    for slope, extra in zip(slopes, diagonal, strict=True):
        q = np.exp(-slope)
        others = np.concatenate([[0.0], np.cumsum(q ** np.arange(1.0, n))])
        w = row / (np.exp(extra) + others)
        y, total = 0.0, np.empty(n)
        for j in range(n - 1, -1, -1):
            total[j] = np.exp(extra) * w[j] + y
            y = q * (y + w[j])
        expected += total / 8
    ours = kernels.alibi(n, slopes, diagonal).apply(row)
    np.testing.assert_allclose(ours, expected, rtol=1e-12)


def test_memory_does_not_grow_with_length_times_heads() -> None:
    """Less than the [heads, n] array that the plain method needs, let alone n x n."""
    n, heads = 131_072, 32
    kernel = kernels.alibi(n, kernels.standard_slopes(heads), 1.0)
    row = row_of(n)
    tracemalloc.start()
    kernel.apply(row)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.5 * n * heads * 8


@pytest.mark.parametrize("heads", [1, 2, 8, 32])
def test_standard_slopes_of_a_power_of_two(heads: int) -> None:
    slopes = kernels.standard_slopes(heads)
    np.testing.assert_array_equal(slopes, kernels.geometric_slopes(heads))
    np.testing.assert_allclose(slopes[1:] / slopes[:-1], slopes[0])
    assert slopes[-1] == 2.0**-8


def test_standard_slopes_otherwise_interleave() -> None:
    """Press et al.: those of 8 heads, then every other one of 16."""
    expected = [2.0**-k for k in range(1, 9)] + [2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5]
    np.testing.assert_allclose(kernels.standard_slopes(12), expected)


@pytest.mark.parametrize(
    "build",
    [
        lambda: kernels.uniform(0),
        lambda: kernels.uniform(3, window=0),
        lambda: kernels.uniform(3, prefix=2),
        lambda: kernels.uniform(3, mask="prefix"),
        lambda: kernels.uniform(3, mask="prefix", prefix=4),
        lambda: kernels.alibi(3, []),
        lambda: kernels.alibi(3, [-1.0]),
        lambda: kernels.alibi(3, [float("nan")]),
        lambda: kernels.alibi(3, [1.0], temperature=0.0),
        lambda: kernels.alibi(3, [1.0], temperature=1e-300),
        lambda: kernels.alibi(3, [1.0, 2.0], [1.0, 2.0, 3.0]),
        lambda: kernels.alibi(3, [1.0, 2.0], head_weights=[0.0, 0.0]),
        lambda: kernels.alibi(3, [1.0, 2.0], head_weights=[1.0]),
        lambda: kernels.distance(3, []),
        lambda: kernels.distance(3, [[1.0], [2.0]], diagonal=[1.0, 2.0, 3.0]),
        lambda: kernels.measured(np.ones((2, 2))),
        lambda: kernels.measured([[1.0, 0.0], [1.5, -0.5]]),
        lambda: kernels.measured(np.ones((2, 3))),
        lambda: kernels.standard_slopes(0),
    ],
)
def test_refusals(build: object) -> None:
    with pytest.raises(ValueError, match="must"):
        build()  # type: ignore[operator]
