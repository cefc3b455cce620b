"""From a request to an `OrderProblem`: weights, which chunks stay and why, and where pins stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from lacuna.contract.errors import InvalidRequest, TooLong
from lacuna.contract.placements import MAX_TOKENS, Chunk, Dropped, PlacementRequest
from lacuna.placement.curve import PlacementCurve
from lacuna.placement.problem import FREE, OrderProblem
from lacuna.placement.relevance import HIT_QUESTIONS, Relevance, weigh
from lacuna.placement.score_calibration import Calibration
from lacuna.placement.selection import count_chunks, hit_curve_error, select_chunks

MOST_WEIGHED = 200
"""Chunks that `max_chunks: "auto"` weighs one by one, which bounds its time."""
_KNOWS = 0.95
"""A calibration whose Brier score is a larger share of the base rate's says little of a chunk."""

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Assembled:
    """What is to be put in order."""

    problem: OrderProblem
    """Of a prompt of at least one token."""
    prompt_tokens: int
    chunks: list[Chunk]
    """Those of the problem, in the caller's order."""
    dropped: list[Dropped]
    relevance: Relevance
    """Of all chunks of the request."""


def assemble(
    request: PlacementRequest, curve: PlacementCurve, counts: Sequence[int] | None = None
) -> Assembled:
    """The problem that a request poses.

    Args:
        request: validated.
        curve: of `lacuna.placement.curve`.
        counts: tokens of each chunk; None takes them from the request.

    Raises:
        InvalidRequest: a relevance that its scale does not have, pins that contradict each other,
            or pinned chunks that exceed the budget.
        TooLong: the prompt exceeds `MAX_TOKENS`.
    """
    if counts is None:
        counts = [chunk.tokens or 0 for chunk in request.chunks]
    tokens = np.array(counts, dtype=np.int64)
    relevance = _relevance(request, tokens)
    kept, dropped = _fitting(request, tokens, relevance.weights)
    if request.max_chunks == "auto":
        kept, more = _worth_it(request, curve, tokens, relevance, kept)
        dropped = sorted(dropped + more, key=lambda one: one[0])
    problem = _problem(request, curve, tokens, relevance.weights, kept)
    chunks = [request.chunks[i] for i in kept.tolist()]
    length = _prompt_tokens(request, tokens[kept])
    return Assembled(problem, length, chunks, [one for _, one in dropped], relevance)


_Dropped = list[tuple[int, Dropped]]
"""Each with its index in the request."""


def _relevance(request: PlacementRequest, tokens: I64) -> Relevance:
    scores = np.array([chunk.relevance for chunk in request.chunks], dtype=np.float64)
    given = request.calibration
    calibration = None if given is None else Calibration.from_dict(given.model_dump())
    try:
        found = weigh(scores, request.relevance_scale, lengths=tokens, calibration=calibration)
    except ValueError as error:
        raise InvalidRequest(str(error), field="chunks.relevance") from error
    if given is not None and given.reliability.brier > _KNOWS * given.reliability.brier_base:
        note = (
            "the calibration knows hardly more than the base rate "
            f"(Brier score {given.reliability.brier:.3g}, base rate alone "
            f"{given.reliability.brier_base:.3g}): without it, scores count by rank"
        )
        found = replace(found, notes=(*found.notes, note))
    return found


def _fitting(request: PlacementRequest, tokens: I64, weights: F64) -> tuple[I64, _Dropped]:
    """Which chunks fit into `max_tokens` and a `max_chunks` in numbers."""
    most = request.max_chunks if isinstance(request.max_chunks, int) else None
    if request.max_tokens is None and most is None:
        return np.arange(tokens.size), []
    capacity = None
    if request.max_tokens is not None:
        capacity = request.max_tokens - request.prefix_tokens - request.suffix_tokens
        if capacity < 0:
            raise InvalidRequest(
                f"prefix and suffix alone exceed max_tokens {request.max_tokens}",
                field="max_tokens",
            )
        capacity += request.separator_tokens  # the last chunk has no separator behind it
    cost = tokens + request.separator_tokens
    try:
        kept = select_chunks(cost, weights, capacity, most, _pinned(request))
    except ValueError as error:
        raise InvalidRequest(str(error), field="max_tokens") from error
    full = most is not None and kept.size >= most
    out = np.setdiff1d(np.arange(tokens.size), kept).tolist()
    return kept, [(i, _did_not_fit(request, i, full=full)) for i in out]


def _pinned(request: PlacementRequest) -> npt.NDArray[np.bool_]:
    return np.array([chunk.pinned is not None for chunk in request.chunks], dtype=bool)


