"""Exceptions sorted into failures and reasons to die."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from pydantic import ValidationError

from service.contract.errors import BY_CODE, LacunaError
from service.contract.jobs import Failure
from service.contract.profiles import ProfileRequest
from workers.faults import EXIT_DEVICE, DeviceBroken, Fatal, classify

Make = Callable[..., ProfileRequest]


@pytest.mark.parametrize("kind", BY_CODE.values(), ids=lambda kind: kind.code)
def test_our_own_errors_keep_code_and_sentence(kind: type[LacunaError]) -> None:
    failure = classify(kind("model: it says why"))
    assert failure == Failure(code=kind.code, detail="model: it says why", retryable=kind.retryable)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_out_of_memory_fails_the_job_and_names_a_length(
    error: Exception, make_request: Make
) -> None:
    failure = classify(error, make_request(sequence_length=512))
    assert isinstance(failure, Failure)
    assert (failure.code, failure.retryable) == ("out_of_memory", False)
    assert "512" in failure.detail
    assert "256" in failure.detail


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


def test_other_errors_tell_the_caller_nothing_of_the_inside() -> None:
    failure = classify(RuntimeError("/home/operator/secret.txt: token hf_abc"))
    assert isinstance(failure, Failure)
    assert failure.code == "internal_error"
    assert "secret" not in failure.detail
    assert "hf_abc" not in failure.detail


def test_a_request_that_this_worker_cannot_read_is_said() -> None:
    with pytest.raises(ValidationError) as caught:
        ProfileRequest.model_validate_json(b'{"model": "gpt2", "of_tomorrow": 1}')
    failure = classify(caught.value)
    assert isinstance(failure, Failure)
    assert failure.code == "invalid_request"
