"""What must be done now and then, whether or not a worker is left to do it."""

from __future__ import annotations

import asyncio
import logging

from service.contract.errors import StoreUnavailable
from service.store.jobs import JobStore
from service.store.profiles import ProfileStore

log = logging.getLogger(__name__)

EVICT_SECONDS = 60.0


async def keep_house(
    jobs: JobStore,
    profiles: ProfileStore,
    *,
    lease: float,
    profile_ttl: float = 0.0,
    max_profile_bytes: int = 0,
) -> None:
    """Sweep expired leases and evict profiles, for ever; a gateway's background task.

    Any number of gateways may do this at the same time.

    Args:
        jobs: swept every few seconds.
        profiles: evicted once a minute.
        lease: the workers' lease in seconds.
        profile_ttl: seconds after which an unused profile goes; 0 is never.
        max_profile_bytes: total size beyond which the least recently used go; 0 is no bound.
    """
    loop = asyncio.get_running_loop()
    pause, evict_at = min(5.0, lease / 4), loop.time()
    while True:
        try:
            await jobs.sweep(lease)
            if loop.time() >= evict_at:
                evict_at = loop.time() + EVICT_SECONDS
                gone = await profiles.evict(ttl=profile_ttl, max_bytes=max_profile_bytes)
                if gone:
                    log.info("profiles were evicted", extra={"profiles": gone})
        except StoreUnavailable as error:
            log.warning("the store is away", extra={"why": error.detail})
        except Exception:
            # A fault here must not end the task silently; the next turn may do better.
            log.exception("housekeeping failed")
        await asyncio.sleep(pause)
