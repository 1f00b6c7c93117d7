"""States of the producer table at recent offsets, in memory, so that a truncation costs what it cuts off.

Without them a truncation would read the headers of up to SNAPSHOT_INTERVAL_BYTES of batches (about 20 us each), and
acknowledged writes wait for a follower that truncates.

    states      o               o       o   o o         the further back, the wider the distances between them
    log         |-------------------------------| LEO
                                  ^ cut to here: the state before it is taken, and the batches between are read

A cut of n batches reads the headers of at most `interval` or DISTANCE * n batches, whichever is more (and of one append
where that holds more), as long as it is not deeper than the oldest state: for that there are snapshots. `interval` is
STATE_INTERVAL, or the number of producers and aborted transactions where these are more: a state is a copy of
references to all of them, so that each batch pays for one reference at most.

What always holds: a state is that of a prefix of this log, without gaps; so the states above a cut are forgotten before
the first batch is appended behind it. Their memory: at most MAX_STATES states, and at most MAX_REFERENCES references
unless two states have more; a producer that wrote since takes up to about 1 kB in each of them.

Threads: as for `record` of `dataplane.log.derived_state`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from dataplane.log.snapshot import Section
    from dataplane.replica.producers import KnownProducers
    from wire.types import Offset

STATE_INTERVAL = 128
"""Batches between two states; with more producers and aborted transactions than that, as many as there are of these."""
DISTANCE: Final = 3
"""A state is forgotten once the two beside it are at most this many times as far apart as they are from the end."""
MAX_STATES: Final = 8
"""The oldest one is then some ten thousand batches back."""
MAX_REFERENCES: Final = 40_000
"""To producers and aborted transactions, in all states together: of two states of a full table of producers."""


class RecentState(NamedTuple):
    offset: Offset
    batches: int
    """Recorded before it, counted from any point further back."""
    producers: KnownProducers
    carried: tuple[Section, ...]
    captured: Offset
    """Offset of the newest state that was captured for a snapshot before it."""
    captured_bytes: int
    """Bytes of batches since then."""


class RecentStates:
    """Oldest first. See the module's text."""

    def __init__(self) -> None:
        self._states: list[RecentState] = []
        self.due = 0
        """The number of recorded batches from which on the next state is to be kept."""

    def keep(self, state: RecentState) -> None:
        """It is that of the log's end."""
        states = self._states
        states.append(state)
        for at in range(len(states) - 2, 0, -1):
            below, above = states[at - 1].batches, states[at + 1].batches
            if above - below <= DISTANCE * (state.batches - above):
                del states[at]
        references = sum(each.producers.references for each in states)
        while len(states) > MAX_STATES or (len(states) > 2 and references > MAX_REFERENCES):
            references -= states.pop(0).producers.references
        self._await_next()

    def back_to(self, start: Offset, end: Offset) -> RecentState | None:
        """The newest one from `start` to `end`, both inclusive; those above `end` are forgotten."""
        states = self._states
        while states and states[-1].offset > end:
            states.pop()
        self._await_next()
        return states[-1] if states and states[-1].offset >= start else None

    def clear(self) -> None:
        self._states.clear()
        self._await_next()

    def _await_next(self) -> None:
        newest = self._states[-1] if self._states else None
        self.due = newest.batches + max(STATE_INTERVAL, newest.producers.references) if newest else 0
