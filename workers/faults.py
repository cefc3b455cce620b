"""Which exceptions fail a job, and after which the process must end. Start at `classify`.

The class of an exception decides, and a test of the device. The wording of a message decides only
for failed allocations that torch reports in no other way. This module does not import torch: where
torch was never loaded, none of its exceptions can arrive.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
from dataclasses import dataclass
from typing import Any, Final

from lacuna.contract.base import Wire
from lacuna.contract.errors import (
    InternalError,
    LacunaError,
    ModelError,
    OutOfMemory,
)
from lacuna.contract.experiment_requests import ExperimentRequest
from lacuna.contract.jobs import Failure
from lacuna.contract.profile_requests import ProfileRequest

EXIT_CONFIG: Final = 78
"""Exit status: the settings or the store do not allow this worker to start."""
EXIT_DEVICE: Final = 81
"""Exit status: the device is broken for this process; a fresh one may do better."""
EXIT_STUCK: Final = 82
"""Exit status: the job did not stop when it had to."""

_NO_MEMORY: Final = 2
"""cudaErrorMemoryAllocation."""
_NO_MEMORY_MESSAGES: Final = (
    "allocate memory",  # the CPU's allocator
    "not enough memory",
    "error: out of memory",  # the driver
    "_STATUS_ALLOC_FAILED",  # cuBLAS, cuSPARSE, cuSOLVER, cuDNN
    "_ALLOCATION_FAILED",  # cuDNN 9
)

log = logging.getLogger(__name__)


class Misconfigured(Exception):
    """The settings ask for something that this machine does not have; the message is one line."""


class DeviceBroken(Exception):
    """This process can no longer use the device."""


@dataclass(frozen=True)
class Fatal:
    """The process must end with this status; another process runs the job."""

    exit_code: int
    reason: str


def classify(error: BaseException, request: Wire | None = None) -> Failure | Fatal:
    """What an exception means for the job and for this process.

    Args:
        error: what the handler raised.
        request: the job's request; the message about memory names its length.

    Returns:
        The job's failure, or `Fatal` when this process can run no further job.
    """
    if isinstance(error, LacunaError):
        return _failure(error)
    if is_out_of_memory(error):
        return _failure(_memory_fault(request))
    if isinstance(error, DeviceBroken) or _device_broken(error):
        return Fatal(EXIT_DEVICE, f"{type(error).__name__}: {error}")
    return _failure(InternalError(f"{type(error).__name__} in the worker; its log says more"))


def clean_up() -> None:
    """Free the memory of a job that failed or was interrupted."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        # A broken device raises here too; then the next job fails and ends the process.
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()


def _failure(error: LacunaError) -> Failure:
    # The code that finds out what a model cannot do does not know the request's fields.
    field = "model" if error.field is None and isinstance(error, ModelError) else error.field
    return Failure(code=error.code, detail=error.detail, retryable=error.retryable, field=field)


def _memory_fault(request: Wire | None) -> OutOfMemory:
    if isinstance(request, ExperimentRequest):
        return OutOfMemory(
            "the device ran out of memory; try shorter or fewer chunks", field="questions"
        )
    if not isinstance(request, ProfileRequest):
        return OutOfMemory("the device ran out of memory")
    length = request.sequence_length
    hint = f"; try sequence_length {length // 2} or less" if length > 1 else ""
    detail = f"the device ran out of memory at sequence_length {length}{hint}"
    return OutOfMemory(detail, field="sequence_length")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that an allocation failed, on the host or on the device.

    torch has a class for its own allocator on accelerators. Failures of the driver, of the CPU's
    allocator and of libraries that allocate for themselves have an error code, or only a wording.
    """
    if isinstance(error, MemoryError) or _is_a(error, "OutOfMemoryError"):
        return True
    if not isinstance(error, RuntimeError):
        return False
    coded = _is_a(error, "AcceleratorError") and getattr(error, "error_code", None) == _NO_MEMORY
    return coded or any(part in str(error) for part in _NO_MEMORY_MESSAGES)


def is_machine_fault(error: BaseException) -> bool:
    """Whether the machine caused an exception, and not the model: out of memory, or a bad device.

    Code that tries whether a model's own code runs must let such an exception through.
    """
    if is_out_of_memory(error) or isinstance(error, DeviceBroken):
        return True
    return _is_a(error, "AcceleratorError") or _device_broken(error)


def _is_a(error: BaseException, name: str) -> bool:
    """Whether it is an instance of torch's class of that name."""
    found: Any = getattr(sys.modules.get("torch"), name, None)
    return isinstance(found, type) and isinstance(error, found)


def _device_broken(error: BaseException) -> bool:
    """Whether the device is unusable after this error; many errors leave it usable."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(error, RuntimeError):
        return False
    if not torch.cuda.is_initialized():
        return _is_a(error, "AcceleratorError")
    # Some errors stay until the process ends, others concern one kernel launch, and libraries raise
    # a plain RuntimeError for both. So run something on the device and see.
    try:
        torch.cuda.synchronize()
        torch.ones(8, device="cuda").sum().item()
    except RuntimeError as probe:
        log.warning("the device does not answer", extra={"probe": str(probe)[:200]})
        return not is_out_of_memory(probe)
    return False
