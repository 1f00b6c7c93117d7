"""What a role that is given for one stream does not reach: every subject of a cluster that names another stream, group
or transactional id, made from the table of operations and from `Subjects`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wire.errors import TidelogError
from wire.internal_records import group_records, transaction_records
from wire.internal_streams import GROUPS
from wire.operations.api_operations import OPERATIONS
from wire.security.permissions import OF_STREAMS, Role, Scope, permissions_of
from wire.subjects import Subjects, is_matched
from wire.types import BrokerId, StreamName

SUBJECTS = Subjects()
MINE = Scope(
    streams=("mine",),
    subjects=("mine",),
    partitions=3,
    groups=("mine",),
    transactional_ids=("mine",),
    inbox_prefix="_INBOX.me",
)
THEIRS = StreamName("theirs")
CLIENTS = sorted(OF_STREAMS, key=lambda role: role.value)


def of_another_stream(stream: StreamName) -> Iterator[str]:
    yield SUBJECTS.topology(stream)
    for partition in (0, 7):
        for subject in (SUBJECTS.append, SUBJECTS.fetch, SUBJECTS.leader):
            yield subject(stream, partition)
        yield SUBJECTS.fetch_from(stream, partition, BrokerId("b1"))
    for operation in OPERATIONS.values():
        if operation.stream:
            yield SUBJECTS.api(operation.name, stream)


def of_brokers(stream: StreamName) -> Iterator[str]:
    for partition in (0, 7):
        for subject in (
            SUBJECTS.replicate,
            SUBJECTS.offset,
            SUBJECTS.snapshot,
            SUBJECTS.write,
            SUBJECTS.last,
            SUBJECTS.mark,
            SUBJECTS.coordinate,
        ):
            yield subject(stream, partition)
    yield SUBJECTS.push(stream)
    for broker in (BrokerId("b1"), BrokerId("mine")):
        yield from (SUBJECTS.notify(broker), SUBJECTS.probe(broker), SUBJECTS.drain(broker))
        yield from (SUBJECTS.broker_status(broker), f"{SUBJECTS.broker_inbox(broker)}.x.1")
    yield from (SUBJECTS.cluster(), SUBJECTS.controller())


def of_coordinators(name: str) -> Iterator[str]:
    for kind in group_records.KINDS:
        yield SUBJECTS.coordinator(StreamName(GROUPS.name), group_records.coordinator_partition(name), kind, name)
    for kind in transaction_records.KINDS:
        for added in ("mine", "theirs") if kind in transaction_records.ADDS else ():
            yield transaction_records.coordinator_subject(SUBJECTS, kind, name, added)
        yield transaction_records.coordinator_subject(SUBJECTS, kind, name)


def added_by_mine() -> Iterator[str]:
    """To transactions under the granted id: what the role was not given for, and no name."""
    for kind in transaction_records.ADDS:
        for added in ("theirs", "__audit", "__groups", "*", ">"):
            yield transaction_records.coordinator_subject(SUBJECTS, kind, "mine", added)
    for kind in transaction_records.ADDS:
        yield transaction_records.coordinator_subject(SUBJECTS, kind, "mine")
        yield transaction_records.coordinator_subject(SUBJECTS, kind, "mine", "mine", "theirs")


def writes() -> Iterator[str]:
    for operation in OPERATIONS.values():
        if operation.writes:
            yield SUBJECTS.api(operation.name, "mine" if operation.stream or operation.group else None)
            yield SUBJECTS.api(operation.name, "theirs")


def plain_publishes() -> Iterator[str]:
    """To streams whose subjects begin as that of the granted one, and to partitions that it does not have."""
    yield from ("theirs", "theirs.1", "mine.eu", "mine.3", "mine.01", "mine.1.eu", "mine.eu.1", "min", "mine1")


REACHED_BY_NONE = [
    *of_another_stream(THEIRS), *of_another_stream(StreamName("__audit")),
    *of_brokers(THEIRS), *of_brokers(StreamName("mine")), *of_brokers(StreamName(GROUPS.name)),
    *of_coordinators("theirs"), group_records.coordinator_subject(SUBJECTS, group_records.DISCOVER, "mine"),
    *added_by_mine(), *writes(), *plain_publishes(),
    "_INBOX.other.x.1", "$JS.API.INFO", "$SYS.REQ.SERVER.PING",
]  # fmt: skip


@pytest.mark.parametrize("role", CLIENTS)
def test_a_client_of_one_stream_reaches_nothing_of_another(role: Role) -> None:
    granted = permissions_of(role, MINE)
    reached = {
        (subject, grant.subject)
        for subject in REACHED_BY_NONE
        for grant in granted.publish
        if is_matched(subject, grant.subject)
    }
    assert not reached


@pytest.mark.parametrize("role", CLIENTS)
def test_a_client_hears_its_own_inboxes_and_the_routes_of_its_streams(role: Role) -> None:
    assert {grant.subject for grant in permissions_of(role, MINE).subscribe} == {"_INBOX.me.>", SUBJECTS.push("mine")}


def test_monitoring_changes_nothing_and_reads_no_records_of_streams() -> None:
    granted = permissions_of(Role.MONITORING, Scope(inbox_prefix="_INBOX.me"))
    reached = [*writes(), *of_brokers(THEIRS), *plain_publishes(), *of_coordinators("theirs")]
    reached += [SUBJECTS.append(THEIRS, 0), SUBJECTS.fetch(THEIRS, 0), SUBJECTS.fetch(StreamName("__audit"), 0)]
    assert not [each for each in reached if any(is_matched(each, grant.subject) for grant in granted.publish)]


@pytest.mark.parametrize(
    ("role", "streams"), [(Role.ADMIN, ("__audit", "__activity")), (Role.MONITORING, ("__activity",))]
)
def test_who_reads_what_the_cluster_records_hears_its_routes(role: Role, streams: tuple[str, ...]) -> None:
    granted = permissions_of(role, Scope(inbox_prefix="_INBOX.me"))
    assert {grant.subject for grant in granted.subscribe} == {"_INBOX.me.>", *map(SUBJECTS.push, streams)}
    asked = {grant.subject for grant in granted.publish if grant.subject.startswith("tidelog.metadata.")}
    assert asked == {SUBJECTS.adopt(BrokerId("*")), *map(SUBJECTS.topology, streams)}
    of_one = permissions_of(role, MINE)
    assert {grant.subject for grant in of_one.subscribe} == {"_INBOX.me.>"}, "it reads no records"
    assert not [grant for grant in of_one.publish if grant.subject.startswith("tidelog.metadata.")]


def test_a_producers_plain_publishes_reach_the_partitions_that_its_stream_has() -> None:
    granted = {grant.subject for grant in permissions_of(Role.PRODUCER, MINE).publish}
    assert {"mine", "mine.1", "mine.2"} <= granted
    with pytest.raises(TidelogError, match="partitions=0 is outside"):
        permissions_of(Role.PRODUCER, Scope(streams=("mine",), subjects=("mine",), partitions=0))


def test_a_producers_transactions_take_in_its_streams_and_its_groups() -> None:
    granted = [grant.subject for grant in permissions_of(Role.PRODUCER, MINE).publish if ".add" in grant.subject]
    assert granted == [
        "tidelog.__transactions.*.add-partitions.mine.mine",
        "tidelog.__transactions.*.add-offsets.mine.mine",
    ]
    several = Scope(streams=("a", "b"), transactional_ids=("x", "*"))
    granted = [grant.subject for grant in permissions_of(Role.PRODUCER, several).publish if ".add" in grant.subject]
    assert granted == [
        f"tidelog.__transactions.*.add-partitions.{name}.{stream}" for name in ("x", "*") for stream in ("a", "b")
    ], "without groups it adds none"
    of_all = Scope(streams=("a",), groups=("*",), transactional_ids=("x",))
    granted = [grant.subject for grant in permissions_of(Role.PRODUCER, of_all).publish if ".add-off" in grant.subject]
    assert granted == ["tidelog.__transactions.*.add-offsets.x.*"]
    with pytest.raises(TidelogError, match=r"group name .a\.b."):
        permissions_of(Role.PRODUCER, Scope(streams=("a",), groups=("a.b",), transactional_ids=("x",)))
