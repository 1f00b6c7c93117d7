"""Commands about partitions: ISR changes, elections, withdrawals, and changes of their replicas. A command names many
partitions; each of its items is decided on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TypeAlias, TypeVar

from metadata.cluster import election, reassignment
from metadata.cluster.cluster_view import Cluster
from metadata.cluster.model import Changes, Outcome, Partition
from metadata.cluster.references import key_of
from metadata.commands import repartition_commands, replication_factor
from metadata.commands.ledger import PARTITION, Ledger
from metadata.commands.reassignment_targets import wanted_replicas, why_not_target
from wire.errors import Code
from wire.protobuf import metadata_pb2 as pb
from wire.turns import Steps
from wire.types import KEY_ORDER, BrokerId, PartitionEpoch, PartitionKey, StreamName

_Item = TypeVar(
    "_Item",
    pb.IsrAlteration,
    pb.PauseAlteration,
    pb.Election,
    pb.WithdrawReplica,
    pb.ReassignmentTarget,
    pb.ReassignmentStep,
)
_Decide: TypeAlias = Callable[[Ledger, _Item, Partition, int], tuple[Code | None, Partition]]


def alter_isr(ledger: Ledger, command: pb.AlterIsr) -> Steps[Outcome]:
    return (yield from _each_partition(ledger, command.items, _alter_one_isr))


# R19: AlterIsr is a compare-and-set on leader, LeaderEpoch and partition epoch, checked when it is applied. Each
# member is named with the incarnation in which the leader saw it fetch (0 only for a present member not seen yet). If
# one of them is not the registered incarnation, not alive, or withdrawn, the ISR stays and the partition epoch rises,
# which outdates every copy of the request.
# Hazard: An expansion that is overtaken by a restart (KIP-903).
def _alter_one_isr(
    ledger: Ledger, item: pb.IsrAlteration, partition: Partition, min_isr: int
) -> tuple[Code | None, Partition]:
    leader = BrokerId(item.leader)
    if partition.leader != leader or item.leader_epoch != partition.leader_epoch:
        return Code.FENCED_LEADER_EPOCH, partition
    if item.expected_epoch != partition.epoch:
        return Code.STALE_EPOCH, partition
    members = tuple(BrokerId(life.broker) for life in item.new_isr)
    if len({*members}) != len(members) or leader not in members or any(m not in partition.replicas for m in members):
        return Code.BAD_REQUEST, partition
    for life in item.new_isr:
        member = BrokerId(life.broker)
        known = ledger.contents.brokers.get(member)
        seen = known is not None and known.incarnation == life.incarnation
        unseen_yet = life.incarnation == 0 and member in partition.isr
        if not (seen or unseen_yet) or not ledger.is_alive(member) or partition.is_withdrawn(member):
            # Settled for good: the raised epoch ends the leader's proposal, and outdates every copy still on its way.
            return Code.WRONG_INCARNATION, replace(partition, epoch=PartitionEpoch(partition.epoch + 1))
    changed = election.with_isr(partition, members, min_isr=min_isr)
    # By proposing a member that joins, the leader states that it has caught up.
    fetched = {BrokerId(life.broker) for life in item.new_isr if life.incarnation}
    joined = (broker for broker in members if broker not in partition.isr)
    changed = election.caught_up(changed, fetched.intersection((*map(BrokerId, item.caught_up), *joined)))
    # The present ISR may be proposed too: its new epoch outdates every earlier proposal.
    return None, replace(changed, epoch=PartitionEpoch(partition.epoch + 1))


# Keeps R47.
def alter_paused(ledger: Ledger, command: pb.AlterPaused) -> Steps[Outcome]:
    """A resumed partition resumes the others of its stream where its pause asked for that (`resume_all`)."""
    outcome = yield from _each_partition(ledger, command.items, _alter_one_paused)
    resumed = {
        key.stream
        for key in outcome.changes.partitions
        if (partition := ledger.partition(key)) is not None and partition.resume_all and not partition.paused
    }
    if not resumed:
        return outcome
    changed = {*outcome.changes.partitions}
    for name in sorted(resumed):
        stream = ledger.contents.streams[name]
        for number, partition in sorted(stream.partitions.items()):
            yield PARTITION
            if partition.paused or partition.resume_all:
                ledger.store(stream.key(number), replace(partition, paused=False, resume_all=False))
                changed.add(stream.key(number))
    return replace(outcome, changes=Changes(partitions=tuple(sorted(changed, key=KEY_ORDER))))


def _alter_one_paused(
    ledger: Ledger,  # noqa: ARG001 - the signature of `_Decide`
    item: pb.PauseAlteration,
    partition: Partition,
    min_isr: int,  # noqa: ARG001
) -> tuple[Code | None, Partition]:
    if partition.leader != BrokerId(item.leader) or item.leader_epoch != partition.leader_epoch:
        return Code.FENCED_LEADER_EPOCH, partition
    if item.expected_epoch != partition.epoch:
        return Code.STALE_EPOCH, partition
    return None, replace(partition, paused=item.paused)


def elect_leaders(ledger: Ledger, command: pb.ElectLeaders) -> Steps[Outcome]:
    refused = ledger.not_controller(command.controller_epoch)
    if refused is not None:
        return refused
    return (yield from _each_partition(ledger, command.items, _elect_one))


def _elect_one(ledger: Ledger, item: pb.Election, partition: Partition, min_isr: int) -> tuple[Code | None, Partition]:
    if item.leader_epoch != partition.leader_epoch:
        return Code.FENCED_LEADER_EPOCH, partition
    chosen: BrokerId | None = BrokerId(item.target)
    if chosen:
        able = [broker for broker in election.candidates(partition, ledger.is_alive) if broker != partition.leader]
        if not able and not item.planned:
            # The leader is the last live ISR member. An eligible replica holds all that was committed.
            able = [broker for broker in partition.eligible if ledger.is_alive(broker)]
        chosen = chosen if chosen in able else None
    else:
        chosen = election.chosen_leader(
            partition, alive=ledger.is_alive, led=ledger.leaderships, other_than=partition.leader
        )
        if item.planned and chosen not in partition.isr:
            chosen = None
    if chosen is None:
        return Code.NOT_ENOUGH_REPLICAS, partition
    drop = None if item.planned else partition.leader
    return None, election.lead(partition, chosen, alive=ledger.is_alive, min_isr=min_isr, drop=drop)


def withdraw(ledger: Ledger, command: pb.Withdraw) -> Steps[Outcome]:
    return (yield from _each_partition(ledger, command.items, _withdraw_one))


# Keeps R74.
def _withdraw_one(
    ledger: Ledger, item: pb.WithdrawReplica, partition: Partition, min_isr: int
) -> tuple[Code | None, Partition]:
    broker = BrokerId(item.broker)
    known = ledger.contents.brokers.get(broker)
    if known is None or known.incarnation != item.incarnation or broker not in partition.replicas:
        return Code.WRONG_INCARNATION, partition
    reporter = None
    if item.HasField("reported_by"):
        reporter = BrokerId(item.reported_by.broker)
        living = ledger.contents.brokers.get(reporter)
        if living is None or living.incarnation != item.reported_by.incarnation or reporter not in partition.replicas:
            return Code.WRONG_INCARNATION, partition
        if partition.leader != broker:
            return Code.FENCED_LEADER_EPOCH, partition
    if item.expected_epoch != partition.epoch:
        return Code.STALE_EPOCH, partition
    return None, election.after_withdrawal(
        partition,
        broker,
        alive=ledger.is_alive,
        led=ledger.leaderships,
        min_isr=min_isr,
        reason=item.reason or "unsound",
        reported_by=reporter,
    )


# Keeps R84.
def begin_reassignments(ledger: Ledger, command: pb.BeginReassignments) -> Steps[Outcome]:
    refused = ledger.not_controller(command.controller_epoch)
    if refused is not None:
        return refused
    names = [BrokerId(name) for name in command.brokers]
    return (yield from _each_partition(ledger, command.items, partial(_begin_one_reassignment, names)))


def _begin_one_reassignment(
    names: list[BrokerId], ledger: Ledger, item: pb.ReassignmentTarget, partition: Partition, min_isr: int
) -> tuple[Code | None, Partition]:
    if item.expected_epoch != partition.epoch:
        return Code.STALE_EPOCH, partition
    if any(index >= len(names) for index in item.replicas):
        return Code.BAD_REQUEST, partition
    target = tuple(names[index] for index in item.replicas)
    factor = ledger.contents.streams[StreamName(item.partition.stream)].replication_factor
    if why_not_target(ledger, partition, target, factor) is not None or target == wanted_replicas(partition):
        return Code.BAD_REQUEST, partition
    return None, reassignment.begin(partition, target, ledger.next_generation(), min_isr=min_isr)


# Keeps R84.
def start_reassignments(ledger: Ledger, command: pb.StartReassignments) -> Steps[Outcome]:
    return _each_step(ledger, command, _start)


def _start(partition: Partition, min_isr: int) -> Code | Partition:
    if partition.reassignment is None or partition.reassignment.is_started:
        return Code.BAD_REQUEST
    return reassignment.start(partition, min_isr=min_isr)


# Keeps R84, R85.
def complete_reassignments(ledger: Ledger, command: pb.CompleteReassignments) -> Steps[Outcome]:
    return _each_step(ledger, command, _complete)


def _complete(partition: Partition, min_isr: int) -> Code | Partition:
    if reassignment.why_not_complete(partition, min_isr) is not None:
        return Code.NOT_ENOUGH_REPLICAS
    return reassignment.complete(partition, min_isr=min_isr)


# Keeps R85.
def cancel_reassignments(ledger: Ledger, command: pb.CancelReassignments) -> Steps[Outcome]:
    return _each_step(ledger, command, _cancel)


def _cancel(partition: Partition, min_isr: int) -> Code | Partition:
    if partition.reassignment is None or partition.reassignment.is_cancelled:
        return Code.BAD_REQUEST
    return reassignment.cancel(partition, min_isr=min_isr)


def _each_step(
    ledger: Ledger,
    command: pb.StartReassignments | pb.CompleteReassignments | pb.CancelReassignments,
    step: Callable[[Partition, int], Code | Partition],
) -> Steps[Outcome]:
    """Takes a step of each reassignment that the command names, unless its partition has changed. `step(partition,
    min_isr)` returns the partition afterwards, or the refusal."""

    def change(
        _: Ledger, item: pb.ReassignmentStep, partition: Partition, min_isr: int
    ) -> tuple[Code | None, Partition]:
        if item.expected_epoch != partition.epoch:
            return Code.STALE_EPOCH, partition
        found = step(partition, min_isr)
        return (found, partition) if isinstance(found, Code) else (None, found)

    refused = ledger.not_controller(command.controller_epoch)
    return refused if refused is not None else (yield from _each_partition(ledger, command.items, change))


def _each_partition(ledger: Ledger, items: Iterable[_Item], change: _Decide[_Item]) -> Steps[Outcome]:
    """Decides each item on its own: `change(ledger, item, partition, min_isr)` returns the refusal or None, and the
    partition afterwards."""
    codes: list[Code | None] = []
    changed: dict[PartitionKey, None] = {}
    for item in items:
        yield PARTITION
        key = key_of(item.partition)
        partition = ledger.partition(key)
        if partition is None:
            codes.append(Code.UNKNOWN_STREAM)
            continue
        code, after = change(ledger, item, partition, ledger.contents.streams[key.stream].min_isr)
        codes.append(code)
        if after != partition:
            ledger.store(key, after)
            changed[key] = None
    if not changed:
        return ledger.unchanged(items=tuple(codes))
    # Keeps R91.
    changed |= dict.fromkeys((yield from replication_factor.follow(ledger, sorted({key.stream for key in changed}))))
    return ledger.changed(Changes(partitions=tuple(sorted(changed, key=KEY_ORDER))), items=tuple(codes))


# R31: An unclean election is an operator's command, for a partition without a live leader. The ISR becomes the chosen
# replica alone, and the election is counted for ever. Consumers that had read further get LOG_TRUNCATED; other
# replicas may cut committed records from then on (R74) and keep them in their quarantine.
# Hazard: Acknowledged records that are given up unnoticed.
def elect_unclean(ledger: Ledger, command: pb.UncleanElect) -> Steps[Outcome]:
    refused = ledger.not_controller(command.controller_epoch)
    if refused is not None:
        return refused
    key = key_of(command.partition)
    partition, broker = ledger.partition(key), BrokerId(command.broker)
    if partition is None:
        return ledger.refuse(Code.UNKNOWN_STREAM, f"partition {key} does not exist")
    if command.leader_epoch != partition.leader_epoch:
        return ledger.refuse(
            Code.FENCED_LEADER_EPOCH,
            f"partition {key} is at LeaderEpoch {partition.leader_epoch} by now; look again",
        )
    wrong = why_not_unclean(ledger, key, partition, broker)
    if wrong is not None:
        return ledger.refuse(Code.BAD_REQUEST, wrong)
    ledger.store(key, election.unclean(partition, broker))
    ledger.contents.unclean_elections += 1
    told = yield from repartition_commands.forget_reports(ledger, key)
    changed = sorted({key, *told}, key=KEY_ORDER)
    return ledger.changed(Changes(partitions=tuple(changed), repartitioned=(key.stream,) if told else ()))


def why_not_unclean(cluster: Cluster, key: PartitionKey, partition: Partition, broker: BrokerId) -> str | None:
    """Returns why an operator may not let that replica lead with loss; None when it may."""
    if broker not in partition.replicas or not cluster.is_alive(broker):
        return f"broker {broker} is not a live replica of {key}; its replicas are {', '.join(partition.replicas)}"
    if partition.leader is not None and cluster.is_alive(partition.leader):
        return (
            f"partition {key} is led by {partition.leader}: an unclean election would give up committed records; "
            "it is for partitions without a replica that can lead"
        )
    return None
