"""`python -m workers`: one worker. Settings come from `LACUNA_` variables.

Exit status: 0 after a signal, and those of `workers.faults`.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable

import redis
from pydantic import ValidationError

from service import logs
from service.settings import Settings
from service.store.claims import ClaimStore
from service.store.connection import connect, durability_problem, is_outage, policy_problem
from service.store.keys import QueueName
from service.store.profiles import StoredProfile, publish_tokenizer, read_profile
from workers.faults import EXIT_CONFIG, EXIT_DEVICE, Misconfigured
from workers.loop import Handler, Worker
from workers.results import PendingResults

log = logging.getLogger("workers")

_FIRST_CONTACT_SECONDS = 2.0


def queues_of(settings: Settings, device: str) -> tuple[QueueName, ...]:
    """The queues that a worker serves: a GPU worker also takes CPU jobs when no others wait."""
    if settings.queue != "auto":
        return (settings.queue,)
    return ("gpu", "cpu") if device.startswith("cuda") else ("cpu",)


def run(settings: Settings, handler: Handler) -> int:
    """Serve the queue with a handler until told to stop; returns the exit status."""
    client = connect(settings.store_url)
    device = handler.describe().device
    store = ClaimStore(
        client,
        name=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}",
        queues=queues_of(settings, device),
        lease=settings.lease_seconds,
        max_attempts=settings.max_attempts,
        job_ttl=settings.job_ttl,
        max_finished=settings.max_finished_jobs,
    )
    info = _first_contact(client)
    if problem := policy_problem(info):
        if settings.eviction_policy_check == "refuse":
            log.critical(problem)
            return EXIT_CONFIG
        log.warning(problem)
    if problem := durability_problem(info):
        log.warning(problem)
    pending = PendingResults(settings.data_dir / "pending-results")
    return Worker(store, handler, pending, grace=settings.grace_seconds).run()


def _first_contact(client: redis.Redis) -> dict[str, object]:
    """Wait for the store; a worker may well start before it does."""
    while True:
        try:
            return dict(client.info())
        except (redis.RedisError, OSError) as error:
            if not is_outage(error):
                raise
            log.warning("waiting for the store", extra={"why": str(error)[:200]})
            time.sleep(_FIRST_CONTACT_SECONDS)


def main(make_handler: Callable[[Settings], Handler] | None = None) -> int:
    """Start a worker from the environment.

    Args:
        make_handler: builds the handler; None is the one that measures profiles.
    """
    try:
        settings = Settings()
    except ValidationError as error:
        print(f"the settings cannot be used: {error}", file=sys.stderr)
        return EXIT_CONFIG
    logs.configure(settings.log_level, settings.log_format, settings.secrets)
    try:
        return run(settings, (make_handler or _profile_handler)(settings))
    except Misconfigured as error:
        log.critical(str(error))
        return EXIT_CONFIG
    except Exception:
        # Through the log, which masks secrets; the supervisor starts a fresh process.
        log.critical("the worker ends by a fault of its own", exc_info=True)
        return 1


def _profile_handler(settings: Settings) -> Handler:
    # cuBLAS is only deterministic with workspaces of a fixed size, and reads this once.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Loads torch, which takes seconds: not before the settings are known to be good.
    from workers.job import ProfileHandler

    client = connect(settings.store_url)

    def profile_exists(profile_id: str) -> StoredProfile | None:
        # Only spares work: while the store is away, the job measures as if nothing were there.
        try:
            return read_profile(client, profile_id)
        except (redis.RedisError, OSError) as error:
            if not is_outage(error):
                raise
            return None

    def publish(document: str) -> None:
        # Serves texts in placements alone: no reason to lose a profile.
        try:
            publish_tokenizer(client, document)
        except (redis.RedisError, OSError) as error:
            log.warning("the tokenizer was not published", extra={"why": str(error)[:200]})

    handler: Handler = ProfileHandler(settings, profile_exists, publish)
    return handler


if __name__ == "__main__":
    status = main()
    if status == EXIT_DEVICE:
        # With a broken CUDA context the interpreter's own clean-up may hang.
        logging.shutdown()
        os._exit(status)
    sys.exit(status)
