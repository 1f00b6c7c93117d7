"""The parts of a broker and how they are connected: logs, data plane, metadata service, API.

The caller gives the dependencies (connections, Raft, threads, clocks) and decides about the process: a node gives the
real ones, a simulator its own, and both run this.

Order: logs opened -> metadata service and data plane made and connected to each other -> started -> registered: the
folder is marked in use, views arrive, replicas take their roles -> closed: roles resign, the folder is marked clean,
Raft leaves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from time import thread_time

from dataplane.broker.broker import Broker, open_replicas
from dataplane.broker.disk.space_watch import SpaceWatch
from dataplane.broker.disk.storage_settings import StorageSettings
from dataplane.broker.replica import Replica
from dataplane.broker.roles.broker_context import BrokerContext
from dataplane.encryption.keyring import Keyring
from dataplane.log.storage.data_dir import DataDir
from dataplane.log.storage.group_commit import Syncer
from dataplane.log.storage.log_errors import DataDirError, NoSpace
from dataplane.replica.replica_settings import ReplicaSettings
from metadata.cluster.cluster_view import Cluster
from metadata.cluster.model import Changes
from metadata.controller.metadata_settings import MetadataSettings
from metadata.runtime.metadata_ports import RaftFactory
from metadata.runtime.metadata_service import MetadataService
from metadata.runtime.registration import Registration
from tidelog.server.api.handover import GroupRequests, TransactionRequests
from tidelog.server.api.json_api import Api
from tidelog.server.audit.activity_stream import ActivityStream
from tidelog.server.audit.audit_stream import AuditStream
from tidelog.server.audit.audit_trail import AuditTrail
from tidelog.server.audit.internal_writer import InternalAppender
from tidelog.server.broker_connection import AnsweringTransport, PermissionWatch
from tidelog.server.coordinators.driver.led_coordinators import Coordinators
from tidelog.server.peers.peer_link import PeerLink, Refusals
from tidelog.server.routing.client_sessions import LabelsWithAdoption
from tidelog.server.routing.pushes import Pushes
from tidelog.server.routing.routing_service import RoutingRequests
from wire.errors import Code, TidelogError
from wire.internal_streams import ACTIVITY, AUDIT
from wire.messaging.reply_subjects import ReplySubjects
from wire.messaging.transport import Transport
from wire.operations.reports import BrokerReport, StreamReport, UsageReport
from wire.security.cluster_secrets import ClusterSecrets
from wire.security.producer_keys import ProducerKeys
from wire.security.tickets import Tickets
from wire.subjects import Subjects
from wire.turns import Steps
from wire.types import (
    BrokerId,
    DrainAnswer,
    Incarnation,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDependencies:
    """The resources that a broker needs from its process."""

    broker: BrokerId
    life_id: str
    """Id of this incarnation of the process; no other has the same."""
    data_dir: DataDir
    """The open data folder, locked by this process."""
    ingest: Transport
    control: Transport
    public: Transport
    """The connection for subjects on which anybody may speak to brokers, the API and claims: a flood there waits in a
    queue of its own."""
    secrets: ClusterSecrets
    make_raft: RaftFactory
    raft_address: str
    """`host:port` of this voter; empty: an observer."""
    syncer: Syncer
    executor: Executor
    checkpoints: Syncer
    """An executor with CHECKPOINTS_AT_ONCE threads."""
    decoders: Executor
    """An executor with one thread."""
    readers: Executor
    housekeeping: Executor
    """An executor with one thread."""
    loop: asyncio.AbstractEventLoop
    time_ns: Callable[[], int]
    rng: Random
    subjects: Subjects
    metadata_settings: MetadataSettings
    replica_settings: ReplicaSettings
    storage_settings: StorageSettings
    replace: bool = False
    """The operator declares that an empty data folder takes the place of the broker's earlier one."""
    zone: str = ""
    """Where the broker runs, for the placement of replicas; empty: not given."""
    tags: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the broker, read anew for each probe answer."""
    keyring: Keyring = field(default_factory=Keyring)
    work_time: Callable[[], float] = thread_time
    """Seconds that the loop's thread has run."""
    keeps_audit_stream: bool = True
    """Audit records go into the internal stream as well as into the log."""


