"""Requests of the data plane to the controller, repeated until applied state shows that they are over.

An ISR change, a pause, or the report of a retired partition is over when the partition has another LeaderEpoch, or an
epoch above the one it expected; the report of a cutover when the partition has another LeaderEpoch, the stream another
version, or the cutover is known; the report of a leader that lacks committed records when its LeaderEpoch is over; a
withdrawal when the replica is neither in the ISR nor eligible and the LeaderEpoch
that it names is over, or when it is marked as withdrawn. The state is the answer: none is waited for, and a copy that
arrives late fails its compare-and-set. A report of a leader is sent once; its follower repeats it.

Bounded: one request of each kind per partition. Pauses double up to `LONGEST_PAUSE_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeVar

from metadata.references import ref_of
from metadata.runtime.context import MetadataContext
from wire import metadata_pb2 as pb
from wire.types import (
    CutoverReport,
    Incarnation,
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
class _Repeat:
    """When a request is to be sent, and how long to wait after that."""

    at: float = -inf
    pause_s: float = 0.0

    def is_due(self, now: float) -> bool:
        return self.at <= now

    def sent(self, now: float, shortest_s: float) -> None:
        self.pause_s = min(LONGEST_PAUSE_S, max(shortest_s, 2 * self.pause_s))
        self.at = now + self.pause_s


class OutboundRequests:
    """See the module."""

    def __init__(self, context: MetadataContext) -> None:
        self._context = context
        self._changes: dict[PartitionKey, tuple[IsrChange, _Repeat]] = {}
        self._pauses: dict[PartitionKey, tuple[PauseChange, _Repeat]] = {}
        self._cutovers: dict[PartitionKey, tuple[CutoverReport, _Repeat]] = {}
        self._retired: dict[PartitionKey, tuple[RetiredReport, _Repeat]] = {}
        self._withdrawals: dict[PartitionKey, tuple[Withdrawal, _Repeat]] = {}
        self._losses: dict[PartitionKey, tuple[LossReport, _Repeat]] = {}
        self._reports: dict[PartitionKey, LeaderReport] = {}
        self._repeated = (self._changes, self._pauses, self._cutovers, self._retired, self._withdrawals, self._losses)
        self._wake: asyncio.TimerHandle | asyncio.Handle | None = None

    def __len__(self) -> int:
        return sum(len(requests) for requests in self._repeated)

    def alter_isr(self, change: IsrChange) -> None:
        known = self._changes.get(change.key)
        if known is None or known[0] != change:
            self._changes[change.key] = (change, _Repeat())
            self._send_soon()

    def alter_paused(self, change: PauseChange) -> None:
        known = self._pauses.get(change.key)
        if known is None or known[0] != change:
            self._pauses[change.key] = (change, _Repeat())
            self._send_soon()

    def report_cutover(self, report: CutoverReport) -> None:
        known = self._cutovers.get(report.key)
        if known is None or known[0] != report:
            self._cutovers[report.key] = (report, _Repeat())
            self._send_soon()

    def report_retired(self, report: RetiredReport) -> None:
        known = self._retired.get(report.key)
        if known is None or known[0] != report:
            self._retired[report.key] = (report, _Repeat())
            self._send_soon()

    def report(self, report: LeaderReport) -> None:
        self._reports[report.key] = report
        self._send_soon()

    def withdraw(self, withdrawal: Withdrawal) -> None:
        if withdrawal.key not in self._withdrawals:
            self._withdrawals[withdrawal.key] = (withdrawal, _Repeat())
            self._send_soon()

    def report_loss(self, report: LossReport) -> None:
        known = self._losses.get(report.key)
        if known is None or known[0] != report:
            self._losses[report.key] = (report, _Repeat())
            self._send_soon()

    def withdrawing(self) -> list[PartitionKey]:
        """Replicas that are unsound and not out yet: a registration must name them."""
        return sorted(self._withdrawals)

    def settle(self) -> None:
        """The state has changed: forget requests that are over."""
        for requests in (self._changes, self._pauses, self._retired):
            for key, (change, _) in [*requests.items()]:
                partition = self._context.state.partition(key)
                if (
                    partition is None
                    or partition.leader_epoch != change.leader_epoch
                    or partition.epoch > change.expected_epoch
                ):
                    del requests[key]
        for key, (told, _) in [*self._cutovers.items()]:
            view = self._context.state.view(key)
            if (
                view is None
                or view.leader_epoch != told.leader_epoch
                or view.partitioning_version != told.version
                or not view.awaits_cutover
            ):
                del self._cutovers[key]
        for key, (loss, _) in [*self._losses.items()]:
            partition = self._context.state.partition(key)
            if partition is None or partition.leader_epoch != loss.leader_epoch:
                del self._losses[key]
        for key, (withdrawal, _) in [*self._withdrawals.items()]:
            partition = self._context.state.partition(key)
            broker = withdrawal.broker
            if (
                partition is None
                or partition.is_withdrawn(broker)
                or (
                    broker not in (*partition.isr, *partition.eligible)
                    and (partition.leader is None or partition.leader_epoch > withdrawal.leader_epoch)
                )
            ):
                del self._withdrawals[key]

    def close(self) -> None:
        for requests in self._repeated:
            requests.clear()
        self._reports.clear()
        if self._wake is not None:
            self._wake.cancel()

    def _send_soon(self) -> None:
        """Requests of one turn of the loop are sent together."""
        if self._wake is not None:
            self._wake.cancel()
        self._wake = asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._wake = None
        # A request may be over before it is sent: an applied state may have answered it without a change to tell of.
        self.settle()
        now, shortest = self._context.monotonic(), self._context.settings.retry_interval_s
        cluster_id = self._context.state.cluster_id
        due_changes = [(change, repeat) for change, repeat in self._changes.values() if repeat.is_due(now)]
        for altered in _parts([_alteration(change) for change, _ in due_changes]):
            self._context.transport.publish(
                self._context.subjects.alter_isr(),
                [pb.AlterIsrRequest(items=altered, cluster_id=cluster_id).SerializeToString()],
            )
        due_pauses = [(change, repeat) for change, repeat in self._pauses.values() if repeat.is_due(now)]
        for paused in _parts([_pause(change) for change, _ in due_pauses]):
            self._context.transport.publish(
                self._context.subjects.pause(),
                [pb.PauseRequest(items=paused, cluster_id=cluster_id).SerializeToString()],
            )
        due_cutovers = [(report, repeat) for report, repeat in self._cutovers.values() if repeat.is_due(now)]
        for cutovers in _parts([_cutover(report) for report, _ in due_cutovers]):
            self._context.transport.publish(
                self._context.subjects.cutover(),
                [pb.CutoverRequest(items=cutovers, cluster_id=cluster_id).SerializeToString()],
            )
        due_retired = [(report, repeat) for report, repeat in self._retired.values() if repeat.is_due(now)]
        for retired in _parts([_retired(report) for report, _ in due_retired]):
            self._context.transport.publish(
                self._context.subjects.retired(),
                [pb.RetiredRequest(items=retired, cluster_id=cluster_id).SerializeToString()],
            )
        incarnation = self._context.incarnation
        due_withdrawals = [
            (withdrawal, repeat) for withdrawal, repeat in self._withdrawals.values() if repeat.is_due(now)
        ]
        due_losses = [(loss, repeat) for loss, repeat in self._losses.values() if repeat.is_due(now)]
        if incarnation is not None:
            for withdrawn in _parts(
                [
                    *(self._withdraw_replica(withdrawal, incarnation) for withdrawal, _ in due_withdrawals),
                    *(self._withdraw_leader(loss, incarnation) for loss, _ in due_losses),
                ]
            ):
                self._context.transport.publish(
                    self._context.subjects.withdraw(),
                    [pb.WithdrawRequest(items=withdrawn, cluster_id=cluster_id).SerializeToString()],
                )
        for _, repeat in (*due_changes, *due_pauses, *due_cutovers, *due_retired, *due_withdrawals, *due_losses):
            repeat.sent(now, shortest)
        reports, self._reports = [*self._reports.values()], {}
        for reported in _parts([_report(report) for report in reports]):
            self._context.transport.publish(
                self._context.subjects.report_leader(),
                [
                    pb.LeaderReports(
                        items=reported, cluster_id=cluster_id, controller_epoch=self._context.state.controller_epoch
                    ).SerializeToString()
                ],
            )
        times = [repeat.at for requests in self._repeated for _, repeat in requests.values()]
        if times:
            self._wake = asyncio.get_running_loop().call_later(max(0.0, min(times) - now), self._send)

    def _withdraw_replica(self, withdrawal: Withdrawal, incarnation: Incarnation) -> pb.WithdrawReplica:
        # The replica is unsound in every epoch of the partition.
        partition = self._context.state.partition(withdrawal.key)
        epoch = withdrawal.expected_epoch if partition is None else partition.epoch
        return pb.WithdrawReplica(
            partition=ref_of(withdrawal.key),
            broker=withdrawal.broker,
            incarnation=incarnation,
            expected_epoch=epoch,
            reason=withdrawal.reason,
        )

    def _withdraw_leader(self, loss: LossReport, incarnation: Incarnation) -> pb.WithdrawReplica:
        state = self._context.state
        partition, leader = state.partition(loss.key), state.brokers.get(loss.leader)
        return pb.WithdrawReplica(
            partition=ref_of(loss.key),
            broker=loss.leader,
            incarnation=0 if leader is None else leader.incarnation,
            # The LeaderEpoch is that of the report: `settle` has seen to it.
            expected_epoch=0 if partition is None else partition.epoch,
            reason=loss.reason,
            reported_by=pb.BrokerLife(broker=self._context.broker_id, incarnation=incarnation),
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


def _alteration(change: IsrChange) -> pb.IsrAlteration:
    return pb.IsrAlteration(
        partition=ref_of(change.key),
        leader=change.leader,
        leader_epoch=change.leader_epoch,
        expected_epoch=change.expected_epoch,
        new_isr=[pb.BrokerLife(broker=member.broker, incarnation=member.incarnation) for member in change.new_isr],
        reason=change.reason,
        caught_up=change.caught_up,
    )


def _pause(change: PauseChange) -> pb.PauseAlteration:
    return pb.PauseAlteration(
        partition=ref_of(change.key),
        leader=change.leader,
        leader_epoch=change.leader_epoch,
        expected_epoch=change.expected_epoch,
        paused=change.paused,
    )


def _cutover(report: CutoverReport) -> pb.CutoverReport:
    return pb.CutoverReport(
        partition=ref_of(report.key),
        leader=report.leader,
        leader_epoch=report.leader_epoch,
        version=report.version,
        end_offset=report.end_offset,
    )


def _retired(report: RetiredReport) -> pb.RetiredPartition:
    return pb.RetiredPartition(
        partition=ref_of(report.key),
        leader=report.leader,
        leader_epoch=report.leader_epoch,
        expected_epoch=report.expected_epoch,
    )


def _report(report: LeaderReport) -> pb.LeaderReports.Report:
    return pb.LeaderReports.Report(
        partition=ref_of(report.key),
        replica=report.replica,
        leader=report.leader,
        epoch=report.epoch,
        leader_epoch=report.leader_epoch,
        refused=report.refused,
    )
