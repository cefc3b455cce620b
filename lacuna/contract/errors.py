"""The error tree: every failure Lacuna can report, with a stable `code`.

    LacunaError                    code                   retryable
    ├── RequestError
    │   ├── InvalidRequest         invalid_request        no
    │   ├── PayloadTooLarge        payload_too_large      no
    │   ├── TooLong                too_long               no
    │   ├── TooLarge               too_large              no
    │   ├── Unauthorized           unauthorized           no
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
    │   ├── JobNotFound            job_not_found          no
    │   └── RouteNotFound          not_found              no
    ├── JobError
    │   ├── OutOfMemory            out_of_memory          no
    │   ├── NotFinite              not_finite             no
    │   ├── DocumentsUnusable      documents_unusable     no
    │   ├── WorkerLost             worker_lost            yes
    │   ├── Cancelled              cancelled              yes
    │   └── InternalError          internal_error         yes
    └── ServiceError
        ├── QueueFull              queue_full             yes
        └── StoreUnavailable       store_unavailable      yes

`code` never changes once published; `retryable` says whether the same request may succeed later
without any change by the caller. This module knows nothing of HTTP: the mapping from codes to
statuses stands in `service.gateway.problems` alone.
"""

from __future__ import annotations


class LacunaError(Exception):
    """Base of every failure that Lacuna reports.

    Args:
        detail: one sentence for the person who made the request.
        field: dotted path of the request field at fault, if there is one.
        retry_after: seconds after which a retry makes sense, if known.
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


class RequestError(LacunaError):
    """The request itself is at fault."""

    code = "invalid_request"


class InvalidRequest(RequestError):
    """A field is missing, unknown, of the wrong type or out of its bounds."""

    code = "invalid_request"


class PayloadTooLarge(RequestError):
    """The body exceeds the configured number of bytes."""

    code = "payload_too_large"


class TooLong(RequestError):
    """More tokens than the model, or this service, can take."""

    code = "too_long"


class TooLarge(RequestError):
    """The estimated cost of the request exceeds the configured bound."""

    code = "too_large"


class Unauthorized(RequestError):
    """No API key, or one that is not known."""

    code = "unauthorized"


class RateLimited(RequestError):
    """Too many requests with this key, or too many of them wait at once."""

    code = "rate_limited"
    retryable = True


class ModelError(LacunaError):
    """The model named in the request cannot be used."""

    code = "model_unsupported"


class ModelNotAllowed(ModelError):
    """The operator's allow-list does not admit this model."""

    code = "model_not_allowed"


class ModelNotFound(ModelError):
    """No such repository, revision, folder or demo model."""

    code = "model_not_found"


class ModelGated(ModelError):
    """The repository exists but asks for an agreement or a token."""

    code = "model_gated"


class ModelUnreachable(ModelError):
    """The hub could not be reached; nothing is known about the model."""

    code = "model_unreachable"
    retryable = True


class ModelUnsupported(ModelError):
    """The model loads but cannot be measured; `detail` says why."""

    code = "model_unsupported"


class WeightsUnsafe(ModelError):
    """Only pickle weights are offered, which can run code; Lacuna loads safetensors."""

    code = "weights_unsafe"


class NotFound(LacunaError):
    """Nothing stands under this identifier."""

    code = "not_found"


class ProfileNotFound(NotFound):
    """No profile with this id, or it was evicted."""

    code = "profile_not_found"


class JobNotFound(NotFound):
    """No job with this id, or its record has expired."""

    code = "job_not_found"


class RouteNotFound(NotFound):
    """No such address."""

    code = "not_found"


class JobError(LacunaError):
    """An accepted job ended without a result."""

    code = "internal_error"


class OutOfMemory(JobError):
    """The device cannot hold one document; `detail` names the largest length that fits."""

    code = "out_of_memory"


class NotFinite(JobError):
    """Gradients or losses are NaN or infinite; `detail` names the dtype."""

    code = "not_finite"


class DocumentsUnusable(JobError):
    """No document reaches the asked length."""

    code = "documents_unusable"


class WorkerLost(JobError):
    """The lease expired as often as allowed: every worker that took the job went away."""

    code = "worker_lost"
    retryable = True


class Cancelled(JobError):
    """The caller withdrew the job."""

    code = "cancelled"
    retryable = True


class InternalError(JobError):
    """A fault of Lacuna's own; the log under the request id says more."""

    code = "internal_error"
    retryable = True


class ServiceError(LacunaError):
    """The service cannot take the request now."""

    code = "store_unavailable"
    retryable = True


class QueueFull(ServiceError):
    """As many jobs wait as the operator allows."""

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
"""Every published code with its class: how a stored failure becomes an exception again."""
