"""The cluster state: every broker holds the same one, because every broker applies the same commands in the same order.

`apply(bytes)` is total and deterministic: no clock, no chance, no I/O, no order taken from a set. What it cannot read
or must refuse is an outcome, the same on every node, and changes nothing. Each command that changes something raises
`generation` by one; that number also names what the command brings into being (an incarnation of a broker, of a stream,
of its partitions).

Every decision is a compare-and-set, checked here and nowhere else:
- a controller's carries its office and is refused after a later one (what a deposed one queued does nothing);
- a leader's ISR change names the leader, its LeaderEpoch, the partition epoch that it saw and the life of each member
  (KIP-903). One that fails on a member ends in a new partition epoch with the ISR unchanged, so that the leader sees in
  the state that its proposal is over; a stale one changes nothing at all;
- a broker's death names the incarnation that died.

A command may carry (client, sequence): repeated, as when its proposer could not know the outcome, it is answered with
what it gave the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from google.protobuf.message import DecodeError

from metadata import election, snapshot, stream_settings
from metadata.model import (
    MAX_PARTITIONS,
    NOTHING,
    Broker,
    Changes,
    Layout,
    Outcome,
    Partition,
    Stream,
)
from wire import metadata_pb2 as pb
from wire.durability import MAX_REPLICAS
from wire.errors import Code, TidelogError
from wire.stream_config import StreamConfig
from wire.subjects import overlaps
from wire.types import (
    BrokerId,
    Generation,
    Incarnation,
    LeaderEpoch,
    PartitionEpoch,
    PartitionKey,
    PartitionView,
    StreamName,
)

MAX_CLIENTS = 1024
"""Clients whose outcomes are kept; the one not heard for the most commands is forgotten."""
MAX_EARLIER_LIVES = 64
"""Ids of lives that are over, kept per broker."""
OUTCOMES_PER_CLIENT = 64
"""Outcomes kept per client; a sequence number that is older than all of them is refused."""

MAX_PRODUCER_IDS = 100_000
"""Most producer ids that one command hands out."""

_Item = TypeVar("_Item", pb.IsrAlteration, pb.Election, pb.WithdrawReplica)

DEFAULT_KIND = "log"
DEFAULT_PARTITIONER = "crc32c"
DEFAULT_PLACEMENT = "spread"


def ref_of(key: PartitionKey) -> pb.PartitionRef:
    return pb.PartitionRef(
        stream=key.stream,
        stream_incarnation=key.stream_incarnation,
        partition=key.partition,
        partition_incarnation=key.partition_incarnation,
    )


def key_of(ref: pb.PartitionRef) -> PartitionKey:
    return PartitionKey(
        StreamName(ref.stream),
        Incarnation(ref.stream_incarnation),
        ref.partition,
        Incarnation(ref.partition_incarnation),
    )


def _lives_before(command: pb.RegisterBroker, known: Broker | None) -> tuple[str, ...]:
    """What is over when that life has begun."""
    over = [*command.earlier_lives] if known is None else [*known.earlier_lives, known.life_id, *command.earlier_lives]
    return tuple(life for life in dict.fromkeys(over) if life != command.life_id)[-MAX_EARLIER_LIVES:]


class ClusterState:
    """See the module. Readers may look at every attribute and change none."""

    def __init__(self) -> None:
        self._contents = snapshot.Contents.empty()
        self._led: dict[BrokerId, int] = {}

    # ---- reading ---------------------------------------------------------------------------------------------------

    @property
    def generation(self) -> Generation:
        return self._contents.generation

    @property
    def cluster_id(self) -> str:
        """Empty until a controller has taken office for the first time."""
        return self._contents.cluster_id

    @property
    def office(self) -> int:
        """Number of the present office; 0: none yet."""
        return self._contents.office

    @property
    def controller(self) -> BrokerId | None:
        return self._contents.controller

    @property
    def controller_life_id(self) -> str:
        return self._contents.controller_life_id

    @property
    def brokers(self) -> Mapping[BrokerId, Broker]:
        return self._contents.brokers

    @property
    def streams(self) -> Mapping[StreamName, Stream]:
        return self._contents.streams

    @property
    def defaults(self) -> Mapping[str, str]:
        """Settings that streams get when they are made, where they bring none of their own."""
        return self._contents.cluster_config

    @property
    def unclean_elections(self) -> int:
        """How often an operator has let a replica lead that may lack committed records."""
        return self._contents.unclean_elections

    def is_alive(self, broker: BrokerId) -> bool:
        found = self._contents.brokers.get(broker)
        return found is not None and found.alive

    def partition(self, key: PartitionKey) -> Partition | None:
        """That life of that partition; None when it is over or never was."""
        stream = self._contents.streams.get(key.stream)
        if stream is None or stream.incarnation != key.stream_incarnation:
            return None
        partition = stream.partitions.get(key.partition)
        return partition if partition is not None and partition.incarnation == key.partition_incarnation else None

    def view(self, key: PartitionKey) -> PartitionView | None:
        return self._contents.streams[key.stream].view(key.partition) if self.partition(key) is not None else None

    def partitions(self) -> Iterator[tuple[PartitionKey, Partition]]:
        """All, by stream name and number."""
        for _, stream in sorted(self._contents.streams.items()):
            for number, partition in sorted(stream.partitions.items()):
                yield PartitionKey(stream.name, stream.incarnation, number, partition.incarnation), partition

    def keys_of(self, broker: BrokerId) -> list[PartitionKey]:
        """Partitions that `broker` replicates, sorted."""
        return [key for key, partition in self.partitions() if broker in partition.replicas]

    def led_by(self, broker: BrokerId) -> int:
        return self._led.get(broker, 0)

    def check(self) -> None:
        """Raises InvariantViolation. For tests and simulations: looks at everything."""
        for key, partition in self.partitions():
            partition.check(self._contents.streams[key.stream].min_isr)

    # ---- snapshots -------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        return snapshot.encode(self._contents)

    def restore(self, data: bytes) -> Changes:
        """Become the state of that snapshot; what differs from the state until now. Raises CorruptData."""
        old, new = self._contents, snapshot.decode(data)
        before = {key: (partition, old.streams[key.stream].shared) for key, partition in self.partitions()}
        self._contents = new
        self._led = {}
        for _, partition in self.partitions():
            self._count(partition.leader, 1)
        after = {key: (partition, new.streams[key.stream].shared) for key, partition in self.partitions()}
        return Changes(
            partitions=tuple(sorted(key for key, found in after.items() if before.get(key) != found)),
            gone=tuple(sorted(key for key in before if key not in after)),
            brokers=tuple(
                sorted(
                    broker
                    for broker in {**old.brokers, **new.brokers}
                    if old.brokers.get(broker) != new.brokers.get(broker)
                )
            ),
            office=old.office != new.office,
        )

    # ---- commands --------------------------------------------------------------------------------------------------

    def apply(self, command: bytes) -> Outcome:
        """Never raises for what the bytes say."""
        try:
            message = pb.Command.FromString(command)
        except DecodeError as error:
            return self._refuse(Code.BAD_REQUEST, f"a metadata command of {len(command)} bytes cannot be read: {error}")
        recorded = self._recorded(message)
        if recorded is not None:
            return recorded
        outcome = self._dispatch(message)
        self._record(message, outcome)
        return outcome

    def _dispatch(self, message: pb.Command) -> Outcome:
        match message.WhichOneof("body"):
            case "take_office":
                return self._take_office(message.take_office)
            case "register_broker":
                return self._register_broker(message.register_broker)
            case "brokers_dead":
                return self._brokers_dead(message.brokers_dead)
            case "create_stream":
                return self._create_stream(message.create_stream)
            case "alter_stream":
                return self._alter_stream(message.alter_stream)
            case "alter_cluster":
                return self._alter_cluster(message.alter_cluster)
            case "delete_stream":
                return self._delete_stream(message.delete_stream)
            case "alter_isr":
                return self._alter_isr(message.alter_isr)
            case "elect_leaders":
                return self._elect_leaders(message.elect_leaders)
            case "withdraw":
                return self._withdraw(message.withdraw)
            case "allocate_producer_ids":
                return self._allocate_producer_ids(message.allocate_producer_ids)
            case "unclean_elect":
                return self._unclean_elect(message.unclean_elect)
            case None:
                return self._refuse(
                    Code.BAD_REQUEST, "a metadata command of a kind that this version does not know; update the broker"
                )

    def _recorded(self, message: pb.Command) -> Outcome | None:
        outcomes = self._contents.clients.get(message.client) if message.client else None
        if not outcomes:
            return None
        known = outcomes.get(message.sequence)
        if known is not None:
            return replace(known, generation=self.generation, repeated=True)
        if len(outcomes) >= OUTCOMES_PER_CLIENT and message.sequence < min(outcomes):
            return self._refuse(
                Code.OUTCOME_UNKNOWN, f"command {message.sequence} of {message.client} is older than what is remembered"
            )
        return None

    def _record(self, message: pb.Command, outcome: Outcome) -> None:
        if not message.client:
            return
        clients = self._contents.clients
        # Taken out and put back at the end: the order of this dict is the order of last use, and part of the snapshot.
        outcomes = clients.pop(message.client, {})
        outcomes[message.sequence] = Outcome(code=outcome.code, message=outcome.message, value=outcome.value)
        if len(outcomes) > OUTCOMES_PER_CLIENT:
            del outcomes[min(outcomes)]
        clients[message.client] = outcomes
        if len(clients) > MAX_CLIENTS:
            del clients[next(iter(clients))]

    def _refuse(self, code: Code, message: str, items: tuple[Code | None, ...] = ()) -> Outcome:
        return Outcome(code=code, message=message, generation=self.generation, items=items)

    def _next(self) -> Generation:
        return Generation(self._contents.generation + 1)

    def _changed(self, changes: Changes = NOTHING, *, value: int = 0, items: tuple[Code | None, ...] = ()) -> Outcome:
        self._contents.generation = self._next()
        return Outcome(value=value, items=items, generation=self.generation, changes=changes)

    def _unchanged(self, *, value: int = 0, items: tuple[Code | None, ...] = ()) -> Outcome:
        return Outcome(value=value, items=items, generation=self.generation)

    def _count(self, leader: BrokerId | None, by: int) -> None:
        if leader is not None:
            self._led[leader] = self._led.get(leader, 0) + by

    def _store(self, key: PartitionKey, changed: Partition) -> None:
        """Put a changed partition in the old one's place, one partition epoch on."""
        partitions = self._contents.streams[key.stream].partitions
        old = partitions[key.partition]
        partitions[key.partition] = replace(changed, epoch=PartitionEpoch(old.epoch + 1))
        self._count(old.leader, -1)
        self._count(changed.leader, 1)

    def _sweep(self, change: Callable[[PartitionKey, Partition, Stream], Partition]) -> tuple[PartitionKey, ...]:
        """Apply `change` to every partition; keys of those that it changed."""
        changed = []
        for key, partition in self.partitions():
            after = change(key, partition, self._contents.streams[key.stream])
            if after is not partition and after != partition:
                self._store(key, after)
                changed.append(key)
        return tuple(changed)

    def _not_in_office(self, office: int) -> Outcome | None:
        if office == self.office and office:
            return None
        return self._refuse(
            Code.NOT_CONTROLLER,
            f"the decision was taken in office {office}, now is {self.office} ({self.controller}); ask again",
        )

    # Offices and brokers

    def _take_office(self, command: pb.TakeOffice) -> Outcome:
        if command.expected_office != self.office:
            return self._refuse(
                Code.NOT_CONTROLLER,
                f"{command.controller} expected office {command.expected_office}, the present one is {self.office}",
            )
        if not command.controller or not (self.cluster_id or command.cluster_id):
            return self._refuse(Code.BAD_REQUEST, "an office needs a controller, the first one a cluster id too")
        contents = self._contents
        contents.cluster_id = contents.cluster_id or command.cluster_id
        contents.office += 1
        contents.controller = BrokerId(command.controller)
        contents.controller_life_id = command.life_id
        return self._changed(Changes(office=True), value=contents.office)

    def _register_broker(self, command: pb.RegisterBroker) -> Outcome:
        broker = BrokerId(command.broker)
        if not self.cluster_id:
            return self._refuse(Code.UNAVAILABLE, "no controller has taken office yet; register again in a moment")
        if not broker or not command.life_id:
            return self._refuse(Code.BAD_REQUEST, "a registration needs a broker id and a life id")
        if command.cluster_id and command.cluster_id != self.cluster_id:
            return self._refuse(
                Code.BAD_CONFIG,
                f"the data folder of {broker} belongs to cluster {command.cluster_id}, this is {self.cluster_id};"
                " give the broker the folder of this cluster, or an empty one",
            )
        known = self._contents.brokers.get(broker)
        if known is not None and known.alive and known.life_id == command.life_id:
            return self._unchanged(value=known.incarnation)
        if known is not None and command.life_id in known.earlier_lives:
            return self._refuse(
                Code.WRONG_INCARNATION,
                f"this life of broker {broker} is over: a later one has registered; start the broker again",
            )
        # A folder that does not know of the last registered life is a copy of an earlier time.
        folder_same = (
            command.folder_same
            and known is not None
            and (command.last_incarnation == known.incarnation or known.life_id in command.earlier_lives)
        )
        cache_survived = folder_same and command.page_cache_survived
        unsound = {key_of(ref): "the replica's log is unsound" for ref in command.unsound}
        # Then what was committed is not there: were it to lead as the last member, the others would be cut to its log.
        other_folder = None if folder_same else f"the data folder of {broker} is not the one of its last life"
        incarnation = Incarnation(self._next())
        self._contents.brokers[broker] = Broker(
            id=broker,
            life_id=command.life_id,
            incarnation=incarnation,
            alive=True,
            raft_address=command.raft_address,
            earlier_lives=_lives_before(command, known),
        )
        changed = self._sweep(
            lambda key, partition, stream: (
                election.after_registration(
                    partition,
                    broker,
                    alive=self.is_alive,
                    led=self._led,
                    min_isr=stream.min_isr,
                    proven=folder_same if stream.durable else cache_survived,
                    unsound=unsound.get(key, other_folder),
                )
                if broker in partition.replicas
                else partition
            )
        )
        return self._changed(Changes(partitions=changed, brokers=(broker,)), value=incarnation)

    def _brokers_dead(self, command: pb.BrokersDead) -> Outcome:
        refused = self._not_in_office(command.office)
        if refused is not None:
            return refused
        dead: list[BrokerId] = []
        items: list[Code | None] = []
        for life in command.brokers:
            known = self._contents.brokers.get(BrokerId(life.broker))
            if known is None or not known.alive or known.incarnation != life.incarnation:
                items.append(Code.WRONG_INCARNATION)
                continue
            self._contents.brokers[known.id] = replace(known, alive=False)
            dead.append(known.id)
            items.append(None)
        if not dead:
            return self._unchanged(items=tuple(items))
        gone = tuple(sorted(dead))
        changed = self._sweep(
            lambda _, partition, stream: election.after_death(
                partition, gone, alive=self.is_alive, led=self._led, min_isr=stream.min_isr
            )
        )
        return self._changed(Changes(partitions=changed, brokers=gone), items=tuple(items))

    # Streams

    def _create_stream(self, command: pb.CreateStream) -> Outcome:
        refused = self._not_in_office(command.office) or self._check_new_stream(command)
        if refused is not None:
            return refused
        incarnation = Incarnation(self._next())
        names = [BrokerId(name) for name in command.brokers]
        partitions = {}
        for number, assignment in enumerate(command.assignments):
            replicas = tuple(names[index] for index in assignment.replicas)
            partitions[number] = Partition(
                incarnation=incarnation,
                replicas=replicas,
                leader=names[assignment.leader],
                isr=replicas,
                epoch=PartitionEpoch(1),
                leader_epoch=LeaderEpoch(1),
            )
        try:
            stream = Stream(
                name=StreamName(command.name),
                subject=command.subject,
                incarnation=incarnation,
                kind=command.kind or DEFAULT_KIND,
                config=stream_settings.with_defaults(command.config, self.defaults),
                replication_factor=command.replication_factor,
                partitioner=command.partitioner or DEFAULT_PARTITIONER,
                partitioning_version=1,
                layouts=(Layout(version=1, partitions=len(partitions)),),
                placement=command.placement or DEFAULT_PLACEMENT,
                leader_pin=command.leader_pin,
                partitions=partitions,
            )
            StreamConfig.from_strings(stream.config).check(stream.replication_factor)
        except TidelogError as error:
            return self._refuse(error.code, error.message)
        self._contents.streams[stream.name] = stream
        for partition in partitions.values():
            self._count(partition.leader, 1)
        return self._changed(
            Changes(partitions=tuple(stream.key(number) for number in sorted(partitions))), value=incarnation
        )

    def _check_new_stream(self, command: pb.CreateStream) -> Outcome | None:
        if not command.name or not command.subject:
            return self._refuse(Code.BAD_NAME, "a stream needs a name and a subject")
        if StreamName(command.name) in self._contents.streams:
            return self._refuse(
                Code.STREAM_EXISTS, f"stream {command.name} exists; choose another name or delete it first"
            )
        for _, other in sorted(self._contents.streams.items()):
            if overlaps(other.subject, command.subject):
                return self._refuse(
                    Code.SUBJECT_TAKEN,
                    f"subject {command.subject} overlaps {other.subject} of stream {other.name}; choose another one",
                )
        if not 1 <= len(command.assignments) <= MAX_PARTITIONS:
            return self._refuse(
                Code.BAD_CONFIG, f"{len(command.assignments)} partitions are outside 1 to {MAX_PARTITIONS}"
            )
        factor = command.replication_factor
        if not 1 <= factor <= MAX_REPLICAS:
            return self._refuse(
                Code.BAD_REPLICATION_FACTOR, f"replication factor {factor} is outside 1 to {MAX_REPLICAS}"
            )
        for name in command.brokers:
            if not self.is_alive(BrokerId(name)):
                return self._refuse(Code.UNAVAILABLE, f"broker {name} is not alive any more; try again")
        if len({*command.brokers}) != len(command.brokers):
            return self._refuse(Code.BAD_REQUEST, "a placement names a broker twice")
        for number, assignment in enumerate(command.assignments):
            replicas = tuple(assignment.replicas)
            if (
                len(replicas) != factor
                or len({*replicas}) != factor
                or max(replicas) >= len(command.brokers)
                or assignment.leader not in replicas
            ):
                return self._refuse(Code.BAD_REQUEST, f"partition {number} has an impossible placement")
        return None

    def _alter_stream(self, command: pb.AlterStream) -> Outcome:
        refused = self._not_in_office(command.office)
        if refused is not None:
            return refused
        stream = self._contents.streams.get(StreamName(command.name))
        if stream is None or stream.incarnation != command.incarnation:
            return self._no_stream(command.name)
        try:
            config = stream_settings.altered(
                stream.config,
                changes=command.set,
                unset=command.unset,
                defaults=self.defaults,
                replication_factor=stream.replication_factor,
            )
        except TidelogError as error:
            return self._refuse(error.code, error.message)
        if config == stream.config:
            return self._unchanged()
        changed = self._contents.streams[stream.name] = replace(stream, config=config)
        keys = tuple(changed.key(number) for number in sorted(changed.partitions))
        for key in keys:
            # Also where nothing but the settings changed: whoever sees that epoch has seen them.
            self._store(key, election.with_min_isr(changed.partitions[key.partition], changed.min_isr))
        return self._changed(Changes(partitions=keys))

    def _alter_cluster(self, command: pb.AlterCluster) -> Outcome:
        refused = self._not_in_office(command.office)
        if refused is not None:
            return refused
        try:
            defaults = stream_settings.altered_defaults(self.defaults, changes=command.set, unset=command.unset)
        except TidelogError as error:
            return self._refuse(error.code, error.message)
        if defaults == self.defaults:
            return self._unchanged()
        self._contents.cluster_config = defaults
        return self._changed()

    def _no_stream(self, name: str) -> Outcome:
        return self._refuse(
            Code.UNKNOWN_STREAM, f"stream {name} does not exist; `tidelog stream list` shows those that do"
        )

    def _delete_stream(self, command: pb.DeleteStream) -> Outcome:
        refused = self._not_in_office(command.office)
        if refused is not None:
            return refused
        stream = self._contents.streams.get(StreamName(command.name))
        if stream is None or stream.incarnation != command.incarnation:
            return self._no_stream(command.name)
        gone = tuple(stream.key(number) for number in sorted(stream.partitions))
        for partition in stream.partitions.values():
            self._count(partition.leader, -1)
        del self._contents.streams[stream.name]
        return self._changed(Changes(gone=gone))

    # Partitions

    def _alter_isr(self, command: pb.AlterIsr) -> Outcome:
        return self._each_partition(command.items, self._alter_one_isr)

    def _alter_one_isr(
        self, item: pb.IsrAlteration, partition: Partition, min_isr: int
    ) -> tuple[Code | None, Partition]:
        leader = BrokerId(item.leader)
        if partition.leader != leader or item.leader_epoch != partition.leader_epoch:
            return Code.FENCED_LEADER_EPOCH, partition
        if item.expected_epoch != partition.epoch:
            return Code.STALE_EPOCH, partition
        members = tuple(BrokerId(life.broker) for life in item.new_isr)
        if (
            len({*members}) != len(members)
            or leader not in members
            or any(m not in partition.replicas for m in members)
        ):
            return Code.BAD_REQUEST, partition
        for life in item.new_isr:
            member = BrokerId(life.broker)
            known = self._contents.brokers.get(member)
            seen = known is not None and known.incarnation == life.incarnation
            unseen_yet = life.incarnation == 0 and member in partition.isr
            if not (seen or unseen_yet) or not self.is_alive(member) or partition.is_withdrawn(member):
                # Over and done with: the raised epoch tells the leader, and outdates every copy still on its way.
                return Code.WRONG_INCARNATION, replace(partition, epoch=PartitionEpoch(partition.epoch + 1))
        changed = election.with_isr(partition, members, min_isr=min_isr)
        # The present ISR may be proposed too: that outdates whatever was proposed before.
        return None, replace(changed, epoch=PartitionEpoch(partition.epoch + 1))

    def _elect_leaders(self, command: pb.ElectLeaders) -> Outcome:
        refused = self._not_in_office(command.office)
        return refused if refused is not None else self._each_partition(command.items, self._elect_one)

    def _elect_one(self, item: pb.Election, partition: Partition, min_isr: int) -> tuple[Code | None, Partition]:
        if item.leader_epoch != partition.leader_epoch:
            return Code.FENCED_LEADER_EPOCH, partition
        able = tuple(broker for broker in election.candidates(partition, self.is_alive) if broker != partition.leader)
        if not able and not item.planned:
            # The leader is the last live ISR member. An eligible replica holds all that was committed.
            able = tuple(broker for broker in partition.eligible if self.is_alive(broker))
        target = BrokerId(item.target)
        if target:
            able = tuple(broker for broker in able if broker == target)
        if not able:
            return Code.NOT_ENOUGH_REPLICAS, partition
        chosen = min(able, key=lambda broker: (self.led_by(broker), partition.replicas.index(broker)))
        drop = None if item.planned else partition.leader
        return None, election.lead(partition, chosen, alive=self.is_alive, min_isr=min_isr, drop=drop)

    def _withdraw(self, command: pb.Withdraw) -> Outcome:
        return self._each_partition(command.items, self._withdraw_one)

    def _withdraw_one(
        self, item: pb.WithdrawReplica, partition: Partition, min_isr: int
    ) -> tuple[Code | None, Partition]:
        broker = BrokerId(item.broker)
        known = self._contents.brokers.get(broker)
        if known is None or known.incarnation != item.incarnation or broker not in partition.replicas:
            return Code.WRONG_INCARNATION, partition
        if item.expected_epoch != partition.epoch:
            return Code.STALE_EPOCH, partition
        return None, election.after_withdrawal(
            partition, broker, alive=self.is_alive, led=self._led, min_isr=min_isr, reason=item.reason or "unsound"
        )

    def _unclean_elect(self, command: pb.UncleanElect) -> Outcome:
        refused = self._not_in_office(command.office)
        if refused is not None:
            return refused
        key = key_of(command.partition)
        partition, broker = self.partition(key), BrokerId(command.broker)
        if partition is None:
            return self._refuse(Code.UNKNOWN_STREAM, f"partition {key} does not exist")
        if command.leader_epoch != partition.leader_epoch:
            return self._refuse(
                Code.FENCED_LEADER_EPOCH,
                f"partition {key} is at LeaderEpoch {partition.leader_epoch} by now; look again",
            )
        wrong = self.why_not_unclean(key, partition, broker)
        if wrong is not None:
            return self._refuse(Code.BAD_REQUEST, wrong)
        self._store(key, election.unclean(partition, broker))
        self._contents.unclean_elections += 1
        return self._changed(Changes(partitions=(key,)))

    def why_not_unclean(self, key: PartitionKey, partition: Partition, broker: BrokerId) -> str | None:
        """Why an operator may not let that replica lead whatever it lacks; None when that is possible."""
        if broker not in partition.replicas or not self.is_alive(broker):
            return f"broker {broker} is not a live replica of {key}; its replicas are {', '.join(partition.replicas)}"
        if partition.leader is not None and self.is_alive(partition.leader):
            return (
                f"partition {key} is led by {partition.leader}: an unclean election would give up committed records; "
                "it is for partitions that nobody can lead"
            )
        return None

    def _each_partition(
        self, items: Iterable[_Item], change: Callable[[_Item, Partition, int], tuple[Code | None, Partition]]
    ) -> Outcome:
        """Each item on its own: `change(item, partition, min_isr)` says how it ended and what the partition is then."""
        codes: list[Code | None] = []
        changed: dict[PartitionKey, None] = {}
        for item in items:
            key = key_of(item.partition)
            partition = self.partition(key)
            if partition is None:
                codes.append(Code.UNKNOWN_STREAM)
                continue
            code, after = change(item, partition, self._contents.streams[key.stream].min_isr)
            codes.append(code)
            if after != partition:
                self._store(key, after)
                changed[key] = None
        if not changed:
            return self._unchanged(items=tuple(codes))
        return self._changed(Changes(partitions=tuple(sorted(changed))), items=tuple(codes))

    # Producers

    def _allocate_producer_ids(self, command: pb.AllocateProducerIds) -> Outcome:
        """`value`: the first of `count` ids that nobody else has."""
        if not 1 <= command.count <= MAX_PRODUCER_IDS:
            return self._refuse(
                Code.BAD_REQUEST, f"{command.count} producer ids at once are outside 1 to {MAX_PRODUCER_IDS}"
            )
        first = self._contents.next_producer_id
        self._contents.next_producer_id += command.count
        return self._changed(value=first)
