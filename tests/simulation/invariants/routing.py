"""Promises about streams whose partitions become more and fewer while they are used: to producers and readers of keys,
and about the cutovers on which they rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tests.simulation.invariants.base import Commit, Invariant, Scene
from tests.simulation.invariants.history import rows
from wire.batch import parse_header
from wire.layouts import NOT_REPORTED
from wire.types import NO_PRODUCER, StreamName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metadata.cluster.model import Stream
    from tests.simulation.invariants.history import History
    from wire.types import PartitionKey


class KeyedRecord(NamedTuple):
    layout: int
    """Place of its layout among those of the stream."""
    partition: int
    offset: int
    value: bytes

    @property
    def writer(self) -> bytes:
        return self.value.split(b":")[0]

    @property
    def number(self) -> int:
        """Of those of its writer, ascending."""
        return int(self.value.split(b":")[1])

    def __repr__(self) -> str:
        return f"{self.value[:16]!r} in layout {self.layout} at {self.partition}/{self.offset}"


class Answered(NamedTuple):
    """A record that was acknowledged."""

    sent_at: float
    acked_at: float


SHARED: Final = b"shared"
"""Keys with this beginning are written by all producers of `tests.simulation.users.keyed`."""


def is_keyed(key: bytes | None) -> bool:
    """It is a record of `tests.simulation.users.keyed`."""
    return key is not None and key.startswith((b"k", SHARED))


def layout_at(stream: Stream, partition: int, offset: int) -> int:
    """The place, among the layouts of the stream, of the one under which that record was written."""
    found = 0
    for place, layout in enumerate(stream.layouts):
        was_there = stream.partitions[partition].incarnation < layout.generation
        start = layout.start(partition) if was_there else 0
        if start == NOT_REPORTED or offset < start:
            break
        found = place
    return found


def keyed_records(scene: Scene, stream: Stream) -> dict[bytes, list[KeyedRecord]]:
    """The records of each key in the order in which they are to be read."""
    found: dict[bytes, list[KeyedRecord]] = {}
    for partition in stream.partitions:
        history = scene.history.of.get(stream.key(partition))
        for _, data in history.batches if history is not None else ():
            for row in rows(data):
                if row.key is not None and is_keyed(row.key) and row.value is not None:
                    place = layout_at(stream, partition, row.offset)
                    found.setdefault(row.key, []).append(KeyedRecord(place, partition, row.offset, row.value))
    return {key: sorted(records) for key, records in sorted(found.items())}


class KeysAreStoredInOrder(Invariant):
    """To producers: the records of a key, read layout by layout, are in one partition of each layout, each of them
    once; those of one producer in the order in which they were sent, and of several producers none behind a record that
    was sent when it had been acknowledged."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._answered: dict[bytes, Answered] = {}

    def on_key_acked(self, value: bytes, sent_at: float) -> None:
        self._answered[value] = Answered(sent_at, self.world.now)

    def at_the_end(self, records: Mapping[tuple[str, int, int], list[bytes]]) -> None:
        for stream in self.raft.truth.streams.values():
            for key, found in keyed_records(self.scene, stream).items():
                self._look_at_places(stream, key, found)
                self._look_at_order(stream, key, found)

    def _look_at_places(self, stream: Stream, key: bytes, found: list[KeyedRecord]) -> None:
        of_layout: dict[int, int] = {}
        for record in found:
            count = stream.layouts[record.layout].partitions
            if record.partition >= count:
                self.broken(f"{stream.name}: {key!r} has {record} in a layout of {count} partitions")
            if of_layout.setdefault(record.layout, record.partition) != record.partition:
                self.broken(f"{stream.name}: {key!r} is in several partitions of one layout: {found}")

    def _look_at_order(self, stream: Stream, key: bytes, found: list[KeyedRecord]) -> None:
        newest: dict[bytes, KeyedRecord] = {}
        latest_sent, latest = -1.0, None
        for record in found:
            before = newest.get(record.writer)
            if before is not None and record.number <= before.number:
                self.broken(f"{stream.name}: {key!r} has {record} behind {before}; layouts are {stream.layouts}")
            newest[record.writer] = record
            answered = self._answered.get(record.value)
            if answered is None:
                continue
            if answered.acked_at < latest_sent:
                self.broken(
                    f"{stream.name}: {key!r} has {record}, acknowledged at {answered.acked_at:.6f}, behind {latest},"
                    f" sent at {latest_sent:.6f}; layouts are {stream.layouts}"
                )
            if answered.sent_at > latest_sent:
                latest_sent, latest = answered.sent_at, record


