"""The grammar of names and subjects."""

# Rules: R37.

from __future__ import annotations

import pytest

from wire.errors import Code, TidelogError
from wire.subjects import (
    Subjects,
    check_broker_id,
    check_inbox_prefix,
    check_namespace,
    check_stream_name,
    check_subject,
    ingest_subject,
    reaches,
)
from wire.types import BrokerId, StreamName


def test_subjects_of_a_cluster() -> None:
    subjects = Subjects("ns")
    stream, broker = StreamName("flights"), BrokerId("b1")
    assert subjects.replicate(stream, 2) == "ns.flights.2.replicate"
    assert subjects.offset(stream, 2) == "ns.flights.2.offset"
    assert subjects.append(stream, 2) == "ns.flights.2.append"
    assert subjects.fetch(stream, 2) == "ns.flights.2.fetch"
    assert subjects.leader(stream, 2) == "ns.flights.2.leader"
    assert subjects.fetch_from(stream, 2, BrokerId("b1")) == "ns.flights.2.fetch.b1"
    assert subjects.notify(broker) == "ns.notify.b1"
    assert subjects.controller() == "ns.metadata.controller"
    assert subjects.probe(broker) == "ns.metadata.probe.b1"
    assert subjects.broker_status(broker) == "ns.metadata.status.b1"
    assert subjects.drain(broker) == "ns.metadata.drain.b1"
    assert subjects.topology() == "ns.metadata.topology"
    assert subjects.topology("orders") == "ns.metadata.topology.orders"
    assert subjects.push("flights") == "ns.metadata.push.flights"
    assert subjects.adopt(broker) == "ns.metadata.adopt.b1"
    assert subjects.api("stream.list") == "ns.api.stream.list"
    assert subjects.api("stream.create", "orders") == "ns.api.stream.create.orders"
    assert Subjects().namespace == "tidelog"


def test_partition_0_listens_on_the_subject_itself() -> None:
    assert [ingest_subject("a.b", partition) for partition in range(3)] == ["a.b", "a.b.1", "a.b.2"]


@pytest.mark.parametrize("subject", ["flights", "a.b.c", "flights.0", "-", "größe", "tidelogs.x", "a$b", "_INBOXES.x"])
def test_good_subjects(subject: str) -> None:
    assert check_subject(subject) == subject


@pytest.mark.parametrize(
    ("subject", "match"),
    [
        ("", "is empty"),
        ("x" * 256, "more than 255"),
        (".", "empty token"),
        ("a..b", "empty token"),
        (".a", "empty token"),
        ("a.", "empty token"),
        ("a b", "blanks"),
        ("a\tb", "blanks"),
        ("a\r\nPUB x 0", "blanks"),
        ("a\0b", "not printable"),
        ("a\ud800", "not printable"),
        ("*", "wildcard"),
        (">", "wildcard"),
        ("a.*.b", "wildcard"),
        ("a.>", "wildcard"),
        ("a.b*", r"contains '\*' or '>'"),
        ("$JS.API", "begins with"),
        ("$SYS.x", "begins with"),
        ("_INBOX", "_INBOX"),
        ("_INBOX.x", "_INBOX"),
        ("tidelog", "namespace"),
        ("tidelog.api.x", "namespace"),
    ],
)
def test_bad_subjects(subject: str, match: str) -> None:
    with pytest.raises(TidelogError, match=match) as caught:
        check_subject(subject)
    assert caught.value.code is Code.BAD_SUBJECT


def test_the_namespace_that_is_refused_is_the_clusters_own() -> None:
    assert Subjects("other").check_subject("tidelog.x") == "tidelog.x"
    with pytest.raises(TidelogError, match="'other'"):
        Subjects("other").check_subject("other.x")


@pytest.mark.parametrize("name", ["a", "A-z_09", "x" * 64, "metadata2", "0"])
def test_good_names(name: str) -> None:
    assert [str(check_stream_name(name)), str(check_broker_id(name)), check_namespace(name)] == [name] * 3


@pytest.mark.parametrize("name", ["", "x" * 65, "a.b", "a b", "a*", ">", "ä", "a\n", "a/b", "..", "$x", "\ud800"])
def test_bad_names(name: str) -> None:
    for check in (check_stream_name, check_broker_id, check_namespace):
        with pytest.raises(TidelogError, match="1 to 64 characters") as caught:
            check(name)
        assert caught.value.code is Code.BAD_NAME


@pytest.mark.parametrize("name", ["notify", "metadata", "api"])
def test_reserved_stream_names(name: str) -> None:
    with pytest.raises(TidelogError, match="reserved") as caught:
        check_stream_name(name)
    assert caught.value.code is Code.BAD_NAME
    assert check_broker_id(name) == name


@pytest.mark.parametrize("prefix", ["_INBOX", "_INBOX.alice", "_INBOX_bob", "apps.bob.inbox", "tidelogs.x"])
def test_inbox_prefixes(prefix: str) -> None:
    assert check_inbox_prefix(prefix) == prefix


@pytest.mark.parametrize(
    "prefix",
    ["", "_INBOX.", "_INBOX..a", "_INBOX.*", "a.>", "$JS.x", "tidelog", "tidelog.inbox.b1", "a b", "a\nb", "x" * 256],
)
def test_prefixes_where_no_client_has_its_inbox(prefix: str) -> None:
    with pytest.raises(TidelogError, match=r"_INBOX\.alice") as caught:
        check_inbox_prefix(prefix)
    assert caught.value.code is Code.BAD_SUBJECT


def test_a_namespace_is_not_the_inbox() -> None:
    with pytest.raises(TidelogError, match="answers"):
        Subjects("_INBOX")


@pytest.mark.parametrize(
    ("pattern", "reached"),
    [
        ("app.events", True),
        ("app.events.1", True),
        ("app.events.17", True),
        ("app.events.*", True),
        ("app.events.>", True),
        ("app.*", True),
        ("app.>", True),
        ("*.events", True),
        (">", True),
        ("*.*.3", True),
        ("app", False),
        ("app.event", False),
        ("app.events.0", False),
        ("app.events.x", False),
        ("app.events.1.2", False),
        ("app.events.1.>", False),
        ("app.events.*.*", False),
        ("*", False),
        ("apps.>", False),
        ("", False),
    ],
)
def test_subscriptions_that_get_messages_to_a_stream(pattern: str, reached: bool) -> None:
    assert reaches("app.events", pattern) is reached
