"""Requests of the data plane to the controller, repeated until applied state shows that they are over.

An ISR change, a pause, or the report of a retired partition is over when the partition has another LeaderEpoch, or an
epoch above the one it expected; the report of a cutover when the partition has another LeaderEpoch, the stream another
version, or the cutover is known; the report of a leader that lacks committed records when its LeaderEpoch is over; a
withdrawal when the replica is neither in the ISR nor eligible and the LeaderEpoch that it names is over, or when it is
marked as withdrawn. The state is the answer: none is waited for, and a copy that arrives late fails its compare-and-
set. A report of a leader is sent once; its follower repeats it.

Bounded: one request of each kind per partition. They are sent in turns of the event loop, in the order in which they
are due. Pauses double up to `LONGEST_PAUSE_S`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, islice
from typing import Any, Final, Generic, NamedTuple, TypeVar

from metadata.cluster.references import ref_of
from metadata.runtime.driver_context import MetadataContext
from wire.protobuf import metadata_pb2 as pb
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
"""More goes into further messages: each must fit into a NATS message, and into a Raft command."""
LONGEST_PAUSE_S = 1.0
TURN: Final = 250
"""Requests, and reports of leaders, that are sent in one turn of the event loop."""
TURN_PAUSE_S: Final = 0.001
"""Between two turns, for whatever else the loop has to do."""

_Request = TypeVar("_Request", IsrChange, PauseChange, CutoverReport, RetiredReport, Withdrawal, LossReport)
_Altering = TypeVar("_Altering", IsrChange, PauseChange, RetiredReport)
_Item = TypeVar(
    "_Item",
    pb.IsrAlteration,
    pb.PauseAlteration,
    pb.CutoverReport,
    pb.RetiredPartition,
    pb.WithdrawReplica,
    pb.LeaderReports.Report,
)


@dataclass(slots=True)
class _Open(Generic[_Request]):
    """A request that is not over."""

    request: _Request
    pause_s: float = 0.0
    """How long it waited before it was sent last."""


class _Kind(ABC, Generic[_Request, _Item]):
    """The open requests of one kind."""

    def __init__(self, context: MetadataContext) -> None:
        self._context = context
        self.open: dict[PartitionKey, _Open[_Request]] = {}

    @abstractmethod
    def is_over(self, request: _Request) -> bool: ...

    @abstractmethod
    def item(self, request: _Request) -> _Item:
        """It, as it is sent now."""

    @abstractmethod
    def message(self, items: Sequence[_Item]) -> tuple[str, bytes]:
        """The subject, and what is published there."""

    def settle(self, key: PartitionKey) -> None:
        """The partition has changed: forget what is over."""
        asked = self.open.get(key)
        if asked is not None and self.is_over(asked.request):
            del self.open[key]

    def publish(self, items: Sequence[_Item]) -> None:
        for part in _parts(items):
            subject, data = self.message(part)
            self._context.transport.publish(subject, [data])


class OutboundRequests:
    """See the module."""

    def __init__(self, context: MetadataContext) -> None:
        self._context = context
        self._changes = _IsrChanges(context)
        self._pauses = _PauseChanges(context)
        self._cutovers = _Cutovers(context)
        self._retired = _RetiredPartitions(context)
        self._withdrawals = _Withdrawals(context)
        self._losses = _Losses(context)
        self._kinds: tuple[_Kind[Any, Any], ...] = (
            self._changes,
            self._pauses,
            self._cutovers,
            self._retired,
            self._withdrawals,
            self._losses,
        )
        self._reports: dict[PartitionKey, LeaderReport] = {}
        self._times: list[_Time] = []
        """A heap."""
        self._numbers = count()
        self._wake: asyncio.TimerHandle | asyncio.Handle | None = None
        self._is_soon = False
        """`_wake` comes with the next turn of the loop, and is not put off for those who ask meanwhile."""

    def __len__(self) -> int:
        return sum(len(kind.open) for kind in self._kinds)

    def alter_isr(self, change: IsrChange) -> None:
        self._ask(self._changes, change.key, change)

    def alter_paused(self, change: PauseChange) -> None:
        self._ask(self._pauses, change.key, change)

    def report_cutover(self, report: CutoverReport) -> None:
        self._ask(self._cutovers, report.key, report)

    def report_retired(self, report: RetiredReport) -> None:
        self._ask(self._retired, report.key, report)

    def report(self, report: LeaderReport) -> None:
        self._reports[report.key] = report
        self._send_soon()

    def withdraw(self, withdrawal: Withdrawal) -> None:
        # The first one is repeated: an unsound replica is withdrawn for one reason.
        self._withdrawals.settle(withdrawal.key)
        if withdrawal.key not in self._withdrawals.open:
            self._ask(self._withdrawals, withdrawal.key, withdrawal)

    def report_loss(self, report: LossReport) -> None:
        self._ask(self._losses, report.key, report)

    def withdrawing(self) -> list[PartitionKey]:
        """Replicas that are unsound and not out yet: a registration must name them."""
        return [*self._withdrawals.open]

    def settle(self, keys: Iterable[PartitionKey]) -> None:
        """These partitions have changed: forget requests that are over."""
        kinds = [kind for kind in self._kinds if kind.open]
        if kinds:
            for key in keys:
                for kind in kinds:
                    kind.settle(key)

    def close(self) -> None:
        for kind in self._kinds:
            kind.open.clear()
        self._times.clear()
        self._reports.clear()
        if self._wake is not None:
            self._wake.cancel()
        self._is_soon = False

    def _ask(self, kind: _Kind[_Request, Any], key: PartitionKey, request: _Request) -> None:
        known = kind.open.get(key)
        # One that is over already, as the state that is applied shows, is not opened: no change of it may follow.
        if (known is None or known.request != request) and not kind.is_over(request):
            opened = kind.open[key] = _Open(request)
            self._send_at(self._context.monotonic(), kind, key, opened)
            self._send_soon()

    def _send_at(self, at: float, kind: _Kind[Any, Any], key: PartitionKey, opened: _Open[Any]) -> None:
        heappush(self._times, _Time(at, next(self._numbers), kind, key, opened))

    def _send_soon(self) -> None:
        """Requests of one turn of the loop are sent together."""
        if self._is_soon:
            return
        if self._wake is not None:
            self._wake.cancel()
        self._wake, self._is_soon = asyncio.get_running_loop().call_soon(self._send), True

    def _send(self) -> None:
        """A turn."""
        self._wake, self._is_soon = None, False
        now = self._context.monotonic()
        try:
            self._send_due(now)
            self._send_reports()
        finally:
            # After an error, too: what has not been sent is due again.
            if self._reports:
                self._send_later(TURN_PAUSE_S)
            elif self._times:
                self._send_later(max(TURN_PAUSE_S, self._times[0].at - now))

    def _send_due(self, now: float) -> None:
        shortest = self._context.settings.retry_interval_s
        due: dict[_Kind[Any, Any], list[Any]] = {}
        looks = 0
        while self._times and self._times[0].at <= now and looks < TURN:
            looks += 1
            _, _, kind, key, opened = heappop(self._times)
            if kind.open.get(key) is not opened:
                continue
            # It may be over without a change to tell of.
            if kind.is_over(opened.request):
                del kind.open[key]
                continue
            opened.pause_s = min(LONGEST_PAUSE_S, max(shortest, 2 * opened.pause_s))
            self._send_at(now + opened.pause_s, kind, key, opened)
            due.setdefault(kind, []).append(kind.item(opened.request))
        for kind, items in due.items():
            kind.publish(items)

    def _send_later(self, pause_s: float) -> None:
        self._wake = asyncio.get_running_loop().call_later(pause_s, self._send)

    def _send_reports(self) -> None:
        keys = [*islice(self._reports, TURN)]
        state, subject = self._context.state, self._context.subjects.report_leader()
        for reported in _parts([_report(self._reports.pop(key)) for key in keys]):
            reports = pb.LeaderReports(
                items=reported, cluster_id=state.cluster_id, controller_epoch=state.controller_epoch
            )
            self._context.transport.publish(subject, [reports.SerializeToString()])


class _Time(NamedTuple):
    """When a request is to be sent. One that was replaced meanwhile is not `opened` any more."""

    at: float
    number: int
    """Unique: so the rest is not compared."""
    kind: _Kind[Any, Any]
    key: PartitionKey
    opened: _Open[Any]


class _Alterations(_Kind[_Altering, _Item]):
    """Those that compare the LeaderEpoch and the epoch of the partition."""

    def is_over(self, request: _Altering) -> bool:
        partition = self._context.state.partition(request.key)
        return (
            partition is None
            or partition.leader_epoch != request.leader_epoch
            or partition.epoch > request.expected_epoch
        )


class _IsrChanges(_Alterations[IsrChange, pb.IsrAlteration]):
    def item(self, request: IsrChange) -> pb.IsrAlteration:
        return pb.IsrAlteration(
            partition=ref_of(request.key),
            leader=request.leader,
            leader_epoch=request.leader_epoch,
            expected_epoch=request.expected_epoch,
            new_isr=[pb.BrokerLife(broker=member.broker, incarnation=member.incarnation) for member in request.new_isr],
            reason=request.reason,
            caught_up=request.caught_up,
        )

    def message(self, items: Sequence[pb.IsrAlteration]) -> tuple[str, bytes]:
        request = pb.AlterIsrRequest(items=items, cluster_id=self._context.state.cluster_id)
        return self._context.subjects.alter_isr(), request.SerializeToString()


class _PauseChanges(_Alterations[PauseChange, pb.PauseAlteration]):
    def item(self, request: PauseChange) -> pb.PauseAlteration:
        return pb.PauseAlteration(
            partition=ref_of(request.key),
            leader=request.leader,
            leader_epoch=request.leader_epoch,
            expected_epoch=request.expected_epoch,
            paused=request.paused,
        )

    def message(self, items: Sequence[pb.PauseAlteration]) -> tuple[str, bytes]:
        request = pb.PauseRequest(items=items, cluster_id=self._context.state.cluster_id)
        return self._context.subjects.pause(), request.SerializeToString()


class _RetiredPartitions(_Alterations[RetiredReport, pb.RetiredPartition]):
    def item(self, request: RetiredReport) -> pb.RetiredPartition:
        return pb.RetiredPartition(
            partition=ref_of(request.key),
            leader=request.leader,
            leader_epoch=request.leader_epoch,
            expected_epoch=request.expected_epoch,
        )

    def message(self, items: Sequence[pb.RetiredPartition]) -> tuple[str, bytes]:
        request = pb.RetiredRequest(items=items, cluster_id=self._context.state.cluster_id)
        return self._context.subjects.retired(), request.SerializeToString()


class _Cutovers(_Kind[CutoverReport, pb.CutoverReport]):
    def is_over(self, request: CutoverReport) -> bool:
        view = self._context.state.view(request.key)
        return (
            view is None
            or view.leader_epoch != request.leader_epoch
            or view.partitioning_version != request.version
            or not view.awaits_cutover
        )

    def item(self, request: CutoverReport) -> pb.CutoverReport:
        return pb.CutoverReport(
            partition=ref_of(request.key),
            leader=request.leader,
            leader_epoch=request.leader_epoch,
            version=request.version,
            end_offset=request.end_offset,
        )

    def message(self, items: Sequence[pb.CutoverReport]) -> tuple[str, bytes]:
        request = pb.CutoverRequest(items=items, cluster_id=self._context.state.cluster_id)
        return self._context.subjects.cutover(), request.SerializeToString()


class _OfThisLife(_Kind[_Request, pb.WithdrawReplica]):
    """Those that name the incarnation of this life."""

    def message(self, items: Sequence[pb.WithdrawReplica]) -> tuple[str, bytes]:
        request = pb.WithdrawRequest(items=items, cluster_id=self._context.state.cluster_id)
        return self._context.subjects.withdraw(), request.SerializeToString()

    def publish(self, items: Sequence[pb.WithdrawReplica]) -> None:
        if self._context.incarnation is not None:
            super().publish(items)


class _Withdrawals(_OfThisLife[Withdrawal]):
    def is_over(self, request: Withdrawal) -> bool:
        partition, broker = self._context.state.partition(request.key), request.broker
        return (
            partition is None
            or partition.is_withdrawn(broker)
            or (
                broker not in (*partition.isr, *partition.eligible)
                and (partition.leader is None or partition.leader_epoch > request.leader_epoch)
            )
        )

    def item(self, request: Withdrawal) -> pb.WithdrawReplica:
        # The replica is unsound in every epoch of the partition.
        partition = self._context.state.partition(request.key)
        return pb.WithdrawReplica(
            partition=ref_of(request.key),
            broker=request.broker,
            incarnation=self._context.incarnation or 0,
            expected_epoch=request.expected_epoch if partition is None else partition.epoch,
            reason=request.reason,
        )


class _Losses(_OfThisLife[LossReport]):
    def is_over(self, request: LossReport) -> bool:
        partition = self._context.state.partition(request.key)
        return partition is None or partition.leader_epoch != request.leader_epoch

    def item(self, request: LossReport) -> pb.WithdrawReplica:
        state = self._context.state
        partition, leader = state.partition(request.key), state.brokers.get(request.leader)
        return pb.WithdrawReplica(
            partition=ref_of(request.key),
            broker=request.leader,
            incarnation=0 if leader is None else leader.incarnation,
            # The LeaderEpoch is that of the report: it would be over else.
            expected_epoch=0 if partition is None else partition.epoch,
            reason=request.reason,
            reported_by=pb.BrokerLife(broker=self._context.broker_id, incarnation=self._context.incarnation or 0),
        )


def _parts(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    part: list[_Item] = []
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
    )
