"""A coordinator of consumer groups in memory, by the rules of docs/groups.md.

`ModelGroup` is one group without a clock: a test says when a member is removed. `FakeCoordinator` answers for groups
and cursors on a fake NATS.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial

from tests.fake_nats import FakeTransport
from wire.error_details import CURSOR_VERSION
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import (
    COMMIT,
    CURSOR,
    DISCOVER,
    HEARTBEAT,
    OFFSETS,
    StreamPartition,
    coordinator_partition,
    coordinator_subject,
    from_stream_partitions,
    to_stream_partitions,
    unknown_member,
)
from wire.messaging.transport import Message
from wire.protobuf.groups_pb2 import (
    CommitRequest,
    CommitResponse,
    CommittedOffset,
    CursorRequest,
    CursorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    OffsetsRequest,
    OffsetsResponse,
    Subscription,
)
from wire.subjects import Subjects

Partitions = frozenset[StreamPartition]


@dataclass
class ModelMember:
    id: str
    subscription: Subscription
    instance: str = ""
    generation: int = 0
    version: int = 1
    assigned: Partitions = frozenset()
    revoking: Partitions = frozenset()
    inbox: str = ""
    """Of its last heartbeat."""
    told: int = 0
    """Version of the newest answer."""
    newest_commit: int = 0
    """Its highest number."""


@dataclass
class ModelGroup:
    name: str
    subscribed: Callable[[Subscription], Iterable[StreamPartition]]
    """All partitions of what is subscribed to."""
    interval_ms: int = 1000
    generation: int = 0
    members: dict[str, ModelMember] = field(default_factory=dict)
    fenced: set[str] = field(default_factory=set)
    offsets: dict[StreamPartition, CommittedOffset] = field(default_factory=dict)
    commits: list[CommitRequest] = field(default_factory=list)
    """That were taken."""
    left_out: int = 0
    """Partitions that it says no member gets."""

    @property
    def owners(self) -> dict[StreamPartition, list[str]]:
        owners: dict[StreamPartition, list[str]] = defaultdict(list)
        for member in self.members.values():
            for of in member.assigned | member.revoking:
                owners[of].append(member.id)
        return owners

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        """Raises TidelogError."""
        if request.member in self.fenced:
            raise TidelogError(Code.FENCED_INSTANCE, "another process has joined under this instance id")
        member = self.members.get(request.member)
        if request.kind == HeartbeatRequest.JOIN and member is None:
            member = self._join(request)
        if member is None:
            raise unknown_member(self.name, request.member)
        if request.kind == HeartbeatRequest.LEAVE:
            self.remove(member.id)
            return HeartbeatResponse()
        if request.kind == HeartbeatRequest.STAY and request.applied == member.version and member.revoking:
            member.revoking = frozenset()
            self._assign_free()
        return self.answer(member, request.applied)

    def answer(self, member: ModelMember, applied: int, *, unasked: bool = False) -> HeartbeatResponse:
        member.generation = self.generation
        member.told = member.version
        return HeartbeatResponse(
            generation=member.generation,
            heartbeat_interval_ms=self.interval_ms,
            version=member.version,
            assigned=[] if applied == member.version else to_stream_partitions(member.assigned),
            unasked=unasked,
            left_out=self.left_out,
        )

    def remove(self, member: str) -> None:
        """It was not heard, or has left."""
        if self.members.pop(member, None) is not None:
            self.rebalance()

    def rebalance(self) -> None:
        self.generation += 1
        for member, target in self._targets():
            revoked = member.assigned - target
            if revoked:
                member.assigned -= revoked
                member.revoking |= revoked
                member.version += 1
        self._assign_free()

    def commit(self, request: CommitRequest) -> None:
        """Raises TidelogError."""
        member = self.members.get(request.member)
        if request.member and member is None:
            raise unknown_member(self.name, request.member)
        if not request.member and self.members:
            raise TidelogError(Code.GROUP_NOT_EMPTY, "the group has members")
        if member is not None and request.generation != member.generation:
            raise TidelogError(Code.STALE_GENERATION, "another generation")
        numbered = None if request.producer_id else member  # those of a transaction are numbered by its producer
        if numbered is not None and request.number < numbered.newest_commit:
            raise TidelogError(Code.STALE_COMMIT, f"commit {numbered.newest_commit} was taken before")
        for offset in request.offsets:
            of = StreamPartition(offset.stream, offset.incarnation, offset.partition)
            if member is not None and of not in member.assigned | member.revoking:
                raise TidelogError(Code.NOT_ASSIGNED, f"{of} is not assigned to it")
        if numbered is not None:
            numbered.newest_commit = request.number
        for offset in request.offsets:
            self.offsets[StreamPartition(offset.stream, offset.incarnation, offset.partition)] = offset
        self.commits.append(request)

    def _join(self, request: HeartbeatRequest) -> ModelMember:
        member = ModelMember(request.member, request.subscription, request.instance)
        member.version += self.generation * 1000  # above those of an earlier membership under this id
        before = [each for each in self.members.values() if request.instance and each.instance == request.instance]
        for old in before:
            del self.members[old.id]
            self.fenced.add(old.id)
            member.assigned = old.assigned
        self.members[member.id] = member
        if not before:
            self.rebalance()
        return member

    def _targets(self) -> list[tuple[ModelMember, Partitions]]:
        """Balanced, where all subscribe to the same: partitions in their order go round the members in theirs."""
        members = [*self.members.values()]
        targets: list[set[StreamPartition]] = [set() for _ in members]
        wanted = [frozenset(self.subscribed(member.subscription)) for member in members]
        for of in sorted(frozenset().union(*wanted)):
            takers = [number for number in range(len(members)) if of in wanted[number]]
            targets[min(takers, key=lambda number: (len(targets[number]), number))].add(of)
        return [(member, frozenset(target)) for member, target in zip(members, targets, strict=True)]

    def _assign_free(self) -> None:
        taken = frozenset(self.owners)
        for member, target in self._targets():
            free = target - taken
            if free:
                member.assigned |= free
                member.version += 1


class FakeCoordinator:
    def __init__(
        self, transport: FakeTransport, streams: dict[str, tuple[int, int]], *, interval_ms: int = 1000
    ) -> None:
        self.transport = transport
        self.subjects = Subjects()
        self.streams = streams
        """Incarnation and number of partitions, by name."""
        self.interval_ms = interval_ms
        self.groups: dict[str, ModelGroup] = {}
        self.cursors: dict[str, CursorResponse] = {}
        self.heartbeats: list[HeartbeatRequest] = []
        self.refusals: dict[str, list[TidelogError]] = defaultdict(list)
        """Taken from the front, by kind of request."""
        self.swallow: dict[str, int] = defaultdict(int)
        """So many requests of that kind are carried out and not answered."""
        self.alive = True
        self._listen()

    def group(self, name: str) -> ModelGroup:
        if name not in self.groups:
            self.groups[name] = ModelGroup(name, self._subscribed, self.interval_ms)
        return self.groups[name]

    def kill(self) -> None:
        self.alive = False
        self._listen()

    def take_over(self) -> None:
        """Another one leads the partition now, with the same state."""
        self.alive = True
        self._listen()

    def remove(self, group: str, member: str) -> None:
        """It was not heard for its session timeout."""
        self.group(group).remove(member)
        self._push(group)

    def rebalance(self, group: str) -> None:
        self.group(group).rebalance()
        self._push(group)

    # ----

    def _listen(self) -> None:
        handlers = {
            HEARTBEAT: self._on_heartbeat,
            DISCOVER: self._on_heartbeat,
            COMMIT: self._on_commit,
            OFFSETS: self._on_offsets,
            CURSOR: self._on_cursor,
        }
        for kind, handler in handlers.items():
            for number in range(8):
                example = next(name for name in map(str, range(1000)) if coordinator_partition(name) == number)
                subject = coordinator_subject(self.subjects, kind, example).rpartition(".")[0] + ".*"
                self.transport.listen(subject, partial(self._serve, kind, handler) if self.alive else None)

    def _serve(self, kind: str, handler: Callable[[Message], bytes], message: Message) -> None:
        assert message.reply is not None
        try:
            if self.refusals[kind]:
                raise self.refusals[kind].pop(0)
            answer = handler(message)
        except TidelogError as error:
            self.transport.publish(message.reply, [b""], headers=error.to_headers())
            return
        if self.swallow[kind]:
            self.swallow[kind] -= 1
            return
        self.transport.publish(message.reply, [answer])

    def _on_heartbeat(self, message: Message) -> bytes:
        request = HeartbeatRequest.FromString(message.data)
        self.heartbeats.append(request)
        group = self.group(request.group)
        answer = group.heartbeat(request)
        member = group.members.get(request.member)
        if member is not None and message.reply is not None:
            member.inbox = message.reply
        self._push(request.group)
        return answer.SerializeToString()

    def _push(self, name: str) -> None:
        group = self.group(name)
        for member in group.members.values():
            if member.told != member.version and member.inbox:
                answer = group.answer(member, 0, unasked=True)
                self.transport.publish(member.inbox, [answer.SerializeToString()])

    def _on_commit(self, message: Message) -> bytes:
        request = CommitRequest.FromString(message.data)
        self.group(request.group).commit(request)
        return CommitResponse().SerializeToString()

    def _on_offsets(self, message: Message) -> bytes:
        request = OffsetsRequest.FromString(message.data)
        group = self.group(request.group)
        if not request.partitions:
            return OffsetsResponse(offsets=group.offsets.values()).SerializeToString()
        nothing = [
            CommittedOffset(stream=of.stream, incarnation=of.incarnation, partition=of.partition, offset=-1)
            for of in from_stream_partitions(request.partitions)
        ]
        found = [group.offsets.get(StreamPartition(one.stream, one.incarnation, one.partition), one) for one in nothing]
        return OffsetsResponse(offsets=found).SerializeToString()

    def _on_cursor(self, message: Message) -> bytes:
        request = CursorRequest.FromString(message.data)
        present = self.cursors.get(request.cursor, CursorResponse())
        if not request.writes:
            return present.SerializeToString()
        if request.HasField("expected_version") and request.expected_version != present.version:
            raise TidelogError(
                Code.CURSOR_CHANGED, f"the cursor has version {present.version}", [CURSOR_VERSION.of(present.version)]
            )
        if request.deletes:
            self.cursors.pop(request.cursor, None)
            return CursorResponse().SerializeToString()
        self.cursors[request.cursor] = CursorResponse(version=present.version + 1, value=request.value)
        return CursorResponse(version=present.version + 1).SerializeToString()

    def _subscribed(self, subscription: Subscription) -> list[StreamPartition]:
        return [
            StreamPartition(stream, incarnation, partition)
            for stream, (incarnation, count) in self.streams.items()
            if stream in subscription.streams or any(fnmatchcase(stream, mask) for mask in subscription.patterns)
            for partition in range(count)
        ]
