"""The loopback interface, and free ports of it."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from contextlib import ExitStack
from pathlib import Path
from random import choice

from wire.echo import echo
from wire.errors import Code, TidelogError

HOST = "127.0.0.1"
_LOWEST = 10_240
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Linux shows there from which ports it chooses those of outgoing connections."""
_LOWEST_EPHEMERAL = 32_768
"""Used where that file cannot be read."""
_TRIES = 100
"""Attempts to find one port."""
PORTS_VARIABLE = "TIDELOG_LOOPBACK_PORTS"
"""FIRST-LAST: the ports that free ones are taken from. With ranges of their own, clusters that start and stop side by
side never take a port that belongs to a process of another one which is about to start."""


def free_ports(count: int) -> list[int]:
    """Returns different ports that are free now, and not among those that outgoing connections are given: one of these
    could take the port of a broker that restarts. Raises OSError where none is found, and TidelogError(BAD_CONFIG) for
    a given range that is malformed or has none free."""
    with ExitStack() as stack:
        return [int(stack.enter_context(_listening()).getsockname()[1]) for _ in range(count)]


def free_addresses(count: int) -> list[str]:
    return [f"{HOST}:{port}" for port in free_ports(count)]


def is_loopback(host: str) -> bool:
    """Whether the host is this machine only. Names other than `localhost` count as another machine's."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listening() -> socket.socket:
    given = os.environ.get(PORTS_VARIABLE, "")
    ports = _given_range(given) if given else range(_LOWEST, _lowest_ephemeral())
    for _ in range(_TRIES):
        try:
            return socket.create_server((HOST, choice(ports)))
        except OSError:
            continue
    if given:
        raise TidelogError(
            Code.BAD_CONFIG, f"no port of {HOST} is free in {PORTS_VARIABLE}={given}; give a wider range"
        )
    return socket.create_server((HOST, 0))


def _given_range(text: str) -> range:
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text, re.ASCII)
    if match is None or not 0 < int(match[1]) <= int(match[2]) < 1 << 16:
        raise TidelogError(
            Code.BAD_CONFIG, f"{PORTS_VARIABLE} is {echo(text)}; give FIRST-LAST, for example 20000-20999"
        )
    return range(int(match[1]), int(match[2]) + 1)


def _lowest_ephemeral() -> int:
    try:
        lowest = int(_EPHEMERAL_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return _LOWEST_EPHEMERAL
    return lowest if lowest > _LOWEST else _LOWEST_EPHEMERAL
