"""Users of the cluster: the production client over the simulated NATS, and publishers that know nothing of Tidelog.

Values name their writer and its order: `<name>:<number>:<padding>`. Names begin with `i` (idempotent: once, in
order), `l` (acks=leader), `n` (acks=none) or `b` (bare publishes).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Literal

from tests.simulation.invariants import Acknowledged, Invariants
from tests.simulation.invariants.history import Session
from tests.simulation.machines.messaging import Nats, SimConnection
from tests.simulation.world import Process, World
from tidelog.client.base.exceptions import IncorrectOffset, OutOfOrderSequence
from tidelog.client.base.records import Receipt
from tidelog.client.client import Client
from tidelog.client.consumer.consumer import Consumer
from tidelog.client.producer.producer import Producer
from wire.batch import RecordBatch
from wire.durability import Durability
from wire.errors import Code, TidelogError
from wire.messaging.transport import Message
from wire.partition_messages.liftbridge_envelope import decode_ack, encode_publish, is_envelope
from wire.protobuf.tidelog_pb2 import AckPolicy
from wire.protobuf.tidelog_pb2 import Message as Envelope
from wire.subjects import Subjects, ingest_subject
from wire.types import PartitionKey, StreamName

MAX_WAITING = 64
"""Records of one producer without an answer; it waits at that many."""

EXPECTING = 0.1
"""The share of records with acks=all that are sent with the offset that they expect."""

EXPECTING_BARE = 0.2
"""The same of bare publishes, where records have message ids."""
AGAIN = 0.15
"""The share of records that are sent again under their message id, though they were acknowledged."""


def _id_of(value: bytes) -> str:
    """The message id of a record: its writer and number."""
    return ":".join(value.decode().split(":")[:2])


@dataclass(slots=True)
class _Asked:
    """A bare publish or an envelope that wants an answer."""

    value: bytes
    incarnation: int
    partition: int
    inbox: str
    promised: bool
    """Its acknowledgement counts."""
    is_envelope: bool
    is_sent_once: bool
    """One answer is given for all of it."""
    expects: int | None
    """The end of the log, or it is refused; None: any."""


def _told(message: Message) -> tuple[int, int] | Code:
    """(partition, offset) of the stored record, or the error."""
    if is_envelope(message.data):
        ack = decode_ack(message.data)
        return Code[ack.errorCode] if ack.errorCode else (ack.partition, ack.offset)
    answer = json.loads(message.data)
    if "error" in answer:
        return Code[answer["tidelog"]["code"]]
    return int(answer["partition"]), int(answer["offset"])


def _line(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{where.filename}:{where.lineno}"


class Workload:
    """One client process with its producers and consumers of one stream."""

    def __init__(
        self,
        world: World,
        nats: Nats,
        invariants: Invariants,
        subjects: Subjects,
        name: str,
        *,
        rate: float,
        keys: int = 0,
        identifies: bool = False,
    ) -> None:
        """`rate`: records per second of each producer. `keys`: so many different ones, and the stream is compacted; 0:
        none. `identifies`: records have message ids, and are sent again under them."""
        self.identifies = identifies
        self.world = world
        self.invariants = invariants
        self.process = Process.begun(world, name)
        self.rng = Random(f"{world.seed}-{name}")
        self.rate = rate
        self.keys = keys
        self.stopped = False
        self.sent = 0
        self.acknowledged = 0
        self.failed = 0
        self.refused = 0
        """Records that would not have got the offset that they expect."""
        self.slowest = 0.0
        """Of the answers since it was last set to 0, in seconds."""
        self.burst_until = 0.0
        """Until then producers are many times faster."""
        self.open = 0
        """Sent with a reply subject, and no answer came."""
        self.consumed: dict[tuple[int, int], int] = {}
        """(stream incarnation, partition) -> next offset of the consumer, in that life of the partition."""
        self._lives: dict[tuple[int, int], int] = {}
        """(stream incarnation, partition) -> incarnation of the partition that the consumer reads."""
        self.incarnation = 0
        self.partitions = 0
        self.stream = ""
        self.durable = True
        with self.process.running():
            self.connection = SimConnection(nats, self.process, name)
            self.client = Client(self.connection, subjects, server="nats://simulated", name=name)
        self._names = 0
        self._made_with: dict[str, Any] = {}

    def spawn(self, work: Callable[[], object]) -> None:
        with self.process.running():
            self.process.create_task(self._guarded(work))

    async def _guarded(self, work: Callable[[], object]) -> None:
        try:
            await work()  # type: ignore[misc]
        except Exception as error:  # noqa: BLE001 - a program that has ended would be missed late, or never
            if self.process.alive:
                self.world.fails("NoBugs", f"{self.process.name}: {error!r} at {_line(error)}")

    # ---- the stream

    async def create(
        self, stream: str, *, partitions: int, replication_factor: int, config: dict[str, str], after: int = 0
    ) -> None:
        """`after`: the incarnation that was deleted."""
        self.durable = Durability.parse(config["durability"]).is_synced
        self._made_with = {"partitions": partitions, "replication_factor": replication_factor, "config": config}
        await self.connection.connected()
        while True:
            try:
                await self.client.create_stream(
                    stream, partitions=partitions, replication_factor=replication_factor, config=config
                )
                break
            except TidelogError as error:
                self.world.say(f"cannot create {stream}: {error}")
                if error.code is Code.STREAM_EXISTS:
                    break  # an attempt without an answer made it
                await asyncio.sleep(0.2)
        while True:
            try:
                incarnation = (await self.client.metadata(stream)).incarnation
            except TidelogError as error:
                self.world.say(f"cannot look at {stream}: {error}")
                await asyncio.sleep(0.2)
                continue
            if incarnation == after:
                await asyncio.sleep(0.2)  # a deposed controller's word
            else:
                self.stream, self.partitions, self.incarnation = stream, partitions, incarnation
                return

    @property
    def first_partitions(self) -> int:
        """That the stream was made with."""
        return int(self._made_with["partitions"])

    def recreate(self) -> bool:
        """Delete the stream and make it again under its name."""
        if not self.incarnation:
            return False
        before, self.incarnation = self.incarnation, 0
        self.spawn(lambda: self._recreate(before))
        return True

    async def follow_partitions(self) -> None:
        """Of a stream that is repartitioned: what publishers that choose partitions know of it, a little late."""
        while True:
            await asyncio.sleep(0.05 + self.rng.random() * 0.3)
            stream = self.invariants.raft.truth.streams.get(StreamName(self.stream))
            if stream is not None and stream.incarnation == self.incarnation:
                self.partitions = stream.layouts[-1].partitions

    async def _recreate(self, before: int) -> None:
        while True:
            try:
                await self.client.delete_stream(self.stream)
                break
            except TidelogError as error:
                self.world.say(f"cannot delete {self.stream}: {error}")
                if error.code is Code.UNKNOWN_STREAM:
                    break
                await asyncio.sleep(0.1)
        self.world.say(f"{self.stream} is deleted")
        await self.create(self.stream, **self._made_with, after=before)

    def cut_off(self) -> Callable[[], object]:
        """From NATS; how to mend it."""
        nats, connection = self.connection.nats, self.connection
        nats.block(connection, up=True, down=True)
        return lambda: nats.unblock(connection)

    def _pause(self) -> float:
        rate = self.rate * 10 if self.world.now < self.burst_until else self.rate
        return self.rng.expovariate(rate)

    def move_leader(self) -> bool:
        """Ask for another leader of some partition."""
        if not self.incarnation:
            return False
        partition = self.rng.randrange(self.partitions)
        self.ask_to_move_leader(partition, self.rng.choice(sorted(self.invariants.brokers)))
        return True

    def ask_to_move_leader(self, partition: int, target: str) -> None:
        self.spawn(lambda: self._move_leader(partition, target))

    async def _move_leader(self, partition: int, target: str) -> None:
        try:
            await self.client.move_leader(self.stream, partition, target)
            self.world.say(f"{self.stream}/{partition} was moved to {target}")
        except TidelogError as error:
            self.world.say(f"{self.stream}/{partition} was not moved to {target}: {error}")

    def alter(self, lowest_min_isr: int) -> bool:
        """Ask for another min ISR, while the stream is used."""
        if not self.incarnation:
            return False
        min_isr = self.rng.choice([wanted for wanted in (1, 2, 3) if wanted >= lowest_min_isr])
        self.ask_for_min_isr(min_isr)
        return True

    def ask_for_min_isr(self, min_isr: int) -> None:
        self.spawn(lambda: self._alter(min_isr))

    async def _alter(self, min_isr: int) -> None:
        try:
            await self.client.alter_stream(self.stream, config={"min_isr": min_isr})
            self.world.say(f"{self.stream} has min ISR {min_isr}")
        except TidelogError as error:
            self.world.say(f"{self.stream} keeps its min ISR: {error}")

    # ---- producers

    async def produce(self, acks: Literal["all", "leader", "none"], durability: Durability | None = None) -> None:
        """For ever, until `stopped`. A producer that fails is replaced by another, of another name. `durability`: other
        than the stream's."""
        asked = None if durability is None else str(durability)
        # A record acknowledged from page caches on a durable stream is not committed yet.
        committed = acks == "all" and (durability is None or durability.is_synced or not self.durable)
        while not self.stopped:
            if not self.incarnation:
                await asyncio.sleep(0.05)
                continue
            incarnation = self.incarnation
            self._names += 1
            name = {"all": "i", "leader": "l", "none": "n"}[acks] + str(self._names)
            failed = asyncio.Event()
            producer = self.client.producer(self.stream, acks=acks, durability=asked, delivery_timeout_ms=60_000)
            try:
                await producer.start()
            except TidelogError as error:
                self.world.say(f"{name} cannot start: {error}")
                await asyncio.sleep(0.2)
                continue
            if not self._is_of(producer, incarnation):
                producer._abort(TidelogError(Code.UNAVAILABLE, "of a stream that is deleted"))
                await asyncio.sleep(0.2)
                continue
            waiting = 0
            number = 0
            stored: list[tuple[bytes, int]] = []

            def answered(
                value: bytes,
                sent_at: float,
                losses: int,
                incarnation: int,
                failed: asyncio.Event,
                place: tuple[int, int | None],
                stored: list[tuple[bytes, int]],
                future: asyncio.Future[Receipt],
            ) -> None:
                nonlocal waiting
                waiting -= 1
                self.open -= 1
                error = future.exception()
                if isinstance(error, IncorrectOffset) and place[1] is not None:
                    self._was_elsewhere(value, *place, error)
                    return
                if error is not None:
                    self.failed += 1
                    self.world.say(f"{value[:12]!r} failed: {error}")
                    if committed and isinstance(error, OutOfOrderSequence):
                        self.invariants.alarmed(self.process.name, str(error))
                    failed.set()
                    return
                receipt = future.result()
                if committed:
                    stored.append((value, receipt.partition))
                if place[1] not in (None, receipt.offset) and receipt.offset >= 0:
                    self.world.broken("ExpectedOffset", f"{value[:12]!r} is at {receipt.offset}, not {place[1]}")
                self.acknowledged += 1
                self.slowest = max(self.slowest, self.world.now - sent_at)
                if acks != "none":
                    partition, offset = receipt.partition, receipt.offset
                    ack = Acknowledged(
                        self.stream, incarnation, partition, offset, value, self.process.name, durability, losses
                    )
                    self._acked(ack, promised=committed)

            while self._goes_on(incarnation) and not failed.is_set():
                await asyncio.sleep(self._pause())
                for _ in range(self.rng.choice((1, 1, 1, 3, 8))):
                    if waiting >= MAX_WAITING:
                        break
                    number += 1
                    value = self._value(name, number)
                    partition = self.rng.randrange(self.partitions)
                    is_again = self.identifies and stored and self.rng.random() < AGAIN
                    if is_again:
                        value, partition = self.rng.choice(stored)
                    key = None
                    if self.keys:
                        key = b"%d" % self.rng.randrange(self.keys)
                        value = b"" if self.rng.random() < 0.2 else value
                    expected = None
                    if acks == "all" and not is_again and self.rng.random() < EXPECTING:
                        expected = self.invariants.acked_end(self.stream, incarnation, partition)
                    try:
                        future = producer.send_nowait(
                            value or None,
                            key=key,
                            partition=partition,
                            expected_offset=expected,
                            msg_id=_id_of(value) if self.identifies else None,
                        )
                    except TidelogError as error:
                        self.world.say(f"{name} fails: {error}")
                        failed.set()
                        break
                    waiting += 1
                    self.sent += 1
                    self.open += 1
                    future.add_done_callback(
                        partial(
                            answered,
                            value,
                            self.world.now,
                            self.invariants.losses,
                            incarnation,
                            failed,
                            (partition, expected),
                            stored,
                        )
                    )
            if failed.is_set() or incarnation != self.incarnation:
                producer._abort(TidelogError(Code.UNAVAILABLE, "given up"))

    def _was_elsewhere(self, value: bytes, partition: int, expected: int | None, error: IncorrectOffset) -> None:
        """A record would not have got the offset that it expects."""
        self.refused += 1
        self.world.say(f"{value[:12]!r} is not at {partition}/{expected}: the next record gets {error.next_offset}")
        if value:
            self.invariants.refused(self.stream, partition, value)

    def sessions(self, key: PartitionKey) -> Iterator[Session]:
        """Of its producers, with that partition."""
        if (self.stream, self.incarnation) != (key.stream, key.stream_incarnation):
            return
        for producer in self.client._producers:
            pipe = producer._pipes.get(key.partition) if isinstance(producer, Producer) else None
            if pipe is not None and pipe.core.session is not None:
                awaited = [batch.base_sequence for batch in pipe.core._window]
                yield Session(pipe.core.session.producer_id, pipe.core._next_sequence, awaited)

    @staticmethod
    def _is_of(user: Producer | Consumer, incarnation: int) -> bool:
        """A deposed controller may have told it of the stream that was deleted."""
        layout = user._upkeep.layout if isinstance(user, Producer) else user._reading.stream.metadata
        return layout is not None and layout.incarnation == incarnation

    def _goes_on(self, incarnation: int) -> bool:
        return not self.stopped and incarnation == self.incarnation

    def _value(self, name: str, number: int) -> bytes:
        padding = self.rng.choice((0, 10, 100, 100, 1500))
        return b"%s:%d:%s" % (name.encode(), number, b"x" * padding)

    def _acked(self, ack: Acknowledged, *, promised: bool) -> None:
        if ack.stream_incarnation != self.incarnation:
            return  # of a stream that is gone
        self.world.say(f"acknowledged {ack.value[:12].decode()} at {ack.partition}/{ack.offset}")
        self.invariants.acked(ack, promised=promised)

    async def publish(self) -> None:
        """Bare publishes with a reply subject, as `nats request` makes them, and envelopes. Half of them are sent again
        when no answer comes, and may then be stored twice."""
        number = 0
        self._names += 1
        name = f"b{self._names}"
        while not self.stopped:
            await asyncio.sleep(self._pause())
            if not self.incarnation:
                continue  # an answer could be of either stream
            number += 1
            # It names no incarnation: the leader of a deleted stream that has not heard of that stores it too.
            partition = self.rng.randrange(self.partitions)
            asked = _Asked(
                value=self._value(name, number),
                incarnation=self.incarnation,
                partition=partition,
                inbox=self.connection.new_inbox(),
                promised=not self.invariants.has_zombie(self.stream, partition),
                is_envelope=number % 3 == 0,
                is_sent_once=not self.connection.nats.weather.duplication,
                expects=None,
            )
            if self.identifies and not asked.is_envelope and self.rng.random() < EXPECTING_BARE:
                end = self.invariants.acked_end(self.stream, self.incarnation, partition)
                asked.expects = max(0, end + self.rng.choice((-1, 0, 0, 0, 1)))
            self.connection.on_inbox(asked.inbox, partial(self._answered, asked))
            self.sent += 1
            self._send(asked)
            if number % 2 and asked.expects is None:
                self.process.call_later(1.0, self._again, asked)

    def _send(self, asked: _Asked) -> None:
        subject = ingest_subject(self.stream, asked.partition)
        headers = {"Nats-Msg-Id": _id_of(asked.value)} if self.identifies else {}
        if asked.is_envelope:
            encoded = {name: text.encode() for name, text in headers.items()}
            message = Envelope(value=asked.value, ackInbox=asked.inbox, ackPolicy=AckPolicy.ALL, headers=encoded)
            self.connection.publish(subject, [encode_publish(message)])
            return
        if asked.expects is not None:
            headers["Nats-Expected-Last-Sequence"] = str(asked.expects)
        self.connection.publish(subject, [asked.value], reply=asked.inbox, headers=headers or None)

    def _again(self, asked: _Asked) -> None:
        if self.connection.waits_on(asked.inbox) and asked.incarnation == self.incarnation and not self.stopped:
            asked.is_sent_once = False
            self._send(asked)

    def _answered(self, asked: _Asked, message: Message) -> None:
        if message.status is not None:
            return
        told = _told(message)
        if isinstance(told, Code):
            code = told
            # One that is deposed may not have heard that the partition takes records again (R43).
            is_certain = asked.promised or code is not Code.READONLY
            if not code.unknown_outcome and asked.is_sent_once and is_certain:
                self.connection.on_inbox(asked.inbox, None)  # it is not sent again
                self.world.say(f"{asked.value[:12].decode()} was refused: {code.name}")
                self.invariants.refused(self.stream, asked.partition, asked.value)
            return
        partition, offset = told
        self.connection.on_inbox(asked.inbox, None)
        self.acknowledged += 1
        if partition != asked.partition and self.invariants.has_zombie(self.stream, partition):
            return  # the leader that took it in place of another one may be deposed
        if asked.expects not in (None, offset) and asked.promised:
            self.world.broken("ExpectedOffset", f"{asked.value[:12]!r} is at {offset}, not {asked.expects}")
        if asked.promised:
            ack = Acknowledged(self.stream, asked.incarnation, partition, offset, asked.value, self.process.name)
            self._acked(ack, promised=True)

    # ---- consumers

    async def consume(self) -> None:
        """From the beginning, for ever; after a failure from where it was."""
        read_from: Literal["leader", "follower"] = "follower" if self.world.seed % 2 == 0 else "leader"
        while True:
            if not self.incarnation:
                await asyncio.sleep(0.05)
                continue
            read = {p for incarnation, p in self.consumed if incarnation == self.incarnation}
            known = sorted(read.union(range(self.first_partitions)))
            start = {p: self._came_to(p) for p in known}
            incarnation = self.incarnation
            consumer = self.client.consume(self.stream, start=start, read_from=read_from, on_gap="skip")
            missed: dict[int, int] = {}
            try:
                await consumer.start()
                async for batch in consumer.batches():
                    if incarnation != self.incarnation or not self._is_of(consumer, incarnation):
                        break
                    partition, place = batch.partition, (incarnation, batch.partition)
                    life = consumer._assigned[partition].incarnation
                    if self._lives.setdefault(place, life) != life:  # it was removed, and made anew
                        self._lives[place] = life
                        self.consumed.pop(place, None)
                        missed.pop(partition, None)
                    before = missed.get(partition, 0)
                    told = consumer.missed[partition] - before
                    missed[partition] = before + self._got(incarnation, partition, batch._columns, told)
            except TidelogError as error:
                self.world.say(f"the consumer fails: {error}")
            finally:
                await consumer.aclose()
            await asyncio.sleep(0.1)

    def _came_to(self, partition: int) -> int:
        """The next offset of the consumer; 0 where the partition was made anew."""
        place, stream = (self.incarnation, partition), self.invariants.raft.truth.streams.get(StreamName(self.stream))
        known = stream.partitions.get(partition) if stream is not None else None
        is_anew = known is not None and known.incarnation != self._lives.get(place, known.incarnation)
        return 0 if is_anew else self.consumed.get(place, 0)

    async def ask_for_the_end(self) -> None:
        """LatestCoversAcknowledged: a client that asks for the log end gets one above everything acknowledged before.
        But from a leader that does not know that it is none any more: it may say so until its lease ends."""
        while True:
            await asyncio.sleep(self._pause())
            incarnation = self.incarnation
            if not incarnation:
                continue
            partition = self.rng.randrange(self.partitions)
            acknowledged = self.invariants.acked_end(self.stream, incarnation, partition)
            zombie = self.invariants.has_zombie(self.stream, partition)
            consumer = self.client.consume(self.stream, start="new", partitions=[partition], read_uncommitted=True)
            try:
                await consumer.start()
                end = consumer.positions[partition]
            except TidelogError:
                continue
            finally:
                await consumer.aclose()
            if (
                zombie
                or incarnation != self.incarnation
                or not self._is_of(consumer, incarnation)
                or self.invariants.has_zombie(self.stream, partition)
            ):
                continue
            if end < min(acknowledged, self.invariants.acked_end(self.stream, incarnation, partition)):
                self.world.broken(
                    "LatestCoversAcknowledged",
                    f"{self.process.name} asked {self.stream}/{partition} for its end and got {end}, when records up to"
                    f" {acknowledged} had been acknowledged",
                )

    async def feed_back(self) -> None:
        """NoFeedback: no stream may store internal messages of the cluster."""
        await self.connection.connected()
        subject = self.rng.choice(
            (
                "tidelog.s.0.replicate",
                "tidelog.>",
                "tidelog.notify.b1",
                "tidelog.api.metadata",
                "_INBOX.x",
                "$SYS.x",
                ">",
            )
        )
        with contextlib.suppress(TidelogError):
            await self.client.create_stream(f"feedback-{self.process.name}", subject=subject)
            self.world.broken("NoFeedback", f"a stream was made with subject {subject}")

    def _got(self, incarnation: int, partition: int, columns: RecordBatch, told: int) -> int:
        """`told`: so many records were said to be missed, by the fetches up to now, before this batch."""
        offsets = columns.offsets
        first, end = int(offsets[0]), int(offsets[-1]) + 1
        expected = self.consumed.get((incarnation, partition), 0)
        known = self.invariants.history.named(self.stream, incarnation, partition)
        missing: list[int] = []  # other offsets may be those of markers, or have no record any more
        if first > expected and known is not None and not self.keys:  # compaction leaves holes
            missing = known[1].visible(expected, first)
        gone = known[1].removed_to if known is not None else 0
        if first < expected or len(missing) > told or (missing and missing[-1] >= gone):
            self.world.broken(
                "ConsumerOrder",
                f"{self.process.name} got {self.stream}/{partition} offset {first} after {expected}, and was told that"
                f" it missed {told} records",
            )
        self.invariants.consumed(self.process.name, self.stream, incarnation, columns, partition)
        self.consumed[incarnation, partition] = end
        return len(missing)
