"""Followers in step ask for nothing, and their brokers ask for all of them at once (R83).

    follower's broker                                leader's broker
      │ three times in `replica_max_idle_wait`, for each broker that leads what it follows:
      │ the parked fetches there, by number ─────────> │ each leader looks whether that fetch has its data waiter
      │ <───────────────── held or not, one by one      │ (`Leader.on_parked`): held is as good as an empty answer
      │ held: another idle wait has begun for that follower when the question left
      │ not held: it fetches at once
      │ nobody listens: AT_ONCE of them fetch at once
      │ no answer: it fetches when its idle wait is over, each partition a little earlier or later

So idle traffic depends on the number of brokers, and each rule stays with its partition: a broker speaks for none of
its leaders, and nothing is remembered here from one question to the next but which fetches the last ones named.

One question or answer may be lost, and no follower fetches for that. An answer that comes late, because the loop was
behind, is used: what it says was true when its question left or later. A broker with many replicas looks at SLICE of
them at a time, in steps spread over the interval.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final, TypeAlias

from dataplane.broker.following.follower_driver import FollowerDriver
from dataplane.broker.leading.leader_driver import LeaderDriver
from dataplane.broker.replica import Replica
from dataplane.broker.roles.broker_context import BrokerContext
from dataplane.broker.roles.counters import Counters, counter
from wire.errors import CorruptData
from wire.messaging.transport import NO_RESPONDERS, Message, Subscription
from wire.partition_messages.parked import (
    HELD,
    MAX_PLACES,
    NOT_HELD,
    ParkedRequest,
    Place,
    decode_parked,
    decode_verdicts,
    encode_parked,
    place_of,
)
from wire.turns import pieces
from wire.types import BrokerId, LeaderEpoch, PartitionKey

_log = logging.getLogger(__name__)

QUESTIONS: Final = 3
"""In an idle wait: one of them, or its answer, may be lost."""
SLICE: Final = 1_000
"""Replicas that one step looks at: a few milliseconds, with the questions and their answers."""
AT_ONCE: Final = 64
"""Followers of one question that fetch at once where nobody listens. They find a leader that lives, and the controller
finds a broker that does not; the others fetch when their idle waits are over."""

Parked: TypeAlias = list[tuple[FollowerDriver, int]]
"""Pairs of a follower and the number of its parked fetch."""


@dataclass
class ParkedCounters(Counters):
    bad_parked_questions: int = counter(
        "messages",
        "questions of followers' brokers about fetches that wait, and answers to them, that do not decode",
    )
    parked_fetch_bugs: int = counter(
        "times",
        "bugs of single partitions that were met while fetches that wait were asked about; each is logged, and the"
        " fetch counts as not held",
    )


class ParkedFetches:
    """`replicas`: of the broker. `start` is called once; `close` ends the questions."""

    def __init__(self, context: BrokerContext, replicas: Mapping[PartitionKey, Replica]) -> None:
        self._context = context
        self._replicas = replicas
        self._by_incarnations: dict[tuple[int, int, int], Replica] = {}
        """By incarnation of the stream, partition, and its incarnation."""
        self._interval = self._gap = context.settings.replica_max_idle_wait / QUESTIONS
        """Seconds from one question about a fetch to the next, and from one step to the next."""
        self._timer: asyncio.TimerHandle | None = None
        self._slices: deque[list[Replica]] = deque()
        """Replicas that are still to be looked at in this interval."""
        self._inboxes: deque[tuple[float, str]] = deque()
        """Inboxes of questions that have no answer yet, and when they left; the oldest comes first."""
        self._subscription: Subscription | None = None

    def add(self, replica: Replica) -> None:
        key = replica.key
        self._by_incarnations[key.stream_incarnation, key.partition, key.partition_incarnation] = replica

    def remove(self, key: PartitionKey) -> None:
        self._by_incarnations.pop((key.stream_incarnation, key.partition, key.partition_incarnation), None)

    async def start(self) -> None:
        context = self._context
        subject = context.subjects.parked(context.broker)
        self._subscription = await context.peers.subscribe(subject, self._on_question)
        self._arm()

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._forget(inf)
        if self._subscription is not None:
            await self._subscription.unsubscribe()

    # ------------------------------------------------------------------ asking
    def _arm(self) -> None:
        """The questions of a step leave together, at multiples of the gap. After a late step none is made up for."""
        now = self._context.now()
        self._timer = self._context.loop.call_at((round(now / self._gap) + 1) * self._gap, self._tick)

    def _tick(self) -> None:
        """One step."""
        if not self._slices:
            self._slices.extend(pieces([*self._replicas.values()], SLICE))
            self._gap = self._interval / max(1, len(self._slices))
        self._arm()
        self._forget(self._context.now() - self._context.settings.replica_max_idle_wait)
        by_leader: dict[BrokerId, Parked] = {}
        for replica in self._slices.popleft() if self._slices else ():
            role = replica.role
            if isinstance(role, FollowerDriver):
                try:
                    sequence, leader = role.parked, role.view.leader
                except Exception:  # noqa: BLE001 - it is logged, and the other partitions are asked about
                    self._met_bug(replica)
                    continue
                if sequence is not None and leader is not None:
                    by_leader.setdefault(leader, []).append((role, sequence))
        for leader, parked in by_leader.items():
            for first in range(0, len(parked), MAX_PLACES):
                self._ask(leader, parked[first : first + MAX_PLACES])

    def _forget(self, until: float) -> None:
        """Answers to questions that left before `until` say nothing more."""
        while self._inboxes and self._inboxes[0][0] < until:
            self._context.peers.on_inbox(self._inboxes.popleft()[1], None)

    def _ask(self, leader: BrokerId, parked: Parked) -> None:
        context = self._context
        inbox, now = context.peers.new_inbox(), context.now()
        self._inboxes.append((now, inbox))
        context.peers.on_inbox(inbox, partial(self._on_answer, parked, now))
        places = [place_of(role.view.key, role.leader_epoch, sequence) for role, sequence in parked]
        question = encode_parked(ParkedRequest(context.broker, context.incarnation, places))
        context.peers.publish(context.subjects.parked(leader), [question], reply=inbox, to=leader)

    # Keeps R82, R83.
    def _on_answer(self, parked: Parked, asked_at: float, message: Message) -> None:
        """An answer, however late: it is dated by its question."""
        if message.status == NO_RESPONDERS:
            parked = parked[:AT_ONCE]
            verdicts = bytes([NOT_HELD]) * len(parked)
        else:
            try:
                verdicts = decode_verdicts(message.data, len(parked))
            except CorruptData as e:
                self._drop(e)
                return
        for (role, sequence), verdict in zip(parked, verdicts, strict=True):
            role.on_parked_answer(sequence, verdict == HELD, asked_at)

    # ------------------------------------------------------------------ answering
    def _on_question(self, message: Message) -> None:
        try:
            question = decode_parked(message.data)
        except CorruptData as e:
            self._drop(e)
            return
        if message.reply:
            verdicts = bytes([self._verdict(question, place) for place in question.places])
            self._context.peers.publish(message.reply, [verdicts], to=question.broker)

    def _verdict(self, question: ParkedRequest, place: Place) -> int:
        replica = self._by_incarnations.get((place.stream_incarnation, place.partition, place.partition_incarnation))
        if replica is None:
            return NOT_HELD
        role = replica.role
        if not isinstance(role, LeaderDriver):
            return NOT_HELD
        epoch = LeaderEpoch(place.leader_epoch)
        try:
            is_held = role.holds(question.broker, question.incarnation, epoch, place.sequence)
        except Exception:  # noqa: BLE001 - it is logged, and the other partitions are answered for
            self._met_bug(replica)
            return NOT_HELD
        return HELD if is_held else NOT_HELD

    def _met_bug(self, replica: Replica) -> None:
        self._context.the(ParkedCounters).parked_fetch_bugs += 1
        _log.exception("partition %s met a bug when its fetches that wait were asked about", replica.key)

    def _drop(self, error: CorruptData) -> None:
        self._context.the(ParkedCounters).bad_parked_questions += 1
        _log.warning("dropped a message about parked fetches: %s", error)
