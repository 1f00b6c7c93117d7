"""The producer: records in, batches out, answers back to whoever waits for them.

    send / send_nowait / send_many
        └─ Partitioner ─> PartitionAccumulator (per partition: window, sequence, repetitions)
                             └─ _Pipe (per partition: encodes, publishes with a reply inbox, one timer)

Everything happens in plain callbacks of the event loop; there is no task per batch. What has gathered is sent when
the loop comes round, so records given in one go share batches without lingering; a batch that is full leaves at once.

Bounded by `buffer_bytes` of records that are not acknowledged: at the bound `send` and `send_many` wait,
`send_nowait` raises BufferFull.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from types import TracebackType
from typing import Self, cast

import numpy as np

from tidelog.client.accumulator import (
    AccumulatorSettings,
    Acknowledged,
    BatchState,
    Effect,
    Failed,
    PartitionAccumulator,
    PendingBatch,
    Probe,
    ProducerSession,
    RefreshMetadata,
    WantSession,
)
from tidelog.client.api import Api
from tidelog.client.errors import BadRequest, BufferFull, Closed, typed
from tidelog.client.metadata import MetadataCache, StreamMetadata
from tidelog.client.partitioner import Partitioner
from tidelog.client.positions import Moment, timestamp_ns
from tidelog.client.records import BatchReceipt, Receipt
from wire import operations as op
from wire.append import ask_durability, encode_append
from wire.batch import HEADER_SIZE, BatchBuilder, Compression, EncodedBatch, GivenHeaders, encode_headers
from wire.durability import Durability
from wire.errors import Code, CorruptData, TidelogError
from wire.record_limit import RecordLimit
from wire.replication import decode_header
from wire.subjects import Subjects
from wire.tidelog_pb2 import AppendRequest, AppendResponse, FetchRequest
from wire.transport import NO_RESPONDERS, Message, Transport
from wire.types import Acks, LeaderEpoch, Offset, StreamName

RECORD_OVERHEAD = 24
"""Bytes of a batch that a record costs besides its data, at most: offsets of three columns, a timestamp, two bits of
validity.
"""
BATCH_OVERHEAD = HEADER_SIZE + 128
"""The same for a batch: header, first offsets and padding of the columns."""
MESSAGE_OVERHEAD = 1024
"""Bytes of a NATS message that are left for the preamble of an append and the headers of the answer that will carry
the batch.
"""
MAX_BATCH_BYTES = 16 << 20
PUBLISH_RETRY = 0.002
"""Seconds until a publish is tried again that the full buffer of the connection refused."""
_WIRE_ACKS = {Acks.ALL: AppendRequest.ALL, Acks.LEADER: AppendRequest.LEADER, Acks.NONE: AppendRequest.NONE}
_BYTES_OR_NONE = frozenset({bytes, type(None)})
_COMPRESSION = {None: None, "none": Compression.NONE, "lz4": Compression.LZ4, "zstd": Compression.ZSTD}


class Producer:
    """Appends records to a stream. Use it with `async with`, or `await start()` and `await close()`.

    With acks "all" and "leader" a record that is sent again after a lost answer or a change of leader is written once.
    Records of one key, and of one partition, keep the order in which they were given.
    """

    def __init__(
        self,
        transport: Transport,
        subjects: Subjects,
        api: Api,
        metadata: MetadataCache,
        stream: StreamName,
        *,
        settings: AccumulatorSettings,
        buffer_bytes: int,
        compression: str | None,
        client_id: str,
        durability: Durability | None,
        confirm_timeout_ms: int,
        spread: int,
        on_closed: Callable[[Producer], object],
    ) -> None:
        if compression not in _COMPRESSION:
            raise BadRequest(Code.BAD_REQUEST, f"compression={compression!r} is none of None, 'none', 'lz4' and 'zstd'")
        self.stream = stream
        self._transport = transport
        self._subjects = subjects
        self._api = api
        self._metadata = metadata
        self._settings = settings
        self._buffer_bytes = buffer_bytes
        self._compression = _COMPRESSION[compression]
        self._client_id = client_id
        self._durability = durability
        self._confirm_timeout_ms = confirm_timeout_ms
        self._spread = spread
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._starting: asyncio.Task[None] | None = None
        self._layout: StreamMetadata | None = None
        self._partitioner: Partitioner | None = None
        self._pipes: dict[int, _Pipe] = {}
        self._record_limit = RecordLimit(0)
        self._max_size = 0
        self._batch_bytes = 0
        self._gathering: PendingBatch | None = None
        """The open batch of the partition that records without a key go to now, if it holds values only, takes them
        one by one, and is sent in this turn of the loop anyway. None when all that has to be looked at (`_append`)."""
        self._gathering_futures: list[asyncio.Future[Receipt]] = []
        """Of the last claim of `_gathering`."""
        self._buffered = 0
        self._waiting_for_room: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._dirty: dict[_Pipe, None] = {}
        """In order, so that what is sent first is not a matter of addresses."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._refresh_task: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        """Set whenever a batch is resolved."""
        self._awaited: set[asyncio.Future[Receipt]] = set()
        """Futures of `send`: their failures are raised there and need not be told again by `flush`."""
        self._first_failure: TidelogError | None = None
        self._fatal: TidelogError | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Learn the stream's partitions and get a producer id. `send` does it when it has not been done.

        Raises UnknownStream, NoServer.
        """
        self._check_usable()
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        try:
            await asyncio.shield(self._starting)
        except TidelogError:
            self._starting = None
            raise
        except asyncio.CancelledError:
            if self._closed and not cast("asyncio.Task[None]", asyncio.current_task()).cancelling():
                raise self._closed_error() from None
            raise

    @property
    def compression(self) -> Compression:
        """As it was chosen, else as the stream says."""
        if self._compression is not None:
            return self._compression
        return Compression.NONE if self._layout is None else Compression[self._layout.config.compression.name]

    async def _start(self) -> None:
        layout = await self._metadata.refresh(self.stream)
        room = self._transport.max_payload - MESSAGE_OVERHEAD - BATCH_OVERHEAD
        batch_bytes = min(self._settings.batch_bytes, room, MAX_BATCH_BYTES)
        self._record_limit = RecordLimit(room - RECORD_OVERHEAD, layout.config.max_record_bytes)
        self._max_size = self._record_limit.max_bytes + RECORD_OVERHEAD
        self._batch_bytes = batch_bytes
        self._check_level(layout)
        settings = replace(self._settings, batch_bytes=batch_bytes)
        if settings.acks is Acks.ALL and (self._durability or layout.config.durability).is_local:
            settings = replace(settings, acks=Acks.LEADER)  # what is acknowledged may be lost with the leader
        session = await self._new_session() if settings.acks is not Acks.NONE else None
        for partition, known in layout.partitions.items():
            core = PartitionAccumulator(f"{self.stream}/{partition}", settings, known.leader_epoch)
            if session is not None:
                core.on_session(session)
            request = AppendRequest(
                stream_incarnation=layout.incarnation,
                partition_incarnation=known.incarnation,
                partitioning_version=layout.partitioning_version,
                acks=_WIRE_ACKS[self._settings.acks],
                confirm_timeout_ms=self._confirm_timeout_ms,
                client_id=self._client_id,
            )
            if self._durability is not None:
                ask_durability(request, self._durability)
            self._pipes[partition] = _Pipe(self, partition, core, request)
        self._layout = layout
        self._partitioner = Partitioner(tuple(layout.partitions), start=self._spread)

    def _check_level(self, layout: StreamMetadata) -> None:
        """Raises BadRequest: no partition has so many replicas."""
        replicas = layout.replication_factor
        if self._durability is not None and self._durability.in_sync_floor(replicas) > replicas:
            raise BadRequest(
                Code.BAD_REQUEST,
                f"durability={self._durability} needs more replicas than the {replicas} of stream {self.stream!r}; ask"
                f" for {replicas} at most",
            )

    async def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: GivenHeaders | None = None,
        partition: int | None = None,
        timestamp: Moment | None = None,
    ) -> Receipt:
        """Append one record and wait until it is acknowledged.

        `headers`: bytes by name, or a list of bytes for several values of one name. `timestamp`: ns since 1970 as a
        whole number (`time.time_ns()`), a datetime with a time zone, or AtTime(ns); default now. A number that lies
        within months of 1970 is taken for seconds, ms or µs and refused; AtTime takes any.
        A value of None is a tombstone for its key. Waits for room when the buffer is full. Raises RecordTooLarge,
        DeliveryTimeout (its `outcome_unknown` says whether the record may have been written), NotEnoughReplicas, …
        """
        if self._partitioner is None:
            await self.start()
        encoded = None if headers is None else _encoded(headers)
        stamp = None if timestamp is None else timestamp_ns(timestamp)
        size = _checked_size(value, key, encoded)
        if self._waiting_for_room or self._buffered + size > self._buffer_bytes:
            await self._room(size)
        future = self._append(value, key, encoded, partition, stamp, size)
        self._awaited.add(future)
        try:
            return await future
        finally:
            self._awaited.discard(future)

    def send_nowait(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: GivenHeaders | None = None,
        partition: int | None = None,
        timestamp: Moment | None = None,
    ) -> asyncio.Future[Receipt]:
        """Append one record, given as to `send`; the future gives the receipt. Raises BufferFull, RecordTooLarge.

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
        ):
            size = len(value) + RECORD_OVERHEAD
            filled = batch.size + size
            buffered = self._buffered + size
            if filled <= self._batch_bytes and buffered <= self._buffer_bytes and size <= self._max_size:
                future: asyncio.Future[Receipt] = asyncio.Future(loop=self._loop)
                self._gathering_futures.append(future)
                batch.values.append(value)
                batch.size = filled
                self._buffered = buffered
                return future
        encoded = None if headers is None else _encoded(headers)
        stamp = None if timestamp is None else timestamp_ns(timestamp)
        size = _checked_size(value, key, encoded)
        if self._buffered + size > self._buffer_bytes:
            raise BufferFull(
                Code.BACKPRESSURE,
                f"{self._buffered} bytes of records for {self.stream!r} wait to be acknowledged and buffer_bytes is "
                f"{self._buffer_bytes}; await send(), or wait for earlier futures first",
            )
        return self._append(value, key, encoded, partition, stamp, size)

    async def send_many(
        self,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        partition: int | None = None,
    ) -> list[BatchReceipt]:
        """Append many records and wait until all are acknowledged; one receipt per batch, for much less than one each.

        `keys`, when given, has the length of `values`. Without keys the list fills batch after batch, of one partition
        each. Records that share a partition keep their order. Raises the first failure; others may have been written.
        """
        if self._partitioner is None:
            await self.start()
        self._check_usable()
        lists: dict[str, object] = {"values": values, "keys": keys}
        for what, given in lists.items():
            if given is not None and (not hasattr(given, "__getitem__") or isinstance(given, (str, bytes))):
                raise TypeError(f"{what} are a list of bytes or None, not {type(given).__name__}")
        if keys is not None and len(keys) != len(values):
            raise BadRequest(Code.BAD_REQUEST, f"{len(keys)} keys were given for {len(values)} values")
        if not _BYTES_OR_NONE.issuperset(map(type, values)) or not _BYTES_OR_NONE.issuperset(map(type, keys or ())):
            wrong = next(v for v in (*values, *(keys or ())) if type(v) not in _BYTES_OR_NONE)
            raise TypeError(f"values and keys are bytes or None, not {type(wrong).__name__}")
        futures: list[asyncio.Future[BatchReceipt]] = []
        try:
            if keys is None:
                await self._append_unkeyed(values, partition, futures)
            else:
                await self._append_keyed(values, keys, partition, futures)
        finally:
            results = await asyncio.gather(*futures, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if isinstance(result, BatchReceipt)]

    async def flush(self) -> None:
        """Send what lingers and wait until everything given before is acknowledged or has failed.

        Raises the first failure of a record given to `send_nowait` since the last flush.
        """
        for pipe in self._pipes.values():
            pipe.core.flush()
            pipe.pump()
        # What is given while this waits is not waited for.
        before = [batch for pipe in self._pipes.values() for batch in pipe.core.pending_batches]
        await self._until(lambda: all(batch.state is BatchState.RESOLVED for batch in before))
        failure, self._first_failure = self._first_failure, None
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """Wait until everything given is acknowledged or has failed, then let go. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        try:
            for pipe in self._pipes.values():
                pipe.core.flush()
                pipe.pump()
            await self._until(lambda: all(pipe.core.is_idle for pipe in self._pipes.values()))
        finally:
            self._give_up(self._closed_error())
            self._release()

    def abort(self, error: TidelogError) -> None:
        """Fail everything that is not acknowledged, and let go."""
        self._closed = True
        self._give_up(error)
        self._release()

    async def _until(self, condition: Callable[[], bool]) -> None:
        """`condition` can become true when a batch is resolved."""
        while not condition():
            self._settled.clear()
            await self._settled.wait()

    def _release(self) -> None:
        for pipe in self._pipes.values():
            pipe.close()
        for task in self._tasks:
            task.cancel()
        if self._starting is not None:
            self._starting.cancel()
        while self._waiting_for_room:
            _, waiter = self._waiting_for_room.popleft()
            if not waiter.done():
                waiter.set_exception(self._closed_error())
        self._on_closed(self)

    # Taking records

    def _append(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: bytes | None,
        partition: int | None,
        timestamp: int | None,
        size: int,
    ) -> asyncio.Future[Receipt]:
        """`headers`: encoded, so that they are those of this moment whatever becomes of the caller's dictionary."""
        partitioner = self._partitioner
        if partitioner is None or self._closed or self._fatal is not None:
            self._check_usable()
            raise BadRequest(Code.BAD_REQUEST, "the producer is not started; use `async with` or await its start()")
        if size > self._max_size:
            raise self._too_large(size - RECORD_OVERHEAD)
        if partition is None:
            partition = partitioner.sticky if key is None else partitioner.for_key(key)
        elif partition not in self._pipes:
            raise self._no_partition(partition)
        pipe = self._pipes[partition]
        future: asyncio.Future[Receipt] = self._loop.create_future()
        self._buffered += size
        if pipe not in self._dirty:
            self._touch(pipe)
        if pipe.core.append(value, key, headers or None, timestamp, size, future, pipe.touched_at):
            self.leave_partition(partition)
            pipe.pump()
        elif partition == partitioner.sticky:
            self._gather_into(pipe.core.open_batch)
        return future

    def _gather_into(self, batch: PendingBatch | None) -> None:
        """`batch` has just taken a record that was given alone."""
        if batch is not None and batch.has_values_only:
            self._gathering, self._gathering_futures = batch, batch.claims[-1][2]
        else:
            self._gathering = None

    def stop_gathering(self) -> None:
        """Look at everything with the next record: some partition is about to send."""
        self._gathering = None

    async def _append_unkeyed(
        self, values: Sequence[bytes | None], partition: int | None, futures: list[asyncio.Future[BatchReceipt]]
    ) -> None:
        assert self._partitioner is not None
        filled = [value or b"" for value in values] if None in values else cast("Sequence[bytes]", values)
        sizes = np.fromiter(map(len, filled), np.int64, len(values)) + RECORD_OVERHEAD
        if len(values) and (largest := int(sizes.max())) > self._max_size:
            raise self._too_large(largest - RECORD_OVERHEAD)
        ends = np.cumsum(sizes)
        at = before = 0
        """The first `at` values are taken, `before` bytes of records."""
        while at < len(values):
            target = self._partitioner.sticky if partition is None else partition
            if target not in self._pipes:
                raise self._no_partition(target)
            pipe = self._pipes[target]
            room = pipe.core.room_for(int(sizes[at]))
            end = max(int(np.searchsorted(ends, before + room, "right")), at + 1)
            size = int(ends[end - 1]) - before
            if self._waiting_for_room or self._buffered + size > self._buffer_bytes:
                await self._room(size)
            futures.append(self._append_run(pipe, values[at:end], None, size, range(at, end)))
            at, before = end, before + size

    async def _append_keyed(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None],
        partition: int | None,
        futures: list[asyncio.Future[BatchReceipt]],
    ) -> None:
        assert self._partitioner is not None
        if partition is not None and partition not in self._pipes:
            raise self._no_partition(partition)
        for_key, sticky = self._partitioner.for_key, self._partitioner.sticky
        groups: dict[int, list[int]] = {}
        for index, key in enumerate(keys):
            target = partition if partition is not None else sticky if key is None else for_key(key)
            groups.setdefault(target, []).append(index)
        for target, indices in groups.items():
            pipe = self._pipes[target]
            run: list[int] = []
            size = 0
            room = 0
            for index in indices:
                each = _size(values[index], keys[index], None)
                if each > self._max_size:
                    raise self._too_large(each - RECORD_OVERHEAD)
                if run and size + each > room:
                    futures.append(await self._append_indices(pipe, values, keys, size, run))
                    run, size = [], 0
                if not run:
                    room = pipe.core.room_for(each)
                run.append(index)
                size += each
            futures.append(await self._append_indices(pipe, values, keys, size, run))

    async def _append_indices(
        self,
        pipe: _Pipe,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None],
        size: int,
        indices: list[int],
    ) -> asyncio.Future[BatchReceipt]:
        if self._waiting_for_room or self._buffered + size > self._buffer_bytes:
            await self._room(size)
        return self._append_run(pipe, [values[i] for i in indices], [keys[i] for i in indices], size, indices)

    def _append_run(
        self,
        pipe: _Pipe,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        size: int,
        indices: Sequence[int],
    ) -> asyncio.Future[BatchReceipt]:
        self._check_usable()
        self.stop_gathering()
        future: asyncio.Future[BatchReceipt] = self._loop.create_future()
        self._buffered += size
        if pipe.core.append_run(values, keys, size, indices, future, self._loop.time()):
            self.leave_partition(pipe.partition)
            pipe.pump()
        self._touch(pipe)
        return future

    def leave_partition(self, partition: int) -> None:
        """A batch of it is complete: records without a key go elsewhere now."""
        assert self._partitioner is not None
        if partition == self._partitioner.sticky:
            self._partitioner.move_on(lambda p: self._pipes[p].core.is_available)

    def _touch(self, pipe: _Pipe) -> None:
        """Send what the partition has gathered when the loop comes round."""
        if not self._dirty:
            self._loop.call_soon(self._pump_dirty)
        self._dirty[pipe] = None
        pipe.touched_at = self._loop.time()

    def _pump_dirty(self) -> None:
        dirty, self._dirty = self._dirty, {}
        for pipe in dirty:
            pipe.pump()

    async def _room(self, size: int) -> None:
        """Wait, in order of arrival, until `size` more bytes fit; a record larger than the buffer waits for an empty
        one.
        """
        waiter: asyncio.Future[None] = self._loop.create_future()
        entry = (size, waiter)
        self._waiting_for_room.append(entry)
        self._grant_room()
        try:
            async with asyncio.timeout(self._settings.delivery_timeout):
                await waiter
        except TimeoutError:
            raise BufferFull(
                Code.BACKPRESSURE,
                f"no room came free in the buffer of {self._buffer_bytes} bytes within "
                f"{self._settings.delivery_timeout:g} s: the brokers of {self.stream!r} do not keep up or are away",
            ) from None
        finally:
            if entry in self._waiting_for_room:
                self._waiting_for_room.remove(entry)
                self._grant_room()

    def _grant_room(self) -> None:
        granted = 0
        while self._waiting_for_room:
            size, waiter = self._waiting_for_room[0]
            if self._buffered + granted and self._buffered + granted + size > self._buffer_bytes:
                return
            self._waiting_for_room.popleft()
            if not waiter.done():
                granted += size
                waiter.set_result(None)

    # What comes of them

    def settle(self, pipe: _Pipe, effect: Acknowledged | Failed) -> None:
        batch = effect.batch
        partition = pipe.partition
        self._buffered -= batch.size
        if isinstance(effect, Failed):
            self._settle_failed(batch, effect.error)
        else:
            step = 0 if effect.base_offset < 0 else 1
            for first, indices, waiting in batch.claims:
                offset = effect.base_offset + first * step
                if indices is None:
                    self._give_receipts(batch, partition, first, offset, step, waiting)
                elif not waiting.done():
                    waiting.set_result(BatchReceipt(partition, offset, batch.timestamp, indices))
        if self._waiting_for_room:
            self._grant_room()
        self._settled.set()

    @staticmethod
    def _give_receipts(
        batch: PendingBatch, partition: int, first: int, offset: int, step: int, futures: list[asyncio.Future[Receipt]]
    ) -> None:
        """To records given one by one, from place `first` of the batch on, which got `offset`, `offset + step`, …"""
        count = len(futures)
        offsets = range(offset, offset + count) if step else repeat(offset, count)
        stamps: Iterable[int] = repeat(batch.timestamp)
        if batch.timestamps is not None:
            own = batch.timestamps[first : first + count]
            stamps = [batch.timestamp if stamp is None else stamp for stamp in own]
        # Receipt(…) itself takes more than twice as long, and there is one per record.
        receipts = map(tuple.__new__, repeat(Receipt), zip(repeat(partition), offsets, stamps, strict=False))
        for future, receipt in zip(futures, receipts, strict=True):
            if not future.done():
                future.set_result(receipt)

    def _settle_failed(self, batch: PendingBatch, error: TidelogError) -> None:
        quiet = False
        for _, indices, waiting in batch.claims:
            for future in waiting if indices is None else [waiting]:
                if future.done():
                    continue
                future.set_exception(error)
                if indices is not None or quiet:
                    future.exception()  # asyncio reports failures that nobody looks at; once per batch is enough
                    continue
                quiet = True
                if self._first_failure is None and future not in self._awaited:
                    self._first_failure = error

    def want_session(self, pipe: _Pipe) -> None:
        self._spawn(self._renew_session(pipe))

    def refresh_metadata(self) -> None:
        if self._refresh_task is None or self._refresh_task.done():
            self._refresh_task = self._spawn(self._check_layout())

    def on_connection_change(self, connected: bool) -> None:
        for pipe in self._pipes.values():
            if connected:
                pipe.run(pipe.core.on_reconnected(self._loop.time()))

    async def _new_session(self) -> ProducerSession:
        answer = await self._api.call(op.PRODUCER_INIT)
        return ProducerSession(int(answer["producer_id"]), int(answer["producer_epoch"]))

    async def _renew_session(self, pipe: _Pipe) -> None:
        while not self._closed or not pipe.core.is_idle:
            try:
                session = await self._new_session()
            except TidelogError as error:
                if not error.retriable:
                    self._give_up(error)
                    return
                continue  # the call has waited its time; batches that grow too old fail meanwhile
            pipe.core.on_session(session)
            pipe.pump()
            return

    async def _check_layout(self) -> None:
        error = await self._metadata.why_over(self.stream, self._layout)
        if error is not None:
            self._give_up(error)

    def _give_up(self, error: TidelogError) -> None:
        self._fatal = error
        for pipe in self._pipes.values():
            pipe.run(pipe.core.fail_all(error))

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Refusals

    def _check_usable(self) -> None:
        if self._closed:
            raise self._closed_error()
        if self._fatal is not None:
            raise self._fatal

    def _closed_error(self) -> TidelogError:
        return Closed(Code.BAD_REQUEST, f"this producer for {self.stream!r} is closed; make a new one")

    def _too_large(self, size: int) -> TidelogError:
        return typed(self._record_limit.too_large("a record", size))

    def _no_partition(self, partition: int) -> TidelogError:
        known = ", ".join(map(str, self._pipes))
        return BadRequest(Code.BAD_REQUEST, f"there is no partition {partition!r} in {self.stream!r}; it has {known}")


