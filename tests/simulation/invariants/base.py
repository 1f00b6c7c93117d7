"""Base class of the invariants: each overrides the hooks of the moments at which its promise can be broken.

When it falls it raises `InvariantBroken` with the name of its class, and the run ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from wire.partition_messages.append import UNKNOWN_OFFSET

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dataplane.broker.leading.leader_driver import LeaderDriver
    from dataplane.broker.replica import Replica
    from dataplane.log.partition_log import PartitionLog
    from metadata.cluster.model import Outcome, Partition
    from tests.simulation.invariants.groups import OffsetCommit
    from tests.simulation.invariants.history import CommittedHistory, History
    from tests.simulation.invariants.transactions import Ended, OffsetInTransaction
    from tests.simulation.machines.broker import SimBroker
    from tests.simulation.raft.group_model import RaftGroup
    from tests.simulation.world import World
    from wire.batch import RecordBatch
    from wire.durability import Durability
    from wire.internal_records.group_records import StreamPartition
    from wire.protobuf import metadata_pb2 as pb
    from wire.types import LeaderReport, PartitionKey


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Answer that a client was given."""

    stream: str
    stream_incarnation: int
    partition: int
    offset: int
    value: bytes
    by: str
    durability: Durability | None = None
    """Level that the publish asked for; None: the level of the stream."""
    losses: int = 0
    """How often a disk had lost anything when it was sent."""

    def is_in(self, values: Sequence[bytes]) -> bool:
        """The record is in a log with these values, at its offset; anywhere, if the answer names none."""
        if self.offset == UNKNOWN_OFFSET:
            return self.value in values
        return self.offset < len(values) and values[self.offset] == self.value


@dataclass(frozen=True, slots=True)
class Commit:
    """A command that the metadata group has applied."""

    message: pb.Command
    controller_epoch: int
    """As the three below: before it was applied."""
    before: Mapping[PartitionKey, Partition]
    alive: int
    """Brokers that were registered as alive."""
    outcome: Outcome

    @property
    def kind(self) -> str | None:
        return self.message.WhichOneof("body")


@dataclass(frozen=True, slots=True)
class Move:
    """The HW of a replica moved, or is seen for the first time in this role."""

    broker: SimBroker
    replica: Replica
    before: int
    """-1: for the first time."""
    end: int
    leads: bool

    @property
    def start(self) -> int:
        """The batches that it covers now and did not before."""
        return max(self.before, 0)

    @property
    def commits(self) -> bool:
        """A leader's first HW is the one that it knew as a follower: it commits nothing yet."""
        return self.leads and self.before >= 0


@dataclass(frozen=True, slots=True)
class Given:
    """A batch that a member of a group was given, whatever its keys."""

    who: str
    key: PartitionKey
    first: int
    """Offset of its first record."""
    end: int
    began: int
    """Where this reading of the partition began, or has come to before the batch, if that is higher."""
    reading: object
    """One for each time at which the member began to read the partition."""
    missed: int
    """Records that it was told to have missed in this reading, up to now."""
    since: float
    """When the member was assigned the partition, before it asked where to begin."""
    is_from_newest: bool = False
    """This reading began at the newest record, since nothing was committed and the group starts there."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """A record of an idempotent producer, as it is stored in the end."""

    where: str
    offset: int
    value: bytes
    number: int
    """The producer's own, ascending from 0."""
    before: int
    """The number of the record of this producer that is stored before; -1: none."""


@dataclass(frozen=True, slots=True)
class Scene:
    """State that all invariants look at."""

    world: World
    raft: RaftGroup
    brokers: dict[str, SimBroker]
    history: CommittedHistory

    def has_begun(self, broker: SimBroker) -> bool:
        """It opened its logs in this life, and the metadata group knows of some registration of it."""
        known = self.raft.truth.brokers.get(broker.id)
        return known is not None and known.life_id == f"{broker.id}-{broker.lives}"

    def proves_itself(self, broker: SimBroker) -> bool:
        """Its data folder is that of the life that is registered, or of one that no registration came after (R22)."""
        known = self.raft.truth.brokers.get(broker.id)
        running = broker.broker
        return known is None or running is None or known.life_id in running._data_dir.lives

    def relied_on(self, broker: SimBroker, replica: Replica) -> Partition | None:
        """The partition, where others count on this replica: it is in the ISR or eligible, and sound."""
        truth = self.raft.truth.partition(replica.key)
        if truth is None or broker.id not in (*truth.isr, *truth.eligible):
            return None
        return None if truth.is_withdrawn(broker.id) or replica.failure is not None else truth


