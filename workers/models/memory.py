"""How much memory a device can still give."""

from __future__ import annotations

from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]
import torch

_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(device: torch.device) -> int:
    """Bytes that can be allocated on `device` now.

    CUDA: what the driver has free plus what torch holds unused. CPU: what the kernel calls
    available, or what the container's limit (cgroup v2) leaves, whichever is less.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + unused)
    machine = int(psutil.virtual_memory().available)
    container = _container_bytes(_CGROUP)
    return machine if container is None else min(machine, container)


def _container_bytes(cgroup: Path) -> int | None:
    """What a cgroup's memory limit leaves; None without a limit. Page cache counts as free."""
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    return max(0, int(limit) - used + int(stat.get("inactive_file", 0)))


def gigabytes(amount: float) -> str:
    """For people: "1.3 GB"."""
    return f"{amount / 1e9:.1f} GB"
