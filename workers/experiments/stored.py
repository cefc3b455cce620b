"""What the job of an experiment needs of the store, and what it leaves there."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator

from lacuna.contract.experiment_requests import ExperimentRequest
from lacuna.contract.experiments import ROW_COLUMNS, ExperimentRow
from lacuna.placement.curve import PlacementCurve
from lacuna.placement.profile_curve import of_profile
from service.store.claims import ExperimentOutcome
from service.store.experiments import packed
from service.store.profiles import StoredProfile, profile_not_found
from workers.experiments.run import Finding


def outcome(found: Finding, job_id: str) -> ExperimentOutcome:
    """A finding as it is stored, under the id of its job: the id that its caller knows."""
    result = found.result.model_copy(update={"id": job_id})
    return ExperimentOutcome(result.model_dump_json().encode(), packed(_lines(found.rows)))


def _lines(rows: Iterable[ExperimentRow]) -> Iterator[str]:
    """The table as CSV (RFC 4180), heading first."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(ROW_COLUMNS)
    writer.writerows(row.cells() for row in rows)
    yield buffer.getvalue()


def curve_of(
    request: ExperimentRequest, find_profile: Callable[[str], StoredProfile | None]
) -> PlacementCurve | None:
    """The curve of the profile that a request names; None if it names none.

    Raises:
        ProfileNotFound: it was deleted since.
        InvalidRequest: it lacks the source that is asked for.
    """
    if request.profile_id is None:
        return None
    stored = find_profile(request.profile_id)
    if stored is None:
        raise profile_not_found(request.profile_id)
    return of_profile(stored.body, request.source)
