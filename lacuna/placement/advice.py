"""Whether to reorder at all: the gain of the best order with an interval, and a decision.

An order is chosen on a curve that some documents gave, and on those documents its gain is too high:
the order fits their noise. So the gain is cross-fitted. The documents are split into folds, several
times; the order is chosen again without each fold and judged on it. Documents are the unit of the
interval. Its lower end comes from the cross-fitted values, its upper end from the larger of these
and the values in sample: cross-fitted values alone are too low where folds disagree about the
order. Coverage, false alarms and harm are simulated in `bench/advice.py`.

| decision | when |
|---|---|
| `reorder` | the interval of the gain over the caller's order lies above zero |
| `keep` | it does not, and its upper end is below MATTERS; or the order is the caller's anyway |
| `undecided` | it does not, but a gain that matters is possible; or nothing was measured |

Influence is not recall. On a curve of influence an order must gain INFLUENCE_MARGIN over SAFE_RULE,
which puts the best chunks at both ends and the very best last; else that rule is judged instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from lacuna.contract.base import percent
from lacuna.contract.placements import Decision
from lacuna.placement.document_curves import DocumentCurves
from lacuna.placement.problem import F64, I64, OrderProblem
from lacuna.placement.search import (
    OrderSolution,
    best_order,
    by_rank,
    fast_orders,
    fixed_orders,
    upper_bound,
)

MATTERS = 0.02
"""Gain below which the order makes no difference: `keep` needs an interval that ends under it."""
SAFE_RULE = "zigzag_best_last"
INFLUENCE_MARGIN = 0.05
"""What an order must gain over SAFE_RULE on a curve of influence. Influence ranks places only
roughly as recall does. On SmolLM2 the orders that it asked for gained .5% in influence over that
rule (median) and recalled less: -.06 nats [-.12, .00] in 96 trials (`bench/placement.py`)."""
TIE = 1e-3
"""Gain up to which two orders count as equal."""
LEVEL = 0.95
"""Of the intervals."""


@dataclass(frozen=True)
class Gain:
    """Value of one order over another, less 1, with a 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Advice:
    """What to do, and what the proposed order would bring."""

    decision: Decision
    reason: str
    order: I64
    """The order to use, shape [m]: `proposed` when the decision is `reorder` or a candidate was
    judged, else the caller's."""
    proposed: I64
    """The order that was judged, shape [m]."""
    name: str
    """Where `proposed` comes from: `curve`, the name of the best fixed rule, or a strategy."""
    gain: Mapping[str, Gain | None]
    """Of `proposed` over each fixed rule; None where the rule is worth nothing."""
    solution: OrderSolution
    """The candidate, or the order that the curve asks for, with its value and bound."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """An order to judge instead of the curve's own (made by `strategies`, chosen by `answer`)."""

    name: str
    solution: OrderSolution
    unseen: I64
    """What it would be without each fold's documents, shape [repeats x folds, m]."""


@dataclass(frozen=True, eq=False)
class _Values:
    """What orders are worth, by document."""

    rules: F64
    """Of each fixed rule, shape [D, rules]."""
    curve: F64
    """Of the order that the curve asks for, shape [D]."""
    curve_unseen: F64
    """The same, chosen without the document's fold, shape [repeats, D]."""
    rule_unseen: F64
    """Of the fixed rule that is best without the document's fold, shape [repeats, D]."""
    best_rule: int
    """The fixed rule that is best on all documents."""


def advise(
    problem: OrderProblem,
    curves: DocumentCurves,
    *,
    by_length: bool = True,
    document_order: I64 | None = None,
    candidate: Candidate | None = None,
    unsure: str | None = None,
    margin: float = 0.0,
) -> Advice:
    """Decide between the caller's order and the one that the curves ask for.

    With the curves of several documents the order is that of `fast_orders`, which can be chosen
    again for every fold (on noisy curves it is truly worth no less than the optimum, which fits
    the noise more closely). With one curve that is taken as true it is the optimum.

    Args:
        problem: chunks in the caller's order with weights (`relevance.weigh`), at least one; its
            cumulative curve is that of `curves.influence` at the prompt's length.
        curves: of `document_curves.prepare`, or `exact` for a caller's own density.
        by_length: whether length may decide (`Relevance.by_length`).
        document_order: permutation of that rule, where sources and positions are known.
        candidate: judge this order instead. It is the advised order whatever the decision.
        unsure: why no gain on these curves can be relied on (too few documents, or a curve that
            nobody measured). The decision is then `undecided`, with this reason.
        margin: gain over SAFE_RULE below which that rule is judged in place of the curve's order.

    Raises:
        ValueError: no order satisfies the pins and groups.
    """
    rules = fixed_orders(problem, document_order)
    trained = np.concatenate([curves.chosen_on[None], curves.trained_on])
    found = candidate or _of_curve(problem, curves, trained, by_length=by_length)
    chosen = np.concatenate([found.solution.order[None], found.unseen])
    values = _values(problem, curves, np.stack(list(rules.values())), chosen, trained)
    return _decide(values, found, rules, unsure=unsure, free=candidate is None, margin=margin)


