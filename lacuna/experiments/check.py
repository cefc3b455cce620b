"""What can be refused of a request for an experiment before any model is at hand."""

from __future__ import annotations

from lacuna.contract.errors import InvalidRequest, TooLarge
from lacuna.contract.experiment_requests import (
    CURVE_ORDERS,
    MAX_EXPERIMENT_TOKENS,
    ExperimentRequest,
    estimate,
    prompt_tokens,
)
from lacuna.experiments.orders import orders
from lacuna.experiments.rendering import Renderer

_TRIED = 3
"""Questions whose prompts are rendered as a trial; the others come in the job."""


def check(request: ExperimentRequest) -> None:
    """Refuse what a worker would refuse anyway.

    Raises:
        InvalidRequest: the template cannot be used, or a question's scores or pins contradict their
            scale or each other; names the field.
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
    for number, question in enumerate(request.questions):
        made = orders(fixed, number)
        if number < _TRIED:
            render(question, next(iter(made.values())))
            if request.closed_book:
                _try_closed_book(render, request, number)


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
