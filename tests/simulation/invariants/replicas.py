"""Promises of brokers to each other about a replica: when it may act, which records its log holds, when it may lead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataplane.broker.following.follower_driver import FollowerDriver
from dataplane.broker.leading.leader_driver import LeaderDriver
from dataplane.replica.follower.follower_states import Diverged, Truncating
from dataplane.replica.leader.leader import Leader
from tests.simulation.invariants.base import Invariant, Move, Scene
from tests.simulation.invariants.history import may_be_compacted
from wire.errors import InvariantViolation
from wire.types import LeaderEpoch

if TYPE_CHECKING:
    from dataplane.broker.replica import Replica
    from dataplane.log.partition_log import PartitionLog
    from metadata.cluster.model import Partition
    from tests.simulation.machines.broker import SimBroker
    from wire.types import PartitionKey

LEASE_SLACK = 0.5
"""Seconds: probes on their way when a leader was deposed, and clocks that differ."""


def _is_durable(replica: Replica) -> bool:
    return replica.view is not None and replica.view.config.is_durable


class OnlyDisksFailReplicas(Invariant):
    """To operators: a replica gives up because of its disk, and for no reason of our own making."""

    def on_failure(self, broker: SimBroker, replica: Replica) -> None:
        # On an `accepted` stream the HW may be on the disk, and the records below it not.
        if _is_durable(replica) and not broker.disk.has_failed:
            self.broken(f"{replica.key} on {broker.id}: {replica.failure}")


class CoresAreValid(Invariant):
    """To maintainers: what leaders, followers, leader epochs and producer tables say of themselves holds whenever a
    role has moved."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._seen: dict[tuple[str, PartitionKey], tuple[object, ...]] = {}

    def on_log(self, broker: SimBroker, replica: Replica, log: PartitionLog, end: int) -> None:
        role = replica.role
        core = role.core if isinstance(role, (LeaderDriver, FollowerDriver)) else None
        if role is None or core is None or role.ended or role.failed is not None or replica.failure is not None:
            return
        moved = (core, end, core.high_watermark, core.isr if isinstance(core, Leader) else core.state)
        before = self._seen.get((broker.id, replica.key))
        if before is not None and all(a is b or a == b for a, b in zip(before, moved, strict=True)):
            return
        self._seen[broker.id, replica.key] = moved
        try:
            core.validate()
            log.producers.validate()
        except InvariantViolation as broken:
            self.broken(f"{broker.id}: {broken}")


class SyncedStays(Invariant):
    """To leaders: records that a replica of a `durable` stream reported as synced are there when its log is opened
    again. From the moment at which it says that it is damaged nobody counts on them, nor on a folder that does not
    prove itself."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._synced: dict[tuple[str, PartitionKey], int] = {}

    def on_open(self, broker: SimBroker, replica: Replica, end: int) -> None:
        promised = self._synced.get((broker.id, replica.key), 0)
        if end < promised and replica.failure is None and self.scene.proves_itself(broker):
            self.broken(f"{replica.key} on {broker.id} opens with LEO {end}, up to {promised} was said to be synced")

    def on_failure(self, broker: SimBroker, replica: Replica) -> None:
        self._synced[broker.id, replica.key] = 0

    def on_log(self, broker: SimBroker, replica: Replica, log: PartitionLog, end: int) -> None:
        place = broker.id, replica.key
        if isinstance(replica.role, FollowerDriver) and isinstance(replica.role.core.state, Truncating):
            self._synced[place] = 0  # how far it is being cut is not to be seen from outside
        elif _is_durable(replica) and replica.failure is None:
            promised = self._synced.get(place, 0)
            if promised != (now := max(min(promised, end), log.durable_end)):
                self._synced[place] = now

    def on_left(self, broker: SimBroker, key: PartitionKey) -> None:
        self._synced.pop((broker.id, key), None)

    def on_wipe(self, broker: SimBroker) -> None:
        for place in [place for place in self._synced if place[0] == broker.id]:
            del self._synced[place]


class IsrMembersHoldCommitted(Invariant):
    """To clients: a broker that enters the ISR, and may be elected from then on, holds all that is committed; of a
    compacted stream the newest record of each key, and of a deleted key none."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._joined_blind: dict[tuple[str, int, PartitionKey], int] = {}
        """Broker that joined an ISR with its log not open yet -> the committed end at that time."""

    def on_partition(self, key: PartitionKey, old: Partition | None, new: Partition) -> None:
        for member in new.isr:
            if old is None or member in old.isr or member in old.eligible:
                continue
            broker = self.brokers[member]
            replica = broker.broker._replicas.get(key) if broker.broker is not None else None
            end = self.history.history(key).end
            if replica is None or replica._log is None:
                self._joined_blind[member, broker.lives, key] = end
                continue
            if not self.scene.has_begun(broker):
                continue  # An earlier life entered. What this one still has is judged when it registers.
            if replica.log_end_offset < end:
                self.broken(
                    f"{key}: {member} entered the ISR {','.join(new.isr)} with LEO {replica.log_end_offset},"
                    f" committed is {end}"
                )
            if may_be_compacted(replica) and replica.failure is None:
                with broker.disk.as_written():
                    self.history.check_prefix(broker, replica, "IsrMembersHoldCommitted", "as it entered the ISR")

    def on_open(self, broker: SimBroker, replica: Replica, end: int) -> None:
        blind = self._joined_blind.pop((broker.id, broker.lives, replica.key), 0)
        if end >= blind:
            return
        truth = self.scene.relied_on(broker, replica)
        if truth is not None and broker.id in truth.isr:
            self.broken(f"{replica.key}: {broker.id} joined the ISR with LEO {end}, committed was {blind}")


