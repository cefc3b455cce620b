"""The probe of a worker's container."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import redis

from lacuna.contract.models import WorkerModels
from service.store.claims import ClaimStore
from workers.health import alive


def announce(client: redis.Redis, name: str, ttl: float) -> None:
    facts = {"worker": name, "device": "cpu", "queue": "cpu", "warm": [], "local": []}
    store = ClaimStore(client, name=name, queues=["cpu"])
    store.announce(WorkerModels.model_validate(facts), ttl)


async def test_a_worker_of_this_host_lives(redis_url: str, redis_sync: redis.Redis) -> None:
    assert not await alive(redis_url, "box")
    announce(redis_sync, "boxer-1-a", 30)
    assert not await alive(redis_url, "box")
    announce(redis_sync, "box-1-a", 30)
    assert await alive(redis_url, "box")


async def test_nobody_is_restarted_because_the_store_is_away(tmp_path: Path) -> None:
    assert await alive(f"unix://{tmp_path}/nothing.sock", "box")


def test_the_exit_status(redis_url: str, redis_sync: redis.Redis) -> None:
    command = [sys.executable, "-m", "workers.health"]
    environment = {"LACUNA_REDIS_URL": redis_url, "PATH": ""}
    assert subprocess.run(command, env=environment, check=False).returncode == 1
    announce(redis_sync, f"{socket.gethostname()}-1-a", 30)
    assert subprocess.run(command, env=environment, check=False).returncode == 0
