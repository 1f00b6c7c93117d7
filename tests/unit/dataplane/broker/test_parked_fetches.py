"""The questions of one broker about its followers' fetches, and the answers of the brokers of their leaders."""

# Rules: R6, R83.

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dataplane.broker.following.follower_driver import FollowerDriver
from dataplane.broker.leading.leader_driver import LeaderDriver
from dataplane.broker.parked_fetches import AT_ONCE, QUESTIONS, ParkedCounters, ParkedFetches
from dataplane.broker.replica import Replica
from tests.fake_nats import FakeTransport, Hub
from tests.views import KEY, A, B, C, partition_view
from wire.messaging.transport import Message
from wire.partition_messages import parked
from wire.partition_messages.parked import decode_parked
from wire.subjects import Subjects
from wire.types import BrokerId, Incarnation, LeaderEpoch, PartitionKey, PartitionView

SUBJECTS = Subjects()
NEVER, SOON = 10_000.0, 0.04
"""Seconds: idle waits."""
BUG = -1
"""Number of a fetch that a role fails over."""


class FakeFollower(FollowerDriver):
    def __init__(self, view: PartitionView, sequence: int | None) -> None:
        self.view = view
        self.sequence_parked = sequence
        self.verdicts: list[tuple[int, bool]] = []
        self.asked_at: list[float] = []

    @property
    def parked(self) -> int | None:
        if self.sequence_parked == BUG:
            raise KeyError("a bug")
        return self.sequence_parked

    def on_parked_answer(self, sequence: int, is_held: bool, asked_at: float) -> None:
        self.verdicts.append((sequence, is_held))
        self.asked_at.append(asked_at)


class FakeLeader(LeaderDriver):
    def __init__(self, holding: int) -> None:
        self.holding = holding
        self.asked: list[tuple[BrokerId, int, int, int]] = []

    def holds(self, replica: BrokerId, incarnation: Incarnation, leader_epoch: LeaderEpoch, sequence: int) -> bool:
        self.asked.append((replica, incarnation, leader_epoch, sequence))
        if self.holding == BUG:
            raise KeyError("a bug")
        return sequence == self.holding


@dataclass
class Broker:
    hub: Hub
    name: BrokerId
    incarnation: int
    idle_wait: float = NEVER
    replicas: dict[PartitionKey, Replica] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.transport = FakeTransport(self.hub)
        counters = ParkedCounters()
        loop = asyncio.get_running_loop()
        self.counters = counters
        self.fetches = ParkedFetches(
            cast(
                Any,
                SimpleNamespace(
                    broker=self.name,
                    incarnation=Incarnation(self.incarnation),
                    settings=SimpleNamespace(replica_max_idle_wait=self.idle_wait),
                    subjects=SUBJECTS,
                    peers=self.transport,
                    loop=loop,
                    now=loop.time,
                    the=lambda _kind: counters,
                ),
            ),
            self.replicas,
        )

    def follows(self, key: PartitionKey, leader: BrokerId, sequence: int | None, *, epoch: int = 3) -> FakeFollower:
        role = FakeFollower(partition_view(A, B, leader=leader, leader_epoch=epoch, key=key), sequence)
        self._add(key, role)
        return role

    def leads(self, key: PartitionKey, *, holding: int) -> FakeLeader:
        role = FakeLeader(holding)
        self._add(key, role)
        return role

    def _add(self, key: PartitionKey, role: object) -> None:
        replica = cast(Replica, SimpleNamespace(key=key, role=role))
        self.replicas[key] = replica
        self.fetches.add(replica)

    @property
    def asked(self) -> list[str]:
        return [subject for subject, _, _ in self.transport.sent if subject.endswith(".parked")]


def key(partition: int) -> PartitionKey:
    return replace(KEY, partition=partition)


async def settle() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


async def pair(idle_wait: float = NEVER) -> tuple[Broker, Broker]:
    """Without a short `idle_wait` they ask only when a test has them ask."""
    hub = Hub()
    a, b = Broker(hub, A, 10, idle_wait), Broker(hub, B, 20, idle_wait)
    for broker in (a, b):
        await broker.fetches.start()
    return a, b


async def test_all_fetches_at_one_broker_are_asked_about_in_one_message() -> None:
    a, b = await pair()
    leaders = [a.leads(key(n), holding=7) for n in range(3)]
    followers = [b.follows(key(n), A, 7 + (n == 0)) for n in range(3)]
    b.follows(key(3), A, None)
    b.fetches._tick()
    await settle()
    assert b.asked == ["tidelog.notify.a.parked"]
    assert [role.asked for role in leaders] == [[(B, 20, 3, 8)], [(B, 20, 3, 7)], [(B, 20, 3, 7)]]
    assert [role.verdicts for role in followers] == [[(8, False)], [(7, True)], [(7, True)]]


async def test_a_broker_speaks_for_no_partition_that_it_does_not_lead() -> None:
    a, b = await pair()
    a.leads(replace(key(0), partition_incarnation=Incarnation(2)), holding=7)
    a.leads(replace(key(1), stream_incarnation=Incarnation(2)), holding=7)
    a.follows(key(2), B, 7)
    gone = a.leads(key(4), holding=7)
    a.fetches.remove(key(4))
    followers = [b.follows(key(n), A, 7) for n in range(5)]
    b.fetches._tick()
    await settle()
    assert [role.verdicts for role in followers] == [[(7, False)]] * 5
    assert gone.asked == []


