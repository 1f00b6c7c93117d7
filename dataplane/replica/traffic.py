"""How much clients have sent and been sent: totals, and rates of the last minute. Pure; times are monotonic seconds.

A rate is what was counted within the last minute, divided by the time since that minute began, or since the first
count where that is later. What is counted falls into slots of five seconds, so that a batch costs some additions, and a
partition without traffic nothing. No task samples anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wire.operations.api_operations import Traffic

SLOT_S = 5
SLOTS = 12
"""The one that is being filled included: a rate is of the last 55 to 60 s."""
SHORTEST_S = 1.0
"""A rate is never of less time: the first record after a long silence is not a burst."""


class _Slot:
    __slots__ = ("bytes_in", "bytes_out", "number", "records_in", "records_out")

    def __init__(self, number: int) -> None:
        self.number = number
        """Counted from the beginning of the clock."""
        self.records_in = self.bytes_in = self.records_out = self.bytes_out = 0


class TrafficMeter:
    """That of a broker, or of one replica."""

    __slots__ = ("_slots", "_total")

    def __init__(self) -> None:
        self._total = _Slot(-1)
        """`number`: of the slot in which something was counted first; below 0: nothing was."""
        self._slots: list[_Slot] = []
        """The newest last; slots in which nothing was counted are missing."""

    @property
    def has_counted(self) -> bool:
        return self._total.number >= 0

    def on_in(self, records: int, size: int, now: float) -> None:
        slots, total = self._slots, self._total
        slot = slots[-1] if slots and slots[-1].number == now // SLOT_S else self._slot(now)
        slot.records_in += records
        slot.bytes_in += size
        total.records_in += records
        total.bytes_in += size

    def on_out(self, records: int, size: int, now: float) -> None:
        for slot in (self._total, self._slot(now)):
            slot.records_out += records
            slot.bytes_out += size

    def report(self, now: float) -> Traffic:
        total = self._total
        number = int(now // SLOT_S)
        first = max(number - SLOTS + 1, total.number)
        elapsed = max(SHORTEST_S, now - first * SLOT_S)
        recent = _Slot(number)
        for slot in self._slots:
            if slot.number >= first:
                recent.records_in += slot.records_in
                recent.bytes_in += slot.bytes_in
                recent.records_out += slot.records_out
                recent.bytes_out += slot.bytes_out
        return {
            "records_in": total.records_in,
            "bytes_in": total.bytes_in,
            "records_out": total.records_out,
            "bytes_out": total.bytes_out,
            "records_in_per_s": round(recent.records_in / elapsed, 3),
            "bytes_in_per_s": round(recent.bytes_in / elapsed, 3),
            "records_out_per_s": round(recent.records_out / elapsed, 3),
            "bytes_out_per_s": round(recent.bytes_out / elapsed, 3),
        }

    def _slot(self, now: float) -> _Slot:
        number = int(now // SLOT_S)
        slots = self._slots
        if slots and slots[-1].number == number:
            return slots[-1]
        if self._total.number < 0:
            self._total.number = number
        while slots and slots[0].number <= number - SLOTS:
            del slots[0]
        slots.append(_Slot(number))
        return slots[-1]
