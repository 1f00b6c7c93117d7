"""Under any fault of network, disks and processes, a cutover separates the records of two layouts.

As `test_partition_machine`, of one partition of a stream that is repartitioned again and again. Clients name the newest
partitioning version, or the one before, or none.
"""

from __future__ import annotations

from copy import copy

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from metadata.cluster.model import Stream
from tests.property.test_partition_machine import PartitionMachine, _is_network, picks
from wire.layouts import NOT_REPORTED
from wire.types import CutoverReport


class CutoverMachine(PartitionMachine):
    """More rules and invariants for partition 0. The leaders of the other partitions are not here."""

    def __init__(self) -> None:
        super().__init__()
        self.named: dict[str, int] = {}
        """The version that the request of a record named, by its value; 0: none."""

    @property
    def _stream(self) -> Stream:
        return self.world.cluster.state.streams[self.world.key.stream]

    @rule(pick=picks, size=st.integers(1, 2), times=st.integers(1, 3))
    def publish(self, pick: int, size: int, times: int) -> None:
        leading = [broker for broker, _ in self.world.leaders()]
        for _ in range(times if leading else 0):
            newest = self._stream.partitioning_version
            version = (0, newest, newest, max(1, newest - 1))[(pick + self.written) % 4]
            values = "".join(chr(0x4E00 + self.written + number) for number in range(size))
            self.written += size
            self.named.update(dict.fromkeys(values, version))
            self.world.publish(leading[pick % len(leading)].name, values, version=version)

    @rule(pick=picks, what=st.sampled_from(["deliver", "deliver", "drop", "repeat"]))
    def meddle(self, pick: int, what: str) -> None:
        """A report of a cutover is repeated until it is told (`metadata.runtime.outbound`), so it is late, not lost."""
        found = self._matching(_is_network)
        message = found[pick % len(found)] if found else None
        if what == "drop" and message is not None and isinstance(message.body, CutoverReport):
            self.world.network.remove(message)
            self.world.network.append(copy(message))
        else:
            super().meddle(pick, what)

    @rule(partitions=st.integers(1, 4))
    def repartition(self, partitions: int) -> None:
        cluster = self.world.cluster
        if self._stream.repartition is not None and cluster.finish().code is not None:
            return  # the one before is not told yet
        known = self._stream.partitions
        missing = [number for number in range(partitions) if number not in known]
        if cluster.prepare(partitions, ["a b c" for _ in missing]).code is None:
            cluster.cut_over()
            self.world.spread()

    @rule()
    def other_partitions_tell(self) -> None:
        cluster = self.world.cluster
        starts = self._stream.layouts[-1].starts
        for number, start in enumerate(starts):
            if number and start == NOT_REPORTED:
                cluster.report_cutover(cluster.cutover_at(number, 0))
        self.world.spread()

    @invariant()
    def a_cutover_separates_the_layouts(self) -> None:
        for layout in self._stream.layouts[1:]:
            start = layout.start(0)
            if start == NOT_REPORTED:
                continue
            for offset, (_, value) in self.committed.items():
                version = self.named[value]
                if version:
                    assert (version >= layout.version) == (offset >= start), (
                        f"the record at {offset} named version {version}, and {layout.version} begins at {start}"
                    )

    @invariant()
    def nothing_of_a_version_is_stored_before_all_is_told(self) -> None:
        layouts = self._stream.layouts
        untold = {layout.version for layout in layouts if not layout.is_reported and layout.start(0) == NOT_REPORTED}
        for broker in self.world.brokers.values():
            for offset, _, value in broker.records():
                assert self.named[value] not in untold, f"{broker.name} holds the record at {offset} too early"

    def _healed(self) -> bool:
        layouts = self._stream.layouts
        return super()._healed() and layouts[-1].start(0) != NOT_REPORTED


TestCutovers = CutoverMachine.TestCase
TestCutovers.settings = settings(max_examples=60, stateful_step_count=50)
