"""What must always hold, each a class of its own, checked as it can change: after the turn of a broker in which its HW
or its role moved, at every commit of the metadata group, at every acknowledgement, at every record that a consumer
gets, and once more at the end.

base        the hooks that an invariant may override, and what is passed to them
history     the oracle: what is committed
metadata    what the metadata group promises
replicas    what brokers promise to each other of their replicas
commits     what a high watermark promises
clients     what producers and consumers are promised
checker     all of them together: what a simulation calls
"""

from __future__ import annotations

from tests.simulation.invariants.base import Acknowledged
from tests.simulation.invariants.checker import Invariants

__all__ = ["Acknowledged", "Invariants"]
