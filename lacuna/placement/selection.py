"""Which chunks to keep: as many as fit into a budget, or as many as bring something.

`select_chunks` is for a prompt with room for some of the chunks only. `count_chunks` stops where
one more brings nothing that can be told from zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from lacuna.evidence.bands import widening
from lacuna.placement.advice import LEVEL
from lacuna.placement.document_curves import DocumentCurves
from lacuna.placement.problem import F64, I64, OrderProblem
from lacuna.placement.search import fast_orders

EXACT_SELECTION_LIMIT = 14
"""Up to this many optional chunks every subset is compared."""
_MAX_WORK = 20_000_000
"""Pairs compared over all exchanges: bounds the time for thousands of chunks."""


def select_chunks(
    cost: I64,
    relevance: F64,
    capacity: int | None,
    count: int | None,
    required: NDArray[np.bool_],
) -> I64:
    """Which chunks to keep: most relevance in all, then most chunks, then fewest tokens.

    A chunk that still fits is never dropped. Up to `EXACT_SELECTION_LIMIT` optional chunks the
    choice is exact. Above, chunks are taken greedily by relevance per token (and, as a rival, by
    relevance alone), and then single chunks are exchanged while that helps.

    Args:
        cost: tokens that each chunk takes, separator included, shape [m].
        relevance: non-negative, shape [m].
        capacity: tokens for all of them, never exceeded; None: no limit.
        count: how many may stay; None: no limit.
        required: chunks that must stay, shape [m].

    Returns:
        Indices of the kept chunks, ascending.

    Raises:
        ValueError: the required chunks alone exceed capacity or count.

    >>> from numpy import array, zeros
    >>> select_chunks(array([6, 5, 5]), array([9.0, 5, 5]), 10, None, zeros(3, bool)).tolist()
    [1, 2]
    """
    room = int(cost.sum()) if capacity is None else capacity
    places = int(cost.size) if count is None else count
    room -= int(cost[required].sum())
    places -= int(required.sum())
    if room < 0 or places < 0:
        raise ValueError("the pinned chunks alone exceed the budget")
    optional = np.flatnonzero(~required)
    if optional.size <= places and int(cost[optional].sum()) <= room:
        return np.arange(cost.size)
    choose = _enumerate if optional.size <= EXACT_SELECTION_LIMIT else _fill
    kept = choose(cost[optional], relevance[optional], room, places)
    return np.sort(np.concatenate([np.flatnonzero(required), optional[kept]]))


def _enumerate(cost: I64, relevance: F64, room: int, places: int) -> I64:
    """The best of all 2^m subsets. Each chunk doubles the table of sums over subsets."""
    size = cost.size
    subsets = np.arange(1 << size)
    spent = np.zeros(1 << size, dtype=np.int64)
    gained = np.zeros(1 << size)
    many = np.zeros(1 << size, dtype=np.int64)
    for i in range(size):
        half, rest = slice(0, 1 << i), slice(1 << i, 2 << i)
        spent[rest] = spent[half] + cost[i]
        gained[rest] = gained[half] + relevance[i]
        many[rest] = many[half] + 1
    possible = subsets[(spent <= room) & (many <= places)]
    # Rounded, so that rounding errors do not decide. Of equal subsets, earlier chunks win.
    worth = np.round(gained[possible] / max(float(relevance.max()), 1e-300), 12)
    best = possible[np.lexsort((possible, spent[possible], -many[possible], -worth))[0]]
    return np.flatnonzero((best >> np.arange(size)) & 1)


def _fill(cost: I64, relevance: F64, room: int, places: int) -> I64:
    """The better of two greedy selections, then exchanges of one chunk for another."""
    selections = [
        _greedy(cost, np.argsort(-key, kind="stable"), room, places)
        for key in (relevance / np.maximum(cost, 1), relevance)
    ]
    kept = max(selections, key=lambda one: (float(relevance[one].sum()), int(one.sum())))
    work = 0
    while (work := work + int(kept.sum()) * int((~kept).sum())) <= _MAX_WORK:
        inside, outside = np.flatnonzero(kept), np.flatnonzero(~kept)
        spare = room - int(cost[inside].sum())
        gain = relevance[outside][None, :] - relevance[inside][:, None]
        gain[cost[outside][None, :] - cost[inside][:, None] > spare] = -np.inf
        if gain.size == 0 or float(gain.max()) <= 1e-12 * float(relevance.max()):
            break
        leaves, enters = np.unravel_index(int(np.argmax(gain)), gain.shape)
        kept[inside[leaves]] = False
        kept[outside[enters]] = True
        # An exchange may free room for more.
        order = np.concatenate([np.flatnonzero(kept), outside[np.argsort(-relevance[outside])]])
        kept = _greedy(cost, order, room, places)
    return np.flatnonzero(kept)


def _greedy(cost: I64, order: I64, room: int, places: int) -> NDArray[np.bool_]:
    """Go through `order` and take every chunk that still fits."""
    kept = np.zeros(cost.size, dtype=bool)
    for i in order.tolist():
        if places > 0 and cost[i] <= room and not kept[i]:
            kept[i] = True
            room -= int(cost[i])
            places -= 1
    return kept


@dataclass(frozen=True)
class Marginal:
    """What one more chunk adds, as a share of the value of the chunks before it."""

    chunk: int
    value: float
    low: float
    """Ends of the 95% interval."""
    high: float


@dataclass(frozen=True, eq=False)
class Kept:
    """Which chunks stay, and why the others go."""

    kept: I64
    """Indices, rising."""
    dropped: I64
    """Indices, rising."""
    why: Literal["all_kept", "no_gain", "distractor_cost"]
    reason: str
    marginal: tuple[Marginal, ...]
    """Of each chunk that was weighed, by falling weight, from the second on; the last of them is
    the first that was dropped, unless all were kept."""


def hit_curve_error(hits: F64, questions: int) -> F64:
    """Standard error of a hit curve measured on this many questions, shape of `hits`.

    Binomial, with two hits and two misses added (Agresti & Coull 1998): ranks that were hit once or
    twice have a rate that is known badly, and their plain error is too small.
    """
    total = questions + 4
    near = (hits * questions + 2) / total
    error: F64 = np.sqrt(near * (1 - near) / total)
    return error


def count_chunks(
    weights: F64,
    problem_of: Callable[[I64], OrderProblem],
    curves: DocumentCurves,
    *,
    weight_error: F64 | None = None,
    distractor_cost: float = 0.0,
    by_length: bool = True,
) -> Kept:
    """Add chunks by falling weight until the next one's value may be zero, or less than its cost.

    The value of a chunk is its weight times its visibility in the order that the curves ask for, in
    the prompt of the chunks kept so far and itself, judged on documents that did not choose the
    order (`advice`). Its interval has the documents' spread and the error of the weight; it is
    simulated in `bench/advice.py`. What it takes from the others by distracting is
    `distractor_cost`, which must be measured (recall against the number of competing facts). The
    first chunk always stays; pinned chunks are the caller's to add.

    Args:
        weights: of all chunks, shape [m] (`relevance.weigh`).
        problem_of: the problem of a set of chunks, given by rising indices.
        curves: of `document_curves.prepare`.
        weight_error: standard error of each weight, shape [m]; None takes weights as exact.
        distractor_cost: share of the value so far that one more chunk costs.
        by_length: as in `advice.advise`.
    """
    ranked = np.argsort(-weights, kind="stable")
    every = np.arange(weights.size)
    found: list[Marginal] = []
    before = _Worth(*np.zeros((2, curves.documents)))
    for count in range(1, weights.size + 1):
        kept = np.sort(ranked[:count])
        chunk = int(ranked[count - 1])
        place = int(np.searchsorted(kept, chunk))
        own, whole = _worth(problem_of(kept), curves, place, by_length=by_length)
        if count > 1:
            share = 0.0
            if weight_error is not None and weights[chunk] > 0:
                share = float(weight_error[chunk] / weights[chunk])
            plain, paid = _marginals(chunk, own, share, before, distractor_cost)
            found.append(paid)
            if paid.low <= 0:
                why: Literal["no_gain", "distractor_cost"] = (
                    "no_gain" if plain.low <= 0 else "distractor_cost"
                )
                kept = np.sort(ranked[: count - 1])
                reason = _sentence(why, paid)
                return Kept(kept, np.setdiff1d(every, kept), why, reason, tuple(found))
        before = whole
    return Kept(every, every[:0], "all_kept", "every chunk adds value", tuple(found))


def _sentence(why: str, marginal: Marginal) -> str:
    between = f"{marginal.value:+.2%}, 95% interval {marginal.low:+.2%} to {marginal.high:+.2%}"
    if why == "no_gain":
        return f"the next chunk's value may be zero: {between}"
    return f"the next chunk may distract more than it adds: {between}"


@dataclass(frozen=True, eq=False)
class _Worth:
    """Values by document, each of shape [D]."""

    unseen: F64
    """In the orders that were chosen without the document."""
    seen: F64
    """In the order that was chosen on all documents."""


def _marginals(
    chunk: int, own: _Worth, share: float, before: _Worth, cost: float
) -> tuple[Marginal, Marginal]:
    """Without and with the cost, as shares of the value before.

    Args:
        own: the chunk's value.
        share: standard error of its weight over the weight.
        before: value of the chunks kept so far.
    """
    value, half = _ratio(own.unseen, before.unseen, share)
    in_sample, half_in = _ratio(own.seen, before.seen, share)
    ends = (value, value - half, max(value + half, in_sample + half_in))
    return Marginal(chunk, *ends), Marginal(chunk, *(end - cost for end in ends))


def _ratio(own: F64, before: F64, share: float) -> tuple[float, float]:
    """Ratio of means, and half the width of its 95% interval by the delta method."""
    documents, worth = own.size, max(float(before.mean()), 1e-300)
    value = float(own.mean()) / worth
    error, quantile = share * value, float(ndtri((1 + LEVEL) / 2))
    if documents > 1:
        spread = float((own - value * before).std(ddof=1)) / worth
        error = float(np.hypot(error, spread / np.sqrt(documents)))
        quantile = float(stdtrit(documents - 1, (1 + LEVEL) / 2)) * widening(documents)
    return value, quantile * error


def _worth(
    problem: OrderProblem, curves: DocumentCurves, chunk: int, *, by_length: bool
) -> tuple[_Worth, _Worth]:
    """Of one chunk, and of all of them."""
    trained = np.concatenate([curves.chosen_on[None], curves.trained_on])
    orders = fast_orders(problem, curves, trained, by_length=by_length)
    start = problem.offsets(orders)
    end, weight = start + problem.span[orders], problem.weight[orders]
    found = []
    for one in (weight * (orders == chunk), weight):
        values = curves.cumulative @ curves.coefficients(start, end, one, problem.tokens)
        unseen = values[:, 0]
        if len(curves.trained_on):
            folds = values[:, 1:].T.reshape(curves.held_out.shape)
            unseen = (curves.held_out * folds).sum(axis=1).mean(axis=0)
        found.append(_Worth(unseen, values[:, 0]))
    return found[0], found[1]
