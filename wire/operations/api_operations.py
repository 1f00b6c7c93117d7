"""The operations of the API, `<ns>.api.<name>` or `<ns>.api.<name>.<stream>`. Those of partitions and of transactions
are declared in modules beside this one; `OPERATIONS` has all of them.

An operation (`wire.operations.operation`) has a name, a request, an answer, and the facts on which access is decided:
whether it writes, and which stream it is about. The rest is made from that: the server's endpoints and the client's
call, which decode requests and answers by `wire.operations.json_codec`, and the table in docs/reference.md. Requests
are dataclasses; answers are TypedDicts, because users of the client and of `--json` see their JSON.

"Where a change begins" in docs/design.md says what else a new operation needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NotRequired, TypedDict

from wire.errors import Code
from wire.operations.broker_operations import BROKER_DRAIN, BROKER_LIST, BROKER_REMOVE
from wire.operations.operation import Operation
from wire.operations.partition_operations import (
    STREAM_DELETE_RECORDS,
    STREAM_PAUSE,
    STREAM_REPARTITION,
    STREAM_REPARTITION_CANCEL,
    STREAM_REPARTITION_STATUS,
    STREAM_RESUME,
    STREAM_SET_READONLY,
    RepartitionState,
    RepartitionStatus,
)
from wire.operations.reassignment_operations import (
    CLUSTER_MOVES,
    CLUSTER_REBALANCE,
    STREAM_ALTER_FACTOR,
    STREAM_REASSIGN,
    STREAM_REASSIGN_CANCEL,
)
from wire.operations.replica_operations import CLUSTER_RESTART_ORDER, REPLICA_LIST
from wire.operations.transaction_operations import (
    TRANSACTION_ABORT,
    TRANSACTION_COORDINATOR,
    TRANSACTION_DESCRIBE,
    TRANSACTION_LIST,
)

# ---- forms that several operations share ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Nothing:
    """A request without fields."""


class Done(TypedDict):
    """An answer without fields."""


PAGE: Final = 250
"""Limit of the streams, or of the partitions, that an answer describes for a request with a limit: it fits into a
message of 1 MiB."""


@dataclass(frozen=True, slots=True)
class StreamRef:
    name: str


class Damage(TypedDict):
    """A log that differs from the written one. Offsets are exclusive; None while the log was not read to its end."""

    reason: str
    sound_end: int | None
    known_end: int | None


class Quarantined(TypedDict):
    events: int
    """How often something was cut out of a log for damage."""
    latest: dict[str, Any] | None
    """The report of the last time; docs/storage.md has its fields."""


class Traffic(TypedDict):
    """What clients have sent to brokers and been sent by them, since these were started, and per second over the last
    minute. What replicas copy from one another is not in it."""

    records_in: int
    bytes_in: int
    """As they are stored: whole batches, compressed where they are."""
    records_out: int
    """Offsets of the batches that were sent: the offsets of records that compaction took, and of markers of
    transactions, count as well."""
    bytes_out: int
    records_in_per_s: float
    bytes_in_per_s: float
    records_out_per_s: float
    bytes_out_per_s: float


class ReplicaProgress(TypedDict):
    log_end_offset: int | None
    in_sync: bool
    damage: Damage | None
    quarantined: Quarantined | None
    stopped: str | None
    """Why it cannot copy from its leader until an operator does something."""
    bytes_on_disk: int | None
    """Bytes of the segments of its log; None, as `traffic`, while its broker does not answer."""
    traffic: Traffic | None


class WithdrawnReplica(TypedDict):
    replica: str
    reason: str


class ReassignmentForm(TypedDict):
    target: list[str]
    """The replicas that the partition is to have."""
    original: list[str]
    """Those that it had."""
    started: bool
    """The ones that are added copy; else it waits for its turn."""
    cancelled: bool
    """It goes back to the original ones."""


class PartitionDescription(TypedDict):
    partition: int
    incarnation: int
    state: str
    """"active", "draining" or "retired"."""
    leader: str | None
    replicas: list[str]
    isr: list[str]
    eligible: list[str]
    withdrawn: list[WithdrawnReplica]
    epoch: int
    leader_epoch: int
    paused: bool
    readonly: bool
    high_watermark: int | None
    """Last committed offset, -1 = none; None while the leader does not answer."""
    last_stable_offset: int | None
    """Exclusive end of what consumers read, unless they read uncommitted transactions; below the committed end while a
    transaction is open. None where it is not known."""
    log_start_offset: int | None
    log_end_offset: int | None
    not_heard: dict[str, list[str]]
    """Subjects of the partition that NATS does not let a broker subscribe to, by broker."""
    replicas_progress: dict[str, ReplicaProgress]
    bytes_on_disk: int | None
    """The sum over its replicas whose brokers answer; None: none does."""
    reassignment: NotRequired[ReassignmentForm]
    """It gets other replicas; `replicas` has both sets meanwhile."""


class LayoutForm(TypedDict):
    version: int
    partitions: int
    generation: int
    """The generation of the command that began it; 0: the stream's first."""
    starts: list[int]
    """As `wire.layouts.Layout.starts`."""


