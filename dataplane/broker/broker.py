"""A broker's data plane: it reconciles the replicas that are here with the metadata.

Metadata tells the wanted state (`on_partitions`); this compares it with the actual one. Nothing is led or followed
before the registration of this process is applied, because only then do views arrive.

## Changes that concern all replicas

Events of the broker that all of its replicas get: its connection, the room on its disk, a disk that hangs.

A role may answer with a request to another broker, and 20,000 of them take a second. So replicas get them in turns, one
change after the other. Nothing rests on their getting them at once:

    connection   a leader that does not know of a loss proposes to shrink its ISR for lags of `replica_max_lag_time`
                 alone, which is much longer; one that does not know that it is back proposes nothing. Acknowledgements
                 depend on the lease, not on the connection
    room         appends ask `SpaceWatch`, which is the first to know
    disk         a disk has hung for `replica_max_lag_time` when the first replica gets the event

The events are changes, and not the newest state: a follower whose append found no room asks for the records again
once it has got both events, that there is none and that there is some.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from heapq import nlargest
from itertools import chain, islice
from random import Random
from typing import Final

from google.protobuf.message import DecodeError

from dataplane.broker.disk.space_watch import SpaceWatch
from dataplane.broker.following.follower_driver import FollowerDriver
from dataplane.broker.leading.bounds_of_all import BoundsOfAll
from dataplane.broker.leading.leader_driver import LeaderDriver
from dataplane.broker.leading.publish_gaps import PublishGaps
from dataplane.broker.parked_fetches import ParkedFetches
from dataplane.broker.replica import DamageCounters, Replica
from dataplane.broker.roles.broker_context import BrokerContext
from dataplane.broker.roles.counters import Counters, counter, counts
from dataplane.broker.roles.request_prologue import RequestCounters
from dataplane.broker.roles.role_changes import RoleChanges
from dataplane.broker.upkeep.compaction_job import Compaction
from dataplane.broker.upkeep.housekeeping import Housekeeping, SnapshotJob
from dataplane.broker.upkeep.hw_checkpoints import HighWatermarkCheckpoints
from dataplane.broker.upkeep.retention import Eviction, Retention
from dataplane.broker.upkeep.scrub import Scrubber
from dataplane.log.partition_log import LogConfig
from dataplane.log.recovery.log_recovery import RecoveryReport
from dataplane.log.storage.data_dir import DataDir
from dataplane.log.storage.log_errors import DataDirError, LogDamaged, NoSpace
from dataplane.replica.derived.producer_table import ProducerLimits, ProducerTable
from dataplane.replica.history import History
from wire.errors import Code, TidelogError
from wire.messaging.transport import Message, Subscription
from wire.operations.api_operations import ReplicaEvent, Traffic
from wire.operations.reports import (
    BrokerReport,
    ReplicaReport,
    ReportedLag,
    StreamReport,
    StreamUsage,
    UsageReport,
    total_traffic,
)
from wire.protobuf.tidelog_pb2 import PartitionNotification
from wire.turns import Steps, in_turns, pieces
from wire.types import (
    DrainAnswer,
    Generation,
    Incarnation,
    LeaderEpoch,
    LeaderMove,
    LogEnd,
    PartitionGone,
    PartitionKey,
    PartitionView,
    RoleProgress,
    Room,
    StreamName,
)

_log = logging.getLogger(__name__)

OF_REPLICA: Final = 4
"""Looks that one event costs a replica."""


@dataclass
class DiskCounters(Counters):
    times_full: int = counter(
        "times",
        "the disk became too full for records: leaderships and ISR memberships were given up",
    )
    times_disk_hung: int = counter(
        "times",
        "a sync did not return for longer than `replica_max_lag_time`: the same; more than once is a disk"
        " to be replaced",
    )


class ReplicaNews:
    """`replicas`: of the broker. One that is added later knows."""

    def __init__(self, loop: asyncio.AbstractEventLoop, replicas: Mapping[PartitionKey, Replica]) -> None:
        self._loop = loop
        self._replicas = replicas
        self._pending: deque[tuple[Sequence[Replica], Callable[[Replica], None]]] = deque()
        """Oldest change first. Changes are seconds apart."""
        self._notifying: asyncio.Task[None] | None = None

    def notify(self, change: Callable[[Replica], None]) -> None:
        """Calls `change` for each replica."""
        self._pending.append(([*self._replicas.values()], change))
        if self._notifying is None:
            self._notifying = self._loop.create_task(in_turns(self._notify_all()))

    def close(self) -> None:
        """Tells nothing more."""
        if self._notifying is not None:
            self._notifying.cancel()

    def _notify_all(self) -> Steps[None]:
        while self._pending:
            replicas, change = self._pending.popleft()
            for replica in replicas:
                try:
                    change(replica)
                except Exception:  # noqa: BLE001 - it is logged, and the other replicas get the event
                    _log.exception("partition %s met a bug", replica.key)
                yield OF_REPLICA
        self._notifying = None


_LOOKED_THROUGH = 1_000
"""Replicas whose stream is looked at before `Steps` yield."""
MAX_LAGS: Final = 10
"""Limit of the lagging followers that a status names."""
LAG_REPORTED_S: Final = 1.0
"""Followers that are behind for less are no news: on a busy partition each one is, all the time."""
_LOOKED_AT = 100
"""The same, of those that are looked at more closely."""
_OF_STATUS = 15
"""Looks that the status of a replica takes as long as."""
_CLOSED_AT_ONCE = 50
"""Replicas that begin to close before others have their turn, and limit of the logs that are removed at a time because
they were found at start and are not this broker's any more."""
MOST_NAMED: Final = 10
"""A log line names at most so many partitions, and counts the others."""
OPENED_AT_ONCE = 4
"""Logs, at start; no more than the executor has threads."""


