"""The producer: records in, batches out, receipts back.

    send / send_nowait / send_many
        └─ Routes ─> PartitionAccumulator (per partition of a layout: window, sequence, repetitions)
                             └─ Pipe (per partition of a layout: encodes, publishes with a reply inbox, one timer)

Everything happens in plain callbacks of the event loop; there is no task per batch. Gathered records are sent when
the loop comes round, so records given in one go share batches without lingering; a batch that is full leaves at once.

Bounded by `buffer_bytes` of records that are not acknowledged: at the bound `send` and `send_many` wait,
`send_nowait` raises BufferFull.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Generic, Self, cast

from tidelog.client.base.arguments import bad, check_whole
from tidelog.client.base.exceptions import typed
from tidelog.client.base.read_positions import Moment, timestamp_ns
from tidelog.client.base.records import BatchReceipt, K, Receipt, V
from tidelog.client.base.serialization import Serializers
from tidelog.client.cluster.controller_api import Api
from tidelog.client.cluster.lifetime import HomeLoop, Started
from tidelog.client.cluster.metadata_cache import MetadataCache, StreamMetadata
from tidelog.client.cluster.route_updates import RouteWatch
from tidelog.client.producer.accumulator import Acknowledged, Failed, delay
from tidelog.client.producer.batches import PendingBatch
from tidelog.client.producer.encoding import (
    BATCH_OVERHEAD,
    MAX_BATCH_BYTES,
    MESSAGE_OVERHEAD,
    RECORD_OVERHEAD,
    check_level,
    checked_size,
    closed,
    encoded_headers,
    identified,
    no_key,
    no_partition,
)
from tidelog.client.producer.layout_routes import Routes, Split
from tidelog.client.producer.partitioner import KEY_HASHES, KeyHash, Partitioner
from tidelog.client.producer.pipe import Pipe, Sending
from tidelog.client.producer.producer_config import ProducerConfig
from tidelog.client.producer.producer_layouts import ProducerLayouts, tell_epochs
from tidelog.client.producer.receipts import Receipts, all_of
from tidelog.client.producer.runs import BatchSpace, Run, Values, check_bytes, check_lists, keyed_runs, unkeyed_runs
from tidelog.client.producer.send_buffer import SendBuffer
from tidelog.client.producer.upkeep import TransactionPolicy, Upkeep
from wire.batch import Compression, GivenHeaders
from wire.batch.encoded import RecordLimit
from wire.error_details import OUTCOME
from wire.errors import TidelogError
from wire.internal_streams import is_internal
from wire.messaging.transport import Transport
from wire.subjects import Subjects
from wire.types import StreamName

_MAX_OFFSET = (1 << 63) - 1


class Producer(Generic[K, V]):
    """Appends records to a stream. Use it with `async with`, or `await start()` and `await close()`.

    With acks "all" and "leader" a record that is sent again after a lost answer or a change of leader is written once.
    Records of one key, and of one partition, keep the order in which they were given; those of a key also while the
    stream is repartitioned.
    """

    def __init__(
        self,
        transport: Transport,
        subjects: Subjects,
        api: Api,
        metadata: MetadataCache,
        stream: StreamName,
        config: ProducerConfig[K, V],
        *,
        buffer: SendBuffer,
        spread: int,
        started: Started[Any],
        transactions: TransactionPolicy | None = None,
    ) -> None:
        """`spread` differs from producer to producer: they begin at different partitions."""
        self._stream = stream
        self._transport = transport
        self._subjects = subjects
        self._metadata = metadata
        self._config = config
        self._buffer = buffer
        self._receipts = Receipts(is_quiet=transactions is not None)
        self._upkeep = Upkeep(api, metadata, stream, self._give_up, self._on_metadata, transactions)
        self._spread = spread
        self._serializers = Serializers(config.key_serializer, config.value_serializer)
        self._started = started
        self._home = HomeLoop(f"this producer for {stream!r}")
        self._loop = self._home.loop
        self._starting: asyncio.Task[None] | None = None
        self._layouts: ProducerLayouts | None = None
        self._partitioner: Partitioner | None = None
        """The partitioner of the newest layout."""
        self._pipes: dict[int, Pipe] = {}
        """The pipes of the newest layout."""
        self._has_older = False
        """Pipes of an older layout may still have records (`tidelog.client.producer.layout_routes`)."""
        self._record_limit = RecordLimit(0)
        self._max_size = 0
        self._batch_bytes = 0
        self._is_compacted = False
        """Taken at the start: a stream that is altered later takes records without a key from this producer."""
        self._gathering: PendingBatch | None = None
        """The open batch of the partition that records without a key go to now, if it holds values only, takes them
        one by one, and is sent in this turn of the loop anyway. None when records need all checks (`_append`)."""
        self._gathering_futures: list[asyncio.Future[Receipt]] = []
        """Futures of the last claim of `_gathering`."""
        self._watch: RouteWatch | None = None
        self._dirty: dict[Pipe, None] = {}
        """Pipes to send from when the loop comes round, in the order in which they were touched."""
        self._settled = asyncio.Event()
        """Set whenever a batch is resolved."""
        self._fatal: TidelogError | None = None
        self._transactions = transactions
        self._barred = None if transactions is None else transactions.refusal()
        """The reason why no records are taken at present: no transaction is open."""
        self._next_layout: StreamMetadata | None = None
        """Metadata for the next transaction: the sequences of a transaction belong to one layout."""
        self._closed = False

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            self._abort(closed(self._stream))
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return self._stream

    @property
    def partition_count(self) -> int:
        """The number of partitions over which it spreads keys, once it has started."""
        return 0 if self._layouts is None else len(self._layouts.newest.targets)

    async def start(self) -> None:
        """Learns the stream's partitions and gets a producer id. `send` does it when it has not been done.

        Raises UnknownStream, NoServer; BadRequest for a stream of Tidelog's own.
        """
        self._check_usable()
        if self._starting is None:
            self._started.add(self)
            self._starting = asyncio.create_task(self._start())
            # The call that waits for it may be cancelled; then nobody reads its failure.
            self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            await asyncio.shield(self._starting)
        except asyncio.CancelledError:
            if self._closed and not cast("asyncio.Task[None]", asyncio.current_task()).cancelling():
                raise closed(self._stream) from None
            raise

    def delay(self) -> tuple[float, str] | None:
        """Returns for how many seconds records have waited because a leader refuses them for the time being (a quota,
        too few replicas) or is missing, and why, in a sentence; the longest wait of all partitions. None: none
        waits."""
        now = self._loop.time()
        return max((waits for pipe in self._all_pipes if (waits := delay(pipe.core, now))), default=None)

    async def _start(self) -> None:
        """Starts; leaves nothing behind when it fails, whether or not a call still waits for it."""
        try:
            await self._begin()
        except BaseException:
            self._starting = None
            self._end_watch()
            self._started.discard(self)
            raise

    async def _begin(self) -> None:
        if self._watch is None:
            self._watch = self._metadata.updates.watch(self._stream, self._on_routes, self._upkeep.look)
            await self._watch.subscribed()
        layout = await self._metadata.refresh(self._stream)
        if is_internal(self._stream, layout.subject, self._subjects):
            raise bad(f"stream {self._stream!r} is Tidelog's own, and takes records from brokers only")
        largest = self._transport.max_payload - MESSAGE_OVERHEAD
        room = largest - BATCH_OVERHEAD
        asked = self._config
        batch_bytes = max(min(asked.batch_bytes, room, MAX_BATCH_BYTES), 1)
        self._record_limit = RecordLimit.within(largest, layout.config.max_record_bytes)
        self._max_size = self._record_limit.max_bytes + RECORD_OVERHEAD
        self._batch_bytes = batch_bytes
        self._is_compacted = layout.config.compact
        check_level(asked.level, self._stream, layout.replication_factor)
        config = replace(asked, batch_bytes=batch_bytes)
        if asked.acks == "all" and (asked.level or layout.config.durability).is_local:
            config = replace(config, acks="leader")  # the level allows losing records with the leader
        session = await self._upkeep.first_session() if asked.acks != "none" else None
        sending = Sending(
            upkeep=self._upkeep,
            transport=self._transport,
            subjects=self._subjects,
            asked=asked,
            config=config,
            compression=Compression[(asked.compression or layout.config.compression.name).upper()],
        )
        self._layouts = ProducerLayouts(
            layout,
            self._upkeep,
            sending=sending,
            make_waiting=self._loop.create_future,
            stop_gathering=self._stop_gathering,
            settle=self._settle,
            on_switch=self._on_switch,
            key_hash=self._key_hash(layout),
            spread=self._spread,
            with_sessions=session is not None,
        )
        self._upkeep.layout = layout
        self._on_switch()
        self._note_applied(layout)
        for pipe in self._pipes.values():
            if session is not None:
                pipe.core.on_session(session)

    def _key_hash(self, layout: StreamMetadata) -> KeyHash:
        """Returns the hash of keys. Raises BadRequest for an unknown one."""
        name = self._config.partitioner or layout.partitioner
        if name not in KEY_HASHES:
            raise bad(
                f"stream {self._stream!r} spreads keys by partitioner {name!r}, which this version of Tidelog does not"
                " know: upgrade this program, since its keys would go to other partitions than those of its peers"
            )
        return KEY_HASHES[name]

    def _on_metadata(self, layout: StreamMetadata) -> None:
        """Takes the metadata that a broker has sent on request."""
        tell_epochs(self._all_pipes, layout)

    def _on_routes(self, layout: StreamMetadata) -> None:
        """Takes routes that were pushed or fetched."""
        if self._upkeep.layout is not None and layout.incarnation == self._upkeep.layout.incarnation:
            if self._transactions is None:
                self._adopt(layout)
            else:
                self._next_layout = layout
            self._note_applied(layout)

    def _adopt(self, layout: StreamMetadata) -> None:
        """Switches to the newest layout of the stream."""
        if self._layouts is not None and self._fatal is None:
            self._layouts.adopt(layout)

    def _note_applied(self, layout: StreamMetadata) -> None:
        """Reports to brokers that records go by these routes, if they do: also between transactions, when nothing is
        sent."""
        is_newest = self._layouts is not None and self._routes.newest.version == layout.partitioning_version
        if self._watch is not None and (is_newest or self._barred is not None):
            self._watch.applied = layout.routing_generation

    def _on_switch(self) -> None:
        """Called when the newest layout is another one, or records have moved."""
        layouts = self._layouts
        assert layouts is not None
        self._stop_gathering()
        self._partitioner, self._pipes = layouts.newest.partitioner, layouts.newest.targets
        self._has_older = bool(layouts.routes.older)
        self._settled.set()

    @property
    def _all_pipes(self) -> list[Pipe]:
        """All pipes, also those of older layouts."""
        return [] if self._layouts is None else [*self._layouts.routes.targets]

    async def send(
        self,
        value: V | None,
        *,
        key: K | None = None,
        headers: GivenHeaders | None = None,
        partition: int | None = None,
        timestamp: Moment | None = None,
        expected_offset: int | None = None,
        msg_id: str | bytes | None = None,
    ) -> Receipt:
        """Appends one record and waits until it is acknowledged.

        `headers`: bytes by name, or a list of bytes for several values of one name. `timestamp`: ns since 1970 as a
        whole number (`time.time_ns()`), a datetime with a time zone, or AtTime(ns); default now. A number that lies
        within months of 1970 is taken for seconds, ms or µs and refused; AtTime takes any.
        A value of None is a tombstone for its key. A compacted stream takes records with a key only. Waits for room
        when the buffer is full.

        `expected_offset`: the record is written at that offset of its partition, or not at all (IncorrectOffset). With
        the position up to which the partition was read this is a compare-and-set: nothing came in between that was not
        read. Records of the partition that follow wait until this one is acknowledged.

        `msg_id`: a record with that id that was stored in the same partition within the stream's `dedup_window_ms`
        counts as this one: nothing is written, and the receipt is that of the record that is there, with
        `duplicate=True`. It travels as header `Nats-Msg-Id`. Records sent again need the same key or partition.

        Raises RecordTooLarge, DeliveryTimeout (its `outcome_unknown` says whether the record may have been written),
        NotEnoughReplicas, IncorrectOffset, …
        """
        if self._partitioner is None:
            await self.start()
        data, key_data = self._serializers.both(value, key)
        encoded = None if headers is None else encoded_headers(headers)
        if msg_id is not None:
            encoded = identified(encoded, msg_id)
        stamp = None if timestamp is None else timestamp_ns(timestamp)
        size = checked_size(data, key_data, encoded)
        if not self._buffer.has_room(size):
            self._check_usable()
            self._check_size(size)
            await self._buffer.wait_for_room(size)
        try:
            future = self._append(data, key_data, encoded, partition, stamp, size, expected_offset)
        except TidelogError:
            self._buffer.release(0)  # lets the calls behind have the room that this call was given
            raise
        self._receipts.awaited.add(future)
        try:
            return await future
        finally:
            self._receipts.awaited.discard(future)

    def send_nowait(
        self,
        value: V | None,
        *,
        key: K | None = None,
        headers: GivenHeaders | None = None,
        partition: int | None = None,
        timestamp: Moment | None = None,
        expected_offset: int | None = None,
        msg_id: str | bytes | None = None,
    ) -> asyncio.Future[Receipt]:
        """Appends one record, given as to `send`; the future gives the receipt. Raises BufferFull, RecordTooLarge.

        Futures need not be awaited: `flush` raises the first failure since the last `flush`.
        """
        batch = self._gathering
        if (
            batch is not None
            and type(value) is bytes
            and key is None
            and headers is None
            and partition is None
            and timestamp is None
            and expected_offset is None
            and msg_id is None
        ):
            size = len(value) + RECORD_OVERHEAD
            filled = batch.size + size
            buffer = self._buffer
            buffered = buffer.used + size
            if filled <= self._batch_bytes and buffered <= buffer.limit and size <= self._max_size:
                future: asyncio.Future[Receipt] = asyncio.Future(loop=self._loop)
                self._gathering_futures.append(future)
                batch.values.append(value)
                batch.size = filled
                buffer.used = buffered
                return future
        data, key_data = self._serializers.both(value, key)
        encoded = None if headers is None else encoded_headers(headers)
        if msg_id is not None:
            encoded = identified(encoded, msg_id)
        stamp = None if timestamp is None else timestamp_ns(timestamp)
        size = checked_size(data, key_data, encoded)
        if self._buffer.used + size > self._buffer.limit:
            raise self._buffer.full()
        return self._append(data, key_data, encoded, partition, stamp, size, expected_offset)

    async def send_many(
        self,
        values: Sequence[V | None],
        *,
        keys: Sequence[K | None] | None = None,
        partition: int | None = None,
        msg_ids: Sequence[str | bytes | None] | None = None,
    ) -> list[BatchReceipt]:
        """Appends many records and waits until all are acknowledged; one receipt per batch, for less than one each.

        `keys` and `msg_ids`, when given, have the length of `values`. Without keys the list fills batch after batch, of
        one partition each. Records that share a partition keep their order. `msg_ids`: as `msg_id` of `send`, None for
        a record without one; the receipts name the `duplicates`. Raises the first failure; others may have been
        written.
        """
        outcomes = await self.outcomes(values, keys=keys, partition=partition, msg_ids=msg_ids)
        for _, outcome in outcomes:
            if isinstance(outcome, TidelogError):
                raise outcome
        return [outcome for _, outcome in outcomes if isinstance(outcome, BatchReceipt)]

    async def outcomes(
        self,
        values: Sequence[V | None],
        *,
        keys: Sequence[K | None] | None = None,
        partition: int | None = None,
        msg_ids: Sequence[str | bytes | None] | None = None,
    ) -> list[tuple[Sequence[int], BatchReceipt | TidelogError]]:
        """Appends like `send_many`, and returns the outcome of each record: the receipt or the error of the records at
        these positions of the list, whether others failed or not. Raises errors that keep all records from being given,
        such as RecordTooLarge."""
        if self._partitioner is None:
            await self.start()
        self._check_usable()
        check_lists(values, keys=keys, msg_ids=msg_ids)
        data, key_data = self._serializers.lists(values, keys)
        check_bytes(data, key_data)
        headers = None if msg_ids is None else [None if each is None else identified(None, each) for each in msg_ids]
        if self._is_compacted and values and (keys is None or None in keys):
            raise no_key(self._stream)
        positions: list[Sequence[int]] = []
        futures: list[asyncio.Future[BatchReceipt | Split]] = []
        try:
            for run in self._runs(data, key_data, headers, partition):
                if not self._buffer.has_room(run.size):
                    await self._buffer.wait_for_room(run.size)
                futures.append(self._append_run(run))
                positions.append(run.indices)
        finally:
            results = await all_of(positions, futures)
        return results

    async def flush(self) -> None:
        """Sends lingering records and waits until all records given before are acknowledged or have failed.

        Raises the first failure of a record given to `send_nowait` since the last flush.
        """
        self._home.check()
        self._hurry()
        # Records given while this waits do not prolong the wait.
        before = [batch for pipe in self._all_pipes for batch in pipe.core.pending_batches]
        await self._until(lambda: all(batch.is_settled for batch in before))
        failure = self._receipts.take_failure()
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """Waits until all given records are acknowledged or have failed, then lets go. Safe to call twice."""
        if self._closed:
            return
        self._home.check()
        self._closed = self._upkeep.is_closing = True
        try:
            self._hurry()
            await self._until(lambda: all(pipe.core.is_idle for pipe in self._all_pipes))
        finally:
            self._give_up(closed(self._stream))
            self._release()

    def _abort(self, error: TidelogError) -> None:
        """Fails all records that are not acknowledged, and lets go."""
        self._closed = self._upkeep.is_closing = True
        self._give_up(error)
        self._release()

    def _hurry(self) -> None:
        """Sends lingering records."""
        for pipe in self._all_pipes:
            pipe.core.gathering.seal()
            pipe.pump()

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Waits until `condition` is true, which can change when a batch is resolved."""
        while not condition():
            self._settled.clear()
            await self._settled.wait()

    def _release(self) -> None:
        for pipe in self._all_pipes:
            pipe.close()
        self._upkeep.cancel()
        self._end_watch()
        if self._starting is not None:
            self._starting.cancel()
        self._buffer.fail_waiting(closed(self._stream))
        self._started.discard(self)

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._metadata.updates.end(self._watch)
            self._watch = None

    # Taking records

    def _append(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: bytes | None,
        partition: int | None,
        timestamp: int | None,
        size: int,
        expected_offset: int | None,
    ) -> asyncio.Future[Receipt]:
        """`headers`: encoded, so that later changes of the caller's dictionary have no effect."""
        partitioner = self._partitioner
        if self._barred is not None:
            raise self._barred
        if partitioner is None or self._closed or self._fatal is not None or not self._home.is_here():
            self._check_usable()
            raise bad("the producer is not started; use `async with` or await its start()")
        if size > self._max_size:
            self._check_size(size)
        if key is None and self._is_compacted:
            raise no_key(self._stream)
        if expected_offset is not None:
            check_whole("expected_offset", expected_offset, 0, _MAX_OFFSET)
            if self._config.acks == "none":
                raise bad("expected_offset is of no use with acks='none', which tells nobody of a refusal")
            if partition is None and key is None and len(self._pipes) > 1:
                raise no_partition(self._stream, expected_offset)
        is_pinned = partition is not None
        if partition is not None:
            pipe = self._chosen(partition)
        elif key is not None:
            pipe = self._routes.for_key(key) if self._has_older else self._pipes[partitioner.for_key(key)]
        else:
            pipe = self._pipes[partitioner.sticky]
            if not pipe.core.gathering.has_room(size):  # a record that does not fit goes to the next partition
                pipe.core.gathering.seal()
                self._routes.left(pipe)
                pipe.pump()
                pipe = self._pipes[partitioner.sticky]
        future: asyncio.Future[Receipt] = self._loop.create_future()
        self._buffer.used += size
        if pipe not in self._dirty:
            self._touch(pipe)
        gathering, taken_at = pipe.core.gathering, pipe.touched_at
        if expected_offset is not None:
            self._stop_gathering()
            gathering.append_expecting(expected_offset, value, key, headers or None, timestamp, size, future, taken_at)
            return future
        is_sealed = gathering.append(value, key, headers or None, timestamp, size, future, taken_at)
        if is_pinned:
            gathering.pin(1)
        if is_sealed:
            self._routes.left(pipe)
            pipe.pump()
        elif pipe.partition == partitioner.sticky and not pipe.core.is_outdated:
            self._gather_into(gathering.open)
        return future

    @property
    def _routes(self) -> Routes[Pipe]:
        assert self._layouts is not None
        return self._layouts.routes

    def _chosen(self, partition: int) -> Pipe:
        """Returns the pipe of a chosen partition. Raises BadRequest, and PARTITION_RETIRED."""
        pipe = self._pipes.get(partition) if type(partition) is int and not self._has_older else None
        assert self._layouts is not None
        return pipe or self._layouts.chosen(partition)

    def _gather_into(self, batch: PendingBatch | None) -> None:
        """Takes the fast path from now on if it is possible. `batch` has just taken a record that was given alone."""
        if batch is not None and batch.has_values_only and self._serializers.are_none:
            self._gathering, self._gathering_futures = batch, batch.claims[-1][2]
        else:
            self._gathering = None

    def _stop_gathering(self) -> None:
        """Ends the fast path: some partition is about to send."""
        self._gathering = None

    def _runs(
        self, values: Values, keys: Values | None, headers: Values | None, partition: int | None
    ) -> Iterator[Run[Pipe]]:
        space: BatchSpace[Pipe] = BatchSpace(lambda pipe, size: pipe.core.gathering.room_for(size), self._check_size)
        if partition is None:
            if keys is None:
                return unkeyed_runs(values, self._sticky_pipe, space, headers)
            return keyed_runs(values, keys, self._target_of_keys(), space, headers)
        chosen = self._chosen(partition)
        if keys is None:
            return unkeyed_runs(values, lambda: chosen, space, headers, is_pinned=True)
        return keyed_runs(values, keys, lambda _: chosen, space, headers, is_pinned=True)

    def _target_of_keys(self) -> Callable[[bytes | None], Pipe]:
        sticky = self._sticky_pipe()
        assert self._partitioner is not None
        if self._has_older:
            of_key = self._routes.for_key
            return lambda key: sticky if key is None else of_key(key)
        pipes, number_of = self._pipes, self._partitioner.for_key
        return lambda key: sticky if key is None else pipes[number_of(key)]

    def _sticky_pipe(self) -> Pipe:
        """Returns the pipe that records without a key go to now."""
        assert self._partitioner is not None
        return self._pipes[self._partitioner.sticky]

    def _append_run(self, run: Run[Pipe]) -> asyncio.Future[BatchReceipt | Split]:
        self._check_usable()
        if self._barred is not None:
            raise self._barred
        self._stop_gathering()
        pipe = run.target
        future: asyncio.Future[BatchReceipt | Split] = self._loop.create_future()
        self._buffer.used += run.size
        gathering, now = pipe.core.gathering, self._loop.time()
        if pipe.core.is_over:  # the pipe was handed over while the call waited for room
            assert self._layouts is not None
            self._layouts.carry_out(pipe.partition, self._routes.place_run(run, future, now))
            return future
        is_sealed = gathering.append_run(run.values, run.keys, run.headers, run.size, run.indices, future, now)
        if run.is_pinned:
            gathering.pin(len(run.values))
        if is_sealed:
            self._routes.left(pipe)
            pipe.pump()
        self._touch(pipe)
        return future

    def _touch(self, pipe: Pipe) -> None:
        """Sends the gathered records of the partition when the loop comes round."""
        if not self._dirty:
            self._loop.call_soon(self._pump_dirty)
        self._dirty[pipe] = None
        pipe.touched_at = self._loop.time()

    def _pump_dirty(self) -> None:
        dirty, self._dirty = self._dirty, {}
        for pipe in dirty:
            pipe.pump()

    # Results

    def _settle(self, partition: int, effect: Acknowledged | Failed) -> None:
        """Resolves a batch of the partition: its callers get the outcome, and its bytes are free."""
        batch, failure = effect.batch, None
        if isinstance(effect, Failed):
            failure = effect.error
            if self._transactions is not None:  # no record of it will be read, whether it was written or not
                failure = failure.with_details(OUTCOME.of("not_written"))
            self._receipts.fail(batch, failure)
        else:
            self._receipts.acknowledge(batch, partition, effect.base_offset, effect.originals)
        self._buffer.release(batch.size)
        self._settled.set()
        if self._transactions is not None:
            self._transactions.on_settled(failure)

    def _on_connection_change(self, connected: bool) -> None:
        for pipe in self._all_pipes:
            if connected:
                pipe.run(pipe.core.on_reconnected(self._loop.time()))

    def _give_up(self, error: TidelogError) -> None:
        self._fatal = error
        self._buffer.fail_waiting(error)
        for pipe in self._all_pipes:
            pipe.run(pipe.core.fail_all(error))

    # Refusals

    def _check_usable(self) -> None:
        if self._closed:
            raise closed(self._stream)
        if self._fatal is not None:
            raise self._fatal
        self._home.check()

    def _check_size(self, size: int) -> None:
        """`size` as `size_of` counts it. Raises RecordTooLarge."""
        if size > self._max_size:
            raise typed(self._record_limit.too_large("a record", size - RECORD_OVERHEAD))
