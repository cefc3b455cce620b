"""From a request for the profile of a served model to the stored bytes: its recall. No torch.

A job that is killed, cancelled or given back has every answer that it paid for in the store; the
next start, on whatever machine, asks only the rest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TypeVar

import redis
from pydantic import SecretStr

from lacuna.contract.errors import LacunaError
from lacuna.contract.profile_requests import ProfileRequest
from service.endpoints.table import Endpoint, Endpoints
from service.store.claims import Outcome, ProfileOutcome
from service.store.connection import is_outage
from service.store.endpoints import StoredAnswers, Turns, publish_abilities
from service.store.profiles import StoredProfile
from workers.endpoints import profile
from workers.endpoints.ledger import PrivateLedger
from workers.endpoints.measurement import open_reader, plan, run
from workers.endpoints.pace import Pace, SharedPace
from workers.endpoints.reader import EndpointReader
from workers.lease import Interruption, JobCancelled, JobContext

log = logging.getLogger(__name__)
T = TypeVar("T")

LADDER_SHARE = 0.04
"""Of a job's progress: finding out how the endpoint can be read."""
CALL_LEASE_SLACK = 10.0
"""Seconds beyond an endpoint's timeout after which a call counts as lost with its process."""


class EndpointProfiles:
    """Makes profiles of endpoints. `experiments.served` makes a worker's handler of it.

    Args:
        endpoints: of the settings.
        key_of: the key of an endpoint; raises EndpointRefused where it is not set.
        client: of the store, for answers, turns and abilities.
        find_profile: the stored profile of an id, or None; a stored one saves the measurement.
        answers_ttl: seconds for which answers are kept.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        key_of: Callable[[Endpoint], SecretStr | None],
        client: redis.Redis,
        find_profile: Callable[[str], StoredProfile | None],
        answers_ttl: float,
    ) -> None:
        self.endpoints, self.key_of, self.find_profile = endpoints, key_of, find_profile
        self._client, self._answers_ttl = client, answers_ttl

    def profile(self, request: ProfileRequest, context: JobContext) -> Outcome:
        """Measure the request's endpoint.

        Raises:
            LacunaError: why it cannot be measured.
        """
        if request.confidential:
            return self.privately(lambda ledger: self._measure(request, context, ledger))
        return self._measure(request, context, StoredAnswers(self._client, self._answers_ttl))

    def privately(self, measure: Callable[[PrivateLedger], T]) -> T:
        """What `measure` returns; answers to a caller's own texts go once nobody needs them."""
        kept = StoredAnswers(self._client, self._answers_ttl)
        private = PrivateLedger(kept)
        try:
            found = measure(private)
        except JobCancelled:
            kept.forget(private.names)
            raise
        except (Interruption, LacunaError):  # another start needs them; the store drops them later
            raise
        kept.forget(private.names)
        return found

    def _measure(
        self, request: ProfileRequest, context: JobContext, ledger: StoredAnswers | PrivateLedger
    ) -> Outcome:
        endpoint = self.endpoints.find(request.model)
        context.progress(0.0, "finding out how the endpoint can be read")
        context.check()
        started = time.monotonic()
        with open_reader(
            endpoint,
            self.key_of(endpoint),
            request,
            ledger,
            pace=self.pace(endpoint, context.claim.job_id),
            check=context.check,
        ) as reader:
            self._publish(reader)
            context.progress(LADDER_SHARE, "laying out the prompts")
            context.check()
            planned = plan(reader, request)
            load_seconds = time.monotonic() - started
            known = self.find_profile(planned.id)
            if known is not None:
                return ProfileOutcome(planned.id, known.body, known.envelope, known.summary)

            def on_share(share: float, message: str) -> None:
                context.progress(LADDER_SHARE + (1 - LADDER_SHARE) * share, message)

            found = run(planned, on_share=on_share, check=context.check)
            body = profile.profile_body(planned, found)
            envelope = profile.profile_envelope(planned, found, load_seconds)
        return ProfileOutcome(
            body.id,
            body.model_dump_json().encode(),
            envelope.model_dump_json().encode(),
            profile.profile_summary(body, envelope).model_dump_json().encode(),
        )

    def pace(self, endpoint: Endpoint, job_id: str) -> SharedPace:
        """The pace of an endpoint's calls, shared with all workers; calls of a job's earlier start
        count no more."""
        per_minute = endpoint.requests_per_minute
        turns = Turns(
            self._client,
            endpoint.name,
            most=endpoint.concurrency,
            gap=60.0 / per_minute if per_minute else 0.0,
            lease=endpoint.timeout + CALL_LEASE_SLACK,
            owner=job_id,
        )
        turns.free()
        return SharedPace(turns, Pace(per_minute, time.monotonic, asyncio.sleep), asyncio.sleep)

    def _publish(self, reader: EndpointReader) -> None:
        # Only the list of models needs it: a failure must not cost the profile.
        try:
            publish_abilities(self._client, reader.endpoint.name, profile.abilities_of(reader))
        except (redis.RedisError, OSError) as error:
            if not is_outage(error):
                raise
            log.warning("what the endpoint offers was not published")
