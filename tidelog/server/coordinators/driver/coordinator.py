"""The coordinator of one partition of an internal stream, while this broker leads that partition: consumer
groups and cursors, or transactions (`tidelog.server.coordinators.driver.coordinator_kinds`).

It exists as long as a LeaderEpoch of the partition, beside the leader, in the same process:

    LOADING ──all of the log is committed, and read──> ACTIVE ──append fails, outcome not known──> LOADING
       │                                                 │
       └───────────── the LeaderEpoch ends ──────────────┴──> OVER

Requests are handed to the shard (`tidelog.server.coordinators`), which settles them together. One batch of records is
on its way at a time; later requests are settled together when that one is committed. No answer leaves before the
records that its state stands on are committed, and an answer without any needs a valid lease (R29): a deposed
coordinator that does not know it would report outdated state. Deliveries to other brokers
(`tidelog.server.coordinators.driver.deliveries`) say what is committed, so they need no lease; they leave under the
same rule, and are sent until they are confirmed.

The log is read again after any append that failed: the shard has changed already. That waits until all of the log is
committed, also records of an append with an unknown outcome. After a bug the log is read again, too; its requests are
refused with INTERNAL.

Records of a settlement may take several batches, which are appended at once. A part of them is a state, too
(`tidelog.server.coordinators.groups.consumer_group`, `tidelog.server.coordinators.transactions.transaction_shard`).

At most MAX_WAITING requests, or MAX_WAITING_BYTES of them, wait; one more is refused with BACKPRESSURE. While the log
is being read for longer than PATIENT_S, requests are refused with UNAVAILABLE, which clients ride out.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from random import random
from typing import Any, Final, Protocol

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage

from dataplane.broker.roles.broker_context import LedPartition
from dataplane.log.storage.log_errors import LogDamaged
from tidelog.server.coordinators.driver.coordinator_kinds import Coordinated
from tidelog.server.coordinators.driver.deliveries import Deliveries
from tidelog.server.coordinators.known_streams import StreamsView
from tidelog.server.coordinators.record_times import Times
from tidelog.server.coordinators.shard import Admin, Delivery, Settled, Shard
from wire.batch import BatchBuilder, EncodedBatch, RecordBatch, iter_batches
from wire.error_details import LIMIT, RETRY_AFTER_MS
from wire.errors import Code, CorruptData, TidelogError
from wire.messaging.transport import Message, PeerTransport, Subscription, Transport, answer_too_large
from wire.operations import json_codec
from wire.retry import Retry
from wire.subjects import Subjects
from wire.turns import in_turns

_log = logging.getLogger(__name__)

CONFIRM_TIMEOUT_S: Final = 5.0
"""Seconds for the ISR to have a batch; then its outcome is unknown."""
RELOAD_PAUSE_S: Final = 0.1
"""Seconds between two attempts to read the log."""
_COMMIT_WAIT_S: Final = 0.1
"""Seconds after which a coordinator that waits for its log's commit looks whether requests are refused meanwhile."""
PATIENT_S: Final = 1.0
MAX_WAITING: Final = 10_000
MAX_WAITING_BYTES: Final = 16 << 20
MAX_REQUEST_BYTES: Final = 96 << 10
"""The largest is the end of a family with MAX_MEMBERS of the longest names."""
MAX_ADMIN_BYTES: Final = 512 << 10
"""Bytes of a request that the controller hands over."""
REPLAYED_AT_ONCE: Final = 64 << 10
"""Bytes of records of the log that are taken up before the event loop has its turn again: a record of a member with all
partitions of a group has more."""
RECORD_BYTES: Final = 32
"""Bytes of a record in a batch, at most, beside its key and its value."""


class CoordinatorPorts(Protocol):
    """The interface of the broker to its coordinators."""

    @property
    def broker(self) -> str: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def counters(self) -> CoordinatorCounters: ...

    @property
    def clients(self) -> Transport: ...

    @property
    def peers(self) -> PeerTransport: ...

    @property
    def subjects(self) -> Subjects: ...

    def now(self) -> float:
        """Monotonic seconds."""
        ...

    def time_ns(self) -> int:
        """Returns the wall clock, ns since 1970."""
        ...

    def agreed_time_ns(self) -> int | None:
        """See `MetadataService.agreed_time_ns`."""
        ...

    def lease_valid(self) -> bool: ...

    def streams(self) -> StreamsView:
        """Returns the view of all streams: the same object until something has changed."""
        ...


