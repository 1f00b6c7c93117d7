"""The permissions that each role needs of NATS: the subjects that it publishes to and subscribes to, and nothing more.

Declared here once. The matrix in docs/reference.md, the configuration that `tidelog security nats-config` prints, and
the tests that try each subject against a real nats-server are made from it.

A client's role decides the operations of its user on the streams it is given for: NATS enforces it on the subjects, and
the API takes no request whose subject names another stream than its body (`tidelog.server.api.json_api`). Its answers
come below an inbox prefix of its own. With `account` set, the user is in another account than the brokers, which export
what it needs as services: NATS then answers through subjects of its own, `_R_.…`, in the brokers' account.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from wire.errors import Code, TidelogError
from wire.internal_records import transaction_records
from wire.internal_records.group_records import DISCOVER, KINDS, check_group_name
from wire.internal_streams import ACTIVITY, AUDIT, GROUPS, TRANSACTIONS, InternalStream
from wire.layouts import check_partition_count
from wire.operations import api_operations as op
from wire.operations.operation import Operation
from wire.operations.transaction_operations import TRANSACTION_COORDINATOR
from wire.subjects import (
    DEFAULT_INBOX_PREFIX,
    Subjects,
    check_broker_id,
    check_captured,
    check_inbox_prefix,
    check_stream_name,
    ingest_subject,
)
from wire.types import BrokerId, StreamName

ANY_BROKER: Final = BrokerId("*")
ANY_STREAM: Final = StreamName("*")
ANY_GROUP: Final = "*"
ANY_TRANSACTIONAL_ID: Final = "*"
ANY_PARTITION: Final = "*"
_GROUPS: Final = StreamName(GROUPS.name)
_TRANSACTIONS: Final = StreamName(TRANSACTIONS.name)
SERVICE_REPLIES: Final = "_R_.>"
"""Subjects on which a service of one account answers requests from another account."""


class Role(enum.Enum):
    BROKER = "broker"
    ADMIN = "admin"
    PRODUCER = "producer"
    CONSUMER = "consumer"
    SPARK = "spark"
    MONITORING = "monitoring"


OF_STREAMS: Final = frozenset({Role.PRODUCER, Role.CONSUMER, Role.SPARK})
"""Roles whose permissions are for streams by name."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A subject, with NATS' wildcards: `*` for one token, `>` for all that follow."""

    subject: str
    purpose: str
    asks_many: bool = False
    """Several brokers, or services, answer one request."""
    is_pushed: bool = False
    """Brokers publish there unasked."""


@dataclass(frozen=True, slots=True)
class Permissions:
    publish: tuple[Grant, ...]
    subscribe: tuple[Grant, ...]

    def __or__(self, other: Permissions) -> Permissions:
        return Permissions(_once(self.publish + other.publish), _once(self.subscribe + other.subscribe))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The objects that permissions are for. Checked by `permissions_of`."""

    namespace: str = "tidelog"
    streams: tuple[str, ...] = ()
    """Names of streams; empty: all, for roles that may have all."""
    subjects: tuple[str, ...] = ()
    """Subjects of these streams, for plain publishes without Tidelog's client. Of a broker: the subjects that streams
    may capture, with wildcards."""
    partitions: int = 1
    """Number of partitions of the streams on a producer's `subjects`, 1 to MAX_PARTITIONS. Each is granted by its
    number, because a wildcard would reach streams of others: `orders.*` matches `orders.eu`."""
    inbox_prefix: str = DEFAULT_INBOX_PREFIX
    """A client's own prefix; of a broker: the prefix below which clients have theirs."""
    broker: str = ANY_BROKER
    """The broker whose user it is; "*": all brokers share one."""
    groups: tuple[str, ...] = ()
    """For a consumer or a Spark job: its consumer groups and cursors, "*" for all. For a producer with
    `transactional_ids`: the groups whose offsets its transactions commit."""
    discovers: bool = False
    """The members of `groups` may subscribe by pattern; their answers name all streams that match."""
    transactional_ids: tuple[str, ...] = ()
    """Transactional ids under which a producer may begin transactions in its `streams`, "*" for all."""
    across_accounts: bool = False
    """Some clients are in other accounts than the brokers."""


