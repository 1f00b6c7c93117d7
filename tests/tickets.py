"""Tickets for transactions, as the coordinators of a cluster give them that has no secret."""

from __future__ import annotations

from collections.abc import Callable

from wire.cluster_secrets import public_secrets
from wire.tickets import Tickets

CLUSTER_ID = "a cluster"


def tickets(time_s: Callable[[], float] = lambda: 0.0) -> Tickets:
    """`time_s()`: seconds since 1970."""
    return Tickets(public_secrets(), lambda: CLUSTER_ID, time_s)
