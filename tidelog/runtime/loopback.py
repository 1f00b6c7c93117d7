"""The loopback interface, and ports of it that are free at the time of asking."""

from __future__ import annotations

import socket

HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """All different."""
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def free_addresses(count: int) -> list[str]:
    return [f"{HOST}:{port}" for port in free_ports(count)]
