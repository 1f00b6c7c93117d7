"""Counters of one NATS connection."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.runtime.parser import ReadCounters


@dataclass(slots=True)
class Counters:
    """Totals since `connect`."""

    read: ReadCounters
    messages_out: int = 0
    """Messages and blocks of `publish_raw`."""
    dropped_publishes: int = 0
    """Publishes that returned False: not connected, or the outgoing buffer above its limit."""
    handler_errors: int = 0
    """Exceptions that handlers raised; each is logged."""
    dropped_headers: int = 0
    """Messages that were dropped because of the size of their headers."""
    server_errors: int = 0
    """-ERR lines, for example a missing permission; each is logged."""
    losses: int = 0