class KeysAreGivenInOrder(Invariant):
    """To members of a group that reads with order="key": the records of a key are given out in their order, over all
    members; what was given out before may come again, and what is deleted may come late, to a member that had fetched
    it: others do not wait for it (R82)."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._given: dict[bytes, dict[bytes, str]] = {}
        """By key and value, to whom it was given first."""
        self._late: set[bytes] = set()
        """Values that were given when nobody waited for them any more."""
        self._newest: dict[tuple[bytes, bytes], tuple[int, str]] = {}

    def on_key_given(self, who: str, where: str, key: bytes, value: bytes, *, is_settled: bool) -> None:
        given = self._given.setdefault(key, {})
        writer, number, _ = value.split(b":")
        newest = self._newest.get((key, writer))
        if value in given:
            return
        if newest is not None and int(number) < newest[0]:
            if is_settled:
                return
            self.broken(
                f"{who} was given {value[:20]!r} of {key!r} at {where}, when number {newest[0]} had been given to"
                f" {newest[1]}"
            )
        given[value] = f"{who} at {where}"
        if is_settled:
            self._late.add(value)
        self._newest[key, writer] = int(number), given[value]

    def at_the_end(self, records: Mapping[tuple[str, int, int], list[bytes]]) -> None:
        for stream in self.raft.truth.streams.values():
            for key, found in keyed_records(self.scene, stream).items():
                given = self._given.get(key, {})
                places = {value: place for place, value in enumerate(given)}
                last: KeyedRecord | None = None
                for record in found:
                    if record.value not in places:
                        continue
                    if last is not None and places[record.value] < places[last.value]:
                        self.broken(
                            f"{key!r}: {record} was given to {given[record.value]} before {last} to {given[last.value]}"
                        )
                    if record.value not in self._late:
                        last = record


class CutoversAreExact(Invariant):
    """To readers of keys: in each partition the records that were sent under a partitioning version are in the layout
    of that version, and no leader's end of a layout changes once it is told."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._told: dict[tuple[int, int, int], int] = {}
        """(stream's incarnation, version, partition) -> where the version begins."""

    def on_commit(self, commit: Commit) -> None:
        if commit.kind != "report_cutover":
            return
        for stream in self.raft.truth.streams.values():
            for layout in stream.layouts:
                for partition, start in enumerate(layout.starts):
                    told = self._told.setdefault((stream.incarnation, layout.version, partition), start)
                    if told == NOT_REPORTED:
                        self._told[stream.incarnation, layout.version, partition] = start
                    elif told != start:
                        self.broken(f"{stream.name}/{partition}: version {layout.version} began at {told}, now {start}")

    def at_the_end(self, records: Mapping[tuple[str, int, int], list[bytes]]) -> None:
        for key, history in self.history.of.items():
            stream = self.raft.truth.streams.get(key.stream)
            if stream is not None and self.raft.truth.partition(key) is not None and len(stream.layouts) > 1:
                self._look_at(stream, key, history)

    def _look_at(self, stream: Stream, key: PartitionKey, history: History) -> None:
        for base, data in history.batches:
            header = parse_header(data)
            if header.producer_id == NO_PRODUCER or header.is_control:
                continue  # without a version
            for offset in (base, header.end_offset - 1):
                version = stream.layouts[layout_at(stream, key.partition, offset)].version
                if version != (header.partitioning_version or 1):
                    self.broken(
                        f"{key} offset {offset} is in the layout of version {version}, and was stored under"
                        f" {header.partitioning_version}; layouts are {stream.layouts}"
                    )


class RepartitionsFinishWhenTold(Invariant):
    """To operators: a repartition is finished when each cutover is known, and as soon as clients route by its layout:
    to that end it has the generation of its cutover, which clients tell when they do."""

    def on_commit(self, commit: Commit) -> None:
        for stream in self.raft.truth.streams.values():
            marker, layout = stream.repartition, stream.layouts[-1]
            if marker is not None and marker.adoption_generation and marker.adoption_generation != layout.generation:
                self.broken(f"the cutover of {stream.name} was in generation {layout.generation}, and has {marker}")
        if commit.kind != "finish_repartition" or commit.outcome.code is not None:
            return
        finished = self.raft.truth.streams.get(StreamName(commit.message.finish_repartition.name))
        if finished is not None and not finished.layouts[-1].is_reported:
            self.broken(f"the repartition of {finished.name} is finished, and layouts are {finished.layouts}")


class AdoptionIsTrue(Invariant):
    """To operators: when a client tells that it goes by the routes of some generation, its producers do: they send by
    the layout of that time, or a later one."""

    def on_adoption_told(self, who: str, stream: str, generation: int, version: int) -> None:
        known = self.raft.truth.streams.get(StreamName(stream))
        layouts = known.layouts if known is not None and known.incarnation <= generation else ()
        newest = max((layout.version for layout in layouts if layout.generation <= generation), default=0)
        if version < newest:
            self.broken(f"{who} tells generation {generation} of {stream} and sends by version {version}, not {newest}")