class Invariant:
    """One hook for each event; a subclass overrides those it looks at."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.world = scene.world
        self.raft = scene.raft
        self.brokers = scene.brokers
        self.history = scene.history
        self.name = type(self).__name__

    def broken(self, what: str) -> NoReturn:
        self.world.broken(self.name, what)

    # ---- the metadata group

    def on_commit(self, commit: Commit) -> None:
        """A command was applied."""

    def on_partition(self, key: PartitionKey, old: Partition | None, new: Partition) -> None:
        """It changed a partition, or made it."""

    def on_report(self, report: LeaderReport) -> None:
        """A follower's word to the controller."""

    # ---- a replica, after a turn of its broker

    def on_failure(self, broker: SimBroker, replica: Replica) -> None:
        """It gave up, for a reason not seen before."""

    def on_open(self, broker: SimBroker, replica: Replica, end: int) -> None:
        """Its log was opened in this life of the broker, with this LEO."""

    def on_cut(self, broker: SimBroker, replica: Replica, before: int, end: int) -> None:
        """Its LEO went back."""

    def on_log_start(self, broker: SimBroker, replica: Replica, before: int, start: int) -> None:
        """Its oldest segments were removed. (Not: it was dropped and begins anew.)"""

    def on_log(self, broker: SimBroker, replica: Replica, log: PartitionLog, end: int) -> None:
        """Its log is open; after every turn."""

    def on_left(self, broker: SimBroker, key: PartitionKey) -> None:
        """The broker has no part in the partition any more, and removes its log."""

    def on_wipe(self, broker: SimBroker) -> None:
        """The broker's disk is another, empty one."""

    def on_role(self, broker: SimBroker, replica: Replica) -> None:
        """It has a role that it had not."""

    def on_leading(self, broker: SimBroker, role: LeaderDriver) -> None:
        """It leads, or is about to; after every turn."""

    def on_lead(self, broker: SimBroker, replica: Replica, role: LeaderDriver) -> None:
        """It took the lead."""

    def on_high_watermark(self, move: Move) -> None:
        """Its HW has changed; the batches that it covers are not in the history yet."""

    def on_covered(self, move: Move, history: History, base: int, data: bytes) -> None:
        """For every batch that the HW covers now and did not; it is not in the history yet, unless it was before."""

    def on_committed(self, move: Move) -> None:
        """A leader's HW moved; the batches that it covers are in the history."""

    # ---- clients

    def on_refused(self, stream: str, partition: int, value: bytes) -> None:
        """A client was told that its record was not stored, and will not send it again."""

    def on_acked(self, ack: Acknowledged, *, promised: bool) -> None:
        """A record was acknowledged. `promised`: as acks=all, which must survive."""

    def on_alarm(self, who: str, what: str) -> None:
        """A producer with acks=all was told that acknowledged records of it are lost."""

    def on_consumed(self, who: str, where: str, history: History | None, batch: RecordBatch) -> None:
        """A consumer got a batch. `history`: None where nothing was ever committed."""

    # ---- members of groups

    def on_readers(self, readers: Mapping[StreamPartition, Sequence[str]]) -> None:
        """Members that would hand out records now, by partition; whenever a member has heard or done something."""

    def on_offset_committed(self, commit: OffsetCommit) -> None:
        """The commit of a member was acknowledged."""

    def on_offset_told(self, of: StreamPartition, offset: int, floor: int) -> None:
        """A member was told what is committed. `floor`: what it could not be below when it asked."""

    def on_key_given(self, who: str, where: str, key: bytes, value: bytes, *, is_settled: bool) -> None:
        """A member was given a record of `tests.simulation.users.keyed`, fetched before. `is_settled`: by now, it is
        below the settled log start."""

    def on_given(self, given: Given) -> None:
        """A member of the group that reads keys was given a batch."""

    def on_read_to(self, key: PartitionKey, offset: int) -> None:
        """The commit of a member of that group was acknowledged: `offset` is the next one to read."""

    def on_waiting(self, who: str, of: StreamPartition, sources: Mapping[StreamPartition, int]) -> None:
        """A member of that group is given nothing of a partition before the group has read `sources` up to these
        offsets."""

    def on_adoption_told(self, who: str, stream: str, generation: int, version: int) -> None:
        """A client is about to tell that it goes by the routes of that generation; its producer goes by `version`."""

    def on_key_acked(self, value: bytes, sent_at: float) -> None:
        """One was acknowledged."""

    # ---- transactions

    def on_transaction_told(self, told: Ended) -> None:
        """A producer was told how its transaction has ended."""

    def on_transactional_offset(self, sent: OffsetInTransaction) -> None:
        """A transaction is about to commit an offset of a group."""

    def on_transactional_offset_told(self, group: str, of: StreamPartition, offset: int, floor: int) -> None:
        """Somebody was told what a group has committed that commits in transactions alone. `floor` as above."""

    def on_processed(self, incarnation: int, partition: int, end: int) -> None:
        """A program that reads, processes and writes has come to the end of a partition of its input."""

    def on_batch(self, sequence: int, values: tuple[bytes, ...], *, is_committed: bool) -> None:
        """A family is about to write these as one, or was told that they are committed."""

    # ---- the end

    def at_the_end(self, records: Mapping[tuple[str, int, int], list[bytes]]) -> None:
        """`records`: (stream, incarnation, partition) -> the committed values, of streams that exist."""

    def on_numbered(self, record: Numbered) -> None:
        """For every record of an idempotent producer that is stored in the end."""
