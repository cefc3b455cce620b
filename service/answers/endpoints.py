"""Requests for endpoints: what is refused before anything is queued, estimates, and the list."""

from __future__ import annotations

import redis.asyncio

from lacuna.contract.endpoints import PREFIX, EndpointEstimate, EndpointListing
from lacuna.contract.errors import TooLong
from lacuna.contract.profile_requests import ProfileRequest
from service.endpoints.costs import estimate, least_cost, refuse_beyond
from service.endpoints.table import Endpoint, Endpoints
from service.store.endpoints import abilities


def refuse(request: ProfileRequest, table: Endpoints) -> None:
    """Refuse a request for an endpoint that is known to fail.

    Raises:
        EndpointUnknown: the settings name no such endpoint.
        TooLong: it takes fewer tokens than the request asks for.
        BudgetSpent: the fewest groups take more than the budget allows.
    """
    endpoint = _found(request, table)
    refuse_beyond(least_cost(request, endpoint), request.budget)


def estimated(request: ProfileRequest, table: Endpoints) -> EndpointEstimate:
    """What a request would take, and whether its budget allows that.

    Raises:
        EndpointUnknown, TooLong: as `refuse`.
    """
    return estimate(request, _found(request, table))


async def listing(table: Endpoints, client: redis.asyncio.Redis) -> list[EndpointListing]:
    """The endpoints of the settings with what they were found to offer.

    Raises:
        StoreUnavailable: Redis is away.
    """
    known = await abilities(client, [endpoint.name for endpoint in table])
    return [
        EndpointListing(
            name=f"{PREFIX}{endpoint.name}",
            model=endpoint.model,
            context_length=endpoint.context_length,
            form=endpoint.form,
            input_price=endpoint.input_price,
            output_price=endpoint.output_price,
            abilities=known.get(endpoint.name),
        )
        for endpoint in table
    ]


def _found(request: ProfileRequest, table: Endpoints) -> Endpoint:
    endpoint = table.find(request.model)
    if request.sequence_length > endpoint.context_length:
        raise TooLong(
            f"`sequence_length`: {request.sequence_length} tokens are more than the "
            f"{endpoint.context_length} that {request.model} takes",
            field="sequence_length",
        )
    return endpoint
