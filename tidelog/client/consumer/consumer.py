"""The consumer: records of a stream, as the program takes them. `StreamReading` fetches ahead of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Self

from tidelog.client.base.arguments import bad, check_number, check_whole, shown, whole
from tidelog.client.base.exceptions import Closed
from tidelog.client.base.read_positions import AtTime, Moment, Start, Stop, timestamp_ns
from tidelog.client.base.records import Batch, K, Record, V
from tidelog.client.base.serialization import Deserializers
from tidelog.client.cluster.lifetime import Started
from tidelog.client.cluster.metadata_cache import MetadataCache
from tidelog.client.consumer.consumer_config import ConsumerConfig
from tidelog.client.consumer.offset_lookup import OffsetLookup
from tidelog.client.consumer.stream_reading import StreamReading
from tidelog.client.consumer.subscription_state import AssignedPartition, SubscriptionState
from wire.errors import Code
from wire.messaging.transport import Transport
from wire.subjects import Subjects
from wire.types import StreamName

MOST_SECONDS = 1e9


class Consumer(Generic[K, V]):
    """Reads a stream's committed records.

    Take them one by one (`getone`) or as they come (`getmany`); or iterate over the consumer for records, over
    `batches()` for columns, once: the end of the iteration closes it. Leaving the iteration early is fine; `async with`
    or `aclose()` stops the fetching at once then.

    It goes on through changes of leader and lost connections. Errors that do not pass are raised where records are
    taken: OffsetOutOfRange, LogTruncated, UnknownStream, WrongIncarnation, CorruptBatch; and
    DeserializationFailed, with the position at the record that it is about.
    """

    def __init__(
        self,
        transport: Transport,
        subjects: Subjects,
        metadata: MetadataCache,
        lookup: OffsetLookup,
        stream: StreamName,
        config: ConsumerConfig[K, V],
        *,
        start: Start,
        stop: Stop,
        partitions: Iterable[int] | None,
        spread: int,
        started: Started[Any],
    ) -> None:
        """`spread` differs from consumer to consumer: they read from different followers."""
        self._stream = stream
        self._metadata = metadata
        self._lookup = lookup
        self._read_uncommitted = config.read_uncommitted
        self._start = start
        self._stop = stop
        self._partitions = None if partitions is None else tuple(partitions)
        self._state = SubscriptionState(Deserializers(config.key_deserializer, config.value_deserializer).read)
        self._reading = StreamReading(transport, subjects, metadata, stream, self._state, config, spread=spread)
        self._assigned = self._reading.stream.partitions
        self._started = started
        self._starting = asyncio.Lock()
        self._iterated = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def __aiter__(self) -> AsyncIterator[Record[K, V]]:
        self._begin_iteration()
        state = self._state
        try:
            await self.start()
            while (assigned := await self._next()) is not None:
                for record in assigned.records():
                    assigned.last = record
                    yield record
                    if state.is_changed:
                        break
        finally:
            await self.aclose()

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return self._stream

    @property
    def positions(self) -> Mapping[int, int]:
        """Per partition read, the offset after the last record (or batch) that was handed out; where reading begins,
        before the first. Known once reading has begun, also after the end of the iteration.

        Records fetched ahead do not count, so `client.consume(stream, start=positions)` goes on without a gap: save
        them, for instance as JSON, once the record that was handed out last has been processed.
        """
        return {number: one.position for number, one in tuple(self._assigned.items()) if one.position is not None}

    @property
    def incarnations(self) -> Mapping[int, int]:
        """Per partition read, the incarnation of it to which its position belongs. A partition that was removed after a
        repartition, and made anew by a later one, has another incarnation, in which an earlier position has no
        meaning."""
        return {number: assigned.incarnation for number, assigned in tuple(self._assigned.items())}

    def position(self, partition: int) -> int:
        """As `positions`, of one partition."""
        self._check_read((partition,))
        return self.positions[partition]

    @property
    def lag(self) -> Mapping[int, int]:
        """Per partition read, the committed records from its position on, as of the newest answer of a broker;
        `end_offsets` asks for the end as it is now. Offsets without a record (of a compacted
        stream) count."""
        return {number: assigned.lag or 0 for number, assigned in tuple(self._assigned.items())}

    @property
    def paused(self) -> frozenset[int]:
        """The partitions that `pause` has named."""
        return frozenset(number for number, assigned in tuple(self._assigned.items()) if assigned.is_paused)

    @property
    def waiting(self) -> Mapping[int, Mapping[int, int]]:
        """With `order="key"`, the partitions of which nothing is handed out before others are read further: by
        partition, those others, and up to which offset each (-1: that is not known yet)."""
        waiting = self._state.waiting.items()
        return {each.number: {of.partition: end for of, end in sources.items()} for each, sources in waiting}

    @property
    def is_at_end(self) -> bool:
        """All records below the stop were handed out, in every partition: no more will come, unless `seek` goes
        back."""
        is_over = self._is_reading and self._reading.is_over
        return is_over and not self._state.failures and not self._state.has_records

    @property
    def missed(self) -> Mapping[int, int]:
        """Per partition the number of records that retention removed before they were read (see `on_gap`)."""
        return {number: assigned.missed for number, assigned in tuple(self._assigned.items())}

    def delay(self) -> tuple[float, str] | None:
        """Returns for how many seconds a partition has got no answer from a replica, because it has no leader or is
        refused for the time being, and why, in a sentence; the longest time of all partitions. None: all answer.
        Reading goes on by itself when they do."""
        now_ns = time.time_ns()
        return max((waits for one in tuple(self._assigned.values()) if (waits := one.delay(now_ns))), default=None)

    async def start(self) -> None:
        """Look the positions up and begin to fetch. Iterating does this; call it to fix "new" and "latest" before.

        Raises UnknownStream, BadRequest; OffsetOutOfRange for a start above all that is committed with a stop at
        "latest"; NoServer when a partition has no leader to look a position up at.
        """
        async with self._starting:
            self._reading.check_open()
            if self._is_reading:
                return
            self._started.add(self)
            try:
                await self._reading.begin(self._start, self._stop, self._partitions)
            except BaseException:
                await self.aclose()
                raise

    async def getone(self, timeout: float | None = None) -> Record[K, V] | None:
        """The next record. None: none came within `timeout` seconds (0: none is here; None: wait for one), or reading
        has ended (`is_at_end`). The first call looks the positions up, which `timeout` does not count.
        """
        records = await self.getmany(1, timeout)
        return records[0] if records else None

    async def getmany(self, max_records: int = 500, timeout: float | None = None) -> list[Record[K, V]]:
        """The next records of one partition, `max_records` at most: those that are here, or else the first that come.
        Empty as `getone` gives None.
        """
        check_whole("max_records", max_records, 1, 1 << 31)
        if timeout is not None:
            check_number("timeout", timeout, 0, MOST_SECONDS)
        await self.start()
        assigned = await self._next(timeout)
        if assigned is None:
            return []
        return self._state.take(assigned, max_records)

    async def seek(self, partition: int, position: str | int | datetime | AtTime) -> None:
        """The next record of `partition` is the one at `position`, spelled as a start; a paused partition stays paused.

        Raises as `start` does; the partition is then read on as before.
        """
        await self.start()
        self._check_read((partition,))
        await self._reading.seek(self._assigned[partition], position)

    def pause(self, *partitions: int) -> None:
        """Hand out no records of these partitions (none given: of all) until they are resumed. What was fetched ahead
        stays, and no more than that is fetched."""
        self._check_read(partitions)
        self._state.pause(self._assigned[number] for number in partitions or self._assigned)

    def resume(self, *partitions: int) -> None:
        """Hand out records of these partitions (none given: of all) again."""
        self._check_read(partitions)
        self._state.pause((self._assigned[number] for number in partitions or self._assigned), is_paused=False)
        self._reading.progress.set()

    async def beginning_offsets(self, partitions: Iterable[int] | None = None) -> dict[int, int]:
        """By partition, the offset of the oldest record; None: of all partitions that this consumer reads. The
        positions stay as they are, and reading need not have begun.

        Raises UnknownStream, BadRequest (no such partition), NoServer, as the two that follow.
        """
        self._reading.check_open()
        return await self._lookup.beginnings(self._stream, self._partitions if partitions is None else partitions)

    async def end_offsets(self, partitions: Iterable[int] | None = None) -> dict[int, int]:
        """By partition, the end of the committed log, exclusive: the offset of the next record; in front of the first
        transaction that is open, or, with `read_uncommitted`, behind it. It never goes back."""
        self._reading.check_open()
        asked = self._partitions if partitions is None else partitions
        return await self._lookup.ends(self._stream, asked, read_uncommitted=self._read_uncommitted)

    async def offsets_for_times(self, times: Moment | Mapping[int, Moment]) -> dict[int, int | None]:
        """By partition, the offset of the first record at or after a time; None where there is none yet. `times`: one
        for all partitions that this consumer reads, or by partition; each is ns since 1970, a datetime with a time
        zone, or AtTime(ns)."""
        self._reading.check_open()
        if not isinstance(times, Mapping):
            moment = AtTime(timestamp_ns(times, "times"))
            asked: Iterable[int] | None = self._partitions
            if asked is None:
                asked = (await self._metadata.refresh(self._stream)).partitions
            times = dict.fromkeys(asked, moment)
        return await self._lookup.at_times(self._stream, times, read_uncommitted=self._read_uncommitted)

    async def batches(self) -> AsyncIterator[Batch]:
        """Batches of columns instead of single records."""
        self._begin_iteration()
        try:
            await self.start()
            while (assigned := await self._next()) is not None:
                yield self._state.take_batch(assigned)
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Stop fetching. Safe to call twice."""
        try:
            await self._reading.aclose()
        finally:
            self._started.discard(self)

    def _begin_iteration(self) -> None:
        if self._iterated:
            raise Closed(
                Code.BAD_REQUEST,
                f"this consumer of {self._stream!r} has been iterated over already; to go on where it stopped, make a "
                "new one with start=consumer.positions",
            )
        self._iterated = True

    async def _next(self, timeout: float | None = None) -> AssignedPartition | None:
        """The partition to hand out from; None: nothing came within `timeout` seconds, or no more will come."""
        self._reading.check_open()
        assigned = self._next_here()
        if assigned is not None:
            return assigned
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                while (assigned := self._next_here()) is None:
                    self._reading.raise_failure()
                    if self._reading.is_over and not self._state.has_records:
                        return None
                    self._reading.progress.clear()
                    await self._reading.progress.wait()
                    self._reading.check_open()
        except TimeoutError:
            if not limit.expired():
                raise  # one of the program's functions has raised it
            return None
        return assigned

    def _next_here(self) -> AssignedPartition | None:
        """The partition to hand out from. None: nothing that was fetched may be handed out."""
        assigned, stream = self._state.next(), self._reading.stream
        if self._state.has_moved and stream.limited:
            self._state.has_moved = False
            self._state.look(stream)
            assigned = self._state.next()
        return assigned

    def _check_read(self, partitions: Iterable[int]) -> None:
        if not self._is_reading:
            raise bad("reading has not begun; call start(), or use the consumer with `async with`")
        for partition in partitions:
            if whole(partition) not in self._assigned:
                read = ", ".join(map(str, self._assigned))
                raise bad(f"partition {shown(partition)} is not read; this consumer reads {read}")

    @property
    def _is_reading(self) -> bool:
        """The positions are known."""
        return bool(self._assigned)
