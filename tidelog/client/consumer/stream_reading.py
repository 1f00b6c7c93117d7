"""What a consumer reads: one task per partition looks its position up, and then fetches ahead of the caller.

A plain consumer begins with all of its partitions (`begin`), and picks up those that a repartition makes. For a member
of a group, partitions come (`add`) and go (`cease`, `remove`) while the others are read on.

A batch of a later partitioning version than is known leads to a look at the metadata (`LayoutWatch`). Where the order
of keys is wanted, it is handed out only when they say what has to be read before (`KeyLimits`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import cast

from tidelog.client.base.arguments import bad
from tidelog.client.base.exceptions import Closed, OffsetOutOfRange
from tidelog.client.base.read_positions import (
    Anchor,
    AtOffset,
    AtTime,
    Position,
    Start,
    Stop,
    start_positions,
    stop_positions,
)
from tidelog.client.cluster.lifetime import HomeLoop
from tidelog.client.cluster.metadata_cache import MetadataCache, PartitionMetadata, StreamMetadata
from tidelog.client.cluster.route_updates import RouteWatch
from tidelog.client.consumer.fetched_ahead import FetchedAhead, Head, Read
from tidelog.client.consumer.fetcher import FetchSettings, PartitionFetcher
from tidelog.client.consumer.key_limits import KeyLimits, Order
from tidelog.client.consumer.layout_watch import LayoutWatch
from tidelog.client.consumer.partition_reader import PartitionReader
from tidelog.client.consumer.reading_options import FollowerSources, OnGap, OnOutOfRange, ReadFrom
from wire.error_details import END, LOG_START
from wire.errors import Code, TidelogError
from wire.messaging.transport import Transport
from wire.subjects import Subjects
from wire.types import StreamName

_log = logging.getLogger(__name__)

AHEAD = 2
"""Answers of one partition that may wait to be taken."""
ANSWER_OVERHEAD = 1024
"""Bytes of a message that an answer needs besides its batches."""
MIN_ANSWER_BYTES = 16 << 10
_LAST_LOOK = 2.0
"""Seconds for a look at the metadata before reading ends."""
_GONE = (Code.WRONG_INCARNATION, Code.PARTITION_RETIRED)
_ALL = 1 << 63
"""Above each offset."""


def tell_sources(sources: FollowerSources, rack: str | None, layout: StreamMetadata, known: PartitionMetadata) -> None:
    """Which followers of a partition a reader may choose from."""
    followers = known.in_sync_followers
    if rack is None:
        sources.know(followers)
        return
    near = {broker for broker, its_rack in layout.racks.items() if its_rack == rack}
    if known.leader in near:
        sources.know((), leader_is_nearest=True)
    else:
        sources.know([follower for follower in followers if follower in near])


class StreamReading:
    """Answers go into `ahead`, and `progress` is set when there is something new to see."""

    def __init__(
        self,
        transport: Transport,
        subjects: Subjects,
        metadata: MetadataCache,
        stream: StreamName,
        *,
        prefetch_bytes: int,
        settings: FetchSettings,
        read_from: ReadFrom,
        rack: str | None,
        on_gap: OnGap | None,
        on_out_of_range: OnOutOfRange | None,
        spread: int,
        order: Order = Order.PARTITION,
        read: Read = iter,
        progress: asyncio.Event | None = None,
    ) -> None:
        """As those of `Consumer`; `read` makes the records that it hands out. `progress`: shared with other
        readings."""
        self._transport = transport
        self._subjects = subjects
        self._metadata = metadata
        self._stream = stream
        self._prefetch_bytes = prefetch_bytes
        self._settings = settings
        self._most_bytes = settings.max_bytes
        self._read_from = read_from
        self._rack = rack
        if rack is not None:
            metadata.need_racks(stream)
        self._on_gap = on_gap
        self._on_out_of_range = on_out_of_range
        self._spread = spread
        self.ahead = FetchedAhead(stream, lambda partition: self._room[partition].release(), read)
        self.progress = asyncio.Event() if progress is None else progress
        self.readers: dict[int, PartitionReader] = {}
        self.failures: dict[int | None, BaseException] = {}
        """Why a partition cannot be read on; None: the whole stream."""
        self.limits = KeyLimits(self.ahead)
        self.committed: Callable[[int], int] | None = None
        """Up to where a partition counts as read for those that wait for it. None: up to what is finished here."""
        self.on_layout: Callable[[], object] = _nothing
        """Called when the layouts may have changed."""
        self.on_made_anew: Callable[[int], object] | None = None
        """Called when a partition that is read was removed, and made anew since. None: it is picked up again, if new
        partitions are."""
        self._order = order
        self.layout = LayoutWatch(stream, order)
        """What is known of the stream's layouts."""
        self._follows = False
        """New partitions are picked up."""
        self._later_stop: Position | None = None
        """The stop of new partitions."""
        self._coming: dict[int, asyncio.Task[None]] = {}
        """Which begin new partitions."""
        self.gone: set[int] = set()
        """Partitions that were read, and that the metadata do not have any more."""
        self._watching: asyncio.Task[None] | None = None
        self._route_watch: RouteWatch | None = None
        self._stops: Mapping[int, Position] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """Which fetch, by partition."""
        self._ended: set[asyncio.Task[None]] = set()
        """Which have been told to end."""
        self._looking_up: set[asyncio.Task[None]] = set()
        """Which look positions up."""
        self._refresh_task: asyncio.Task[None] | None = None
        self._room: dict[int, asyncio.Semaphore] = {}
        self._fetching = 0
        """Partitions that have not reached their stop."""
        self._seeking = asyncio.Lock()
        self._is_closed = False
        self._home = HomeLoop(f"this consumer of {stream!r}")

    @property
    def is_over(self) -> bool:
        """Every partition was fetched to its stop, or cannot be read on."""
        return not self._fetching

    def check_open(self) -> None:
        """Raises Closed; BadRequest in another event loop."""
        if self._is_closed:
            raise Closed(Code.BAD_REQUEST, f"this consumer of {self._stream!r} is closed; make a new one")
        self._home.check()

    def raise_failure(self) -> None:
        for failure in self.failures.values():
            raise failure from None

    async def begin(self, start: Start, stop: Stop, partitions: Iterable[int] | None) -> None:
        """Returns once the positions are known and fetching has begun. Raises as `Consumer.start`."""
        if partitions is None or self._order is Order.KEY:
            await self._watch()
        layout = await self._metadata.refresh(self._stream)
        self._learn(layout)
        starts = await self._within(layout, _starts(start, partitions, layout))
        self._stops = stops = stop_positions(stop, starts)
        self._later_stop = next(iter(stops.values()), None)
        self.share_prefetch(len(starts))
        for partition, position in starts.items():
            self.readers[partition] = self._reader(layout, partition, position, stops.get(partition))
        await self._look_up(self.readers.values())
        self._check_within(starts, stops, is_for_each=isinstance(start, Mapping))
        for partition, reader in self.readers.items():
            self._fetch_from(partition, reader)
        if partitions is None and not isinstance(stop, Mapping) and self._later_stop is not Anchor.LATEST:
            self._follows = True
            self._pick_up()

    async def add(self, partition: int, start: Position, stream: StreamMetadata) -> None:
        """Read this partition too; the stream is that life of it which is read already. Returns once its start is
        known. Raises as `seek`."""
        if self._order is Order.KEY:
            await self._watch()
        self._learn(stream)
        (position,) = (await self._within(stream, {partition: start})).values()
        reader = self._reader(stream, partition, position, None)
        await self._look_up([reader])
        self.check_open()
        self._fetch_from(partition, reader)

    def cease(self, partition: int) -> None:
        """Fetch no more of the partition, and hand out nothing more of it. Its position is known until `remove`."""
        self._end(partition)
        self.ahead.withhold(partition)

    def _end(self, partition: int) -> bool:
        """Fetch no more of it. Whether it was fetched until now."""
        task = self._tasks.pop(partition, None)
        if task is None:
            return False
        task.cancel()
        self._ended.add(task)
        task.add_done_callback(self._ended.discard)
        return True

    def remove(self, partition: int) -> None:
        self.cease(partition)
        self.ahead.forget(partition)
        self.readers.pop(partition, None)
        self._room.pop(partition, None)
        self.failures.pop(partition, None)
        self.limits.forget(partition)
        self.gone.discard(partition)

    def head(self) -> Head | None:
        """What to hand out next, within the limits. What was handed out before is finished."""
        head = self.ahead.head()
        if self.ahead.has_moved and self.limits:
            self.ahead.has_moved = False
            self.look()
            head = self.ahead.head()
        return head

    def look(self, partition: int | None = None) -> None:
        """How far partitions (None: all that are read) may be handed out now that others were read on, or committed."""
        order = self.layout.key_order
        if self._order is Order.KEY and order is not None and (self.limits or self.layout.has_changed):
            looked_at = self.readers if partition is None else (partition,)
            # One that is read no further, or not at all, keeps no other waiting.
            unread = 0 if self._follows else _ALL
            self.limits.look(order, looked_at, self.committed or _finished(self.ahead.finished, self.readers, unread))

    def share_prefetch(self, partitions: int) -> None:
        """`prefetch_bytes` are for so many partitions together."""
        room = self._transport.max_payload - ANSWER_OVERHEAD
        share = max(self._prefetch_bytes // (AHEAD * partitions), MIN_ANSWER_BYTES)
        self._settings = replace(self._settings, max_bytes=min(self._most_bytes, share, room))
        for reader in self.readers.values():
            reader.fetcher.settings = self._settings

    async def _look_up(self, readers: Iterable[PartitionReader]) -> None:
        """Returns once the starts and stops of `readers` are known."""
        tasks = {asyncio.create_task(reader.resolve()) for reader in readers}
        self._looking_up |= tasks
        try:
            await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            if not cast("asyncio.Task[object]", asyncio.current_task()).cancelling():
                self.check_open()
                self.raise_failure()
            raise
        finally:
            self._looking_up -= tasks
            for task in tasks:
                task.cancel()

    async def _within(self, layout: StreamMetadata, starts: dict[int, Position]) -> dict[int, Position]:
        """`starts` with another position for each offset outside of its partition's committed log, if
        `on_out_of_range` says so. Raises OffsetOutOfRange if it says to fail."""
        given = {partition: start for partition, start in starts.items() if isinstance(start, AtOffset)}
        if self._on_out_of_range is None or not given:
            return starts
        logs = {partition: self._reader(layout, partition, Anchor.EARLIEST, Anchor.LATEST) for partition in given}
        await self._look_up(logs.values())
        instead: dict[int, Position] = {}
        for partition, start in given.items():
            log = logs[partition].fetcher
            first, end = log.position, log.stop
            assert first is not None
            assert end is not None
            if first <= start.offset <= end:
                continue
            is_below = start.offset < first
            there = f"offset {start.offset} is {'below' if is_below else 'above'} the committed log of {log.name},"
            there += f" {first} to {end}"
            if self._on_out_of_range is OnOutOfRange.FAIL:
                raise OffsetOutOfRange(
                    Code.OFFSET_BEFORE_LOG if is_below else Code.OFFSET_AHEAD,
                    f"{there}: start in it, or say where else (on_out_of_range)",
                    [LOG_START.of(first), END.of(end)],
                )
            _log.warning("%s: reading starts at its %s", there, self._on_out_of_range.value)
            is_latest = self._on_out_of_range is OnOutOfRange.LATEST
            instead[partition] = Anchor.NEW if is_latest else Anchor.EARLIEST
        return {**starts, **instead}

    def _reader(
        self,
        layout: StreamMetadata,
        partition: int,
        start: Position,
        stop: Position | None,
        *,
        asked: Position | None = None,
    ) -> PartitionReader:
        """`asked`: for `on_gap`, what the program asked to start at; None: `start`."""
        known = layout.partitions[partition]
        followers = None
        if self._read_from is not ReadFrom.LEADER:
            followers = FollowerSources((), self._spread + partition)
            tell_sources(followers, self._rack, layout, known)
        fetcher = PartitionFetcher(
            f"{self._stream}/{partition}",
            start,
            stop,
            self._settings,
            cluster_id=layout.cluster_id,
            stream_incarnation=layout.incarnation,
            partition_incarnation=known.incarnation,
            leader_epoch=known.leader_epoch,
            followers=followers,
            skips_gaps=_skips_gaps(self._on_gap, asked or start),
        )
        return PartitionReader(fetcher, self._transport, self._subjects, self._stream, partition, self._refresh)

    def _fetch_from(self, partition: int, reader: PartitionReader) -> None:
        """`reader` is resolved."""
        assert reader.fetcher.position is not None
        self.readers[partition] = reader
        self.ahead.begin(partition, reader.fetcher.position)
        self._room[partition] = asyncio.Semaphore(AHEAD)
        self.ahead.divide(partition, self.layout.cutovers(partition))
        self.look(partition)
        self._fetching += 1
        self._tasks[partition] = asyncio.create_task(self._fetch(partition, reader))

    def _check_within(
        self, starts: Mapping[int, Position], stops: Mapping[int, Position], *, is_for_each: bool
    ) -> None:
        """An offset above everything committed is a slip where reading ends there. (Without a stop it waits.)

        One offset for all partitions may be too much for some; an offset given for each partition may not. Where
        `on_out_of_range` chooses, this was looked at before.
        """
        if self._on_out_of_range is not None:
            return
        refusal: OffsetOutOfRange | None = None
        for partition, reader in self.readers.items():
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

    async def seek(self, partition: int, position: Start) -> None:
        """See `Consumer.seek`."""
        given = start_positions(position, (partition,), self.readers)
        async with self._seeking:
            layout = await self._metadata.get(self._stream)
            (start,) = (await self._within(layout, given)).values()
            old = self.readers.get(partition)
            if old is None:
                raise _taken_away(self._stream, partition)
            stop = self._stops.get(partition) if old.fetcher.stop is None else AtOffset(old.fetcher.stop)
            reader = self._reader(layout, partition, start, stop)
            await self._look_up([reader])
            reader.missed = old.missed
            self.check_open()
            if self.readers.get(partition) is not old or partition not in self._tasks:
                raise _taken_away(self._stream, partition)
            self.cease(partition)
            self.failures.pop(partition, None)
            self._fetch_from(partition, reader)

    async def aclose(self) -> None:
        self._is_closed = True
        if self._route_watch is not None:
            self._metadata.end_watch(self._route_watch)
        tasks = [
            *self._looking_up,
            *self._coming.values(),
            *self._tasks.values(),
            *self._ended,
            *(task for task in (self._refresh_task, self._watching) if task is not None),
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.ahead.clear()
        self.progress.set()

    async def _fetch(self, partition: int, reader: PartitionReader) -> None:
        try:
            while True:
                await self._room[partition].acquire()
                answer = await reader.read()
                if answer is None:
                    if self._follows and isinstance(self._later_stop, AtTime):
                        await self._look_once(_LAST_LOOK)  # a new partition may have records from before that time
                    break
                if not self.layout.knows(partition, reader.fetcher.newest_version):
                    await self.layout.hear_of(partition, reader.fetcher.newest_version, self._look_once)
                self.ahead.add(partition, answer)
                self.progress.set()
        except TidelogError as error:
            if error.code in _GONE:
                await self._look_once(
                    _LAST_LOOK
                )  # which ends this task, if the partition is gone and the stream is not
            self._fail(error, partition)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._fail(
                error, partition
            )  # otherwise the iteration would end as if the stop were reached, with records missing
            raise
        finally:
            self._fetching -= 1
            self.progress.set()

    async def _look_once(self, timeout: float | None = None) -> None:
        self._refresh()
        assert self._refresh_task is not None
        await asyncio.wait((self._refresh_task,), timeout=timeout)

    def _refresh(self) -> None:
        if self._refresh_task is None or self._refresh_task.done():
            self._refresh_task = asyncio.create_task(self._check_layout())

    async def _check_layout(self) -> None:
        """Whether the stream that is being read still exists, which replicas are in sync, and its layouts."""
        error = await self._metadata.why_over(self._stream, self.layout.known)
        if error is not None:
            self._fail(error)
            return
        layout = self._metadata.last_seen(self._stream)
        if layout is None:
            return
        for partition, reader in self.readers.items():
            known = layout.partitions.get(partition)
            if known is None:
                continue
            reader.fetcher.on_metadata(known.leader_epoch)
            if reader.fetcher.followers is not None:
                tell_sources(reader.fetcher.followers, self._rack, layout, known)
        self._learn(layout)

    async def _watch(self) -> None:
        """Hear of the layouts from now on."""
        if self._watching is None:
            self._watching = asyncio.create_task(self.layout.watch(self._refresh, self.limits))
            self._route_watch = await self._metadata.watch(self._stream, self._on_routes)
            if self._is_closed:
                self._metadata.end_watch(self._route_watch)

    def _on_routes(self, layout: StreamMetadata) -> None:
        """They were pushed, or fetched by somebody."""
        if self._is_closed:
            return
        if self.layout.known is not None and layout.incarnation != self.layout.known.incarnation:
            self._refresh()
        else:
            self._learn(layout)

    def _learn(self, layout: StreamMetadata) -> None:
        has_changed = self.layout.learn(layout)
        now = self.layout.known
        assert now is not None
        if self._route_watch is not None:
            self._route_watch.applied = now.routing_generation
        if self.on_made_anew is not None:
            for partition, reader in tuple(self.readers.items()):
                known = now.partitions.get(partition)
                if known is not None and known.incarnation != reader.fetcher.partition_incarnation:
                    self.on_made_anew(partition)
        if not has_changed:
            return
        for partition, reader in tuple(self.readers.items()):
            self.ahead.divide(partition, self.layout.cutovers(partition))
            known = now.partitions.get(partition)
            if known is None:
                # The last record of a partition that keys are not spread over any more was removed.
                if self._end(partition):
                    self.gone.add(partition)
                    if self._watching is None:  # look now and then: it may be made anew, or not be gone
                        self._watching = asyncio.create_task(self.layout.watch(self._refresh, self.limits))
            elif known.incarnation != reader.fetcher.partition_incarnation:
                if self._follows:
                    self.remove(partition)  # it was made anew, and is picked up
            elif partition in self.gone:
                self.gone.discard(partition)
                self._go_on(partition, reader, now)
        if self._follows:
            self._pick_up()
        self.look()
        self.on_layout()
        self.progress.set()

    def _go_on(self, partition: int, old: PartitionReader, layout: StreamMetadata) -> None:
        """Some broker, or an invented message, had told that the partition is gone, and it is not."""
        stop = self._stops.get(partition) if old.fetcher.stop is None else AtOffset(old.fetcher.stop)
        reader = self._reader(layout, partition, AtOffset(self.ahead.fetched_to(partition)), stop)
        reader.fetcher.skips_gaps, reader.missed = old.fetcher.skips_gaps, old.missed
        self.readers[partition] = reader
        self._fetching += 1
        self._tasks[partition] = asyncio.create_task(self._fetch(partition, reader))

    def _pick_up(self) -> None:
        """Begin to read partitions that a repartition has made."""
        for partition in () if self.layout.known is None else self.layout.known.partitions:
            if partition not in self.readers and partition not in self._coming:
                self._fetching += 1
                self._coming[partition] = asyncio.create_task(self._begin_later(partition))

    async def _begin_later(self, partition: int) -> None:
        try:
            while (layout := self.layout.known) is not None and partition in layout.partitions:
                # At its first record, so that the program is told if that is gone.
                first = AtOffset(0)
                reader = self._reader(layout, partition, first, self._later_stop, asked=Anchor.EARLIEST)
                try:
                    await self._look_up([reader])
                except TidelogError as error:
                    if not error.retriable:
                        self._fail(error, partition)
                        return
                    _log.warning("%s/%d cannot be begun at present: %s", self._stream, partition, error.message)
                    continue
                self._fetch_from(partition, reader)
                self.share_prefetch(len(self.readers))
                return
        finally:
            self._coming.pop(partition, None)
            self._fetching -= 1
            self.progress.set()

    def _fail(self, error: BaseException, partition: int | None = None) -> None:
        self.failures.setdefault(partition, error)
        self.progress.set()
        if partition is None:
            for task in self._looking_up:
                task.cancel()


def _skips_gaps(wanted: OnGap | None, start: Position) -> bool:
    return wanted is OnGap.SKIP if wanted is not None else not isinstance(start, AtOffset)


def _taken_away(stream: str, partition: int) -> TidelogError:
    return bad(f"partition {stream}/{partition} is not read any more; it was taken away while seek waited")


def _starts(start: Start, partitions: Iterable[int] | None, layout: StreamMetadata) -> dict[int, Position]:
    order = layout.key_order
    later = {number for number in layout.partitions if order.has_begun_later(number)}
    gone = range(max(each.partitions for each in layout.layouts))
    return start_positions(start, partitions, layout.partitions, begun_later=later, gone=gone)


def _finished(
    positions: Mapping[int, int], readers: Mapping[int, PartitionReader], unread: int
) -> Callable[[int], int]:
    """Up to where each partition was read; `unread`: the same, of a partition that has no reader."""

    def read_to(partition: int) -> int:
        reader = readers.get(partition)
        if reader is None:
            return unread
        position, stop = positions.get(partition, 0), reader.fetcher.stop
        return _ALL if stop is not None and position >= stop else position

    return read_to


def _nothing() -> None:
    """Nobody listens."""
