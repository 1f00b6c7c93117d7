"""All requests of the connector to a log.

`client_log.ClientLog` answers over NATS. The port is blocking because Spark's callbacks are; every offset is one of
committed records, and ends are exclusive.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from wire.layouts import Layout
from wire.types import Incarnation, Offset, StreamName

if TYPE_CHECKING:
    from spark_connector.reads.read_options import SourceOptions
    from wire.batch import RecordBatch


@dataclass(frozen=True, slots=True)
class PartitionExtent:
    """Present content of a partition: records `[log_start, end)` are committed, as its leader knows at the moment."""

    incarnation: Incarnation
    log_start: Offset
    end: Offset
    log_end: Offset
    """End of the leader's log, >= `end`. A new leader has all committed records below it, and may not know yet that
    they are committed; records at a position behind it are gone."""


@dataclass(frozen=True, slots=True)
class StreamExtent:
    stream: StreamName
    incarnation: Incarnation
    partitions: Mapping[int, PartitionExtent]
    layouts: tuple[Layout, ...] = ()
    """The layouts with the partitions over which keys were spread; oldest first."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records `[start, end)` of one incarnation of one partition. A Spark task reads some of them."""

    stream: StreamName
    stream_incarnation: Incarnation
    partition: int
    partition_incarnation: Incarnation
    start: Offset
    end: Offset

    def __len__(self) -> int:
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        return f"{self.stream}/{self.partition} [{self.start}, {self.end})"


PartitionName = tuple[StreamName, int]


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a committed log that was looked up by its size on the brokers' disks."""

    end: Offset
    bytes_to_end: int
    """Bytes of all committed records from the begin of the part on."""


class Batches(Protocol):
    """An iterator that can be left early."""

    def __iter__(self) -> Iterator[RecordBatch]: ...

    def close(self) -> None:
        """Gives up the fetch under way. Raises nothing; does nothing the second time."""


class CommittedLog(Protocol):
    """A connection to a cluster. Every method raises `TidelogError`."""

    def streams(self) -> Collection[StreamName]:
        """Returns the names of all streams."""

    def extents(self, streams: Collection[StreamName]) -> Mapping[StreamName, StreamExtent]:
        """Returns, for the streams that exist, where each partition's log begins and ends."""

    def offsets_at(
        self, times: Mapping[StreamName, Mapping[int, int]]
    ) -> Mapping[StreamName, Mapping[int, Offset | None]]:
        """Returns for each partition the first committed record at or after its time (ns since 1970); None: there is
        none."""

    def spans(self, wanted: Mapping[PartitionName, tuple[Offset, int]]) -> Mapping[PartitionName, Span]:
        """Returns for each partition where about so many bytes of its committed log from an offset on end."""

    def commit_group(self, group: str, offsets: Mapping[PartitionName, Offset]) -> None:
        """Commits the next offsets to read for a consumer group without members. GROUP_NOT_EMPTY when it has some."""

    def fetch(self, wanted: OffsetRange, max_bytes: int) -> Batches:
        """Yields batches that hold every record of the range, in order; the first and the last may reach beyond it.

        Fetching may begin at once, and raises when the batches are asked for.
        Ends when there is none left in the range, not before. Batches without records (control) may be left out.

        `max_bytes` bounds one answer of a broker. WRONG_INCARNATION when the stream was recreated, OFFSET_BEFORE_LOG
        (detail `log_start`) when the range begins below the log.
        """

    def close(self) -> None: ...


OpenLog = Callable[["SourceOptions"], CommittedLog]
"""Connects a reader, in the driver and in every task: a module-level function, because Spark pickles it."""