class BrokerRuntime:
    """See the module. It is the metadata service's `BrokerPort`. `on_fatal`: called when this broker cannot go on."""

    def __init__(
        self,
        needs: BrokerDependencies,
        on_fatal: Callable[[TidelogError], None],
        space: SpaceWatch,
        replicas: list[Replica],
        registration: Registration,
    ) -> None:
        self.on_fatal = on_fatal
        self._data_dir = needs.data_dir
        self._registered = False
        self._replies = ReplySubjects(needs.subjects, self._stream_subjects, lambda: self.metadata.stream_changes)
        self._ingest = ingest = AnsweringTransport(needs.ingest, needs.subjects, self._replies)
        self._control = control = AnsweringTransport(needs.control, needs.subjects, self._replies)
        self._public = public = AnsweringTransport(needs.public, needs.subjects, self._replies)
        self._permissions = PermissionWatch(
            needs.broker, needs.subjects.namespace, (needs.ingest, needs.control, needs.public), needs.loop.time
        )
        self._secrets = needs.secrets
        self._refusals = Refusals(needs.broker, needs.loop.time)
        self._peers = peers = PeerLink(
            control, needs.secrets, needs.life_id, self._refusals, self._current_lives, claims=public
        )
        self._activity = ActivityStream(
            lambda values: self._internal.append(ACTIVITY, 0, values),
            lambda: self._internal.last(ACTIVITY, 0),
            epoch=lambda: self.metadata.controller_epoch,
            time_ns=needs.time_ns,
            is_live=lambda: self._registered,
        )
        self._keeps_activity = needs.metadata_settings.activity_stream
        self.metadata = MetadataService(
            broker_id=needs.broker,
            life_id=needs.life_id,
            port=self,
            make_raft=needs.make_raft,
            transport=peers,
            subjects=needs.subjects,
            settings=needs.metadata_settings,
            rng=needs.rng,
            monotonic=needs.loop.time,
            time_ns=needs.time_ns,
            registration=replace(registration, labels=LabelsWithAdoption(registration.labels, self._adopted)),
            secrets=needs.secrets,
            observe=self._observe,
        )
        self._routing = RoutingRequests(self.metadata, public, needs.subjects, needs.loop.time, needs.work_time)
        self._pushes = Pushes(
            needs.broker,
            self.metadata.state,
            public,
            needs.subjects,
            self._routing.pages.routes,
            needs.loop.time,
            needs.work_time,
        )
        self._tickets = Tickets(
            needs.secrets, lambda: self._context.cluster_id, lambda: self.metadata.common_time_ns() / 1_000_000_000
        )
        self._producer_keys = ProducerKeys(needs.secrets, lambda: self._context.cluster_id)
        self.coordinators = Coordinators(
            self.metadata,
            clients=ingest,
            peers=peers,
            subjects=needs.subjects,
            now=needs.loop.time,
            time_ns=self.metadata.time_ns,
            patience=needs.metadata_settings.leader_lease_s,
            retention=needs.storage_settings.group_retention_ms / 1000,
            work_time=needs.work_time,
            tickets=self._tickets,
            producer_keys=self._producer_keys,
        )
        self._context = BrokerContext(
            broker=needs.broker,
            incarnation=Incarnation(0),
            ingest=ingest,
            control=control,
            peers=peers,
            replies=self._replies,
            tickets=self._tickets,
            producer_keys=self._producer_keys,
            subjects=needs.subjects,
            settings=needs.replica_settings,
            metadata=self.metadata,
            syncer=needs.syncer,
            executor=needs.executor,
            checkpoints=needs.checkpoints,
            decoders=needs.decoders,
            readers=needs.readers,
            housekeeping=needs.housekeeping,
            storage=needs.storage_settings,
            space=space,
            loop=needs.loop,
            time_ns=self.metadata.time_ns,
            keyring=needs.keyring,
            replication_budget=lambda: self.metadata.state.cluster_settings.replication_budget,
            on_led=self.coordinators.on_led,
        )
        self.broker = Broker(self._context, self._data_dir, replicas)
        self._internal = InternalAppender(self.metadata, peers, needs.subjects, self.metadata.time_ns)
        self._audit_stream = AuditStream(partial(self._internal.append, AUDIT, 0), needs.loop.time)
        audit = AuditTrail(
            needs.broker,
            life_id=needs.life_id,
            epoch=lambda: self.metadata.controller_epoch,
            time_ns=self.metadata.time_ns,
            on_record=self._audit_stream.on_record if needs.keeps_audit_stream else lambda _: None,
        )
        handed_over = (kind(self.metadata, peers, needs.subjects) for kind in (GroupRequests, TransactionRequests))
        self._api = Api(self.metadata, public, needs.subjects, audit, handed_over, needs.work_time)

    @classmethod
    async def open(cls, needs: BrokerDependencies, on_fatal: Callable[[TidelogError], None]) -> BrokerRuntime:
        """Opens and recovers the logs; nothing is sent to other processes yet. Raises TidelogError."""
        data_dir = needs.data_dir
        earlier_lives = data_dir.lives
        space = SpaceWatch(
            data_dir.files, data_dir.path, needs.storage_settings, executor=needs.executor, loop=needs.loop
        )
        try:
            await space.when_there_is_room(
                lambda: needs.loop.run_in_executor(needs.executor, data_dir.begin_life, needs.life_id)
            )
            replicas, unsound = await open_replicas(data_dir, needs.executor, space, needs.storage_settings.producers)
        except DataDirError as e:
            raise TidelogError(Code.BAD_CONFIG, str(e)) from e
        proof = data_dir.proof()
        registration = Registration(
            folder_same=proof.folder_same,
            page_cache_survived=proof.page_cache_survived,
            unsound=unsound,
            held=frozenset(replica.key for replica in replicas),
            manifest_is_lost=data_dir.manifest.is_lost,
            last_incarnation=data_dir.last_incarnation or Incarnation(0),
            earlier_lives=earlier_lives,
            cluster_id=data_dir.cluster_id or "",
            labels=needs.labels,
            raft_address=needs.raft_address,
            replace=needs.replace,
            zone=needs.zone,
            tags=needs.tags,
            folder=str(data_dir.path),
        )
        return cls(needs, on_fatal, space, replicas, registration)

    @property
    def incarnation(self) -> Incarnation:
        """The incarnation of this process; 0 until it is registered."""
        return self._context.incarnation

    @property
    def reply_subjects(self) -> ReplySubjects:
        """The reply subjects on which this broker answers clients."""
        return self._replies

    def _current_lives(self) -> list[str]:
        return [known.life_id for known in self.metadata.state.brokers.values()]

    def _stream_subjects(self) -> list[str]:
        return [stream.subject for stream in self.metadata.state.streams.values()]

    async def start(self) -> None:
        """Starts the parts. Raises RaftError when the metadata group's journal cannot be used, TidelogError when
        another running process has this broker's id."""
        await self.broker.start()
        await self._peers.take_packs(self._context.subjects, self._context.broker)
        await self.metadata.start()
        await self._routing.start()

    def _adopted(self) -> dict[str, int]:
        return self._routing.adopted()

    def _observe(self, state: Cluster, changes: Changes, *, from_snapshot: bool) -> Steps[None]:
        """Observes the applied state, as a `StateObserver`."""
        self._routing.observe(changes)
        self._pushes.observe(changes)
        if self._keeps_activity:
            yield from self._activity.observe(state, changes, from_snapshot=from_snapshot)

    # ---- the metadata service's port -------------------------------------------------------------------------------

    def on_registered(self, cluster_id: str, incarnation: Incarnation) -> None:
        """Records the applied registration: its proof in the folder may be overwritten, and appends may begin."""
        try:
            self._data_dir.record(cluster_id, incarnation)
            self._data_dir.mark_dirty()
        except NoSpace as e:
            self._context.space.refused(e)
            if not self._registered:
                raise TidelogError(Code.NO_SPACE, str(e)) from e
            # Declared dead, and registered once more: the content of the folder still holds for this incarnation.
            _log.warning("a further registration is not recorded in the data folder: %s", e)
        except DataDirError as e:
            self.on_fatal(TidelogError(Code.BAD_CONFIG, str(e)))
            return
        self._registered = True
        self._context.cluster_id = cluster_id
        self.broker.on_registered(incarnation)

    def on_partitions(self, changes: Sequence[PartitionView | PartitionGone]) -> None:
        self.broker.on_partitions(changes)

    def on_all_partitions(self) -> None:
        self.broker.on_all_partitions()

    def log_ends(self) -> Steps[dict[PartitionKey, LogEnd]]:
        return self.broker.log_ends()

    def stream_report(
        self, stream: StreamName, partitions: Collection[int], history_of: int | None
    ) -> Steps[StreamReport]:
        return self.broker.stream_status(stream, partitions, history_of)

    def usage_report(self, after: str = "", upto: str | None = None) -> Steps[UsageReport]:
        return self.broker.usage(after, upto)

    def broker_report(self) -> Steps[BrokerReport]:
        report = yield from self.broker.status()
        own = {
            "refused_replies": self._replies.refused,
            "dropped_headers": sum(
                connection.dropped_headers for connection in (self._ingest, self._control, self._public)
            ),
            "unheard_packs": self._peers.unheard_packs,
            "dropped_audit_records": self._audit_stream.queue.dropped,
            "dropped_activity_events": self._activity.dropped,
            "refused_coordinator_requests": self.coordinators.counters.refused_requests,
            "refused_coordinator_limits": self.coordinators.counters.refused_limits,
            "group_partitions_left_out": self.coordinators.left_out,
            "routing_pushes": self._pushes.published,
            "routing_pushes_left_out": self._pushes.left_out,
            **self._routing.counters(),
        }
        return {
            **report,
            "counters": {**report.get("counters", {}), **own},
            "refused_messages": self._refusals.counts(),
            "not_permitted": self._permissions.status(),
            "secrets": self._secrets.fingerprints,
            "tasks": len(asyncio.all_tasks()),
        }

    def room(self) -> Room:
        return self._context.space.room

    def disk_hangs(self) -> bool:
        return self._context.disk.hangs

    def role_progress(self) -> RoleProgress:
        return self.broker.role_progress

    def drain_leader(self, move: LeaderMove, timeout: float, answer: DrainAnswer) -> None:
        self.broker.drain(move, timeout, answer)

    async def on_controller(self, is_controller: bool) -> None:
        await self._api.on_controller(is_controller)
        self._pushes.on_controller(is_controller)
        self._activity.look()

    # ---- the end ---------------------------------------------------------------------------------------------------

    async def hand_over(self) -> None:
        """Hands the leaderships over before the end (`metadata.runtime.hand_over`). May be cancelled."""
        await self.metadata.hand_over()

    async def close(self) -> bool:
        """Closes all parts. False: the disk hangs, and threads wait for it. Then the disk is not used any more; the
        Raft journal is left as it is as well."""
        try:
            async with AsyncExitStack() as stack:  # calls all of them, the last one first
                stack.push_async_callback(self._activity.close)
                stack.push_async_callback(self._audit_stream.close)
                stack.push_async_callback(self._api.close)  # a later act would have no record in the stream
                stack.push_async_callback(self._pushes.close)
                stack.push_async_callback(self._routing.close)
        finally:
            is_closed = await self._close_broker()
        return is_closed

    async def _close_broker(self) -> bool:
        is_closed = True
        try:
            is_closed = await self.broker.close()
            if is_closed and self._registered and not self.broker.has_failed_replicas:
                self._data_dir.mark_clean()
        except NoSpace as e:
            _log.warning("the data folder is not marked clean: %s", e)
        finally:
            if is_closed:
                await self.metadata.close()
        return is_closed
