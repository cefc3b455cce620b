"""Runs every job of the queue `endpoints`: profiles of served models, and experiments with them."""

from __future__ import annotations

from lacuna.contract.experiment_requests import ExperimentRequest
from lacuna.contract.profile_requests import ProfileRequest
from service.store.claims import ExperimentOutcome, Outcome
from workers.endpoints.budget import Budget, Limits
from workers.endpoints.client import EndpointClient
from workers.endpoints.handler import EndpointHandler
from workers.endpoints.ledger import PrivateLedger
from workers.experiments.served import run_served
from workers.experiments.stored import curve_of, outcome
from workers.lease import JobContext
from workers.loop import Capabilities, JobRequest


class ServedHandler(EndpointHandler):
    """An `EndpointHandler` that takes experiments too. Arguments as there.

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
            return super().__call__(request, context)
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
