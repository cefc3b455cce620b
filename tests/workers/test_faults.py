"""Exceptions sorted into failures and reasons to die."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lacuna.contract.errors import BY_CODE, InternalError, LacunaError, ModelUnsupported
from lacuna.contract.jobs import Failure
from lacuna.contract.profile_requests import ProfileRequest
from workers.faults import (
    EXIT_DEVICE,
    DeviceBroken,
    Fatal,
    classify,
    is_machine_fault,
    is_out_of_memory,
)

Make = Callable[..., ProfileRequest]


def coded(error: Exception, code: int) -> Exception:
    """With the driver's error code, as torch gives it on a device."""
    error.error_code = code  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize("kind", BY_CODE.values(), ids=lambda kind: kind.code)
def test_our_own_errors_keep_code_sentence_and_field(kind: type[LacunaError]) -> None:
    failure = classify(kind("it says why", field="dtype"))
    expected = {"code": kind.code, "detail": "it says why", "retryable": kind.retryable}
    assert failure == Failure.model_validate({**expected, "field": "dtype"})


def test_the_field_at_fault_is_the_model_where_the_model_is_at_fault() -> None:
    unsupported, broken = classify(ModelUnsupported("no")), classify(InternalError("no"))
    assert isinstance(unsupported, Failure)
    assert isinstance(broken, Failure)
    assert (unsupported.field, broken.field) == ("model", None)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be"),
        coded(torch.AcceleratorError("CUDA error: as the driver words it"), 2),
    ],
)
def test_out_of_memory_fails_the_job_and_names_a_length(
    error: Exception, make_request: Make
) -> None:
    failure = classify(error, make_request(sequence_length=512))
    assert isinstance(failure, Failure)
    assert (failure.code, failure.retryable) == ("out_of_memory", False)
    assert failure.field == "sequence_length"
    assert "512" in failure.detail
    assert "256" in failure.detail
    assert is_out_of_memory(error)  # batches are halved by the same verdict
    assert is_machine_fault(error)


def test_torch_really_reports_a_huge_cpu_tensor_that_way() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    failure = classify(caught.value)
    assert isinstance(failure, Failure)
    assert failure.code == "out_of_memory"


@pytest.mark.parametrize(
    "error", [DeviceBroken("gone"), torch.AcceleratorError("CUDA error: illegal address")]
)
def test_a_broken_device_ends_the_process(error: Exception) -> None:
    verdict = classify(error)
    assert isinstance(verdict, Fatal)
    assert verdict.exit_code == EXIT_DEVICE
    assert is_machine_fault(error)


@pytest.mark.parametrize("lives", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: invalid configuration argument"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    ],
)
def test_the_device_itself_says_whether_it_survived(
    error: Exception, lives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def synchronize() -> None:
        if not lives:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    real = torch.ones
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(torch, "ones", lambda n, device: real(n))
    verdict = classify(error)
    if lives:
        assert isinstance(verdict, Failure)
        assert verdict.code == "internal_error"
    else:
        assert isinstance(verdict, Fatal)


def test_other_errors_tell_the_caller_nothing_of_the_inside() -> None:
    failure = classify(RuntimeError("/home/operator/secret.txt: token hf_abc"))
    assert isinstance(failure, Failure)
    assert failure.code == "internal_error"
    assert "secret" not in failure.detail
    assert "hf_abc" not in failure.detail