def permissions_of(role: Role, scope: Scope) -> Permissions:
    """Returns the permissions. Raises TidelogError for a scope that the role cannot have."""
    subjects = Subjects(scope.namespace)
    streams = [check_stream_name(stream) for stream in scope.streams]
    check_inbox_prefix(scope.inbox_prefix, scope.namespace)
    if role is Role.BROKER:
        return _broker(subjects, scope)
    if role in OF_STREAMS and not streams:
        raise TidelogError(Code.BAD_CONFIG, f"a {role.value} is given permission for streams; name them with --stream")
    of_client = {
        Role.ADMIN: _admin,
        Role.PRODUCER: _producer,
        Role.CONSUMER: _consumer,
        Role.SPARK: _consumer,
        Role.MONITORING: _monitoring,
    }[role]
    granted = [*of_client(subjects, streams, scope)]
    publish = [grant for grant in granted if not grant.is_pushed]
    inbox = Grant(f"{scope.inbox_prefix}.>", "its inboxes")
    return Permissions(_once(publish), (inbox, *_once(grant for grant in granted if grant.is_pushed)))


# ---- clients -------------------------------------------------------------------------------------------------------


def _every_client(subjects: Subjects) -> Iterator[Grant]:
    yield Grant(subjects.api(op.CLUSTER_ID.name), "which cluster it is")
    yield Grant(subjects.presence(), "which brokers are connected, when no controller answers", asks_many=True)


def _routes(subjects: Subjects, streams: list[StreamName]) -> Iterator[Grant]:
    for stream in streams:
        yield Grant(subjects.topology(stream), "its leaders and layouts, from any broker")
        yield Grant(subjects.push(stream), "routes that have changed", is_pushed=True)
    yield Grant(subjects.adopt(ANY_BROKER), "which routes it has applied")


def _operations(
    subjects: Subjects, wanted: Iterable[Operation[..., Any, Any]], streams: list[StreamName]
) -> Iterator[Grant]:
    for operation in wanted:
        named: list[Any] = (
            [ANY_GROUP] if operation.group else [ANY_TRANSACTIONAL_ID] if operation.transaction else [None]
        )
        for name in (streams or [ANY_STREAM]) if operation.stream else named:
            yield Grant(subjects.api(operation.name, name), operation.help)


def _admin(subjects: Subjects, streams: list[StreamName], _: Scope) -> Iterator[Grant]:
    yield Grant(subjects.presence(), "which brokers are connected, when no controller answers", asks_many=True)
    wanted = [each for each in op.OPERATIONS.values() if each is not op.PRODUCER_INIT]
    if streams:  # operations on the whole cluster are granted if they only read
        wanted = [each for each in wanted if each.stream or not each.writes]
    yield from _operations(subjects, wanted, streams)
    if not streams:
        yield from _records_of(subjects, AUDIT, "the audit trail")
        yield from _records_of(subjects, ACTIVITY, "what happened in the cluster")


def _records_of(subjects: Subjects, stream: InternalStream, purpose: str) -> Iterator[Grant]:
    name = StreamName(stream.name)
    yield from _routes(subjects, [name])
    yield Grant(subjects.fetch(name, ANY_PARTITION), f"{purpose}, from the leader")
    yield Grant(subjects.fetch_from(name, ANY_PARTITION, ANY_BROKER), "the same, from a replica")


def _producer(subjects: Subjects, streams: list[StreamName], scope: Scope) -> Iterator[Grant]:
    yield from _every_client(subjects)
    yield from _routes(subjects, streams)
    yield from _operations(subjects, [op.METADATA, op.PRODUCER_INIT], streams)
    for stream in streams:
        yield Grant(subjects.append(stream, ANY_PARTITION), "its batches")
        yield Grant(subjects.leader(stream, ANY_PARTITION), "whether the leader is there; no records")
    if scope.transactional_ids:
        yield from _operations(subjects, [TRANSACTION_COORDINATOR], streams)
    for given in scope.transactional_ids:
        name = given if given == ANY_TRANSACTIONAL_ID else transaction_records.check_family(given)
        added: dict[str, list[str]] = {
            transaction_records.ADD_PARTITIONS: [*streams],
            transaction_records.ADD_OFFSETS: [*map(_checked_group, scope.groups)],
        }
        for kind in transaction_records.KINDS:
            for names in [[name, each] for each in added[kind]] if kind in added else [[name]]:
                subject = subjects.coordinator(_TRANSACTIONS, ANY_PARTITION, kind, *names)
                yield Grant(subject, f"{kind} of transactions under that id")
    check_partition_count(scope.partitions)
    for subject in map(subjects.check_subject, scope.subjects):
        for partition in range(scope.partitions):
            yield Grant(ingest_subject(subject, partition), f"plain publishes to partition {partition}")


