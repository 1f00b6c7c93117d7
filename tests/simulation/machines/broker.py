"""One broker's machine: a disk that outlives the processes on it, and the process, whose parts are the ones of a
node (`tidelog.server.broker_runtime`), on simulated dependencies."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from dataplane.broker.broker import Broker
from dataplane.broker.disk.storage_settings import StorageSettings
from dataplane.log.partition_log import PartitionLog
from dataplane.log.storage.data_dir import DataDir
from dataplane.log.storage.group_commit import QuickSyncable, Syncable
from dataplane.log.storage.log_errors import DataDirError
from dataplane.replica.replica_settings import ReplicaSettings
from metadata.controller.metadata_settings import MetadataSettings
from metadata.raft.types import RaftStatus, StateMachine
from metadata.runtime.metadata_service import MetadataService
from tests.simulation.invariants.messages import OnlyBrokersAreBelieved
from tests.simulation.machines.disk import SimDisk, Survival
from tests.simulation.machines.messaging import GIVES_UP_AFTER, Nats, SimConnection
from tests.simulation.raft.group_model import RaftGroup, RaftMember
from tests.simulation.world import Process, SimulatedCrash, World
from tidelog.server.broker_runtime import BrokerDependencies, BrokerRuntime
from tidelog.server.peers.peer_link import PeerLink
from wire.errors import Code, TidelogError
from wire.messaging.transport import Message
from wire.security.cluster_secrets import public_secrets
from wire.subjects import Subjects
from wire.types import BrokerId, LeaderReport, Offset

if TYPE_CHECKING:
    from dataplane.log.storage.group_commit import Done

DATA = Path("/data")
READERS: Any = "readers"
"""In place of the executors for reads, and for decoding."""


class SimIoLock:
    """The I/O lock of a log whose sync lasts. All is done in one thread here: whoever has to wait for the lock ends
    that sync first."""

    def __init__(self) -> None:
        self._is_held = False
        self.sync: SimSync | None = None
        """The one that holds it."""

    def acquire(self, blocking: bool = True) -> bool:
        if self._is_held:
            if not blocking:
                return False
            assert self.sync is not None, "its holder waits for itself"
            self.sync.end()
        self._is_held = True
        return True

    def release(self) -> None:
        self._is_held, self.sync = False, None

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimSync:
    """A sync of one log, and the callbacks that it serves."""

    def __init__(self, log: Syncable, served: list[Done]) -> None:
        self.log = log
        self.served = served
        self.outcome: Offset | Exception | None = None
        self._handle = -1
        self._failed: list[OSError | None] = []

    def alone(self) -> None:
        try:
            self.outcome = self.log.sync()
        except Exception as error:  # noqa: BLE001 - goes to the waiting callers
            self.outcome = error

    def begin(self) -> bool:
        """Returns False, with nothing done, where one fdatasync is not enough."""
        assert isinstance(self.log, PartitionLog)
        state: Any = self.log._state
        if not isinstance(state.io_lock, SimIoLock):
            state.io_lock = SimIoLock()
        handle = self.log.begin_sync()
        if handle is None:
            return False
        self._handle = handle
        state.io_lock.sync = self
        return True

    def to_disk(self) -> None:
        assert isinstance(self.log, PartitionLog)
        if not self._failed:
            self._failed = self.log.files.sync_data_of_each([self._handle])

    def end(self) -> None:
        if self.outcome is None:
            assert isinstance(self.log, PartitionLog)
            self.to_disk()
            try:
                self.outcome = self.log.end_sync(self._failed[0])
            except Exception as error:  # noqa: BLE001 - goes to the waiting callers
                self.outcome = error


class SimSyncer:
    """`dataplane.log.storage.group_commit.SyncScheduler`, its threads simulated: a log is synced by one of them at a
    time, and a sync serves all callers that waited when it began. Whether the disk is quick enough to sync at once, and
    whether a thread syncs others with it, is a matter of chance. Logs that are synced together are begun at one moment
    and ended at a later one, and are on the disk at either: appends, rolls and losses of power come between."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._waiting: dict[Syncable, list[Done]] = {}
        self._running: dict[Syncable, float] = {}
        """When the sync of that log began."""
        self._queued: list[Syncable] = []
        """Those whose thread has not begun: another one may take them with its own."""

    def request(self, log: Syncable, done: Done) -> bool:
        waiting = self._waiting.get(log)
        if waiting is None:
            self._waiting[log] = [done]
            self._begin(log)
        elif done in waiting[-1:]:
            return False
        else:
            waiting.append(done)
        return True

    @property
    def is_crowded(self) -> bool:
        return self._process.world.rng.random() < 0.3

    @property
    def waiting_since(self) -> float:
        return min(self._running.values(), default=math.inf)

    def at_once(self, log: QuickSyncable) -> Offset | None:
        if self._waiting or self._process.disk_hangs or self._process.world.rng.random() < 0.5:
            return None
        return log.sync_small(1 << 20)

    def _begin(self, log: Syncable) -> None:
        self._running[log] = self._process.time()
        self._queued.append(log)
        self._process.in_thread(partial(self._work, log), self._go_on)

    def _work(self, log: Syncable) -> list[SimSync]:
        """Syncs that log, or begins syncs of it and of others. Returns them."""
        if log not in self._queued:
            return []  # another thread has taken it
        rng = self._process.world.rng
        sync = self._taken(log)
        if not isinstance(log, PartitionLog) or rng.random() < 0.5 or not sync.begin():
            sync.alone()
            return [sync]
        syncs = [sync]
        for other in [each for each in self._queued if isinstance(each, PartitionLog)]:
            sync = self._taken(other)
            if not sync.begin():
                sync.alone()
            syncs.append(sync)
        if rng.random() < 0.5:
            for sync in syncs:
                if sync.outcome is None:
                    sync.to_disk()
        return syncs

    def _taken(self, log: Syncable) -> SimSync:
        self._queued.remove(log)
        served, self._waiting[log] = self._waiting[log], []
        return SimSync(log, served)

    def _go_on(self, syncs: list[SimSync], error: BaseException | None) -> None:
        if error is not None:
            raise error
        if any(sync.outcome is None for sync in syncs):
            self._process.in_thread(partial(self._end, syncs), self._go_on)
            return
        for sync in syncs:
            del self._running[sync.log]
            if self._waiting[sync.log]:
                self._begin(sync.log)
            else:
                del self._waiting[sync.log]
            assert sync.outcome is not None
            for done in sync.served:
                done(sync.outcome)

    @staticmethod
    def _end(syncs: list[SimSync]) -> list[SimSync]:
        for sync in syncs:
            sync.end()
        return syncs


