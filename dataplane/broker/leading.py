"""Leading one partition: subscriptions in, `dataplane.replica.leader` in the middle, log and answers out.

Subjects, all subscribed when leadership begins and given up when it ends (a killed process loses them at once, which is
what lets others see its death as a 503):

    control connection   <ns>.<stream>.<p>.replicate   .offset   .checkpoint
    ingest connection    the stream's subject          .append   .fetch

Batches are appended in the event loop (page cache), answered to waiting followers before our own fdatasync begins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from dataplane.broker import checkpoints
from dataplane.broker.acks import AppendReply, BareReplies, EnvelopeReply, Replies
from dataplane.broker.context import BrokerContext
from dataplane.broker.ingest import SEAL_BYTES, Ingest, envelope_waits, envelope_waits_for_all
from dataplane.broker.reading import ReadableRole
from dataplane.broker.requests import follower_fetch
from dataplane.log.errors import LogDamaged, NoSpace
from dataplane.log.partition_log import PartitionLog
from dataplane.replica.ack_levels import AckLevel, ack_level
from dataplane.replica.consumers import ConsumerFetch
from dataplane.replica.effects import (
    CompleteDrain,
    CompleteProduce,
    LeaderEffect,
    Notify,
    ProposeIsr,
    Refuse,
    RefuseConsumer,
    RequestSync,
    Respond,
    SendCheckpoint,
    ServeConsumer,
    VerifyOwnCopy,
)
from dataplane.replica.leader import Leader
from dataplane.replica.producers import Duplicate, Rejected
from dataplane.replica.refusals import deletions_gone, fenced, told_without_epoch
from wire.append import asked_durability, decode_append
from wire.batch import HEADER_SIZE, BatchHeader, Compression, EncodedBatch
from wire.errors import Code, CorruptData, TidelogError
from wire.record_limit import RecordLimit
from wire.replication import encode_header, sync_headers
from wire.tidelog_pb2 import (
    AppendRequest,
    AppendResponse,
    CheckpointRequest,
    FetchRequest,
    LeaderEpochOffsetRequest,
    LeaderEpochOffsetResponse,
    PartitionNotification,
    ReplicationRequest,
)
from wire.tidelog_pb2 import (
    Message as EnvelopeMessage,
)
from wire.transport import Message, MessageHandler, Subscription, Transport
from wire.types import (
    BrokerId,
    DrainAnswer,
    LeaderEpoch,
    LeaderMove,
    Offset,
    PartitionState,
    PartitionView,
)

log = logging.getLogger(__name__)

REPLY_BYTES = 128
"""What a bare request that waits for its answer counts among the uncommitted bytes, beside its record: that much memory
it takes."""
ENVELOPE_BYTES = 2048
"""The same for an envelope."""


@dataclass(frozen=True, slots=True)
class _Mover:
    """Whoever asked this leader to drain."""

    move: LeaderMove
    answer: DrainAnswer


class Leading(ReadableRole):
    def __init__(
        self,
        context: BrokerContext,
        view: PartitionView,
        partition_log: PartitionLog,
        high_watermark: Offset,
        on_damage: Callable[[str], None],
    ) -> None:
        super().__init__(context, view, partition_log, on_damage)
        partition_log.cached_bytes = None
        self._initial_high_watermark = high_watermark
        self._core: Leader | None = None
        self._is_heard = False
        """NATS brings it everything that is published and asked."""
        self._subscriptions: list[Subscription] = []
        self._checkpoint_reads = 0
        """Followers for which the derived state is being read."""
        self._syncing = False
        self._starting: asyncio.Task[None] | None = None
        self._unwanted = False
        self._ingest = Ingest(
            seal=self._seal,
            wants_batch=self._wants_batch,
            refuse=self._refuse_publish,
            on_refused=self._bare_refused,
            on_corrupt=self._corrupt_envelope,
            on_envelope_refused=self._envelope_refused,
            time_ns=context.time_ns,
        )
        self._configure()

    def _configure(self) -> None:
        """As the newest view and NATS say; settings change while the stream lives."""
        config, room = self.view.config, self.context.max_batch_bytes - HEADER_SIZE - 64
        self._compression = Compression[config.compression.name]
        self._record_limit = RecordLimit(room, config.max_record_bytes)
        self._confirm_timeout = config.confirm_timeout_ms / 1000
        self._level = ack_level(self.view)
        self._ingest.configure(
            max_batch_bytes=min(4 * SEAL_BYTES, room),
            record_limit=self._record_limit,
            with_replies=config.reply_acks,
        )

    # ------------------------------------------------------------------ life
    async def start(self) -> None:
        """Tail synced, then (LeaderEpoch -> LEO) durable, then subscriptions: in that order."""
        context, view, key = self.context, self.view, self.view.key
        try:
            await context.loop.run_in_executor(
                context.executor, self.log.assign_epoch, view.leader_epoch, self.log.log_end_offset
            )
        except LogDamaged as e:
            self.fail(f"cannot begin LeaderEpoch {view.leader_epoch}: {e}")
            return
        if self.ended or self._unwanted:
            return
        core = self._core = Leader(
            view=self.view,
            broker=context.broker,
            incarnation=context.incarnation,
            log_start_offset=self.log.log_start_offset,
            log_end_offset=self.log.log_end_offset,
            durable_end=self.log.durable_end,
            high_watermark=self._initial_high_watermark,
            epochs=self.log.epochs,
            settings=context.settings,
            now=context.now(),
            no_space=context.space.is_full,
            disk_hangs=context.disk.hangs,
            shared=context.uncommitted,
        )
        context.counters.elections_won += 1
        self._starting = context.loop.create_task(self._subscribe())
        await asyncio.wait({self._starting})
        if self._starting.cancelled():
            return
        self._starting.result()
        if self.is_over():  # meanwhile
            await self._unsubscribe()
            return
        log.info(
            "partition %s: leading LeaderEpoch %d from offset %d, HW %d, ISR %s",
            key, view.leader_epoch, core.epoch_start, core.high_watermark, ",".join(view.isr),
        )  # fmt: skip
        self._is_heard = True
        self._run([*core.announce(), *core.tick(context.now())])
        self._schedule()

    def give_up_starting(self) -> None:
        self._unwanted = True
        if self._starting is not None:
            self._starting.cancel()

    async def _subscribe(self) -> None:
        """Waits for the connections, however long they take."""
        context, subjects, key = self.context, self.context.subjects, self.view.key

        async def hold(subscribe: Callable[[], Coroutine[Any, Any, Subscription]]) -> None:
            self._subscriptions.append(await subscribe())

        def told(transport: Transport, subject: str, handle: MessageHandler) -> Coroutine[Any, Any, None]:
            return hold(lambda: transport.subscribe(subject, self._handler(handle)))

        control, ingest = context.control, context.ingest
        await asyncio.gather(
            told(control, subjects.replicate(key.stream, key.partition), self._on_replicate),
            told(control, subjects.offset(key.stream, key.partition), self._on_offset),
            told(control, subjects.checkpoint(key.stream, key.partition), self._on_checkpoint),
            hold(lambda: ingest.subscribe_bulk(self.view.subject, self._bulk_handler(self._ingest))),
            told(ingest, subjects.append(key.stream, key.partition), self._on_append),
            told(ingest, subjects.fetch(key.stream, key.partition), self._on_fetch),
        )

    async def _let_go(self, reason: str) -> None:
        if self._starting is not None:
            self._starting.cancel()
        try:
            # Another leader may have heard, and stored, the same publishes: their outcome is not known here.
            self._ingest.abandon(TidelogError(Code.OUTCOME_UNKNOWN, f"{reason}; the record was not stored here"))
            if self._core is not None:
                self._run(self._core.resign(reason))
        finally:
            await self._unsubscribe()

    async def _unsubscribe(self) -> None:
        subscriptions, self._subscriptions = self._subscriptions, []
        await asyncio.gather(*(s.unsubscribe() for s in subscriptions), return_exceptions=True)

    @property
    def high_watermark(self) -> Offset:
        return self._core.high_watermark if self._core is not None else self._initial_high_watermark

    @property
    def core(self) -> Leader | None:
        return self._core

    @property
    def is_serving(self) -> bool:
        """It takes all that is published, without an acknowledgement, too."""
        return self._is_heard and not self.ended and self.context.metadata.lease_valid(self.context.now())

    def on_view(self, view: PartitionView) -> None:
        self.view = view
        self._configure()
        if self._core is not None and not self.ended:
            self._run(self._core.on_view(view, self.context.now()))
            self._schedule()

    def _lacks_key(self) -> TidelogError | None:
        """It leads nevertheless: following and being followed need no key. The controller gives the leadership to a
        member of the ISR that has one; until then, or for good if there is none, publishes are refused."""
        if not self.view.config.encryption or self._cipher.can_encrypt:
            return None
        return self._until_another_leads(
            self.context.keyring.lacks_a_key(f"cannot encrypt what is published to {self.view.key}")
        )

    def _until_another_leads(self, error: TidelogError) -> TidelogError:
        if len(self.view.isr) < 2 or self._cipher.can_encrypt:
            return error
        return TidelogError(
            Code.UNAVAILABLE,
            f"{error.message}; another in-sync replica is asked to lead {self.view.key}",
            {"retry_after_ms": "50"},
        )

    def on_connection(self, connected: bool) -> None:
        if connected:
            self._configure()
        if self._core is not None:
            self._core.on_connection(connected, self.context.now())
            if connected:
                self._run(self._core.announce())

    def on_log_start(self) -> None:
        if self._core is not None:
            self._core.on_log_start(self.log.log_start_offset)

    def on_space(self, no_space: bool) -> None:
        core = self._core
        if core is not None:
            self._carefully(lambda: self._run(core.on_space(no_space, self.context.now())))
            self._schedule()

    def on_disk(self, hangs: bool) -> None:
        core = self._core
        if core is not None:
            self._carefully(lambda: self._run(core.on_disk(hangs, self.context.now())))
            self._schedule()

    def drain(self, move: LeaderMove, timeout: float, answer: DrainAnswer) -> None:
        """Stop sequencing until the target of a planned move has everything; see `dataplane.replica.leader`."""
        core = self._core
        if self.ended or core is None or move.leader_epoch != self.leader_epoch:
            answer(
                TidelogError(
                    Code.LEADER_NOT_MOVED,
                    f"{self.context.broker} does not lead {self.view.key} in LeaderEpoch {move.leader_epoch} now;"
                    " look again",
                )
            )
            return
        self._carefully(lambda: self._begin_drain(core, _Mover(move, answer), timeout))

    def _begin_drain(self, core: Leader, mover: _Mover, timeout: float) -> None:
        self._seal()  # what has come in was accepted
        target = mover.move.target
        log.info(
            "partition %s: stops sequencing at offset %d, so that %s can lead",
            self.view.key, core.log_end_offset, target,
        )  # fmt: skip
        self._run(core.drain(target, mover, timeout, self.context.now()))
        self._schedule()

    def _tick(self) -> None:
        if self._core is not None:
            self._run(self._core.tick(self.context.now()))

    def _next_deadline(self) -> float:
        return self._core.next_deadline() if self._core is not None else float("inf")

    # ------------------------------------------------------------------ appending
    def _wants_batch(self) -> bool:
        core = self._core
        if core is None or not self._syncing:
            return core is not None
        # Where many logs wait for the disk the batch grows until this one has been synced.
        return core.has_waiting_follower and not self.context.syncer.is_crowded

    def _seal(self) -> None:
        """The open batch of bare publishes goes into the log."""
        core = self._core
        if self.ended or core is None or not self._ingest.open_records:
            return
        batch, replies, envelopes = self._ingest.take(self._compression)
        header = self._append(batch)
        if isinstance(header, TidelogError):
            self.context.counters.dropped_refused += batch.record_count
            for _, run in replies:
                self._refuse_bare(run, header)
            for _, message, received in envelopes:
                self._refuse_envelope(self._without_offset(message, received), header)
            return
        now = self.context.now()
        base, end = header.base_offset, header.end_offset
        effects: list[LeaderEffect] = []
        if replies:
            runs = [(Offset(base + index), run) for index, run in replies]
            token = BareReplies(runs, needs_lease=self._level.is_local)
            effects += core.await_ack(self._level, end, token, self._confirm_timeout, now)
        envelopes = [waiting for waiting in envelopes if envelope_waits(waiting[1])]
        for index, message, received in envelopes:
            waits_for_all = envelope_waits_for_all(message)
            level = self._level if waits_for_all else ack_level(self.view, by_leader=True)
            reply = EnvelopeReply(message, self.view.subject, Offset(base + index), received, level.is_local)
            effects += core.await_ack(level, end, reply, self._confirm_timeout, now)
        waiting = sum(len(run) for _, run in replies) * REPLY_BYTES + len(envelopes) * ENVELOPE_BYTES
        effects += core.on_appended(end, header.size + waiting, now)
        self._run(effects)
        self._schedule()

    def _append(self, batch: EncodedBatch) -> BatchHeader | TidelogError:
        """Stamp, encrypt where the stream asks for it, and append; the caller tells the core. An error: nothing was
        stored for want of room, or the log has failed, and this replica withdraws."""
        parts, header = batch.stamp(self.log.log_end_offset, self.leader_epoch, self.context.time_ns())
        if self.view.config.encryption:
            parts, header = self._cipher.encrypt(header, batch.parts)
        try:
            self.context.space.append(self.log, parts, [header])
        except NoSpace as e:
            self.context.counters.refused_no_space += 1
            return TidelogError(Code.NO_SPACE, f"{self.context.broker} has no room for {self.view.key}: {e}")
        except LogDamaged as e:
            self.fail(f"append failed: {e}")
            return self._append_failed()
        counters = self.context.counters
        counters.batches_in += 1
        counters.records_in += batch.record_count
        counters.bytes_in += header.size
        return header

    def _request_sync(self) -> None:
        self._syncing = True
        super()._request_sync()

    def _on_synced(self, durable_end: Offset) -> None:
        core = self._core
        if core is None:
            return
        self._syncing = self._syncs_out > 0 and durable_end < core.log_end_offset
        self._run(core.on_synced(durable_end, self.context.now()))
        self._seal()

    def _refuse_publish(self, acknowledged: bool) -> TidelogError | None:
        if self.ended or self.failed is not None or self._core is None:
            return TidelogError(Code.NOT_LEADER, f"{self.context.broker} does not lead {self.view.key} now; try again")
        now = self.context.now()
        return self._lacks_key() or self._core.refuse_publish(
            self._level if acknowledged else None, lease_valid=self.context.metadata.lease_valid(now), now=now
        )

    def _bare_refused(self, replies: Replies, error: TidelogError, count: int) -> None:
        if count:
            counters = self.context.counters
            if error.code is Code.RECORD_TOO_LARGE:
                counters.dropped_too_large += count
            else:
                counters.dropped_refused += count
            log.warning("partition %s: dropped %d published records: %s", self.view.key, count, error)
        if self.view.config.reply_acks:
            self._refuse_bare(replies, error)

    def _corrupt_envelope(self, reason: str, reply: bytes | None) -> None:
        self.context.counters.dropped_corrupt_envelope += 1
        log.warning(
            "partition %s: dropped a corrupt envelope published to %s: %s", self.view.key, self.view.subject, reason
        )
        if reply is not None and self.view.config.reply_acks and self._core is not None and not self.ended:
            error = TidelogError(Code.CORRUPT_ENVELOPE, f"{reason}; the envelope was not stored, send it again")
            self._refuse_bare([reply], error)

    def _envelope_refused(self, message: EnvelopeMessage, error: TidelogError) -> None:
        counters = self.context.counters
        if error.code is Code.RECORD_TOO_LARGE:
            counters.dropped_too_large += 1
        else:
            counters.dropped_refused += 1
        log.warning("partition %s: dropped an envelope: %s", self.view.key, error)
        self._refuse_envelope(self._without_offset(message, self.context.time_ns()), error)

    def _without_offset(self, message: EnvelopeMessage, received: int) -> EnvelopeReply:
        return EnvelopeReply(message, self.view.subject, Offset(-1), received, needs_lease=False)

    # Every publish without a LeaderEpoch that gets an error gets it by one of these three.

    def _told_without_epoch(self, error: TidelogError) -> TidelogError | None:
        """By the clock of this moment: the process may have stood still since the message came."""
        lease_valid = self.context.metadata.lease_valid(self.context.now())
        return told_without_epoch(error, self.context.broker, self.view, lease_valid=lease_valid)

    def _refuse_bare(self, replies: Replies, error: TidelogError) -> None:
        told = self._told_without_epoch(error)
        if told is not None:
            self._answers.bare_error(replies, told)

    def _refuse_envelope(self, reply: EnvelopeReply, error: TidelogError) -> None:
        told = self._told_without_epoch(error)
        if told is not None:
            self._answers.envelope(reply, self.context.time_ns(), told)

    def _refuse_append(self, leader_epoch: int, inbox: str | None, error: TidelogError) -> None:
        """A request that names its LeaderEpoch is stored by no other leader: `error` is all that comes of it."""
        told = error if leader_epoch else self._told_without_epoch(error)
        if told is not None:
            self._answers.error(inbox, told)

    def _append_failed(self) -> TidelogError:
        """What the disk took of it is unknown; a later life of this replica may find it whole."""
        return TidelogError(
            Code.OUTCOME_UNKNOWN, f"{self.context.broker} could not write to the log of {self.view.key}: {self.failed}"
        )

    # ------------------------------------------------------------------ `.append`
    def _on_append(self, message: Message) -> None:
        core = self._core
        if self.ended or core is None:
            return
        request = AppendRequest()
        try:
            request, buffer = decode_append(message.data)
            if self._requests.is_outlived(request):
                return
            self._requests.check_client(request)
            if request.leader_epoch > self.leader_epoch:
                return  # we are the zombie
            level = self._asked_level(request)
            self._check_append(core, request, level)
            batch = EncodedBatch.from_bytes(
                buffer, max_body_bytes=self.context.max_batch_bytes - HEADER_SIZE, record_limit=self._record_limit
            )
        except CorruptData as e:
            self.context.counters.dropped_corrupt_batch += 1
            log.warning("partition %s: dropped a corrupt batch: %s", self.view.key, e)
            error = TidelogError(Code.CORRUPT_BATCH, f"the batch does not decode: {e}; send it again")
            self._refuse_append(request.leader_epoch, message.reply, error)
            return
        except TidelogError as e:
            self._refuse_append(request.leader_epoch, message.reply, e)
            return
        self._append_batch(core, request, level, batch, message.reply)
        self._schedule()

    def _asked_level(self, request: AppendRequest) -> AckLevel | None:
        """None: no acknowledgement is wanted. Raises TidelogError(BAD_REQUEST)."""
        asked = asked_durability(request)
        if request.acks != AppendRequest.NONE:
            return ack_level(self.view, asked, by_leader=request.acks == AppendRequest.LEADER)
        if asked is not None:
            raise TidelogError(
                Code.BAD_REQUEST,
                f"durability={asked} says when to acknowledge, and acks=none never to; leave one out",
            )
        return None

    def _check_append(self, core: Leader, request: AppendRequest, level: AckLevel | None) -> None:
        """Raises TidelogError when the request may not be appended, whatever its batch holds."""
        key = self.view.key
        if request.leader_epoch and request.leader_epoch < self.leader_epoch:
            raise fenced(self.view, LeaderEpoch(request.leader_epoch))
        if request.partitioning_version and request.partitioning_version != self.view.partitioning_version:
            raise TidelogError(
                Code.STALE_PARTITIONING,
                f"stream {key.stream} is in partitioning version {self.view.partitioning_version},"
                f" the request in {request.partitioning_version}; refresh the metadata",
                {"version": str(self.view.partitioning_version)},
            )
        if self.view.state is not PartitionState.ACTIVE:
            code = Code.PARTITION_DRAINING if self.view.state is PartitionState.DRAINING else Code.PARTITION_RETIRED
            raise TidelogError(code, f"partition {key} is {self.view.state.value}; refresh the metadata")
        now = self.context.now()
        error = self._lacks_key() or core.refuse_publish(
            level, lease_valid=self.context.metadata.lease_valid(now), now=now
        )
        if error is not None:
            raise error

    def _append_batch(
        self, core: Leader, request: AppendRequest, level: AckLevel | None, batch: EncodedBatch, inbox: str | None
    ) -> None:
        self._seal()
        now = self.context.now()
        sent = batch.header
        verdict = self.log.producers.check(sent.producer_id, sent.producer_epoch, sent.base_sequence, sent.record_count)
        if isinstance(verdict, Rejected):
            self._refuse_append(request.leader_epoch, inbox, verdict.error)
            return
        if isinstance(verdict, Duplicate):
            response = AppendResponse(base_offset=verdict.base_offset, leader_epoch=self.leader_epoch, duplicate=True)
            self._run(self._await(core, request, level, verdict.end_offset, response, inbox, now))
            return
        if request.HasField("expected_last_offset") and request.expected_last_offset != core.log_end_offset - 1:
            error = TidelogError(
                Code.INCORRECT_OFFSET,
                f"the last offset of {self.view.key} is {core.log_end_offset - 1}, not {request.expected_last_offset}",
                {"last_offset": str(core.log_end_offset - 1)},
            )
            self._refuse_append(request.leader_epoch, inbox, error)
            return
        header = self._append(batch)
        if isinstance(header, TidelogError):
            self._refuse_append(request.leader_epoch, inbox, header)
            return
        end = header.end_offset
        response = AppendResponse(base_offset=header.base_offset, leader_epoch=self.leader_epoch)
        effects = self._await(core, request, level, end, response, inbox, now)
        self._run([*effects, *core.on_appended(end, header.size, now)])

    def _await(
        self,
        core: Leader,
        request: AppendRequest,
        level: AckLevel | None,
        end: Offset,
        response: AppendResponse,
        inbox: str | None,
        now: float,
    ) -> list[LeaderEffect]:
        if level is None or not inbox:
            return []
        timeout = request.confirm_timeout_ms / 1000 if request.confirm_timeout_ms else self._confirm_timeout
        return core.await_ack(level, end, AppendReply(inbox, response, needs_lease=level.is_local), timeout, now)

    # ------------------------------------------------------------------ followers
    def _on_replicate(self, message: Message) -> None:
        core = self._core
        if self.ended or core is None:
            return
        request = ReplicationRequest()
        if not self._requests.decode("replication", request, message, self._answer_header):
            return
        fetch = follower_fetch(request, message.reply or "")
        core.deletions_end = self.log.compaction_point.deletions_end
        effects = core.on_fetch(fetch, self.context.now())
        self._run(effects)
        if self._ingest.open_records and core.has_waiting_follower and self._wants_batch():
            self._seal()
        self._schedule()

    def _on_offset(self, message: Message) -> None:
        core = self._core
        if self.ended or core is None:
            return
        request = LeaderEpochOffsetRequest()
        if not self._requests.decode("offset", request, message):
            return
        answer = core.on_offset_request(LeaderEpoch(request.leaderEpoch), LeaderEpoch(request.current_leader_epoch))
        if answer is None:
            return
        if isinstance(answer, TidelogError):
            self._answers.error(message.reply, answer)
            return
        epoch, end = answer
        response = LeaderEpochOffsetResponse(
            endOffset=end,
            leader_epoch=epoch,
            current_leader_epoch=self.leader_epoch,
            log_start_offset=core.log_start_offset,
        )
        if message.reply:
            self.context.control.publish(message.reply, [response.SerializeToString()])

    def _on_checkpoint(self, message: Message) -> None:
        core = self._core
        if self.ended or core is None:
            return
        request = CheckpointRequest()
        if self._requests.decode("checkpoint", request, message, self._answer_header) and message.reply:
            self._run(core.on_checkpoint_request(checkpoints.decode_fetch(request, message.reply)))

    # ------------------------------------------------------------------ consumers
    def on_read(self, message: Message) -> None:
        if self._core is not None:
            super().on_read(message)
            return
        error = TidelogError(Code.UNAVAILABLE, f"{self.context.broker} is about to lead {self.view.key}; try again")
        self._answers.error(message.reply, error)

    def _look_up(self, position: str, request: FetchRequest, inbox: str) -> None:
        core = self._core
        if core is None:
            return
        match position:
            case "earliest":
                self._fetch_from(request, core.log_start_offset, inbox, looked_up=True)
            case "latest":
                latest = self._latest(core)
                if isinstance(latest, TidelogError):
                    self._answers.error(inbox, latest)
                else:
                    self._fetch_from(request, latest, inbox, looked_up=True)
            case _:
                self._read_for_consumer(inbox, self._fetch_from_time(core, request, inbox))

    def _on_consumer_fetch(self, fetch: ConsumerFetch) -> None:
        if self._core is not None:
            self._run(self._core.on_consumer_fetch(fetch, self.context.now()))

    def _latest(self, core: Leader) -> Offset | TidelogError:
        """Without a lease another broker may lead by now, and have told a later one; a client's never goes back."""
        if not self.context.metadata.lease_valid(self.context.now()):
            return TidelogError(
                Code.UNAVAILABLE,
                f"{self.context.broker} has not heard of a controller within its lease and may lead {self.view.key} no"
                " more; try again",
                {"retry_after_ms": "100"},
            )
        return core.latest()

    async def _fetch_from_time(self, core: Leader, request: FetchRequest, inbox: str) -> None:
        latest = self._latest(core)
        if isinstance(latest, TidelogError):
            self._answers.error(inbox, latest)
            return
        try:
            found = await self.context.loop.run_in_executor(
                self.context.readers,
                lambda: self.log.offset_for_timestamp(request.timestamp, latest, decrypt=self._cipher.decrypted),
            )
        except (LogDamaged, CorruptData, TidelogError) as e:
            self._read_failed(inbox, e)
            return
        if not self.ended:
            self._fetch_from(request, found if found is not None else latest, inbox, looked_up=True)
            self._schedule()

    def _answer_header(self) -> bytes:
        return encode_header(self.leader_epoch, self.high_watermark)

    # ------------------------------------------------------------------ effects
    def _run(self, effects: list[LeaderEffect]) -> None:
        for effect in effects:
            match effect:
                case Respond():
                    self._respond(effect)
                case RequestSync():
                    self._request_sync()
                case CompleteProduce(token, error):
                    self._complete(token, error)
                case ServeConsumer():
                    self._serve(effect)
                case Refuse(inbox, error):
                    self._answers.error(inbox, error, self._answer_header())
                case RefuseConsumer():
                    self._refuse_reader(effect)
                case Notify(replica):
                    self._notify(replica)
                case ProposeIsr(change):
                    self.context.counters.isr_proposals += 1
                    log.info(
                        "partition %s: proposes ISR %s (%s)",
                        self.view.key, ",".join(m.broker for m in change.new_isr), change.reason,
                    )  # fmt: skip
                    self.context.metadata.alter_isr(change)
                case CompleteDrain(token, error):
                    assert isinstance(token, _Mover)
                    log.info("partition %s: %s", self.view.key, error or f"{token.move.target} holds all of the log")
                    token.answer(error)
                case SendCheckpoint():
                    if self._checkpoint_reads < checkpoints.MAX_READS:
                        self._spawn(self._send_checkpoint(effect))
                case VerifyOwnCopy(offset, reason):
                    self._spawn(self._verify(offset, reason))

    def _respond(self, effect: Respond) -> None:
        header = encode_header(self.leader_epoch, effect.high_watermark)
        headers = sync_headers(effect.sync_to)
        if effect.max_bytes == 0:
            self.context.control.publish(effect.inbox, [header], headers=headers)
            return
        limit = min(effect.max_bytes, self.context.max_batch_bytes)
        parts = self.log.read(effect.offset, max_bytes=limit, end_offset=self.log.log_end_offset)
        if parts is not None:
            control = self.context.control
            self._send(control, effect.inbox, effect.offset, [header, *parts], headers, header)
        else:
            self._spawn(self._respond_cold(effect, limit))

    async def _respond_cold(self, effect: Respond, limit: int) -> None:
        try:
            data = await self._read_cold(effect.offset, limit, self.log.log_end_offset)
        except TidelogError as e:  # it was removed for its age meanwhile
            self._answers.error(effect.inbox, e, encode_header(self.leader_epoch, effect.high_watermark))
            return
        except CorruptData as e:
            self.on_damage(f"{effect.replica} asked for what lies at offset {effect.offset}: {e}")
            return
        except LogDamaged as e:
            self.fail(f"a read for follower {effect.replica} at offset {effect.offset} failed: {e}")
            return
        header = encode_header(self.leader_epoch, effect.high_watermark)
        core = self._core
        assert core is not None
        core.deletions_end = self.log.compaction_point.deletions_end
        if core.lacks_deletions(effect.replica, effect.offset):
            # Tombstones may have gone from the log between the request and the reading.
            gone = deletions_gone(self.view.key, self.log.log_start_offset, effect.offset)
            self._answers.error(effect.inbox, gone, header)
        elif not self.ended:
            headers = sync_headers(effect.sync_to)
            self._send(self.context.control, effect.inbox, effect.offset, [header, data], headers, header)

    async def _send_checkpoint(self, effect: SendCheckpoint) -> None:
        context, limit = self.context, self.context.max_batch_bytes
        header = encode_header(self.leader_epoch, effect.high_watermark)
        self._checkpoint_reads += 1
        try:
            piece = await context.loop.run_in_executor(context.readers, checkpoints.read_piece, self.log, effect, limit)
        except TidelogError as e:  # the log start has moved on
            self._answers.error(effect.inbox, e, header)
        except CorruptData as e:
            self.on_damage(f"{effect.replica} asked for the state at offset {effect.offset}: {e}")
        except LogDamaged as e:
            self.fail(f"the state at offset {effect.offset} cannot be read for follower {effect.replica}: {e}")
        else:
            if not self.ended:
                self._send(context.control, effect.inbox, effect.offset, [header, piece], None, header)
        finally:
            self._checkpoint_reads -= 1

    def _complete(self, token: object, error: TidelogError | None) -> None:
        match token:
            case BareReplies():
                error = error or self._no_lease(token.needs_lease)
                if error is None:
                    self._answers.bare(token)
                else:
                    for _, replies in token.runs:
                        self._refuse_bare(replies, error)
            case AppendReply():
                error = error or self._no_lease(token.needs_lease)
                if error is None:
                    self._answers.append(token)
                else:
                    self._answers.error(token.inbox, error)
            case EnvelopeReply():
                error = error or self._no_lease(token.needs_lease)
                if error is None:
                    self._answers.envelope(token, self.context.time_ns())
                else:
                    self._refuse_envelope(token, error)
            case _:
                raise TypeError(f"unknown token {token!r}")

    def _no_lease(self, needed: bool) -> TidelogError | None:
        if not needed or self.context.metadata.lease_valid(self.context.now()):
            return None
        return TidelogError(
            Code.OUTCOME_UNKNOWN,
            f"{self.context.broker} may lead {self.view.key} no more; the record may or may not survive",
        )

    def _notify(self, replica: BrokerId) -> None:
        key = self.view.key
        notification = PartitionNotification(
            stream=key.stream,
            partition=key.partition,
            stream_incarnation=key.stream_incarnation,
            partition_incarnation=key.partition_incarnation,
            leader_epoch=self.leader_epoch,
        )
        self.context.control.publish(self.context.subjects.notify(replica), [notification.SerializeToString()])

    async def _verify(self, offset: Offset, reason: str) -> None:
        """A follower refused what it got from `offset` on: is it our copy that is damaged?"""
        self.context.counters.bad_answers += 1
        log.warning("partition %s: a follower refused what lies at offset %d: %s", self.view.key, offset, reason)
        if offset >= self.log.log_end_offset:
            return
        try:
            await self._read_cold(offset, self.context.max_batch_bytes, self.log.log_end_offset)
        except TidelogError as e:  # it was removed for its age meanwhile
            log.info("partition %s: %s", self.view.key, e)
        except CorruptData as e:
            self.on_damage(f"a follower refused what lies at offset {offset}: {e}")
        except LogDamaged as e:
            self.fail(f"the log cannot be read at offset {offset}: {e}")
