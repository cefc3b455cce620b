"""`python -m workers`: one worker. Its settings are the environment's `LACUNA_` variables.

`python -m workers --queue endpoints` measures models behind an API, and loads no torch.

Exit status: 0 after a signal, otherwise one of those in `workers.faults`.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import redis
from pydantic import SecretStr, ValidationError

from lacuna.contract.errors import EndpointRefused
from service import logs, parent
from service.endpoints.table import Endpoint, Endpoints
from service.settings import Settings, first_fault
from service.store.claims import ClaimStore
from service.store.connection import connect, is_lasting, is_outage, refusal
from service.store.fitness import durability_problem, policy_problem, refused, version_problem
from service.store.keys import QueueName
from service.store.kinds import needs
from service.store.profiles import StoredProfile, publish_tokenizer, read_profile
from workers.faults import EXIT_CONFIG, EXIT_DEVICE, Misconfigured
from workers.loop import Handler, Worker
from workers.results import PendingResults

log = logging.getLogger("workers")

_RETRY_SECONDS = 2.0


def main(make_handler: Callable[[Settings], Handler] | None = None) -> int:
    """Run a worker with the settings of the environment; return the exit status.

    Args:
        make_handler: builds what runs the jobs, profiles and experiments; None: as the queue needs,
            for served models or for weights.
    """
    try:
        settings = _settings(sys.argv[1:] if make_handler is None else ())
    except ValidationError as error:
        print(f"the worker cannot start: {first_fault(error)}", file=sys.stderr)
        return EXIT_CONFIG
    logs.configure(
        settings.log_level, settings.log_format, settings.secrets, settings.exit_reason_fd
    )
    parent.end_with_it(settings.exit_reason_fd, settings.grace_seconds + 30.0)
    try:
        made = make_handler or (
            _endpoint_handler if settings.queue == "endpoints" else _profile_handler
        )
        return run(settings, made(settings))
    except Misconfigured as error:
        log.critical(str(error))
        return EXIT_CONFIG
    except Exception:
        # Through the log, which masks secrets. The supervisor starts a fresh process.
        log.critical("the worker ends because of an internal error", exc_info=True)
        return 1


def _settings(arguments: Sequence[str]) -> Settings:
    parser = argparse.ArgumentParser(prog="python -m workers", description="Run one worker.")
    parser.add_argument(
        "--queue", choices=("auto", "cpu", "gpu", "endpoints"), help="else LACUNA_QUEUE"
    )
    asked = parser.parse_args(arguments).queue
    return Settings() if asked is None else Settings(queue=asked)


def run(settings: Settings, handler: Handler) -> int:
    """Serve the queue with a handler until a signal; return the exit status."""
    client = connect(settings.store_url)
    offered = handler.describe()
    store = ClaimStore(
        client,
        name=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}",
        queues=queues_of(settings, offered.device),
        knows=[needs(kind) for kind in offered.kinds],
        lease=settings.lease_seconds,
        max_attempts=settings.max_attempts,
        job_ttl=settings.job_ttl,
        max_finished=settings.max_finished_jobs,
    )
    if problem := _unfit(client, settings):
        log.critical(problem)
        return EXIT_CONFIG
    pending = PendingResults(settings.data_dir / "pending-results")
    return Worker(store, handler, pending, grace=settings.grace_seconds).run()


def queues_of(settings: Settings, device: str) -> tuple[QueueName, ...]:
    """The queues that a worker serves. A GPU worker takes CPU jobs when no GPU job waits."""
    if settings.queue != "auto":
        return (settings.queue,)
    return ("gpu", "cpu") if device.startswith("cuda") else ("cpu",)


def _unfit(client: redis.Redis, settings: Settings) -> str | None:
    """Why the store cannot be relied on, once it answers; a worker may start before it does."""
    while True:
        try:
            info, tried = client.info(), refused(client)
            break
        except (redis.RedisError, OSError) as error:
            if is_lasting(error):
                return refusal(error)
            if not is_outage(error):
                return f"the store cannot be used: {error}"[:300]
            log.warning("waiting for the store", extra={"why": f"{refusal(error)}: {error}"[:200]})
            time.sleep(_RETRY_SECONDS)
    policy = policy_problem(info)
    wrong = version_problem(info) or (tried.why if tried and tried.lasting else None)
    if policy and settings.eviction_policy_check == "refuse":
        wrong = wrong or policy
    if wrong is None:
        for warning in (policy, durability_problem(info), tried.why if tried else None):
            if warning:
                log.warning(warning)
    return wrong


def _finder(client: redis.Redis) -> Callable[[str], StoredProfile | None]:
    def find_profile(profile_id: str) -> StoredProfile | None:
        # A stored profile only saves work: while the store is away, the job measures.
        try:
            return read_profile(client, profile_id)
        except (redis.RedisError, OSError) as error:
            if not is_outage(error):
                raise
            return None

    return find_profile


def _endpoint_handler(settings: Settings) -> Handler:
    from workers.experiments.served import ServedHandler

    table = settings.endpoint_table
    if not len(table):
        raise Misconfigured("LACUNA_ENDPOINTS names no endpoint for this worker to measure")
    logs.configure(
        settings.log_level,
        settings.log_format,
        (*settings.secrets, *_keys(table)),
        settings.exit_reason_fd,
    )
    client = connect(settings.store_url)

    def key_of(endpoint: Endpoint) -> SecretStr | None:
        return endpoint.key(os.environ.get)

    handler: Handler = ServedHandler(table, key_of, client, _finder(client), settings.answers_ttl)
    return handler


def _keys(table: Endpoints) -> Iterator[str]:
    """The keys that are set; a job whose key is missing says so."""
    for endpoint in table:
        try:
            key = endpoint.key(os.environ.get)
        except EndpointRefused as error:
            log.warning(error.detail)
            continue
        if key is not None:
            yield key.get_secret_value()


def _profile_handler(settings: Settings) -> Handler:
    # cuBLAS is deterministic only with workspaces of a fixed size, and reads this variable once.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # This imports torch, which takes seconds, so the settings are checked first.
    from workers.job import ProfileHandler

    client = connect(settings.store_url)

    def publish(document: str) -> None:
        # Only placements of texts need the tokenizer: a failure must not cost the profile.
        try:
            publish_tokenizer(client, document)
        except (redis.RedisError, OSError) as error:
            log.warning("the tokenizer was not published", extra={"why": str(error)[:200]})

    handler: Handler = ProfileHandler(settings, _finder(client), publish)
    return handler


if __name__ == "__main__":
    status = main()
    if status == EXIT_DEVICE:
        # With a broken CUDA context the interpreter's own cleanup may hang.
        logging.shutdown()
        os._exit(status)
    sys.exit(status)
