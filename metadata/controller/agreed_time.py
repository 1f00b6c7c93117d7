"""The time by which brokers forget: one on which a majority of their clocks agrees (R72).

    controller                                       broker
      │ Probe ──────────────────────────────────────>  │
      │ <──────────────── ProbeAnswer: its own clock   │     ClockSurvey: is there a majority that agrees?
      │ Probe: the agreed time when it was sent ────>  │     AgreedClock: may this broker forget by it?

ClockSurvey, at the controller, keeps of each live broker how far its clock is from the controller's monotonic clock. An
answer was written between the moments at which the probe was sent and the answer came. The clocks of a majority of the
live brokers that are no further apart than `max_clock_difference` are the agreed time: the middle one of them.

AgreedClock, at each broker, runs on from the agreed time of the last probe by its own monotonic clock. It gives no
time

    UNKNOWN     while no probe has brought one for `leader_lease`
    APART       while all clocks are known, and no majority of them agrees
    OFF         while the broker's own clock is further from it than `max_clock_difference`
    SETTLING    for `clock_settle` after the start of the process, and after each jump of the agreed time against the
                time that has elapsed here: a host that wakes, clocks of all hosts that are set at once

and in the state AGREED it gives the agreed time. A broker without one forgets nothing, which is only late. Plain
records and markers are dated by the broker's own clock, in the state OFF by the agreed time. Tickets, which one broker
dates and another judges, go by the common time: the agreed time as last received, in every state. A broker that is
alone is its own majority: a jump of its clock is a jump of the agreed time.

Pure: `now` is monotonic seconds, `time_ns` a wall clock in ns since 1970.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from metadata.controller.metadata_settings import MetadataSettings
from wire.types import BrokerId

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class _Reading:
    offset_ns: int
    """Distance of that broker's clock from the controller's monotonic one."""
    at: float


@dataclass(frozen=True, slots=True)
class Survey:
    """The agreed time of the live brokers' clocks, if there is one."""

    agreed_ns: int | None
    """The agreed time, ns since 1970; None: too few clocks are known, or no majority agrees."""
    is_apart: bool = False
    """Whether all clocks are known, and no majority agrees."""


class ClockSurvey:
    def __init__(self, settings: MetadataSettings) -> None:
        self._bound_ns = int(settings.max_clock_difference_s * _NS)
        self._fresh_s = settings.leader_lease_s
        self._readings: dict[BrokerId, _Reading] = {}

    def restart(self) -> None:
        """A new controller epoch: readings of an earlier one count no more."""
        self._readings.clear()

    def on_answer(self, broker: BrokerId, time_ns: int, sent: float, now: float) -> None:
        """Records the broker's clock from an answer that has just come; `time_ns` 0: it has none. An answer that took
        longer than `max_clock_difference` is ignored: it is too inexact."""
        if time_ns and (now - sent) * _NS <= self._bound_ns:
            self._readings[broker] = _Reading(time_ns - int((sent + now) / 2 * _NS), now)

    # Keeps R72.
    def survey(self, live: Collection[BrokerId], now: float) -> Survey:
        for broker in [each for each in self._readings if each not in live]:
            del self._readings[broker]
        fresh = [found.offset_ns for found in self._readings.values() if now - found.at <= self._fresh_s]
        clocks = sorted(fresh)
        most, begin = 0, 0
        for at, clock in enumerate(clocks):
            agree = bisect_right(clocks, clock + self._bound_ns) - at
            if agree > most:
                most, begin = agree, at
        if 2 * most > len(live):
            return Survey(clocks[begin + (most - 1) // 2] + int(now * _NS))
        return Survey(None, is_apart=len(clocks) == len(live) > 0)


class ClockState(Enum):
    UNKNOWN = "unknown"
    APART = "apart"
    OFF = "off"
    SETTLING = "settling"
    AGREED = "agreed"


class AgreedClock:
    """The agreed time at one broker, and whether it may be used."""

    def __init__(self, settings: MetadataSettings) -> None:
        self._bound_s = settings.max_clock_difference_s
        self._settle_s = settings.clock_settle_s
        self._fresh_s = settings.leader_lease_s
        self._offset_ns = 0
        """Distance of the agreed time from the monotonic clock."""
        self._told_at: float | None = None
        """When the last agreed time was received; None: never."""
        self._is_apart = False
        self._anchor_ns = 0
        """`_offset_ns` as it was at `_since`."""
        self._since = 0.0
        """Since then the agreed time has not jumped."""
        self.jumps = 0

    def on_probe(self, agreed_ns: int, *, is_apart: bool, age: float, now: float) -> None:
        """A probe came, which was sent no longer ago than `age`. `agreed_ns`: 0 where it has no agreed time."""
        if age > self._bound_s / 2:
            return  # it may have lain unread for as long as that
        self._is_apart = is_apart
        if not agreed_ns:
            return
        self._offset_ns = agreed_ns - int(now * _NS)
        if self._told_at is None or abs(self._offset_ns - self._anchor_ns) > self._bound_s * _NS:
            self.jumps += self._told_at is not None
            self._anchor_ns, self._since = self._offset_ns, now
        self._told_at = now

    # R72: Nothing is forgotten by one broker's clock. The controller compares the clocks that answers to probes carry;
    # the middle clock of a majority that is no further apart than `max_clock_difference_s` is the agreed time, which
    # its probes tell. A broker forgets by the agreed time, carried on by its monotonic clock, and not at all while
    # that is unknown, while clocks are apart, while its own is off, and for `clock_settle_s` after a start or a jump.
    # Hazard: A coordinator that is eight days ahead for some seconds deletes idle groups with their offsets; a replica
    # removes what is not old.
    # Not covered: What an off broker dates while no majority agrees keeps that date. Clocks of a majority that are set
    # back by hours make tickets valid for so much longer.
    def state(self, now: float, time_ns: int) -> ClockState:
        """`time_ns`: of this broker's own clock."""
        if self._is_apart:
            return ClockState.APART
        if self._told_at is None or now - self._told_at > self._fresh_s:
            return ClockState.UNKNOWN
        if abs(time_ns - self._offset_ns - int(now * _NS)) > self._bound_s * _NS:
            return ClockState.OFF
        if now - self._since < self._settle_s:
            return ClockState.SETTLING
        return ClockState.AGREED

    def ahead_ns(self, now: float, time_ns: int) -> int:
        """Returns the lead of this broker's clock over the agreed time, as last received; 0: none was received."""
        return 0 if self._told_at is None else time_ns - self._agreed_at(now)

    def stamp_ns(self, now: float, time_ns: int) -> int:
        """Returns the time for this broker's own dates: its own clock, or the agreed time while that clock is off."""
        return self._agreed_at(now) if self.state(now, time_ns) is ClockState.OFF else time_ns

    def common_ns(self, now: float, time_ns: int) -> int:
        """Returns the time for dates that another broker judges: the agreed time as last received, however long ago
        that was, or this broker's own clock before the first one."""
        return time_ns if self._told_at is None else self._agreed_at(now)

    def time_ns(self, now: float, time_ns: int) -> int | None:
        """The time by which this broker may forget. None: it may not."""
        return self._agreed_at(now) if self.state(now, time_ns) is ClockState.AGREED else None

    def _agreed_at(self, now: float) -> int:
        return self._offset_ns + int(now * _NS)
