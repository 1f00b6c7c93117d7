"""Programs with transactions, each a process of its own with the production client, over the simulated NATS.

    writers    write to several partitions and streams, and commit an offset of a group, in one transaction. They
               commit, abort, or forget the transaction until its timeout is over
    driver     commits what its tasks have prepared (`tests.simulation.users.families`)
    copier     reads the first stream from where its group is, writes one record for each record, and commits the
               offsets of its input in the same transaction

A program that was killed is started again under its transactional id; so is one that goes on, as happens where a
supervisor takes a slow program for dead. Their values begin with `x` and `o`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.invariants import Acknowledged
from tests.simulation.invariants.transactions import (
    OUTPUTS,
    Ended,
    OffsetInTransaction,
    OffsetsMoveWithTransactions,
)
from tests.simulation.machines.messaging import SimConnection
from tests.simulation.world import Process
from tidelog.client.base.exceptions import DeliveryTimeout, ProducerFenced, TransactionAborted
from tidelog.client.client import Client
from tidelog.client.transaction.producer_transactions import State
from tidelog.client.transaction.transactional_producer import TransactionalProducer
from wire.error_details import OUTCOME
from wire.errors import TidelogError
from wire.internal_records.group_records import OFFSETS, StreamPartition, to_stream_partitions
from wire.internal_streams import TRANSACTIONS
from wire.operations.transaction_operations import TRANSACTION_ABORT
from wire.protobuf.groups_pb2 import OffsetsRequest, OffsetsResponse
from wire.types import StreamName

if TYPE_CHECKING:
    from tests.simulation.users.clients import Workload
    from tidelog.client.base.records import Receipt
    from tidelog.client.producer.batches import ProducerSession
    from wire.subjects import Subjects

COPIER: Final = 0
"""Its number; others are writers."""
FAMILY: Final = 3
"""The number of a driver whose tasks prepare (`tests.simulation.users.families`)."""
TRANSACTORS: Final = 4
COPIED: Final = "copied"
"""The group whose offsets the copier commits."""
ANSWER_LIMIT: Final = 5.0
"""Seconds for a group's coordinator to tell what is committed."""


class _Given(Exception):
    """The transaction has ended otherwise than by a commit."""