def _of_curve(
    problem: OrderProblem, curves: DocumentCurves, trained: F64, *, by_length: bool
) -> Candidate:
    """The order that the curve asks for, and without each fold."""
    if not len(curves.trained_on):
        solution = best_order(problem) if by_length else by_rank(problem)
        return Candidate("curve", solution, solution.order[None][:0])
    chosen = fast_orders(problem, curves, trained, by_length=by_length)
    value = problem.value(chosen[0])
    bound = max(value, upper_bound(problem))
    return Candidate("curve", OrderSolution(chosen[0], value, bound, "heuristic"), chosen[1:])


def _values(
    problem: OrderProblem, curves: DocumentCurves, fixed: I64, chosen: I64, trained: F64
) -> _Values:
    """Values of the rules and of the orders chosen on each of the trained curves."""
    orders = np.concatenate([fixed, chosen])
    start = problem.offsets(orders)
    end = start + problem.span[orders]
    weight = _weights(problem, curves, orders, start, end)
    table = curves.coefficients(start, end, weight, problem.tokens)
    values = curves.cumulative @ table
    count = len(fixed)
    best = (trained @ table[:, :count]).argmax(axis=1)
    curve, rule = values[:, count][None], values[:, best[0]][None]
    if len(curves.trained_on):
        shape = curves.held_out.shape
        curve = (curves.held_out * values[:, count + 1 :].T.reshape(shape)).sum(axis=1)
        rule = (curves.held_out * values[:, best[1:]].T.reshape(shape)).sum(axis=1)
    return _Values(values[:, :count], values[:, count], curve, rule, int(best[0]))


def _weights(
    problem: OrderProblem, curves: DocumentCurves, orders: I64, start: I64, end: I64
) -> F64:
    """What a unit of mass on each chunk is worth, shape [Q, m].

    The worst case is linearised: all weight stands on the chunk that is the worst of the top ones
    under the mean curve.
    """
    if problem.objective != "worst_case":
        return problem.weight[orders]
    mean = curves.cumulative.mean(axis=0)
    mass = curves.read(mean, end, problem.tokens) - curves.read(mean, start, problem.tokens)
    seen = np.where(problem.is_top[orders], mass * problem.scale[orders], np.inf)
    worst = seen.argmin(axis=1)
    rows = np.arange(len(orders))
    weight = np.zeros(orders.shape)
    weight[rows, worst] = problem.scale[orders[rows, worst]]
    return weight


def gains(unseen: F64, seen: F64, others: F64) -> list[Gain | None]:
    """Gain of an order over others with 95% intervals; None over one that is worth nothing.

    Log ratio of means, error by the delta method, Student's t at D - 1 degrees of freedom. The
    lower end also has the variance between partitions into folds: they agree when the order hardly
    depends on the documents. With one document the interval has no width.

    Args:
        unseen: value of the order by document, chosen without it, shape [repeats, D].
        seen: value of the order chosen on all documents, shape [D].
        others: values of the rivals, which no document chose, shape [D, Q].
    """
    documents = others.shape[0]
    split = unseen.mean(axis=1)
    worth = others.mean(axis=0)
    if float(split.min()) <= 0 or float(seen.mean()) <= 0:
        least = Gain(-1.0, -1.0, -1.0), Gain(0.0, 0.0, 0.0)
        return [least[0] if w > 0 else least[1] for w in worth.tolist()]
    partition = float(np.log(split).var(ddof=1)) if len(split) > 1 else 0.0
    ratio, error = _ratios(unseen.mean(axis=0), others, worth)
    in_sample, error_in = _ratios(seen, others, worth)
    quantile = float(stdtrit(max(documents - 1, 1), (1 + LEVEL) / 2))
    low = np.minimum(ratio * np.exp(-quantile * np.hypot(error, np.sqrt(partition))), in_sample)
    widest = np.log(1e12)
    up, up_in = (np.exp(np.minimum(quantile * one, widest)) for one in (error, error_in))
    high = np.maximum(ratio * up, in_sample * up_in)
    ends = np.stack([ratio, low, high], axis=1) - 1
    ends[np.abs(ends) < 1e-12] = 0.0
    return [Gain(*row) if w > 0 else None for row, w in zip(ends.tolist(), worth, strict=True)]


