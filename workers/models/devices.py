"""Where a worker computes, and in which type."""

from __future__ import annotations

import torch

from service.contract.profile_requests import ProfileRequest
from workers.faults import Misconfigured
from workers.models.options import LoadOptions

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def device_of(options: LoadOptions) -> torch.device:
    """The device that "auto" means here."""
    if options.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(options.device)


def require_device(options: LoadOptions) -> None:
    """Find out at the start, and not with the first job, that the device is not there.

    Raises:
        Misconfigured: naming the setting and why.
    """
    if options.device != "cuda" or torch.cuda.is_available():
        return
    built = torch.version.cuda or torch.version.hip
    why = "PyTorch sees no GPU" if built else "this PyTorch was built without CUDA"
    raise Misconfigured(f"LACUNA_DEVICE is cuda, but {why}; auto takes the CPU then")


def dtype_of(request: ProfileRequest, device: torch.device) -> torch.dtype:
    """The weights' type that the request means on this device."""
    if request.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return _DTYPES[request.dtype]
