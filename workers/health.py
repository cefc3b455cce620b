"""`python -m workers.health`: whether a worker of this host is alive, for container probes.

Exit status 0 when one has announced itself lately, 1 when none has. While the store is away nobody
can tell: that is 0, since restarting a worker then would only lose its running job.
"""

from __future__ import annotations

import asyncio
import socket
import sys

from lacuna.contract.errors import StoreUnavailable
from service.settings import Settings
from service.store.connection import connect_async
from service.store.fleet import names


async def alive(store_url: str, host: str) -> bool:
    """Whether a live worker's name begins with this host's."""
    client = connect_async(store_url)
    try:
        # Names alone: what workers of another version say of themselves is no matter of health.
        return any(name.startswith(f"{host}-") for name in await names(client))
    except StoreUnavailable:
        return True
    finally:
        await client.aclose()


def main() -> int:
    """Exit status of the probe."""
    return 0 if asyncio.run(alive(Settings().store_url, socket.gethostname())) else 1


if __name__ == "__main__":
    sys.exit(main())
