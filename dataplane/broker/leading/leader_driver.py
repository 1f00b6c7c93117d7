"""Drives `dataplane.replica.leader.leader`: subscriptions in, the core in the middle, log and answers out.

A `LeaderDriver` is made once its LeaderEpoch is recorded (`begin_leader_epoch`), so that it has a core from its first
moment. Its parts: publishes (`dataplane.broker.leading.appending`, `append_requests`), ends of transactions
(`dataplane.broker.leading.transaction_marks`), followers (`dataplane.broker.leading.follower_service`), consumers
(`dataplane.broker.reading.readable_role`).

Subjects, all subscribed when leadership begins and given up when it ends (a killed process loses them at once, which
lets others see its death as a 503):

    between brokers      <ns>.<stream>.<p>.replicate   .offset   .checkpoint   .mark
    ingest connection    the stream's subject          .append   .fetch

Bare publishes and envelopes come on the partition's own subject, and on those of partitions that keys are not
spread over any more (`PlainSubjects`); views change them while it leads.

Batches are appended in the event loop (page cache), answered to waiting followers before our own fdatasync begins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, assert_never

from dataplane.broker.leading.append_requests import AppendRequests
from dataplane.broker.leading.appending import Appending
from dataplane.broker.leading.bounds_of_all import BoundsOfAll
from dataplane.broker.leading.follower_service import FollowerService
from dataplane.broker.leading.transaction_marks import TransactionMarks
from dataplane.broker.reading.id_learning import IdLearning
from dataplane.broker.reading.readable_role import ReadableRole
from dataplane.broker.roles.broker_context import BrokerContext
from dataplane.broker.roles.counters import Counters, counter
from dataplane.broker.roles.role import RoleSetup, RoleSubscriptions, Subscribe
from dataplane.encryption.bodies import OVERHEAD
from dataplane.log.partition_log import PartitionLog
from dataplane.log.storage.log_errors import LogDamaged
from dataplane.replica.consumers import ConsumerFetch
from dataplane.replica.leader.leader import Leader
from dataplane.replica.leader.partitioning import plain_subjects
from dataplane.replica.replica_effects import (
    CompleteDrain,
    CompleteProduce,
    LeaderEffect,
    Notify,
    ProposeIsr,
    ProposePause,
    Refuse,
    RefuseConsumer,
    ReportCutover,
    RequestSync,
    Respond,
    SendSnapshot,
    ServeConsumer,
    VerifyOwnCopy,
)
from dataplane.replica.replies import LocalReply, MarkReply, MoveRequest
from wire.batch import EncodedBatch
from wire.error_details import RETRY_AFTER_MS
from wire.errors import Code, CorruptData, TidelogError
from wire.internal_streams import is_of_internal
from wire.messaging.transport import Message, MessageHandler, PeerTransport, Subscription, Transport
from wire.protobuf.tidelog_pb2 import FetchRequest, PartitionNotification
from wire.types import (
    BrokerId,
    Buffer,
    DrainAnswer,
    Incarnation,
    IsrMember,
    LeaderEpoch,
    LeaderMove,
    Offset,
    PartitionEpoch,
    PartitionKey,
    PartitionState,
    PartitionView,
    RetiredReport,
)

_log = logging.getLogger(__name__)


@dataclass
class LeaderCounters(Counters):
    elections_won: int = counter("times", "leaderships that began here")
    isr_proposals: int = counter("times", "changes of an ISR that leaders here asked for")


class PlainSubjects:
    """The subjects on which one leader takes plain messages and envelopes. They follow its views while it leads.

    Subscribing waits for the connection, however long that takes; the subjects that are wanted by then count. It can be
    given up at any time, also before it has begun."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, subscribe: Callable[[str], Coroutine[Any, Any, Subscription]]
    ) -> None:
        self._loop = loop
        self._subscribe = subscribe
        self.wanted: tuple[str, ...] = ()
        self._held: dict[str, Subscription] = {}
        self._settling: asyncio.Task[None] | None = None
        self._has_begun = False
        self._is_given_up = False

    def follow(self, wanted: tuple[str, ...]) -> None:
        """Listen on these from now on, or as soon as it begins."""
        self.wanted = wanted
        if self._has_begun:
            self._settle_soon()

    async def begin(self) -> bool:
        """Returns when it listens on all that are wanted; False when that was given up. Raises OSError."""
        self._has_begun = True
        self._settle_soon()
        if self._settling is not None:
            await asyncio.wait({self._settling})
            if not self._settling.cancelled():
                self._settling.result()
        return not self._is_given_up

    def give_up(self) -> None:
        self._is_given_up = True
        if self._settling is not None:
            self._settling.cancel()

    async def drop(self) -> None:
        """Gives up subscribing, and releases all subscriptions."""
        self.give_up()
        if self._settling is not None:
            await asyncio.wait({self._settling})
        held, self._held = self._held, {}
        await asyncio.gather(*(subscription.unsubscribe() for subscription in held.values()), return_exceptions=True)

    def _settle_soon(self) -> None:
        if not self._is_given_up and self._differs() and (self._settling is None or self._settling.done()):
            self._settling = self._loop.create_task(self._settle())
            self._settling.add_done_callback(self._on_settled)

    def _differs(self) -> bool:
        return self._held.keys() != set(self.wanted)

    async def _settle(self) -> None:
        while self._differs():
            wanted = set(self.wanted)
            left = [self._held.pop(subject) for subject in self._held.keys() - wanted]
            await asyncio.gather(
                *(subscription.unsubscribe() for subscription in left),
                *(self._hold(subject) for subject in sorted(wanted - self._held.keys())),
            )

    async def _hold(self, subject: str) -> None:
        self._held[subject] = await self._subscribe(subject)

    def _on_settled(self, settled: asyncio.Task[None]) -> None:
        error = None if settled.cancelled() else settled.exception()
        if error is not None:
            _log.error("subscribing to %s: %r; the next view tries it again", ", ".join(self.wanted), error)


