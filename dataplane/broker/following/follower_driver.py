"""Following one partition: `dataplane.replica.follower.follower` in the middle, requests out, batches into the log and
out of it to consumers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, assert_never

from dataplane.broker.disk.space_watch import NO_SPACE_RETRY
from dataplane.broker.following.leader_answers import (
    Batches,
    decode_fetch_answer,
    decode_offset_answer,
    decode_snapshot_answer,
    encode_snapshot_request,
    install_snapshot,
)
from dataplane.broker.reading.id_learning import IdLearning
from dataplane.broker.reading.readable_role import ReadableRole
from dataplane.broker.roles.counters import Counters, counter
from dataplane.broker.roles.role import RoleCounters, RoleSetup
from dataplane.log.storage.group_commit import SMALL_BYTES
from dataplane.log.storage.log_errors import LogDamaged, NoSpace
from dataplane.replica.consumers import ConsumerFetch
from dataplane.replica.follower.follower import Follower
from dataplane.replica.follower.follower_states import Diverged
from dataplane.replica.replica_effects import (
    AppendReplicated,
    FollowerEffect,
    InstallSnapshot,
    RefuseConsumer,
    ReportLeader,
    ReportLoss,
    RequestSync,
    SendFetch,
    SendOffsetRequest,
    SendSnapshotRequest,
    ServeConsumer,
    StartOver,
    Truncate,
)
from wire.error_details import LEADER
from wire.errors import Code, CorruptData, InvariantViolation, TidelogError
from wire.messaging.transport import NO_RESPONDERS, Message
from wire.protobuf.tidelog_pb2 import FetchRequest, LeaderEpochOffsetRequest, ReplicationRequest
from wire.types import LeaderEpoch, Offset, PartitionView

_log = logging.getLogger(__name__)

CACHED_BYTES = 16 << 20
"""Bytes at the end of a log that is followed, and not read, that stay in the page cache. A consumer that keeps up, or
another follower, asks for them when this replica leads next. More memory is better spent on the logs that are led."""

_T = TypeVar("_T")


@dataclass
class FollowerCounters(Counters):
    leader_reports: int = counter("times", "leaders that were reported to the controller because they did not answer")
    losses_reported: int = counter(
        "times",
        "leaders that were reported because they lack committed records which are here",
    )
    truncations: int = counter("times", "logs that were cut at a change of leader")
    truncated_records: int = counter("records", "records that were cut off; they were not committed")
    skip_ahead_total: int = counter("times", "logs that were begun anew at a leader's log start")


class FollowerDriver(ReadableRole):
    title = "following"

    def __init__(self, setup: RoleSetup, first_sequence: int) -> None:
        super().__init__(setup)
        context, view, partition_log = setup.context, setup.view, setup.log
        self._fetch_inbox: str | None = None
        self._offset_inbox: str | None = None
        self._offset_number = 0
        """Number of the question whose answers come to that inbox."""
        self._snapshot_inbox: str | None = None
        self._batches: Batches | None = None
        """The batches of the answer at hand; valid while its AppendReplicated is carried out."""
        key = view.key
        self._replicate_subject = context.subjects.replicate(key.stream, key.partition)
        self._request = ReplicationRequest(
            replicaID=context.broker,
            leaderEpoch=view.leader_epoch,
            stream_incarnation=key.stream_incarnation,
            partition_incarnation=key.partition_incarnation,
        )
        """One message for all requests of this role: most fields never change."""
        partition_log.cached_bytes = CACHED_BYTES
        self._ids = IdLearning(self)
        self.sequence = first_sequence
        """Last request number used: the next life of this role goes on above it."""
        self.core = Follower(
            view=view,
            broker=context.broker,
            log_start_offset=partition_log.log_start_offset,
            log_end_offset=partition_log.log_end_offset,
            durable_end=partition_log.durable_end,
            high_watermark=setup.high_watermark,
            epochs=partition_log.epochs,
            transactions=partition_log.transactions,
            settings=context.settings,
            first_sequence=first_sequence,
            connected_since=context.peers.connected_since,
            now=context.now(),
            no_space=context.space.is_full,
            disk_hangs=context.disk.hangs,
            history=self.history,
            withheld_below=partition_log.withheld_below,
        )

    # ------------------------------------------------------------------ beginning and end
    async def start(self) -> None:
        _log.info(
            "partition %s: following %s in LeaderEpoch %d from offset %d",
            self.view.key, self.view.leader, self.leader_epoch, self.log.log_end_offset,
        )  # fmt: skip
        self._run(self.core.start(self.context.now()))
        if self.core.owes_a_sync:
            self._syncs.request()
        self._ids.later()
        self.timer.schedule()

    async def _let_go(self, reason: str) -> None:
        self._ids.stop()
        self._run(self.core.resign(reason, self.context.now()))
        for inbox in (self._fetch_inbox, self._offset_inbox, self._snapshot_inbox):
            if inbox is not None:
                self.context.peers.on_inbox(inbox, None)

    @property
    def high_watermark(self) -> Offset:
        return self.core.high_watermark

    def on_view(self, view: PartitionView) -> None:
        self.view = view
        self._run(self.core.on_view(view, self.context.now()))
        self.timer.schedule()

    def on_connection(self, connected: bool) -> None:  # noqa: ARG002 - the core wants to know since when
        if not self.ended:
            self._run(self.core.on_connection(self.context.peers.connected_since, self.context.now()))
            self.timer.schedule()

    def on_log_start(self) -> None:
        self.core.on_log_start(self.log.log_start_offset)

    def on_space(self, no_space: bool) -> None:
        self.carefully(lambda: self._run(self.core.on_space(no_space, self.context.now())))
        self.timer.schedule()

    def on_disk(self, hangs: bool) -> None:
        self.carefully(lambda: self._run(self.core.on_disk(hangs, self.context.now())))
        self.timer.schedule()

    def on_notification(self, leader_epoch: LeaderEpoch) -> None:
        if not self.ended:
            self._run(self.core.on_notification(leader_epoch, self.context.now()))
            self.timer.schedule()

    @property
    def parked(self) -> int | None:
        """The number of its fetch that waits at the leader, while it is in step."""
        return None if self.ended else self.core.parked

    def on_parked_answer(self, sequence: int, is_held: bool, asked_at: float) -> None:
        """Whether the leader, asked at `asked_at`, holds the fetch with that number."""
        if not self.ended:
            now = self.context.now()
            self.carefully(lambda: self._run(self.core.on_parked_answer(sequence, is_held, asked_at, now)))
            if not is_held:  # else the timer fires early, and is armed anew then
                self.timer.schedule()

    def _tick(self) -> None:
        self._run(self.core.tick(self.context.now()))

    def _next_deadline(self) -> float:
        return self.core.next_deadline()

    def _on_synced(self, durable_end: Offset) -> None:
        self._run(self.core.on_synced(durable_end, self.context.now()))

    # ------------------------------------------------------------------ consumers
    def _look_up(self, position: str, request: FetchRequest, inbox: str) -> None:  # noqa: ARG002 - none is known here
        error = TidelogError(
            Code.NOT_LEADER,
            f"{self.context.broker} does not lead {self.view.key} and cannot look {position!r} up; ask the leader",
            [LEADER.of(self.view.leader or "")],
        )
        self.answers.error(inbox, error)

    def _on_consumer_fetch(self, fetch: ConsumerFetch) -> None:
        self.log.cached_bytes = None
        self._run(self.core.on_consumer_fetch(fetch, self.context.now()))

    def _read_refusal(self) -> TidelogError | None:
        return self.core.read_refusal(self.context.now())

    # ------------------------------------------------------------------ answers
    def _on_fetch_answer(self, sequence: int, message: Message) -> None:
        if self.ended:
            return
        now = self.context.now()
        if message.status == NO_RESPONDERS:
            if sequence == self.sequence or self._fetch_inbox is not None:
                self._run(self.core.on_no_responders(now))
            self.timer.schedule()
            return
        try:
            decoded = decode_fetch_answer(sequence, message)
        except CorruptData as e:
            self._note_bad_answer(e)
            self._run(self.core.on_bad_answer(sequence, str(e), now))
            self.timer.schedule()
            return
        if decoded is None:
            return
        answer, self._batches = decoded
        stopped = self.core.stopped
        try:
            self._run(self.core.on_answer(answer, now))
        finally:
            self._batches = None
            self.log.withheld_below = self.core.withheld_below
        if answer.error is not None and self.core.stopped is answer.error:
            self.context.the(RoleCounters).answers_too_large += 1
            if stopped is None:
                _log.error("partition %s: nothing is copied from the leader: %s", self.view.key, answer.error.message)
        self.timer.schedule()

    def _note_bad_answer(self, error: CorruptData) -> None:
        self.context.the(RoleCounters).bad_answers += 1
        _log.warning("partition %s: refused an answer of the leader: %s", self.view.key, error)

    def _finds_no_leader(self, message: Message, now: float) -> bool:
        if message.status != NO_RESPONDERS:
            return False
        self._run(self.core.on_no_responders(now))
        self.timer.schedule()
        return True

    def _on_offset_answer(self, number: int, message: Message) -> None:
        if self.ended:
            return
        now = self.context.now()
        if self._finds_no_leader(message, now):
            return
        try:
            answer = decode_offset_answer(number, message, self.leader_epoch)
        except CorruptData as e:  # it is asked for again
            self._note_bad_answer(e)
            return
        self._run(self.core.on_offset_answer(answer, now))
        self.timer.schedule()

    def _on_snapshot_answer(self, number: int, message: Message) -> None:
        if self.ended:
            return
        now = self.context.now()
        if self._finds_no_leader(message, now):
            return
        try:
            answer = decode_snapshot_answer(number, message)
        except CorruptData as e:  # it is asked for again
            self._note_bad_answer(e)
            return
        self._run(self.core.on_snapshot_answer(answer, now))
        self.timer.schedule()

    # ------------------------------------------------------------------ effects
    def _run(self, effects: list[FollowerEffect]) -> None:
        for effect in effects:
            match effect:
                case SendFetch():
                    self._send_fetch(effect)
                case SendOffsetRequest(asked_epoch, number):
                    self._send_offset_request(asked_epoch, number)
                case AppendReplicated(high_watermark):
                    self._append(high_watermark)
                case RequestSync():
                    self._syncs.request()
                case Truncate(offset, gives_up_committed):
                    self.spawn(self._truncate(offset, gives_up_committed))
                case SendSnapshotRequest():
                    self._send_snapshot_request(effect)
                case InstallSnapshot():
                    self.spawn(self._install(effect))
                case StartOver():
                    self.spawn(self._start_over())
                case ReportLeader(report):
                    self.context.the(FollowerCounters).leader_reports += 1
                    self.context.metadata.report_leader(report)
                case ReportLoss(loss):
                    assert isinstance(self.core.state, Diverged)
                    self.context.the(FollowerCounters).losses_reported += 1
                    _log.error("partition %s: %s", self.view.key, self.core.state.error.message)
                    self.context.metadata.report_loss(loss)
                case ServeConsumer():
                    self._serve(effect)
                case RefuseConsumer():
                    self._refuse_reader(effect)
                case _:
                    assert_never(effect)

    def _send_fetch(self, effect: SendFetch) -> None:
        self.sequence = effect.sequence
        request = self._request
        request.offset = effect.offset
        request.broker_incarnation = self.context.incarnation
        request.sequence = effect.sequence
        request.progress_only = effect.progress_only
        request.refused_batch = effect.refused_batch
        request.no_space = effect.no_space
        request.disk_hangs = effect.disk_hangs
        request.deleted_end = self.log.compaction_point.deleted_end
        request.log_start_offset = effect.log_start_offset
        if effect.durable_end is None:
            request.ClearField("durable_offset")
        else:
            request.durable_offset = effect.durable_end
        peers, subject = self.context.peers, self._replicate_subject
        if effect.progress_only:
            peers.publish(subject, [request.SerializeToString()], to=self.view.leader)
            return
        if self._fetch_inbox is not None:
            peers.on_inbox(self._fetch_inbox, None)
        inbox = self._fetch_inbox = peers.new_inbox()
        on_answer = self._handler(partial(self._on_fetch_answer, effect.sequence))
        peers.on_inbox(inbox, on_answer, as_view=True)
        peers.publish(subject, [request.SerializeToString()], reply=inbox, to=self.view.leader)

    def _send_offset_request(self, asked: LeaderEpoch, number: int) -> None:
        key = self.view.key
        request = LeaderEpochOffsetRequest(
            leaderEpoch=asked,
            replica_id=self.context.broker,
            current_leader_epoch=self.leader_epoch,
            broker_incarnation=self.context.incarnation,
            stream_incarnation=key.stream_incarnation,
            partition_incarnation=key.partition_incarnation,
        )
        peers = self.context.peers
        inbox = self._offset_inbox
        if inbox is None or number != self._offset_number:
            if inbox is not None:
                peers.on_inbox(inbox, None)
            inbox, self._offset_number = peers.new_inbox(), number
            self._offset_inbox = inbox
            peers.on_inbox(inbox, self._handler(lambda message: self._on_offset_answer(number, message)))
        subject = self.context.subjects.offset(key.stream, key.partition)
        peers.publish(subject, [request.SerializeToString()], reply=inbox, to=self.view.leader)

    def _send_snapshot_request(self, effect: SendSnapshotRequest) -> None:
        key, peers = self.view.key, self.context.peers
        if self._snapshot_inbox is not None:
            peers.on_inbox(self._snapshot_inbox, None)
        inbox = self._snapshot_inbox = peers.new_inbox()
        peers.on_inbox(inbox, self._handler(lambda message: self._on_snapshot_answer(effect.number, message)))
        request = encode_snapshot_request(effect, key, self.leader_epoch, self.context)
        peers.publish(self.context.subjects.snapshot(key.stream, key.partition), [request], reply=inbox)

    def _append(self, high_watermark: Offset) -> None:
        if self._batches is None:
            raise AssertionError("AppendReplicated without an answer at hand")
        data, headers = self._batches
        try:
            self.context.space.append(self.log, [data], headers)
        except NoSpace:  # `on_space` brings it to the core, which fetches this again when there is room
            self.context.the(RoleCounters).refused_no_space += 1
            return
        except (LogDamaged, InvariantViolation) as e:
            self.fail(f"append failed: {e}")
            return
        if any(header.has_message_ids for header in headers):
            self._ids.later()
        is_durable, syncer = self.view.config.is_durable, self.context.syncer
        try:
            durable_end = syncer.at_once(self.log) if is_durable else None
        except LogDamaged as e:
            self.fail(f"fdatasync failed: {e}")
            return
        effects = self.core.on_appended(
            self.log.log_end_offset,
            high_watermark,
            self.context.now(),
            durable_end=durable_end,
            sync_first=is_durable and len(data) <= SMALL_BYTES and syncer.is_crowded,
        )
        self._run(effects)

    async def _truncate(self, offset: Offset, gives_up_committed: bool) -> None:
        await self._finish_cold_reads()
        if self.ended:
            return
        before = self.log.log_end_offset
        set_aside = _SettingAside(self, offset, gives_up_committed)

        def cut() -> Offset:
            set_aside()
            return self.ids.cutting(self.log, lambda: self.log.truncate(offset))

        try:
            end = await self._with_room(cut)
        except CorruptData as e:
            self.on_damage(f"truncating to {offset} failed: {e}")
            return
        except (LogDamaged, InvariantViolation) as e:
            self.fail(f"truncating to {offset} failed: {e}")
            return
        if end is None:
            return
        self.context.the(FollowerCounters).truncations += 1
        self.context.the(FollowerCounters).truncated_records += before - end
        _log.info("partition %s: truncated from %d to %d", self.view.key, before, end)
        if not self.ended:
            self._run(self.core.on_truncated(self.log.log_start_offset, end, self.context.now()))
            self.log.withheld_below = self.core.withheld_below
            self.timer.schedule()

    async def _install(self, effect: InstallSnapshot) -> None:
        await self._finish_cold_reads()
        if self.ended:
            return
        context, before = self.context, self.log.log_end_offset
        set_aside = _SettingAside(self, effect.offset, effect.gives_up_committed)
        try:
            start = await self._with_room(
                lambda: self.ids.cutting(
                    self.log,
                    lambda: install_snapshot(self.log, effect, self.leader_epoch, set_aside),
                    begins_anew=True,
                )
            )
        except CorruptData as e:
            context.the(RoleCounters).bad_answers += 1
            _log.warning("partition %s: refused the leader's state at offset %d: %s", self.view.key, effect.offset, e)
            if not self.ended:
                self._run(self.core.on_bad_snapshot(context.now()))
                self.timer.schedule()
            return
        except LogDamaged as e:
            self.fail(f"beginning anew at offset {effect.offset} failed: {e}")
            return
        if start is None:
            return
        context.the(FollowerCounters).skip_ahead_total += 1
        _log.warning(
            "partition %s: the log ended at %d here and cannot go on as the leader's does; it begins anew at offset"
            " %d, with leader epochs %s and %d producers",
            self.view.key, before, effect.offset, self.log.epochs, len(self.log.producers),
        )  # fmt: skip
        self._has_begun_anew()

    async def _start_over(self) -> None:
        await self._finish_cold_reads()
        if self.ended:
            return

        def drop() -> bool:
            self.ids.cutting(self.log, lambda: self.log.drop_all(Offset(0)), begins_anew=True)
            return True

        try:
            dropped = await self._with_room(drop)
        except LogDamaged as e:
            self.fail(f"beginning anew at offset 0 failed: {e}")
            return
        if dropped:
            self._has_begun_anew()

    def _has_begun_anew(self) -> None:
        if not self.ended:
            self._run(self.core.on_truncated(self.log.log_start_offset, self.log.log_end_offset, self.context.now()))
            self.log.withheld_below = self.core.withheld_below
            self.timer.schedule()

    async def _with_room(self, work: Callable[[], _T]) -> _T | None:
        """`work` on the log, off the loop, again and again while the disk is full. None: this role has ended."""
        while not self.ended:
            try:
                return await self.context.loop.run_in_executor(self.context.executor, work)
            except NoSpace as e:
                self.context.space.refused(e)
                await asyncio.sleep(NO_SPACE_RETRY)
        return None


class _SettingAside:
    """To be called, in a thread, before the log of `role` is cut to `end`, or dropped: copies what goes into the
    quarantine, once, where some of it is committed. An operator gave it up, or a page cache lost it, and it may be
    nowhere else (R74)."""

    def __init__(self, role: FollowerDriver, end: Offset, is_due: bool) -> None:
        self._role = role
        self._end = end
        self._is_due = is_due
        self._committed = role.core.high_watermark
        self._reason = (
            f"the log was cut to offset {end}, below its committed end {self._committed}: LeaderEpoch"
            f" {role.view.loss_epoch} began with an election of a replica that may lack committed records"
        )
        if is_due:
            _log.error("partition %s: %s; what is cut stays in its quarantine/", role.view.key, self._reason)

    def __call__(self) -> None:
        """Raises LogDamaged, NoSpace, CorruptData."""
        if not self._is_due:
            return
        context, log = self._role.context, self._role.log
        report = log.checking.set_aside(self._end, self._committed, self._reason, when_ns=context.time_ns())
        self._is_due = False
        context.loop.call_soon_threadsafe(self._role.on_quarantined, report)
