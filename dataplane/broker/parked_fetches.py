"""Followers in step ask for nothing, and their brokers ask for all of them at once (R83).

    follower's broker                                leader's broker
      │ every half `replica_max_idle_wait`, for each broker that leads what it follows:
      │ the parked fetches there, by number ─────────> │ each leader looks whether that fetch has its data waiter
      │ <───────────────── held or not, one by one      │ (`Leader.on_parked`): held is as good as an empty answer
      │ held: another idle wait begins for that follower
      │ not held, nobody listens: it fetches at once
      │ no answer within `replica_fetch_timeout`: it fetches when its idle wait is over

So idle traffic depends on the number of brokers, and each rule stays with its partition: a broker speaks for none of
its leaders, and nothing is remembered here from one question to the next but which fetches the last one named.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

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
from wire.types import BrokerId, LeaderEpoch, PartitionKey

_log = logging.getLogger(__name__)

Parked: TypeAlias = list[tuple[FollowerDriver, int]]
"""Followers, and the numbers of their fetches."""


@dataclass
class ParkedCounters(Counters):
    bad_parked_questions: int = counter(
        "messages",
        "questions of followers' brokers about fetches that wait, and answers to them, that do not decode",
    )


class ParkedFetches:
    """`replicas`: of the broker. `start` is called once; `close` ends the questions."""

    def __init__(self, context: BrokerContext, replicas: Mapping[PartitionKey, Replica]) -> None:
        self._context = context
        self._replicas = replicas
        self._by_incarnations: dict[tuple[int, int, int], Replica] = {}
        """By incarnation of the stream, partition, and its incarnation."""
        self._interval = context.settings.replica_max_idle_wait / 2
        self._timer: asyncio.TimerHandle | None = None
        self._inboxes: list[str] = []
        """Inboxes of the last questions."""
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
        self._forget()
        if self._subscription is not None:
            await self._subscription.unsubscribe()

    # ------------------------------------------------------------------ asking
    def _arm(self) -> None:
        """All questions of a broker leave together, at multiples of the interval."""
        now = self._context.now()
        self._timer = self._context.loop.call_at((math.floor(now / self._interval) + 1) * self._interval, self._tick)

    def _tick(self) -> None:
        self._arm()
        self._forget()
        by_leader: dict[BrokerId, Parked] = {}
        for replica in self._replicas.values():
            role = replica.role
            if isinstance(role, FollowerDriver):
                sequence, leader = role.parked, role.view.leader
                if sequence is not None and leader is not None:
                    by_leader.setdefault(leader, []).append((role, sequence))
        for leader, parked in by_leader.items():
            for first in range(0, len(parked), MAX_PLACES):
                self._ask(leader, parked[first : first + MAX_PLACES])

    def _forget(self) -> None:
        """Answers to earlier questions count no more."""
        for inbox in self._inboxes:
            self._context.peers.on_inbox(inbox, None)
        self._inboxes.clear()

    def _ask(self, leader: BrokerId, parked: Parked) -> None:
        context = self._context
        inbox = context.peers.new_inbox()
        self._inboxes.append(inbox)
        until = context.now() + context.settings.replica_fetch_timeout
        context.peers.on_inbox(inbox, partial(self._on_answer, parked, until))
        places = [place_of(role.view.key, role.leader_epoch, sequence) for role, sequence in parked]
        question = encode_parked(ParkedRequest(context.broker, context.incarnation, places))
        context.peers.publish(context.subjects.parked(leader), [question], reply=inbox, to=leader)

    def _on_answer(self, parked: Parked, until: float, message: Message) -> None:
        """An answer that comes after `until` says nothing: what was true then may be true no more (R82)."""
        if self._context.now() > until:
            return
        if message.status == NO_RESPONDERS:
            verdicts = bytes([NOT_HELD]) * len(parked)
        else:
            try:
                verdicts = decode_verdicts(message.data, len(parked))
            except CorruptData as e:
                self._drop(e)
                return
        for (role, sequence), verdict in zip(parked, verdicts, strict=True):
            role.on_parked_answer(sequence, verdict == HELD)

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
        role = None if replica is None else replica.role
        if not isinstance(role, LeaderDriver):
            return NOT_HELD
        epoch = LeaderEpoch(place.leader_epoch)
        return HELD if role.holds(question.broker, question.incarnation, epoch, place.sequence) else NOT_HELD

    def _drop(self, error: CorruptData) -> None:
        self._context.the(ParkedCounters).bad_parked_questions += 1
        _log.warning("dropped a message about parked fetches: %s", error)
