"""One recall curve of a served model: what it will cost, and what came out of it.

The same prompts as those of loaded weights (`workers.recall.measure`), read over HTTP. A request
that was answered once is never paid for again while its ledger is there; more groups later ask only
what is new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import SecretStr

from lacuna.contract.base import Wire, digest, rounded_list
from lacuna.contract.errors import BudgetSpent
from lacuna.contract.recall import RecallCurve
from lacuna.placement.document_curves import at_depths
from workers.endpoints.budget import Budget, Estimate, Limits, estimate
from workers.endpoints.ledger import Ledger
from workers.endpoints.reader import EndpointReader
from workers.endpoints.settings import Endpoint
from workers.recall.measure import REPEATED_PROMPTS, measure
from workers.recall.probes import PROBES
from workers.recall.reader import OnProgress
from workers.recall.result import Recall
from workers.recall.wire import recall_to_wire

SEGMENTS = 20
"""Pieces of filler that are counted for one group, about."""
BINS = 20
"""Of the density."""
TEXT_TOKENS = 8
"""Tokens that a reply may have where only texts are compared."""


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        probe: one of `workers.recall.probes.PROBES`.
        length: tokens of a prompt with its answer.
        depths: of the curve, and competing facts in each prompt.
        groups: what is drawn independently.
        seed: of the draw.
    """

    probe: str
    length: int
    depths: int
    groups: int
    seed: int = 0

    def measurement(self, endpoint: Endpoint) -> str:
        """Names answers that belong together (32 hex digits). Groups are left out: more of them
        find the answers of fewer."""
        return digest([endpoint.name, endpoint.base_url, endpoint.model, endpoint.form])

    def cost(self, endpoint: Endpoint, *, counts_by_usage: bool, text: bool) -> Estimate:
        """What it will take.

        Args:
            endpoint: for prices and pace.
            counts_by_usage: whether counting tokens is paid for, for lack of a route that does it.
            text: whether the reply's text is all that can be read.
        """
        k = self.depths
        prompts = self.groups * k
        counted = self.groups * (1 + 3 * k + SEGMENTS)
        return estimate(
            endpoint,
            answers=(prompts + min(prompts, REPEATED_PROMPTS)) * k,
            length=self.length,
            rung="text" if text else "first_token",
            answer_tokens=TEXT_TOKENS if text else 1,
            short_answers=2 * prompts,
            counting_calls=counted,
            counting_tokens=32 * counted + self.groups * self.length if counts_by_usage else 0,
        )


class Served(Wire):
    """A recall curve of a served model, and how it was read."""

    endpoint: str
    model: str
    served_model: str | None
    """What the server calls itself, in its last answer."""
    canary: str
    """Digest of what the model answers to three fixed prompts: it stands for a revision."""
    length: int
    probe: str
    way: str
    """How answers were read; `curve.rung` is its rung."""
    why_not_higher: Mapping[str, str]
    """Each way of a higher rung, with the reason why it does not count."""
    counts_by: Literal["tokenizer", "usage"]
    censored: float
    """Share of answers that the server's list of tokens did not reach."""
    groups_lost: int
    """Groups left out since a question had no answer."""
    curve: RecallCurve
    density: list[float] | None
    """What `density` of POST /v1/placements takes, mean 1; null unless the verdict is `varies`: a
    density is taken there as certain."""
    calls: int
    """Calls of this start."""
    replayed: int
    """Answers taken from the ledger."""
    prompt_tokens: int
    generated_tokens: int
    cost: float
    """Of all starts, in the currency of the settings' prices."""


def run(
    endpoint: Endpoint,
    key: SecretStr | None,
    plan: Plan,
    limits: Limits,
    ledger: Ledger,
    on_progress: OnProgress | None = None,
) -> Served:
    """Measure a recall curve.

    Args:
        endpoint: from the settings.
        key: as `Endpoint.key` gave it.
        plan: what to measure.
        limits: what it may cost, earlier starts over the same ledger included.
        ledger: where answers are kept.
        on_progress: told how many questions are answered.

    Raises:
        BudgetSpent: the limits do not reach. No more than finding the readers was paid if the
            estimate says so; else answers are kept.
        EndpointError, TooLong, DocumentsUnusable: as `EndpointReader` and `measure` do.
    """
    budget = Budget.of(endpoint, limits)
    _refuse_beyond(plan.cost(endpoint, counts_by_usage=False, text=False), limits)
    with EndpointReader(
        endpoint,
        key,
        budget=budget,
        ledger=ledger,
        measurement=plan.measurement(endpoint),
        longest=plan.length,
    ) as reader:
        usage = reader.ladder.counts_by == "usage"
        _refuse_beyond(
            plan.cost(endpoint, counts_by_usage=usage, text=reader.rung == "text"), limits
        )
        reader.way = reader.ladder.choose(one_token=_one_token(reader, plan))
        found = _measured(reader, plan, on_progress)
        reader.verify()
        return _served(reader, plan, found)


def _refuse_beyond(cost: Estimate, limits: Limits) -> None:
    if (beyond := cost.exceeds(limits)) is not None:
        raise BudgetSpent(f"{beyond}: raise it, or measure fewer groups or a shorter length")


def _one_token(reader: EndpointReader, plan: Plan) -> bool:
    groups = PROBES[plan.probe](plan.groups, plan.depths, plan.seed, 0)
    answers = {item.answer for group in groups for item in group.items}
    if reader.form == "chat":  # a reply that starts by itself has no space in front
        answers = {answer.strip() for answer in answers}
    return max(reader.count(sorted(answers))) == 1


def _measured(reader: EndpointReader, plan: Plan, on_progress: OnProgress | None) -> Recall:
    found = measure(
        reader,
        PROBES[plan.probe],
        plan.length,
        probe=plan.probe,
        groups=plan.groups,
        depths=plan.depths,
        seed=plan.seed,
        on_progress=on_progress,
    )
    if reader.exhausted is not None:
        raise reader.exhausted
    return found


def _served(reader: EndpointReader, plan: Plan, found: Recall) -> Served:
    ladder, budget = reader.ladder, reader.budget
    curve = recall_to_wire(found, None, "fixed", reader="endpoint")
    return Served(
        endpoint=reader.endpoint.name,
        model=reader.endpoint.model,
        served_model=ladder.served.model,
        canary=reader.canary.digest,
        length=plan.length,
        probe=plan.probe,
        way=reader.way.name,
        why_not_higher=ladder.why_not_higher(reader.way),
        counts_by="usage" if ladder.counts_by == "usage" else "tokenizer",
        censored=found.censored,
        groups_lost=found.lost,
        curve=curve,
        density=_density(found) if curve.verdict == "varies" else None,
        cost=budget.money,
        calls=budget.spent.calls,
        replayed=budget.spent.replayed,
        prompt_tokens=budget.spent.prompt_tokens,
        generated_tokens=budget.spent.generated_tokens,
    )


def _density(found: Recall) -> list[float]:
    values = at_depths(found.depths, found.probability[None], BINS)[0]
    return rounded_list(np.asarray(values / values.mean()))
