"""Records that were sent and acknowledged, with times, and the result that reading the stream back must therefore have.

    lost        acknowledged, and nowhere in the log
    misplaced   in the log, but not where the acknowledgement said
    repeated    in the log more than once
    reordered   behind a later record of its key, or delivered out of offset order
    foreign     in the log, and never sent with this key and value

Pure: times are arguments, monotonic seconds.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise

_NOWHERE = -1


class Ledger:
    """Records are known by their row: their place in `keys` and `values`, which is the order in which they are sent.

    No two values may be alike.
    """

    def __init__(self, keys: Sequence[bytes], values: Sequence[bytes], partitions: int) -> None:
        self.keys = keys
        self.values = values
        self.acknowledged = 0
        self.failed = 0
        self.first_failure: BaseException | None = None
        self._partition = array("q", [_NOWHERE]) * len(values)
        self._offset = array("q", [_NOWHERE]) * len(values)
        self._ack_times = [array("d") for _ in range(partitions)]

    @property
    def settled(self) -> int:
        """Records with a known outcome."""
        return self.acknowledged + self.failed

    def acknowledge(self, row: int, partition: int, offset: int, now: float) -> None:
        self._partition[row] = partition
        self._offset[row] = offset
        self._ack_times[partition].append(now)
        self.acknowledged += 1

    def fail(self, error: BaseException) -> None:
        self.first_failure = self.first_failure or error
        self.failed += 1

    def place(self, row: int) -> tuple[int, int] | None:
        """(partition, offset) that the record's acknowledgement named."""
        offset = self._offset[row]
        return None if offset == _NOWHERE else (self._partition[row], offset)

    def busiest_partition(self) -> int:
        """The one with the most acknowledgements so far."""
        return max(range(len(self._ack_times)), key=lambda partition: len(self._ack_times[partition]))

    def longest_pause(self, partition: int, since: float, until: float) -> float | None:
        """Longest time in seconds between two neighbouring acknowledgements of the partition, among the pauses that
        ended within (since, until]. None when nothing was acknowledged in that time.
        """
        times = self._ack_times[partition]
        return max((after - before for before, after in pairwise(times) if since < after <= until), default=None)


class ReadBack:
    """Compares the records of a consumer, batch after batch, with a ledger that is complete."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._rows = {value: row for row, value in enumerate(ledger.values)}
        self._copies = bytearray(len(ledger.values))
        self._last_offset: dict[int, int] = {}
        self._last_row: dict[bytes, int] = {}
        self._problems: dict[str, list[str]] = {}
        self.count = 0

    def add(
        self, partition: int, offsets: Iterable[int], keys: Iterable[bytes | None], values: Iterable[bytes | None]
    ) -> None:
        """The columns of one batch, equally long."""
        ledger, last_offset = self._ledger, self._last_offset.get(partition, -1)
        for offset, key, value in zip(offsets, keys, values, strict=True):
            self.count += 1
            if offset <= last_offset:
                self._problem("reordered", f"offset {offset} of partition {partition} came after {last_offset}")
            last_offset = offset
            row = None if value is None else self._rows.get(value)
            if row is None or key is None or key != ledger.keys[row]:
                self._problem("foreign", f"{key!r} {value!r} at {partition}/{offset}")
                continue
            if self._copies[row]:
                self._problem("repeated", f"row {row} is at {partition}/{offset} too")
                continue
            self._copies[row] = 1
            place = ledger.place(row)
            if place is not None and place != (partition, offset):
                said = "{}/{}".format(*place)
                self._problem("misplaced", f"row {row} is at {partition}/{offset} and was acknowledged at {said}")
            if row < self._last_row.get(key, -1):
                self._problem("reordered", f"row {row} of {key.decode()} came after row {self._last_row[key]}")
            else:
                self._last_row[key] = row
        self._last_offset[partition] = last_offset

    def problems(self) -> list[str]:
        """Once everything was added: a sentence for each kind of problem, with its first case. Empty is good."""
        for row, copies in enumerate(self._copies):
            if not copies and (place := self._ledger.place(row)) is not None:
                self._problem("lost", "row {}, acknowledged at {}/{}".format(row, *place))
        return [f"{kind} {len(cases):,}, the first: {cases[0][:200]}" for kind, cases in self._problems.items()]

    def _problem(self, kind: str, case: str) -> None:
        self._problems.setdefault(kind, []).append(case)