class CommittedIsNotCut(Invariant):
    """To clients: a replica that others count on does not give up committed records."""

    def on_cut(self, broker: SimBroker, replica: Replica, before: int, end: int) -> None:
        committed = self.history.history(replica.key).end
        if end >= min(committed, before):
            return
        truth = self.scene.relied_on(broker, replica)
        if truth is not None:
            self.broken(
                f"{replica.key}: {broker.id} cut its log from {before} to {end}, committed is {committed}, and it is in"
                f" ISR {','.join(truth.isr)} or eligible"
            )


class KnownCommittedIsNotCut(Invariant):
    """To clients: what a replica knows as committed it cuts for an election only that the metadata knows of, whether
    others count on the replica or not (but to copy the log anew without what was deleted, R39)."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._known: dict[tuple[str, PartitionKey], int] = {}

    def on_high_watermark(self, move: Move) -> None:
        place = move.broker.id, move.replica.key
        self._known[place] = max(self._known.get(place, 0), move.end)

    def on_open(self, broker: SimBroker, replica: Replica, end: int) -> None:
        place = broker.id, replica.key
        self._known[place] = min(self._known.get(place, 0), end)

    def on_failure(self, broker: SimBroker, replica: Replica) -> None:
        self._known.pop((broker.id, replica.key), None)

    def on_left(self, broker: SimBroker, key: PartitionKey) -> None:
        self._known.pop((broker.id, key), None)

    def on_cut(self, broker: SimBroker, replica: Replica, before: int, end: int) -> None:
        known = self._known.get((broker.id, replica.key), 0)
        self._known[broker.id, replica.key] = min(known, end)
        truth = self.raft.truth.partition(replica.key)
        if end < known and truth is not None and not truth.loss_epoch and not may_be_compacted(replica):
            self.broken(
                f"{replica.key}: {broker.id} cut its log from {before} to {end}, it knows {known} as committed, and no"
                " election explains it"
            )


class OnlyLossesAreReported(Invariant):
    """To operators: no replica reports that its leader lacks committed records, for none does."""

    def on_log(self, broker: SimBroker, replica: Replica, log: PartitionLog, end: int) -> None:
        role = replica.role
        if isinstance(role, FollowerDriver) and isinstance(role.core.state, Diverged):
            self.broken(f"{replica.key} on {broker.id}, log to {end}: {role.core.state.error.message}")


class OnlyTheRegisteredAct(Invariant):
    """To the metadata group: no role begins before the registration of this life is applied."""

    def on_role(self, broker: SimBroker, replica: Replica) -> None:
        if not self.scene.has_begun(broker):
            known = self.raft.truth.brokers.get(broker.id)
            self.broken(f"{replica.key}: {broker.id} acts in life {broker.lives}, registered is {known}")


class LeaseEnds(Invariant):
    """To readers at a leader: some time after another was elected, one that does not know does know that much."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._deposed: dict[tuple[PartitionKey, LeaderEpoch], float] = {}
        """When a LeaderEpoch was over, in truth."""

    def on_partition(self, key: PartitionKey, old: Partition | None, new: Partition) -> None:
        if old is not None and new.leader_epoch > old.leader_epoch:
            self._deposed[key, old.leader_epoch] = self.world.now

    def on_leading(self, broker: SimBroker, role: LeaderDriver) -> None:
        deposed_at = self._deposed.get((role.view.key, role.leader_epoch))
        if deposed_at is None or broker.process is None or broker.metadata is None:
            return
        late = self.world.now - deposed_at - broker.metadata_settings.leader_lease_s - LEASE_SLACK
        if late > 0 and broker.metadata.lease_valid(broker.process.time()):
            self.broken(
                f"{role.view.key}: {broker.id} believes in its lease of LeaderEpoch {role.leader_epoch},"
                f" {self.world.now - deposed_at:.2f} s after that was over"
            )


class SingleLeaderPerEpoch(Invariant):
    """To followers: in one LeaderEpoch one life of one broker leads."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._leaders: dict[tuple[PartitionKey, LeaderEpoch], tuple[str, int]] = {}

    def on_lead(self, broker: SimBroker, replica: Replica, role: LeaderDriver) -> None:
        life = (broker.id, broker.lives)
        known = self._leaders.setdefault((replica.key, role.leader_epoch), life)
        if known != life:
            self.broken(f"{replica.key} epoch {role.leader_epoch}: {known} and {life}")


class EpochBehindSyncedTail(Invariant):
    """To followers: a LeaderEpoch begins where the log is synced, so that no crash moves its beginning."""

    def on_lead(self, broker: SimBroker, replica: Replica, role: LeaderDriver) -> None:
        if role.log.durable_end < role.core.epoch_start:
            self.broken(
                f"{replica.key} on {broker.id}: LeaderEpoch {role.leader_epoch} begins at {role.core.epoch_start},"
                f" the log is synced up to {role.log.durable_end}"
            )


class DerivedStateFollowsFromTheLog(Invariant):
    """To producers: a leader knows their sequences, also of records that its log never held or holds no more; to
    followers: and where the leader epochs ended."""

    def on_lead(self, broker: SimBroker, replica: Replica, role: LeaderDriver) -> None:
        truth = self.raft.truth.partition(replica.key)
        if truth is not None and truth.leader_epoch == role.leader_epoch:
            self.history.check_derived_state(broker, replica, self.name, f"leads LeaderEpoch {role.leader_epoch}")


class LeaderCompleteness(Invariant):
    """To clients: a leader holds all committed records."""

    def on_lead(self, broker: SimBroker, replica: Replica, role: LeaderDriver) -> None:
        truth = self.raft.truth.partition(replica.key)
        if truth is not None and truth.leader_epoch == role.leader_epoch:
            self.history.check_prefix(broker, replica, self.name, f"leads LeaderEpoch {role.leader_epoch}")
