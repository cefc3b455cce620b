"""The orders of one question's chunks that an experiment compares, by the rules of
`lacuna.placement`, and what can be refused of a request before any model is at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np

from lacuna.contract.errors import InvalidRequest, TooLarge
from lacuna.contract.experiment_requests import (
    CURVE_ORDERS,
    MAX_EXPERIMENT_TOKENS,
    ExperimentQuestion,
    ExperimentRequest,
    OrderName,
    estimate,
    prompt_tokens,
)
from lacuna.contract.placements import Chunk, PlacementRequest
from lacuna.experiments.rendering import Renderer
from lacuna.placement.answer import place
from lacuna.placement.assemble import Assembled, assemble
from lacuna.placement.curve import PlacementCurve, of_density
from lacuna.placement.search import fixed_orders
from lacuna.placement.strategies import document_order

Order = tuple[int, ...]
Lengths = Callable[[int], tuple[list[int], int, int, int]]
"""Of the question with this number: tokens of each chunk, before the chunks, behind them, and
between two of them."""

_TRIED = 3
"""Questions whose prompts are rendered as a trial; the others come in the job."""
_FLAT = of_density([1.0])


def orders(
    request: ExperimentRequest,
    number: int,
    *,
    curve: PlacementCurve | None = None,
    lengths: Lengths | None = None,
) -> dict[OrderName, Order]:
    """Each order that the request names, as indices of the question's chunks.

    Args:
        request: validated.
        number: of the question, from 0.
        curve: for `advised` and `optimal`; default: the request's `density`.
        lengths: for them too; default: characters / 4, nothing around the chunks.

    Raises:
        InvalidRequest: scores that the scale does not have, pins that contradict each other, or no
            curve; names the question.
    """
    asked, name = request.questions[number], request.question_ids[number]
    try:
        return _orders(request, number, curve, lengths)
    except InvalidRequest as error:
        field = f"questions.{number}.chunks"
        raise InvalidRequest(f"question {name!r}: {error}", field=field) from None
    except ValueError as error:
        words = f"question {name!r}: the pins of its {len(asked.chunks)} chunks contradict: {error}"
        raise InvalidRequest(words, field=f"questions.{number}.chunks") from None


def _orders(
    request: ExperimentRequest,
    number: int,
    curve: PlacementCurve | None,
    lengths: Lengths | None,
) -> dict[OrderName, Order]:
    asked = request.questions[number]
    counts = [max(1, len(chunk.text) // 4) for chunk in asked.chunks]
    plain = _placement(request, asked, counts)
    known = assemble(plain, _FLAT, counts)
    by_document = _by_document(asked)
    found: dict[OrderName, Order] = {}
    for name, order in fixed_orders(known.problem, by_document).items():
        found[name] = tuple(order.tolist())  # type: ignore[index]  # the rules' names are orders'
    for name in ("random", "random_again"):
        if name in request.arms:
            found[name] = _random(request, known, number, name)
    if named := [name for name in request.arms if name in CURVE_ORDERS]:
        if curve is None and request.density is None:
            raise InvalidRequest(f"the order {named[0]} has no curve")
        along = curve or of_density(request.density or [])
        around = (counts, 0, 0, 0) if lengths is None else lengths(number)
        for name in named:
            found[name] = _along(request, asked, along, around, name)
    return {name: found[name] for name in request.arms}


def _placement(
    request: ExperimentRequest, asked: ExperimentQuestion, counts: Sequence[int]
) -> PlacementRequest:
    """The same chunks as a placement; `density` is only there since a placement needs a curve."""
    chunks = [
        Chunk(
            id=chunk.id,
            tokens=tokens,
            relevance=chunk.score,
            document=chunk.document,
            position=chunk.position,
            pinned=chunk.pinned,
        )
        for chunk, tokens in zip(asked.chunks, counts, strict=True)
    ]
    return PlacementRequest(density=[1.0], chunks=chunks, relevance_scale=request.relevance_scale)


def _by_document(asked: ExperimentQuestion) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    positions = [
        float(at) if chunk.position is None else chunk.position
        for at, chunk in enumerate(asked.chunks)
    ]
    return document_order([chunk.document for chunk in asked.chunks], positions)


def _random(request: ExperimentRequest, known: Assembled, number: int, name: str) -> Order:
    drawn = np.random.default_rng([request.seed, number, int(name == "random_again")])
    order = drawn.permutation(known.problem.size)
    if known.problem.constrained:
        order = known.problem.repair(order[None])[0]
    return tuple(order.tolist())


def _along(
    request: ExperimentRequest,
    asked: ExperimentQuestion,
    curve: PlacementCurve,
    around: tuple[list[int], int, int, int],
    name: OrderName,
) -> Order:
    """The order that a placement along the curve returns."""
    counts, before, behind, between = around
    wanted = _placement(request, asked, counts).model_copy(
        update={
            "prefix_tokens": before,
            "suffix_tokens": behind,
            "separator_tokens": between,
            "strategy": name,
        }
    )
    answer = place(wanted, curve, counts)
    index = {chunk.id: at for at, chunk in enumerate(asked.chunks)}
    return tuple(index[one] for one in answer.order)


def check(request: ExperimentRequest) -> None:
    """Refuse what a worker would refuse anyway.

    Raises:
        InvalidRequest: the template cannot be used, or shows no order; all orders are one; or a
            question's scores or pins contradict their scale or each other; names the field.
        TooLarge: more tokens than an experiment may read, or than its own budget allows.
    """
    tokens = prompt_tokens(request)
    if tokens > MAX_EXPERIMENT_TOKENS:
        raise TooLarge(
            f"`questions`: all prompts together have about {tokens:,} tokens, the limit is "
            f"{MAX_EXPERIMENT_TOKENS:,}: compare fewer orders or ask fewer questions",
            field="questions",
        )
    _check_budget(request)
    render = Renderer(request.template)
    plain = [name for name in request.arms if name not in CURVE_ORDERS]
    fixed = request.model_copy(
        update={"orders": plain or ["given"], "reference": (plain or ["given"])[0]}
    )
    moved = len(plain) < len(request.arms)  # a curve's order is not known here
    for number, question in enumerate(request.questions):
        made = orders(fixed, number)
        moved = moved or len({made[name] for name in plain}) > 1
        if number < _TRIED:
            render(question, next(iter(made.values())))
            if request.closed_book:
                _try_closed_book(render, request, number)
    _check_template_shows_order(render, request)
    if not moved:
        raise InvalidRequest(
            f"`orders`: all of them give the chunks in the order {request.reference}; name "
            "another order",
            field="orders",
        )


def _check_template_shows_order(render: Renderer, request: ExperimentRequest) -> None:
    """Refuse a template whose prompt stays the same when the chunks change places."""
    telling = (asked for asked in request.questions if len({c.text for c in asked.chunks}) > 1)
    tried = list(islice(telling, _TRIED))
    for asked in tried:
        forward = range(len(asked.chunks))
        shifted = [*forward[1:], 0]  # unlike the reverse, it also moves the chunk in the middle
        if any(
            render(asked, forward) != render(asked, order) for order in (forward[::-1], shifted)
        ):
            return
    if tried:
        raise InvalidRequest(
            "`template`: the prompt stays the same when the chunks change places; write the text "
            "of each of the `chunks`",
            field="template",
        )


def _try_closed_book(render: Renderer, request: ExperimentRequest, number: int) -> None:
    try:
        render(request.questions[number], ())
    except InvalidRequest as error:
        raise InvalidRequest(
            f"{error}; this is without chunks, for `closed_book`", field="template"
        ) from None


def _check_budget(request: ExperimentRequest) -> None:
    needs, budget = estimate(request), request.budget
    spent = needs.prompt_tokens + needs.generated_tokens
    calls = needs.calls or needs.prompts
    if budget.max_calls is not None and calls > budget.max_calls:
        raise TooLarge(
            f"`budget.max_calls`: about {calls:,} calls are needed, the budget is "
            f"{budget.max_calls:,}",
            field="budget.max_calls",
        )
    if budget.max_tokens is not None and spent > budget.max_tokens:
        raise TooLarge(
            f"`budget.max_tokens`: about {spent:,} tokens are needed, the budget is "
            f"{budget.max_tokens:,}",
            field="budget.max_tokens",
        )