class _Pipe:
    """One partition's accumulator and what carries out its effects."""

    def __init__(self, producer: Producer, partition: int, core: PartitionAccumulator, request: AppendRequest) -> None:
        self.partition = partition
        self.core = core
        self.touched_at = 0.0
        """When the records of this turn of the loop began to come in."""
        self._producer = producer
        self._request = request
        self._transport = producer._transport
        self._loop = producer._loop
        self._append_subject = producer._subjects.append(producer.stream, partition)
        self._fetch_subject = producer._subjects.fetch(producer.stream, partition)
        self._acknowledged = request.acks != AppendRequest.NONE
        self._inboxes: dict[PendingBatch, list[str]] = {}
        self._probe_inbox: str | None = None
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._drop_probe()
        for batch in list(self._inboxes):
            self._drop_inboxes(batch)

    def pump(self) -> None:
        """Send what may be sent, and set the timer."""
        self._producer.stop_gathering()
        if self._transport.is_connected:
            while (batch := self.core.next_send(self._loop.time())) is not None:
                try:
                    is_sent = self._publish(batch)
                except TidelogError as error:  # NATS carries less than when the batch was filled
                    self._carry_out(self.core.on_error(batch, batch.attempts, error, self._loop.time()))
                    continue
                if not is_sent:
                    self.core.on_publish_refused(batch, self._loop.time(), PUBLISH_RETRY)
                    break
                if batch.attempts == 1:
                    self._producer.leave_partition(self.partition)
                if not self._acknowledged:
                    self._carry_out(self.core.on_published(batch))
        self._arm()

    def run(self, effects: list[Effect]) -> None:
        self._carry_out(effects)
        self.pump()

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Acknowledged() | Failed():
                    self._drop_inboxes(effect.batch)
                    self._producer.settle(self, effect)
                case Probe():
                    self._probe()
                case WantSession():
                    self._producer.want_session(self)
                case RefreshMetadata():
                    self._producer.refresh_metadata()

    def _arm(self) -> None:
        due = self.core.next_deadline()
        if due is None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._drop_probe()
            return
        now = self._loop.time()
        # Without a connection what is due cannot be done; it is looked at again soon, not at once.
        due = max(due, now if self._transport.is_connected else now + 0.05)
        if self._timer is not None:
            if self._timer.when() <= due:
                return  # it fires early and is set anew then: cheaper than moving it with each batch
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.run(self.core.tick(self._loop.time()))

    # Messages

    def _publish(self, batch: PendingBatch) -> bool:
        if batch.encoded is None:
            if batch.timestamp == 0:
                batch.timestamp = time.time_ns()
            batch.encoded = _encode(batch, self._producer.compression).stamp(Offset(0), LeaderEpoch(0))[0]
        self._request.leader_epoch = self.core.leader_epoch
        parts = encode_append(self._request, batch.encoded)
        if not self._acknowledged:
            return self._transport.publish(self._append_subject, parts)
        inbox = self._transport.new_inbox()
        self._transport.on_inbox(inbox, partial(self._on_answer, batch, batch.attempts))
        self._inboxes.setdefault(batch, []).append(inbox)
        return self._transport.publish(self._append_subject, parts, reply=inbox)

    def _on_answer(self, batch: PendingBatch, attempt: int, message: Message) -> None:
        now = self._loop.time()
        if message.status == NO_RESPONDERS:
            self.run(self.core.on_no_responders(batch, attempt, now))
            return
        error = TidelogError.from_headers(message.headers)
        if error is not None:
            self.run(self.core.on_error(batch, attempt, error, now))
            return
        response = AppendResponse.FromString(message.data)
        self.run(self.core.on_acknowledged(batch, response.base_offset, response.leader_epoch))

    def _probe(self) -> None:
        """A look-up of the log's start: the cheapest thing that only a leader answers, with its LeaderEpoch.

        All share an inbox: on a link that takes longer than the time between two of them, the answer to the newest one
        would never come in time.
        """
        if self._probe_inbox is None:
            self._probe_inbox = self._transport.new_inbox()
            self._transport.on_inbox(self._probe_inbox, self._on_probe_answer)
        inbox = self._probe_inbox
        request = FetchRequest(
            stream_incarnation=self._request.stream_incarnation,
            partition_incarnation=self._request.partition_incarnation,
            earliest=True,
        )
        self._transport.publish(self._fetch_subject, [request.SerializeToString()], reply=inbox)

    def _on_probe_answer(self, message: Message) -> None:
        if message.status == NO_RESPONDERS:
            self.run(self.core.on_probe_no_responders(self._loop.time()))
        elif TidelogError.from_headers(message.headers) is None:
            try:
                leader_epoch, _ = decode_header(message.data)
            except CorruptData:
                return
            self.run(self.core.on_probe_answer(leader_epoch))
        else:
            self._producer.refresh_metadata()

    def _drop_inboxes(self, batch: PendingBatch) -> None:
        for inbox in self._inboxes.pop(batch, ()):
            self._transport.on_inbox(inbox, None)

    def _drop_probe(self) -> None:
        if self._probe_inbox is not None:
            self._transport.on_inbox(self._probe_inbox, None)
            self._probe_inbox = None


