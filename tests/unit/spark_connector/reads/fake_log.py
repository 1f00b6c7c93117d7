"""Logs in memory that have ends and no records, behind the port of the connector."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass, field

from spark_connector.reads.log_port import OffsetRange, PartitionExtent, PartitionName, Span, StreamExtent
from wire.batch import RecordBatch
from wire.errors import Code, TidelogError
from wire.layouts import Layout
from wire.types import Incarnation, Offset, StreamName

LIFE = 7


@dataclass
class FakeStream:
    held: dict[int, tuple[int, int]]
    """Of each partition (log start, committed end)."""
    incarnation: int = LIFE
    log_ends: dict[int, int] = field(default_factory=dict)
    """Of partitions whose log does not end where the committed part ends."""
    layouts: tuple[Layout, ...] = ()
    lives: dict[int, int] = field(default_factory=dict)
    """Incarnations of partitions that are younger than the stream."""

    def extent(self, name: StreamName) -> StreamExtent:
        life = Incarnation(self.incarnation)
        return StreamExtent(
            name,
            life,
            {
                p: PartitionExtent(
                    Incarnation(self.lives.get(p, life)), Offset(start), Offset(end), Offset(self.log_ends.get(p, end))
                )
                for p, (start, end) in self.held.items()
            },
            self.layouts,
        )


@dataclass
class FakeLogs:
    """A record at offset n is of the time n milliseconds."""

    by_name: dict[str, FakeStream]
    opened: int = 0
    closed: bool = False
    asked: list[tuple[StreamName, ...]] = field(default_factory=list)
    """The streams of each call of `extents`."""
    commits: list[tuple[str, dict[tuple[str, int], int]]] = field(default_factory=list)
    has_members: bool = False
    record_bytes: dict[int, int] = field(default_factory=dict)
    """By partition; 10 elsewhere."""
    spans_asked: int = 0

    def streams(self) -> list[StreamName]:
        return [StreamName(name) for name in self.by_name]

    def extents(self, streams: Collection[StreamName]) -> Mapping[StreamName, StreamExtent]:
        self.asked.append(tuple(streams))
        return {name: self.by_name[name].extent(name) for name in streams if name in self.by_name}

    def offsets_at(
        self, times: Mapping[StreamName, Mapping[int, int]]
    ) -> Mapping[StreamName, Mapping[int, Offset | None]]:
        return {
            name: {p: self._at(self.by_name[name].held[p], time) for p, time in of_stream.items()}
            for name, of_stream in times.items()
        }

    @staticmethod
    def _at(held: tuple[int, int], timestamp_ns: int) -> Offset | None:
        offset = max(timestamp_ns // 1_000_000, held[0])
        return Offset(offset) if offset < held[1] else None

    def spans(self, wanted: Mapping[PartitionName, tuple[Offset, int]]) -> Mapping[PartitionName, Span]:
        self.spans_asked += 1
        found: dict[PartitionName, Span] = {}
        for (stream, partition), (offset, size) in wanted.items():
            each, (start, end) = self.record_bytes.get(partition, 10), self.by_name[stream].held[partition]
            begin = max(offset, start)
            found[stream, partition] = Span(Offset(min(begin + max(size // each, 1), end)), max(0, end - begin) * each)
        return found

    def commit_group(self, group: str, offsets: Mapping[PartitionName, Offset]) -> None:
        if self.has_members:
            raise TidelogError(Code.GROUP_NOT_EMPTY, f"group {group!r} has 1 members")
        self.commits.append((group, {(str(stream), p): int(offset) for (stream, p), offset in offsets.items()}))

    def fetch(self, wanted: OffsetRange, max_bytes: int) -> Generator[RecordBatch, None, None]:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True


def flights(held: dict[int, tuple[int, int]]) -> FakeLogs:
    """The one stream `flights`."""
    return FakeLogs({"flights": FakeStream(held)})
