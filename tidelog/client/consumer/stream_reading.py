"""Fetches the partitions of one stream for a consumer: one task per partition fetches ahead of the program.

A `SubscriptionState` has all that is known of the partitions; this driver looks positions up, fetches, and reports
there. A plain consumer begins with all of its partitions (`begin`), and picks up those that a repartition makes. For a
member of a group, partitions come (`add`) and go (`end`) while the others are read on.

Metadata are pushed. They are asked for when a batch has a later partitioning version than is known, and now and then,
since no batch shows that a partition drains, and pushes may be lost. Where the order of keys is wanted, such a batch is
handed out only when the metadata show which partitions have to be read before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import random
from typing import Any, assert_never, cast

from tidelog.client.base.arguments import bad
from tidelog.client.base.exceptions import Closed, OffsetOutOfRange
from tidelog.client.base.read_positions import (
    Anchor,
    AtOffset,
    AtTime,
    Position,
    Start,
    start_positions,
    stop_positions,
)
from tidelog.client.base.read_positions import (
    Stop as StopPosition,
)
from tidelog.client.cluster.lifetime import HomeLoop
from tidelog.client.cluster.metadata_cache import MetadataCache, PartitionMetadata, StreamMetadata
from tidelog.client.cluster.route_updates import RouteWatch
from tidelog.client.consumer.consumer_config import ConsumerConfig
from tidelog.client.consumer.fetcher import PartitionFetcher
from tidelog.client.consumer.follower_sources import FollowerSources
from tidelog.client.consumer.partition_reader import PartitionReader
from tidelog.client.consumer.subscription_state import (
    AHEAD,
    AssignedPartition,
    AssignedStream,
    Begin,
    LayoutChanged,
    MadeAnew,
    Resume,
    Stop,
    SubscriptionState,
)
from wire.error_details import END, LOG_START
from wire.errors import Code, TidelogError
from wire.messaging.transport import Transport
from wire.retry import Retry
from wire.subjects import Subjects
from wire.types import StreamName

_log = logging.getLogger(__name__)

ANSWER_OVERHEAD = 1024
"""Bytes of a message that an answer needs besides its batches."""
MIN_ANSWER_BYTES = 16 << 10
_FIRST_CUTOVER_LOOK, _MAX_CUTOVER_LOOK = 0.25, 4.0
"""Seconds until the metadata are asked for again while a cutover is not known: its push may be lost, or forbidden."""
VERSION_TIMEOUT = 5.0
"""Seconds for which metadata may not know the version of a batch. The broker that answers may be that far behind."""
_LOOK_AGAIN = 0.1
_LAST_LOOK = 2.0
"""Seconds for a look at the metadata before reading ends."""
_MAY_BE_REMOVED = (Code.WRONG_INCARNATION, Code.PARTITION_RETIRED)
"""Refusals of a partition that a repartition may have removed. UNKNOWN_STREAM says so of the whole stream."""


def set_sources(sources: FollowerSources, rack: str | None, layout: StreamMetadata, known: PartitionMetadata) -> None:
    """Chooses the followers of a partition that a reader in this rack (None: anywhere) may read from."""
    followers = known.in_sync_followers
    if rack is None:
        sources.know(followers)
        return
    near = {broker for broker, its_rack in layout.racks.items() if its_rack == rack}
    if known.leader in near:
        sources.know((), leader_is_nearest=True)
    else:
        sources.know([follower for follower in followers if follower in near])


@dataclass(frozen=True, slots=True)
class _Fetch:
    """The task that fetches a partition."""

    task: asyncio.Task[None]
    room: asyncio.Event
    """Set when another answer may be fetched ahead."""


class StreamReading:
    """Fetches into `state`, and sets `progress` when answers, failures or layouts have come."""

    def __init__(
        self,
        transport: Transport,
        subjects: Subjects,
        metadata: MetadataCache,
        stream: StreamName,
        state: SubscriptionState,
        config: ConsumerConfig[Any, Any],
        *,
        spread: int,
        progress: asyncio.Event | None = None,
    ) -> None:
        """As those of `Consumer`. `state` and `progress` may be shared with readings of other streams."""
        self._transport = transport
        self._subjects = subjects
        self._metadata = metadata
        self._stream = stream
        self._state = state
        self._config = config
        self._max_bytes = config.max_bytes
        """The options with what each partition has of the bytes."""
        if config.rack is not None:
            metadata.need_racks(stream)
        self._spread = spread
        self.progress = asyncio.Event() if progress is None else progress
        self.stream = AssignedStream(stream, config.order)
        self.stream.on_room = self._on_room
        state.open(self.stream)
        self.on_layout: Callable[[], object] = _nothing
        """Called when the layouts may have changed."""
        self.on_made_anew: Callable[[AssignedPartition], object] = _nothing
        """Called when a partition that is read was removed, and made anew since."""
        self._later_stop: Position | None = None
        """The stop of partitions that a repartition makes."""
        self._stops: Mapping[int, Position] = {}
        self._fetches: dict[AssignedPartition, _Fetch] = {}
        self._ended: set[asyncio.Task[None]] = set()
        """Tasks that fetched, were cancelled, and may not be over yet."""
        self._looking_up: dict[asyncio.Task[None], PartitionReader] = {}
        """Tasks that look positions up."""
        self._coming: set[asyncio.Task[None]] = set()
        """Tasks that begin partitions that a repartition has made."""
        self._route_watch: RouteWatch | None = None
        self._refresh_task: asyncio.Task[None] | None = None
        self._cutover_looks = Retry(_FIRST_CUTOVER_LOOK, _MAX_CUTOVER_LOOK, chance=random)
        self._cutover_look: asyncio.TimerHandle | None = None
        self._version_timeout = VERSION_TIMEOUT
        self._seeking = asyncio.Lock()
        self._is_closed = False
        self._home = HomeLoop(f"this consumer of {stream!r}")

    @property
    def is_over(self) -> bool:
        """Whether every partition was fetched to its stop, or cannot be read on."""
        return not self._coming and all(fetch.task.done() for fetch in self._fetches.values())

    def check_open(self) -> None:
        """Raises Closed; BadRequest in another event loop."""
        if self._is_closed:
            raise Closed(Code.BAD_REQUEST, f"this consumer of {self._stream!r} is closed; make a new one")
        self._home.check()

    def raise_failure(self) -> None:
        """Raises why the stream, or one of its partitions, cannot be read on."""
        for failure in self._state.failures.values():
            raise failure from None

    async def begin(self, start: Start, stop: StopPosition, partitions: Iterable[int] | None) -> None:
        """Returns once the positions are known and fetching has begun. Raises as `Consumer.start`."""
        if partitions is None or self.stream.order == "key":
            await self._watch()
        layout = await self._metadata.refresh(self._stream)
        self._learn(layout)
        starts = await self._within(layout, _starts(start, partitions, layout))
        self._stops = stops = stop_positions(stop, starts)
        self._later_stop = next(iter(stops.values()), None)
        self.share_prefetch(len(starts))
        readers = {
            partition: self._reader(layout, partition, position, stops.get(partition))
            for partition, position in starts.items()
        }
        await self._look_up(readers.values())
        self._check_within(readers, starts, stops, is_for_each=isinstance(start, Mapping))
        # All are assigned before the first is begun, which may have to wait for the others.
        assigned = [self._state.assign(self.stream.of(partition), self.stream) for partition in readers]
        for each, reader in zip(assigned, readers.values(), strict=True):
            self._fetch_from(each, reader)
        if partitions is None and not isinstance(stop, Mapping) and self._later_stop is not Anchor.LATEST:
            self.stream.follows = True
            for new in self._state.follow(self.stream):
                self._begin_new(new.assigned)

    async def add(self, assigned: AssignedPartition, start: Position, stream: StreamMetadata) -> None:
        """Reads this partition too, of the incarnation of the stream that is read already. Returns once its start is
        known. Raises as `seek`."""
        if self.stream.order == "key":
            await self._watch()
        self._learn(stream)
        (position,) = (await self._within(stream, {assigned.number: start})).values()
        reader = self._reader(stream, assigned.number, position, None)
        await self._look_up([reader])
        self.check_open()
        self._fetch_from(assigned, reader)

    def end(self, assigned: AssignedPartition) -> None:
        """Fetches no more of the partition."""
        fetch = self._fetches.pop(assigned, None)
        if fetch is not None:
            fetch.task.cancel()
            self._ended.add(fetch.task)
            fetch.task.add_done_callback(self._ended.discard)

    def share_prefetch(self, partitions: int) -> None:
        """`prefetch_bytes` are for so many partitions together."""
        room = self._transport.max_payload - ANSWER_OVERHEAD
        share = max(self._config.prefetch_bytes // (AHEAD * partitions), MIN_ANSWER_BYTES)
        self._max_bytes = max(min(self._config.max_bytes, share, room), 1)
        for assigned in self.stream.partitions.values():
            if assigned.fetcher is not None:
                assigned.fetcher.max_bytes = self._max_bytes

    async def _look_up(self, readers: Iterable[PartitionReader]) -> None:
        """Returns once the starts and stops of `readers` are known."""
        tasks = {asyncio.create_task(reader.resolve()): reader for reader in readers}
        self._looking_up |= tasks
        try:
            await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            if not cast("asyncio.Task[object]", asyncio.current_task()).cancelling():
                self.check_open()
                self.raise_failure()
            raise
        finally:
            for task in tasks:
                del self._looking_up[task]
                task.cancel()

    async def _within(self, layout: StreamMetadata, starts: dict[int, Position]) -> dict[int, Position]:
        """`starts` with another position for each offset outside of its partition's committed log, if
        `on_out_of_range` says so. Raises OffsetOutOfRange if it says to fail."""
        given = {partition: start for partition, start in starts.items() if isinstance(start, AtOffset)}
        if self._config.on_out_of_range is None or not given:
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
            if self._config.on_out_of_range == "fail":
                raise OffsetOutOfRange(
                    Code.OFFSET_BEFORE_LOG if is_below else Code.OFFSET_AHEAD,
                    f"{there}: start in it, or say where else (on_out_of_range)",
                    [LOG_START.of(first), END.of(end)],
                )
            _log.warning("%s: reading starts at its %s", there, self._config.on_out_of_range)
            instead[partition] = Anchor.NEW if self._config.on_out_of_range == "latest" else Anchor.EARLIEST
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
        """Returns a reader that has not looked its start up. `asked`: the start by which `on_gap` has its default, as
        the program gave it; None: `start`."""
        known = layout.partitions[partition]
        followers = None
        if self._config.read_from != "leader":
            followers = FollowerSources((), self._spread + partition)
            set_sources(followers, self._config.rack, layout, known)
        fetcher = PartitionFetcher(
            f"{self._stream}/{partition}",
            start,
            stop,
            self._config,
            cluster_id=layout.cluster_id,
            stream_incarnation=layout.incarnation,
            partition_incarnation=known.incarnation,
            leader_epoch=known.leader_epoch,
            followers=followers,
            skips_gaps=_skips_gaps(self._config.on_gap, asked or start),
        )
        return PartitionReader(fetcher, self._transport, self._subjects, self._stream, partition, self._refresh)

    def _fetch_from(self, assigned: AssignedPartition, reader: PartitionReader) -> None:
        """Begins the partition with a reader that has looked its start up."""
        reader.fetcher.max_bytes = self._max_bytes
        self._state.begin(assigned, reader.fetcher)
        self._look_for_cutovers()
        self._go_on(assigned, reader)

    def _go_on(self, assigned: AssignedPartition, reader: PartitionReader) -> None:
        room = asyncio.Event()
        self._fetches[assigned] = _Fetch(asyncio.create_task(self._fetch(assigned, reader, room)), room)

    def _on_room(self, assigned: AssignedPartition) -> None:
        fetch = self._fetches.get(assigned)
        if fetch is not None:
            fetch.room.set()

    def _check_within(
        self,
        readers: Mapping[int, PartitionReader],
        starts: Mapping[int, Position],
        stops: Mapping[int, Position],
        *,
        is_for_each: bool,
    ) -> None:
        """Raises OffsetOutOfRange for a start above everything committed where reading ends there. (Without a stop it
        waits.)

        One offset for all partitions may be too much for some; an offset given for each partition may not. Where
        `on_out_of_range` chooses, this was looked at before.
        """
        if self._config.on_out_of_range is not None:
            return
        refusal: OffsetOutOfRange | None = None
        for partition, reader in readers.items():
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

    async def seek(self, assigned: AssignedPartition, position: Start) -> None:
        """See `Consumer.seek`."""
        partition = assigned.number
        given = start_positions(position, (partition,), self.stream.partitions)
        async with self._seeking:
            layout = await self._metadata.get(self._stream)
            self._check_fetched(assigned)
            (start,) = (await self._within(layout, given)).values()
            reader = self._reader(layout, partition, start, self._stop_of(assigned))
            await self._look_up([reader])
            self.check_open()
            self._check_fetched(assigned)
            self.end(assigned)
            self._fetch_from(assigned, reader)

    def _check_fetched(self, assigned: AssignedPartition) -> None:
        """Raises BadRequest."""
        if assigned not in self._fetches:
            raise bad(f"partition {assigned.of} is not read any more; it was taken away while seek waited")

    def _stop_of(self, assigned: AssignedPartition) -> Position | None:
        """The stop of a partition that is read: the offset, if it was looked up already."""
        assert assigned.fetcher is not None
        stop = assigned.fetcher.stop
        return self._stops.get(assigned.number) if stop is None else AtOffset(stop)

    async def aclose(self) -> None:
        self._is_closed = True
        if self._route_watch is not None:
            self._metadata.updates.end(self._route_watch)
        if self._cutover_look is not None:
            self._cutover_look.cancel()
        tasks = [
            *self._looking_up,
            *self._coming,
            *(fetch.task for fetch in self._fetches.values()),
            *self._ended,
            *(() if self._refresh_task is None else (self._refresh_task,)),
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._state.close(self.stream)
        self.progress.set()

    async def _fetch(self, assigned: AssignedPartition, reader: PartitionReader, room: asyncio.Event) -> None:
        try:
            while True:
                while not assigned.has_room:
                    room.clear()
                    await room.wait()
                answer = await reader.read()
                if answer is None:
                    if self.stream.follows and isinstance(self._later_stop, AtTime):
                        await self._look_once(_LAST_LOOK)  # a new partition may have records from before that time
                    break
                if not self.stream.knows_version(assigned, reader.fetcher.newest_version):
                    await self._learn_version(assigned, reader.fetcher.newest_version)
                self._state.add(assigned, answer)
                self.progress.set()
        except TidelogError as error:
            if error.code in _MAY_BE_REMOVED:
                # This ends the task, if the partition is gone and the stream is not.
                await self._look_once(_LAST_LOOK)
            self._fail(error, assigned)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # Otherwise the iteration would end as if the stop were reached, with records missing.
            self._fail(error, assigned)
            raise
        finally:
            self.progress.set()

    async def _learn_version(self, assigned: AssignedPartition, version: int) -> None:
        """A batch has this partitioning version, which the metadata do not know: asks for them. In the order of keys,
        returns when they know it, or have not for a while, since somebody may have invented it."""
        stream = self.stream
        if stream.order == "partition":
            assigned.accepted_version = version
            await self._look_once()
            return
        clock, before, until = asyncio.get_running_loop().time, stream.refreshes, None
        while True:
            await self._look_once()
            if stream.knows_version(assigned, version):
                return
            if until is None and stream.refreshes > before:
                until = clock() + self._version_timeout
            if until is not None and clock() >= until:
                break
            await asyncio.sleep(_LOOK_AGAIN)
            if stream.knows_version(assigned, version):
                return
        self._version_timeout = 0.0
        assigned.accepted_version = version
        _log.warning(
            "%s has a batch of partitioning version %d, which the metadata do not know; it is handed out, and its"
            " keys may be out of order; see `tidelog stream describe %s`",
            assigned.of, version, self._stream,
        )  # fmt: skip

    async def _look_once(self, timeout: float | None = None) -> None:
        self._refresh()
        assert self._refresh_task is not None
        await asyncio.wait((self._refresh_task,), timeout=timeout)

    def _refresh(self) -> None:
        if self._refresh_task is None or self._refresh_task.done():
            self._refresh_task = asyncio.create_task(self._check_layout())

    async def _check_layout(self) -> None:
        """Asks whether the stream that is being read still exists, which replicas are in sync, and for its layouts."""
        error = await self._metadata.why_over(self._stream, self.stream.metadata)
        if error is not None:
            self._fail(error)
            return
        layout = self._metadata.last_seen(self._stream)
        if layout is None:
            return
        fetchers = [(assigned.number, assigned.fetcher) for assigned in self.stream.partitions.values()]
        for number, fetcher in [*fetchers, *((one.partition, one.fetcher) for one in self._looking_up.values())]:
            known = layout.partitions.get(number)
            if known is None or fetcher is None:
                continue
            fetcher.on_metadata(known.leader_epoch)
            if fetcher.followers is not None:
                set_sources(fetcher.followers, self._config.rack, layout, known)
        self._learn(layout)

    async def _watch(self) -> None:
        """Follows the layouts from now on. The first call returns when pushes are subscribed to."""
        if self._route_watch is None:
            self._route_watch = self._metadata.updates.watch(self._stream, self._on_routes, self._refresh)
            await self._route_watch.subscribed()

    def _on_routes(self, layout: StreamMetadata) -> None:
        """Metadata were pushed, or another user of them has asked for them."""
        if self._is_closed:
            return
        if self.stream.metadata is not None and layout.incarnation != self.stream.metadata.incarnation:
            self._refresh()
        else:
            self._learn(layout)

    def _learn(self, layout: StreamMetadata) -> None:
        effects = self._state.learn(self.stream, layout, asyncio.get_running_loop().time())
        for effect in effects:
            match effect:
                case Stop(assigned):
                    self.end(assigned)
                    if self._route_watch is None:  # it may be made anew, or not be gone
                        self._route_watch = self._metadata.updates.watch(self._stream, self._on_routes, self._refresh)
                case Resume(assigned):
                    self._resume(assigned)
                case MadeAnew(assigned):
                    self.on_made_anew(assigned)
                case Begin(assigned):
                    self._begin_new(assigned)
                case LayoutChanged():
                    pass
                case _:
                    assert_never(effect)
        if self._route_watch is not None and self.stream.metadata is not None:
            self._route_watch.applied = self.stream.metadata.routing_generation
        self._look_for_cutovers()
        if LayoutChanged() in effects:
            self.on_layout()
            self.progress.set()

    def _look_for_cutovers(self) -> None:
        """Asks for the metadata now and then, as long as a partition waits for a cutover that is not known."""
        if not self.stream.lacks_cutover:
            self._cutover_looks.succeeded()
        elif self._cutover_look is None and not self._is_closed:
            pause = self._cutover_looks.failed()
            self._cutover_look = asyncio.get_running_loop().call_later(pause, self._look_for_cutover)

    def _look_for_cutover(self) -> None:
        self._cutover_look = None
        self._refresh()

    def _resume(self, assigned: AssignedPartition) -> None:
        """Fetches a partition on that some broker, or an invented message, had said to be gone."""
        before, layout = assigned.fetcher, self.stream.metadata
        assert before is not None
        assert layout is not None
        reader = self._reader(layout, assigned.number, AtOffset(assigned.fetched_to), self._stop_of(assigned))
        reader.fetcher.skips_gaps = before.skips_gaps
        assigned.fetcher = reader.fetcher
        self._go_on(assigned, reader)

    def _begin_new(self, assigned: AssignedPartition) -> None:
        task = asyncio.create_task(self._begin_later(assigned))
        self._coming.add(task)
        task.add_done_callback(self._on_begun)

    def _on_begun(self, task: asyncio.Task[None]) -> None:
        self._coming.discard(task)
        self.progress.set()

    async def _begin_later(self, assigned: AssignedPartition) -> None:
        """Begins a partition that a repartition has made."""
        number = assigned.number
        while (layout := self.stream.metadata) is not None and number in layout.partitions:
            # At its first record, so that the program learns it if that was removed.
            reader = self._reader(layout, number, AtOffset(0), self._later_stop, asked=Anchor.EARLIEST)
            try:
                await self._look_up([reader])
            except TidelogError as error:
                if not error.retriable:
                    self._fail(error, assigned)
                    return
                _log.warning("%s cannot be begun at present: %s", assigned.of, error.message)
                continue
            self._fetch_from(assigned, reader)
            self.share_prefetch(len(self.stream.partitions))
            return
        self._state.drop(assigned)

    def _fail(self, error: BaseException, assigned: AssignedPartition | None = None) -> None:
        self._state.fail(assigned or self.stream, error)
        if assigned is None:
            for task in self._looking_up:
                task.cancel()
        self.progress.set()


def _skips_gaps(on_gap: str | None, start: Position) -> bool:
    return on_gap == "skip" if on_gap is not None else not isinstance(start, AtOffset)


def _starts(start: Start, partitions: Iterable[int] | None, layout: StreamMetadata) -> dict[int, Position]:
    order = layout.key_order
    later = {number for number in layout.partitions if order.has_begun_later(number)}
    gone = range(max(each.partitions for each in layout.layouts))
    return start_positions(start, partitions, layout.partitions, begun_later=later, gone=gone)


def _nothing(*_: object) -> None:
    """Nobody has to act on it."""
