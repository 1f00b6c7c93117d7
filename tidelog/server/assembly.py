"""A broker's parts and how they hang together: logs, data plane, metadata service, API.

What they stand on (`Ground`: connections, Raft, threads, clocks) is the caller's, who also decides what becomes of the
process: a node takes the real things, a simulator its own, and both run this.

Order: logs opened -> metadata service and data plane made, each heard by the other -> started -> registered: the folder
is marked in use, views arrive, replicas take their roles -> closed: roles resign, the folder is marked clean, Raft
leaves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from random import Random

from dataplane.broker.broker import Broker, open_replicas
from dataplane.broker.context import BrokerContext
from dataplane.broker.settings import StorageSettings
from dataplane.broker.space import SpaceWatch
from dataplane.encryption.keyring import Keyring
from dataplane.log.data_dir import DataDir
from dataplane.log.errors import DataDirError, NoSpace
from dataplane.log.group_commit import Syncer
from dataplane.replica.settings import ReplicaSettings
from metadata.service import MetadataService, RaftFactory, Registration
from metadata.settings import MetadataSettings
from tidelog.server.api import Api
from wire.errors import Code, TidelogError
from wire.subjects import Subjects
from wire.transport import Transport
from wire.types import BrokerId, Incarnation

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a broker stands on."""

    broker: BrokerId
    life_id: str
    """Of this life of the process; no other has the same."""
    data_dir: DataDir
    """Open, and this process's own."""
    ingest: Transport
    control: Transport
    make_raft: RaftFactory
    raft_address: str
    """Empty: an observer."""
    syncer: Syncer
    executor: Executor
    checkpoints: Executor
    """CHECKPOINTS_AT_ONCE threads."""
    readers: Executor
    housekeeping: Executor
    """One thread."""
    loop: asyncio.AbstractEventLoop
    time_ns: Callable[[], int]
    rng: Random
    subjects: Subjects
    metadata_settings: MetadataSettings
    replica_settings: ReplicaSettings
    storage_settings: StorageSettings
    labels: Mapping[str, str] = field(default_factory=dict)
    """Read anew for each probe answer."""
    keyring: Keyring = field(default_factory=Keyring)


class Assembly:
    """See the module. `on_fatal`: this broker cannot go on."""

    def __init__(
        self,
        data_dir: DataDir,
        metadata: MetadataService,
        context: BrokerContext,
        broker: Broker,
        on_fatal: Callable[[TidelogError], None],
    ) -> None:
        self.metadata = metadata
        self.broker = broker
        self._data_dir = data_dir
        self._context = context
        self._on_fatal = on_fatal
        self._registered = False
        metadata.on_partitions = broker.on_partitions
        metadata.on_registered = self._on_registered
        metadata.broker_status = broker.stream_status
        metadata.broker_totals = broker.status
        metadata.drain_leader = broker.drain
        metadata.room = lambda: context.space.room
        metadata.disk_hangs = lambda: context.disk.hangs
        metadata.on_fatal = on_fatal
        metadata.on_office = Api(metadata, context.control, context.subjects).on_office

    @classmethod
    async def open(cls, ground: Ground, on_fatal: Callable[[TidelogError], None]) -> Assembly:
        """Logs are opened and recovered; nobody hears of this broker yet. Raises TidelogError."""
        data_dir = ground.data_dir
        earlier_lives = data_dir.lives
        space = SpaceWatch(
            data_dir.files, data_dir.path, ground.storage_settings, executor=ground.executor, loop=ground.loop
        )
        try:
            await space.when_there_is_room(
                lambda: ground.loop.run_in_executor(ground.executor, data_dir.begin_life, ground.life_id)
            )
        except DataDirError as e:
            raise TidelogError(Code.BAD_CONFIG, str(e)) from e
        replicas, unsound = await open_replicas(data_dir, ground.executor, space, ground.storage_settings.producers)
        proof = data_dir.proof()
        metadata = MetadataService(
            broker_id=ground.broker,
            life_id=ground.life_id,
            make_raft=ground.make_raft,
            transport=ground.control,
            subjects=ground.subjects,
            settings=ground.metadata_settings,
            rng=ground.rng,
            monotonic=ground.loop.time,
            registration=Registration(
                folder_same=proof.folder_same,
                page_cache_survived=proof.page_cache_survived,
                unsound=unsound,
                last_incarnation=data_dir.last_incarnation or Incarnation(0),
                earlier_lives=earlier_lives,
                cluster_id=data_dir.cluster_id or "",
                labels=ground.labels,
                raft_address=ground.raft_address,
            ),
        )
        context = BrokerContext(
            broker=ground.broker,
            incarnation=Incarnation(0),
            ingest=ground.ingest,
            control=ground.control,
            subjects=ground.subjects,
            settings=ground.replica_settings,
            metadata=metadata,
            syncer=ground.syncer,
            executor=ground.executor,
            checkpoints=ground.checkpoints,
            readers=ground.readers,
            housekeeping=ground.housekeeping,
            storage=ground.storage_settings,
            space=space,
            loop=ground.loop,
            time_ns=ground.time_ns,
            keyring=ground.keyring,
        )
        return cls(data_dir, metadata, context, Broker(context, data_dir, replicas), on_fatal)

    @property
    def incarnation(self) -> Incarnation:
        """0 until this life is registered."""
        return self._context.incarnation

    async def start(self) -> None:
        """Raises RaftError when the metadata group's journal cannot be used."""
        await self.broker.start()
        await self.metadata.start()

    def _on_registered(self, cluster_id: str, incarnation: Incarnation) -> None:
        """The registration is applied: what it proved may be overwritten, and appends may begin."""
        try:
            self._data_dir.record(cluster_id, incarnation)
            self._data_dir.mark_dirty()
        except NoSpace as e:
            if not self._registered:
                self._on_fatal(TidelogError(Code.NO_SPACE, f"{e}: make room on the disk, then start this broker again"))
                return
            # Declared dead, and registered once more: what the folder says of this life holds as it is.
            log.warning("a further registration is not recorded in the data folder: %s", e)
        except DataDirError as e:
            self._on_fatal(TidelogError(Code.BAD_CONFIG, str(e)))
            return
        self._registered = True
        self.broker.on_registered(incarnation)

    async def close(self) -> None:
        try:
            await self.broker.close()
            if self._registered and not self.broker.status()["failed"]:
                self._data_dir.mark_clean()
        except NoSpace as e:
            log.warning("the data folder is not marked clean: %s", e)
        finally:
            await self.metadata.close()
