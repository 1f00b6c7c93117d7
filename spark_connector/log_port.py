"""All requests of the connector to a log.

`client_log.ClientLog` answers over NATS. The port is blocking because Spark's callbacks are; every offset is one of
committed records, and ends are exclusive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from wire.types import Incarnation, Offset, StreamName

if TYPE_CHECKING:
    from spark_connector.options import SourceOptions
    from wire.batch import RecordBatch


@dataclass(frozen=True, slots=True)
class PartitionExtent:
    """Present content of a partition: committed records `[log_start, end)`."""

    incarnation: Incarnation
    log_start: Offset
    end: Offset


@dataclass(frozen=True, slots=True)
class StreamExtent:
    stream: StreamName
    incarnation: Incarnation
    partitions: Mapping[int, PartitionExtent]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records `[start, end)` of one life of one partition. A Spark task reads some of them."""

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


class Batches(Protocol):
    """An iterator that can be left early."""

    def __iter__(self) -> Iterator[RecordBatch]: ...

    def close(self) -> None:
        """What is being fetched is given up. Raises nothing; does nothing the second time."""


class CommittedLog(Protocol):
    """A connection to a cluster. Every method raises `TidelogError`."""

    def extent(self, stream: StreamName) -> StreamExtent:
        """Where each partition's committed log begins and ends. UNKNOWN_STREAM when there is no such stream."""

    def offsets_at(self, stream: StreamName, timestamp_ns: int) -> Mapping[int, Offset]:
        """Per partition the first committed record at or after a time (ns since 1970), the end when there is none."""

    def fetch(self, wanted: OffsetRange, max_bytes: int) -> Batches:
        """Batches that hold every record of the range, in order; the first and the last may reach beyond it.

        Fetching may begin at once, and raises when the batches are asked for.
        Ends when there is none left in the range, not before. Batches without records (control) may be left out.

        `max_bytes` bounds one answer of a broker. WRONG_INCARNATION when the stream was recreated, OFFSET_BEFORE_LOG
        (detail `log_start`) when the range begins below the log.
        """

    def close(self) -> None: ...


OpenLog = Callable[["SourceOptions"], CommittedLog]
"""How a reader connects, in the driver and in every task: a module-level function, because Spark pickles it."""