async def test_where_nobody_listens_some_fetch_at_once() -> None:
    _, b = await pair()
    followers = [b.follows(key(n), C, 7) for n in range(AT_ONCE + 2)]
    b.fetches._tick()
    await settle()
    assert [role.verdicts for role in followers] == [[(7, False)]] * AT_ONCE + [[], []]


async def test_an_answer_is_dated_by_its_question() -> None:
    a, b = await pair()
    a.leads(key(0), holding=7)
    follower = b.follows(key(0), A, 7)
    before = asyncio.get_running_loop().time()
    b.fetches._tick()
    after = asyncio.get_running_loop().time()
    await asyncio.sleep(0.01)
    await settle()
    assert follower.verdicts == [(7, True)]
    assert before <= follower.asked_at[0] <= after


async def test_an_answer_that_comes_after_the_next_question_counts() -> None:
    a, b = await pair()
    a.leads(key(0), holding=7)
    follower = b.follows(key(0), A, 7)
    b.fetches._tick()
    b.fetches._tick()
    await settle()
    assert follower.verdicts == [(7, True)] * 2
    assert follower.asked_at == sorted(follower.asked_at)


async def test_the_inboxes_of_old_questions_are_given_up() -> None:
    _, b = await pair(SOON)
    b.follows(key(0), A, 7)
    async with asyncio.timeout(10):
        while len(b.asked) < 3 * QUESTIONS:  # noqa: ASYNC110 - the timer of the loop is what is waited for
            await asyncio.sleep(SOON / 4)
    assert len(b.transport.inboxes) <= QUESTIONS + 2
    await b.fetches.close()
    assert not b.transport.inboxes


async def test_a_bug_of_one_partition_leaves_the_others_alone(caplog: pytest.LogCaptureFixture) -> None:
    a, b = await pair()
    for n in range(3):
        a.leads(key(n), holding=BUG if n == 1 else 7)
    followers = [b.follows(key(n), A, BUG if n == 3 else 7) for n in (3, 0, 1, 2)]
    b.fetches._tick()
    await settle()
    assert [role.verdicts for role in followers] == [[], [(7, True)], [(7, False)], [(7, True)]]
    assert (a.counters.parked_fetch_bugs, b.counters.parked_fetch_bugs) == (1, 1)
    assert f"partition {key(1)} met a bug" in caplog.text
    assert f"partition {key(3)} met a bug" in caplog.text


async def test_many_replicas_are_looked_at_slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataplane.broker.parked_fetches.SLICE", 2)
    a, b = await pair(SOON)
    for n in range(5):
        a.leads(key(n), holding=7)
    followers = [b.follows(key(n), A, 7) for n in range(5)]
    async with asyncio.timeout(10):
        while not all(role.verdicts for role in followers):  # noqa: ASYNC110 - as above
            await asyncio.sleep(SOON / 20)
    questions = [data for subject, data, _ in b.transport.sent if subject == SUBJECTS.parked(A)]
    assert [len(decode_parked(question).places) for question in questions[:3]] == [2, 2, 1]
    assert b.fetches._gap == pytest.approx(SOON / QUESTIONS / 3)
    await a.fetches.close()
    await b.fetches.close()


async def test_very_many_are_asked_about_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataplane.broker.parked_fetches.MAX_PLACES", 2)
    a, b = await pair()
    for n in range(5):
        a.leads(key(n), holding=n)
    followers = [b.follows(key(n), A, n) for n in range(5)]
    b.fetches._tick()
    await settle()
    assert len(b.asked) == 3
    assert [role.verdicts for role in followers] == [[(n, True)] for n in range(5)]


async def test_it_asks_again_and_again_until_it_is_closed() -> None:
    a, b = await pair(SOON)
    a.leads(key(0), holding=7)
    follower = b.follows(key(0), A, 7)
    async with asyncio.timeout(10):
        while len(follower.verdicts) < 3:  # noqa: ASYNC110 - the timer of the loop is what is waited for
            await asyncio.sleep(SOON / 4)
    await b.fetches.close()
    count = len(b.asked)
    await asyncio.sleep(2 * SOON)
    assert len(b.asked) == count
    await a.fetches.close()


async def test_what_does_not_decode_is_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    a, b = await pair()
    follower = b.follows(key(0), A, 7)
    a.fetches._on_question(Message("s", b"no question", "inbox"))
    assert a.counters.bad_parked_questions == 1
    b.fetches._on_answer([(follower, 7)], 0.0, Message("s", b"\1\1"))
    assert b.counters.bad_parked_questions == 1
    assert follower.verdicts == []
    assert "dropped a message about parked fetches" in caplog.text


async def test_a_question_names_its_sender_and_each_fetch_by_all_its_numbers() -> None:
    a, b = await pair()
    heard: list[Message] = []
    a.transport.listen(SUBJECTS.parked(A), heard.append)
    named = PartitionKey(KEY.stream, Incarnation(4), 5, Incarnation(6))
    b.follows(named, A, 8, epoch=7)
    b.fetches._tick()
    await settle()
    question = decode_parked(heard[0].data)
    assert question == parked.ParkedRequest(B, Incarnation(20), [parked.Place(4, 5, 6, 7, 8)])
