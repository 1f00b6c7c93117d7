"""On which reply subjects a broker answers: one by one, and in runs."""

from __future__ import annotations

import pytest

from wire.messaging.reply_subjects import MAX_VERDICTS, ReplySubjects
from wire.messaging.transport import UniformRun
from wire.subjects import RESERVED_STREAM_NAMES, Subjects

STREAMS = ["orders", "app.events", "größe"]

FORBIDDEN = [
    "tidelog",
    "tidelog.orders.0.replicate",
    "tidelog.api.stream.delete.orders",
    "tidelog.inbox.b1.X.1",
    "$JS.API.STREAM.DELETE.x",
    "$SYS.REQ.SERVER.PING",
    "$SRV.PING",
    "orders",
    "orders.1",
    "orders.12",
    "app.events",
    "app.events.3",
    "größe",
    "größe.1",
    "*",
    ">",
    "_INBOX.>",
    "_INBOX.*",
    "_INBOX.a*b",
    "_INBOX..x",
    "_INBOX.x.",
    ".x",
    "_INBOX.x\x01",
    "inbox.bob.>",
    "",
]
ALLOWED = [
    "_INBOX.abc.1",
    "_INBOX.alice.abc.1",
    "_INBOX_bob.abc.1",
    "_R_.u1.2",
    "app.inbox.7",
    "app.eventss",
    "orders.x",
    "orders.0",
    "orders.01",
    "orders.1.x",
    "tidelogs.x",
    "answers",
    "größe.x",
]


class Known:
    def __init__(self) -> None:
        self.streams = list(STREAMS)
        self.version = 1
        self.rules = ReplySubjects(Subjects(), lambda: self.streams, lambda: self.version)

    def run(self, replies: list[str]) -> bool:
        """Whether a run with these replies goes through as it is."""
        lines = [b"MSG s 1 %b 3\r\nabc\r\n" % reply.encode() for reply in replies]
        stride = len(lines[0])
        assert all(len(line) == stride for line in lines), "a run has one length"
        reply = (len(b"MSG s 1 "), len(replies[0].encode()))
        return self.rules.allows_run(UniformRun(memoryview(b"".join(lines)), len(lines), stride, stride - 5, 3, reply))


@pytest.mark.parametrize("reply", FORBIDDEN)
def test_no_answer_where_others_listen(reply: str) -> None:
    known = Known()
    assert not known.rules.is_clients(reply.encode())
    assert known.rules.refused == 1
    assert known.rules.checked([None, reply.encode(), b"_INBOX.a.1"]) == [None, None, b"_INBOX.a.1"]
    assert known.rules.refused == 2
    if reply:
        assert not known.run([reply] * 3)
        assert not known.run([reply, "_" * len(reply.encode())])
        same_length = "_INBOX." + "x" * (len(reply.encode()) - 7)
        if len(same_length) == len(reply.encode()):
            assert not known.run([same_length, reply])


@pytest.mark.parametrize("reply", ALLOWED)
def test_an_inbox_of_a_client_is_answered(reply: str) -> None:
    known = Known()
    assert known.rules.is_clients(reply.encode())
    assert known.rules.checked([None, reply.encode(), b"_INBOX.a.1"]) == [None, reply.encode(), b"_INBOX.a.1"]
    assert known.rules.refused == 0


def test_runs_of_one_prefix_are_judged_at_once() -> None:
    known = Known()
    assert known.run([f"_INBOX.abc.{i:04}" for i in range(100)])
    assert known.run([f"_INBOX.{i:03}.{i:04}" for i in range(100)])
    assert known.run([f"app.inbox.{i:04}" for i in range(100)])
    assert not known.run([f"orders.{i:04}" for i in range(1000, 1100)])
    assert not known.run([f"app.inbox.{i:04}" for i in range(100)] + ["tidelog.x.abcd"])
    assert not known.run([f"_INBOX.a.{i:04}" for i in range(100)] + ["_INBOX.a..123"])
    assert not known.run(["short", "ahort"]), "one by one: they have no prefix"
    assert known.rules.refused == 0, "a run is only judged; its messages are counted one by one"


