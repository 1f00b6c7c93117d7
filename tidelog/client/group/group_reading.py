"""What a member of a group reads: one `StreamReading` for each life of a stream of which it has partitions.

Streams take turns when records are handed out; within a stream, partitions come as they answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from tidelog.client.base.read_positions import Position, Start
from tidelog.client.cluster.lifetime import close_all
from tidelog.client.cluster.metadata_cache import StreamMetadata
from tidelog.client.consumer.fetched_ahead import Head
from tidelog.client.consumer.stream_reading import StreamReading
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import StreamPartition
from wire.types import StreamName

_log = logging.getLogger(__name__)

GONE = (Code.UNKNOWN_STREAM, Code.WRONG_INCARNATION, Code.PARTITION_RETIRED)
"""The coordinator is about to take such a partition away."""

_Life = tuple[str, int]
"""A stream's name and incarnation."""


class GroupReading:
    """`make` makes a reading that sets this one's `progress`."""

    def __init__(self, make: Callable[[StreamName, asyncio.Event], StreamReading]) -> None:
        self._make = make
        self.progress = asyncio.Event()
        self._readings: dict[_Life, StreamReading] = {}
        self._incarnations: dict[StreamPartition, int] = {}
        """The incarnations of the partitions that are read, or whose starts are being looked up."""
        self._paused: set[StreamPartition] = set()
        """They are read, or are about to be."""
        self._turns: deque[_Life] = deque()
        """In which order readings are asked for records."""
        self._current: _Life | None = None
        """From which records were handed out last."""
        self.beginnings: dict[StreamPartition, int] = {}
        """Where reading began, of what is read."""
        self._told: set[StreamPartition] = set()
        """Gone, as the log says already."""
        self.committed: Callable[[StreamPartition], int] | None = None
        """See `StreamReading.committed`."""
        self.on_layout: Callable[[], object] | None = None
        """Called when the layouts of a stream have changed."""
        self.on_partition: Callable[[StreamPartition], object] | None = None
        """Called when a partition is read, or is not read any more."""

        self.on_made_anew: Callable[[StreamPartition], object] | None = None
        """See `StreamReading.on_made_anew`."""

    @property
    def readings(self) -> Mapping[_Life, StreamReading]:
        """By life of a stream."""
        return self._readings

    def is_read(self, of: StreamPartition) -> bool:
        reading = self._readings.get((of.stream, of.incarnation))
        return reading is not None and of.partition in reading.readers

    def is_gone(self, of: StreamPartition) -> bool:
        """The partition does not exist any more, as the metadata say, and the coordinator is about to take it away."""
        reading = self._readings.get((of.stream, of.incarnation))
        return reading is not None and of.partition in reading.gone

    async def add(self, of: StreamPartition, start: Position, stream: StreamMetadata) -> None:
        """Read this partition too. Returns once its start is known. Raises as `StreamReading.add`. Whatever comes of
        it, `remove` ends it."""
        life = of.stream, of.incarnation
        reading = self._readings.get(life)
        if reading is None:
            reading = self._readings[life] = self._make(StreamName(of.stream), self.progress)
            self._turns.append(life)
            if self.committed is not None and self.on_layout is not None:
                committed = self.committed
                reading.committed = lambda partition: committed(StreamPartition(*life, partition))
                reading.on_layout = self.on_layout
            if self.on_made_anew is not None:
                made_anew = self.on_made_anew
                reading.on_made_anew = lambda partition: made_anew(StreamPartition(*life, partition))
        self._incarnations[of] = stream.partitions[of.partition].incarnation
        self._share()
        await reading.add(of.partition, start, stream)
        if of in self._paused:
            reading.ahead.pause((of.partition,))
        self.beginnings[of] = reading.ahead.positions[of.partition]
        if self.on_partition is not None:
            self.on_partition(of)

    async def seek(self, of: StreamPartition, position: Start) -> None:
        await self._readings[of.stream, of.incarnation].seek(of.partition, position)

    def look_again(self, of: StreamPartition) -> None:
        """An iteration over records of the partition asks for the head again."""
        self._readings[of.stream, of.incarnation].ahead.is_changed = True

    def cease(self, of: StreamPartition) -> None:
        """Fetch no more of it, and hand out nothing more of it."""
        if of in self._incarnations:
            self._readings[of.stream, of.incarnation].cease(of.partition)

    def remove(self, of: StreamPartition) -> None:
        """Safe to call twice."""
        self._paused.discard(of)
        if self._incarnations.pop(of, None) is None:
            return
        self._readings[of.stream, of.incarnation].remove(of.partition)
        self.beginnings.pop(of, None)
        self._told.discard(of)
        self._share()
        if self.on_partition is not None:
            self.on_partition(of)

    async def close_unread(self) -> None:
        """Close readings of which no partition is left."""
        read = {(of.stream, of.incarnation) for of in self._incarnations}
        await self._close([life for life in self._readings if life not in read])

    async def aclose(self) -> None:
        self._incarnations.clear()
        await self._close([*self._readings])

    def head(self) -> tuple[StreamReading, Head] | None:
        """What to hand out next. What was handed out before is finished."""
        self.finish()
        for _ in range(len(self._turns)):
            life = self._turns[0]
            self._turns.rotate(-1)
            reading = self._readings[life]
            head = reading.ahead.head()
            if head is not None:
                self._current = life
                return reading, head
        return None

    def finish(self) -> None:
        """All that was handed out is finished."""
        if self._current is not None:
            self._readings[self._current].ahead.finish()
            self._current = None

    def put_back(self) -> None:
        """What was taken since `head` did not come to the program: it is handed out again."""
        if self._current is not None:
            self._readings[self._current].ahead.put_back()
            self._current = None

    @property
    def unfinished(self) -> StreamPartition | None:
        """A partition of which records were handed out and are not finished."""
        if self._current is None:
            return None
        found = self._readings[self._current].ahead.unfinished
        return None if found is None else StreamPartition(*self._current, found[0])

    @property
    def positions(self) -> dict[StreamPartition, int]:
        return self._each(lambda reading: reading.ahead.positions)

    def position(self, of: StreamPartition) -> int | None:
        """As `positions`, of one partition."""
        reading = self._readings.get((of.stream, of.incarnation))
        return None if reading is None else reading.ahead.position(of.partition)

    @property
    def finished(self) -> dict[StreamPartition, int]:
        """Positions without what was handed out and is not finished."""
        return self._each(lambda reading: reading.ahead.finished)

    def gap(self, of: StreamPartition) -> tuple[int, int] | None:
        """The newest range of offsets without a record that the position has passed over."""
        reading = self._readings.get((of.stream, of.incarnation))
        return None if reading is None else reading.ahead.gap(of.partition)

    @property
    def missed(self) -> dict[StreamPartition, int]:
        return self._each(lambda reading: {number: each.missed for number, each in reading.readers.items()})

    @property
    def committed_ends(self) -> dict[StreamPartition, int]:
        """As the newest answers have told them."""
        return self._each(
            lambda reading: {number: each.fetcher.committed_end for number, each in reading.readers.items()}
        )

    @property
    def paused(self) -> frozenset[StreamPartition]:
        return frozenset(self._paused)

    def partition_incarnation(self, of: StreamPartition) -> int | None:
        return self._incarnations.get(of)

    def pause(self, partitions: Iterable[StreamPartition]) -> None:
        """Until `resume`, or `remove`; also of partitions that are added later."""
        for of in partitions:
            self._paused.add(of)
            if self.is_read(of):
                self._readings[of.stream, of.incarnation].ahead.pause((of.partition,))

    def resume(self, partitions: Iterable[StreamPartition]) -> None:
        for of in partitions:
            self._paused.discard(of)
            if self.is_read(of):
                self._readings[of.stream, of.incarnation].ahead.resume((of.partition,))
        self.progress.set()

    def raise_failure(self) -> None:
        """Why a partition cannot be read on. One that the coordinator is about to take away is not reading any more, as
        the log says."""
        for life, reading in self._readings.items():
            for partition, error in reading.failures.items():
                if not (isinstance(error, TidelogError) and error.code in GONE):
                    raise error from None
                of = StreamPartition(*life, -1 if partition is None else partition)
                if of not in self._told:
                    self._told.add(of)
                    _log.warning("%s is read no more: %s", life[0] if partition is None else of, error.message)

    # ----

    def _each(self, told: Callable[[StreamReading], dict[int, int]]) -> dict[StreamPartition, int]:
        return {
            StreamPartition(*life, partition): number
            for life, reading in self._readings.items()
            for partition, number in told(reading).items()
        }

    def _share(self) -> None:
        for reading in self._readings.values():
            reading.share_prefetch(max(len(self._incarnations), 1))

    async def _close(self, lives: list[_Life]) -> None:
        closing = [self._readings.pop(life) for life in lives]
        for life in lives:
            self._turns.remove(life)
            if self._current == life:
                self._current = None
        await close_all(reading.aclose for reading in closing)
