"""The leader and the ISR of a partition, after an event at a replica. Pure functions from partition to partition.

A partition is led (leader in the ISR) or offline (no leader). Leaders come from the live ISR, then from the live
`eligible` replicas (KIP-966: they left the ISR when it fell below min ISR, after which nothing more was committed, so
they hold everything that ever was). With neither, the partition is offline: ISR and eligible are kept.

Among these, replicas whose brokers are in the incarnation that a leader saw in sync come first: the one whose broker
leads the fewest partitions. All others are `returned`: their brokers have begun a new incarnation meanwhile. Of these
the one leads whose log reaches furthest, by the LeaderEpoch of its last record and its end; and while others may still
come back, whose logs may reach further, nobody does (R71), until the controller has waited long enough.

The ISR never empties: a member leaves it only when another one remains, or an eligible replica takes its place.

None of these functions raises `epoch`: their caller does, once per command.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from metadata.cluster.model import Partition, Returned, Withdrawn
from wire.errors import InvariantViolation
from wire.types import BrokerId, LeaderEpoch

IsAlive = Callable[[BrokerId], bool]


# R20: When an ISR falls below `min_isr`, the replicas that leave it become eligible (KIP-966), and those that were
# already stay so: nothing commits from then on, so they hold everything up to the frozen HW and may lead when no
# member of the ISR can. The set empties when the ISR has `min_isr` members again. Replicas without proof, or
# withdrawn, do not enter it.
# Hazard: A partition that stays offline though a replica holds all that is committed.
def with_isr(
    partition: Partition, isr: tuple[BrokerId, ...], *, min_isr: int, lost: tuple[BrokerId, ...] = ()
) -> Partition:
    """Sets the ISR, and the eligible replicas that follow from it. `lost`: replicas that may have lost records."""
    if not isr:
        raise InvariantViolation(f"an empty ISR was asked for: {partition}")
    isr = partition.in_replica_order(isr)
    eligible: tuple[BrokerId, ...] = ()
    if len(isr) < min_isr:
        eligible = tuple(
            replica
            for replica in partition.replicas
            if (replica in partition.isr or replica in partition.eligible)
            and replica not in isr
            and replica not in lost
            and not partition.is_withdrawn(replica)
        )
    # Out of the ISR, a withdrawn replica is an ordinary one that has to catch up.
    withdrawn = tuple(entry for entry in partition.withdrawn if entry.replica in isr)
    returned = tuple(entry for entry in partition.returned if entry.replica in (*isr, *eligible))
    return replace(partition, isr=isr, eligible=eligible, withdrawn=withdrawn, returned=returned)


def caught_up(partition: Partition, members: Collection[BrokerId]) -> Partition:
    """A leader has seen these members of the ISR in sync, in their present incarnations."""
    if not any(entry.replica in members for entry in partition.returned):
        return partition
    return replace(partition, returned=tuple(entry for entry in partition.returned if entry.replica not in members))


# Keeps R14.
def with_min_isr(partition: Partition, min_isr: int) -> Partition:
    """Sets min ISR. When the ISR is large enough for it now, its leader goes on without the eligible replicas, so they
    are none any more. A partition without a leader commits nothing: its eligible replicas hold all that the ISR holds,
    and join it.

    A min ISR above the ISR's size makes no replica eligible: the replicas outside left while commits went on.
    """
    if partition.leader is None and partition.eligible and len(partition.isr) >= min_isr:
        return with_isr(partition, (*partition.isr, *partition.eligible), min_isr=min_isr)
    return with_isr(partition, partition.isr, min_isr=min_isr)


# R21: Leaders come from the live members of the ISR, then from the live eligible replicas, not withdrawn: the one that
# leads fewest partitions, then the first in replica order. In a failover dead members, and a leader that was deposed
# by report, leave the ISR in the same command. With no candidate the partition is offline: its ISR is kept and its
# LeaderEpoch rises.
# Hazard: An unclean election.
def candidates(partition: Partition, alive: IsAlive) -> tuple[BrokerId, ...]:
    """Replicas of which one may lead now: live and not withdrawn; ISR members, else eligible replicas."""
    for group in (partition.isr, partition.eligible):
        able = tuple(broker for broker in group if alive(broker) and not partition.is_withdrawn(broker))
        if able:
            return able
    return ()


# Keeps R21.
def lead(
    partition: Partition, leader: BrokerId, *, alive: IsAlive, min_isr: int, drop: BrokerId | None = None
) -> Partition:
    """`leader` leads in a new LeaderEpoch. Dead members and `drop` leave the ISR in the same step, so that acks do not
    wait for them."""
    if leader in partition.isr:
        isr = tuple(broker for broker in partition.isr if alive(broker) and broker != drop)
    else:
        isr = (leader,)
    led = caught_up(with_isr(partition, isr, min_isr=min_isr), (leader,))
    return replace(led, leader=leader, leader_epoch=LeaderEpoch(partition.leader_epoch + 1))


# Keeps R21, R71.
def chosen_leader(
    partition: Partition,
    *,
    alive: IsAlive,
    led: Mapping[BrokerId, int],
    other_than: BrokerId | None = None,
    avoid: BrokerId | None = None,
    returned_share: bool = True,
) -> BrokerId | None:
    """Returns the replica that should lead; None: none may. Of the live ISR, else of the live eligible replicas, it is
    the one whose broker leads fewest partitions, then the first in replica order. Replicas that have returned come
    last, the one whose log reaches furthest first, then as before. `avoid` is chosen only where it is alone, or of
    those that have returned; `other_than` never. `returned_share`: False before the rules of that name."""
    returned = {entry.replica: entry.log for entry in partition.returned}
    order = partition.replicas.index

    def load(broker: BrokerId) -> tuple[bool, int, int]:
        return broker == avoid, led.get(broker, 0), order(broker)

    def equal(broker: BrokerId) -> tuple[int, ...]:
        if not returned_share:
            return load(broker)
        return led.get(broker, 0) - (broker == partition.leader), order(broker)

    able = [
        [b for b in group if alive(b) and not partition.is_withdrawn(b) and b != other_than]
        for group in (partition.isr, partition.eligible)
    ]
    for group in able:
        lived_on = [broker for broker in group if broker not in returned]
        if lived_on:
            return min(lived_on, key=load)
    back = [broker for group in able for broker in group]
    return min(back, key=lambda b: (-returned[b].leader_epoch, -returned[b].offset, *equal(b)), default=None)


# R71: Of members that come back the one leads whose log reaches furthest. RegisterBroker says where each log ends, as
# (LeaderEpoch of the last record, end), and the replica has returned until it leads, joins the ISR, leaves it, or its
# leader confirms it. A member whose broker lived on leads before those that returned. If all have returned and others
# are on their way, the partition waits for them, for `election_wait_s` at most.
# Hazard: After a start of all brokers the first to come leads, with an older log or none.
def awaited(partition: Partition, alive: IsAlive) -> tuple[BrokerId, ...]:
    """Returns dead replicas that may hold more than the live ones, if no live one is in an incarnation that a leader
    has seen in sync; else none."""
    returned = {entry.replica for entry in partition.returned}
    known = [b for b in (*partition.isr, *partition.eligible) if not partition.is_withdrawn(b)]
    if any(alive(broker) and broker not in returned for broker in known):
        return ()
    return tuple(broker for broker in known if not alive(broker))


def elect(
    partition: Partition,
    *,
    alive: IsAlive,
    led: Mapping[BrokerId, int],
    min_isr: int,
    avoid: BrokerId | None = None,
    returned_share: bool = True,
) -> Partition:
    """Chooses a leader. Without one, or while others are awaited: offline, in a new LeaderEpoch if it had a leader."""
    chosen = chosen_leader(partition, alive=alive, led=led, avoid=avoid, returned_share=returned_share)
    if chosen is not None and not awaited(partition, alive):
        return lead(partition, chosen, alive=alive, min_isr=min_isr)
    return _offline(partition)


def _offline(partition: Partition) -> Partition:
    if partition.leader is None:
        return partition
    return replace(partition, leader=None, leader_epoch=LeaderEpoch(partition.leader_epoch + 1))


# Keeps R88.
def all_stop(partition: Partition, alive: IsAlive, stopping: Collection[BrokerId]) -> bool:
    """Whether each live replica is about to stop: those that may lead, and those that catch up while another leads."""
    live = [broker for broker in partition.replicas if alive(broker) and not partition.is_withdrawn(broker)]
    return all(broker in stopping for broker in live)


def after_death(
    partition: Partition,
    dead: tuple[BrokerId, ...],
    *,
    alive: IsAlive,
    led: Mapping[BrokerId, int],
    min_isr: int,
    stopping: Collection[BrokerId] = (),
    leave_offline: bool = False,
) -> Partition:
    """`dead` are not alive any more: they leave the ISR if a live member remains; partitions that they led move or are
    offline. `stopping`: brokers that are about to stop, and those of `dead` that were. Where one of these ends, and all
    other live replicas will, the partition is offline, and the ISR stays whole. `leave_offline`: they leave the ISR of
    an offline partition, too (rules of versions before R71)."""
    if not any(broker in partition.isr for broker in dead):
        return partition
    if partition.leader is None and not leave_offline:
        return partition  # each member may be the one that holds most
    if all_stop(partition, lambda broker: alive(broker) or (broker in dead and broker in partition.isr), stopping):
        return _offline(partition)
    if partition.leader is not None and partition.leader in dead:
        return elect(partition, alive=alive, led=led, min_isr=min_isr)
    live = tuple(broker for broker in partition.isr if alive(broker))
    # With no live member all of them stay: each holds everything committed, and the first to return may lead.
    return with_isr(partition, live, min_isr=min_isr) if live else partition


def leave(
    partition: Partition,
    broker: BrokerId,
    *,
    alive: IsAlive,
    min_isr: int,
    unsound: Withdrawn | None,
    first: BrokerId | None = None,
) -> Partition:
    """`broker` may have lost records that it acknowledged; with `unsound` it has.

    It leaves the ISR if a member remains, or gives way to an eligible replica: `first`, else a live one. As the last
    replica it stays: withdrawn when unsound, so that it cannot lead before an operator accepts the loss; able to lead
    when only the proof is missing. The leader is left as it is: the caller elects.
    """
    if broker in partition.eligible:
        eligible = tuple(other for other in partition.eligible if other != broker)
        return replace(caught_up(partition, (broker,)), eligible=eligible)
    if broker not in partition.isr:
        return partition
    others = tuple(other for other in partition.isr if other != broker)
    if others:
        return with_isr(partition, others, min_isr=min_isr, lost=(broker,))
    if partition.eligible:
        order = partition.replicas.index
        successor = min(partition.eligible, key=lambda other: (other != first, not alive(other), order(other)))
        return with_isr(partition, (successor,), min_isr=min_isr, lost=(broker,))
    if unsound is None or partition.is_withdrawn(broker):
        return partition
    return replace(partition, withdrawn=(*partition.withdrawn, unsound))


# R2: No process continues a LeaderEpoch of an earlier incarnation. When a new registration of a broker is applied,
# each partition that it led gets the next LeaderEpoch, and another live member of the ISR as its leader if there is
# one.
# Hazard: A leader that restarts within its LeaderEpoch rewrites offsets that followers hold.
def after_registration(
    partition: Partition,
    broker: BrokerId,
    *,
    alive: IsAlive,
    led: Mapping[BrokerId, int],
    min_isr: int,
    proven: bool,
    unsound: Withdrawn | None,
    proves: Callable[[Withdrawn], bool],
    back: Returned | None,
    returned_share: bool = True,
) -> Partition:
    """`broker` began a new incarnation. No process goes on with a LeaderEpoch of an earlier one. `proves`: whether its
    folder is the one in which a withdrawn replica was last sound. `back`: the end of its log, as it reported it; None:
    by rules of versions before R71. `returned_share`: as of `chosen_leader`."""
    found = next((entry for entry in partition.withdrawn if entry.replica == broker), None)
    has_lost_cache = False
    if found is not None and proves(found) and (unsound is None or unsound.sound_incarnation):
        # It was the very last member, and withdrawn: all committed records are in this folder.
        kept = replace(partition, withdrawn=tuple(entry for entry in partition.withdrawn if entry is not found))
    elif proven and unsound is None:
        kept = partition
    else:
        kept = leave(partition, broker, alive=alive, min_isr=min_isr, unsound=unsound)
        has_lost_cache = unsound is None
    if back is not None and len(partition.replicas) > 1 and broker in (*kept.isr, *kept.eligible):
        others = caught_up(kept, (broker,)).returned
        kept = replace(kept, returned=(*others, back))
    if partition.leader == broker or partition.leader is None:
        avoid = broker if partition.leader == broker else None
        elected = elect(kept, alive=alive, led=led, min_isr=min_isr, avoid=avoid, returned_share=returned_share)
        if has_lost_cache and elected.leader == broker and back is not None:
            # The last replica. Others outside the ISR may hold committed records that it has lost.
            return replace(elected, loss_epoch=elected.leader_epoch)
        return elected
    return kept


# R23: An unsound replica leaves first and is cut afterwards. Unsound is a log that ends below its recovery point or HW
# checkpoint, is not the one in the manifest, is damaged inside, failed to write or sync, or broke a rule. A withdrawal
# raises the LeaderEpoch even when another replica leads. Damage found at opening is cut when a view shows the replica
# outside ISR and `eligible`; what lies behind it goes to `quarantine/`. The last replica is withdrawn and the
# partition offline until an operator elects one.
# Hazard: A replica repairs itself and loses committed records unnoticed.
def after_withdrawal(
    partition: Partition,
    broker: BrokerId,
    *,
    alive: IsAlive,
    led: Mapping[BrokerId, int],
    min_isr: int,
    reason: str,
    reported_by: BrokerId | None = None,
) -> Partition:
    """`broker`'s replica is unsound. The LeaderEpoch rises even when another leads, and when the replica is out of sync
    already: its progress as the leader knows it, requests sent before it cut its log, and an expansion on its way,
    belong to an earlier epoch and no longer count.

    `reported_by`: a follower that holds committed records which `broker`, its leader, lacks. It leads if it is in the
    ISR or eligible, and so holds all that is committed. Another replica may lack records committed since it left:
    then `broker` gives way to another member, or the partition is offline until an operator chooses between the two.
    """
    left = leave(partition, broker, alive=alive, min_isr=min_isr, unsound=Withdrawn(broker, reason), first=reported_by)
    if left != partition and reported_by is not None and reported_by in candidates(left, alive):
        return lead(left, reported_by, alive=alive, min_isr=min_isr)
    if partition.leader is None or partition.leader == broker:
        return partition if left == partition else elect(left, alive=alive, led=led, min_isr=min_isr)
    return replace(left, leader_epoch=LeaderEpoch(partition.leader_epoch + 1))


# Keeps R31.
def unclean(partition: Partition, broker: BrokerId) -> Partition:
    """An operator's choice: records that only other replicas hold are given up, and damaged ones in its log."""
    leader_epoch = LeaderEpoch(partition.leader_epoch + 1)
    return replace(
        partition,
        leader=broker,
        isr=(broker,),
        eligible=(),
        withdrawn=(),
        returned=(),
        leader_epoch=leader_epoch,
        unclean_epoch=leader_epoch,
        loss_epoch=leader_epoch,
    )
