"""Waiting for a job at a terminal: a bar, and what becomes of the job when the command stops."""

from __future__ import annotations

import math
from shlex import quote
from typing import TYPE_CHECKING

from lacuna.client.errors import JobFailed, LacunaError
from lacuna.contract.jobs import Job
from service.terminal.common import err, out, print_json
from service.terminal.reports import progress

if TYPE_CHECKING:
    from lacuna.client.clients import Client


def waited(client: Client, job: Job, title: str, server: str | None) -> Job:
    """The job once it is done. It is withdrawn if the command stops and the service is its own.

    Args:
        title: of the bar.
        server: address of the service; None if it was started for this command.
    """
    try:
        with progress(err, title) as on_progress:
            return client.wait(job, timeout=math.inf, on_progress=on_progress)
    except JobFailed:  # it has ended
        raise
    except BaseException as error:
        # In the store that outlives a service of ours, it would stand before the next one's work.
        cancelled = server is None and _cancelled(client, job)
        if isinstance(error, KeyboardInterrupt):
            words = "stopped; the job was cancelled" if cancelled else "stopped"
            err.print(words if server is None else _whereabouts(job, server), soft_wrap=True)
        raise


def print_job(job: Job, server: str | None, *, as_json: bool) -> None:
    """Where to find a job that nobody waits for."""
    if as_json:
        print_json(job)
    else:
        out.print(f"job {job.id}: {job.state}", soft_wrap=True)
        out.print(f"{(server or '').rstrip('/')}/v1/jobs/{job.id}", soft_wrap=True)


def _cancelled(client: Client, job: Job) -> bool:
    try:
        client.cancel(job.id)
    except LacunaError:  # what ends us may have ended the service
        return False
    return True


def _whereabouts(job: Job, server: str) -> str:
    where = f"{job.id} --server {quote(server)}"
    return f"the job goes on: lacuna job {where}, or lacuna cancel {where}"