class OwnPartition:
    """The `LedPartition` of one leader."""

    def __init__(self, role: ReadableRole, core: Leader, appending: Appending) -> None:
        self._role = role
        self._core = core
        self._appending = appending
        self._on_end: list[Callable[[], None]] = []

    @property
    def key(self) -> PartitionKey:
        return self._role.view.key

    @property
    def subject(self) -> str:
        return self._role.view.subject

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return self._role.leader_epoch

    @property
    def log_start_offset(self) -> Offset:
        return self._role.log.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        return self._core.log_end_offset

    @property
    def high_watermark(self) -> Offset:
        return self._core.high_watermark

    @property
    def max_batch_bytes(self) -> int:
        return self._role.context.max_batch_bytes - OVERHEAD

    async def read_committed(self, offset: Offset) -> Sequence[Buffer]:
        return await self._role.read_committed(offset)

    def append(self, batch: EncodedBatch, timeout: float, done: Callable[[TidelogError | None], None]) -> None:
        if batch.size > self.max_batch_bytes:  # it could be sent to no follower
            done(
                TidelogError(
                    Code.RECORD_TOO_LARGE,
                    f"a batch of {batch.size} bytes for {self.key}; {self.max_batch_bytes} are taken",
                )
            )
            return
        self._await(lambda: self._appending.append_local(batch, timeout, LocalReply(done)), done)

    def on_committed(self, end: Offset, timeout: float, done: Callable[[TidelogError | None], None]) -> None:
        self._await(lambda: self._appending.await_committed(end, timeout, LocalReply(done)), done)

    def _await(self, ask: Callable[[], None], done: Callable[[TidelogError | None], None]) -> None:
        is_asked = False

        def asking() -> None:
            nonlocal is_asked
            ask()
            is_asked = True

        self._role.carefully(asking)
        if not is_asked:  # a bug, which is in the log
            done(TidelogError(Code.INTERNAL, f"{self.key} cannot be appended to; see the log"))

    def on_end(self, handler: Callable[[], None]) -> None:
        self._on_end.append(handler)

    def end(self) -> None:
        handlers, self._on_end = self._on_end, []
        for handler in handlers:
            handler()