class StreamDescription(TypedDict):
    name: str
    subject: str
    incarnation: int
    kind: str
    partitioner: str
    """How producers that choose none spread keys."""
    partitioning_version: int
    replication_factor: int
    config: dict[str, str]
    partitions: list[PartitionDescription]
    """Also those that are made ready for the next layout, and those that earlier ones have left behind."""
    layouts: list[LayoutForm]
    """Oldest first."""
    repartition: RepartitionState | None
    """None: none is under way."""
    refusals: dict[str, str]
    """Why brokers could not describe their replicas, by broker."""
    bytes_on_disk: int | None
    """The sum over all replicas whose brokers answer; None, as `traffic`: no broker does."""
    traffic: Traffic | None
    notes: NotRequired[list[str]]
    """Sentences for whoever has just created the stream, on how its replicas were placed."""
    next: NotRequired[int]
    """There are partitions from this number on that are not in `partitions`, `bytes_on_disk`, `traffic` and `refusals`.
    """


# ---- streams -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateStreamRequest:
    name: str
    subject: str | None = None
    """None: the name."""
    partitions: int = 1
    replication_factor: int | None = None
    """None: the cluster's default."""
    config: dict[str, str] = field(default_factory=dict)
    partitioner: str | None = None
    """One of `wire.layouts.PARTITIONERS`; None: the first of them."""