async def open_replicas(
    data_dir: DataDir, executor: Executor, space: SpaceWatch, producers: ProducerLimits
) -> tuple[list[Replica], tuple[PartitionKey, ...]]:
    """Open and recover every log that is in the data folder, or must be there, before this broker registers. Returns
    the replicas, and the unsound ones of them: they must be out of every ISR before anything is cut or served from
    them. Raises DataDirError."""
    loop = asyncio.get_running_loop()
    survived, in_order = data_dir.proof().page_cache_survived, data_dir.left_in_order
    config = LogConfig(producers=producers)
    replicas = [_replica(key, config, data_dir) for key in data_dir.known_partitions()]
    turns = asyncio.Semaphore(OPENED_AT_ONCE)

    async def open_one(replica: Replica) -> bool:
        opening = partial(replica.open, page_cache_survived=survived, left_in_order=in_order)
        async with turns:
            return await _is_sound(replica, space.when_there_is_room(partial(loop.run_in_executor, executor, opening)))

    sound = await asyncio.gather(*map(open_one, replicas))
    await space.when_there_is_room(partial(loop.run_in_executor, executor, data_dir.write_manifest))
    return replicas, tuple(r.key for r, is_sound in zip(replicas, sound, strict=True) if not is_sound)


def _replica(key: PartitionKey, config: LogConfig, data_dir: DataDir) -> Replica:
    entry = data_dir.manifest_entry(key)
    if data_dir.manifest.is_lost:  # its log may have been here before
        entry.add()
    directory = data_dir.partition_directory(key)
    return Replica(key, directory, config, files=data_dir.files, pool=data_dir.pool, entry=entry)


async def _is_sound(replica: Replica, opening: Awaitable[RecoveryReport]) -> bool:
    key = replica.key
    try:
        report = await opening
    except LogDamaged as e:
        replica.machine.on_unusable(str(e))
        _log.error("partition %s: the log cannot be opened and leaves the ISR: %s", key, e)
        return False
    except Exception as e:  # noqa: BLE001 - one partition does not stop the broker
        replica.machine.on_unusable(f"the log cannot be opened: {e!r}")
        _log.exception("partition %s: the log cannot be opened and leaves the ISR", key)
        return False
    if report.damaged is not None:
        _log.error("partition %s: the log is damaged and leaves the ISR: %s", key, report.damaged)
        return False
    if report.truncated_bytes:
        _log.info("partition %s: cut a torn tail of %d bytes", key, report.truncated_bytes)
    return True


def _named(keys: Sequence[PartitionKey]) -> str:
    """Returns the names of the first MOST_NAMED partitions, and how many more there are."""
    shown = sorted(map(str, keys))
    return ", ".join(shown[:MOST_NAMED]) + (f" and {len(shown) - MOST_NAMED} more" if len(shown) > MOST_NAMED else "")