@pytest.mark.parametrize("others", [0, 1, 5, 1000])
@pytest.mark.parametrize(
    "bad", ["_INBOX.a.*", "_INBOX.>", "_INBOX..a", "_INBOX.a.", "_INBOX.\x01", "_INBOX.\x7f", "orders"]
)
def test_one_that_is_no_inbox_is_found_among_any_number(bad: str, others: int) -> None:
    known = Known()
    good: list[bytes | None] = [b"_INBOX.a.%d" % number for number in range(others)]
    assert known.rules.checked(good) == good
    assert known.rules.checked([*good, bad.encode()]) == [*good, None]
    assert known.rules.checked([bad.encode(), *good]) == [None, *good]
    assert known.rules.refused == 2


def test_replies_that_are_no_text_are_refused() -> None:
    known = Known()
    assert known.rules.checked([b"\xff\xfe.1", b"_INBOX.\xff"]) == [None, b"_INBOX.\xff"]


def test_a_new_stream_is_known_at_once_and_a_deleted_one_forgotten() -> None:
    known = Known()
    assert known.rules.is_clients(b"answers.1")
    assert known.run(["answers.1"] * 2)
    known.streams.append("answers")
    known.version += 1
    assert not known.rules.is_clients(b"answers.1")
    assert not known.run(["answers.1"] * 2)
    known.streams.remove("answers")
    known.version += 1
    assert known.rules.is_clients(b"answers.1")


def test_verdicts_are_bounded() -> None:
    known = Known()
    for number in range(MAX_VERDICTS + 10):
        assert known.rules.is_clients(f"p{number}.x".encode())
    assert len(known.rules._verdicts) <= MAX_VERDICTS


def test_brokers_are_answered_in_inboxes_of_brokers_only() -> None:
    known = Known()
    assert known.rules.is_brokers(b"tidelog.inbox.b1.X.1")
    for reply in ("_INBOX.x", "tidelog.inbox.>", "tidelog.orders.0.replicate", "orders", "other.inbox.b1.X.1"):
        assert not known.rules.is_brokers(reply.encode())
    assert known.rules.refused == 5
    assert known.rules.is_brokers(b"tidelog.inbox.b1.X.1f")
    for last in (b"", b"*", b">", b"1 ", b"1\xff.", b".1"):
        assert not known.rules.is_brokers(b"tidelog.inbox.b1.X." + last), "a known connection's inboxes are plain, too"
    for number in range(MAX_VERDICTS + 10):
        assert known.rules.is_brokers(b"tidelog.inbox.b1.X%d.1" % number)
    assert len(known.rules._inboxes_of_brokers) <= MAX_VERDICTS
    assert "inbox" in RESERVED_STREAM_NAMES


@pytest.mark.parametrize(
    ("subject", "between"),
    [
        ("tidelog.orders.0.replicate", True),
        ("tidelog.orders.0.offset", True),
        ("tidelog.orders.0.checkpoint", True),
        ("tidelog.notify.b1", True),
        ("tidelog.metadata.cluster", True),
        ("tidelog.metadata.probe.b1", True),
        ("tidelog.metadata.topology", False),
        ("tidelog.metadata.push.orders", False),
        ("tidelog.metadata.adopt.b1", False),
        ("tidelog.metadata.topology.orders", False),
        ("tidelog.metadata.topology.orders.0", True),
        ("tidelog.metadata.topology.", True),
        ("tidelog.metadata.topolog", True),
        ("tidelog.metadata.push", True),
        ("tidelog.metadata.push.", True),
        ("tidelog.metadata.push.orders.0", True),
        ("tidelog.metadata.pusher.orders", True),
        ("tidelog.metadata.adopt", True),
        ("tidelog.metadata.adopt.b1.b2", True),
        ("tidelog.metadata.probe.adopt", True),
        ("tidelog.metadata.controller", True),
        ("other.metadata.topology", False),
        ("tidelog.orders.0.append", False),
        ("tidelog.orders.0.fetch", False),
        ("tidelog.orders.0.fetch.offset", False),
        ("tidelog.api.stream.list", False),
        ("orders.replicate", False),
        ("$SRV.PING", False),
    ],
)
def test_subjects_on_which_only_brokers_ask(subject: str, between: bool) -> None:
    assert Subjects().is_between_brokers(subject) is between


def test_a_question_that_brokers_ask_too_is_not_counted_where_they_ask_it() -> None:
    known = Known()
    assert not known.rules.is_clients_not_brokers(b"tidelog.inbox.b1.X.1")
    assert known.rules.refused == 0
    assert known.rules.is_clients_not_brokers(b"_INBOX.a.1")
    assert not known.rules.is_clients_not_brokers(b"orders")
    assert known.rules.refused == 1
