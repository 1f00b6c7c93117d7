"""Invariants of the simulation, each a class of its own, checked when it can change: after the turn of a broker in
which its HW or its role moved, at every commit of the metadata group, at every acknowledgement, at every record that a
consumer gets, and once more at the end.

base        the hooks that an invariant may override, and their arguments
history     the oracle: all committed batches
metadata    promises of the metadata group
replicas    promises of brokers to each other about their replicas
commits     promises of a high watermark
clients     promises to producers and consumers
checker     all of them together: the interface to a simulation
"""

from __future__ import annotations

from tests.simulation.invariants.base import Acknowledged
from tests.simulation.invariants.checker import Invariants

__all__ = ["Acknowledged", "Invariants"]
