"""Bounds: for how long one step at the documented bounds holds the event loop of a broker, and what producers take.

Coordinators of groups and of transactions, a broker and a controller, and the state of the cluster, in one process,
without NATS and disks, in CPU time, so that other processes on the machine matter less. The collector of cycles is off:
it is no part of a step. Of the steps of one kind, the longest one counts.

What loads which operation is written down in `tests/loads.py`; the same steps are counted in lines of Python by
`tests/unit/tidelog/server/test_loop_watchdog.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final, cast

from google.protobuf.message import Message as ProtoMessage

from dataplane.replica.derived.producer_table import ProducerTable
from metadata.cluster.command_rules import RULES
from metadata.cluster.references import log_ends_to_pb
from metadata.commands.cluster_state import ClusterState
from metadata.runtime.applied_state import AppliedState
from metadata.runtime.views import ViewDelivery
from scripts.benchmarks.rig.comparison import Comparison, Figure
from tests.loads import Bounds, longest_steps
from tests.loop_steps import CpuTime, Measure
from tidelog.server.audit.activity_stream import ActivityStream
from tidelog.server.coordinators.driver.coordinator import MAX_WAITING
from tidelog.server.coordinators.groups.consumer_group import MAX_OFFSETS, MAX_PARTITIONS, MAX_SUBSCRIPTIONS
from tidelog.server.coordinators.groups.group_shard import MAX_GROUPS, GroupShard
from tidelog.server.coordinators.known_streams import StreamLife, StreamsView
from tidelog.server.coordinators.record_times import Times
from tidelog.server.coordinators.shard import Admin, Shard
from tidelog.server.coordinators.transactions.families import MAX_TOLD
from tidelog.server.coordinators.transactions.transaction_shard import MAX_IDS, TransactionShard
from wire.batch import BatchBuilder
from wire.errors import TidelogError
from wire.internal_records.group_records import MAX_COMMITTED
from wire.internal_records.transaction_records import MAX_ADDED, MAX_MEMBERS, MAX_PARTICIPANTS
from wire.operations import api_operations as op
from wire.operations import json_codec
from wire.operations.transaction_operations import TRANSACTION_ABORT, TRANSACTION_DESCRIBE, TRANSACTION_LIST
from wire.protobuf import metadata_pb2 as pb
from wire.protobuf.groups_pb2 import (
    CommitRequest,
    CommittedOffset,
    CursorRequest,
    HeartbeatRequest,
    OffsetsRequest,
    Subscription,
)
from wire.protobuf.transactions_pb2 import (
    AddRequest,
    EndFamilyRequest,
    EndRequest,
    FamilyMember,
    InitRequest,
    TransactionPartition,
)
from wire.security.cluster_secrets import public_secrets
from wire.security.producer_keys import ProducerKeys
from wire.turns import Steps, Turns, in_turns
from wire.types import LeaderEpoch, LogEnd, Offset, PartitionKey

GROUP: Final = "g"
LIMIT_MS: Final = 50
MAX_RESET: Final = 2500
"""Offsets of a request to reset a group, which is no larger than others."""
NOW: Final = Times(10**18, 10**18)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--producers", type=int, default=200_000, help="whose memory is measured (%(default)s)")
    parser.add_argument("--partitions", type=int, default=100_000, help="of the cluster (default: %(default)s)")


def run(options: argparse.Namespace) -> Comparison:
    found = Comparison()
    gc.collect()
    gc.disable()
    try:
        what = "memory of a producer that has written five batches"
        found.record(Figure(key=f"bounds/{what}", what=what, unit="B"), _producers(options.producers, 5))
        for rows_of in (coordinators(CpuTime()), _requests(), _cluster(options.partitions)):
            for what, took in rows_of:
                found.record(Figure(key=f"bounds/{what}", what=what, unit="ms", at_most=LIMIT_MS), took)
    finally:
        gc.enable()
    return found


def coordinators(measure: Measure) -> Iterator[tuple[str, float]]:
    yield from _groups(measure)
    yield from _transactions(measure)


def _requests() -> Iterator[tuple[str, float]]:
    """To the API of a controller that leads all partitions there are, and to a broker that has them."""
    found = asyncio.run(longest_steps(CpuTime(), Bounds(partitions=10_000, streams=10_000)))
    yield from ((f"10000 streams, one of 10000 partitions: {name}", step.size) for name, step in found.items())


def _ms(work: Callable[[], object]) -> float:
    return _of(CpuTime(), work)


def _of(measure: Measure, work: Callable[[], object]) -> float:
    measure.begin()
    try:
        work()
    finally:
        size = measure.end()
    return size


def _longest_turn(measure: Measure, steps: Steps[object]) -> float:
    """As `wire.turns.in_turns` has turns."""
    longest, turns, is_over = 0.0, in_turns(steps), False
    while not is_over:
        measure.begin()
        try:
            turns.send(None)
        except StopIteration:
            is_over = True
        longest = max(longest, measure.end())
    return longest


class _Coordinator:
    """Settles what a shard is asked, as `tidelog.server.coordinators.driver.coordinator` does."""

    def __init__(self, make: Callable[[], Shard], view: StreamsView, measure: Measure) -> None:
        self._measure = measure
        self._make = make
        self._view = view
        self._log: list[tuple[bytes, bytes | None]] = []
        self.shard = make()
        self.shard.begin(view, 0.0)

    def ask(self, requests: Iterable[Any], now: float = 0.0) -> float:
        """The longest step: a settlement, or the encoding of an answer."""
        for number, request in enumerate(requests):
            self.shard.take(number, request)
        return self.settle(now)

    def settle(self, now: float = 0.0) -> float:
        longest, is_first = 0.0, True
        while is_first or self.shard.is_waiting:
            is_first = False
            self._measure.begin()
            settled = self.shard.settle(now, NOW)
            longest = max(longest, self._measure.end())
            self._log += settled.records
            for _, answer in (*settled.answers, *settled.unasked):
                if isinstance(answer, ProtoMessage):
                    longest = max(longest, _of(self._measure, answer.SerializeToString))
                elif not isinstance(answer, TidelogError):
                    longest = max(longest, _longest_turn(self._measure, json_codec.encoding(answer)))
        return longest

    def succeed(self) -> float:
        """Another coordinator has read the log."""
        self.shard = self._make()
        for key, value in self._log:
            self.shard.replay(key, value)
        return max(_of(self._measure, lambda: self.shard.begin(self._view, 0.0)), self.settle())


def _groups(measure: Measure) -> Iterator[tuple[str, float]]:
    one = StreamsView(10, {"s": StreamLife(1, dict.fromkeys(range(MAX_PARTITIONS), 1))})
    many = StreamsView(10, {f"s{number:05}": StreamLife(1, {0: 1}) for number in range(MAX_PARTITIONS)})
    for what, view, members, patterns in (
        (f"one stream of {MAX_PARTITIONS} partitions, 1,000 members", one, 1000, False),
        (f"{MAX_PARTITIONS} streams, 200 members, {MAX_SUBSCRIPTIONS} subscriptions by pattern", many, 200, True),
    ):
        coordinator = _Coordinator(_group_shard, view, measure)

        def joining(number: int, patterns: bool = patterns) -> HeartbeatRequest:
            other = f"other-{number % MAX_SUBSCRIPTIONS}"
            wanted = Subscription(streams=[other], patterns=["s*"]) if patterns else Subscription(streams=["s"])
            return HeartbeatRequest(
                group=GROUP, member=f"m{number}", kind=HeartbeatRequest.JOIN, session_timeout_ms=3_600_000,
                rebalance_timeout_ms=3_600_000, subscription=wanted,
            )  # fmt: skip

        yield f"group, {what}: the first joins", coordinator.ask([joining(0)])
        yield f"group, {what}: the others join", coordinator.ask(map(joining, range(1, members)))
        leaving = (
            HeartbeatRequest(group=GROUP, member=f"m{number}", kind=HeartbeatRequest.LEAVE)
            for number in range(1, members // 2)
        )
        yield f"group, {what}: half of them leave", coordinator.ask(leaving)
        yield f"group, {what}: the next coordinator begins", coordinator.succeed()
    yield from _offsets(measure)
    yield from _many_groups(measure)


def _offsets(measure: Measure) -> Iterator[tuple[str, float]]:
    streams = 10
    view = StreamsView(
        10, {f"s{number}": StreamLife(1, dict.fromkeys(range(MAX_OFFSETS // streams), 1)) for number in range(streams)}
    )
    coordinator = _Coordinator(_group_shard, view, measure)
    offsets = [
        CommittedOffset(stream=f"s{number % streams}", incarnation=1, partition=number // streams, offset=1)
        for number in range(MAX_OFFSETS)
    ]
    commits = [
        CommitRequest(group=GROUP, offsets=offsets[begin : begin + MAX_COMMITTED])
        for begin in range(0, MAX_OFFSETS, MAX_COMMITTED)
    ]
    what = f"group of {MAX_OFFSETS} offsets"
    yield f"{what}: they are committed", coordinator.ask(commits)
    yield f"{what}: they are asked for", coordinator.ask([OffsetsRequest(group=GROUP)] * 5)
    described = Admin(op.GROUP_DESCRIBE, op.GROUP_DESCRIBE.request_kind(group=GROUP))
    yield f"{what}: it is described", coordinator.ask([described] * 5)
    new: list[op.NewOffset] = [
        {"stream": f"s{number % streams}", "partition": number // streams, "offset": 2} for number in range(MAX_RESET)
    ]
    reset = Admin(op.GROUP_RESET, op.GROUP_RESET.request_kind(group=GROUP, offsets=new))
    yield f"{what}: offsets are reset", coordinator.ask([reset])
    yield f"{what}: the next coordinator begins", coordinator.succeed()
    yield f"{what}: it is deleted", coordinator.ask([Admin(op.GROUP_DELETE, op.GROUP_DELETE.request_kind(GROUP))])


def _many_groups(measure: Measure) -> Iterator[tuple[str, float]]:
    offsets = 20
    view = StreamsView(10, {"s": StreamLife(1, dict.fromkeys(range(offsets), 1))})
    coordinator = _Coordinator(_group_shard, view, measure)
    committed = [CommittedOffset(stream="s", incarnation=1, partition=number, offset=1) for number in range(offsets)]
    what = f"{MAX_GROUPS} groups of {offsets} offsets"
    commits = (CommitRequest(group=f"g{number}", offsets=committed) for number in range(MAX_GROUPS))
    yield f"{what}: they are committed", coordinator.ask(commits)
    yield f"{what}: they are listed", coordinator.ask([Admin(op.GROUP_LIST, op.GROUP_LIST.request_kind())] * 3)
    yield f"{what}: the next coordinator begins", coordinator.succeed()
    cursors = (CursorRequest(cursor=f"c{number}", value=b"v", writes=True) for number in range(MAX_WAITING))
    yield f"{MAX_WAITING} cursors are set", coordinator.ask(cursors)


def _group_shard() -> Shard:
    return GroupShard(broker="b", partition=0, patience=5.0, retention=1e9, check_ticket=lambda *_: None)


def _transactions(measure: Measure) -> Iterator[tuple[str, float]]:
    participants = 20
    view = StreamsView(10, {"s": StreamLife(1, dict.fromkeys(range(participants), 1))})
    keys = ProducerKeys(public_secrets(), lambda: "c")

    def make() -> Shard:
        return TransactionShard(
            broker="b", partition=0, patience=5.0, make_ticket=lambda *_: b"ticket", producer_keys=keys
        )

    coordinator = _Coordinator(make, view, measure)
    names = [f"id{number}" for number in range(MAX_IDS)]
    what = f"transactions, {MAX_IDS} ids"
    begin = (InitRequest(transactional_id=name, timeout_ms=60_000) for name in names)
    yield f"{what}: producers begin", coordinator.ask(begin)
    shard = coordinator.shard
    assert isinstance(shard, TransactionShard)
    wanted = [
        TransactionPartition(stream="s", stream_incarnation=1, partition=number, partition_incarnation=1)
        for number in range(participants)
    ]
    of_each: list[dict[str, Any]] = [
        {"transactional_id": each.transactional_id, "producer_id": each.producer_id, "producer_epoch": each.epoch}
        for each in shard.transactions.values()
    ]
    adds = (AddRequest(partitions=wanted, **each) for each in of_each)
    yield f"{what}: each adds {participants} partitions", coordinator.ask(adds)
    listed = Admin(TRANSACTION_LIST, TRANSACTION_LIST.request_kind(idle=True, with_stream="s"))
    yield f"{what}: they are listed", coordinator.ask([listed] * 20)
    ends = (EndRequest(commits=True, **each) for each in of_each[: MAX_IDS // 2])
    yield f"{what}: half of them end", coordinator.ask(ends)
    yield f"{what}: the next coordinator begins", coordinator.succeed()
    yield f"{what}: the others time out", coordinator.settle(100.0)
    yield from _families(make, measure)
    yield from _large_transaction(make, measure)


def _large_transaction(make: Callable[[], Shard], measure: Measure) -> Iterator[tuple[str, float]]:
    view = StreamsView(10, {"s": StreamLife(1, dict.fromkeys(range(MAX_PARTICIPANTS), 1))})
    coordinator = _Coordinator(make, view, measure)
    coordinator.ask([InitRequest(transactional_id="t", timeout_ms=60_000)])
    shard = coordinator.shard
    assert isinstance(shard, TransactionShard)
    known = shard.transactions["t"]
    wanted = [
        TransactionPartition(stream="s", stream_incarnation=1, partition=number, partition_incarnation=1)
        for number in range(MAX_PARTICIPANTS)
    ]
    coordinator.ask(
        AddRequest(
            transactional_id="t",
            producer_id=known.producer_id,
            producer_epoch=known.epoch,
            partitions=wanted[begin : begin + MAX_ADDED],
        )
        for begin in range(0, MAX_PARTICIPANTS, MAX_ADDED)
    )
    what = f"a transaction of {MAX_PARTICIPANTS} participants"
    for operation, done in ((TRANSACTION_DESCRIBE, "described"), (TRANSACTION_ABORT, "aborted")):
        yield f"{what}: it is {done}", coordinator.ask([Admin(operation, operation.request_kind("t"))])


def _families(make: Callable[[], Shard], measure: Measure) -> Iterator[tuple[str, float]]:
    """The largest commit, and as many others that are aborted with it."""
    each = MAX_TOLD // MAX_MEMBERS
    view = StreamsView(10, {"s": StreamLife(1, dict.fromkeys(range(each), 1))})
    coordinator = _Coordinator(make, view, measure)
    names = [f"f~{number}" for number in range(2 * MAX_MEMBERS)]
    coordinator.ask(InitRequest(transactional_id=name, timeout_ms=60_000) for name in names)
    shard = coordinator.shard
    assert isinstance(shard, TransactionShard)
    wanted = [
        TransactionPartition(stream="s", stream_incarnation=1, partition=number, partition_incarnation=1)
        for number in range(each)
    ]
    known = [shard.transactions[name] for name in names]
    coordinator.ask(
        AddRequest(
            transactional_id=one.transactional_id,
            producer_id=one.producer_id,
            producer_epoch=one.epoch,
            partitions=wanted,
        )
        for one in known
    )
    members = [
        FamilyMember(
            child=one.transactional_id.removeprefix("f~"), producer_id=one.producer_id, producer_epoch=one.epoch
        )
        for one in known[:MAX_MEMBERS]
    ]
    end = EndFamilyRequest(family="f", members=members, commits=True, sequence=1, others=True)
    what = f"a family with {MAX_TOLD} participants, and as many that are passed over"
    yield f"{what}: it is committed", coordinator.ask([end])
    yield f"{what}: the next coordinator begins", coordinator.succeed()


def _cluster(partitions: int) -> Iterator[tuple[str, float]]:
    """The commands that touch most partitions."""
    state, brokers, of_stream = ClusterState(), ("a", "b", "c"), 10_000
    activity = ActivityStream(_nothing, _nothing, epoch=lambda: 0, time_ns=lambda: 10**18, is_live=lambda: True)
    machine = AppliedState(state, lambda _: None, activity.observe)

    def apply(command: pb.Command) -> float:
        """ms of the longest step."""
        encoded, longest, ready = command.SerializeToString(deterministic=True), [], False

        def prepare(following: bytes | None) -> None:
            nonlocal ready
            ready = machine.prepare(following)

        while not ready:
            longest.append(_ms(lambda: prepare(encoded)))
        longest.append(_ms(lambda: machine.apply(encoded)))
        ready = False
        while not ready:
            longest.append(_ms(lambda: prepare(None)))
        return max(longest)

    apply(pb.Command(begin_controller_epoch=pb.BeginControllerEpoch(controller="a", cluster_id="c", rules=RULES)))

    def register(broker: str, ends: Mapping[PartitionKey, LogEnd] = MappingProxyType({})) -> float:
        told = pb.RegisterBroker(
            broker=broker, life_id=os.urandom(8).hex(), cluster_id="c", logs=Turns(log_ends_to_pb(ends)).finish()
        )
        return apply(pb.Command(register_broker=told))

    for broker in brokers:
        register(broker)
    created = 0.0
    for stream in range(partitions // of_stream):
        orders = [
            pb.Assignment(replicas=[(number + place) % 3 for place in range(3)], leader=number % 3)
            for number in range(of_stream)
        ]
        created = apply(
            pb.Command(
                create_stream=pb.CreateStream(
                    controller_epoch=1, name=f"s{stream}", subject=f"s{stream}", replication_factor=3, brokers=brokers,
                    assignments=orders,
                )
            )
        )  # fmt: skip
    yield f"cluster: a stream of {of_stream} partitions is created", created
    life = pb.BrokerLife(broker="b", incarnation=next(x.incarnation for x in state.brokers.values() if x.id == "b"))
    dead = pb.Command(brokers_dead=pb.BrokersDead(controller_epoch=1, brokers=[life]))
    yield f"cluster of {partitions} partitions: a broker is dead", apply(dead)
    ends = {key: LogEnd(LeaderEpoch(1), Offset(10**6)) for key, _ in state.partitions()}
    register("b")
    yield (
        f"cluster of {partitions} partitions: one that leads registers anew, and tells of its logs",
        register("c", ends),
    )
    yield f"cluster of {partitions} partitions: a broker hands the views of all to its data plane", _views(state)
    yield f"cluster of {partitions} partitions: a snapshot is made", _longest_turn(CpuTime(), state.encoding())
    snapshot, late = state.snapshot(), ClusterState()
    yield (
        f"cluster of {partitions} partitions: a snapshot is taken up",
        _longest_turn(CpuTime(), late.restoring(snapshot)),
    )


def _views(state: ClusterState) -> float:
    """ms of the longest turn, without what the roles do."""
    port = SimpleNamespace(on_partitions=lambda _: None)
    delivery = ViewDelivery(cast(Any, SimpleNamespace(broker_id="a", state=state, port=port)))
    delivery.changed([key for key, _ in state.partitions()])
    longest = 0.0
    while not delivery.is_done:
        longest = max(longest, _ms(delivery.deliver))
    return longest


async def _nothing(*_: object) -> None:
    pass


def _producers(count: int, batches: int) -> float:
    """B of each, in full tables."""
    of_table = 20_000
    before = _resident()
    tables = []
    for _ in range(max(1, count // of_table)):
        table, offset = ProducerTable(), 0
        for sequence in range(batches):
            for number in range(of_table):
                builder = BatchBuilder()
                builder.add_values([b"v"])
                batch = builder.build(1, producer_id=10**6 + number, producer_epoch=0, base_sequence=sequence)
                table.record(batch.stamp(Offset(offset), LeaderEpoch(1), 10**18 + offset)[1])
                offset += 1
        tables.append(table)
    gc.collect()
    return (_resident() - before) / (len(tables) * of_table)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