# R3: A leader begins in this order: it syncs its whole tail, records (LeaderEpoch, LEO), and only then subscribes. The
# entry becomes durable behind the log in front of it, and with its first record at the latest. The leader knows nothing
# of its followers' progress and starts from its own HW. If its disk fails here, the replica withdraws (R23) and another
# one is elected.
# Hazard: An epoch entry survives a crash, and the records in front of it do not.
async def begin_leader_epoch(context: BrokerContext, view: PartitionView, partition_log: PartitionLog) -> None:
    """First the tail of the log is synced, then (LeaderEpoch -> LEO) is recorded. Raises LogDamaged."""
    try:
        await context.loop.run_in_executor(
            context.executor, partition_log.assign_epoch, view.leader_epoch, partition_log.log_end_offset
        )
    except LogDamaged as e:
        raise LogDamaged(f"cannot begin LeaderEpoch {view.leader_epoch}: {e}") from e


class LeaderDriver(ReadableRole):
    title = "leading"

    def __init__(self, setup: RoleSetup) -> None:
        super().__init__(setup)
        context, partition_log = setup.context, setup.log
        partition_log.cached_bytes = None
        partition_log.producers.begin_leading(context.metadata.next_producer_id())
        self._is_subscribed = False
        """NATS brings it everything that is published and asked."""
        self._subscriptions = RoleSubscriptions(context.loop)
        self._plain = PlainSubjects(
            context.loop,
            lambda subject: context.ingest.subscribe_bulk(subject, self._bulk_handler(self._appending.ingest)),
        )
        self._subjects: list[str] = []
        self._logged_proposal: tuple[PartitionEpoch, tuple[IsrMember, ...]] | None = None
        self.core = Leader(
            view=setup.view,
            broker=context.broker,
            incarnation=context.incarnation,
            log_start_offset=partition_log.log_start_offset,
            log_end_offset=partition_log.log_end_offset,
            durable_end=partition_log.durable_end,
            high_watermark=setup.high_watermark,
            epochs=partition_log.epochs,
            transactions=partition_log.transactions,
            settings=context.settings,
            now=context.now(),
            withheld_below=partition_log.withheld_below,
            no_space=context.space.is_full,
            disk_hangs=context.disk.hangs,
            shared=context.the(BoundsOfAll).uncommitted,
            budget=context.the(BoundsOfAll).catching_up,
            history=self.history,
        )
        self._appending = Appending(self, self.core, self.ids, self._run)
        self._append_requests = AppendRequests(self, self.core, self._appending, self._run)
        self._followers = FollowerService(self, self.core, self._appending, self._run)
        self._marking = TransactionMarks(self, self.core, self._appending, self._run)
        self._own = OwnPartition(self, self.core, self._appending)

    # ------------------------------------------------------------------ beginning and end
    async def start(self) -> None:
        """Returns once NATS brings everything that is published and asked."""
        context, view = self.context, self.view
        context.the(LeaderCounters).elections_won += 1
        # Before the first publish comes: a publisher that got no answer from the leader before sends it again.
        if not await IdLearning(self).learn(context.executor):
            return
        self._appending.repetitions.begin()
        is_subscribed = await self._subscribe()
        if self.is_over():  # meanwhile
            await self._plain.drop()
            await self._subscriptions.drop()
        if self.is_over() or not is_subscribed:
            return
        _log.info(
            "partition %s: leading LeaderEpoch %d from offset %d, HW %d, ISR %s",
            view.key, view.leader_epoch, self.core.epoch_start, self.core.high_watermark, ",".join(view.isr),
        )  # fmt: skip
        for subject in context.not_permitted(self.subjects()):
            self.history.add(f"does not hear {subject!r}: NATS does not let it subscribe", context.now())
        self._is_subscribed = True
        context.on_led(self._own)
        self._run([*self.core.announce(), *self.core.tick(context.now())])
        self.timer.schedule()

    def give_up_starting(self) -> None:
        self._subscriptions.give_up()
        self._plain.give_up()

    def begin_to_end(self, reason: str) -> asyncio.Task[None]:
        ending = super().begin_to_end(reason)
        self._own.end()
        return ending

    def subjects(self) -> list[str]:
        """That it listens on, from `start` on."""
        return [*self._plain.wanted, *self._subjects]

    def _follow_subjects(self) -> None:
        if not is_of_internal(self.view.key, self.view.subject, self.context.subjects):
            self._plain.follow(plain_subjects(self.view))

    async def _subscribe(self) -> bool:
        context, subjects, key = self.context, self.context.subjects, self.view.key

        def listen(transport: Transport | PeerTransport, subject: str, handle: MessageHandler) -> Subscribe:
            self._subjects.append(subject)
            return lambda: transport.subscribe(subject, self._handler(handle))

        peers, ingest = context.peers, context.ingest
        if is_of_internal(key, self.view.subject, subjects):
            of_publishers = [
                listen(peers, subjects.write(key.stream, key.partition), self._append_requests.on_append),
                listen(peers, subjects.last(key.stream, key.partition), self._on_last),
            ]
        else:
            of_publishers = [
                listen(ingest, subjects.append(key.stream, key.partition), self._append_requests.on_append),
                listen(ingest, subjects.leader(key.stream, key.partition), self.on_leader_question),
                listen(peers, subjects.mark(key.stream, key.partition), self._marking.on_mark),
            ]
        self._follow_subjects()
        made = self._subscriptions.make(
            *of_publishers,
            listen(peers, subjects.replicate(key.stream, key.partition), self._followers.on_replicate),
            listen(peers, subjects.offset(key.stream, key.partition), self._followers.on_offset),
            listen(peers, subjects.snapshot(key.stream, key.partition), self._followers.on_snapshot_request),
            listen(ingest, subjects.fetch(key.stream, key.partition), self._on_fetch),
        )
        return all(await asyncio.gather(made, self._plain.begin()))

    async def _let_go(self, reason: str) -> None:
        self._subscriptions.give_up()
        self._plain.give_up()
        try:
            with ExitStack() as steps:  # backwards, and each of them whatever the one before raises
                steps.callback(lambda: self._run(self.core.resign(reason, self.context.now())))
                steps.callback(self._append_requests.abandon, reason)
                steps.callback(self._appending.abandon, reason)
        finally:
            await asyncio.gather(self._subscriptions.drop(), self._plain.drop())

    @property
    def high_watermark(self) -> Offset:
        return self.core.high_watermark

    @property
    def is_serving(self) -> bool:
        """It takes all that is published, without an acknowledgement, too."""
        return self._is_subscribed and not self.ended and self.context.metadata.lease_valid(self.context.now())

    def on_view(self, view: PartitionView) -> None:
        if view.readonly or view.awaits_cutover or not view.is_routed:
            self.carefully(self._appending.seal)  # the records of the open batch were accepted
        self.view = view
        self._appending.configure()
        if not self.ended:
            self._run(self.core.on_view(view, self.context.now()))
            self._follow_subjects()
            self.carefully(self._appending.look)
            self.carefully(self._append_requests.on_view)
            self.timer.schedule()

    def on_connection(self, connected: bool) -> None:
        if connected:
            self._appending.configure()
        self.core.on_connection(connected, self.context.now())
        if connected:
            self._run(self.core.announce())

    def settled_start(self) -> Offset:
        return self.core.settled_start(self.context.now())

    def holds(self, replica: BrokerId, incarnation: Incarnation, leader_epoch: LeaderEpoch, sequence: int) -> bool:
        """Whether the fetch of `replica` with that number waits here (R83)."""
        if self.ended or not self._is_subscribed:
            return False
        return self.core.on_parked(replica, incarnation, leader_epoch, sequence, self.context.now())

    def on_log_start(self) -> None:
        self.core.on_log_start(self.log.log_start_offset)

    def on_space(self, no_space: bool) -> None:
        self.carefully(lambda: self._run(self.core.on_space(no_space, self.context.now())))
        self.timer.schedule()

    def on_disk(self, hangs: bool) -> None:
        self.carefully(lambda: self._run(self.core.on_disk(hangs, self.context.now())))
        self.timer.schedule()

    def drain(self, move: LeaderMove, timeout: float, answer: DrainAnswer) -> None:
        """Stop sequencing until the target of a planned move has everything; see `dataplane.replica.leader.leader`."""
        if self.ended or move.leader_epoch != self.leader_epoch:
            answer(
                TidelogError(
                    Code.LEADER_NOT_MOVED,
                    f"{self.context.broker} does not lead {self.view.key} in LeaderEpoch {move.leader_epoch} now;"
                    " look again",
                )
            )
            return
        self.carefully(lambda: self._begin_drain(MoveRequest(move, answer), timeout))

    def _begin_drain(self, request: MoveRequest, timeout: float) -> None:
        self._appending.seal()  # the records of the open batch were accepted
        target = request.move.target
        _log.info(
            "partition %s: stops sequencing at offset %d, so that %s can lead",
            self.view.key, self.core.log_end_offset, target,
        )  # fmt: skip
        self._run(self.core.drain(target, request, timeout, self.context.now()))
        self.timer.schedule()

    def _tick(self) -> None:
        self._run(self.core.tick(self.context.now()))
        self._appending.look()

    def _next_deadline(self) -> float:
        return min(self.core.next_deadline(), self._appending.next_deadline())

    def _on_synced(self, durable_end: Offset) -> None:
        self._appending.on_synced(durable_end)

    def until_another_leads(self, error: TidelogError) -> TidelogError:
        if len(self.view.isr) < 2 or self.cipher.can_encrypt:
            return error
        return TidelogError(
            Code.UNAVAILABLE,
            f"{error.message}; another in-sync replica is asked to lead {self.view.key}",
            [RETRY_AFTER_MS.of(50)],
        )

    # ------------------------------------------------------------------ consumers
    def _look_up(self, position: str, request: FetchRequest, inbox: str) -> None:
        match position:
            case "earliest":
                self._fetch_from(request, self.first_record, inbox, looked_up=True)
            case "latest":
                latest = self.latest(read_uncommitted=request.read_uncommitted)
                if isinstance(latest, TidelogError):
                    self.answers.error(inbox, latest)
                else:
                    self._fetch_from(request, latest, inbox, looked_up=True)
            case "span":
                self._read_for_consumer(inbox, self._look_up_span(request, inbox))
            case _:
                self._read_for_consumer(inbox, self._look_up_time(request, inbox))

    def _on_consumer_fetch(self, fetch: ConsumerFetch) -> None:
        self._run(self.core.on_consumer_fetch(fetch, self.context.now()))

    def latest(self, *, read_uncommitted: bool = False) -> Offset | TidelogError:
        """Exclusive end for readers. Without a lease another broker may lead by now, and have answered with a later
        end; the end that a client sees never goes back."""
        if not self.context.metadata.lease_valid(self.context.now()):
            return TidelogError(
                Code.UNAVAILABLE,
                f"{self.context.broker} has not heard of a controller within its lease and may lead {self.view.key} no"
                " more; try again",
                [RETRY_AFTER_MS.of(100)],
            )
        return self.core.latest(read_uncommitted=read_uncommitted)

    async def _look_up_time(self, request: FetchRequest, inbox: str) -> None:
        latest = self.latest(read_uncommitted=request.read_uncommitted)
        if isinstance(latest, TidelogError):
            self.answers.error(inbox, latest)
        else:
            await self._fetch_from_time(request, latest, inbox)

    async def _look_up_span(self, request: FetchRequest, inbox: str) -> None:
        latest = self.latest(read_uncommitted=request.read_uncommitted)
        if isinstance(latest, TidelogError):
            self.answers.error(inbox, latest)
        else:
            await self._find_span(request, latest, inbox)

    # ------------------------------------------------------------------ brokers that write internal streams
    def _on_last(self, message: Message) -> None:
        """A broker asks for the last committed batch; the answer is empty where there is none."""
        if self.ended or not message.reply:
            return
        end = self.latest()
        if isinstance(end, TidelogError):
            self.peer_answers.error(message.reply, end)
        elif end <= self.first_record:
            self.context.peers.publish(message.reply, [b""])
        else:
            self.spawn(self._send_last(end, message.reply))

    async def _send_last(self, end: Offset, inbox: str) -> None:
        offset = Offset(end - 1)
        try:
            data = (await self.read_plain(offset, end, self.context.max_batch_bytes)).parts
        except TidelogError as e:
            self.peer_answers.error(inbox, e)
        except CorruptData as e:
            self.on_damage(f"a broker asked for what lies at offset {offset}: {e}")
        except LogDamaged as e:
            self.fail(f"the log cannot be read at offset {offset}: {e}")
        else:
            if not self.ended:
                self.send(self.context.peers, inbox, offset, data)

    # ------------------------------------------------------------------ effects
    def _run(self, effects: list[LeaderEffect]) -> None:
        for effect in effects:
            match effect:
                case Respond():
                    self._followers.respond(effect)
                case RequestSync():
                    self._appending.syncing = True
                    self._syncs.request()
                case CompleteProduce(MarkReply() as token, error):
                    self._marking.complete(token, error)
                case CompleteProduce(token, error):
                    self._appending.complete(token, error)
                case ServeConsumer():
                    self._serve(effect)
                case Refuse(inbox, error):
                    self.peer_answers.error(inbox, error, self.answer_header())
                case RefuseConsumer():
                    self._refuse_reader(effect)
                case Notify(replica):
                    self._notify(replica)
                case ProposeIsr(change):
                    self.context.the(LeaderCounters).isr_proposals += 1
                    # Without a controller the same change is proposed again every second.
                    if self._logged_proposal != (change.expected_epoch, change.new_isr):
                        self._logged_proposal = (change.expected_epoch, change.new_isr)
                        isr = ",".join(member.broker for member in change.new_isr)
                        _log.info("partition %s: proposes ISR %s (%s)", self.view.key, isr, change.reason)
                    self.context.metadata.alter_isr(change)
                case ProposePause(change):
                    _log.info("partition %s: asks to be %s", self.view.key, "paused" if change.paused else "resumed")
                    self.context.metadata.alter_paused(change)
                case ReportCutover(report):
                    _log.info(
                        "partition %s: partitioning version %d begins at offset %d",
                        self.view.key, report.version, report.end_offset,
                    )  # fmt: skip
                    self.context.metadata.report_cutover(report)
                case CompleteDrain(token, error):
                    _log.info("partition %s: %s", self.view.key, error or f"{token.move.target} holds all of the log")
                    token.answer(error)
                case SendSnapshot():
                    self._followers.send_snapshot(effect)
                case VerifyOwnCopy(offset, reason):
                    self.spawn(self._followers.verify(offset, reason))
                case _:
                    assert_never(effect)

    def _notify(self, replica: BrokerId) -> None:
        key = self.view.key
        notification = PartitionNotification(
            stream=key.stream,
            partition=key.partition,
            stream_incarnation=key.stream_incarnation,
            partition_incarnation=key.partition_incarnation,
            leader_epoch=self.leader_epoch,
        )
        subject = self.context.subjects.notify(replica)
        self.context.peers.publish(subject, [notification.SerializeToString()], to=replica)


def report_if_retired(role: LeaderDriver) -> None:
    """Tell the controller that the partition is retired, and retention has removed all of its records. All replicas go
    by that. So every one that is relied on has said in this LeaderEpoch that it has no more than this one, whose log
    may have been lost (R74)."""
    view, log, context = role.view, role.log, role.context
    if view.state is not PartitionState.RETIRED or not role.is_serving:
        return
    if log.log_start_offset < log.log_end_offset or role.high_watermark < log.log_end_offset:
        return
    if view.eligible or len(view.isr) < view.config.min_isr:
        return
    if any(role.core.progress()[member][0] != log.log_end_offset for member in view.isr):
        return
    context.metadata.report_retired(
        RetiredReport(key=view.key, leader=context.broker, leader_epoch=view.leader_epoch, expected_epoch=view.epoch)
    )