class Broker:
    def __init__(self, context: BrokerContext, data_dir: DataDir, replicas: Sequence[Replica]) -> None:
        """`replicas`: what `open_replicas` found."""
        self.context = context
        self._data_dir = data_dir
        self._replicas: dict[PartitionKey, Replica] = {}
        self._by_name: dict[tuple[str, int], Replica] = {}
        self._parked = ParkedFetches(context, self._replicas)
        self._notifications: Subscription | None = None
        self._scrubber = Scrubber(context.storage, Random(f"{context.broker} {context.time_ns()}"))
        compaction = Compaction(context.storage, context.keyring, lambda: context.max_batch_bytes)
        jobs = (SnapshotJob(), Retention(), compaction, self._scrubber)
        self._housekeeping = Housekeeping(context, self._replicas, jobs)
        self._hw_checkpoints = HighWatermarkCheckpoints(context, self._replicas, data_dir.manifest)
        self._news = ReplicaNews(context.loop, self._replicas)
        self._gaps = PublishGaps(context, self._led)
        context.the(BoundsOfAll).producers.tables = self._producer_tables
        self._leaving: dict[PartitionKey, asyncio.Task[None]] = {}
        self._coming_back: dict[PartitionKey, PartitionView] = {}
        """Newest views of partitions whose logs are being removed: the replica begins anew when that has ended."""
        self._removing = asyncio.Lock()
        """The data folder is one thread's at a time."""
        self._counting: set[asyncio.Task[None]] = set()
        """Each writes down that a log that was taken back counts."""
        self._unknown = {replica.key for replica in replicas}
        """Logs in the data folder of which no view has come yet."""
        self._not_ours: dict[PartitionKey, None] = {}
        """Logs in the data folder that are still to be removed, for the partitions are not this broker's any more."""
        self._leaving_all: asyncio.Task[None] | None = None
        self._has_unremoved = False
        """A log that is not this broker's could not be removed."""
        self._closed = False
        for replica in replicas:
            self._add(replica)
            context.the(DamageCounters).damage_found += int(replica.is_damaged)

    # ------------------------------------------------------------------ beginning and end
    async def start(self) -> None:
        context = self.context
        self._notifications = await context.peers.subscribe(
            context.subjects.notify(context.broker), self._on_notification
        )
        await self._parked.start()
        context.control.on_connection_change(self._on_connection)
        context.ingest.on_connection_change(self._gaps.on_connection)
        self._hw_checkpoints.start()
        self._housekeeping.start()
        context.disk.on_change = self._on_disk
        context.disk.start()
        context.space.on_room = self._on_room
        context.space.evict = Eviction(context, self._replicas).run
        context.space.start()

    async def close(self) -> bool:
        """False: the disk hangs, and the logs that the broker's log names stay open, with threads that wait for it. No
        log was closed for `replica_max_lag_time` then."""
        context = self.context
        self._closed = True  # metadata goes on for a while: nothing begins any more
        self._news.close()
        if self._leaving_all is not None:
            self._leaving_all.cancel()
        await self._hw_checkpoints.close()
        # A step that hangs is no reason to keep the roles; its log is not closed before the step ends.
        await asyncio.wait(
            {context.loop.create_task(self._housekeeping.close())}, timeout=context.settings.replica_max_lag_time
        )
        await context.disk.close()
        await context.space.close()
        await self._parked.close()
        if self._notifications is not None:
            await self._notifications.unsubscribe()
        reason = f"{context.broker} is shutting down"
        closing: dict[asyncio.Task[None], PartitionKey] = {}
        for replicas in pieces([*self._replicas.items()], _CLOSED_AT_ONCE):
            closing |= {context.loop.create_task(r.close(context, reason)): key for key, r in replicas}
            await asyncio.sleep(0)
        closing |= {task: key for key, task in self._leaving.items()}
        unclosed = await self._until_closed(closing)
        for task in closing.keys() - unclosed:
            if not task.cancelled() and (error := task.exception()) is not None:
                _log.error("partition %s: while closing: %r", closing[task], error)
        if unclosed:
            _log.error(
                "nothing has come of closing the logs of %s for %.1f s: the disk hangs, or has too much to do; they are"
                " left as they are",
                _named([closing[task] for task in unclosed]), context.settings.replica_max_lag_time,
            )  # fmt: skip
            return False
        return await self._write_manifest()

    async def _write_manifest(self) -> bool:
        """It says then how far the closed logs reach, also where the broker does not end in order otherwise. False: the
        disk hangs."""
        context, manifest = self.context, self._data_dir.manifest
        writing = asyncio.ensure_future(context.loop.run_in_executor(context.executor, manifest.sync))
        ended, _ = await asyncio.wait({writing}, timeout=context.settings.replica_max_lag_time)
        if not ended:
            _log.error("the disk hangs: the manifest does not say how far the logs reach")
        elif (error := writing.exception()) is not None:
            _log.error("%s", error)
        return bool(ended)

    async def _until_closed(self, closing: Iterable[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
        """The ones that are left when none has ended for `replica_max_lag_time`."""
        waiting = set(closing)
        while waiting:
            ended, waiting = await asyncio.wait(waiting, timeout=self.context.settings.replica_max_lag_time)
            if not ended:
                break
        return waiting

    # ------------------------------------------------------------------ metadata
    def log_ends(self) -> Steps[dict[PartitionKey, LogEnd]]:
        """How far the logs of sound replicas reach."""
        ends: dict[PartitionKey, LogEnd] = {}
        for replicas in pieces([*self._replicas.items()], _LOOKED_AT):
            ends.update((key, reach) for key, replica in replicas if (reach := replica.reach) is not None)
            yield _LOOKED_AT
        return ends

    # Keeps R5.
    def on_registered(self, incarnation: Incarnation) -> None:
        """The registration of this process is applied; a broker that was declared dead registers once more."""
        self.context.incarnation = incarnation

    @property
    def role_progress(self) -> RoleProgress:
        changes = self.context.the(RoleChanges)
        return RoleProgress(changes.pending, changes.done)

    def on_partitions(self, changes: Sequence[PartitionView | PartitionGone]) -> None:
        if self._closed:
            return
        if not self.context.incarnation:
            _log.error("%d partitions of a broker that is not registered are left alone", len(changes))
            return
        # Partitions to be led come first: their followers wait for their leaders.
        for change in sorted(changes, key=self._is_followed):
            self._unknown.discard(change.key)
            self._not_ours.pop(change.key, None)
            if isinstance(change, PartitionGone):
                self._leave(change.key)
            else:
                self._reconcile(change)

    def on_all_partitions(self) -> None:
        """All views have come for the first time. Logs of other partitions are removed."""
        if self._closed:
            return
        self._data_dir.manifest.settled()
        keys = sorted(self._unknown)
        self._unknown.clear()
        if not keys:
            self._settle()
        else:
            _log.info("%d partitions are not this broker's any more; their logs go: %s", len(keys), _named(keys))
            self._not_ours = dict.fromkeys(keys)
            self._leaving_all = self.context.loop.create_task(self._leave_all())

    async def _leave_all(self) -> None:
        """Leaves those that are not this broker's any more, _CLOSED_AT_ONCE at a time. One that has become this
        broker's again meanwhile goes on with its log."""
        while self._not_ours and not self._closed:
            keys = [*islice(self._not_ours, _CLOSED_AT_ONCE)]
            tasks = [task for key in keys if (task := self._leave(key)) is not None]
            for key in keys:
                del self._not_ours[key]
            if tasks:
                await asyncio.wait(tasks)
                self._has_unremoved |= any(task.cancelled() or task.exception() is not None for task in tasks)
        if not self._closed:
            self._settle()

    # Keeps R86.
    def _settle(self) -> None:
        """Every log in the data folder is of a partition that the metadata have given this broker. After the cluster
        began anew that is written down: what goes later goes by decisions that are known."""
        recovered_at = self.context.metadata.recovered_at
        if not recovered_at or self._has_unremoved or self._data_dir.settled > recovered_at:
            return
        try:
            self._data_dir.settle()
        except (DataDirError, NoSpace) as e:
            _log.warning("logs that leave this broker while it is down will be kept: %s", e)

    # Keeps R86.
    def _given_at(self, replica: Replica) -> Generation | None:
        """Returns a generation of the cluster state by which this broker has the replica; None: it may have it by a
        state of before the cluster began anew."""
        if replica.assigned_at is not None:
            return replica.assigned_at
        settled = self._data_dir.settled
        return Generation(settled) if settled > self.context.metadata.recovered_at else None

    def _is_followed(self, change: PartitionView | PartitionGone) -> bool:
        return isinstance(change, PartitionGone) or change.leader != self.context.broker

    def drain(self, move: LeaderMove, timeout: float, answer: DrainAnswer) -> None:
        """Get ready for a planned move of a leadership held here."""
        replica = self._replicas.get(move.key)
        if replica is None or not isinstance(replica.role, LeaderDriver):
            answer(TidelogError(Code.LEADER_NOT_MOVED, f"{self.context.broker} does not lead {move.key}; look again"))
            return
        replica.role.drain(move, timeout, answer)

    # Keeps R6, R86.
    def _reconcile(self, view: PartitionView) -> None:
        replica = self._replicas.get(view.key)
        if replica is None and view.key in self._leaving:
            self._coming_back[view.key] = view
            return
        if replica is None:
            config = LogConfig(segment_bytes=view.config.segment_bytes, producers=self.context.storage.producers)
            replica = _replica(view.key, config, self._data_dir)
            if view.leader in (None, self.context.broker):  # no leader has its records
                replica.take_back = partial(self._data_dir.take_back, view.key)
            self._add(replica)
        if replica.assigned_at is None:
            replica.assigned_at = self.context.metadata.generation
        try:
            replica.on_view(view, self.context)
        except Exception as e:  # noqa: BLE001 - a view comes once: the others must not be lost with this one
            _log.exception("partition %s: its view cannot be followed", view.key)
            replica.fail(repr(e), self.context)
        if replica.is_taken_back and self.context.broker in (view.leader, *view.isr):
            replica.is_taken_back = False
            task = self.context.loop.create_task(self._count(replica.key))
            self._counting.add(task)
            task.add_done_callback(self._counting.discard)

    # Keeps R86.
    async def _count(self, key: PartitionKey) -> None:
        """The log of `key`, which was taken back, counts as a copy: if it leaves, enough others have its records."""
        try:
            async with self._removing:
                await self.context.loop.run_in_executor(self.context.executor, self._data_dir.count, key)
        except OSError as e:
            _log.warning("partition %s: its log will be kept when it leaves this broker: %s", key, e)

    def _add(self, replica: Replica) -> None:
        key = replica.key
        self._replicas[key] = replica
        self._parked.add(replica)
        present = self._by_name.get((key.stream, key.partition))
        if present is None or present.key < key:
            self._by_name[key.stream, key.partition] = replica

    # R86: The log of a replica that is removed goes with it, by a state in which this process is registered: every
    # assignment that an earlier process of the broker knew of stands in front of the registration, so no older state
    # removes a log. Where the cluster has begun anew the assignment may be a decision that was lost, unless this
    # process has seen one that is not, or an earlier one had no log left but those of such assignments, and has written
    # that down; the log is kept under another name then. A partition that comes back while its log is removed waits for
    # the end of that, and begins with an empty log; one whose log is still there reconciles it as any replica outside
    # the ISR. A broker that becomes a replica while nobody leads takes the log back that it has kept so, with its HW:
    # an operator may let it lead, and another leader that lacks some of it is known (R74). Until it has led or joined
    # the ISR it may be the only copy: if it leaves before, in whatever process, it is kept under another name again.
    # Hazard: A state that is older than an assignment removes the only copy; a removal that takes the log of the
    # partition's next replica.
    def _leave(self, key: PartitionKey) -> asyncio.Task[None] | None:
        """Returns the task that closes and removes its log; None: there is none."""
        self._coming_back.pop(key, None)
        replica = self._replicas.pop(key, None)
        if replica is None:
            return None
        self._parked.remove(key)
        if self._by_name.get((key.stream, key.partition)) is replica:
            del self._by_name[key.stream, key.partition]
        task = self.context.loop.create_task(self._close_and_remove(replica))
        self._leaving[key] = task
        task.add_done_callback(lambda _: self._left(key))
        return task

    def _left(self, key: PartitionKey) -> None:
        del self._leaving[key]
        view = self._coming_back.pop(key, None)
        if view is not None and not self._closed:
            self._reconcile(view)

    async def _close_and_remove(self, replica: Replica) -> None:
        try:
            await self._housekeeping.leave(replica.key)
            await replica.close(self.context, f"stream {replica.key.stream} was deleted or moved away")
            is_kept = self.context.metadata.is_of_lost_decisions(
                replica.key, self._given_at(replica)
            ) or await self.context.loop.run_in_executor(
                self.context.executor, self._data_dir.is_taken_back, replica.key
            )
            if is_kept:
                await self.context.loop.run_in_executor(
                    self.context.executor, self._data_dir.file_checkpoint, replica.key
                )
            await replica.leave_manifest(self.context)
            async with self._removing:
                kept = await self.context.loop.run_in_executor(
                    self.context.executor, partial(self._data_dir.remove_partition, replica.key, sets_aside=is_kept)
                )
            if kept is not None:
                _log.error(
                    "partition %s is not this broker's, and a decision that was lost when the cluster began anew"
                    " (tidelog cluster recover) may have made it, or placed it here: its log is kept in %s. `tidelog"
                    " log dump --records` reads it. If the partition is offline, and lacks these records, `tidelog"
                    " stream reassign` it to this broker, which takes the log back then. Remove the folder when the"
                    " partition has these records, or nobody needs them",
                    replica.key, kept,
                )  # fmt: skip
        except (OSError, DataDirError) as e:
            self._has_unremoved = True
            _log.error("partition %s: its folder cannot be removed: %s", replica.key, e)

    # ------------------------------------------------------------------ events
    def _on_notification(self, message: Message) -> None:
        notification = PartitionNotification()
        try:
            notification.ParseFromString(message.data)
        except DecodeError as e:
            self.context.the(RequestCounters).bad_requests += 1
            _log.warning("dropped a notification that does not decode: %s", e)
            return
        replica = self._by_name.get((notification.stream, notification.partition))
        if replica is None or not isinstance(replica.role, FollowerDriver):
            return
        key = replica.key
        if (notification.stream_incarnation, notification.partition_incarnation) == (
            key.stream_incarnation,
            key.partition_incarnation,
        ):
            replica.role.on_notification(LeaderEpoch(notification.leader_epoch))

    def _on_connection(self, connected: bool) -> None:
        self._news.notify(lambda replica: replica.on_connection(connected))

    def _on_room(self, room: Room) -> None:
        is_full = room is Room.FULL
        if is_full:
            self.context.the(DiskCounters).times_full += 1
        self._news.notify(lambda replica: replica.on_space(is_full))

    def _on_disk(self, hangs: bool) -> None:
        self.context.the(DiskCounters).times_disk_hung += int(hangs)
        self._news.notify(lambda replica: replica.on_disk(hangs))

    # ------------------------------------------------------------------ status
    def stream_status(
        self, stream: StreamName, partitions: Collection[int] = (), history_of: int | None = None
    ) -> Steps[StreamReport]:
        """State of the replicas of a stream that this broker holds. `partitions`: only of these; none: of all.
        `history_of`: the partition whose last events are wanted, too."""
        found: list[Replica] = []
        if partitions:
            named = ((stream, number) for number in {*partitions})
            found = [self._by_name[name] for name in named if name in self._by_name]
        else:
            for replicas in pieces([*self._replicas.values()], _LOOKED_THROUGH):
                found += [replica for replica in replicas if replica.key.stream == stream]
                yield len(replicas) // 10
        reports: list[ReplicaReport] = []
        for replica in found:
            report = self._replica_status(replica)
            if replica.key.partition == history_of:
                report["history"] = self._events_of(replica.history)
            reports.append(report)
            yield _OF_STATUS
        return {"partitions": reports}

    def _events_of(self, history: History) -> list[ReplicaEvent]:
        now, wall_ns = self.context.now(), self.context.time_ns()
        return [
            {
                "seconds_ago": round(now - at, 3),
                "time": datetime.fromtimestamp(wall_ns / 1e9 - (now - at), UTC).isoformat(timespec="milliseconds"),
                "event": event,
                "times": times,
            }
            for at, event, times in history.events
        ]

    def _replica_status(self, replica: Replica) -> ReplicaReport:
        scrubbed_at = self._scrubber.completed_at_ns(replica.log) if replica.log is not None else None
        key, listens = replica.key, []
        if isinstance(replica.role, LeaderDriver):
            listens = replica.role.subjects()
        of_consumers = self.context.subjects.fetch_from(key.stream, key.partition, self.context.broker)
        not_permitted = self.context.not_permitted([of_consumers, *listens])
        return {
            **replica.status(),
            "scrubbed_at_ns": scrubbed_at,
            "not_heard": not_permitted,
            "bytes_on_disk": replica.bytes_on_disk,
            "traffic": replica.traffic.report(self.context.now()),
        }

    def usage(self, after: str = "", upto: str | None = None) -> Steps[UsageReport]:
        """Bytes of the replicas of each stream on this disk, and their traffic. Only of streams with names after
        `after`, up to `upto`; None: up to the last one."""
        now, by_stream = self.context.now(), dict[str, StreamUsage]()
        wanted: list[Replica] = []
        for replicas in pieces([*self._replicas.values()], _LOOKED_THROUGH):
            names = (replica.key.stream for replica in replicas)
            wanted += [
                replica
                for replica, name in zip(replicas, names, strict=True)
                if after < name and (upto is None or name <= upto)
            ]
            yield len(replicas) // 10
        for replicas in pieces(wanted, _LOOKED_AT):
            traffic: dict[StreamName, list[Traffic]] = {}
            for replica in replicas:
                stream = replica.key.stream
                usage = by_stream.get(stream)
                if usage is None:
                    usage = by_stream[stream] = {"bytes_on_disk": {}, "traffic": total_traffic([])}
                usage["bytes_on_disk"][str(replica.key.partition)] = replica.bytes_on_disk
                if replica.traffic.has_counted:
                    traffic.setdefault(stream, []).append(replica.traffic.report(now))
            for name, of_stream in traffic.items():
                by_stream[name]["traffic"] = total_traffic([by_stream[name]["traffic"], *of_stream])
            yield len(replicas) + 2 * sum(map(len, traffic.values()))
        return {"streams": by_stream}

    def _producer_tables(self) -> Iterator[ProducerTable]:
        return (replica.log.producers for replica in self._replicas.values() if replica.log is not None)

    def _led(self) -> list[PartitionView]:
        roles = [replica.role for replica in self._replicas.values()]
        return [role.view for role in roles if isinstance(role, LeaderDriver)]

    @property
    def has_failed_replicas(self) -> bool:
        return any(replica.failure for replica in self._replicas.values())

    def status(self) -> Steps[BrokerReport]:
        leaders = bytes_on_disk = 0
        failed: list[str] = []
        damaged: list[str] = []
        lags: list[ReportedLag] = []
        now = self.context.now()
        for replicas in pieces([*self._replicas.values()], _LOOKED_AT):
            lags = nlargest(
                MAX_LAGS,
                chain(lags, chain.from_iterable(_lags_at(replica, now) for replica in replicas)),
                key=lambda lag: (lag["lag_s"], lag["lag_records"]),
            )
            leaders += sum(isinstance(replica.role, LeaderDriver) for replica in replicas)
            bytes_on_disk += sum(replica.bytes_on_disk for replica in replicas)
            failed += [str(replica.key) for replica in replicas if replica.failure]
            damaged += [str(replica.key) for replica in replicas if replica.is_damaged]
            yield len(replicas)
        return {
            "lags": lags,
            "replicas": len(self._replicas),
            "leaders": leaders,
            "failed": sorted(failed),
            "damaged": sorted(damaged),
            "counters": counts(self.context),
            "bytes_on_disk": bytes_on_disk,
            "traffic": self.context.traffic.report(self.context.now()),
            "publish_gaps": self._gaps.status(),
            "space": self.context.space.status(),
            "disk": self.context.disk.status(),
        }


def _lags_at(replica: Replica, now: float) -> Iterator[ReportedLag]:
    """Yields the followers of a leader that have been behind for LAG_REPORTED_S."""
    role = replica.role
    if not isinstance(role, LeaderDriver):
        return
    end = role.core.log_end_offset
    for broker, (reached, _) in role.core.progress().items():
        lag_s = role.core.lag_s(broker, now)
        if reached is not None and reached < end and lag_s >= LAG_REPORTED_S:
            yield {
                "stream": replica.key.stream,
                "partition": replica.key.partition,
                "broker": broker,
                "lag_records": end - reached,
                "lag_bytes": role.log.bytes_from(reached),
                "lag_s": round(lag_s, 3),
            }