def _size(value: bytes | None, key: bytes | None, headers: bytes | None) -> int:
    """An upper bound of what the record adds to a batch."""
    size = RECORD_OVERHEAD
    if value is not None:
        size += len(value)
    if key is not None:
        size += len(key)
    if headers:
        size += len(headers)
    return size


def _checked_size(value: bytes | None, key: bytes | None, headers: bytes | None) -> int:
    """As `_size`; whatever could not be encoded is refused here, where it harms no other record."""
    if headers is None and type(value) is bytes:
        if key is None:
            return len(value) + RECORD_OVERHEAD
        if type(key) is bytes:
            return len(value) + len(key) + RECORD_OVERHEAD
    if type(value) not in _BYTES_OR_NONE or type(key) not in _BYTES_OR_NONE:
        raise TypeError(f"value and key are bytes or None, not {type(value).__name__} and {type(key).__name__}")
    return _size(value, key, headers)


def _encoded(headers: GivenHeaders) -> bytes:
    if not isinstance(headers, Mapping):
        raise BadRequest(
            Code.BAD_REQUEST,
            f"headers are a mapping such as {{'name': b'value'}}, not {type(headers).__name__} {headers!r:.80}",
        )
    try:
        return encode_headers(headers)
    except TidelogError as error:
        raise typed(error) from None


def _encode(batch: PendingBatch, compression: Compression) -> EncodedBatch:
    builder = BatchBuilder()
    if batch.has_values_only and None not in batch.values:
        builder.add_values(cast("list[bytes]", batch.values))
    else:
        absent = [None] * len(batch)
        for value, key, headers, timestamp in zip(
            batch.values, batch.keys or absent, batch.headers or absent, batch.timestamps or absent, strict=True
        ):
            builder.add_record(value, key, headers or b"", timestamp)
    session = batch.session
    if session is None:
        return builder.build(batch.timestamp, compression=compression)
    return builder.build(
        batch.timestamp,
        producer_id=session.producer_id,
        producer_epoch=session.producer_epoch,
        base_sequence=batch.base_sequence,
        compression=compression,
    )
