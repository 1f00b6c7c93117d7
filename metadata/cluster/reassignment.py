"""Other replicas for a partition that is in use. Pure functions from partition to partition.

    no reassignment ──begin──> waiting ──start──> copying ──complete──> replicas = target, no reassignment
           ^                      │                  │
           └──────cancel──────────┘                  │ cancel: what has not caught up goes
                                                     └──────> going back ──complete──> replicas = original

While it copies the replicas are the target, in its order, and behind it those that are to be removed. Replicas that are
added begin outside the ISR, as learners. They catch up as any follower outside the ISR does, and join it as any other,
by their leader's proposal (R18, R19). Until then they count for no HW, and no election chooses them.

None of these functions raises `epoch`: their caller does, once per command.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from metadata.cluster.election import with_isr
from metadata.cluster.model import Partition, Reassignment
from wire.types import BrokerId, Generation, LeaderEpoch


def begin(partition: Partition, target: tuple[BrokerId, ...], generation: Generation, *, min_isr: int) -> Partition:
    """The partition is to have the replicas `target`. One that is under way is replaced: its original set stays the
    original, and what it added goes unless it may hold what others lack, or is wanted still."""
    before = partition.reassignment
    original = partition.replicas if before is None else before.original
    kept = (*original, *_added_members(partition, original))
    moving = Reassignment(target=target, original=original, begun=generation)
    return _with_replicas(replace(partition, reassignment=moving), kept, min_isr=min_isr)


def start(partition: Partition, *, min_isr: int) -> Partition:
    """The replicas that a waiting reassignment adds begin to copy."""
    moving = partition.reassignment
    assert moving is not None
    return _with_replicas(
        replace(partition, reassignment=replace(moving, is_started=True)),
        (*moving.target, *(replica for replica in partition.replicas if replica not in moving.target)),
        min_isr=min_isr,
    )


def cancel(partition: Partition, *, min_isr: int) -> Partition:
    """The partition goes back to its original replicas, at once where no other may hold what they lack."""
    moving = partition.reassignment
    assert moving is not None
    original = moving.original
    back = replace(moving, target=original, is_started=True, is_cancelled=True)
    kept = (*original, *_added_members(partition, original))
    going_back = _with_replicas(replace(partition, reassignment=back), kept, min_isr=min_isr)
    return going_back if why_not_complete(going_back, min_isr) else complete(going_back, min_isr=min_isr)


# R84: A partition gets other replicas while it is used (KIP-455). Those that are added are replicas outside the ISR
# until their leader has proposed them and that is applied. Those that are to be removed stay members until one command,
# a compare-and-set on the partition epoch, removes them: it is refused unless the whole target is in the ISR, none of
# it withdrawn or returned (R71), and the leader is one of it. A command that removes a replica raises the LeaderEpoch,
# so that no progress which the replica reported outlives its log.
# Hazard: A replica that is removed before the one in its place holds what it held; one that is removed, loses its log,
# is added again, and counts by what it had reported before.
# R85: A cancelled reassignment goes back to the original replicas without waiting for those of them that are dead. What
# was added and is outside the ISR and `eligible` goes at once. What is in it goes when the leader is an original
# replica and min ISR original ones, not withdrawn or returned, are in the ISR.
# Hazard: A move that can be neither finished nor given up.
def why_not_complete(partition: Partition, min_isr: int) -> str | None:
    """Returns why the replicas that are not in the target cannot go yet; None: they can."""
    moving = partition.reassignment
    if moving is None:
        return "no reassignment is under way"
    if not moving.is_started:
        return "it waits for its turn"
    members = (*partition.isr, *partition.eligible)
    if moving.is_cancelled and all(member in moving.target for member in members):
        return None
    sound = in_sync(partition)
    if len(sound) < (min_isr if moving.is_cancelled else len(moving.target)):
        missing = ", ".join(replica for replica in moving.target if replica not in sound)
        return f"not in sync yet: {missing}"
    if partition.leader is None:
        return "nobody leads"
    return None if partition.leader in sound else f"{partition.leader} leads, which is not to be a replica"


def what_it_waits_for(partition: Partition, min_isr: int, is_alive: Callable[[BrokerId], bool]) -> str | None:
    """As `why_not_complete`, with the brokers of the target that are dead and outside the ISR."""
    why, moving = why_not_complete(partition, min_isr), partition.reassignment
    missing = [] if moving is None else [broker for broker in moving.target if broker not in partition.isr]
    dead = [broker for broker in missing if not is_alive(broker)]
    return f"{why}; dead: {', '.join(dead)}" if why and dead else why


def in_sync(partition: Partition) -> list[BrokerId]:
    """Returns the replicas of the target that hold everything committed, as its leader knows, and may lead; in the
    target's order."""
    returned = {entry.replica for entry in partition.returned}
    return [
        replica
        for replica in ([] if partition.reassignment is None else partition.reassignment.target)
        if replica in partition.isr and not partition.is_withdrawn(replica) and replica not in returned
    ]


def needs_move(partition: Partition, min_isr: int) -> bool:
    """Whether the reassignment waits for nothing but another leader."""
    moving, leader = partition.reassignment, partition.leader
    if moving is None or leader is None or why_not_complete(partition, min_isr) is None:
        return False
    sound = in_sync(partition)
    return leader not in sound and len(sound) >= (min_isr if moving.is_cancelled else len(moving.target))


# Keeps R84, R85.
def complete(partition: Partition, *, min_isr: int) -> Partition:
    """The replicas are the target. `why_not_complete` is None."""
    moving = partition.reassignment
    assert moving is not None
    return _with_replicas(replace(partition, reassignment=None), moving.target, min_isr=min_isr)


def _added_members(partition: Partition, original: tuple[BrokerId, ...]) -> tuple[BrokerId, ...]:
    """Replicas beside the original ones that are, or may be, needed to lead."""
    members = (*partition.isr, *partition.eligible)
    return tuple(replica for replica in partition.replicas if replica in members and replica not in original)


# Keeps R84.
def _with_replicas(partition: Partition, replicas: tuple[BrokerId, ...], *, min_isr: int) -> Partition:
    """Sets the replicas; those that go leave the ISR and `eligible`."""
    is_cut = any(replica not in replicas for replica in partition.replicas)
    isr = tuple(replica for replica in replicas if replica in partition.isr)
    eligible = tuple(replica for replica in replicas if replica in partition.eligible)
    moved = with_isr(replace(partition, replicas=replicas, isr=isr, eligible=eligible), isr, min_isr=min_isr)
    return replace(moved, leader_epoch=LeaderEpoch(moved.leader_epoch + 1)) if is_cut else moved
