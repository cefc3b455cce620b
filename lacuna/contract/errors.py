"""The error tree: every failure that Lacuna can report, with a stable `code`.

    LacunaError                    code                   retryable
    ├── RequestError
    │   ├── InvalidRequest         invalid_request        no
    │   ├── PayloadTooLarge        payload_too_large      no
    │   ├── TooLong                too_long               no
    │   ├── TooLarge               too_large              no
    │   ├── Unauthorized           unauthorized           no
    │   ├── Forbidden              forbidden              no
    │   └── RateLimited            rate_limited           yes
    ├── ModelError
    │   ├── ModelNotAllowed        model_not_allowed      no
    │   ├── ModelNotFound          model_not_found        no
    │   ├── ModelGated             model_gated            no
    │   ├── ModelUnreachable       model_unreachable      yes
    │   ├── ModelUnsupported       model_unsupported      no
    │   └── WeightsUnsafe          weights_unsafe         no
    ├── NotFound
    │   ├── ProfileNotFound        profile_not_found      no
    │   ├── ExperimentNotFound     experiment_not_found   no
    │   ├── JobNotFound            job_not_found          no
    │   └── RouteNotFound          not_found              no
    ├── JobError
    │   ├── OutOfMemory            out_of_memory          no
    │   ├── NotFinite              not_finite             no
    │   ├── DocumentsUnusable      documents_unusable     no
    │   ├── WorkerLost             worker_lost            yes
    │   ├── Cancelled              cancelled              yes
    │   └── InternalError          internal_error         yes
    ├── EndpointError
    │   ├── EndpointUnknown        endpoint_unknown       no
    │   ├── EndpointUnreachable    endpoint_unreachable   yes
    │   ├── EndpointRefused        endpoint_refused       no
    │   ├── EndpointIncapable      endpoint_incapable     no
    │   ├── EndpointTruncates      endpoint_truncates     no
    │   ├── EndpointChanged        endpoint_changed       yes
    │   └── BudgetSpent            budget_spent           no
    └── ServiceError
        ├── QueueFull              queue_full             yes
        └── StoreUnavailable       store_unavailable      yes

A published `code` never changes. `retryable` says whether the same request may succeed later,
without any change by the caller. HTTP statuses are not here: `service.gateway.problems` maps codes
to them.
"""

from __future__ import annotations

from typing import Any


