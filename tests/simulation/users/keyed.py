"""Programs that know keys and no partitions, while the stream's partitions become more and fewer: producers, and the
members of a group that reads with order="key". Each is a process of its own with the production client.

Values are `<name>:<number>:<padding>`, where names begin with `k`; keys are `<name>-<which>`, which this producer alone
writes, or `shared-<which>`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, Literal

from tests.simulation.invariants import Acknowledged
from tests.simulation.invariants.base import Given
from tests.simulation.invariants.history import rows
from tests.simulation.invariants.routing import SHARED, is_keyed
from tests.simulation.machines.messaging import SimConnection
from tests.simulation.world import Process
from tidelog.client.base.read_positions import Anchor
from tidelog.client.client import Client
from tidelog.client.group.group_consumer import GroupConsumer
from tidelog.client.producer.producer import Producer
from wire.errors import Code, TidelogError
from wire.types import Incarnation, PartitionKey, StreamName

if TYPE_CHECKING:
    from tests.simulation.users.clients import Workload
    from tidelog.client.base.records import Batch, Receipt
    from tidelog.client.consumer.fetcher import PartitionFetcher
    from tidelog.client.consumer.subscription_state import AssignedPartition, AssignedStream
    from wire.internal_records.group_records import StreamPartition
    from wire.protobuf.groups_pb2 import CommitRequest
    from wire.subjects import Subjects

KEYS: Final = 4
"""Of each producer."""
MAX_WAITING: Final = 32
READERS: Final = 2
GROUP: Final = "keys"
DEAF_SHARE: Final = 0.5
"""Of the runs in which one of the two producers hears no pushes, as clients of an earlier version."""


class KeyedProducer:
    """A producer; one that fails is replaced by another one with other keys."""

    def __init__(self, clients: Workload, subjects: Subjects, number: int, *, is_deaf: bool) -> None:
        self.clients = clients
        self.world = clients.world
        self.number = number
        self.rng = Random(f"{self.world.seed}-keyed-{number}")
        self.process = Process.begun(self.world, f"k{number}", rate=1.0 + (self.rng.random() - 0.5) * 0.01)
        self._lives = 0
        with self.process.running():
            nats = clients.connection.nats
            self.connection = SimConnection(nats, self.process, self.process.name)
            if is_deaf:
                nats.deafen(self.connection, f".push.{clients.stream}")
            self.client = Client(self.connection, subjects, server="nats://simulated", name=self.process.name)
            updates = self.client._metadata.updates
            self._applied = updates.applied
            updates.applied = self._look_at_applied  # type: ignore[method-assign]
            self.process.create_task(self._live())

    def _look_at_applied(self) -> dict[str, int]:
        """What the client tells of its adoption."""
        told = self._applied()
        for producer in self.client._producers:
            if isinstance(producer, Producer) and producer.stream in told and producer._layouts is not None:
                told_of = producer.stream, told[producer.stream], producer._routes.newest.version
                self.clients.invariants.adoption_told(self.process.name, *told_of)
        return told

    async def _live(self) -> None:
        await self.connection.connected()
        while True:
            incarnation = self.clients.incarnation
            if self.clients.stopped or not incarnation:
                await asyncio.sleep(0.05)
                continue
            producer = self.client.producer(self.clients.stream, delivery_timeout_ms=60_000)
            try:
                await producer.start()
                if self.clients._is_of(producer, incarnation):
                    self._lives += 1
                    await self._write(producer, incarnation, f"k{self.number}_{self._lives}")
            except TidelogError as error:
                self.world.say(f"{self.process.name} fails: {error}")
            producer._abort(TidelogError(Code.UNAVAILABLE, "given up"))
            await asyncio.sleep(0.2)

    async def _write(self, producer: Producer[bytes, bytes], incarnation: int, name: str) -> None:
        """Until one record fails, or no more is to be written and all that was is answered."""
        failed = asyncio.Event()
        waiting = number = 0

        def answered(value: bytes, losses: int, sent_at: float, future: asyncio.Future[Receipt]) -> None:
            nonlocal waiting
            waiting -= 1
            self.clients.open -= 1
            if (error := future.exception()) is not None:
                self.clients.failed += 1
                self.world.say(f"{value[:12]!r} failed: {error}")
                failed.set()
                return
            self.clients.acknowledged += 1
            receipt = future.result()
            place = self.clients.stream, incarnation, receipt.partition, receipt.offset
            self.clients._acked(Acknowledged(*place, value, self.process.name, None, losses), promised=True)
            self.clients.invariants.key_acked(value, sent_at)

        while not failed.is_set() and (waiting or self.clients._goes_on(incarnation)):
            await asyncio.sleep(self.clients._pause())
            if not self.clients._goes_on(incarnation):
                if incarnation != self.clients.incarnation:
                    return
                continue
            for _ in range(self.rng.choice((1, 1, 3, 8))):
                if waiting >= MAX_WAITING:
                    break
                number += 1
                value = self.clients._value(name, number)
                owner = name.encode() if self.rng.random() < 0.6 else SHARED
                key = b"%s-%d" % (owner, self.rng.randrange(KEYS))
                future = producer.send_nowait(value, key=key)
                waiting += 1
                self.clients.sent += 1
                self.clients.open += 1
                future.add_done_callback(partial(answered, value, self.clients.invariants.losses, self.world.now))


class KeyReader:
    """One life of a member."""

    def __init__(self, readers: KeyReaders, number: int, life: int) -> None:
        world = readers.world
        self.readers = readers
        self.name = f"r{number}-{life}"
        self.rng = Random(f"{world.seed}-{self.name}")
        self.process = Process.begun(world, self.name, rate=1.0 + (self.rng.random() - 0.5) * 0.01)
        self.consumer: GroupConsumer[bytes, bytes] | None = None
        self._goes_on = asyncio.Event()
        """The program asks for records."""
        self._goes_on.set()
        self._came_to: dict[PartitionKey, tuple[PartitionFetcher, int]] = {}
        """The fetcher whose batch was given last, and its end."""
        self._assigned_at: dict[AssignedPartition, float] = {}
        with self.process.running():
            self.connection = SimConnection(readers.nats, self.process, self.name)
            self.client = Client(self.connection, readers.subjects, server="nats://simulated", name=self.name)
            self.process.create_task(self._live())

    async def _live(self) -> None:
        await self.connection.connected()
        while True:
            consumer: GroupConsumer[bytes, bytes] = self.client.subscribe(
                self.readers.clients.stream,
                group=GROUP,
                start=self.readers.start,
                auto_commit_interval=self.readers.commit_interval,
                session_timeout=self.readers.session_timeout,
                rebalance_timeout=self.readers.session_timeout,
                read_from=self.rng.choice(("leader", "follower")),
            )
            consumer._session.clock = consumer._stopwatch = self.process.time
            self.consumer = consumer
            self._look_at_assignments(consumer)
            try:
                await consumer.start()
                self._look_at_commits(consumer)
                async for batch in consumer.batches():
                    self._got(batch, consumer)
                    if self.rng.random() < 0.2:
                        await asyncio.sleep(self.rng.random() * 0.2)
                    await self._goes_on.wait()
            except TidelogError as error:
                self.readers.world.say(f"{self.name} fails: {error}")
            self.consumer = None
            try:
                await consumer.aclose()
            except TidelogError as error:
                self.readers.world.say(f"{self.name} is not closed: {error}")
            await asyncio.sleep(0.1)

    def _look_at_assignments(self, consumer: GroupConsumer[bytes, bytes]) -> None:
        state = consumer._partitions.state
        assign = state.assign

        def looked_at(of: StreamPartition, stream: AssignedStream | None = None) -> AssignedPartition:
            assigned = assign(of, stream)
            self._assigned_at[assigned] = self.readers.world.now
            return assigned

        state.assign = looked_at  # type: ignore[method-assign]

    def _look_at_commits(self, consumer: GroupConsumer[bytes, bytes]) -> None:
        commits = consumer._commits
        assert commits is not None
        commit = commits._commit

        async def looked_at(request: CommitRequest, timeout: float) -> None:
            await commit(request, timeout)
            for one in request.offsets:
                if one.partition_incarnation:
                    place = PartitionKey(
                        StreamName(one.stream),
                        Incarnation(one.incarnation),
                        one.partition,
                        Incarnation(one.partition_incarnation),
                    )
                    self.readers.clients.invariants.read_to(place, one.offset)

        commits._commit = looked_at  # type: ignore[method-assign]

    def _got(self, batch: Batch, consumer: GroupConsumer[bytes, bytes]) -> None:
        invariants = self.readers.clients.invariants
        assigned = consumer._partitions.found((batch.stream, batch.partition))
        fetcher, began = assigned.fetcher, assigned.began
        assert fetcher is not None
        assert began is not None
        place = PartitionKey(
            StreamName(batch.stream),
            Incarnation(assigned.of.incarnation),
            batch.partition,
            Incarnation(assigned.incarnation),
        )
        first, end = int(batch.offsets[0]), int(batch.offsets[-1]) + 1
        last, came_to = self._came_to.get(place, (None, 0))
        if fetcher is not last and fetcher._start is Anchor.EARLIEST:
            began = first  # what goes before it has read anything is not missed
        self._came_to[place] = fetcher, end
        is_from_newest = fetcher._start is Anchor.LATEST
        began = max(began, came_to)
        since = self._assigned_at[assigned]
        invariants.given(Given(self.name, place, first, end, began, fetcher, assigned.missed, since, is_from_newest))
        settled = invariants.history.history(place).settled_to
        for offset, key, value in zip(batch.offsets, batch.keys, batch.values, strict=True):
            if key is not None and is_keyed(key) and value is not None:
                where = f"{batch.stream}/{batch.partition} offset {offset}"
                self.readers.given.add(value)
                invariants.key_given(self.name, where, key, value, is_settled=offset < settled)

    @property
    def assignment(self) -> set[int]:
        """The partitions that it reads, or is about to."""
        return {partition for _, partition in self.consumer.assignment} if self.consumer is not None else set()

    def stand_still(self) -> None:
        """The program asks for no more records until it goes on."""
        self._goes_on.clear()

    def pause(self) -> None:
        """The program takes nothing more of the partitions that it reads now, until it goes on."""
        with self.process.running():
            if self.consumer is not None:
                self.consumer.pause()

    def go_on(self) -> None:
        with self.process.running():
            self._goes_on.set()
            if self.consumer is not None:
                self.consumer.resume()

    def die(self) -> None:
        self.process.kill()
        self.readers.nats.process_died(self.connection)


class KeyReaders:
    """A group that reads the stream of `clients` with order="key"."""

    def __init__(self, clients: Workload, subjects: Subjects, rng: Random) -> None:
        self.world = clients.world
        self.nats = clients.connection.nats
        self.clients = clients
        self.subjects = subjects
        self.session_timeout = rng.choice((1.0, 2.0, 4.0))
        self.commit_interval = rng.choice((0.05, 0.3, 1.0))
        self.start: Literal["earliest", "latest"] = rng.choice(("earliest", "latest"))
        self.given: set[bytes] = set()
        """Values that some member was given."""
        self._awaited: dict[PartitionKey, dict[bytes, int]] = {}
        """Values that are committed and were not given, when last looked at, and their offsets."""
        self._looked_at: dict[PartitionKey, int] = {}
        """Batches of its history."""
        self._first_incarnation = 0
        """Of the stream, when reading began."""
        self.lives = [0] * READERS
        self.members: list[KeyReader] = []

    def begin(self, limit: float) -> None:
        """Returns when all partitions are read, before any record with a key is written, and where they are read from
        the latest record on, when that is committed: else another member could begin at a later one."""
        self.members = [KeyReader(self, number, 0) for number in range(READERS)]
        self._first_incarnation = self.clients.incarnation
        wanted = set(range(self.clients.partitions))

        def read_all() -> bool:
            begun: set[int] = set()
            for member in self.members:
                if (consumer := member.consumer) is not None:
                    is_early = self.start == "earliest"
                    begun |= {
                        assigned.number
                        for assigned in consumer._state.partitions.values()
                        if assigned.is_read and (is_early or assigned.committed is not None)
                    }
            return begun == wanted

        if not self.world.run_until(self.world.now + limit, read_all):
            self.world.broken("Liveness", f"no group {GROUP} after {limit} s")

    def restart(self, number: int) -> None:
        member = self.members[number]
        if member.process.alive:
            member.die()
        self.lives[number] += 1
        self.members[number] = KeyReader(self, number, self.lives[number])

    def look_at_waits(self) -> bool:
        """Whether a member waits for records of other partitions."""
        is_waiting = False
        for member in self.members:
            state = member.consumer._state if member.consumer is not None and member.process.alive else None
            for assigned, sources in state.waiting.items() if state is not None else ():
                is_waiting = True
                self.clients.invariants.waiting(member.name, assigned.of, sources)
        return is_waiting

    def unsettled(self) -> str | None:
        """What was written with a key, is committed, and was not deleted, was given to a member. A group that begins at
        the latest record leaves out what is written to a stream that is made anew before a member reads it."""
        if self.start == "latest" and self.clients.incarnation != self._first_incarnation:
            return None
        invariants = self.clients.invariants
        for key, history in invariants.history.of.items():
            partition = invariants.raft.truth.partition(key)
            if key.stream != self.clients.stream or partition is None:
                continue
            seen = self._looked_at.get(key, 0)
            awaited = self._awaited.setdefault(key, {})
            for _, data in history.batches[seen:]:
                awaited.update({row.value: row.offset for row in rows(data) if is_keyed(row.key) and row.value})
            self._looked_at[key] = len(history.batches)
            for value, offset in [*awaited.items()]:
                if value in self.given or offset < invariants.deleted_end(key):
                    del awaited[value]
            if awaited:
                return (
                    f"no member of {GROUP} was given {len(awaited)} records of {key}, one of them {min(awaited)!r:.24}"
                )
        return None
