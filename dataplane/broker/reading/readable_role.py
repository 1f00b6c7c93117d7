"""Serves consumers at any replica: requests in, batches below the HW out.

Requests come on `<ns>.<stream>.<p>.fetch.<broker>`, which each replica listens on in any role, and at the leader
on `<ns>.<stream>.<p>.fetch` as well. Batches that are not in memory are read from disk in the readers' threads.

Unless a request says `read_uncommitted`, the last stable offset takes the place of the HW in every answer, and
batches of aborted transactions are sent without their records.

## One turn of the event loop

How much consumers are answered from memory in one turn of the event loop.

One read from the socket can bring ten thousand requests of fifty bytes, each for megabytes, and all are handled before
anything else: heartbeats would wait for seconds. So fetches of one turn are answered until MAX_BYTES have been sent,
over all partitions of a broker; further ones are refused, and their clients ask again after a moment. Consumers that
have waited for records are answered in any case: how many may wait is bounded.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dataplane.broker.roles.broker_context import BrokerContext
from dataplane.broker.roles.counters import Counters, counter
from dataplane.broker.roles.request_prologue import Requests
from dataplane.broker.roles.role import Role, RoleCounters, RoleSetup
from dataplane.broker.roles.role_answers import Answers, PeerAnswers
from dataplane.encryption.bodies import BatchCipher
from dataplane.log.partition_log import PartitionLog
from dataplane.log.storage.log_errors import LogDamaged
from dataplane.log.storage.tail import ReadBatches
from dataplane.replica.consumers import ConsumerFetch
from dataplane.replica.derived.transaction_table import without_aborted
from dataplane.replica.replica_effects import RefuseConsumer, ServeConsumer
from dataplane.replica.replica_refusals import before_log
from dataplane.replica.replies import Reader
from wire.batch import holds_encrypted, iter_batches, verify_body
from wire.budget import Bound, Budget
from wire.error_details import LIMIT, RETRY_AFTER_MS
from wire.errors import Code, CorruptData, TidelogError
from wire.internal_streams import is_of_internal
from wire.messaging.transport import Message, MessageHandler, PeerTransport, Subscription, Transport, answer_too_large
from wire.partition_messages.replication import (
    BYTES_HEADER,
    LOG_END_HEADER,
    LOG_START_HEADER,
    OFFSET_HEADER,
    SETTLED_START_HEADER,
    encode_header,
)
from wire.protobuf.tidelog_pb2 import FetchRequest
from wire.types import BrokerId, Buffer, LeaderEpoch, Offset, PartitionKey

MAX_SERVED_BYTES: Final = 16 << 20
"""Bytes of answers, each counted with ANSWER_COST."""
ANSWER_COST: Final = 8 << 10
"""Bytes that could be sent in the time that an answer takes, however small it is."""
SERVED_RETRY_MS: Final = 20


@dataclass
class ReadCounters(Counters):
    dropped_waiting_fetches: int = counter("requests", "consumers that found too many others waiting for records")
    dropped_hot_reads: int = counter(
        "requests",
        "consumers that found too much sent to others in the same turn of the event loop",
    )
    dropped_cold_reads: int = counter("requests", "consumers that found too many others waiting for the disk")


class ServingTurn:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._spent = 0

    @classmethod
    def of_broker(cls, context: BrokerContext) -> ServingTurn:
        return cls(context.loop)

    @property
    def is_over(self) -> bool:
        return self._spent >= MAX_SERVED_BYTES

    def spend(self, size: int) -> None:
        """An answer of `size` bytes is sent."""
        if not self._spent:
            self._loop.call_soon(self._end)
        self._spent += size + ANSWER_COST

    def _end(self) -> None:
        self._spent = 0


_log = logging.getLogger(__name__)


class ConsumerListener:
    """One replica's subscription for consumers, from its first role on, through all of them: a change of role waits for
    no subscription."""

    def __init__(self, key: PartitionKey) -> None:
        self._key = key
        self._listening: asyncio.Task[Subscription] | None = None

    def start(self, context: BrokerContext, handler: MessageHandler) -> None:
        """The subscription waits for the connection, however long that takes."""
        if self._listening is None:
            subject = context.subjects.fetch_from(self._key.stream, self._key.partition, context.broker)
            self._listening = context.loop.create_task(context.ingest.subscribe(subject, handler))

    async def stop(self) -> None:
        listening, self._listening = self._listening, None
        if listening is None:
            return
        listening.cancel()
        await asyncio.wait({listening})
        if listening.cancelled():
            return
        error = listening.exception()
        if error is not None:
            _log.error("partition %s: could not listen to consumers: %r", self._key, error)
            return
        await listening.result().unsubscribe()


COLD_READS: Final = Bound(
    on="consumers that wait for the disk",
    name="cold_reads",
    per="a partition",
    items=64,
    answer="BACKPRESSURE",
    counter="dropped_cold_reads",
)


class ReadableRole(Role):
    """A role in which consumers are served."""

    def __init__(self, setup: RoleSetup) -> None:
        super().__init__(setup)
        context, view = setup.context, setup.view
        # After an unclean election others are written at offsets below it.
        setup.log.withheld_below = min(setup.log.withheld_below, setup.log.log_end_offset)
        self.answers = Answers(context.control, view.key, view.subject)
        self.peer_answers = PeerAnswers(context.peers, view.key)
        self.requests = Requests(view.key, self.answers, self.peer_answers, context)
        self.cipher = BatchCipher(context.keyring, view.key)
        self._serving = context.the(ServingTurn)
        """The answers of this turn of the event loop, of all partitions of the broker."""
        self._too_large_at: Offset | None = None
        """Where the last batch began that no message had room for; it is logged once."""
        self._cold_reads: set[asyncio.Task[None]] = set()
        self._room_for_cold = Budget(COLD_READS, view.key, counters=context.the(ReadCounters))

    @property
    def syncs_out(self) -> int:
        """Syncs that were asked for and have not returned."""
        return self._syncs.out

    @property
    def first_record(self) -> Offset:
        """Where the records begin that consumers may read."""
        return self.view.first_record(max(self.log.log_start_offset, self.log.withheld_below))

    def settled_start(self) -> Offset:
        """Returns the offset below which no replica serves consumers, as far as is known here."""
        return self.first_record

    @property
    def last_stable_offset(self) -> Offset:
        """Exclusive end of what consumers may read that do not read uncommitted transactions."""
        return self.log.last_stable(self.high_watermark)

    def answer_header(self) -> bytes:
        return encode_header(self.leader_epoch, self.high_watermark)

    # ------------------------------------------------------------------ requests
    def on_read(self, message: Message) -> None:
        """A consumer's request to this replica."""
        if not self.context.metadata.lease_valid(self.context.now()):
            # No other broker answers it. A leader that was deposed, and its last followers, would tell the consumer
            # for ever that nothing is new.
            error = TidelogError(
                Code.UNAVAILABLE,
                f"{self.context.broker} has not heard of a controller within its lease, and {self.view.key} may have"
                " another leader than it knows; read from another replica",
            )
            self.answers.error(message.reply, error)
            return
        self.carefully(lambda: self._on_fetch(message))

    def _on_fetch(self, message: Message) -> None:
        if self.ended or not message.reply:
            return
        request = self.requests.decode_fetch(message)
        if request is None:
            return
        match request.WhichOneof("position"):
            case "offset" if request.span_bytes:
                self._look_up("span", request, message.reply)
            case "offset":
                self._fetch_from(request, Offset(request.offset), message.reply, looked_up=False)
            case None:
                self.requests.refuse_bad("fetch", message, "names no position")
            case position:
                self._look_up(position, request, message.reply)
        self.timer.schedule()

    def on_leader_question(self, message: Message) -> None:
        """A producer asks whether the leader is there. Answered as a look-up of the log's start, whatever the request
        says: who may publish need not be allowed to read."""
        if self.ended or not message.reply:
            return
        request = self.requests.decode_fetch(message)
        if request is not None:
            request.max_bytes = 0
            self._look_up("earliest", request, message.reply)
            self.timer.schedule()

    @abstractmethod
    def _look_up(self, position: str, request: FetchRequest, inbox: str) -> None:
        """The request begins at "earliest", "latest" or a "timestamp", or asks for the end of a "span" of bytes."""

    @abstractmethod
    def _on_consumer_fetch(self, fetch: ConsumerFetch) -> None:
        """Serve it now or later."""

    def _read_refusal(self) -> TidelogError | None:
        """Returns why consumers are served nothing at present; None: they are."""
        return None

    def _fetch_from(self, request: FetchRequest, offset: Offset, inbox: str, *, looked_up: bool) -> None:
        reader = Reader(inbox, looked_up, request.read_uncommitted)
        if request.max_bytes == 0:
            end = self.high_watermark if request.read_uncommitted else self.last_stable_offset
            self._answer_reader(reader, offset, end)
            return
        if self._serving.is_over:
            self.context.the(ReadCounters).dropped_hot_reads += 1
            self.answers.error(
                inbox,
                TidelogError(
                    Code.BACKPRESSURE,
                    f"{self.context.broker} has sent {MAX_SERVED_BYTES} bytes to consumers at once; try again",
                    [RETRY_AFTER_MS.of(SERVED_RETRY_MS), LIMIT.of("hot_reads")],
                ),
            )
            return
        self._on_consumer_fetch(
            ConsumerFetch(
                offset=offset,
                leader_epoch=LeaderEpoch(request.leader_epoch),
                max_bytes=request.max_bytes,
                max_wait=request.max_wait_ms / 1000,
                last_record_epoch=LeaderEpoch(request.last_record_epoch),
                token=reader,
                client=inbox.rpartition(".")[0],
                read_uncommitted=request.read_uncommitted,
            )
        )

    async def _fetch_from_time(self, request: FetchRequest, end: Offset, inbox: str) -> None:
        """From the first record at or after a time, or from `end` on where there is none below it."""
        try:
            found = await self.context.loop.run_in_executor(
                self.context.readers,
                lambda: self.log.offset_for_timestamp(
                    request.timestamp,
                    end,
                    decrypt=self.cipher.decrypted,
                    read_uncommitted=request.read_uncommitted,
                ),
            )
        except (LogDamaged, CorruptData, TidelogError) as e:
            self._read_failed(inbox, e)
            return
        if not self.ended:
            position = end if found is None else max(found, self.first_record)
            self._fetch_from(request, position, inbox, looked_up=True)
            self.timer.schedule()

    async def _find_span(self, request: FetchRequest, end: Offset, inbox: str) -> None:
        """Where the bytes that are asked for end."""
        begin = Offset(max(request.offset, self.first_record))
        try:
            found, size = await self.context.loop.run_in_executor(
                self.context.readers, lambda: self.log.span(begin, request.span_bytes, end)
            )
        except (LogDamaged, CorruptData, TidelogError) as e:
            self._read_failed(inbox, e)
            return
        if not self.ended:
            self._answer_reader(Reader(inbox, True, request.read_uncommitted), found, end, span=size)

    # ------------------------------------------------------------------ answers
    def _refuse_reader(self, effect: RefuseConsumer) -> None:
        if effect.error.code is Code.BACKPRESSURE:
            self.context.the(ReadCounters).dropped_waiting_fetches += 1
        self.answers.error(effect.token.inbox, effect.error)

    def _serve(self, effect: ServeConsumer) -> None:
        reader = effect.token
        assert isinstance(reader, Reader)
        if effect.max_bytes == 0:
            self._answer_reader(reader, effect.offset, effect.end)
            return
        limit = min(effect.max_bytes, self.context.max_batch_bytes)
        try:
            found = self._read_hot(effect.offset, limit, effect.end, read_uncommitted=reader.read_uncommitted)
        except (CorruptData, TidelogError) as e:
            self._read_failed(reader.inbox, e)
            return
        if found is not None:
            self._answer_reader(reader, effect.offset, effect.end, found)
        else:
            self._read_for_consumer(reader.inbox, self._serve_cold(reader, effect.offset, limit, effect.end))

    async def _serve_cold(self, reader: Reader, offset: Offset, limit: int, end: Offset) -> None:
        try:
            found = await self.read_plain(offset, end, limit, read_uncommitted=reader.read_uncommitted)
        except (LogDamaged, CorruptData, TidelogError) as e:
            self._read_failed(reader.inbox, e)
            return
        if self.ended:
            return
        refusal = self._read_refusal()
        if refusal is not None:  # this process may have stood still meanwhile
            self.answers.error(reader.inbox, refusal)
        elif offset < self.first_record:  # deleted while they were read
            self.answers.error(reader.inbox, before_log(self.view.key, self.first_record, offset))
        else:
            self._answer_reader(reader, offset, end, found)

    def _answer_reader(
        self, reader: Reader, offset: Offset, end: Offset, found: ReadBatches | None = None, span: int | None = None
    ) -> None:
        headers = {LOG_START_HEADER: str(self.first_record)}
        if span is not None:
            headers[BYTES_HEADER] = str(span)
        if reader.looked_up:
            headers[OFFSET_HEADER] = str(offset)
            headers[LOG_END_HEADER] = str(self.log.log_end_offset)
            headers[SETTLED_START_HEADER] = str(self.settled_start())
        body: list[Buffer] = [encode_header(self.leader_epoch, end)]
        if found is not None and found.parts:
            size = sum(map(len, found.parts))
            self._serving.spend(size)
            self._count_out(max(0, found.end_offset - offset), size)
            body += found.parts
        self.send(self.context.ingest, reader.inbox, offset, body, headers)

    def _count_out(self, records: int, size: int) -> None:
        now = self.context.now()
        self.traffic.on_out(records, size, now)
        if not is_of_internal(self.view.key, self.view.subject, self.context.subjects):
            self.context.traffic.on_out(records, size, now)

    def send(
        self,
        transport: Transport | PeerTransport,
        inbox: str,
        offset: Offset,
        body: Sequence[Buffer],
        headers: Mapping[str, str] | None = None,
        refusal_body: Buffer = b"",
        *,
        to: BrokerId | None = None,
    ) -> None:
        """Send the batches from `offset` on: one whole batch at least. Where NATS does not carry it, an error is sent
        instead. `to`: the broker that is answered, over `peers`."""
        try:
            sent = (
                transport.publish(inbox, body, headers=headers)
                if to is None
                else self.context.peers.publish(inbox, body, headers=headers, to=to)
            )
            if not sent:
                _log.debug("partition %s: an answer was dropped, the outgoing buffer is full", self.view.key)
        except TidelogError as error:
            refusal = answer_too_large(error, f"what lies at offset {offset} of {self.view.key}")
            transport.publish(inbox, [refusal_body], headers=refusal.to_headers())
            self.context.the(RoleCounters).answers_too_large += 1
            self.log.swapping.has_too_large_batch = True
            if self._too_large_at != offset:
                self._too_large_at = offset
                _log.error("partition %s: %s", self.view.key, refusal.message)

    # ------------------------------------------------------------------ the log
    def _read_hot(self, offset: Offset, limit: int, end: Offset, *, read_uncommitted: bool) -> ReadBatches | None:
        """Whole batches as consumers get them; None: they are not in memory. Raises CorruptData, TidelogError."""
        found = self.log.read_batches(offset, max_bytes=limit, end_offset=end)
        if found is None or not found.parts:
            return found
        parts = found.parts
        if not read_uncommitted:
            parts = without_aborted(parts, offset, self.log.transactions, limit)
        # In the loop: an answer of 1 MiB takes a quarter of a millisecond.
        return found._replace(parts=self.cipher.plain(parts) if self.log.tail_holds_encrypted else parts)

    def _read_plain(self, offset: Offset, limit: int, end: Offset, read_uncommitted: bool) -> ReadBatches:
        """Blocking; called in a thread."""
        while True:
            cuts = self.log.cuts
            data, data_end = read_checked(self.log, offset, limit, end)
            parts: list[Buffer] = [data]
            if not read_uncommitted:
                parts = without_aborted(parts, offset, self.log.transactions, limit)
            # A compaction may have emptied the aborted batches since they were read, and their transactions were
            # forgotten: read again.
            if self.log.cuts == cuts:
                return ReadBatches(self.cipher.plain(parts) if holds_encrypted(data) else parts, data_end)

    async def read_committed(self, offset: Offset) -> Sequence[Buffer]:
        """Whole batches from `offset` on and below the last stable offset, as consumers get them. Raises LogDamaged,
        CorruptData, TidelogError."""
        end, limit = self.last_stable_offset, self.context.max_batch_bytes
        if offset >= end:
            return []
        found = self._read_hot(offset, limit, end, read_uncommitted=False)
        return (found if found is not None else await self.read_plain(offset, end, limit)).parts

    async def read_plain(
        self, offset: Offset, end: Offset, limit: int, *, read_uncommitted: bool = False
    ) -> ReadBatches:
        """As an answer may hold, from the disk. Raises LogDamaged, CorruptData, TidelogError."""
        return await self.context.loop.run_in_executor(
            self.context.readers, self._read_plain, offset, limit, end, read_uncommitted
        )

    async def read_cold(self, offset: Offset, limit: int, end: Offset) -> Buffer:
        """Both CRCs of each batch are checked. Raises as `PartitionLog.read_from_disk`."""
        return await self.context.loop.run_in_executor(
            self.context.readers, lambda: read_checked(self.log, offset, limit, end)[0]
        )

    def _read_for_consumer(self, inbox: str, reading: Coroutine[Any, Any, None]) -> None:
        if (full := self._room_for_cold.admit()) is not None:
            reading.close()
            self.answers.error(inbox, full)
            return
        task = self.spawn(reading)
        self._cold_reads.add(task)
        task.add_done_callback(self._cold_read_ended)

    def _cold_read_ended(self, task: asyncio.Task[None]) -> None:
        self._cold_reads.discard(task)
        self._room_for_cold.release()

    async def _finish_cold_reads(self) -> None:
        """To be awaited before a cut: records written in its place may not be committed."""
        if self._cold_reads:
            await asyncio.wait(set(self._cold_reads))

    def until_another_leads(self, error: TidelogError) -> TidelogError:
        """The error for a consumer where this broker has no master key; a follower's consumer goes on elsewhere."""
        return error

    def _read_failed(self, inbox: str, error: LogDamaged | CorruptData | TidelogError) -> None:
        if isinstance(error, TidelogError):
            if error.code is Code.NO_KEY:
                _log.warning("partition %s: %s", self.view.key, error)
                error = self.until_another_leads(error)
            self.answers.error(inbox, error)
            return
        _log.error("partition %s: a read failed: %s", self.view.key, error)
        # Not INTERNAL, which no client repeats: a sound replica is about to lead.
        self.answers.error(
            inbox, TidelogError(Code.UNAVAILABLE, f"{self.view.key} cannot be read on {self.context.broker}: {error}")
        )
        if isinstance(error, CorruptData):
            self.on_damage(str(error))


def read_checked(partition_log: PartitionLog, offset: Offset, limit: int, end: Offset) -> tuple[Buffer, Offset]:
    """As `PartitionLog.read_from_disk`, with a check of the bodies: this broker sends nothing else than was written.
    Also the offset at which the last batch ends. Blocking. Raises as that does."""
    last = offset
    data = partition_log.read_from_disk(offset, max_bytes=limit, end_offset=end)
    for at, header in iter_batches(data):
        try:
            verify_body(data, at, header)
        except CorruptData as error:
            raise CorruptData(
                f"{partition_log.directory} is damaged at offset {header.base_offset}: {error}"
            ) from error
        last = header.end_offset
    return data, last