STREAM_CREATE = Operation(
    name="stream.create",
    request=CreateStreamRequest,
    answer=StreamDescription,
    help="create a stream; answered when its leaders serve, or after 3 s, with 250 of its partitions at most",
    writes=True,
    stream="name",
    refusals=(
        Code.STREAM_EXISTS,
        Code.SUBJECT_TAKEN,
        Code.BAD_NAME,
        Code.BAD_SUBJECT,
        Code.BAD_CONFIG,
        Code.BAD_REPLICATION_FACTOR,
        Code.NOT_ENOUGH_BROKERS,
        Code.LIMIT_REACHED,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterStreamRequest:
    name: str
    config: dict[str, str] = field(default_factory=dict)
    unset: list[str] = field(default_factory=list)


STREAM_ALTER = Operation(
    name="stream.alter",
    request=AlterStreamRequest,
    answer=StreamDescription,
    help="change settings of a stream; answered with 250 of its partitions at most",
    writes=True,
    stream="name",
    refusals=(Code.UNKNOWN_STREAM, Code.BAD_CONFIG),
)

STREAM_DELETE = Operation(
    name="stream.delete",
    request=StreamRef,
    answer=Done,
    help="delete a stream with all its records",
    writes=True,
    stream="name",
    refusals=(Code.UNKNOWN_STREAM,),
)


@dataclass(frozen=True, slots=True)
class DescribeStreamRequest:
    name: str
    first: int = 0
    """Only the partitions from this number on."""
    limit: int = 0
    """At most so many partitions, and no more than PAGE; 0: all."""


STREAM_DESCRIBE = Operation(
    name="stream.describe",
    request=DescribeStreamRequest,
    answer=StreamDescription,
    help="a stream, its settings, and leaders, ISRs and offsets of its partitions",
    writes=False,
    stream="name",
    refusals=(Code.UNKNOWN_STREAM,),
)


class StreamSummary(TypedDict):
    name: str
    subject: str
    partitions: int
    replication_factor: int
    config: dict[str, str]
    bytes_on_disk: NotRequired[int | None]
    """The sum over all replicas whose brokers answer; None, as `traffic`: none does. Both are missing where `usage` was
    not asked for."""
    traffic: NotRequired[Traffic | None]


class StreamList(TypedDict):
    streams: list[StreamSummary]
    unanswered: list[str]
    """Brokers whose replicas are not in `bytes_on_disk` and `traffic`."""
    next: NotRequired[str]
    """There are more streams: those after this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListStreamsRequest:
    internal: bool = False
    """With Tidelog's own streams."""
    after: str = ""
    """Only streams whose names come after this one; empty: from the first one on."""
    limit: int = 0
    """At most so many streams, and no more than PAGE; 0: all."""
    usage: bool = False
    """With `bytes_on_disk` and `traffic`, for which all brokers are asked."""


STREAM_LIST = Operation(
    name="stream.list",
    request=ListStreamsRequest,
    answer=StreamList,
    help="all streams with their settings; with `usage` what they take up, and their traffic",
    writes=False,
)


@dataclass(frozen=True, slots=True)
class MetadataRequest:
    stream: str


class PartitionRoute(TypedDict):
    partition: int
    incarnation: int
    leader: str | None
    isr: list[str]
    leader_epoch: int
    epoch: int
    state: str


class StreamRoutes(TypedDict):
    name: str
    subject: str
    incarnation: int
    kind: str
    partitioner: str
    partitioning_version: int
    routing_generation: int
    """At which leaders, partitions or layouts of the stream last changed."""
    layouts: list[LayoutForm]
    """Oldest first; the last one is that of `partitioning_version`."""
    replication_factor: int
    config: dict[str, str]
    generation: int
    partitions: list[PartitionRoute]


class Topology(TypedDict):
    cluster_id: str
    generation: int
    """The generation of the state that the broker had applied when it began the answer."""
    home_broker: str
    """The broker that answers. It takes the client's reports of adoption (`wire.operations.adoption_report`)."""
    streams: list[StreamRoutes]
    """By name, ascending; those that were asked for and do not exist there are missing."""
    too_large: list[str]
    """Streams of this page whose routes NATS cannot carry in a message. `max_payload` of its server has to be raised.
    """
    next: str | None
    """Ask again with it as `after`: there are more. None: that was all."""
    racks: NotRequired[dict[str, str]]
    """The racks of the replicas that have one, by broker, as they last said: in answers of the controller, which alone
    knows them."""


METADATA = Operation(
    name="metadata",
    request=MetadataRequest,
    answer=Topology,
    help="leaders, ISRs and incarnations, with which a client reaches each partition of a stream",
    writes=False,
    stream="stream",
    refusals=(Code.UNKNOWN_STREAM,),
)


class ProducerIdentity(TypedDict):
    producer_id: int
    producer_epoch: int
    key: str
    """In hex: what proves that a batch comes from whom the id was given to (`wire.security.producer_keys`)."""


PRODUCER_INIT = Operation(
    name="producer.init",
    request=Nothing,
    answer=ProducerIdentity,
    help="an id that no other producer has",
    writes=False,
    gives_once=True,
)


# ---- partitions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MoveLeaderRequest:
    stream: str
    partition: int
    broker: str


class MovedPartition(PartitionDescription):
    stream: str


PARTITION_MOVE_LEADER = Operation(
    name="partition.move_leader",
    request=MoveLeaderRequest,
    answer=MovedPartition,
    help="let a member of the ISR lead in place of the present leader",
    writes=True,
    stream="stream",
    refusals=(Code.UNKNOWN_STREAM, Code.LEADER_NOT_MOVED),
    time_s=15.0,
)


@dataclass(frozen=True, slots=True)
class PartitionRef:
    stream: str
    partition: int


class ReplicaEvent(TypedDict):
    seconds_ago: float
    time: str
    """ISO-8601, UTC, by the clock that its broker has now."""
    event: str
    """As a sentence."""
    times: int
    """How often it happened, with no other event in between."""


class ReplicaHistory(TypedDict):
    broker: str
    leads: bool
    state: str
    """"isr", "eligible", "withdrawn" or "out of sync"."""
    events: list[ReplicaEvent] | None
    """The last fifty in this life of the broker, oldest first; None when the broker does not answer."""


class PartitionHistory(TypedDict):
    stream: str
    partition: int
    replicas: list[ReplicaHistory]


PARTITION_HISTORY = Operation(
    name="partition.history",
    request=PartitionRef,
    answer=PartitionHistory,
    help="the last events of each replica: roles, changes of the ISR, cuts, failures",
    writes=False,
    stream="stream",
    refusals=(Code.UNKNOWN_STREAM,),
)


@dataclass(frozen=True, slots=True)
class UncleanElectionRequest:
    stream: str
    partition: int
    broker: str
    accept_loss: bool = False


class OtherReplica(TypedDict):
    broker: str
    alive: bool
    state: str
    """"isr", "eligible", "withdrawn" or "out of sync"."""
    log_end_offset: int | None


class Loss(TypedDict):
    stream: str
    partition: int
    broker: str
    state: str
    log_start_offset: int | None
    log_end_offset: int | None
    """The log end offset of the replica that is chosen, as `high_watermark` (inclusive, -1 = none); None when it does
    not tell."""
    high_watermark: int | None
    damage: Damage | None
    others: list[OtherReplica]
    loss: str
    """The records that are given up, as a sentence."""


class UncleanElection(Loss):
    elected: bool


PARTITION_UNCLEAN_ELECT = Operation(
    name="partition.unclean_elect",
    request=UncleanElectionRequest,
    answer=UncleanElection,
    help="the loss if a replica leads that may lack committed records; with `accept_loss` it leads",
    writes=True,
    stream="stream",
    refusals=(Code.UNKNOWN_STREAM, Code.FENCED_LEADER_EPOCH),
)


# ---- consumer groups -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupRef:
    group: str


class GroupCoordinator(TypedDict):
    partition: int
    """The partition of the internal stream `__groups`; its leader is the coordinator."""


GROUP_COORDINATOR = Operation(
    name="group.coordinator",
    request=GroupRef,
    answer=GroupCoordinator,
    help="where the coordinator of a consumer group or a cursor is; makes the internal stream for it if need be",
    writes=False,
    refusals=(Code.BAD_NAME, Code.NOT_ENOUGH_BROKERS, Code.STREAM_EXISTS),
)


class GroupSummary(TypedDict):
    name: str
    state: str
    """"empty", "stable" or "reconciling" (partitions wait for a member to give them up)."""
    generation: int
    members: int
    streams: list[str]
    """To which members have subscribed, or of which offsets are committed."""


class GroupList(TypedDict):
    groups: list[GroupSummary]
    """By name."""
    unanswered: list[int]
    """Partitions of `__groups` whose coordinators did not answer: their groups are missing."""


GROUP_LIST = Operation(
    name="group.list",
    request=Nothing,
    answer=GroupList,
    help="all consumer groups",
    writes=False,
)


class GroupMember(TypedDict):
    id: str
    instance: str
    """Name of a static member; else empty."""
    client: str
    subscription: list[str]
    """Streams and patterns."""
    generation: int
    assigned: dict[str, list[int]]
    """Partitions by stream."""
    revoking: dict[str, list[int]]
    """That it has not given up yet."""
    parted: bool
    """A static member that has ended, and may come back until its session ends."""


class GroupOffset(TypedDict):
    stream: str
    incarnation: int
    """Life of the stream."""
    partition: int
    offset: int
    """The next one to read."""
    metadata: str
    committed_at_ns: int


class PendingGroupOffset(TypedDict):
    """That a transaction commits, if it is committed."""

    producer_id: int
    stream: str
    incarnation: int
    """Life of the stream."""
    partition: int
    offset: int


class GroupDescription(GroupSummary):
    coordinator: str
    """Id of the broker."""
    partition: int
    """The partition of `__groups`."""
    details: list[GroupMember]
    offsets: list[GroupOffset]
    """By stream and partition."""
    pending: list[PendingGroupOffset]
    """By producer. While there are some, the offsets are neither told to consumers nor reset."""
    left_out: int
    """Partitions of what the members subscribe to that are beyond the limit of a group: no member gets them."""


GROUP_DESCRIBE = Operation(
    name="group.describe",
    request=GroupRef,
    answer=GroupDescription,
    help="a consumer group's members, their partitions, and what is committed",
    writes=False,
    group="group",
    refusals=(Code.UNKNOWN_GROUP, Code.BAD_NAME),
)


class NewOffset(TypedDict):
    stream: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class ResetGroupRequest:
    group: str
    offsets: list[NewOffset]


GROUP_RESET = Operation(
    name="group.reset",
    request=ResetGroupRequest,
    answer=GroupDescription,
    help="commit other offsets for a consumer group without members",
    writes=True,
    group="group",
    refusals=(Code.GROUP_NOT_EMPTY, Code.WRONG_INCARNATION, Code.BAD_NAME),
)

GROUP_DELETE = Operation(
    name="group.delete",
    request=GroupRef,
    answer=Done,
    help="forget a consumer group without members, and what it has committed",
    writes=True,
    group="group",
    refusals=(Code.GROUP_NOT_EMPTY, Code.UNKNOWN_GROUP, Code.BAD_NAME),
)


# ---- the cluster ---------------------------------------------------------------------------------------------------


class SpaceStatus(TypedDict):
    """A broker's disk, in bytes."""

    room: str
    """"ample", "short" (leaderships are handed over) or "full" (no records are taken)."""
    free_bytes: int
    total_bytes: int
    min_free_bytes: int


class DiskStatus(TypedDict):
    """Whether a broker's disk answers."""

    hangs: bool
    """A sync has not returned for longer than `replica_max_lag_time`: leaderships are handed over."""
    waited_s: float
    """For how long the oldest sync or checkpoint has been waiting for the disk."""


class ClockStatus(TypedDict):
    """Whether a broker may forget for age (R72)."""

    state: str
    """"agreed": it may. "settling": it may soon. "off": its clock differs from that of most brokers. "apart": no
    majority of the clocks agrees. "unknown": it has not heard of a controller lately."""
    ahead_ms: int
    """By how much it is ahead of the time on which most brokers agree; below 0: behind."""


class PublishGap(TypedDict):
    """A time for which plain publishes to partitions led by a broker may have been lost."""

    began_ns: int
    ended_ns: int | None
    """None: it lasts. Both since 1970."""
    partitions: int
    """That it led, those of internal streams left out: clients publish nothing to them."""
    reason: str


class MissingPermissions(TypedDict):
    """What NATS does not let a broker's login do; at most 20 subjects of a kind."""

    subscriptions: int
    """How many it needs and does not have."""
    subscribe: list[str]
    """Their subjects."""
    publish: list[str]
    """Subjects of messages that were refused in the last minute."""


class BrokerStatus(TypedDict):
    id: str
    alive: bool
    incarnation: int
    voter: bool
    zone: NotRequired[str]
    """Where it runs; empty: not given. Missing, as `tags`, in answers of versions before it."""
    tags: NotRequired[list[str]]
    draining: NotRequired[bool]
    """It gets no replicas, and those that it has go to others. Missing as well."""
    leaders: int
    replicas: int
    """Both without internal streams, as `streams` and `partitions` of the cluster are."""
    internal_leaders: int
    internal_replicas: int
    labels: dict[str, str]
    failed: list[str] | None
    """Partitions whose replica there is unsound; None, as all below, while the broker does not answer."""
    damaged: list[str] | None
    """The failed ones with a damaged log: they are repaired from the others, if there are any."""
    counters: dict[str, int] | None
    """Records and requests that it took in or dropped, since it started."""
    bytes_on_disk: int | None
    """Bytes of the segments of all its logs, those of internal streams included."""
    traffic: Traffic | None
    """Without that of internal streams."""
    disk: DiskStatus | None
    space: SpaceStatus | None
    clock: ClockStatus | None
    publish_gaps: list[PublishGap] | None
    """The newest; the counter of that name has all."""
    refused_messages: dict[str, dict[str, int]] | None
    """Messages on the subjects of brokers that no broker of the cluster has sent, by kind of subject and reason."""
    not_permitted: MissingPermissions | None
    """What NATS does not let its login do."""
    secrets: list[str] | None
    """Fingerprints of the cluster's secrets that it holds, the one in use first."""
    tasks: int | None
    """That run on its event loop."""
    refusal: str | None
    """Why the broker could not tell its status."""


class ClusterDefaults(TypedDict):
    config: dict[str, str]
    """Settings of the cluster, and settings that new streams get where they bring none of their own."""


class OfflinePartition(TypedDict):
    partition: str
    """stream/partition"""
    waits_for: list[str]
    """Brokers whose replicas may lead: the first of them that starts with its data folder does. Empty where no sound
    replica is left."""
    other_folder: list[str]
    """Those of them that have started with another data folder since."""
    reasons: list[str]
    """Why replicas are withdrawn that are not among these."""


class OtherCluster(TypedDict):
    """A cluster that should not be in this namespace."""

    cluster_id: str
    broker: str
    """Sender of the last message."""
    heard_seconds_ago: float


class ClusterId(TypedDict):
    cluster_id: str


CLUSTER_ID = Operation(
    name="cluster.id",
    request=Nothing,
    answer=ClusterId,
    help="which cluster it is; answers carry that in the header `Tidelog-Cluster`, too",
    writes=False,
)


class Lag(TypedDict):
    """A follower that does not have all that its leader has."""

    stream: str
    partition: int
    broker: str
    """The follower's."""
    leader: str
    lag_records: int
    lag_bytes: int
    lag_s: float
    """Seconds since it had all."""


class ClusterStatus(ClusterDefaults):
    cluster_id: str
    other_clusters: list[OtherCluster]
    controller: str | None
    controller_epoch: int
    generation: int
    brokers: list[BrokerStatus]
    streams: int
    """Without Tidelog's own, as `partitions`; those below count them, too."""
    partitions: int
    internal_streams: int
    """Tidelog's own."""
    internal_partitions: int
    offline_partitions: int
    offline: list[OfflinePartition]
    """The first hundred of them."""
    under_replicated: int
    under_replicated_partitions: list[str]
    """As `stream/partition`, the first hundred."""
    unclean_elections: int
    leader_thrash: NotRequired[int]
    """Leaderships that were lost again within 30 s of going back to their preferred leaders, as this controller has
    counted since it started."""
    topology_generation: int
    """At which leaders, partitions or layouts of some stream last changed."""
    repartitions: list[RepartitionStatus]
    """The repartitions of the streams that are being repartitioned; the first hundred."""
    lags: list[Lag]
    """The followers that are furthest behind, ten at most; the worst first."""


CLUSTER_STATUS = Operation(
    name="cluster.status",
    request=Nothing,
    answer=ClusterStatus,
    help="the brokers, and how many partitions are in trouble",
    writes=False,
)


@dataclass(frozen=True, slots=True)
class BrokerRef:
    broker: str


class HeldReplica(TypedDict):
    stream: str
    partition: int
    leads: bool
    state: str
    """"isr", "eligible", "withdrawn" or "out of sync"."""
    isr: list[str]
    min_isr: int
    bytes_on_disk: int | None
    """Bytes of the segments of its log; None while the broker does not answer."""


class BrokerDescription(BrokerStatus):
    held: list[HeldReplica]
    """By stream and partition."""


BROKER_DESCRIBE = Operation(
    name="broker.describe",
    request=BrokerRef,
    answer=BrokerDescription,
    help="a broker as in `cluster.status`, and each replica that it holds",
    writes=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterClusterRequest:
    config: dict[str, str] = field(default_factory=dict)
    unset: list[str] = field(default_factory=list)


CLUSTER_ALTER = Operation(
    name="cluster.alter",
    request=AlterClusterRequest,
    answer=ClusterDefaults,
    help="change settings of the cluster, and those that new streams get where they bring none of their own",
    writes=True,
    refusals=(Code.BAD_CONFIG,),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceLeadersRequest:
    dry_run: bool = False
    """Only say what would move."""


class AwayLeader(TypedDict):
    partition: str
    """stream/partition"""
    leader: str | None
    preferred: str
    obstacle: str
    """Why the preferred leader cannot lead now; empty: it can."""


class RebalancedLeaders(TypedDict):
    moving: int
    """Leaderships that go to the preferred leaders now, some at a time; with `dry_run`, those that could."""
    left: int
    """Partitions whose preferred leaders cannot lead now."""
    partitions: list[AwayLeader]
    """The first 250 of both, those that move first."""


CLUSTER_REBALANCE_LEADERS = Operation(
    name="cluster.rebalance_leaders",
    request=RebalanceLeadersRequest,
    answer=RebalancedLeaders,
    help="let the preferred leaders of all partitions lead, now; answered before the moves have ended",
    writes=True,
)


_HERE = [each for each in [*globals().values()] if isinstance(each, Operation)]
_OF_PARTITIONS = (STREAM_SET_READONLY, STREAM_PAUSE, STREAM_RESUME, STREAM_DELETE_RECORDS)
_OF_REPARTITIONS = (STREAM_REPARTITION, STREAM_REPARTITION_STATUS, STREAM_REPARTITION_CANCEL)
_OF_REPLICAS = (REPLICA_LIST, CLUSTER_RESTART_ORDER)
_OF_BROKERS = (BROKER_LIST, BROKER_REMOVE, BROKER_DRAIN)
_OF_REASSIGNMENTS = (
    STREAM_REASSIGN,
    STREAM_REASSIGN_CANCEL,
    STREAM_ALTER_FACTOR,
    CLUSTER_MOVES,
    CLUSTER_REBALANCE,
)
_OF_TRANSACTIONS = (TRANSACTION_COORDINATOR, TRANSACTION_LIST, TRANSACTION_DESCRIBE, TRANSACTION_ABORT)

OPERATIONS: Mapping[str, Operation[..., Any, Any]] = {
    operation.name: operation
    for group in (
        _HERE,
        _OF_PARTITIONS,
        _OF_REPARTITIONS,
        _OF_REASSIGNMENTS,
        _OF_REPLICAS,
        _OF_BROKERS,
        _OF_TRANSACTIONS,
    )
    for operation in group
}
"""By name."""
