"""The accumulator against a model of a partition whose leaders change: deposed leaders that still answer, records that
were replicated and not committed, deadlines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Literal

import pytest

from dataplane.replica.derived.producer_table import Duplicate, Fresh, ProducerTable
from tests.unit.tidelog.client.producer.accumulators import core, fill, refused, sent
from tidelog.client.producer.accumulator import (
    Acknowledged,
    Effect,
    Failed,
    Probe,
    RefreshMetadata,
    WantSession,
    WantTicket,
)
from tidelog.client.producer.batches import BatchState, PendingBatch, ProducerSession
from wire.batch import BatchHeader
from wire.error_details import EXPECTED_SEQUENCE
from wire.errors import Code, TidelogError
from wire.types import LeaderEpoch, Offset


@dataclass
class Sent:
    """One attempt, as it travels."""

    batch: PendingBatch
    attempt: int
    leader_epoch: int
    session: ProducerSession
    sequence: int
    value: int
    expected: int | None


@dataclass
class Answer:
    to: Sent
    outcome: int | TidelogError | None
    """The base offset, or the refusal; None: the subject has no listener."""
    leader_epoch: int


@dataclass
class Leader:
    """A broker that leads, or believes that it does. Each batch holds one record."""

    epoch: int
    log: list[Sent] = field(default_factory=list)
    can_deny: bool = True
    """The other replicas have cut their logs to this one."""
    awaited: list[tuple[Sent, int]] = field(default_factory=list)
    """Attempts and the offsets of their batches, until these are committed."""

    def __post_init__(self) -> None:
        self.table = ProducerTable()
        for offset, stored in enumerate(self.log):
            self._learn(offset, stored)

    def take(self, sent: Sent) -> TidelogError | None:
        verdict = self.table.check(sent.session.producer_id, sent.session.producer_epoch, sent.sequence, 1)
        if isinstance(verdict, Duplicate):
            self.awaited.append((sent, verdict.base_offset))
        elif isinstance(verdict, Fresh):
            if sent.expected not in (None, len(self.log)):
                return refused(Code.INCORRECT_OFFSET, last_offset=str(len(self.log) - 1))
            self._learn(len(self.log), sent)
            self.awaited.append((sent, len(self.log)))
            self.log.append(sent)
        elif not self.can_deny:
            expected = verdict.error.detail(EXPECTED_SEQUENCE)
            return refused(Code.UNAVAILABLE, **({} if expected is None else {"expected_sequence": str(expected)}))
        else:
            return verdict.error
        return None

    def _learn(self, offset: int, sent: Sent) -> None:
        self.table.record(
            BatchHeader(
                base_offset=Offset(offset), leader_epoch=LeaderEpoch(self.epoch), length=0, attributes=0, columns=1,
                body_crc=0, record_count=1, offset_span=0, first_timestamp=0, last_timestamp=0,
                producer_id=sent.session.producer_id, producer_epoch=0, base_sequence=sent.sequence,
            )
        )  # fmt: skip


class World:
    def __init__(self, delivery_timeout_ms: float) -> None:
        self.never_gives_up = delivery_timeout_ms > 10_000
        self.acc = core(delivery_timeout_ms=delivery_timeout_ms)
        self.now = 0.0
        self.epoch = 1
        self.leader: Leader | None = Leader(1)
        self.deposed: list[Leader] = []
        self.committed: list[Sent] = []
        self.given = 0
        self.sessions = 7
        self.wire: list[Sent] = []
        self.answers: list[Answer] = []
        self.probes = 0
        self.acknowledged: list[int] = []
        self.not_written: set[int] = set()
        self.unknown: set[int] = set()
        self.tails: list[list[Sent]] = [[]]
        """What replicas may hold behind the committed records, each by another leader that was lost."""

    # The client

    def handle(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Acknowledged(batch, offset):
                    value = int(batch.values[0] or b"-1")
                    assert self.committed[offset].value == value, "what is acknowledged is committed at that offset"
                    assert batch.expected_offset in (None, offset)
                    self.acknowledged.append(value)
                case Failed(batch, error):
                    assert batch.expected_offset is not None or not self.never_gives_up
                    assert error.code is not Code.OUT_OF_ORDER_SEQUENCE, "nothing that was acknowledged is lost here"
                    is_sure = error.details.get("outcome") == "not_written"
                    (self.not_written if is_sure else self.unknown).add(int(batch.values[0] or b"-1"))
                case WantSession():
                    self.sessions += 1
                    self.acc.on_session(ProducerSession(self.sessions, 0))
                case Probe():
                    self.probes += 1
                case WantTicket():
                    raise AssertionError("it is of no transaction")
                case RefreshMetadata():
                    pass

    def pump(self) -> None:
        while (batch := self.acc.next_send(self.now)) is not None:
            assert batch.session is not None
            value = int(batch.values[0] or b"-1")
            expected = batch.expected_offset
            sent = Sent(batch, batch.attempts, batch.sent_epoch, batch.session, batch.base_sequence, value, expected)
            self.wire.append(sent)

    def give(self) -> None:
        self.acc.gathering.append(b"%d" % self.given, None, None, None, 60, None, self.now)
        self.given += 1

    def give_expecting(self, wrong_by: int) -> None:
        """A record that expects to be the next one behind what is committed, or `wrong_by` further on."""
        offset = len(self.committed) + wrong_by
        self.acc.gathering.append_expecting(offset, b"%d" % self.given, None, None, None, 60, None, self.now)
        self.given += 1

    def hear(self, place: int) -> None:
        answer = self.answers.pop(place)
        batch, attempt = answer.to.batch, answer.to.attempt
        match answer.outcome:
            case None:
                self.handle(self.acc.on_no_responders(batch, attempt, self.now))
            case TidelogError() as error:
                self.handle(self.acc.on_error(batch, attempt, error, self.now))
            case offset:
                self.handle(self.acc.on_acknowledged(batch, offset, answer.leader_epoch))

    def answer_probes(self) -> None:
        while self.probes:
            self.probes -= 1
            if self.leader is None:
                self.handle(self.acc.on_probe_no_responders(self.now))
            else:
                self.handle(self.acc.on_probe_answer(self.leader.epoch))

    # The brokers

    def deliver(self, refusal: Code | None = None) -> None:
        """One message, to each broker that believes that it leads."""
        sent = self.wire.pop(0)
        if self.leader is None and not self.deposed:
            self.answers.append(Answer(sent, None, 0))
        for broker in [*self.deposed, *([self.leader] if self.leader is not None else [])]:
            error: TidelogError | None = None
            if sent.leader_epoch > broker.epoch:
                continue
            if sent.leader_epoch < broker.epoch:
                error = refused(Code.FENCED_LEADER_EPOCH, leader_epoch=str(broker.epoch))
            elif refusal is not None:
                error = refused(refusal)
            else:
                error = broker.take(sent)
            if error is not None:
                self.answers.append(Answer(sent, error, broker.epoch))

    def commit(self, count: int) -> None:
        leader = self.leader
        if leader is None:
            return
        leader.can_deny = True
        self.committed = leader.log[: len(self.committed) + count]
        left = []
        for waiting, offset in leader.awaited:
            if offset < len(self.committed):
                self.answers.append(Answer(waiting, offset, leader.epoch))
            else:
                left.append((waiting, offset))
        leader.awaited = left

    def lose_leader(self, *, dies: bool, says: bool) -> None:
        """`dies`: else it goes on as a deposed one. `says`: it answers what it cannot know any more."""
        leader = self.leader
        if leader is None:
            return
        self.tails = [*([] if leader.can_deny else self.tails), leader.log[len(self.committed) :]]
        if says:
            self.answers += [Answer(s, refused(Code.OUTCOME_UNKNOWN), leader.epoch) for s, _ in leader.awaited]
        leader.awaited = []
        if not dies:
            self.deposed.append(leader)
        self.leader = None

    def elect(self, replicated: int, tail: int = -1) -> None:
        """The successor has all that is committed, and so many records behind it of one of the tails."""
        if self.leader is None:
            self.epoch += 1
            self.leader = Leader(self.epoch, [*self.committed, *self.tails[tail][:replicated]], can_deny=False)


WEIGHTS = {
    "give": 5, "deliver": 8, "hear": 8, "commit": 5, "tick": 5, "probe": 5, "elect": 4, "refuse": 3, "wait": 2,
    "die": 1, "depose": 1, "bury": 1, "reconnect": 1, "lose": 1, "drop": 1, "give expecting": 1,
}  # fmt: skip


def trouble(world: World, random: Random) -> None:
    """One step in which anything can happen."""
    world.now += 0.02
    match random.choices([*WEIGHTS], [*WEIGHTS.values()])[0]:
        case "give":
            world.give()
        case "give expecting":
            world.give_expecting(random.choice([0, 0, 0, 1, 2]))
        case "deliver" if world.wire:
            world.deliver()
        case "refuse" if world.wire:
            world.deliver(random.choice([Code.BACKPRESSURE, Code.NOT_ENOUGH_REPLICAS]))
        case "lose" if world.wire:
            world.wire.pop(0)
        case "commit":
            world.commit(random.randint(0, 3))
        case "hear" if world.answers:
            world.hear(random.randrange(len(world.answers)))
        case "drop" if world.answers:
            world.answers.pop(random.randrange(len(world.answers)))
        case "die" | "depose" as step:
            world.lose_leader(dies=step == "die", says=random.random() < 0.3)
        case "elect":
            world.elect(random.randint(0, 5), random.randrange(len(world.tails)))
        case "bury":
            world.deposed.clear()
        case "reconnect":
            world.handle(world.acc.on_reconnected(world.now))
        case "tick":
            world.handle(world.acc.tick(world.now))
        case "wait":
            world.now += random.choice([0.2, 1.0])
        case "probe":
            world.answer_probes()
        case _:
            pass  # there is no message or answer at present
    world.pump()


@pytest.mark.parametrize("delivery_timeout_ms", [24 * 3_600_000, 3000])
@pytest.mark.parametrize(
    "seeds", [range(at, at + 100) for at in range(0, 400, 100)], ids=lambda seeds: f"from {seeds[0]}"
)
def test_through_changes_of_leader_every_receipt_is_true(delivery_timeout_ms: float, seeds: range) -> None:
    for seed in seeds:
        with failing_seed(seed):
            run(World(delivery_timeout_ms), Random(seed))


@contextmanager
def failing_seed(seed: int) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        error.add_note(f"seed {seed}")
        raise


def run(world: World, random: Random) -> None:
    for _ in range(150):
        trouble(world, random)

    world.elect(0)
    world.deposed.clear()
    world.answers = [answer for answer in world.answers if answer.outcome is not None]
    settle(world)


def settle(world: World) -> None:
    """All goes well from here on, and the accumulator is called only when it says, or when an answer comes."""
    for _ in range(200):
        while world.wire:
            world.deliver()
        world.commit(100)
        while world.answers:
            world.hear(0)
        world.answer_probes()
        world.pump()
        if world.acc.is_idle:
            break
        if not world.wire:
            due = world.acc.next_deadline()
            assert due is not None, "a batch is pending and nothing will ever be done for it"
            world.now = max(world.now, due)
            world.handle(world.acc.tick(world.now))
            world.pump()
    assert world.acc.is_idle
    assert world.now < 60, "the end comes soon, also without a deadline"

    written = [sent.value for sent in world.committed]
    assert len(written) == len(set(written)), "no record is written twice"
    assert {*world.acknowledged} <= {*written}
    assert not world.not_written & {*written}, "what is said not to be written is not written"
    in_order = [value for value in written if value in {*world.acknowledged}]
    assert in_order == sorted(in_order), "acknowledged records keep their order"
    assert {*world.acknowledged} | world.not_written | world.unknown == {*range(world.given)}


def test_a_batch_that_the_next_leader_may_hold_is_not_sent_under_another_id() -> None:
    """The batch before it was given up, and the leader lacks both; a replica that has not cut its log leads next."""
    world = World(delivery_timeout_ms=3000)
    for world.now in (0.0, 1.0):
        world.give()
        world.pump()
        world.deliver()
    world.lose_leader(dies=True, says=False)
    world.elect(0)
    world.now = 3.0
    world.handle(world.acc.tick(world.now))
    assert world.unknown == {0}
    world.answer_probes()
    world.pump()
    world.deliver()
    world.hear(0)
    world.lose_leader(dies=True, says=False)
    world.elect(2, tail=0)
    settle(world)
    assert [sent.value for sent in world.committed] == [0, 1]
    assert world.acknowledged == [1]


@pytest.mark.parametrize("acks", ["all", "leader"])
@pytest.mark.parametrize("code", [Code.OUT_OF_ORDER_SEQUENCE, Code.UNKNOWN_PRODUCER_ID])
def test_a_deposed_leader_does_not_know_what_its_successor_has_stored(
    code: Code, acks: Literal["all", "leader"]
) -> None:
    """Its controller is deposed, too, and sends the producer back to it (seed 885)."""
    acc = core(acks)
    fill(acc, 1)
    acc.on_probe_answer(4)
    (a,) = sent(acc)
    a.doubt()
    assert acc.on_probe_answer(3) == [RefreshMetadata()]
    acc.on_metadata(3)
    assert sent(acc, 1.0) == [a]
    assert a.sent_epoch == 3
    assert acc.on_error(a, 2, refused(code, remembered_ms="900000"), 1.0) == [RefreshMetadata()]
    assert a.session == ProducerSession(7, 0)
    assert sent(acc, 1.0) == [], "a deposed leader is not flooded"
    acc.on_probe_answer(4)
    assert sent(acc, 2.0) == [a]
    assert acc.on_acknowledged(a, 62, 4) == [Acknowledged(a, 62)]


def test_a_deposed_leader_lacks_what_its_successor_has_acknowledged() -> None:
    acc = core()
    fill(acc, 2)
    acc.on_probe_answer(4)
    first = acc.next_send(0.0)
    assert first is not None
    acc.on_acknowledged(first, 7, 4)
    acc.on_probe_answer(3)
    acc.on_metadata(3)
    (second,) = sent(acc, 1.0)
    assert acc.on_error(second, 1, refused(Code.OUT_OF_ORDER_SEQUENCE), 1.0) == [RefreshMetadata()]
    assert second.state is BatchState.RESEND


@pytest.mark.parametrize("late", [False, True], ids=["answered by its successor", "and later by itself"])
def test_the_leader_that_an_attempt_named_may_have_stored_what_its_successor_refuses(late: bool) -> None:
    """Its tail may be committed after all, and the producer be forgotten until then (seed 2679)."""
    acc = core()
    fill(acc, 1)
    (a,) = sent(acc)
    acc.on_error(a, 1, refused(Code.FENCED_LEADER_EPOCH, leader_epoch="2"), 0.0)
    assert sent(acc, 0.0) == [a]
    if late:
        a.uncertain = False
        acc.on_error(a, 1, refused(Code.OUTCOME_UNKNOWN), 0.0)
    acc.on_error(a, 2, refused(Code.NOT_ENOUGH_REPLICAS), 0.0)
    assert sent(acc, 5.0) == [a]
    (failed, *_) = acc.on_error(a, 3, refused(Code.UNKNOWN_PRODUCER_ID, remembered_ms="1000"), 9.0)
    assert isinstance(failed, Failed)
    assert failed.error.code is Code.OUTCOME_UNKNOWN
