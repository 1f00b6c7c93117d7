"""Promises of a high watermark: records below it are committed, and stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.invariants.base import Invariant, Move, Scene
from tests.simulation.invariants.history import batches_of, is_left_of, may_be_compacted
from wire.batch import iter_batches

if TYPE_CHECKING:
    from dataplane.broker.replica import Replica
    from dataplane.log.partition_log import PartitionLog
    from tests.simulation.invariants.history import History
    from tests.simulation.machines.broker import SimBroker


class MonotonicHighWatermark(Invariant):
    """To consumers: the HW of a leader never goes back."""

    def on_high_watermark(self, move: Move) -> None:
        if move.end < move.before and move.leads:
            self.broken(f"{move.replica.key} on leader {move.broker.id} went from {move.before} to {move.end}")


class NoCommitBelowMinIsr(Invariant):
    """To producers: a committed record is on as many replicas as the stream asks for."""

    def on_high_watermark(self, move: Move) -> None:
        role = move.replica.role
        if not move.commits or role is None:
            return
        view = role.view
        if len(view.isr) < view.config.min_isr:
            self.broken(
                f"{move.replica.key}: {move.broker.id} moved the HW from {move.before} to {move.end}"
                f" with ISR {','.join(view.isr)}"
            )


class LogMatching(Invariant):
    """To all clients: no two values at one offset. Batches below any HW are the same everywhere, byte for byte."""

    def on_covered(self, move: Move, history: History, base: int, data: bytes) -> None:
        known = history.at.get(base)
        where = move.broker.id
        if known is None and base < history.end:
            self.broken(f"{move.replica.key} on {where} has a batch at {base}, inside what was committed otherwise")
        if known is not None and known != data and not is_left_of(data, known):
            self.broken(
                f"{move.replica.key} at offset {base}: {where} has another batch than {history.told_by[base]} had"
                f" committed (epochs {_epoch(data)} and {_epoch(known)})"
            )


class OnlyLeadersCommit(Invariant):
    """To consumers: a follower's HW covers only records that a leader's HW covered before."""

    def on_covered(self, move: Move, history: History, base: int, data: bytes) -> None:
        if base >= history.end and not move.commits:
            self.broken(
                f"{move.replica.key}: follower {move.broker.id} holds HW {move.end}, the committed log ends at"
                f" {history.end}"
            )


class CommittedIsHeldByIsr(Invariant):
    """To producers: at the moment of the commit every member of the ISR holds it, byte for byte, on its disk where that
    was promised.
    """

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._found: dict[tuple[str, str], int] = {}
        """(broker, file) -> where the last batch looked for was found on the disk."""

    def on_committed(self, move: Move) -> None:
        replica = move.replica
        role = replica.role
        truth = self.raft.truth.partition(replica.key)
        if truth is None or role is None or truth.leader_epoch != role.leader_epoch:
            return
        is_durable = role.view.config.is_durable
        what = f"{replica.key}: {move.broker.id} committed up to {move.end} in LeaderEpoch {role.leader_epoch}"
        for member in truth.isr:
            other = self.brokers[member]
            if other.broker is None:
                continue
            held = other.broker._replicas.get(replica.key)
            if held is not None:
                self._check(move, other, held, f"{what}, ISR member {member}", is_durable=is_durable)
            elif self.scene.has_begun(other):
                self.broken(f"{what}, ISR member {member} has no replica")

    def _check(self, move: Move, other: SimBroker, held: Replica, what: str, *, is_durable: bool) -> None:
        with other.disk.as_written():
            self._check_log(move, other, held, what, is_durable=is_durable)

    def _check_log(self, move: Move, other: SimBroker, held: Replica, what: str, *, is_durable: bool) -> None:
        log = held._log
        if log is None or held.failure is not None:
            return
        if not is_durable and not self.scene.has_begun(other):
            return  # records that it acknowledged before it lost power count, and others hold them
        has = log.durable_end if is_durable else log.log_end_offset
        if has < move.end:
            self.broken(f"{what} holds up to {has}")
        committed = self.history.history(held.key).at
        for base, data in batches_of(held, move.start, move.end):
            if base not in committed or (committed[base] != data and not is_left_of(data, committed[base])):
                self.broken(f"{what} holds something else at {base}")
            if is_durable and not self._is_on_disk(other, log, base, data):
                if may_be_compacted(held) and self._is_left_on_disk(other, held, base, data):
                    continue  # the whole batch is in memory still
                self.broken(f"{what} says that it synced offset {base}, and it is not on its disk")

    def _is_left_on_disk(self, broker: SimBroker, held: Replica, base: int, data: bytes) -> bool:
        """Compaction has left a part of the batch, or nothing."""
        assert held._log is not None
        end = next(header.end_offset for _, header in iter_batches(data))
        left = dict(batches_of(held, base, end, from_disk=True)).get(base)
        return is_left_of(left, data) and (left is None or self._is_on_disk(broker, held._log, base, left))

    def _is_on_disk(self, broker: SimBroker, log: PartitionLog, base: int, data: bytes) -> bool:
        segment = next(segment for segment in reversed(log.segments) if segment.base_offset <= base)
        place = broker.id, str(segment.path)
        content = broker.disk.synced(segment.path)
        at = content.find(data, self._found.get(place, 0))
        if at < 0:
            at = content.find(data)
        self._found[place] = max(at, 0)
        return at >= 0


def _epoch(data: bytes) -> int:
    return next(header.leader_epoch for _, header in iter_batches(data))
