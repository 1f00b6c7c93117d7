"""The loopback interface, and ports of it that are free at the time of asking."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from random import randrange

HOST = "127.0.0.1"
_LOWEST = 10_240
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Linux tells there from which ports it chooses those of outgoing connections."""
_LOWEST_EPHEMERAL = 32_768
"""Where it is not told."""
_TRIES = 100
"""For one port."""


def free_ports(count: int) -> list[int]:
    """All different, and not among those that outgoing connections are given: one of these could take the port of a
    broker that restarts. Raises OSError where none is found."""
    with ExitStack() as stack:
        return [int(stack.enter_context(_listening()).getsockname()[1]) for _ in range(count)]


def free_addresses(count: int) -> list[str]:
    return [f"{HOST}:{port}" for port in free_ports(count)]


def _listening() -> socket.socket:
    end = _lowest_ephemeral()
    for _ in range(_TRIES):
        try:
            return socket.create_server((HOST, randrange(_LOWEST, end)))
        except OSError:
            continue
    return socket.create_server((HOST, 0))


def _lowest_ephemeral() -> int:
    try:
        lowest = int(_EPHEMERAL_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return _LOWEST_EPHEMERAL
    return lowest if lowest > _LOWEST else _LOWEST_EPHEMERAL
