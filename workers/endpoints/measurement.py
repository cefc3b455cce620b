"""The recall of a served model: open a reader, plan, and read until it is known.

The same prompts as those of loaded weights (`workers.recall`), read over HTTP. A request that was
answered once is not paid for again while its ledger is there; more groups later ask only what is
new.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from pydantic import SecretStr

from lacuna.contract.base import digest
from lacuna.contract.endpoints import Rung
from lacuna.contract.profile_requests import METHOD_VERSION, ProfileRequest, RecallRequest
from service.endpoints.costs import least_cost, refuse_beyond
from service.endpoints.table import Endpoint
from workers.endpoints.budget import Budget, Limits
from workers.endpoints.client import EndpointClient
from workers.endpoints.dialects import Way
from workers.endpoints.ledger import Ledger
from workers.endpoints.pace import SharedPace
from workers.endpoints.reader import EndpointReader
from workers.recall.measure import layouts
from workers.recall.reader import Check
from workers.recall.sampled import (
    OnShare,
    Probed,
    Sampled,
    Source,
    reporter,
    sampled,
    source_of,
)


@dataclass(frozen=True)
class Planned:
    """What will be asked of an endpoint, known before any prompt is read.

    Attributes:
        reader: open; the caller closes it.
        request: what was asked for.
        sources: groups by probe.
        ways: how the answers of each probe are read.
        prompts: digest of the prompts of each probe's first look (32 hex digits).
    """

    reader: EndpointReader
    request: ProfileRequest
    sources: tuple[Source, ...]
    ways: dict[str, Way]
    prompts: str

    @property
    def asked(self) -> RecallRequest:
        """The request for recall."""
        return recall_of(self.request)

    @property
    def id(self) -> str:
        """Content address of the profile to come: the request without its budget, which model
        answers, how it is read, and the prompts."""
        reader = self.reader
        served = reader.canary.served
        return digest(
            {
                "method": METHOD_VERSION,
                "request": self.request.model_copy(update={"budget": None}).identity(),
                "endpoint": [reader.endpoint.name, reader.endpoint.model, reader.form],
                "served": [served.model, served.fingerprint, reader.canary.digest],
                "ways": {name: way.name for name, way in self.ways.items()},
                "prompts": self.prompts,
            }
        )


@dataclass(frozen=True)
class Measured:
    """What came out: recall by probe, and the seconds that it took."""

    recall: dict[str, Probed]
    seconds: float


def recall_of(request: ProfileRequest) -> RecallRequest:
    """The request for recall, which a request of an endpoint always has."""
    assert request.recall is not None
    return request.recall


def open_reader(
    endpoint: Endpoint,
    key: SecretStr | None,
    request: ProfileRequest,
    ledger: Ledger,
    *,
    pace: SharedPace | None = None,
    check: Check | None = None,
) -> EndpointReader:
    """Find out how the endpoint can be read, within the request's budget.

    Args:
        endpoint: from the settings; the request may ask for another form of prompts.
        key: as `Endpoint.key` gave it.
        request: of an endpoint.
        ledger: where answers are kept.
        pace: shared with other workers; None: this process alone keeps the endpoint's.
        check: called several times a second whenever the reader waits.

    Raises:
        BudgetSpent: the budget does not reach for the fewest groups, judged before any call, and
            again once it is known how the server counts and answers.
        EndpointError, TooLong: as `EndpointReader`.
    """
    refuse_beyond(least_cost(request, endpoint), request.budget)
    form = recall_of(request).form
    if form != "auto":
        endpoint = endpoint.model_copy(update={"form": form})
    budget = Budget.of(endpoint, Limits.of(request.budget))
    scope = digest([endpoint.name, endpoint.base_url, endpoint.model, endpoint.form])
    reader = EndpointReader(
        endpoint,
        key,
        budget=budget,
        ledger=ledger,
        measurement=scope,
        longest=request.sequence_length,
        strict=True,
        check=check,
        client=EndpointClient(endpoint, key, budget=budget, ledger=ledger, pace=pace),
    )
    try:
        by_usage = reader.ladder.counts_by == "usage"
        cost = least_cost(request, endpoint, counts_by_usage=by_usage, rung=reader.rung)
        refuse_beyond(cost, request.budget)
    except BaseException:
        reader.close()
        raise
    return reader


def plan(reader: EndpointReader, request: ProfileRequest) -> Planned:
    """Draw the facts, lay out the prompts of the first look, and choose how to read each probe.

    Raises:
        DocumentsUnusable: no room for the facts at this length.
        BudgetSpent: counting tokens takes paid calls on this server.
    """
    asked = recall_of(request)
    sources = tuple(source_of(name, asked, request.seed) for name in asked.probes)
    ways, prompts = {}, []
    for source in sources:
        look = Sampled(source, asked, request.sequence_length, request.seed)
        groups = source.draw(look.start, asked.depths, request.seed, 0)
        answers = {item.answer for group in groups for item in group.items}
        if reader.form == "chat":  # a reply that starts by itself has no space in front
            answers = {answer.strip() for answer in answers}
        one_token = max(reader.count(sorted(answers))) == 1
        rung: Rung | None = "text" if asked.scoring == "text" else None
        ways[source.name] = reader.ladder.choose(rung=rung, one_token=one_token)
        for layout in layouts(reader, groups, request.sequence_length, asked.question):
            for number in range(len(layout.group.items)):
                questions = layout.questions(reader.form, asked.question, number)
                prompts += [repr(question.prompt) for _, _, question in questions]
    return Planned(reader, request, sources, ways, digest(prompts))


def run(planned: Planned, *, on_share: OnShare, check: Check) -> Measured:
    """Measure what was planned, probe by probe, and make sure that no other model took over.

    Args:
        planned: by `plan`.
        on_share: hears of progress.
        check: called several times a second; what it raises ends the measurement.

    Raises:
        BudgetSpent: during the first look of a probe; answers are kept.
        EndpointChanged: another model answers at the end.
        EndpointError, TooLong: as `EndpointReader.read`.
    """
    started, found = time.monotonic(), {}
    for number, source in enumerate(planned.sources):
        planned.reader.way = planned.ways[source.name]
        report = reporter(on_share, source, number, len(planned.sources))
        look = Sampled(source, planned.asked, planned.request.sequence_length, planned.request.seed)
        found[source.name] = sampled(planned.reader, look, report, check)
    planned.reader.verify()
    return Measured(found, time.monotonic() - started)
