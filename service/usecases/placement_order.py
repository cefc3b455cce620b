"""Put chunks in order along a known curve: from wire request to theory and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from service.contract.errors import InvalidRequest, TooLong
from service.contract.placements import MAX_TOKENS, Chunk, PlacementRequest, PlacementResponse
from service.theory import placement
from service.theory.placement_budget import select
from service.usecases.placement_curves import PlacementCurve
from service.usecases.placement_report import Rule, respond

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

STABLE_TOLERANCE = 0.01
"""Share of the value that `order_sensitivity: stable` may cost."""


def place(
    request: PlacementRequest, curve: PlacementCurve, counts: Sequence[int] | None = None
) -> PlacementResponse:
    """The answer for a known curve; nothing but arithmetic.

    Args:
        request: validated.
        curve: of `placement_curves`.
        counts: tokens of each chunk; None takes them from the request.

    Raises:
        InvalidRequest, TooLong: see `answer`.
    """
    chunks = request.chunks
    if counts is None:
        counts = [chunk.tokens or 0 for chunk in chunks]
    tokens = np.array(counts, dtype=np.int64)
    relevance, rule = _relevance(request)
    kept = _select(request, tokens, relevance)
    fixed = request.prefix_tokens + request.suffix_tokens
    between = request.separator_tokens * max(kept.size - 1, 0)
    length = fixed + between + int(tokens[kept].sum())
    if length > MAX_TOKENS:
        raise TooLong(f"the prompt has {length} tokens, the limit is {MAX_TOKENS}", field="chunks")
    slots, groups = _constraints([chunks[i] for i in kept.tolist()])
    cumulative = curve.cumulative(max(length, 1))
    problem = placement.Problem(
        cumulative=cumulative,
        lengths=tokens[kept],
        relevance=relevance[kept],
        start=request.prefix_tokens,
        separator=request.separator_tokens,
        objective=request.objective,
        top=request.top_k,
        slots=slots,
        groups=groups,
    )
    try:
        solution = placement.place(problem)
    except ValueError as error:
        raise InvalidRequest(
            f"`pinned` and `group` contradict each other: {error}", field="chunks"
        ) from error
    if request.order_sensitivity == "stable":
        solution = placement.nearest_to_given(problem, solution, STABLE_TOLERANCE)
    ids = [chunks[i].id for i in kept.tolist()]
    return respond(request, curve, problem, solution, ids, length, rule)


def _relevance(
    request: PlacementRequest,
) -> tuple[F64, Rule]:
    """Non-negative relevances: negative scores are shifted and distances turned round so that
    the worst counts 0; all equal then means all 1."""
    given = np.array([chunk.relevance for chunk in request.chunks], dtype=np.float64)
    if given.size == 0 or (request.higher_is_better and float(given.min()) >= 0):
        return given, "as_given"
    turned = given - given.min() if request.higher_is_better else given.max() - given
    rule: Rule = "shifted" if request.higher_is_better else "inverted"
    return (turned if float(turned.max()) > 0 else np.ones(given.size)), rule


def _select(request: PlacementRequest, tokens: I64, relevance: F64) -> I64:
    """Which chunks fit into the budget."""
    if request.max_tokens is None and request.max_chunks is None:
        return np.arange(tokens.size)
    capacity = None
    if request.max_tokens is not None:
        capacity = request.max_tokens - request.prefix_tokens - request.suffix_tokens
        if capacity < 0:
            raise InvalidRequest(
                f"prefix and suffix alone exceed max_tokens {request.max_tokens}",
                field="max_tokens",
            )
        capacity += request.separator_tokens  # the last chunk has no separator behind it
    pinned = np.array([chunk.pinned is not None for chunk in request.chunks], dtype=bool)
    cost = tokens + request.separator_tokens
    try:
        return select(cost, relevance, capacity, request.max_chunks, pinned)
    except ValueError as error:
        raise InvalidRequest(str(error), field="max_tokens") from error


def _constraints(chunks: Sequence[Chunk]) -> tuple[I64 | None, I64 | None]:
    """Slots and groups of the kept chunks, as `placement.Problem` has them."""
    size = len(chunks)
    slots = groups = None
    pins = [chunk.pinned for chunk in chunks]
    if any(pin is not None for pin in pins):
        slots = np.full(size, placement.FREE, dtype=np.int64)
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
        taken = slots[slots != placement.FREE]
        if np.unique(taken).size < taken.size:
            raise InvalidRequest("two chunks are pinned to one place", field="chunks.pinned")
    numbers: dict[str, int] = {}
    named = [chunk.group for chunk in chunks]
    members = [placement.FREE if g is None else numbers.setdefault(g, len(numbers)) for g in named]
    if numbers and len(numbers) < sum(g is not None for g in named):
        groups = np.array(members, dtype=np.int64)
    return slots, groups
