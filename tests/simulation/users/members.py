"""Members of a consumer group, each a process of its own with the production `Membership`, over the simulated NATS.

They read nothing: what a member would hand out follows from its membership and its clock. They commit ascending offsets
of what they hold, and also while their session is over, as a program does that has slept. A member gives up revoked
partitions after a moment, or, where a fault has made it slow, too late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from tests.simulation.invariants.groups import Assigned, CommittedOffsetsStay, OffsetCommit
from tests.simulation.machines.messaging import SimConnection
from tests.simulation.world import Process
from tidelog.client.client import Client
from tidelog.client.group.membership import (
    AskWhere,
    Assign,
    Effects,
    Fail,
    Lose,
    MemberSettings,
    Membership,
    Partitions,
    Revoke,
    SendHeartbeat,
    State,
    Tell,
)
from wire.errors import TidelogError
from wire.internal_records.group_records import (
    COMMIT,
    HEARTBEAT,
    OFFSETS,
    StreamPartition,
    coordinator_subject,
    from_stream_partitions,
    to_stream_partitions,
)
from wire.internal_streams import GROUPS
from wire.messaging.transport import NO_RESPONDERS, Message
from wire.protobuf.groups_pb2 import (
    CommitRequest,
    CommitResponse,
    CommittedOffset,
    HeartbeatResponse,
    OffsetsRequest,
    OffsetsResponse,
)
from wire.types import StreamName

if TYPE_CHECKING:
    from tests.simulation.users.clients import Workload
    from wire.subjects import Subjects

GROUP: Final = "g"
MEMBERS: Final = 3
SLOW_S: Final = 6.0
"""For which a slow member does not give up what it must."""


class SimMember:
    """One life. `name`: of all its lives."""

    def __init__(self, group: SimGroup, number: int, life: int) -> None:
        world = group.world
        self.group = group
        self.name = f"m{number}-{life}"
        self.rng = Random(f"{world.seed}-{self.name}")
        self.process = Process.begun(world, self.name, rate=1.0 + (self.rng.random() - 0.5) * 0.01)
        self.ids = 0
        self.commits = 0
        """Number of the newest commit."""
        self.is_slow = False
        self.positions: dict[StreamPartition, int] = {}
        """The next offset to read of what it holds, and has asked for."""
        self.timer: asyncio.TimerHandle | None = None
        self.looking: asyncio.Task[None] | None = None
        with self.process.running():
            self.connection = SimConnection(group.nats, self.process, self.name)
            self.client = Client(self.connection, group.subjects, server="nats://simulated", name=self.name)
            self.link = self.client._link
            settings = MemberSettings(
                group=GROUP,
                streams=("s",),
                instance=f"i{number}" if number % 2 else "",
                session_timeout=group.session_timeout,
                rebalance_timeout=group.rebalance_timeout,
            )
            self.membership = Membership(settings, self._new_id)
            self._spawn(self._begin)
            self._spawn(self._commit)

    def _new_id(self) -> str:
        self.ids += 1
        return f"{self.name}-{self.ids}"

    def _spawn(self, work: Callable[[], object]) -> None:
        async def guarded() -> None:
            await work()  # type: ignore[misc]

        self.process.create_task(guarded())

    @property
    def reads(self) -> Partitions:
        """What it would hand out records of now."""
        if not self.process.alive or not self.process.time() < self.membership.session_until:
            return frozenset()
        return self.membership._held

    async def _begin(self) -> None:
        await self.connection.connected()
        now = self.process.time()
        self._carry_out([*self.membership.begin(now), *self.membership.app_calls(now)])

    # ---- the membership

    def _carry_out(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case SendHeartbeat():
                    self._send(effect)
                case Assign(partitions):
                    self.group.assigned(self, partitions)
                    self._spawn(partial(self._ask, partitions))
                case Revoke(partitions):
                    delay = SLOW_S if self.is_slow else self.rng.random() * 0.05
                    self.process.call_later(delay, self._give_up, partitions)
                case Lose(partitions):
                    for of in partitions:
                        self.positions.pop(of, None)
                case AskWhere():
                    if self.looking is None or self.looking.done():
                        self.looking = self.process.create_task(self._look())
                case Tell(error) | Fail(error):
                    self.group.world.say(f"{self.name} is told: {error}")
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        deadline = self.membership.next_deadline
        if deadline != float("inf"):
            self.timer = self.process.call_later(max(0.0, deadline - self.process.time()), self._tick)
        self.group.look()

    def _tick(self) -> None:
        self.timer = None
        self._carry_out(self.membership.tick(self.process.time()))

    def _give_up(self, partitions: Partitions) -> None:
        for of in partitions - self.membership._held:
            self.positions.pop(of, None)
        self._carry_out(self.membership.given_up(partitions, self.process.time()))

    def _send(self, effect: SendHeartbeat) -> None:
        inbox, number = self.connection.new_inbox(), effect.number
        self.connection.on_inbox(inbox, partial(self._on_message, number))
        subject = coordinator_subject(self.group.subjects, HEARTBEAT, GROUP)
        self.connection.publish(subject, [effect.request.SerializeToString()], reply=inbox)
        self.process.call_later(effect.timeout, self._on_silence, number)

    def _on_silence(self, number: int) -> None:
        self._carry_out(self.membership.on_silence(number, self.process.time()))

    def _on_message(self, number: int, message: Message) -> None:
        now = self.process.time()
        if message.status == NO_RESPONDERS:
            self._carry_out(self.membership.on_no_responders(number, now))
            return
        error = TidelogError.from_headers(message.headers)
        if error is not None:
            self.group.world.say(f"{self.name} heartbeat {number}: {error}")
            self._carry_out(self.membership.on_refused(number, error, now))
            return
        answer = HeartbeatResponse.FromString(message.data)
        if self.group.world.is_traced:
            numbers = sorted(of.partition for of in from_stream_partitions(answer.assigned))
            self.group.world.say(
                f"{self.name} heartbeat {number}: generation {answer.generation} version {answer.version}"
                f" assigned {numbers}{' unasked' if answer.unasked else ''}"
            )
        self._carry_out(self.membership.on_answer(number, answer, now))

    async def _look(self) -> None:
        try:
            await self.link.look(GROUP)
        except TidelogError as error:
            self.group.world.say(f"{self.name} cannot find its coordinator: {error}")

    def leave(self) -> None:
        with self.process.running():
            self._carry_out(self.membership.leave(self.process.time()))

    def die(self) -> None:
        self.process.kill()
        self.group.nats.process_died(self.connection)

    # ---- offsets

    async def _ask(self, partitions: Partitions) -> None:
        """Where to begin."""
        while wanted := {of for of in partitions & self.membership._held if of not in self.positions}:
            for of, offset in (await self.ask(wanted)).items():
                if of in self.membership._held:
                    self.positions[of] = max(offset, 0)
            await asyncio.sleep(0.1)

    async def ask(self, wanted: set[StreamPartition]) -> dict[StreamPartition, int]:
        """What is committed of these; nothing where that is not known."""
        floors = {of: self.group.floor(of) for of in wanted}
        request = OffsetsRequest(group=GROUP, partitions=to_stream_partitions(wanted))
        try:
            answer = await self.link.ask(OFFSETS, GROUP, request, OffsetsResponse, timeout=5.0)
        except TidelogError as error:
            self.group.world.say(f"{self.name} asks for offsets: {error}")
            return {}
        told = {StreamPartition(o.stream, o.incarnation, o.partition): o.offset for o in answer.offsets}
        for of, offset in told.items():
            if of.incarnation == self.group.clients.incarnation:
                self.group.invariants.offset_told(of, offset, floors[of])
        return told

    async def _commit(self) -> None:
        """One commit at a time. Where no answer comes, the next one follows, and the first may still be on its way."""
        while True:
            await asyncio.sleep(self.rng.expovariate(8.0))
            offsets = {of: at + 1 for of, at in self.positions.items() if of in self.membership._held}
            if self.group.clients.stopped or not offsets:
                continue
            now, world = self.group.world.now, self.group.world
            commits = [
                OffsetCommit(self.membership.member_id, of, offset, now, self.group.reader_of.get(of))
                for of, offset in offsets.items()
            ]
            self.positions |= offsets
            self.commits += 1
            request = CommitRequest(
                group=GROUP,
                member=self.membership.member_id,
                generation=self.membership.generation,
                number=self.commits,
                offsets=[
                    CommittedOffset(stream=of.stream, incarnation=of.incarnation, partition=of.partition, offset=offset)
                    for of, offset in offsets.items()
                ],
            )
            subject = coordinator_subject(self.group.subjects, COMMIT, GROUP)
            try:
                message = await self.connection.request(subject, request.SerializeToString(), timeout=1.0)
            except TimeoutError:
                world.say(f"{self.name} has no answer to a commit")
                continue
            error = TidelogError.from_headers(message.headers)
            if message.status is not None or error is not None:
                world.say(f"{self.name} commit refused: {error or 'nobody listens'}")
                self.group.refused += 1
                continue
            CommitResponse.FromString(message.data)
            for commit in commits:
                self.group.committed += 1
                self.group.invariants.offset_committed(commit)


class SimGroup:
    """A group whose members read the stream of `clients`. It takes part in faults."""

    def __init__(self, clients: Workload, subjects: Subjects, rng: Random) -> None:
        self.world = clients.world
        self.nats = clients.connection.nats
        self.invariants = clients.invariants
        self.subjects = subjects
        self.clients = clients
        self.session_timeout = rng.choice((1.0, 2.0, 4.0))
        self.rebalance_timeout = rng.choice((1.0, 2.0))
        self.committed = 0
        self.refused = 0
        self.reader_of: dict[StreamPartition, Assigned] = {}
        """The last that has begun to read each partition."""
        self.lives: list[int] = [0] * MEMBERS
        self.members: list[SimMember] = []
        """By number, the newest life of each."""

    def begin(self, limit: float) -> None:
        """Returns when it is stable."""
        self.members = [SimMember(self, number, 0) for number in range(MEMBERS)]
        if not self.world.run_until(self.world.now + limit, lambda: self.unsettled() is None):
            self.world.broken("Liveness", f"no group after {limit} s: {self.unsettled()}")

    def assigned(self, member: SimMember, partitions: Partitions) -> None:
        for of in sorted(partitions):
            self.reader_of[of] = Assigned(member.membership.member_id, self.world.now)

    def look(self) -> None:
        readers: dict[StreamPartition, list[str]] = {}
        for member in self.members:
            for of in member.reads:
                readers.setdefault(of, []).append(member.membership.member_id)
        self.invariants.readers(readers)

    def floor(self, of: StreamPartition) -> int:
        (invariant,) = (one for one in self.invariants._all if isinstance(one, CommittedOffsetsStay))
        return invariant._floor_of(of)

    # ---- faults

    def restart(self, number: int) -> None:
        member = self.members[number]
        if member.process.alive:
            member.die()
        self.lives[number] += 1
        self.members[number] = SimMember(self, number, self.lives[number])

    def move_coordinator(self, broker: str) -> None:
        self.clients.spawn(partial(self._move, broker))

    async def _move(self, broker: str) -> None:
        try:
            await self.clients.client.move_leader(StreamName(GROUPS.name), 0, broker)
        except TidelogError as error:
            self.world.say(f"the coordinator was not moved to {broker}: {error}")

    # ---- state

    @property
    def _wanted(self) -> set[StreamPartition]:
        """All partitions of the stream."""
        stream = self.invariants.raft.truth.streams[StreamName("s")]
        return {StreamPartition("s", self.clients.incarnation, number) for number in stream.partitions}

    def is_read_without(self, number: int) -> bool:
        """The other members have all partitions."""
        others = self.members[:number] + self.members[number + 1 :]
        return self._wanted == {of for member in others for of in member.reads}

    # ---- the calm

    def unsettled(self) -> str | None:
        readers: dict[StreamPartition, list[str]] = {}
        for member in self.members:
            membership = member.membership
            if membership.state is not State.MEMBER or membership.owned != membership.assigned:
                return f"{member.name} is {membership.state.value}, has {membership.owned} of {membership.assigned}"
            for of in member.reads:
                readers.setdefault(of, []).append(member.name)
        if readers.keys() != self._wanted or any(len(names) > 1 for names in readers.values()):
            return f"partitions are read by {readers}"
        return None

    def ask_at_the_end(self) -> None:
        """A member is told all that was acknowledged."""
        told: list[dict[StreamPartition, int]] = []

        async def ask() -> None:
            told.append(await self.members[0].ask(set(self.reader_of)))

        with self.members[0].process.running():
            self.members[0].process.create_task(ask())
        if not self.world.run_until(self.world.now + 10, lambda: bool(told)) or not told[0]:
            self.world.broken("Liveness", "nobody tells what is committed")


@contextmanager
def small_groups() -> Iterator[None]:
    """The internal stream of groups has one partition, and small segments, so that it is compacted."""
    before = GROUPS.partitions, GROUPS.settings
    # A frozen dataclass, which many modules have imported.
    object.__setattr__(GROUPS, "partitions", 1)
    object.__setattr__(GROUPS, "settings", replace(GROUPS.settings, segment_bytes=4096))
    try:
        yield
    finally:
        object.__setattr__(GROUPS, "partitions", before[0])
        object.__setattr__(GROUPS, "settings", before[1])
