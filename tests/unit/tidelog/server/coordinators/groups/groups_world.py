"""A shard of groups with its log: requests in, answers out, and a successor that has the log alone."""

from __future__ import annotations

import itertools
from typing import Any

from tidelog.server.coordinators.groups.group_shard import GroupShard, Request
from tidelog.server.coordinators.known_streams import StreamLife, StreamsView
from tidelog.server.coordinators.record_times import Times
from tidelog.server.coordinators.shard import Admin, Answer
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import StreamPartition, from_stream_partitions
from wire.operations.operation import Operation
from wire.protobuf.groups_pb2 import (
    CommitRequest,
    CommittedOffset,
    CursorRequest,
    CursorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    OffsetsRequest,
    OffsetsResponse,
    Subscription,
)

GROUP = "g"
PATIENCE = 5.0
SESSION = 10.0
RETENTION = 1000.0


def view(generation: int = 10, **streams: tuple[int, int]) -> StreamsView:
    """`streams`: name -> (incarnation, partitions)."""
    return StreamsView(
        generation,
        {
            name: StreamLife(incarnation, dict.fromkeys(range(count), incarnation))
            for name, (incarnation, count) in streams.items()
        },
    )


def check_ticket(ticket: bytes, producer_id: int, producer_epoch: int, target: str) -> None:
    """As `wire.security.tickets.Tickets.check`, of tickets that everybody can make."""
    if ticket != make_ticket(producer_id, producer_epoch, target):
        raise TidelogError(Code.NOT_IN_TRANSACTION, f"{ticket!r} is no ticket for {target}")


def make_ticket(producer_id: int, producer_epoch: int, target: str) -> bytes:
    return f"{producer_id} {producer_epoch} {target}".encode()


class World:
    def __init__(self, streams: StreamsView | None = None) -> None:
        self.now = 100.0
        self.time_ns = 10**18
        self.agrees = True
        """Most brokers agree on it."""
        self.view = streams or view(s=(1, 4))
        self.log: list[tuple[bytes, bytes | None]] = []
        self.unasked: list[tuple[object, Answer]] = []
        self.warnings: list[str] = []
        self.most_turns: int | None = None
        """Settlements after each request; None: until nothing waits."""
        self.shard = self._new()
        self.shard.begin(self.view, self.now)
        self._tokens = 0

    @property
    def times(self) -> Times:
        return Times(self.time_ns, self.time_ns if self.agrees else None)

    @staticmethod
    def _new() -> GroupShard:
        return GroupShard(broker="b1", partition=3, patience=PATIENCE, retention=RETENTION, check_ticket=check_ticket)

    def successor(self, *, compacted: bool = False) -> GroupShard:
        """Made of the log alone."""
        log = self.log
        if compacted:
            newest = {key: at for at, (key, _) in enumerate(log)}
            log = [record for at, record in enumerate(log) if newest[record[0]] == at]
        shard = self._new()
        for key, value in log:
            shard.replay(key, value)
        shard.begin(self.view, self.now)
        return shard

    def fail_over(self, *, compacted: bool = False) -> None:
        self.shard = self.successor(compacted=compacted)
        self.settle()

    def pass_(self, seconds: float) -> None:
        """The timers of the shard fire meanwhile."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.5)
            self.time_ns += 5 * 10**8
            self.settle()

    def settle(self) -> list[tuple[object, Answer]]:
        answers: list[tuple[object, Answer]] = []
        for turn in itertools.count(1):
            settled = self.shard.settle(self.now, self.times)
            self.log += settled.records
            answers += settled.answers
            self.unasked += settled.unasked
            self.warnings += settled.warnings
            self.shard.validate()
            if not self.shard.is_waiting or turn == self.most_turns:
                break
        return answers

    def change(self, streams: StreamsView) -> None:
        self.view = streams
        self.shard.on_streams(streams)
        self.settle()

    def ask(self, request: Request) -> Answer:
        self._tokens += 1
        self.shard.take(self._tokens, request)
        ((_, answer),) = [found for found in self.settle() if found[0] == self._tokens]
        return answer

    # ---- requests

    def heartbeat(self, member: str, kind: HeartbeatRequest.Kind.ValueType = HeartbeatRequest.STAY, **more: Any) -> Any:
        return self.ask(HeartbeatRequest(group=GROUP, member=member, kind=kind, **more))

    def join(self, member: str, *streams: str, patterns: tuple[str, ...] = (), **more: Any) -> Any:
        subscription = Subscription(streams=streams or ([] if patterns else ["s"]), patterns=patterns)
        more = {"session_timeout_ms": round(SESSION * 1000), "rebalance_timeout_ms": 30_000, **more}
        return self.heartbeat(member, HeartbeatRequest.JOIN, subscription=subscription, **more)

    def commit(
        self, member: str, offsets: dict[int, int], generation: int | None = None, number: int = 0, **more: Any
    ) -> Answer:
        group = self.shard.groups.get(GROUP)
        if generation is None:
            known = group.members.get(member) if group is not None else None
            generation = known.generation if known is not None else 0
        stream = more.pop("stream", "s")
        incarnation = more.pop("incarnation", 1)
        return self.ask(
            CommitRequest(
                group=GROUP,
                member=member,
                generation=generation,
                number=number,
                offsets=[
                    CommittedOffset(stream=stream, incarnation=incarnation, partition=partition, offset=offset, **more)
                    for partition, offset in offsets.items()
                ],
            )
        )

    def committed(self) -> dict[StreamPartition, int]:
        answer = self.ask(OffsetsRequest(group=GROUP))
        assert isinstance(answer, OffsetsResponse)
        return {StreamPartition(o.stream, o.incarnation, o.partition): o.offset for o in answer.offsets}

    def cursor(self, name: str, **more: Any) -> CursorResponse | TidelogError:
        answer = self.ask(CursorRequest(cursor=name, **more))
        assert isinstance(answer, CursorResponse | TidelogError)
        return answer

    def admin(self, operation: Operation[..., Any, Any], *args: Any) -> Any:
        return self.ask(Admin(operation, operation.request_kind(*args)))


class Member:
    """A member that does as it is told: gives up what it must, and says so with its next heartbeat."""

    def __init__(self, world: World, name: str, *streams: str, **more: Any) -> None:
        self.world, self.name = world, name
        self.version = 0
        self.has: frozenset[StreamPartition] = frozenset()
        self.hear(world.join(name, *streams, **more))

    def hear(self, answer: Answer) -> HeartbeatResponse:
        assert isinstance(answer, HeartbeatResponse), answer
        self.generation = answer.generation
        if answer.version > self.version:
            self.version = answer.version
            self.has = from_stream_partitions(answer.assigned)
        return answer

    def beat(self) -> HeartbeatResponse:
        return self.hear(self.world.heartbeat(self.name, applied=self.version))

    @property
    def numbers(self) -> list[int]:
        return sorted(partition.partition for partition in self.has)


def settle_members(*members: Member) -> None:
    for _ in range(4):
        for member in members:
            member.beat()


def code(answer: object) -> Code:
    assert isinstance(answer, TidelogError), answer
    return answer.code
