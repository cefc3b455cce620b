"""Ports of this machine."""

from __future__ import annotations

import socket


def check_free(host: str, port: int) -> None:
    """Else whoever listens there already would be taken for the gateway started here.

    Raises:
        OSError: somebody does, or we may not.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise OSError(
                f"cannot listen on {host} port {port} ({error.strerror}): set LACUNA_PORT"
            ) from error


def free_port(host: str) -> int:
    """One that nobody listens on now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
