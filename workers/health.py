"""`python -m workers.health`: whether a worker of this host is alive, for container probes.

Exit status 0 when one has announced itself in the last seconds, 1 when none has. While the store is
away the status is 0: nobody can tell, and a restart would only lose the running job.
"""

from __future__ import annotations

import asyncio
import socket
import sys

from lacuna.contract.errors import StoreUnavailable
from service.settings import Settings
from service.store.connection import connect_async
from service.store.monitoring import live_worker_names


async def alive(store_url: str, host: str) -> bool:
    """Whether a live worker's name begins with this host's."""
    client = connect_async(store_url)
    try:
        # Only names: a worker of another version may describe itself in a form we cannot read.
        return any(name.startswith(f"{host}-") for name in await live_worker_names(client))
    except StoreUnavailable:
        return True
    finally:
        await client.aclose()


def main() -> int:
    """Exit status of the probe."""
    return 0 if asyncio.run(alive(Settings().store_url, socket.gethostname())) else 1


if __name__ == "__main__":
    sys.exit(main())