class SimBroker:
    def __init__(self, world: World, nats: Nats, raft: RaftGroup, broker_id: str, subjects: Subjects) -> None:
        self.world = world
        self.nats = nats
        self.raft = raft
        self.id = BrokerId(broker_id)
        self.raft_address = f"{broker_id}:7400"
        self.subjects = subjects
        self.disk = SimDisk(crash=SimulatedCrash)
        self.lives = 0
        self.replaces_folder = False
        """Its disk was replaced by an empty one, and its operator says so."""
        self.process: Process | None = None
        self.broker: Broker | None = None
        self.metadata: MetadataService | None = None
        self.fatal: TidelogError | None = None
        self.disk_delay = 0.0003
        self._hangs: Callable[[object], bool] | None = None
        self.link_slowness = 1.0
        self.link_changed_at = -math.inf
        self.wall_skew_ns = 0
        self.metadata_settings = MetadataSettings(clock_settle_s=0.5)
        self.replica_settings = ReplicaSettings()
        self.storage_settings = StorageSettings(min_free_bytes=1500, space_check_interval=0.1)
        self.on_crash: Callable[[SimBroker], None] = lambda _: None
        self.on_report: Callable[[LeaderReport], None] = lambda _: None
        self.on_died: Callable[[SimBroker], None] = lambda _: None
        self.hands_over_for = 5.0
        """Seconds after which a second signal comes."""
        self.restart_after: float | None = None
        """Set where a fault ends the process at a moment of its own: it is started again after so many seconds."""
        self.power_goes_with_it = False
        self._connections: list[SimConnection] = []
        self._closing: Callable[[], Any] | None = None
        self._handing_over: Callable[[], Any] | None = None

    @property
    def is_running(self) -> bool:
        return self.process is not None

    @property
    def is_stopping(self) -> bool:
        """It was told to stop in order, and has not ended."""
        return self.broker is not None and self._closing is None

    @property
    def is_reachable(self) -> bool:
        """It serves, and its connections to NATS work, as far as they themselves know, and have for a while."""
        if self.process is None or self._closing is None:
            return False
        if self.link_slowness > 1 or self.link_changed_at > self.world.now - GIVES_UP_AFTER - 1:
            return False  # messages sent then may be on their way
        if any(c.unblocked_at > self.world.now - 1.0 for c in self._connections):
            return False  # so may messages that were held
        long_since = self.process.time() - 1.0
        return all(
            c.connected_since < long_since and not (c.blocked_up or c.blocked_down or c.deaf_to)
            for c in self._connections
        )

    @property
    def connections(self) -> list[SimConnection]:
        return self._connections if self.process is not None else []

    # ---- life

    def start(self) -> None:
        if self.process is not None:
            return
        self.lives += 1
        rng = self.world.rng
        process = Process.begun(
            self.world, self.id, rate=1.0 + (rng.random() - 0.5) * 0.02, offset=rng.random() * 1000 * self.lives
        )
        process.disk_delay = self.disk_delay
        process.hang(self._hangs)
        process.wall_skew_ns = self.wall_skew_ns
        process.on_crash = self._crash
        self.process = process
        self.world.say(f"{self.id} starts, life {self.lives}")
        with process.running():
            process.create_task(self._start(process))

    async def _start(self, process: Process) -> None:
        try:
            data_dir = DataDir.open(DATA, self.id, files=self.disk)
        except DataDirError as error:
            self._end_on(process, TidelogError(Code.BAD_CONFIG, str(error)))
            return
        inboxes = self.subjects.broker_inbox(self.id)
        ingest = SimConnection(self.nats, process, f"{self.id}-{self.lives}-ingest", inboxes)
        control = SimConnection(self.nats, process, f"{self.id}-{self.lives}-control", inboxes)
        public = SimConnection(self.nats, process, f"{self.id}-{self.lives}-public", inboxes)
        self._connections = [ingest, control, public]
        for connection in self._connections:
            connection.slowness = self.link_slowness
            await connection.connected()
        threads: Any = None
        dependencies = BrokerDependencies(
            keeps_audit_stream=False,
            broker=self.id,
            life_id=f"{self.id}-{self.lives}",
            data_dir=data_dir,
            ingest=ingest,
            control=control,
            public=public,
            secrets=public_secrets(),
            make_raft=self._make_raft,
            raft_address=self.raft_address,
            syncer=SimSyncer(process),
            executor=threads,
            checkpoints=SimSyncer(process),
            decoders=READERS,
            readers=READERS,
            housekeeping=threads,
            loop=process,
            time_ns=process.time_ns,
            work_time=process.time,
            rng=Random(f"{self.world.seed}-{self.id}-{self.lives}"),
            subjects=self.subjects,
            metadata_settings=self.metadata_settings,
            replica_settings=self.replica_settings,
            storage_settings=self.storage_settings,
            replace=self.replaces_folder,
        )
        try:
            runtime = await BrokerRuntime.open(dependencies, partial(self._end_on, process))
        except TidelogError as error:
            self._end_on(process, error)
            return
        if self.nats.believed is not None:
            self._watch_peers(runtime._peers, self.nats.believed, f"{self.id}-{self.lives}")
        metadata = runtime.metadata
        report = metadata.report_leader

        def report_leader(said: LeaderReport) -> None:
            self.on_report(said)
            report(said)

        metadata.report_leader = report_leader  # type: ignore[method-assign,assignment]
        self.metadata, self.broker = metadata, runtime.broker
        self._closing, self._handing_over = runtime.close, runtime.hand_over
        try:
            await runtime.start()
        except TidelogError as error:
            self._end_on(process, error)

    def _watch_peers(self, link: PeerLink, believed: OnlyBrokersAreBelieved, life: str) -> None:
        opens = link._open

        def watched(
            kind: str,
            subject: bytes,
            reply: bytes | None,
            headers: bytes | None,
            data: bytes,
            *,
            as_view: bool = False,
        ) -> Message | None:
            opened = opens(kind, subject, reply, headers, data, as_view=as_view)
            if opened is not None:
                believed.taken(life, opened._replace(data=data))
            return opened

        link._open = watched  # type: ignore[method-assign]

    def _end_on(self, process: Process, error: TidelogError) -> None:
        """As `Node.fatal`: the process ends; its supervisor starts another."""
        self.fatal = error
        self.world.say(f"{self.id} cannot go on: {error}")
        self.restart_after = 1.0
        process.call_soon(self.kill)

    def _make_raft(
        self,
        state_machine: StateMachine,
        on_status: Callable[[RaftStatus], None],
        on_peer_lost: Callable[[str], None],
    ) -> RaftMember:
        assert self.process is not None
        return self.raft.make_member(
            self.process, self.raft_address, self.disk, state_machine, on_status, on_peer_lost, self._raft_exits
        )

    def _raft_exits(self, reason: str) -> None:
        """The Raft node ends the process; its supervisor starts another."""
        self.restart_after = 1.0

    def _crash(self) -> None:
        """In the middle of a system call: messages sent in the same turn are on their way."""
        self.on_crash(self)
        self.kill()

    def kill(self) -> None:
        """kill -9: all writes are in the page cache."""
        process = self.process
        if process is None:
            return
        process.kill()
        self.process = self.broker = self.metadata = self._closing = None
        self.world.say(f"{self.id} is dead")
        self.disk.kill_process()
        for connection in self._connections:
            self.nats.process_died(connection)
        self.raft.process_died(self.raft_address)
        self.on_died(self)

    def hang(self, *, reads: bool = False) -> None:
        """Its disk does nothing any more, for this process or the next; the page cache can be read, unless
        `reads` hang too."""
        self._let_hang(lambda executor: reads or executor is not READERS)

    def answer(self) -> None:
        """Its disk does the waiting calls, and answers later ones."""
        self._let_hang(None)

    def _let_hang(self, hangs: Callable[[object], bool] | None) -> None:
        self._hangs = hangs
        if self.process is not None:
            self.process.hang(hangs)

    def lose_power(self, how: Survival) -> None:
        self.kill()
        self.disk.lose_power(how, self.world.rng)

    def stop(self) -> None:
        """In order, as on SIGTERM."""
        process, closing, handing_over = self.process, self._closing, self._handing_over
        if process is None or closing is None or handing_over is None:
            self.kill()
            return
        self._closing = None

        async def end() -> None:
            try:
                with suppress(TimeoutError):  # as a second signal ends it
                    await asyncio.wait_for(handing_over(), self.hands_over_for)
                await asyncio.wait_for(closing(), 20)
            finally:
                self.kill()

        with process.running():
            process.create_task(end())
