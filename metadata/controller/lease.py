"""The lease of one broker: since when the controller is known to have counted on it.

    controller                                   broker
      │ Probe n ───────────────────────────────>  │ answered at t
      │ <──────────────────────────── ProbeAnswer │
      │ Probe m, answered = n, generation g ───>  │ g is applied here: the lease runs from t

Probe m was sent after t, and its controller knew no more than is applied here. So the leaderships that this broker
believes to have were its own at t. The arrival of a probe proves nothing: it may have lain unread while this process
stood still. Probes of a deposed controller prove nothing. A generation that is not applied yet may name another leader:
the lease waits for the first probe that finds it applied (by then the roles of this broker have received it too).
A probe of a controller epoch that is not applied yet is ignored: the controller repeats it, and anybody can invent one.

A request of the controller that names the newest answered probe is not older than that answer (`age_of`): so a request
that lay unread is recognised by this broker's own clock.

Pure: the caller passes the time and the applied state.
"""

from __future__ import annotations

from collections import deque
from math import inf

from metadata.controller.metadata_settings import MetadataSettings
from wire.protobuf import metadata_pb2 as pb

MAX_ANSWERS = 64
"""Answers to probes that are remembered, and confirmations that wait for a generation; the oldest are forgotten."""


class Lease:
    def __init__(self, settings: MetadataSettings) -> None:
        self._settings = settings
        self._since = -inf
        """A moment at which this broker held the leaderships that it believes to hold."""
        self._controller_epoch = 0
        """Controller epoch of the newest probe received; it was applied then."""
        self._answers: dict[int, tuple[float, int]] = {}
        """When probes of that controller epoch were answered, and the generation that each carried, by number; oldest
        first."""
        self._unproven: deque[tuple[int, float]] = deque(maxlen=MAX_ANSWERS)
        """(generation that must be applied, since when the lease runs then)."""

    # R29: A leader outside its lease does not act alone: acks=leader, acks=none, bare publishes without reply,
    # `latest` and consumers that ask by name are refused. The lease runs for `leader_lease_s` from the moment at which
    # this broker answered probe n, and counts once a later probe of the same controller epoch says `answered = n` and
    # the generations that both carried are applied here and known to the roles. It bounds for how long a deposed
    # leader acts alone; it does not keep others from being elected.
    # Hazard: Zombie leaders; a process that stood still; a probe that is answered between applying a state and telling
    # the roles.
    def on_probe(self, probe: pb.Probe, *, controller_epoch: int, generation: int, now: float) -> bool:
        """A probe is being answered. `controller_epoch`: of the state applied here. `generation`: an applied one of
        which the roles that lead no more by it have been notified. Returns False for a probe of a later controller
        epoch, which is ignored."""
        if probe.controller_epoch != controller_epoch:
            return probe.controller_epoch < controller_epoch
        if probe.controller_epoch > self._controller_epoch:
            self._controller_epoch = probe.controller_epoch
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
        return True

    # Keeps R29.
    def is_valid(self, now: float) -> bool:
        return now - self._since <= self._settings.leader_lease_s

    def proves(self, moment: float) -> bool:
        """Whether this broker still held the leaderships that it believes to hold at that moment, or later."""
        return self._since >= moment

    def age_of(self, controller_epoch: int, answered: int, now: float) -> float:
        """Returns the most seconds since the controller of `controller_epoch` sent a request that names `answered` as
        the newest probe whose answer had arrived. inf: of another controller epoch, or without such an answer."""
        if controller_epoch != self._controller_epoch or answered not in self._answers:
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