def _ratios(order: F64, others: F64, worth: F64) -> tuple[F64, F64]:
    """Ratios of means, and the standard errors of their logarithms, shapes [Q]."""
    documents, top = others.shape[0], float(order.mean())
    bottom = np.where(worth > 0, worth, 1.0)
    if documents < 2:
        return top / bottom, np.zeros(bottom.size)
    residual = (order / top)[:, None] - others / bottom
    error = np.sqrt((residual**2).sum(axis=0) / (documents - 1) / documents)
    return top / bottom, error


def _gains(
    order: I64, unseen: F64, seen: F64, values: _Values, rules: Mapping[str, I64]
) -> dict[str, Gain | None]:
    """Of one order over all rules; exactly zero over a rule that gives the same order."""
    found = dict(zip(rules, gains(unseen, seen, values.rules), strict=True))
    same = {name: Gain(0.0, 0.0, 0.0) for name, rule in rules.items() if (order == rule).all()}
    return found | same


def _decide(
    values: _Values,
    candidate: Candidate,
    rules: Mapping[str, I64],
    *,
    unsure: str | None,
    free: bool,
    margin: float,
) -> Advice:
    """Judge the proposal.

    Args:
        free: whether a fixed rule may replace the candidate, and the caller's order stand.
    """
    given = rules["given"]
    if free:
        proposed, name, found = _proposal(values, candidate, rules, margin)
    else:
        proposed, name = candidate.solution.order, candidate.name
        found = _gains(proposed, values.curve_unseen, values.curve, values, rules)
    decision, reason = _verdict(found["given"])
    if (proposed == given).all():
        asks = "this strategy asks for" if not free else "to take, as far as the curve can tell"
        decision, reason = "keep", f"the caller's order is the one {asks}"
    elif unsure is not None:
        decision, reason = "undecided", unsure
    order = given if free and decision != "reorder" else proposed
    return Advice(decision, reason, order, proposed, name, found, candidate.solution)


def _proposal(
    values: _Values, candidate: Candidate, rules: Mapping[str, I64], margin: float
) -> tuple[I64, str, dict[str, Gain | None]]:
    """The order to judge, its name and its gains: the curve's if it surely beats the caller's and
    is not behind the best fixed rule; else that rule if it surely beats the caller's. Neither if it
    gains less than `margin` over the safe rule: then that one."""
    proposed, name = candidate.solution.order, candidate.name
    found = _gains(proposed, values.curve_unseen, values.curve, values, rules)
    behind = values.rule_unseen.mean() > values.curve_unseen.mean()
    if behind or not _sure(found["given"]):
        rule = list(rules)[values.best_rule]
        seen = values.rules[:, values.best_rule]
        rival = _gains(rules[rule], values.rule_unseen, seen, values, rules)
        if _sure(rival["given"]):
            proposed, name, found = rules[rule], rule, rival
    over, safe = found[SAFE_RULE], rules[SAFE_RULE]
    if over is not None and over.value < margin and not (proposed == safe).all():
        seen = values.rules[:, list(rules).index(SAFE_RULE)]
        return safe, SAFE_RULE, _gains(safe, seen[None], seen, values, rules)
    return proposed, name, found


def _sure(over: Gain | None) -> bool:
    return over is None or over.low > TIE


def _verdict(over: Gain | None) -> tuple[Decision, str]:
    if over is None:
        return "reorder", "the caller's order is worth nothing"
    between = f"95% interval {percent(over.low)} to {percent(over.high)}"
    if _sure(over):
        return (
            "reorder",
            f"gain {percent(over.value)} in visibility over the caller's order, {between}",
        )
    if over.high < -TIE:
        lost = f"another order loses against the caller's: {percent(over.value)}, {between}"
        return "keep", lost
    if over.high < MATTERS:
        return "keep", f"another order gains next to nothing over the caller's, {between}"
    return "undecided", (
        f"the gain over the caller's order may be zero: {percent(over.value)}, {between}; "
        "a longer measurement narrows it"
    )