class SimTransactor:
    """One life of a program."""

    def __init__(self, all_of_them: SimTransactors, number: int, life: int) -> None:
        world = all_of_them.world
        self.all = all_of_them
        self.number = number
        self.transactional_id = f"x{number}"
        self.name = f"x{number}-{life}"
        self.rng = Random(f"{world.seed}-{self.name}")
        self.process = Process.begun(world, self.name, rate=1.0 + (self.rng.random() - 0.5) * 0.01)
        self.is_busy = False
        """In a transaction, or about to begin one."""
        self.copied: dict[int, int] = {}
        """By partition of the input: the next offset to process."""
        self.values = 0
        with self.process.running():
            self.connection = SimConnection(all_of_them.nats, self.process, self.name)
            self.client = Client(self.connection, all_of_them.subjects, server="nats://simulated", name=self.name)
            self.process.create_task(self._live())

    @property
    def is_newest(self) -> bool:
        return self.all.newest[self.number] is self

    def die(self) -> None:
        self.process.kill()
        self.all.nats.process_died(self.connection)

    def stop(self, stopped: Callable[[], object]) -> None:
        """In order."""

        async def close() -> None:
            try:
                async with asyncio.timeout(20):
                    await self.client.close()
            finally:
                self.die()
                stopped()

        with self.process.running():
            self.process.create_task(close())

    async def _live(self) -> None:
        await self.connection.connected()
        while True:
            self.is_busy = True
            producer: TransactionalProducer[Any, Any] = self.client.producer(
                transactional_id=self.transactional_id,
                streams=[OUTPUTS] if self.number == COPIER else self.all.streams,
                transaction_timeout=self.all.timeout,
                delivery_timeout_ms=self.all.delivery_timeout_ms,
            )
            try:
                await producer.start()
                await (self._copy(producer) if self.number == COPIER else self._write(producer))
            except ProducerFenced as error:
                self.all.world.say(f"{self.name} is fenced: {error}")
                if not self.is_newest:
                    self.is_busy = False
                    return
            except TidelogError as error:
                self.all.world.say(f"{self.name} fails: {error}")
            await producer.close()
            await asyncio.sleep(0.1 + self.rng.random() * 0.2)

    async def _idle(self) -> None:
        self.is_busy = False
        await asyncio.sleep(self.rng.expovariate(self.all.rate))
        while self.all.clients.stopped:  # noqa: ASYNC110 - that is no event of this process
            await asyncio.sleep(0.05)
        self.is_busy = True

    # ---- one transaction

    async def _end(self, producer: TransactionalProducer[Any, Any], session: ProducerSession, *, commits: bool) -> None:
        """Raises _Given where it is not committed; ProducerFenced."""
        machine = producer._machine
        try:
            if not commits:
                await producer.abort()
                self._told(session, commits=False, is_known=machine._is_known)
                raise _Given
            while True:
                try:
                    await producer.commit()
                except DeliveryTimeout as error:
                    self.all.world.say(f"{self.name} commits again: {error}")
                    if machine.state is not State.COMMITTING:
                        raise
                else:
                    self._told(session, commits=True, is_known=machine._is_known)
                    return
        except TransactionAborted as error:
            self.all.world.say(f"{self.name} has its transaction aborted: {error}")
            self._told(session, commits=False, is_known=machine._is_known)
            raise _Given from error
        except ProducerFenced as error:
            if error.detail(OUTCOME) == "not_written":
                self._told(session, commits=False, is_known=machine._is_known)
            raise

    def _told(self, session: ProducerSession, *, commits: bool, is_known: bool) -> None:
        if commits:
            self.all.committed += 1
        else:
            self.all.aborted += 1
        if is_known:  # its coordinator has heard of it: the next one has another epoch
            how = "committed" if commits else "aborted"
            self.all.world.say(f"{self.name} is told that epoch {session.producer_epoch} is {how}")
            self.all.invariants.transaction_told(Ended(self.name, session.producer_id, session.producer_epoch, commits))

    async def _give_up(self, producer: TransactionalProducer[Any, Any], session: ProducerSession) -> None:
        with suppress(_Given):
            await self._end(producer, session, commits=False)

    def _send(self, producer: TransactionalProducer[Any, Any], stream: str, partition: int, value: bytes) -> None:
        """Raises TidelogError."""
        workload = self.all.workloads.get(stream)
        writer = producer._work.opened(stream)
        layout = writer._upkeep.layout if writer is not None else None
        incarnation = layout.incarnation if layout is not None else 0
        key = None
        if workload is not None and workload.keys:
            key = b"%d" % self.rng.randrange(workload.keys)
            value = b"" if self.rng.random() < 0.2 else value

        def answered(future: asyncio.Future[Receipt]) -> None:
            if future.cancelled() or future.exception() is not None:
                return
            receipt = future.result()
            if self.all.incarnation_of(stream) == incarnation:
                ack = Acknowledged(stream, incarnation, receipt.partition, receipt.offset, value, self.name)
                self.all.invariants.acked(ack, promised=True)

        producer.send_nowait(stream, value or None, key=key, partition=partition).add_done_callback(answered)

    async def _send_offset(
        self,
        producer: TransactionalProducer[Any, Any],
        session: ProducerSession,
        group: str,
        offsets: dict[StreamPartition, int],
    ) -> None:
        """Raises TidelogError; _Given where the stream is another one by now."""
        await self._check_lives(offsets)
        await producer.send_offsets({(of.stream, of.partition): each for of, each in offsets.items()}, group=group)
        for of, offset in offsets.items():
            self.all.invariants.transactional_offset(
                OffsetInTransaction(session.producer_id, session.producer_epoch, group, of, offset)
            )
        await self._check_lives(offsets)

    async def _check_lives(self, offsets: dict[StreamPartition, int]) -> None:
        for of in offsets:
            if (await self.client._metadata.get(of.stream)).incarnation != of.incarnation:
                raise _Given

    # ---- writers

    async def _write(self, producer: TransactionalProducer[Any, Any]) -> None:
        group = f"of-{self.transactional_id}"
        while True:
            await self._idle()
            await producer.begin()
            session = producer._machine.session
            try:
                await self._fill(producer, session, group)
                await self._end(producer, session, commits=await self._decided())
            except _Given:
                await self._give_up(producer, session)
            except ProducerFenced:
                raise
            except TidelogError as error:
                self.all.world.say(f"{self.name} gives its transaction up: {error}")
                await self._give_up(producer, session)
            if self.rng.random() < 0.3:
                await self._look(group)

    async def _fill(self, producer: TransactionalProducer[Any, Any], session: ProducerSession, group: str) -> None:
        for _ in range(self.rng.choice((1, 1, 2, 4, 8))):
            stream = self.rng.choice(self.all.streams)
            self.values += 1
            padding = self.rng.choice((0, 10, 100, 1500))
            value = b"%s:%d:%s" % (self.name.encode(), self.values, b"x" * padding)
            self._send(producer, stream, self.rng.randrange(self.all.workloads[stream].partitions), value)
            if self.rng.random() < 0.3:
                await asyncio.sleep(self.rng.random() * 0.1)
        if self.rng.random() < 0.5 and self.all.clients.incarnation:
            of = StreamPartition("s", self.all.clients.incarnation, 0)
            await self._send_offset(producer, session, group, {of: self.all.next_offset()})

    async def _decided(self) -> bool:
        """After a while. Whether to commit."""
        if self.all.clients.stopped:
            return True
        if self.rng.random() < self.all.forgetting:
            await asyncio.sleep(self.all.timeout * (0.8 + self.rng.random()))
        elif self.rng.random() < 0.5:
            await asyncio.sleep(self.rng.random() * 0.2)
        return self.rng.random() < 0.75

    async def _look(self, group: str) -> None:
        if self.all.clients.incarnation:
            await self.ask(group, [StreamPartition("s", self.all.clients.incarnation, 0)])

    async def ask(self, group: str, wanted: list[StreamPartition]) -> dict[StreamPartition, int]:
        """What is committed. Raises TidelogError."""
        floors = {of: self.all.floor(group, of) for of in wanted}
        request = OffsetsRequest(group=group, partitions=to_stream_partitions(wanted))
        answer = await self.client._link.ask(OFFSETS, group, request, OffsetsResponse, timeout=ANSWER_LIMIT)
        told = {StreamPartition(o.stream, o.incarnation, o.partition): o.offset for o in answer.offsets}
        for of, offset in told.items():
            if of.incarnation == self.all.clients.incarnation:
                self.all.invariants.transactional_offset_told(group, of, offset, floors[of])
        return told

    # ---- the copier

    async def _copy(self, producer: TransactionalProducer[Any, Any]) -> None:
        """From where the group is, again after each transaction that is not committed."""
        clients = self.all.clients
        while True:
            if not clients.incarnation:
                await asyncio.sleep(0.05)
                continue
            self.copied = {}
            life = clients.incarnation
            wanted = [StreamPartition("s", life, number) for number in self.all.input_partitions]
            begin = {of.partition: max(offset, 0) for of, offset in (await self.ask(COPIED, wanted)).items()}
            source = self.client.consume(
                "s", start=begin, on_gap="skip", read_from=self.rng.choice(("leader", "follower"))
            )
            try:
                await source.start()
                if not clients._is_of(source, life):
                    await asyncio.sleep(0.2)
                    continue
                self.copied = begin
                while life == clients.incarnation:
                    self.is_busy = False
                    most = 500 if clients.stopped else self.rng.choice((1, 3, 20))
                    records = await source.getmany(most, timeout=0.5)
                    if not records or life != clients.incarnation:
                        continue
                    self.is_busy = True
                    await self._copy_some(producer, life, records)
            except _Given:
                pass
            finally:
                await source.aclose()

    async def _copy_some(self, producer: TransactionalProducer[Any, Any], life: int, records: list[Any]) -> None:
        """Raises _Given."""
        partition, end = records[0].partition, records[-1].offset + 1
        await producer.begin()
        session = producer._machine.session
        try:
            for record in records:
                value = b"o:%d:%d:%d" % (life, partition, record.offset)
                self._send(producer, OUTPUTS, self.rng.randrange(self.all.output_partitions), value)
            await self._send_offset(producer, session, COPIED, {StreamPartition("s", life, partition): end})
            await self._end(producer, session, commits=self.all.clients.stopped or self.rng.random() < 0.9)
        except _Given:
            await self._give_up(producer, session)
            raise
        except ProducerFenced:
            raise
        except TidelogError as error:
            self.all.world.say(f"{self.name} gives its transaction up: {error}")
            await self._give_up(producer, session)
            raise _Given from error
        self.copied[partition] = end


