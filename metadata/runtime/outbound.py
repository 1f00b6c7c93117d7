"""Requests of the data plane to the controller, repeated until applied state shows that they are over.

An ISR change, a pause, or the report of a retired partition is over when the partition has another LeaderEpoch, or an
epoch above the one it expected; the report of a cutover when the partition has another LeaderEpoch, the stream another
version, or the cutover is known; the report of a leader that lacks committed records when its LeaderEpoch is over; a
withdrawal when the replica is neither in the ISR nor eligible and the LeaderEpoch that it names is over, or when it is
marked as withdrawn. The state is the answer: none is waited for, and a copy that arrives late fails its compare-and-
set. A report of a leader is sent once; its follower repeats it.

Bounded: one request of each kind per partition. They are sent in turns of the event loop, in the order in which they
are due. Pauses double up to `LONGEST_PAUSE_S`.

Each message is a command of the metadata group, which each voter syncs and each broker applies. So requests gather for
`GATHER_S` after a message: one that comes alone leaves at once, and those of thousands of partitions leave in tens of
messages a second. Reports of leaders gather for nothing, since others wait for an election.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, islice
from math import inf
from random import random
from typing import Any, Final, NamedTuple, TypeAlias, assert_never

from google.protobuf.message import Message as Protobuf

from metadata.cluster.references import ref_of
from metadata.runtime.driver_context import MetadataContext
from wire.protobuf import metadata_pb2 as pb
from wire.retry import Retry
from wire.types import (
    CutoverReport,
    IsrChange,
    LeaderReport,
    LossReport,
    PartitionKey,
    PauseChange,
    RetiredReport,
    Withdrawal,
)

MESSAGE_BYTES = 256 << 10
"""Limit of a message; further items go into others. Each must fit into a NATS message, and into a Raft command."""
LONGEST_PAUSE_S = 1.0
TURN: Final = 250
"""Requests, and reports of leaders, that are sent in one turn of the event loop."""
TURN_PAUSE_S: Final = 0.001
"""Pause between two turns, for other work of the loop."""

GATHER_S: Final = 0.05

Request: TypeAlias = IsrChange | PauseChange | CutoverReport | RetiredReport | Withdrawal | LossReport

_BODIES: Final[dict[type[Request], str]] = {
    IsrChange: "alter_isr",
    PauseChange: "alter_paused",
    CutoverReport: "report_cutover",
    RetiredReport: "remove_retired",
    Withdrawal: "withdraw",
    LossReport: "withdraw",
}
"""The field of `ControllerRequest` in which requests of that kind are sent."""


@dataclass(slots=True)
class _Open:
    """A request that is not over."""

    request: Request
    retry: Retry


class _Time(NamedTuple):
    """When a request is to be sent, unless it was replaced or is over by then."""

    at: float
    number: int
    """Unique: so the rest is not compared."""
    opened: _Open


class OutboundRequests:
    """All open requests, and the timer that sends them."""

    def __init__(self, context: MetadataContext) -> None:
        self._context = context
        self._open: dict[PartitionKey, dict[type[Request], _Open]] = {}
        """No partition has an empty entry."""
        self._reports: dict[PartitionKey, LeaderReport] = {}
        self._times: list[_Time] = []
        """A heap, the earliest first."""
        self._numbers = count()
        self._wake: asyncio.TimerHandle | asyncio.Handle | None = None
        self._is_soon = False
        """`_wake` runs in the next turn of the loop."""
        self._is_armed = False
        """`_wake` runs when requests have gathered, or when others have had their turn, and later requests do not put
        it off."""
        self._gathers_until = -inf

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def ask(self, request: Request) -> None:
        """Sends the request until it is over. It replaces an open one of its kind and partition; but the first
        withdrawal is the one that is repeated, because an unsound replica is withdrawn for one reason."""
        self.settle([request.key])
        known = self._opened(request)
        if known is not None and (known.request == request or isinstance(request, Withdrawal)):
            return
        # One that is over already, as the state that is applied shows, is not opened: no change of it may follow.
        if not self._is_over(request):
            opened = self._open.setdefault(request.key, {})[type(request)] = _Open(
                request, Retry(self._context.settings.retry_interval_s, LONGEST_PAUSE_S, chance=random)
            )
            now = self._context.monotonic()
            self._send_at(now, opened)
            if now < self._gathers_until:
                self._send_gathered(self._gathers_until - now)
            else:
                self._send_soon()

    def report(self, report: LeaderReport) -> None:
        self._reports[report.key] = report
        self._send_soon()

    def withdrawing(self) -> list[PartitionKey]:
        """Replicas that are unsound and not out yet: a registration must name them."""
        return [key for key, kinds in self._open.items() if Withdrawal in kinds]

    def settle(self, keys: Iterable[PartitionKey]) -> None:
        """These partitions have changed: forget requests that are over."""
        if self._open:
            for key in keys:
                for opened in [*self._open.get(key, {}).values()]:
                    if self._is_over(opened.request):
                        self._forget(opened.request)

    def close(self) -> None:
        self._open.clear()
        self._times.clear()
        self._reports.clear()
        if self._wake is not None:
            self._wake.cancel()
        self._is_soon = self._is_armed = False

    # ---- the table -------------------------------------------------------------------------------------------------

    def _opened(self, request: Request) -> _Open | None:
        """The open request of the same kind and partition."""
        return self._open.get(request.key, {}).get(type(request))

    def _forget(self, request: Request) -> None:
        kinds = self._open[request.key]
        del kinds[type(request)]
        if not kinds:
            del self._open[request.key]

    def _is_over(self, request: Request) -> bool:
        state = self._context.state
        partition = state.partition(request.key)
        if partition is None:
            return True
        match request:
            case IsrChange() | PauseChange() | RetiredReport():
                return partition.leader_epoch != request.leader_epoch or partition.epoch > request.expected_epoch
            case CutoverReport():
                view = state.view(request.key)
                return (
                    view is None
                    or view.leader_epoch != request.leader_epoch
                    or view.partitioning_version != request.version
                    or not view.awaits_cutover
                )
            case Withdrawal(broker=broker):
                return partition.is_withdrawn(broker) or (
                    broker not in (*partition.isr, *partition.eligible)
                    and (partition.leader is None or partition.leader_epoch > request.leader_epoch)
                )
            case LossReport():
                return partition.leader_epoch != request.leader_epoch
            case _:
                assert_never(request)

    # ---- turns -----------------------------------------------------------------------------------------------------

    def _send_at(self, at: float, opened: _Open) -> None:
        heappush(self._times, _Time(at, next(self._numbers), opened))

    def _send_soon(self) -> None:
        """Sends the requests of one turn of the loop together."""
        if self._is_soon:
            return
        if self._wake is not None:
            self._wake.cancel()
        self._wake, self._is_soon = asyncio.get_running_loop().call_soon(self._send), True

    def _send_gathered(self, pause_s: float) -> None:
        if self._is_soon or self._is_armed:
            return
        if self._wake is not None:
            self._wake.cancel()
        self._is_armed = True
        self._send_later(pause_s)

    def _send(self) -> None:
        """Sends the requests of one turn."""
        self._wake, self._is_soon, self._is_armed = None, False, False
        now = self._context.monotonic()
        try:
            self._send_due(now)
            self._send_reports()
        finally:
            # After an error, too: requests that were not sent are due again.
            if self._reports or (self._times and self._times[0].at <= now):
                self._is_armed = True
                self._send_later(TURN_PAUSE_S)
            elif self._times:
                self._send_later(max(TURN_PAUSE_S, self._times[0].at - now))

    def _send_due(self, now: float) -> None:
        due: dict[str, list[Protobuf]] = {}
        looks = 0
        while self._times and self._times[0].at <= now and looks < TURN:
            looks += 1
            opened = heappop(self._times).opened
            request = opened.request
            if self._opened(request) is not opened:
                continue
            # Applied state may show it before its partition is among the changes.
            if self._is_over(request):
                self._forget(request)
                continue
            self._send_at(now + opened.retry.failed(), opened)
            due.setdefault(_BODIES[type(request)], []).append(self._item(request))
        if due:
            self._gathers_until = now + GATHER_S
        for body, items in due.items():
            # Withdrawals name the incarnation of this broker.
            if body != "withdraw" or self._context.incarnation is not None:
                self._publish(body, items)

    def _send_later(self, pause_s: float) -> None:
        self._wake = asyncio.get_running_loop().call_later(pause_s, self._send)

    def _send_reports(self) -> None:
        keys = [*islice(self._reports, TURN)]
        reports = [_report(self._reports.pop(key)) for key in keys]
        self._publish("report_leaders", reports, controller_epoch=self._context.state.controller_epoch)

    # ---- messages --------------------------------------------------------------------------------------------------

    def _publish(self, body: str, items: Sequence[Protobuf], **fields: int) -> None:
        """`fields`: of the message in that field, beside its items."""
        context = self._context
        for part in _parts(items):
            content: dict[str, Any] = {body: {"items": part, **fields}}
            request = pb.ControllerRequest(broker=context.broker_id, cluster_id=context.state.cluster_id, **content)
            context.transport.publish(context.subjects.controller(), [request.SerializeToString()])

    def _item(self, request: Request) -> Protobuf:
        """The request as it is sent now."""
        context = self._context
        partition = ref_of(request.key)
        match request:
            case IsrChange():
                return pb.IsrAlteration(
                    partition=partition,
                    leader=request.leader,
                    leader_epoch=request.leader_epoch,
                    expected_epoch=request.expected_epoch,
                    new_isr=[_life(member.broker, member.incarnation) for member in request.new_isr],
                    reason=request.reason,
                    caught_up=request.caught_up,
                )
            case PauseChange():
                return pb.PauseAlteration(
                    partition=partition,
                    leader=request.leader,
                    leader_epoch=request.leader_epoch,
                    expected_epoch=request.expected_epoch,
                    paused=request.paused,
                )
            case CutoverReport():
                return pb.CutoverReport(
                    partition=partition,
                    leader=request.leader,
                    leader_epoch=request.leader_epoch,
                    version=request.version,
                    end_offset=request.end_offset,
                )
            case RetiredReport():
                return pb.RetiredPartition(
                    partition=partition,
                    leader=request.leader,
                    leader_epoch=request.leader_epoch,
                    expected_epoch=request.expected_epoch,
                )
            case Withdrawal():
                # The replica is unsound in every epoch of the partition.
                known = context.state.partition(request.key)
                return pb.WithdrawReplica(
                    partition=partition,
                    broker=request.broker,
                    incarnation=context.incarnation or 0,
                    expected_epoch=request.expected_epoch if known is None else known.epoch,
                    reason=request.reason,
                )
            case LossReport():
                # The LeaderEpoch is that of the report: it would be over else.
                known, leader = context.state.partition(request.key), context.state.brokers.get(request.leader)
                return pb.WithdrawReplica(
                    partition=partition,
                    broker=request.leader,
                    incarnation=0 if leader is None else leader.incarnation,
                    expected_epoch=0 if known is None else known.epoch,
                    reason=request.reason,
                    reported_by=_life(context.broker_id, context.incarnation or 0),
                )
            case _:
                assert_never(request)


def _life(broker: str, incarnation: int) -> pb.BrokerLife:
    return pb.BrokerLife(broker=broker, incarnation=incarnation)


def _parts(items: Sequence[Protobuf]) -> Iterator[Sequence[Protobuf]]:
    part: list[Protobuf] = []
    size = 0
    for item in items:
        if part and size + item.ByteSize() > MESSAGE_BYTES:
            yield part
            part, size = [], 0
        part.append(item)
        size += item.ByteSize()
    if part:
        yield part


def _report(report: LeaderReport) -> pb.LeaderReports.Report:
    return pb.LeaderReports.Report(
        partition=ref_of(report.key),
        replica=report.replica,
        leader=report.leader,
        epoch=report.epoch,
        leader_epoch=report.leader_epoch,
        refused=report.refused,
        unopened=report.unopened,
    )