def _consumer(subjects: Subjects, streams: list[StreamName], scope: Scope) -> Iterator[Grant]:
    yield from _every_client(subjects)
    yield from _routes(subjects, streams)
    yield from _operations(subjects, [op.METADATA], streams)
    for stream in streams:
        yield Grant(subjects.fetch(stream, ANY_PARTITION), "records and positions, from the leader")
        yield Grant(subjects.fetch_from(stream, ANY_PARTITION, ANY_BROKER), "records, from a replica")
    if scope.groups:
        yield from _operations(subjects, [op.GROUP_COORDINATOR], streams)
    for group in scope.groups:
        for kind in KINDS:
            if kind == DISCOVER and not scope.discovers:
                continue
            subject = subjects.coordinator(_GROUPS, ANY_PARTITION, kind, _checked_group(group))
            yield Grant(subject, f"{kind} of a group or cursor")


def _checked_group(name: str) -> str:
    return name if name == ANY_GROUP else check_group_name(name)


def _monitoring(subjects: Subjects, streams: list[StreamName], _: Scope) -> Iterator[Grant]:
    yield Grant(subjects.presence(), "which brokers are connected, when no controller answers", asks_many=True)
    reads = [each for each in op.OPERATIONS.values() if not each.writes and each is not op.PRODUCER_INIT]
    yield from _operations(subjects, reads, streams)
    if not streams:
        yield from _records_of(subjects, ACTIVITY, "what happened in the cluster")
    for verb in ("PING", "INFO", "STATS"):
        for named in ("", ".tidelog", ".tidelog.*"):
            yield Grant(f"$SRV.{verb}{named}", "`nats micro`", asks_many=True)


# ---- brokers -------------------------------------------------------------------------------------------------------


def _broker(subjects: Subjects, scope: Scope) -> Permissions:
    if not scope.subjects:
        raise TidelogError(
            Code.BAD_CONFIG,
            "a broker needs permission for the subjects that streams capture; name them with --subject, such as"
            " orders, 'app.>', or '>' for all",
        )
    broker = BrokerId(scope.broker)
    if broker != ANY_BROKER:
        check_broker_id(broker)
    ns = subjects.namespace
    from_followers = [
        Grant(subjects.replicate(ANY_STREAM, ANY_PARTITION), "followers ask the leader for records"),
        Grant(subjects.offset(ANY_STREAM, ANY_PARTITION), "followers reconcile with the leader"),
        Grant(subjects.snapshot(ANY_STREAM, ANY_PARTITION), "followers ask the leader for derived state"),
    ]
    from_writers = [
        Grant(subjects.write(ANY_STREAM, ANY_PARTITION), "brokers append to Tidelog's own streams"),
        Grant(subjects.last(ANY_STREAM, ANY_PARTITION), "brokers ask for the last record of such a stream"),
    ]
    from_coordinators = [
        Grant(subjects.mark(ANY_STREAM, ANY_PARTITION), "coordinators of transactions end them in a partition")
    ]
    to_coordinators = [
        Grant(subjects.coordinate(_GROUPS, ANY_PARTITION), "the controller asks coordinators of groups"),
        Grant(subjects.coordinate(_TRANSACTIONS, ANY_PARTITION), "the controller asks coordinators of transactions"),
    ]
    to_controller = [
        Grant(subjects.cluster(), "to which cluster brokers belong"),
        Grant(subjects.controller(), "brokers ask the controller for changes of partitions"),
    ]

    def told_to(to: BrokerId) -> list[Grant]:
        return [
            Grant(subjects.notify(to), "leaders wake a follower"),
            Grant(subjects.packed(to), "several messages to a broker as one"),
            Grant(subjects.parked(to), "brokers ask whether their followers' fetches wait there"),
            Grant(subjects.probe(to), "the controller asks whether a broker lives"),
            Grant(subjects.drain(to), "the controller asks a leader to hand over"),
            Grant(subjects.broker_status(to), "the controller asks a broker for its status"),
        ]

    publish = [
        *from_followers,
        *from_writers,
        *from_coordinators,
        *to_coordinators,
        *to_controller,
        *told_to(ANY_BROKER),
        Grant(subjects.push(ANY_STREAM), "the controller tells clients routes that have changed"),
        Grant(f"{ns}.inbox.>", "answers to brokers"),
        Grant(f"{scope.inbox_prefix}.>", "answers to clients"),
        Grant("$SRV.INFO", "which services listen where, before a stream is created"),
        Grant("$JS.API.STREAM.NAMES", "which JetStream streams capture a subject, before a stream is created on it"),
    ]
    if scope.across_accounts:
        publish.append(Grant(SERVICE_REPLIES, "answers to clients in other accounts"))
    subscribe = [
        Grant(f"{subjects.broker_inbox(broker)}.>", "its inboxes"),
        *from_followers,
        *from_writers,
        *from_coordinators,
        *to_coordinators,
        *to_controller,
        *told_to(broker),
        Grant(subjects.append(ANY_STREAM, ANY_PARTITION), "batches of producers"),
        Grant(subjects.fetch(ANY_STREAM, ANY_PARTITION), "consumers"),
        Grant(subjects.fetch_from(ANY_STREAM, ANY_PARTITION, broker), "consumers that read from this replica"),
        Grant(subjects.leader(ANY_STREAM, ANY_PARTITION), "producers ask whether the leader is there"),
        *(
            Grant(subjects.coordinator(_GROUPS, ANY_PARTITION, kind, "*"), f"{kind} of groups and cursors")
            for kind in KINDS
        ),
        *(
            Grant(
                subjects.coordinator(
                    _TRANSACTIONS, ANY_PARTITION, kind, *["*"] * (1 + (kind in transaction_records.ADDS))
                ),
                f"{kind} of transactions",
            )
            for kind in transaction_records.KINDS
        ),
        Grant(f"{ns}.api.>", "the API"),
        Grant(subjects.topology(), "clients ask for routes of streams"),
        Grant(subjects.topology(ANY_STREAM), "the same, of one stream"),
        Grant(subjects.adopt(broker), "clients tell which routes they have applied"),
        *(Grant(f"$SRV.*{named}", "`nats micro`") for named in ("", ".tidelog", ".tidelog.*")),
    ]
    for subject in scope.subjects:
        check_captured(subject, ns)
        subscribe.append(Grant(subject, "plain publishes to streams"))
        if not subject.endswith(">"):
            subscribe.append(Grant(f"{subject}.*", "the same, to partitions above 0"))
    return Permissions(_once(publish), _once(subscribe))


