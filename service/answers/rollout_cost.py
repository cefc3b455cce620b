"""How long a rollout takes, in nanoseconds of one core, before it is computed.

The constants were measured on a quiet core of 2020s server hardware and err on the slow side; each
belongs to one loop of `lacuna.theory`.
"""

from __future__ import annotations

import numpy as np

from service.answers.rollout_inputs import Inputs

_ANSWER = 150.0
"""Per token and curve: shape, dead zone, bins."""
_FIXED_CURVES = 5
"""Curves beside the predictions asked for: the four forces and the closed form."""
_SMALLEST = 32
"""Kernels work in blocks: shorter prompts cost as much."""

_UNIFORM, _UNIFORM_MASKED, _UNIFORM_WINDOW = 6.0, 20.0, 30.0
"""Per token: a running sum; both sides; a sum over a window."""
_UNIFORM_CALL, _CALL = 8e3, 36e3
"""Per layer, whatever the length."""
_SETTLED_COST, _UNSETTLED_COST = 1.0, 4.0
"""Per token and ALiBi head: always, and while the head's normaliser still grows."""
_SETTLED = 39.0
"""A head with slope s has settled after this divided by s."""
_WINDOW_FACTOR, _SHORT_WINDOW = 4.0, 16
"""What a window adds to that; shorter ones go head by head, like masks."""
_BY_HEAD, _BY_HEAD_WINDOW = 50.0, 120.0
"""Per token and head for masks that are not causal, without and with a window."""
_DISTANCE, _DISTANCE_LOGIT, _DISTANCE_CALL = 150.0, 0.25, 100e3
"""Per token and head; the same per logit of the profile; per head, whatever the length."""
_MEASURED = 0.8
"""Per entry of a measured matrix."""
_TABLES, _TABLES_TOKEN, _TABLES_MOST = 80e3, 40.0, 32_768
"""To prepare a layer of its own, and per token and head (in chunks of so many)."""

_MOMENT_LAYER = 1e5
_MOMENT_EXACT, _MOMENT_LONG, _MOMENT_CACHED = 75.0, 150.0, 724
"""Per layer, distinct head and number of an n x n matrix; beyond so many tokens it leaves the
processor's cache."""
_MOMENT_MATRIX, _MOMENT_HEAD, _MOMENT_PRODUCT = 8.0, 12.0, 0.11
"""Over m bins: per layer and m^2; per distinct head and m^2; per distinct head and m^3."""
_MOMENT_TABLE, _MOMENT_TABLE_TOKEN, _MOMENT_TABLE_BIN = 5e4, 85.0, 30.0
"""To prepare a distinct head of a layer of its own: alone, per token, per m^2."""
_MOMENT_MLP = 2.4
"""With an MLP the stream's moment is followed as well, and the branch is added."""


def rollouts(inputs: Inputs, curves: int) -> float:
    """Everything but the second moment.

    Args:
        inputs: the resolved request.
        curves: rollouts over the request's own kernels.
    """
    n = float(max(inputs.length, _SMALLEST))
    masked = inputs.request.mask.type != "causal"
    answers = inputs.length * _ANSWER * (curves + _FIXED_CURVES)
    # The forces take two rollouts over uniform kernels more.
    forces = 2 * (_UNIFORM_CALL + n * (_UNIFORM_MASKED if masked else _UNIFORM))
    once, prepared = _layer(inputs, n, masked)
    return answers + inputs.layers * (curves * once + forces) + _rows(inputs) * (prepared + once)


def _layer(inputs: Inputs, n: float, masked: bool) -> tuple[float, float]:
    """Of one layer: to apply it once, and to prepare it."""
    spec, heads = inputs.kernel, inputs.heads
    if spec.type == "measured":
        return _CALL + _MEASURED * n * n, _MEASURED * n * n
    if spec.bias is not None:
        logits = min(n, float(np.shape(spec.bias)[-1]))
        each = _DISTANCE_CALL + n * (_DISTANCE + _DISTANCE_LOGIT * logits)
        return _CALL + heads * each, _TABLES
    if inputs.slopes is None and not inputs.has_content:
        if spec.window is not None:
            return _UNIFORM_CALL + n * _UNIFORM_WINDOW, _TABLES
        return _UNIFORM_CALL + n * (_UNIFORM_MASKED if masked else _UNIFORM), _TABLES
    tables = _TABLES + _TABLES_TOKEN * min(n * heads, _TABLES_MOST)
    return _CALL + n * heads * _per_head(inputs, n, masked), tables


def _per_head(inputs: Inputs, n: float, masked: bool) -> float:
    """Of an ALiBi kernel: per token and head."""
    window = inputs.kernel.window
    if masked or (window is not None and window < _SHORT_WINDOW):
        return _BY_HEAD if window is None else _BY_HEAD_WINDOW
    slopes = np.zeros((1, 1)) if inputs.slopes is None else inputs.slopes
    grows = _SETTLED / np.maximum(slopes / inputs.kernel.temperature, _SETTLED / n)
    share = float(np.minimum(grows, window or n).mean()) / n
    each = _SETTLED_COST + _UNSETTLED_COST * min(1.0, share)
    return each if window is None else _WINDOW_FACTOR * each


def _rows(inputs: Inputs) -> int:
    """Layers that have a kernel of their own; the others share one."""
    if inputs.kernel.matrices is not None:
        return len(inputs.kernel.matrices)
    return max(1 if inputs.slopes is None else len(inputs.slopes), len(inputs.diagonal))


def second_moment(inputs: Inputs) -> float:
    """The second moment from parameters alone."""
    from lacuna.theory.second_moment_architecture import bins_for

    layers, rows = inputs.layers, _rows(inputs)
    passes = _MOMENT_MLP if np.any(inputs.request.gains.mlp) else 1.0
    distinct = _distinct(inputs) * (layers / rows)
    n = float(inputs.length)
    bins = bins_for(inputs.length, int(distinct))
    if bins is None:
        each = _MOMENT_EXACT if n <= _MOMENT_CACHED else _MOMENT_LONG
        work, table = distinct * each * n**2, _MOMENT_TABLE + _MOMENT_TABLE_TOKEN * n
    else:
        m = float(min(bins, inputs.length))
        work = m**2 * (layers * _MOMENT_MATRIX + distinct * (_MOMENT_HEAD + _MOMENT_PRODUCT * m))
        table = _MOMENT_TABLE + _MOMENT_TABLE_TOKEN * n + _MOMENT_TABLE_BIN * m**2
    return passes * (layers * _MOMENT_LAYER + work + distinct * (rows / layers) * table)


def _distinct(inputs: Inputs) -> float:
    """Distinct heads (slope and content), summed over the layers that have a kernel of their own;
    equal heads are computed once."""
    slopes = np.zeros((1, 1)) if inputs.slopes is None else inputs.slopes
    pairs = slopes + 1j * inputs.diagonal
    pairs = np.sort(np.broadcast_to(pairs, (_rows(inputs), pairs.shape[1])), axis=1)
    return float(pairs.shape[0] + (pairs[:, 1:] != pairs[:, :-1]).sum())