class SimTransactors:
    """All of them. They take part in faults."""

    def __init__(self, workloads: list[Workload], subjects: Subjects, rng: Random) -> None:
        self.clients = workloads[0]
        self.world = self.clients.world
        self.nats = self.clients.connection.nats
        self.invariants = self.clients.invariants
        self.subjects = subjects
        self._all_workloads = workloads
        # A transaction takes about thirty messages, one after the other: more than a second where each takes long.
        self.timeout = max(rng.choice((0.5, 1.0, 3.0)), 200 * self.nats.weather.latency)
        self.delivery_timeout_ms = rng.choice((3_000, 20_000))
        self.forgetting = rng.choice((0.0, 0.1, 0.3))
        self.rate = rng.choice((2.0, 5.0, 10.0))
        self.output_partitions = rng.choice((1, 2))
        self.committed = 0
        self.aborted = 0
        self.lives = [0] * TRANSACTORS
        self.batches_done = 0
        """That a driver has written down, of which its successors know."""
        self.task_numbers = count()
        self.newest: list[SimTransactor] = []
        """By number."""
        self._offsets = 0
        self._outputs_life = 0

    def begin(self, limit: float, config: dict[str, str], replication_factor: int) -> None:
        """Returns when they have begun. `config`: of the outputs' stream."""
        clients = self.clients

        async def create() -> None:
            while True:
                try:
                    made = await clients.client.ensure_stream(
                        OUTPUTS,
                        partitions=self.output_partitions,
                        replication_factor=replication_factor,
                        config=dict(config),
                    )
                    self._outputs_life = made["incarnation"]
                    return
                except TidelogError as error:
                    self.world.say(f"cannot create {OUTPUTS}: {error}")
                    await asyncio.sleep(0.2)

        clients.spawn(create)
        if not self.world.run_until(self.world.now + limit, lambda: self._outputs_life != 0):
            self.world.broken("Liveness", f"no stream {OUTPUTS} after {limit} s")
        self.newest = [self._begun(number) for number in range(TRANSACTORS)]

    def _begun(self, number: int) -> SimTransactor:
        from tests.simulation.users.families import SimDriver  # which is a transactor itself

        return (SimDriver if number == FAMILY else SimTransactor)(self, number, self.lives[number])

    @property
    def workloads(self) -> dict[str, Workload]:
        """By stream."""
        return {clients.stream: clients for clients in self._all_workloads}

    @property
    def streams(self) -> list[str]:
        return [*self.workloads]

    @property
    def input_partitions(self) -> list[int]:
        """Those that are read: a partition that is made ready for a repartition is not."""
        stream = self.invariants.raft.truth.streams.get(StreamName("s"))
        return [] if stream is None else [each for each in sorted(stream.partitions) if not stream.is_made_ready(each)]

    def incarnation_of(self, stream: str) -> int:
        return self._outputs_life if stream == OUTPUTS else self.workloads[stream].incarnation

    def next_offset(self) -> int:
        """Ascending, also from life to life of the programs."""
        self._offsets += 1
        return self._offsets

    @property
    def _offsets_invariant(self) -> OffsetsMoveWithTransactions:
        (invariant,) = (one for one in self.invariants._all if isinstance(one, OffsetsMoveWithTransactions))
        return invariant

    def floor(self, group: str, of: StreamPartition) -> int:
        return self._offsets_invariant._committed(group, of)

    @property
    def committed_offsets(self) -> dict[tuple[str, StreamPartition], int]:
        """By decided transactions, whether groups have heard of it or not."""
        return {(group, of): self.floor(group, of) for group, of in self._offsets_invariant._sent}

    def look(self, group: str, of: StreamPartition) -> None:
        """A program asks where the group is, as a member does that begins."""
        asking = self.newest[COPIER]

        async def ask() -> None:
            with suppress(TidelogError):
                await asking.ask(group, [of])

        with asking.process.running():
            asking.process.create_task(ask())

    # ---- faults

    def restart(self, number: int) -> None:
        """The one before may live on."""
        self.lives[number] += 1
        self.newest[number] = self._begun(number)

    def move_coordinator(self, broker: str) -> None:
        self.clients.spawn(partial(self._move, broker))

    async def _move(self, broker: str) -> None:
        try:
            await self.clients.client.move_leader(StreamName(TRANSACTIONS.name), 0, broker)
        except TidelogError as error:
            self.world.say(f"the coordinator of transactions was not moved to {broker}: {error}")

    def abort(self, number: int) -> None:
        """As an operator does."""
        self.clients.spawn(partial(self._abort, self.newest[number].transactional_id))

    async def _abort(self, transactional_id: str) -> None:
        try:
            await self.clients.client._api.call(TRANSACTION_ABORT, transactional_id)
            self.world.say(f"the transaction of {transactional_id} is aborted by an operator")
        except TidelogError as error:
            self.world.say(f"the transaction of {transactional_id} is not aborted: {error}")

    # ---- the calm

    def unsettled(self) -> str | None:
        for transactor in self.newest:
            if not transactor.process.alive:
                return f"{transactor.name} does not run"
            if transactor.is_busy:
                return f"{transactor.name} is in a transaction"
        copier, clients = self.newest[COPIER], self.clients
        for number in self.input_partitions:
            known = self.invariants.history.named("s", clients.incarnation, number)
            end = known[1].end if known is not None else 0
            copied = copier.copied.get(number, -1 if number < clients.first_partitions else 0)
            if known is not None:
                copied = max(copied, known[1].removed_to)
            if copied < end and (known is None or copied < 0 or not known[1].holds_nothing(copied, end)):
                return f"{copier.name} is at {copied} of partition {number}, committed is {end}"
        for broker in self.invariants.brokers.values():
            for replica in broker.broker._replicas.values() if broker.broker is not None else ():
                log = replica._log
                if log is not None and log.last_stable(replica.high_watermark) < replica.high_watermark:
                    stable = log.last_stable(replica.high_watermark)
                    return f"{replica.key} on {broker.id} is stable up to {stable}, the HW is {replica.high_watermark}"
        return None

    def ask_at_the_end(self) -> None:
        """Offsets are those of the newest transactions."""
        copier, clients = self.newest[COPIER], self.clients
        for number in self.input_partitions:
            known = self.invariants.history.named("s", clients.incarnation, number)
            if known is not None:
                self.invariants.processed(clients.incarnation, number, known[1].end)
        wanted = [StreamPartition("s", clients.incarnation, number) for number in self.input_partitions]
        groups = [COPIED, *(f"of-{each.transactional_id}" for each in self.newest[1:FAMILY])]
        told: list[object] = []

        async def ask() -> None:
            for group in groups:
                await copier.ask(group, wanted)
            told.append(groups)

        with copier.process.running():
            copier.process.create_task(ask())
        if not self.world.run_until(self.world.now + 10, lambda: bool(told)):
            self.world.broken("Liveness", "nobody tells what transactions have committed")


@contextmanager
def small_transactions() -> Iterator[None]:
    """The internal stream of transactions has one partition, and small segments, so that it is compacted."""
    before = TRANSACTIONS.partitions, TRANSACTIONS.settings
    # A frozen dataclass, which many modules have imported.
    object.__setattr__(TRANSACTIONS, "partitions", 1)
    object.__setattr__(TRANSACTIONS, "settings", replace(TRANSACTIONS.settings, segment_bytes=4096))
    try:
        yield
    finally:
        object.__setattr__(TRANSACTIONS, "partitions", before[0])
        object.__setattr__(TRANSACTIONS, "settings", before[1])