# ---- as nats-server is configured ----------------------------------------------------------------------------------


def user_block(granted: Permissions, *, user: str = "", nkey: str = "") -> str:
    """Returns an entry of `users` in nats-server's configuration, for a user with a password from its environment, or
    an NKey: then `user` is a comment."""
    label = f"  # {user}" if user else ""
    lines = (
        [f"  nkey: {_quoted(nkey)}{label}"]
        if nkey
        else [f"  user: {_quoted(user)}", f"  password: ${variable_of(user)}"]
    )
    lines.append("  permissions: {")
    for verb, grants in (("publish", granted.publish), ("subscribe", granted.subscribe)):
        lines += [f"    {verb}: {{", "      allow: ["]
        lines += [f"        {_quoted(grant.subject)}  # {grant.purpose}" for grant in grants]
        lines += ["      ]", "    }"]
    return "\n".join(["{", *lines, "  }", "}", ""])


def variable_of(user: str) -> str:
    """The environment variable from which nats-server takes the user's password."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in user).upper() + "_PASSWORD"


def exports_block(granted: Permissions) -> str:
    """Returns `exports` of the brokers' account, for clients in other accounts with these permissions."""
    lines = [
        f"  {{service: {_quoted(grant.subject)}{', response_type: stream' if grant.asks_many else ''}}}"
        for grant in granted.publish
    ]
    lines += [f"  {{stream: {_quoted(grant.subject)}}}" for grant in granted.subscribe if grant.is_pushed]
    return "\n".join(["exports: [", *lines, "]", ""])


def imports_block(granted: Permissions, *, brokers: str) -> str:
    """Returns `imports` of a client's account; `brokers`: the account of the brokers. With `share`, NATS shows brokers
    the client's user, for the audit trail."""
    lines = [
        f"  {{service: {{account: {_quoted(brokers)}, subject: {_quoted(grant.subject)}}}, share: true}}"
        for grant in granted.publish
    ]
    lines += [
        f"  {{stream: {{account: {_quoted(brokers)}, subject: {_quoted(grant.subject)}}}}}"
        for grant in granted.subscribe
        if grant.is_pushed
    ]
    return "\n".join(["imports: [", *lines, "]", ""])


def _once(grants: Iterable[Grant]) -> tuple[Grant, ...]:
    return tuple({grant.subject: grant for grant in grants}.values())


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