def _did_not_fit(request: PlacementRequest, at: int, *, full: bool) -> Dropped:
    name = request.chunks[at].id
    if full:
        return Dropped(id=name, reason="max_chunks", detail=f"only {request.max_chunks} may stay")
    detail = f"the prompt may have {request.max_tokens} tokens"
    return Dropped(id=name, reason="max_tokens", detail=detail)


def _worth_it(
    request: PlacementRequest,
    curve: PlacementCurve,
    tokens: I64,
    relevance: Relevance,
    fitting: I64,
) -> tuple[I64, _Dropped]:
    """`max_chunks: "auto"` among the best MOST_WEIGHED chunks that fit; pinned ones always stay."""
    pinned = _pinned(request)
    if not (~pinned[fitting]).any():
        return fitting, []
    optional, required = fitting[~pinned[fitting]], fitting[pinned[fitting]]
    best = np.argsort(-relevance.weights[optional], kind="stable")
    rest = optional[best[MOST_WEIGHED:]]
    optional = np.sort(optional[best[:MOST_WEIGHED]])
    weights = relevance.weights[optional]
    error = None
    if relevance.basis == "hit_curve":
        error = hit_curve_error(weights, HIT_QUESTIONS)
    elif relevance.basis == "calibration" and request.calibration is not None:
        error = np.full(weights.size, request.calibration.reliability.calibration_error_high / 2)
    free = _unpinned(request)
    found = count_chunks(
        weights,
        lambda some: _problem(free, curve, tokens, relevance.weights, optional[some]),
        curve.curves(int(tokens.sum())),
        weight_error=error,
        distractor_cost=request.distractor_cost,
        by_length=relevance.by_length,
    )
    if found.why == "all_kept":
        beyond = f"the {MOST_WEIGHED} most relevant chunks are weighed"
        why = partial(Dropped, reason="max_chunks", detail=beyond)
    else:
        why = partial(Dropped, reason=found.why, detail=found.reason)
    gone = np.concatenate([optional[found.dropped], rest]).tolist()
    out = [(i, why(id=request.chunks[i].id)) for i in gone]
    return np.sort(np.concatenate([required, optional[found.kept]])), out


def _unpinned(request: PlacementRequest) -> PlacementRequest:
    """The request as if nothing had a place or a group: how many to keep does not hang on it."""
    update = {"pinned": None, "group": None}
    return request.model_copy(
        update={"chunks": [chunk.model_copy(update=update) for chunk in request.chunks]}
    )


def _prompt_tokens(request: PlacementRequest, tokens: I64) -> int:
    """Prefix, chunks of these lengths, what separates them, and suffix."""
    between = request.separator_tokens * max(tokens.size - 1, 0)
    return request.prefix_tokens + int(tokens.sum()) + between + request.suffix_tokens


def _problem(
    request: PlacementRequest, curve: PlacementCurve, tokens: I64, weights: F64, kept: I64
) -> OrderProblem:
    length = _prompt_tokens(request, tokens[kept])
    if length > MAX_TOKENS:
        raise TooLong(f"the prompt has {length} tokens, the limit is {MAX_TOKENS}", field="chunks")
    slots, groups = _constraints([request.chunks[i] for i in kept.tolist()])
    return OrderProblem(
        cumulative=curve.cumulative(max(length, 1)),
        lengths=tokens[kept],
        relevance=weights[kept],
        start=request.prefix_tokens,
        separator=request.separator_tokens,
        objective=request.objective,
        top=request.top_k,
        slots=slots,
        groups=groups,
    )


def _constraints(chunks: Sequence[Chunk]) -> tuple[I64 | None, I64 | None]:
    """Slots and groups of the kept chunks, as `OrderProblem` has them."""
    size = len(chunks)
    slots = groups = None
    pins = [chunk.pinned for chunk in chunks]
    if any(pin is not None for pin in pins):
        slots = np.full(size, FREE, dtype=np.int64)
        wanted = [i for i, pin in enumerate(pins) if pin == "first"]
        slots[wanted] = np.arange(len(wanted))
        wanted = [i for i, pin in enumerate(pins) if pin == "last"]
        slots[wanted] = np.arange(size - len(wanted), size)
        for i, pin in enumerate(pins):
            if isinstance(pin, int):
                if pin >= size:
                    raise InvalidRequest(
                        f"chunk {chunks[i].id!r} is pinned to place {pin}, but only {size} chunks "
                        "are kept",
                        field="chunks.pinned",
                    )
                slots[i] = pin
        taken = slots[slots != FREE]
        if np.unique(taken).size < taken.size:
            raise InvalidRequest("two chunks are pinned to one place", field="chunks.pinned")
    numbers: dict[str, int] = {}
    named = [chunk.group for chunk in chunks]
    members = [FREE if g is None else numbers.setdefault(g, len(numbers)) for g in named]
    if numbers and len(numbers) < sum(g is not None for g in named):
        groups = np.array(members, dtype=np.int64)
    return slots, groups
