"""The lease of one broker: since when the controller in office is known to have counted on it.

    controller                                   broker
      │ Probe n ───────────────────────────────>  │ answered at t
      │ <──────────────────────────── ProbeAnswer │
      │ Probe m, answered = n, generation g ───>  │ g is applied here: the lease runs from t

Probe m was sent after t, and its controller knew no more than is applied here. So this broker led at t what it
believes that it leads. The arrival of a probe proves nothing: it may have lain unread while this process stood still.
Probes of a deposed controller prove nothing. A generation that is not applied yet may name another leader: the lease
waits for the first probe that finds it applied (by then the roles of this broker have heard of it too).

A request of the controller that names the newest answered probe is not older than that answer (`age_of`): so a request
that lay unread is recognised by this broker's own clock.

Pure: the caller says what time it is, and what is applied.
"""

from __future__ import annotations

from collections import deque
from math import inf

from metadata.settings import MetadataSettings
from wire import metadata_pb2 as pb

MAX_ANSWERS = 64
"""Answers to probes that are remembered, and confirmations that wait for a generation; the oldest are forgotten."""


class Lease:
    def __init__(self, settings: MetadataSettings) -> None:
        self._settings = settings
        self._since = -inf
        """A moment at which this broker led what it believes that it leads."""
        self._office = 0
        """The newest of which a probe came."""
        self._answers: dict[int, tuple[float, int]] = {}
        """When probes of that office were answered, and the generation that each carried, by number; oldest first."""
        self._unproven: deque[tuple[int, float]] = deque(maxlen=MAX_ANSWERS)
        """(generation that must be applied, since when the lease runs then)."""

    def on_probe(self, probe: pb.Probe, *, office: int, generation: int, now: float) -> None:
        """A probe is being answered. `office`, `generation`: of the state applied here."""
        if probe.office < max(office, self._office):
            return
        if probe.office > self._office:
            self._office = probe.office
            self._answers.clear()
            self._unproven.clear()
        answered = self._answers.get(probe.answered)
        if answered is not None:
            answered_at, known_then = answered
            self._unproven.append((max(known_then, probe.generation), answered_at))
        self._prove(generation)
        self._answers[probe.number] = now, probe.generation
        while len(self._answers) > MAX_ANSWERS:
            del self._answers[next(iter(self._answers))]

    def is_valid(self, now: float) -> bool:
        return now - self._since <= self._settings.leader_lease_s

    def age_of(self, office: int, answered: int, now: float) -> float:
        """How long ago the controller of `office` can have sent a request that names `answered` as the newest probe
        whose answer had arrived, at most. inf: of another office, or without such an answer."""
        if office != self._office or answered not in self._answers:
            return inf
        return now - self._answers[answered][0]

    def _prove(self, generation: int) -> None:
        waiting: deque[tuple[int, float]] = deque(maxlen=MAX_ANSWERS)
        for needed, answered_at in self._unproven:
            if needed <= generation:
                self._since = max(self._since, answered_at)
            else:
                waiting.append((needed, answered_at))
        self._unproven = waiting