class LacunaError(Exception):
    """Base of every failure that Lacuna reports.

    Args:
        detail: one sentence for the person who made the request.
        field: dotted path of the request field at fault; None if no single field is.
        retry_after: seconds after which a retry makes sense; None if unknown.
    """

    code: str = "internal_error"
    retryable: bool = False

    def __init__(
        self, detail: str, *, field: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.field = field
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are rebuilt from `args` alone, which lack what subclasses take by name. Without
        # this an error of a process pool would break the pool.
        return _rebuilt, (type(self), self.args, vars(self))


def _rebuilt(kind: type[LacunaError], args: tuple[Any, ...], state: dict[str, Any]) -> LacunaError:
    error = kind.__new__(kind)
    error.args = args
    vars(error).update(state)
    return error


class RequestError(LacunaError):
    """The request has to change before it can succeed."""

    code = "invalid_request"


class InvalidRequest(RequestError):
    """A field is missing, unknown, of the wrong type or out of bounds."""

    code = "invalid_request"


class PayloadTooLarge(RequestError):
    """The body has more bytes than the service accepts."""

    code = "payload_too_large"


class TooLong(RequestError):
    """More tokens than the model or this service can take."""

    code = "too_long"


class TooLarge(RequestError):
    """The request costs more than this service allows."""

    code = "too_large"


class Unauthorized(RequestError):
    """No API key, or an unknown one."""

    code = "unauthorized"


class Forbidden(RequestError):
    """The role of the API key does not allow this; `detail` names the role needed."""

    code = "forbidden"


class RateLimited(RequestError):
    """Too many requests with this key, or too many that wait at once."""

    code = "rate_limited"
    retryable = True


class ModelError(LacunaError):
    """The model named in the request cannot be used."""

    code = "model_unsupported"


class ModelNotAllowed(ModelError):
    """The operator does not allow this model."""

    code = "model_not_allowed"


class ModelNotFound(ModelError):
    """No such repository, revision, folder, preset or demo model."""

    code = "model_not_found"


class ModelGated(ModelError):
    """The repository exists, but requires an agreement or a token."""

    code = "model_gated"


class ModelUnreachable(ModelError):
    """The hub cannot be reached, so nothing is known about the model."""

    code = "model_unreachable"
    retryable = True


class ModelUnsupported(ModelError):
    """The model loads, but cannot be measured; `detail` says why."""

    code = "model_unsupported"


class WeightsUnsafe(ModelError):
    """The model has only pickle weights, which can run code; Lacuna loads safetensors."""

    code = "weights_unsafe"


class NotFound(LacunaError):
    """Nothing has this id or address."""

    code = "not_found"


class ProfileNotFound(NotFound):
    """No profile has this id, or it was evicted."""

    code = "profile_not_found"


class ExperimentNotFound(NotFound):
    """No experiment of this caller has this id, or its result has expired."""

    code = "experiment_not_found"


class JobNotFound(NotFound):
    """No job has this id, or its record has expired."""

    code = "job_not_found"


class RouteNotFound(NotFound):
    """No such address."""

    code = "not_found"


class JobError(LacunaError):
    """A job was accepted, and ended without a result."""

    code = "internal_error"


class OutOfMemory(JobError):
    """The device cannot hold one document; `detail` names the largest length that fits."""

    code = "out_of_memory"


class NotFinite(JobError):
    """Gradients or losses are NaN or infinite; `detail` names the dtype."""

    code = "not_finite"


class DocumentsUnusable(JobError):
    """The documents cannot be read at this length, or not by this model."""

    code = "documents_unusable"


class WorkerLost(JobError):
    """Every worker that took the job disappeared, as often as the service tries."""

    code = "worker_lost"
    retryable = True


class Cancelled(JobError):
    """The caller cancelled the job."""

    code = "cancelled"
    retryable = True


class InternalError(JobError):
    """An error in Lacuna itself; the log has more under the request id."""

    code = "internal_error"
    retryable = True


class EndpointError(LacunaError):
    """A served model cannot be measured.

    `detail` never repeats what its server wrote: servers put paths, keys and prompts into errors.
    """

    code = "endpoint_incapable"


class EndpointUnknown(EndpointError):
    """The settings name no endpoint like this."""

    code = "endpoint_unknown"


class EndpointUnreachable(EndpointError):
    """No usable answer after all tries: connection faults, overload, half answers, no JSON."""

    code = "endpoint_unreachable"
    retryable = True


class EndpointRefused(EndpointError):
    """The server rejects the key, asks for payment, or sends the caller elsewhere."""

    code = "endpoint_refused"


class EndpointIncapable(EndpointError):
    """The server does not offer what is asked; `detail` gives the reason for each reader."""

    code = "endpoint_incapable"


class EndpointTruncates(EndpointError):
    """The server read fewer tokens than were sent, or does not say how many it read."""

    code = "endpoint_truncates"


class EndpointChanged(EndpointError):
    """Another model answers than the one that answered first."""

    code = "endpoint_changed"
    retryable = True


class BudgetSpent(EndpointError):
    """The next call would exceed the calls, tokens or money that the request allows."""

    code = "budget_spent"


class ServiceError(LacunaError):
    """The service cannot take the request now."""

    code = "store_unavailable"
    retryable = True


class QueueFull(ServiceError):
    """As many jobs wait already as the operator allows."""

    code = "queue_full"
    retryable = True


class StoreUnavailable(ServiceError):
    """Redis does not answer, or is out of memory."""

    code = "store_unavailable"
    retryable = True


def _leaves(root: type[LacunaError]) -> dict[str, type[LacunaError]]:
    found = {root.code: root} if not root.__subclasses__() else {}
    for child in root.__subclasses__():
        found |= _leaves(child)
    return found


BY_CODE: dict[str, type[LacunaError]] = _leaves(LacunaError)
"""Every published code with its class. A stored failure becomes an exception again by it."""
