"""The consumer: one task per partition fetches ahead, the caller takes batches or records.

Each partition may have at most `AHEAD` answers waiting; then its task pauses. Answers of all partitions go into one
queue in order of arrival, so that a partition's records keep their order and no partition waits for another.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import Enum
from types import TracebackType
from typing import Self

from tidelog.client.errors import Closed, NoServer, OffsetOutOfRange, typed
from tidelog.client.fetcher import Ask, Deliver, FetchSettings, Outcome, PartitionFetcher, Raise, Skip
from tidelog.client.metadata import MetadataCache, StreamMetadata
from tidelog.client.positions import Anchor, AtOffset, Position, Start, Stop, start_positions, stop_positions
from tidelog.client.records import Batch, Record
from tidelog.client.sources import FollowerSources
from wire.batch import RecordBatch
from wire.error_details import END
from wire.errors import Code, TidelogError
from wire.subjects import Subjects
from wire.transport import NO_RESPONDERS, Transport
from wire.types import StreamName

_log = logging.getLogger(__name__)

AHEAD = 2
"""Answers of one partition that may wait to be taken."""
ANSWER_OVERHEAD = 1024
"""Bytes of a message that an answer needs besides its batches."""
MIN_ANSWER_BYTES = 16 << 10
LOOK_UP_TIMEOUT = 10.0
"""Seconds that looking up a start or a stop may take."""


class ReadFrom(Enum):
    """Where records come from; positions are always the leader's to tell."""

    LEADER = "leader"
    FOLLOWER = "follower"
    """In-sync followers, the leader while none serves."""


class OnGap(Enum):
    """Reaction of a consumer when its next record was removed (by retention) before it was read."""

    RAISE = "raise"
    """OffsetOutOfRange."""
    SKIP = "skip"
    """It goes on where the log begins now, says so in its log, and counts the missed records."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of one step of reading a partition."""

    batches: tuple[RecordBatch, ...]
    """Empty when the position moved past offsets that hold no record to hand out."""
    end: int
    """The next offset to hand out after these batches."""


class PartitionReader:
    """Carries out a fetcher's requests."""

    def __init__(
        self,
        fetcher: PartitionFetcher,
        transport: Transport,
        subjects: Subjects,
        stream: StreamName,
        partition: int,
        refresh: Callable[[], None],
    ) -> None:
        self.fetcher = fetcher
        self._transport = transport
        self._subjects = subjects
        self._stream = stream
        self._partition = partition
        self._leader_subject = subjects.fetch(stream, partition)
        self._refresh = refresh
        self.missed = 0
        """Records that were removed before they were read."""

    async def resolve(self) -> None:
        """Returns once start and stop are known. Raises typed errors; NoServer after LOOK_UP_TIMEOUT without a
        leader.
        """
        try:
            async with asyncio.timeout(LOOK_UP_TIMEOUT):
                while not self.fetcher.is_resolved:
                    await self._step()
        except TimeoutError:
            raise NoServer(
                Code.UNAVAILABLE,
                f"partition {self.fetcher.name} has had no leader for {LOOK_UP_TIMEOUT:g} s; "
                "see `tidelog cluster status`",
            ) from None

    async def read(self) -> Answer | None:
        """The next records or skipped offsets; None when the stop is reached. Raises typed errors."""
        while not self.fetcher.is_done:
            before = self.fetcher.position
            batches = await self._step()
            end = self.fetcher.position
            if end is not None and end != before:
                return Answer(batches, end)
        return None

    async def _step(self) -> tuple[RecordBatch, ...]:
        followers, now_ns = self.fetcher.followers, time.time_ns()
        if followers is not None and followers.is_out_of_date(now_ns):
            self._refresh()
        outcome = await self._exchange(self.fetcher.next_request(now_ns))
        match outcome:
            case Deliver(batches):
                return batches
            case Raise(error):
                raise error
            case Skip(first, end):
                self.missed += end - first
                _log.warning(
                    "missed %d records of %s, offsets %d to %d: they were removed before they were read",
                    end - first, self.fetcher.name, first, end - 1,
                )  # fmt: skip
                return ()
            case _:
                if outcome.refresh:
                    self._refresh()
                # 0 s too: an answer that is there already must not keep the loop from everyone else.
                await asyncio.sleep(outcome.seconds)
                return ()

    async def _exchange(self, ask: Ask) -> Outcome:
        subject = self._leader_subject
        if ask.source is not None:
            subject = self._subjects.fetch_from(self._stream, self._partition, ask.source)
        try:
            message = await self._transport.request(subject, ask.request.SerializeToString(), timeout=ask.timeout)
        except TimeoutError:
            if not self._transport.is_connected:
                return self.fetcher.on_disconnected()
            return self.fetcher.on_timeout()
        except TidelogError as not_permitted:
            return Raise(typed(not_permitted))
        if message.status == NO_RESPONDERS:
            return self.fetcher.on_no_responders()
        error = TidelogError.from_headers(message.headers)
        if error is not None:
            return self.fetcher.on_error(error)
        return self.fetcher.on_answer(message.data, message.headers)


