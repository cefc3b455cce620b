"""Experiments with served models, over HTTP, and the handler of the queue `endpoints`.

Needs no torch.
"""

from __future__ import annotations

from functools import partial

from pydantic import SecretStr

from lacuna.contract.base import digest
from lacuna.contract.errors import BudgetSpent, InvalidRequest
from lacuna.contract.experiment_requests import ExperimentRequest
from lacuna.contract.experiments import ExperimentUsage
from lacuna.contract.profile_requests import ProfileRequest
from lacuna.placement.curve import PlacementCurve
from service.endpoints.costs import beyond, of_experiment
from service.endpoints.table import Endpoint
from service.store.claims import ExperimentOutcome, Outcome
from workers.endpoints.budget import Budget, Limits
from workers.endpoints.client import EndpointClient
from workers.endpoints.handler import EndpointProfiles
from workers.endpoints.ledger import Ledger, PrivateLedger
from workers.endpoints.reader import EndpointReader
from workers.experiments.run import About, Context, Finding, curve_of, outcome, run, scoring_of
from workers.lease import JobContext
from workers.loop import Capabilities, JobRequest

_ONE_TOKEN = 16
"""Characters of an answer that may be one token; longer ones need not be counted."""


def run_served(
    request: ExperimentRequest,
    endpoint: Endpoint,
    key: SecretStr | None,
    context: Context,
    *,
    ledger: Ledger,
    curve: PlacementCurve | None = None,
    client: EndpointClient | None = None,
) -> Finding:
    """Run an experiment with an endpoint.

    Args:
        request: passed by `lacuna.experiments.orders.check`.
        endpoint: that the request names.
        key: as `Endpoint.key` gave it.
        context: of the job.
        ledger: answers that were paid for once are not paid for again while it is kept.
        curve: of the request's `profile_id`, if it has one.
        client: with a pace of its own, or for tests; its budget must be the request's.

    Raises:
        InvalidRequest, TooLong: about the request; name the field.
        BudgetSpent: the estimate exceeds the budget, or it was spent before 12 questions.
        Errors of the endpoint.
    """
    limits = _limits(request, endpoint)
    text = request.scoring not in ("auto", "log_probability")
    budget = Budget.of(endpoint, limits) if client is None else client.budget
    context.progress(0.0, "finding out how the endpoint can be read")
    with EndpointReader(
        endpoint,
        key,
        budget=budget,
        ledger=ledger if client is None else client.ledger,
        measurement=digest(["experiment", endpoint.name, endpoint.base_url, endpoint.model]),
        rung="text" if text else None,
        longest=_longest(request, endpoint),
        check=context.check,
        client=client,
    ) as reader:
        context.check()
        if not text:
            reader.way = reader.ladder.choose(one_token=_one_token(request, reader))
        scoring_of(request, reader)
        about = About(
            revision=reader.canary.digest,
            longest=endpoint.context_length,
            free_counts=reader.ladder.counts_by == "tokenizer",
            again=len(request.questions),
        )
        return run(request, reader, context, about, partial(_spent, reader), curve=curve)


def _limits(request: ExperimentRequest, endpoint: Endpoint) -> Limits:
    """The request's budget, once it is known to be enough.

    Raises:
        InvalidRequest, BudgetSpent: as `run_served`.
    """
    if request.template.form not in ("auto", endpoint.form):
        raise InvalidRequest(
            f"`template.form`: endpoint {endpoint.name!r} is asked in the form {endpoint.form}; "
            "the operator's settings decide it",
            field="template.form",
        )
    asked = request.budget
    limits = Limits(asked.max_calls, asked.max_tokens, asked.max_cost)
    if (reason := beyond(of_experiment(request, endpoint), asked)) is not None:
        raise BudgetSpent(f"{reason}: raise it, or ask fewer questions in fewer orders")
    return limits


def _spent(reader: EndpointReader, prompts: int) -> ExperimentUsage:
    """What was spent, once the same model still answers.

    Raises:
        EndpointChanged: another one does.
    """
    if reader.exhausted is None:  # else there is no call left for it
        reader.verify()
    spent = reader.budget.spent
    return ExperimentUsage(
        prompts=prompts,
        calls=spent.calls,
        replayed=spent.replayed,
        prompt_tokens=spent.prompt_tokens,
        generated_tokens=spent.generated_tokens,
        cost=reader.budget.money,
    )


def _longest(request: ExperimentRequest, endpoint: Endpoint) -> int:
    """Tokens of the longest prompt, by a low estimate: its true length is checked when counted."""
    characters = max(
        sum(len(chunk.text) for chunk in question.chunks) + len(question.question)
        for question in request.questions
    )
    return min(characters // 5, endpoint.context_length)


def _one_token(request: ExperimentRequest, reader: EndpointReader) -> bool:
    """Whether every answer that is read is one token, as it follows the prompt."""
    lead = request.template.answer
    begins = reader.form == "chat" or (reader.form == "continued" and not lead)
    space = "" if begins or lead[-1:].isspace() else " "
    answers = sorted({space + question.answers[0] for question in request.questions}, key=len)
    if len(answers[-1]) > _ONE_TOKEN:
        return False
    # The longest first: one of several tokens is enough to know.
    return all(reader.count([answer])[0] == 1 for answer in reversed(answers))


class ServedHandler(EndpointProfiles):
    """Runs one job of the queue `endpoints`: a profile or an experiment. Arguments as there.

    An experiment that is killed or given back has every answer that it paid for in the store; they
    go when it has ended, for they belong to the caller's own texts.
    """

    def describe(self) -> Capabilities:
        """No device: an endpoint computes elsewhere."""
        return Capabilities("none", kinds=("profile", "experiment"))

    def __call__(self, request: JobRequest, context: JobContext) -> Outcome:
        """Make what the request asks for.

        Raises:
            LacunaError: why it cannot be made.
        """
        if isinstance(request, ProfileRequest):
            return self.profile(request, context)
        return self.privately(lambda ledger: self._experiment(request, context, ledger))

    def _experiment(
        self, request: ExperimentRequest, context: JobContext, ledger: PrivateLedger
    ) -> ExperimentOutcome:
        endpoint = self.endpoints.find(request.model)
        key = self.key_of(endpoint)
        asked = request.budget
        limits = Limits(asked.max_calls, asked.max_tokens, asked.max_cost)
        budget = Budget.of(endpoint, limits)
        pace = self.pace(endpoint, context.claim.job_id)
        client = EndpointClient(endpoint, key, budget=budget, ledger=ledger, pace=pace)
        curve = curve_of(request, self.find_profile)
        found = run_served(
            request, endpoint, key, context, ledger=ledger, curve=curve, client=client
        )
        return outcome(found, context.claim.job_id)
