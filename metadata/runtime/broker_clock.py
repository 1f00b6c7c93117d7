"""The agreed clock of this broker (R72) with its two real clocks, and its log lines, counters and status."""

from __future__ import annotations

import logging
from collections.abc import Callable

from metadata.controller.agreed_time import AgreedClock, ClockState
from metadata.controller.metadata_settings import MetadataSettings
from wire.operations.api_operations import ClockStatus
from wire.protobuf import metadata_pb2 as pb
from wire.types import BrokerId

_log = logging.getLogger(__name__)

_NS_PER_MS = 1_000_000


class BrokerClock:
    """`monotonic`: seconds; `time_ns`: the wall clock."""

    def __init__(
        self, broker: BrokerId, settings: MetadataSettings, monotonic: Callable[[], float], time_ns: Callable[[], int]
    ) -> None:
        self._broker = broker
        self._settings = settings
        self._monotonic = monotonic
        self._wall = time_ns
        self._agreed = AgreedClock(settings)
        self._state = ClockState.UNKNOWN
        self._times_off = 0
        self._times_apart = 0

    def wall_ns(self) -> int:
        """This broker's own clock, for answers to probes."""
        return self._wall()

    def stamp_ns(self) -> int:
        """Returns the time for this broker's own dates, ns since 1970."""
        return self._agreed.stamp_ns(self._monotonic(), self._wall())

    def common_ns(self) -> int:
        """Returns the time for dates that another broker judges, ns since 1970."""
        return self._agreed.common_ns(self._monotonic(), self._wall())

    def time_ns(self) -> int | None:
        """The time by which this broker may forget. None: it may not."""
        return self._agreed.time_ns(self._monotonic(), self._wall())

    def on_probe(self, probe: pb.Probe, age: float) -> None:
        """A probe of the controller whose epoch is applied here came; it was sent no longer ago than `age`."""
        now = self._monotonic()
        jumps = self._agreed.jumps
        self._agreed.on_probe(probe.agreed_time_ns, is_apart=probe.clocks_are_apart, age=age, now=now)
        if self._agreed.jumps > jumps:
            _log.warning(
                "broker %s: the time on which most brokers agree has jumped against the time that has elapsed here;"
                " nothing is forgotten for its age before it has gone on for %g s",
                self._broker, self._settings.clock_settle_s,
            )  # fmt: skip
        self._tell(self._agreed.state(now, self._wall()), now)

    def _tell(self, state: ClockState, now: float) -> None:
        """Logs one line for each state that an operator has to know of."""
        before, self._state = self._state, state
        if state is before:
            return
        bound = self._settings.max_clock_difference_s
        if state is ClockState.OFF:
            self._times_off += 1
            ahead = self._agreed.ahead_ns(now, self._wall()) / 1e9
            _log.warning(
                "broker %s: its clock is %.3f s %s the time on which most brokers agree (max_clock_difference_s=%g):"
                " it forgets nothing for its age (segments, tombstones, groups, producers) until that is mended;"
                " look at the time synchronisation of its host",
                self._broker, abs(ahead), "ahead of" if ahead > 0 else "behind", bound,
            )  # fmt: skip
        elif state is ClockState.APART:
            self._times_apart += 1
            _log.warning(
                "broker %s: no majority of the brokers' clocks agrees within max_clock_difference_s=%g: nothing is"
                " forgotten for its age until that is mended; look at the time synchronisation of the hosts",
                self._broker, bound,
            )  # fmt: skip
        elif before in (ClockState.OFF, ClockState.APART):
            _log.warning("broker %s: its clock is %s again", self._broker, _AFTERWARDS[state])

    def report(self) -> ClockStatus:
        """Returns the clock's part of the broker's status."""
        now, wall = self._monotonic(), self._wall()
        return {
            "state": self._agreed.state(now, wall).value,
            "ahead_ms": self._agreed.ahead_ns(now, wall) // _NS_PER_MS,
        }

    def counters(self) -> dict[str, int]:
        return {
            "clock_off": self._times_off,
            "clocks_apart": self._times_apart,
            "clock_jumps": self._agreed.jumps,
        }


_AFTERWARDS = {
    ClockState.UNKNOWN: "unknown",
    ClockState.SETTLING: "near the agreed time, which settles",
    ClockState.AGREED: "near the agreed time",
}