class Consumer:
    """Reads a stream's committed records. Iterate over it for records, over `batches()` for columns; once.

    It goes on through changes of leader and lost connections. Errors that do not pass are raised from the iteration:
    OffsetOutOfRange, LogTruncated, UnknownStream, WrongIncarnation, CorruptBatch. Leaving the iteration early is fine;
    `async with` or `aclose()` stops the fetching at once then.
    """

    def __init__(
        self,
        transport: Transport,
        subjects: Subjects,
        metadata: MetadataCache,
        stream: StreamName,
        *,
        start: Start,
        stop: Stop,
        partitions: Iterable[int] | None,
        prefetch_bytes: int,
        settings: FetchSettings,
        read_from: ReadFrom,
        on_gap: OnGap | None,
        spread: int,
        on_closed: Callable[[Consumer], object],
    ) -> None:
        """`spread` differs from consumer to consumer: they read from different followers. `on_gap`: None = raise in a
        partition that starts at an offset, which asks for exactly these records; skip anywhere else."""
        self.stream = stream
        self._transport = transport
        self._subjects = subjects
        self._metadata = metadata
        self._start = start
        self._stop = stop
        self._partitions = None if partitions is None else tuple(partitions)
        self._prefetch_bytes = prefetch_bytes
        self._settings = settings
        self._read_from = read_from
        self._on_gap = on_gap
        self._spread = spread
        self._on_closed = on_closed
        self._layout: StreamMetadata | None = None
        self._readers: dict[int, PartitionReader] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._refresh_task: asyncio.Task[None] | None = None
        self._ready: deque[tuple[int, Answer]] = deque()
        """Answers as they came in, with their partition."""
        self._positions: dict[int, int] = {}
        """Per partition, without the batch of which `_handed_out` is."""
        self._handed_out: Record | None = None
        """The newest record that was handed out singly, while its batch is not through."""
        self._room: dict[int, asyncio.Semaphore] = {}
        self._wake = asyncio.Event()
        self._failure: BaseException | None = None
        self._running = 0
        self._closed = False
        self._started = False
        self._iterated = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[Record]:
        return self._records()

    @property
    def positions(self) -> Mapping[int, int]:
        """Per partition read, the offset after the last record (or batch) that the iteration has handed out; where
        reading begins, before the first. Known once reading has begun, also after the end of the iteration.

        Records fetched ahead do not count, so `client.consume(stream, start=positions)` goes on without a gap: save
        them, for instance as JSON, once the record that was handed out last has been processed.
        """
        positions = dict(self._positions)
        if self._handed_out is not None:
            positions[self._handed_out.partition] = self._handed_out.offset + 1
        return positions

    @property
    def missed(self) -> Mapping[int, int]:
        """Per partition the number of records that retention removed before they were read (see `on_gap`)."""
        return {partition: reader.missed for partition, reader in self._readers.items()}

    async def start(self) -> None:
        """Look the positions up and begin to fetch. Iterating does this; call it to fix "new" and "latest" before.

        Raises UnknownStream, BadRequest; OffsetOutOfRange for a start above all that is committed with a stop at
        "latest"; NoServer when a partition has no leader to look a position up at.
        """
        self._check_open()
        if self._started:
            return
        self._started = True
        try:
            await self._begin()
        except BaseException:
            await self.aclose()
            raise

    async def _begin(self) -> None:
        layout = self._layout = await self._metadata.refresh(self.stream)
        starts = start_positions(self._start, self._partitions, layout.partitions)
        stops = stop_positions(self._stop, starts)
        room = self._transport.max_payload - ANSWER_OVERHEAD
        share = max(self._prefetch_bytes // (AHEAD * len(starts)), MIN_ANSWER_BYTES)
        settings = replace(self._settings, max_bytes=min(self._settings.max_bytes, share, room))
        for partition, position in starts.items():
            known = layout.partitions[partition]
            followers = None
            if self._read_from is ReadFrom.FOLLOWER:
                followers = FollowerSources(known.in_sync_followers, self._spread + partition)
            fetcher = PartitionFetcher(
                f"{self.stream}/{partition}",
                position,
                stops.get(partition),
                settings,
                cluster_id=layout.cluster_id,
                stream_incarnation=layout.incarnation,
                partition_incarnation=known.incarnation,
                leader_epoch=known.leader_epoch,
                followers=followers,
                skips_gaps=self._skips_gaps(position),
            )
            self._readers[partition] = PartitionReader(
                fetcher, self._transport, self._subjects, self.stream, partition, self._refresh
            )
            self._room[partition] = asyncio.Semaphore(AHEAD)
        self._tasks = [asyncio.create_task(reader.resolve()) for reader in self._readers.values()]
        try:
            await asyncio.gather(*self._tasks)
        except asyncio.CancelledError:
            if self._failure is not None:
                raise self._failure from None
            raise
        self._check_within(starts, stops)
        for partition, reader in self._readers.items():
            assert reader.fetcher.position is not None
            self._positions[partition] = reader.fetcher.position
        self._running = len(self._readers)
        self._tasks = [asyncio.create_task(self._fetch(p, r)) for p, r in self._readers.items()]

    def _skips_gaps(self, start: Position) -> bool:
        if self._on_gap is None:
            return not isinstance(start, AtOffset)
        return self._on_gap is OnGap.SKIP

    def _check_within(self, starts: Mapping[int, Position], stops: Mapping[int, Position]) -> None:
        """An offset above everything committed is a slip where reading ends there. (Without a stop it waits.)

        One offset for all partitions may be too much for some; an offset given for each partition may not.
        """
        is_for_each = isinstance(self._start, Mapping)
        refusal: OffsetOutOfRange | None = None
        for partition, reader in self._readers.items():
            start, end = starts[partition], reader.fetcher.stop
            if stops.get(partition) is not Anchor.LATEST or end is None or not isinstance(start, AtOffset):
                return
            if start.offset <= end:
                if is_for_each:
                    continue
                return
            refusal = refusal or OffsetOutOfRange(
                Code.OFFSET_AHEAD,
                f"offset {start.offset} of {reader.fetcher.name} is above the end of the committed log, {end}: "
                f"start at {end} or below, or leave the stop out to wait for it",
                [END.of(end)],
            )
        if refusal is not None:
            raise refusal

    def batches(self) -> AsyncIterator[Batch]:
        """Batches of columns instead of single records."""
        return self._whole_batches()

    async def aclose(self) -> None:
        """Stop fetching. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        tasks = [*self._tasks, *([self._refresh_task] if self._refresh_task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._ready.clear()
        self._wake.set()
        self._on_closed(self)

    async def _records(self) -> AsyncIterator[Record]:
        async with aclosing(self._taken()) as batches:
            async for batch in batches:
                for record in batch.records():
                    self._handed_out = record
                    yield record

    async def _whole_batches(self) -> AsyncIterator[Batch]:
        async with aclosing(self._taken()) as batches:
            async for batch in batches:
                self._positions[batch.partition] = int(batch.offsets[-1]) + 1
                yield batch

    async def _taken(self) -> AsyncGenerator[Batch, None]:
        """The answers in order of arrival. A caller that asks for the next batch has handed out the one before."""
        if self._iterated:
            raise Closed(
                Code.BAD_REQUEST,
                f"this consumer of {self.stream!r} has been iterated over already; to go on where it stopped, make a "
                "new one with start=consumer.positions",
            )
        self._iterated = True
        try:
            await self.start()
            while True:
                while self._ready:
                    partition, answer = self._ready.popleft()
                    self._room[partition].release()
                    for columns in answer.batches:
                        yield Batch(self.stream, partition, columns)
                    self._positions[partition] = answer.end
                    self._handed_out = None
                if self._failure is not None:
                    raise self._failure
                if self._running == 0:
                    return
                self._wake.clear()
                await self._wake.wait()
                self._check_open()
        finally:
            await self.aclose()

    async def _fetch(self, partition: int, reader: PartitionReader) -> None:
        try:
            while True:
                await self._room[partition].acquire()
                answer = await reader.read()
                if answer is None:
                    break
                self._ready.append((partition, answer))
                self._wake.set()
        except TidelogError as error:
            self._fail(error)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._fail(error)  # otherwise the iteration would end as if the stop were reached, with records missing
            raise
        finally:
            self._running -= 1
            self._wake.set()

    def _refresh(self) -> None:
        if self._refresh_task is None or self._refresh_task.done():
            self._refresh_task = asyncio.create_task(self._check_layout())

    async def _check_layout(self) -> None:
        """Whether the stream that is being read still exists, and which replicas are in sync."""
        error = await self._metadata.why_over(self.stream, self._layout)
        if error is not None:
            self._fail(error)
            return
        layout = self._metadata.last_seen(self.stream)
        if layout is None:
            return
        for partition, reader in self._readers.items():
            known = layout.partitions.get(partition)
            if known is None:
                continue
            reader.fetcher.on_metadata(known.leader_epoch)
            if reader.fetcher.followers is not None:
                reader.fetcher.followers.know(known.in_sync_followers)

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._wake.set()
        if self._running == 0:  # positions are still being looked up
            for task in self._tasks:
                task.cancel()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(Code.BAD_REQUEST, f"this consumer of {self.stream!r} is closed; make a new one")