@dataclass(slots=True)
class CoordinatorCounters:
    """The counters of all coordinators that a broker has had."""

    refused_requests: int = 0
    """Requests refused with BACKPRESSURE, because too many wait, or because they are too large."""
    refused_limits: int = 0
    """Requests refused with LIMIT_REACHED."""


class _State(Enum):
    LOADING = auto()
    ACTIVE = auto()
    OVER = auto()


class Coordinator:
    def __init__(self, led: LedPartition, ports: CoordinatorPorts, of: Coordinated) -> None:
        self._led = led
        self._ports = ports
        self._of = of
        self._shard = of.make_shard()
        """While the log is read, it has only the requests that wait for that."""
        self._view: StreamsView | None = None
        self._state = _State.LOADING
        self._since = ports.now()
        """Monotonic seconds of the last change of `_state`."""
        self._reloads = Retry(RELOAD_PAUSE_S, chance=random)
        self._subscriptions: list[Subscription] = []
        self._is_appending = False
        self._flush: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._deliveries = Deliveries(
            f"coordinator {led.key}", ports.peers, ports.subjects, ports.now, self._is_awaited, self._on_delivered
        )
        led.on_end(self._end)
        self._spawn(self._listen())
        self._spawn(self._load())

    @property
    def is_over(self) -> bool:
        return self._state is _State.OVER

    @property
    def shard(self) -> Shard:
        """The state of the coordinator, for tests."""
        return self._shard

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("coordinator %s met a bug", self._led.key, exc_info=error)

    # ---- start and end ---------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        key, subjects = self._led.key, self._ports.subjects
        clients, peers = self._ports.clients, self._ports.peers
        for kind in self._of.kinds:
            names = ("*", "*") if kind in self._of.added_by else ("*",)
            subject = subjects.coordinator(key.stream, key.partition, kind, *names)
            await self._hold(await clients.subscribe(subject, self._taking(kind, len(names))))
        await self._hold(await peers.subscribe(subjects.coordinate(key.stream, key.partition), self._on_admin))

    async def _hold(self, subscription: Subscription) -> None:
        if self.is_over:
            await subscription.unsubscribe()
        else:
            self._subscriptions.append(subscription)

    def _end(self) -> None:
        self._state = _State.OVER
        for handle in (self._flush, self._timer):
            if handle is not None:
                handle.cancel()
        self._deliveries.clear()
        gone = self._unavailable("another broker leads its partition by now")
        self._refuse_all(gone)
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            self._spawn(subscription.unsubscribe())

    def _refuse_all(self, error: TidelogError) -> None:
        abandoned = self._shard.abandon()
        for token in abandoned.without_effect:
            assert isinstance(token, _Inbox)
            token.send(error)
        for token in abandoned.begun:
            assert isinstance(token, _Inbox)
            token.send(_may_be_decided(error))

    def _unavailable(self, why: str) -> TidelogError:
        return TidelogError(
            Code.UNAVAILABLE,
            f"the coordinator of {self._led.key} on {self._ports.broker} cannot answer: {why}",
            [RETRY_AFTER_MS.of(round(RELOAD_PAUSE_S * 1000))],
        )

    # Keeps R52.
    async def _load(self) -> None:
        while not self.is_over:
            try:
                shard = await self._read_log()
                if shard is None:
                    return
                self._view = self._ports.streams()
                shard.begin(self._view, self._ports.now())
            except Exception as error:  # noqa: BLE001 - reading is repeated as long as this broker leads
                if not self.is_over:
                    is_known = isinstance(error, LogDamaged | CorruptData | DecodeError | TidelogError)
                    _log.error(
                        "coordinator %s cannot read its log: %s", self._led.key, error,
                        exc_info=None if is_known else error,
                    )  # fmt: skip
                    self._refuse_if_late("it cannot read its log")
                    await asyncio.sleep(self._reloads.failed())
                continue
            shard.take_over(self._shard)
            self._shard = shard
            self._state, self._since = _State.ACTIVE, self._ports.now()
            _log.info(
                "coordinator %s: begins in LeaderEpoch %d with %s",
                self._led.key, self._led.leader_epoch, shard.summary,
            )  # fmt: skip
            self._soon()
            return

    async def _read_log(self) -> Shard | None:
        """Returns a shard with all of the log, once it is committed; None: the LeaderEpoch has ended."""
        led, shard = self._led, self._of.make_shard()
        end = led.log_end_offset
        while led.high_watermark < end:
            if self.is_over:
                return None
            self._refuse_if_late("its log is not committed yet")
            answered, errors = asyncio.Event(), list[TidelogError]()
            led.on_committed(end, _COMMIT_WAIT_S, partial(_on_answer, answered, errors))
            await answered.wait()
            if errors and errors[0].code is not Code.CONFIRM_TIMEOUT:  # it may have come at once, as the next one would
                await asyncio.sleep(self._reloads.failed())
        offset, size = led.log_start_offset, 0
        while offset < end and not self.is_over:
            parts = await led.read_committed(offset)
            data = b"".join(parts)
            if not data:
                raise TidelogError(Code.UNAVAILABLE, f"nothing can be read at offset {offset} of {led.key}")
            for at, header in iter_batches(data):
                batch = RecordBatch.decode(data, at, header=header)
                for key, value in zip(batch.keys, batch.values, strict=True):
                    if key is not None:
                        shard.replay(key, value)
                    size += RECORD_BYTES + len(value or b"")
                    if size >= REPLAYED_AT_ONCE:
                        size = 0
                        await asyncio.sleep(0)
                offset = header.end_offset
            self._refuse_if_late("it reads its log")
            await asyncio.sleep(0)
        return None if self.is_over else shard

    def _refuse_if_late(self, why: str) -> None:
        if self._ports.now() - self._since >= PATIENT_S:
            self._refuse_all(self._unavailable(why))

    # ---- requests --------------------------------------------------------------------------------------------------

    def _taking(self, kind: str, names: int) -> Callable[[Message], None]:
        """`names`: how many names the subject has behind the kind."""
        decode, added_by = self._of.kinds[kind], self._of.added_by.get(kind)

        def take(message: Message) -> None:
            if not message.reply or self.is_over:
                return
            inbox = _ClientInbox(message.reply, self._ports.clients)
            if len(message.data) > MAX_REQUEST_BYTES:
                self._ports.counters.refused_requests += 1
                inbox.send(
                    TidelogError(
                        Code.BAD_REQUEST, f"a request of {len(message.data)} bytes is above {MAX_REQUEST_BYTES}"
                    )
                )
                return
            try:
                request = decode(message.data)
            except DecodeError as error:
                inbox.send(TidelogError(Code.BAD_REQUEST, f"the request does not decode: {error}"))
                return
            except TidelogError as error:
                inbox.send(error)
                return
            if request.cluster_id and request.cluster_id != self._ports.cluster_id:
                return
            name = self._of.name_of(request)
            in_subject = message.subject.split(".")[-names:]
            if in_subject[0] != name:
                inbox.send(_of_another_subject("is about", name, message.subject))
                return
            try:
                added = set[str]() if added_by is None else {*added_by(request)}
            except TidelogError as error:
                inbox.send(error)
                return
            if others := added - {in_subject[-1]}:
                inbox.send(_of_another_subject("adds", min(others), message.subject))
                return
            if (of := self._of.partition_of(name)) != self._led.key.partition:
                inbox.send(
                    TidelogError(
                        Code.NOT_COORDINATOR,
                        f"{self._led.key} does not coordinate {name!r:.80}: partition {of} of {self._led.key.stream}"
                        " does; send the request there",
                    )
                )
                return
            try:
                self._of.check(request)
            except TidelogError as unproven:
                self._ports.counters.refused_requests += 1
                inbox.send(unproven)
                return
            self._take(inbox, request)

        return take

    def _on_admin(self, message: Message) -> None:
        if not message.reply or self.is_over:
            return
        inbox = _PeerInbox(message.reply, self._ports.peers)
        try:
            if len(message.data) > MAX_ADMIN_BYTES:
                raise ValueError(f"{len(message.data)} bytes are above {MAX_ADMIN_BYTES}")
            handed = json_codec.decode(dict[str, Any], message.data, "the request of a broker")
            operation = self._of.handed[handed["operation"]]
            request = json_codec.decode(operation.request_kind, json.dumps(handed["request"]).encode(), "the request")
        except (ValueError, KeyError, TypeError, TidelogError) as error:
            inbox.send(TidelogError(Code.BAD_REQUEST, f"the request of a broker does not decode: {error}"))
            return
        self._take(inbox, Admin(operation, request))

    def _take(self, inbox: _Inbox, request: Any) -> None:
        if self._state is _State.LOADING and self._ports.now() - self._since > PATIENT_S:
            inbox.send(self._unavailable("it reads its log"))
            return
        if self._shard.waiting >= MAX_WAITING or self._shard.waiting_bytes >= MAX_WAITING_BYTES:
            self._ports.counters.refused_requests += 1
            inbox.send(self._too_many())
            return
        self._shard.take(inbox, request)
        self._soon()

    def _too_many(self) -> TidelogError:
        return TidelogError(
            Code.BACKPRESSURE,
            f"{self._shard.waiting} requests wait for the coordinator of {self._led.key}; try again",
            [RETRY_AFTER_MS.of(round(RELOAD_PAUSE_S * 1000)), LIMIT.of(self._of.limit)],
        )

    # ---- settling --------------------------------------------------------------------------------------------------

    def _soon(self) -> None:
        if self._flush is None and not self._is_appending and self._state is _State.ACTIVE:
            self._flush = self._loop.call_soon(self._settle)

    # R52: What a coordinator answers is committed. It begins when all of its log is committed, reads it, answers when
    # the records of its answer are committed, and begins anew when an append of its own has failed. An answer without
    # a record that says what is so waits for a barrier, an empty record whose commit proves that the LeaderEpoch
    # lasts; a heartbeat that changes nothing is answered under a lease (R29) without one.
    # Hazard: A deposed coordinator gives old offsets, or tells its successor's members that they are unknown.
    def _settle(self) -> None:
        self._flush = None
        if self._state is not _State.ACTIVE or self._is_appending:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        view = self._ports.streams()
        if view is not self._view:
            self._view = view
            self._shard.on_streams(view)
        try:
            times = Times(self._ports.time_ns(), self._ports.agreed_time_ns())
            settled = self._shard.settle(self._ports.now(), times)
        except Exception as bug:  # noqa: BLE001 - the shard may be half changed, so the log is read again
            _log.exception("coordinator %s met a bug", self._led.key)
            self._reload(TidelogError(Code.INTERNAL, f"the coordinator of {self._led.key} met a bug: {bug!r}"))
            return
        self._note(settled)
        if settled.records:
            self._append(settled)
            return
        if self._ports.lease_valid():
            self._send(settled)
        else:
            error = self._unavailable("it has not heard of a controller within its lease")
            for token, _ in settled.answers:
                assert isinstance(token, _Inbox)
                token.send(_may_be_decided(error) if token in settled.begun else error)
            self._deliveries.add(settled.deliveries)
        self._go_on()

    def _note(self, settled: Settled) -> None:
        refused = [answer.code for _, answer in settled.answers if isinstance(answer, TidelogError)]
        self._ports.counters.refused_limits += refused.count(Code.LIMIT_REACHED)
        self._ports.counters.refused_requests += refused.count(Code.BACKPRESSURE)
        for warning in settled.warnings:
            _log.warning("coordinator %s: %s", self._led.key, warning)

    def _append(self, settled: Settled) -> None:
        self._is_appending = True
        batches = self._batches(settled)
        left, has_begun = len(batches), False

        def done(error: TidelogError | None) -> None:
            nonlocal left
            if left == 0:  # one of the batches has failed already
                return
            left = left - 1 if error is None else 0
            if left:
                return
            self._is_appending = False
            if error is None:
                self._send(settled)
                self._go_on()
                return
            for token, _ in settled.answers:
                assert isinstance(token, _Inbox)
                token.send(_may_be_decided(error) if has_begun or token in settled.begun else error)
            self._reload(self._unavailable(f"an append failed: {error.message}"))

        for number, batch in enumerate(batches):
            if left:
                has_begun = number > 0  # the refusal of a later batch does not take the first one back
                self._led.append(batch, CONFIRM_TIMEOUT_S, done)

    def _batches(self, settled: Settled) -> list[EncodedBatch]:
        most = self._led.max_batch_bytes // 2
        batches: list[EncodedBatch] = []
        builder, size = BatchBuilder(), 0
        for key, value in settled.records:
            wanted = len(key) + len(value or b"") + RECORD_BYTES
            if size and size + wanted > most:
                batches.append(builder.build(self._ports.time_ns()))
                builder, size = BatchBuilder(), 0
            builder.add_record(value, key)
            size += wanted
        return [*batches, builder.build(self._ports.time_ns())]

    def _reload(self, error: TidelogError) -> None:
        """Reads the log again. `error` answers the requests that wait."""
        if self.is_over:
            return
        _log.warning("coordinator %s reads its log again: %s", self._led.key, error)
        self._state, self._since = _State.LOADING, self._ports.now()
        self._deliveries.clear()
        self._refuse_all(error)
        self._spawn(self._load_after_pause())

    async def _load_after_pause(self) -> None:
        await asyncio.sleep(self._reloads.failed())
        await self._load()

    def _go_on(self) -> None:
        if self._state is not _State.ACTIVE:
            return
        if self._shard.is_waiting:
            self._soon()
            return
        deadline = self._shard.next_deadline()
        if deadline != float("inf") and self._timer is None:
            self._timer = self._loop.call_later(max(0.0, deadline - self._ports.now()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._soon()

    def _send(self, settled: Settled) -> None:
        for token, answer in (*settled.answers, *settled.unasked):
            assert isinstance(token, _Inbox)
            if isinstance(answer, Mapping):
                self._spawn(token.send_in_turns(answer))  # may have many groups or offsets
            else:
                token.send(answer)
        if not self.is_over:
            self._deliveries.add(settled.deliveries)

    def _is_awaited(self, delivery: Delivery) -> bool:
        return self._shard.awaits(delivery)

    def _on_delivered(self, delivery: Delivery) -> None:
        self._shard.on_delivered(delivery)
        self._soon()


def _of_another_subject(does: str, name: str, subject: str) -> TidelogError:
    return TidelogError(
        Code.BAD_REQUEST, f"the request {does} {name!r:.80} and was sent to {subject!r}; name the same one in both"
    )


def _may_be_decided(error: TidelogError) -> TidelogError:
    if error.code.unknown_outcome:
        return error
    return TidelogError(Code.OUTCOME_UNKNOWN, f"{error.message}; it may be decided: ask again", error.details)


class _Inbox:
    """A subject that an answer is sent to; the answer is lost when there is no connection."""

    def __init__(self, subject: str) -> None:
        self._subject = subject

    def send(self, answer: ProtoMessage | TidelogError) -> None:
        if isinstance(answer, TidelogError):
            self._send(b"", answer.to_headers())
        else:
            self._send(answer.SerializeToString(), None)

    async def send_in_turns(self, answer: Mapping[str, Any]) -> None:
        self._send(await in_turns(json_codec.encoding(answer)), None)

    def _send(self, data: bytes, headers: Mapping[str, str] | None) -> None:
        try:
            try:
                self._publish(data, headers)
            except TidelogError as too_large:
                self._publish(b"", answer_too_large(too_large, "the answer of the coordinator").to_headers())
        except TidelogError as error:
            _log.warning("an answer of a coordinator is not sent: %s", error)
        except ValueError as error:
            _log.debug("an answer of a coordinator cannot be sent: %s", error)

    def _publish(self, payload: bytes, headers: Mapping[str, str] | None) -> None:
        raise NotImplementedError


def _on_answer(answered: asyncio.Event, errors: list[TidelogError], error: TidelogError | None) -> None:
    errors += [] if error is None else [error]
    answered.set()


class _ClientInbox(_Inbox):
    def __init__(self, subject: str, transport: Transport) -> None:
        super().__init__(subject)
        self._transport = transport

    def _publish(self, payload: bytes, headers: Mapping[str, str] | None) -> None:
        self._transport.publish(self._subject, [payload], headers=headers)


class _PeerInbox(_Inbox):
    def __init__(self, subject: str, transport: PeerTransport) -> None:
        super().__init__(subject)
        self._transport = transport

    def _publish(self, payload: bytes, headers: Mapping[str, str] | None) -> None:
        self._transport.publish(self._subject, [payload], headers=headers)
