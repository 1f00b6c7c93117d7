"""Messages of one turn of the loop to one broker leave as one, and arrive as if each had been sent alone."""

# Rules: R42.

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.fake_nats import FakeTransport, Hub
from tidelog.server.peers.packs import MAX_BYTES, MAX_FRAME_BYTES, MAX_FRAMES, MAX_REMEMBERED, PAUSE_S, REFUSED_PAUSE_S
from tidelog.server.peers.peer_link import PeerLink, Refusals
from wire.messaging.packed import Frame, encode_pack
from wire.messaging.transport import NO_RESPONDERS, Message
from wire.messaging.violation import Act, Violation
from wire.security.cluster_secrets import ClusterSecret, ClusterSecrets
from wire.subjects import Subjects
from wire.types import BrokerId

SUBJECTS = Subjects()
A, B, C = BrokerId("a"), BrokerId("b"), BrokerId("c")
SECRET = ClusterSecret(b"the secret of the cluster")
FIRST, SECOND = "tidelog.s.0.replicate", "tidelog.s.1.replicate"


class Transport(FakeTransport):
    """Its inboxes are those of a broker."""

    def __init__(self, hub: Hub, broker: BrokerId) -> None:
        super().__init__(hub)
        self._broker = broker
        self._count = 0

    def new_inbox(self) -> str:
        self._count += 1
        return f"{SUBJECTS.broker_inbox(self._broker)}.1.{self._count}"


@dataclass
class Broker:
    hub: Hub
    name: BrokerId
    heard: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.now = 0.0
        self.transport = Transport(self.hub, self.name)
        self.refusals = Refusals(self.name, lambda: self.now)
        self.link = PeerLink(self.transport, ClusterSecrets([SECRET]), f"life of {self.name}", self.refusals)

    @property
    def sent(self) -> list[str]:
        return [subject for subject, _, _ in self.transport.sent]

    def ask(self, subject: str, to: BrokerId, data: bytes = b"a request", *, as_view: bool = False) -> str:
        """Returns the inbox; what comes there is in `heard`."""
        inbox = self.link.new_inbox()
        self.link.on_inbox(inbox, self.heard.append, as_view=as_view)
        assert self.link.publish(subject, [data[:3], memoryview(data)[3:]], reply=inbox, to=to)
        return inbox


async def brokers(*, b_takes_packs: bool = True) -> tuple[Broker, Broker]:
    hub = Hub()
    a, b = Broker(hub, A), Broker(hub, B)
    await a.link.take_packs(SUBJECTS, A)
    if b_takes_packs:
        await b.link.take_packs(SUBJECTS, B)
    for subject in (FIRST, SECOND):
        await b.link.subscribe(subject, b.heard.append)
    return a, b


async def settle() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


async def test_several_messages_of_a_turn_leave_as_one() -> None:
    a, b = await brokers()
    first = a.ask(FIRST, B, b"one")
    a.link.publish(SECOND, [b"two"], headers={"Tidelog-Sync-To": "7"}, to=B)
    assert a.sent == []
    await settle()
    assert a.sent == ["tidelog.notify.b.packed"]
    assert b.heard == [
        Message(FIRST, b"one", first),
        Message(SECOND, b"two", None, {"Tidelog-Sync-To": "7"}),
    ]
    assert all(type(message.data) is bytes for message in b.heard)
    assert b.refusals.counts() == {}


async def test_a_message_that_is_alone_leaves_as_itself() -> None:
    a, b = await brokers()
    inbox = a.ask(FIRST, B, b"one")
    await settle()
    assert a.sent == [FIRST]
    assert b.heard == [Message(FIRST, b"one", inbox)]


async def test_each_broker_gets_its_own() -> None:
    a, b = await brokers()
    c = Broker(a.hub, C)
    await c.link.take_packs(SUBJECTS, C)
    await c.link.subscribe(FIRST, c.heard.append)
    for data in (b"1", b"2"):
        a.link.publish(FIRST, [b"for b " + data], to=B)
        a.link.publish(FIRST, [b"for c " + data], to=C)
    await settle()
    assert a.sent == ["tidelog.notify.b.packed", "tidelog.notify.c.packed"]
    assert [message.data for message in b.heard] == [b"for b 1", b"for b 2"]
    assert [message.data for message in c.heard] == [b"for c 1", b"for c 2"]


@pytest.mark.parametrize("as_view", [False, True])
async def test_answers_go_to_their_inboxes(as_view: bool) -> None:
    a, b = await brokers()
    inboxes = [a.ask(subject, B, as_view=as_view) for subject in (FIRST, SECOND)]
    await settle()
    for message in b.heard:
        assert message.reply
        b.link.publish(message.reply, [b"an answer to " + message.subject.encode()], to=A)
    a.link.on_inbox(inboxes[0], None)
    await settle()
    assert b.sent == ["tidelog.notify.a.packed"]
    (answer,) = a.heard
    assert (answer.subject, bytes(answer.data)) == (inboxes[1], b"an answer to " + SECOND.encode())
    assert isinstance(answer.data, memoryview) is as_view


async def test_a_copy_of_a_pack_is_refused_whole() -> None:
    a, b = await brokers()
    a.ask(FIRST, B)
    a.ask(SECOND, B)
    await settle()
    subject, data, _ = a.transport.sent[0]
    stranger = FakeTransport(a.hub)
    stranger.publish(subject, [data], reply=f"{SUBJECTS.broker_inbox(A)}.1.3")
    stranger.publish("tidelog.notify.c.packed", [data])
    await settle()
    assert len(b.heard) == 2
    assert b.refusals.counts() == {"packed": {"replayed": 1}}


async def test_nobody_listens_on_the_subject_of_a_frame() -> None:
    a, b = await brokers()
    inbox = a.ask("tidelog.s.9.replicate", B)
    a.ask(FIRST, B)
    a.link.publish("tidelog.s.8.replicate", [b"without a reply"], to=B)
    await settle()
    assert a.heard == [Message(inbox, b"", status=NO_RESPONDERS)]
    assert [message.subject for message in b.heard] == [FIRST]


async def test_a_refusal_counts_as_the_first_message_only() -> None:
    a, _ = await brokers()
    inbox = a.ask(FIRST, B)
    a.link._on_pack(Message("s", encode_pack([Frame(inbox.encode(), b"", b"", b"an answer")])))
    a.link._on_pack(Message("s", encode_pack([Frame(inbox.encode(), b"", b"", b"", nobody_listens=True)])))
    assert a.heard == [Message(inbox, b"an answer")]


async def test_a_subscription_that_is_given_up_hears_no_frames() -> None:
    a, b = await brokers()
    third = await b.link.subscribe(FIRST, b.heard.append)
    await third.unsubscribe()
    other = await b.link.subscribe("tidelog.s.2.replicate", b.heard.append)
    await other.unsubscribe()
    inbox = a.ask("tidelog.s.2.replicate", B)
    a.ask(FIRST, B)
    await settle()
    assert [message.subject for message in b.heard] == [FIRST]
    assert a.heard == [Message(inbox, b"", status=NO_RESPONDERS)]


async def test_a_broker_that_takes_no_packs_gets_single_messages() -> None:
    a, b = await brokers(b_takes_packs=False)
    inboxes = [a.ask(subject, B) for subject in (FIRST, SECOND)]
    await settle()
    assert a.sent == ["tidelog.notify.b.packed", FIRST, SECOND]
    assert [(message.subject, message.reply) for message in b.heard] == list(zip((FIRST, SECOND), inboxes, strict=True))
    a.transport.sent.clear()
    a.ask(FIRST, B)
    a.ask(SECOND, B)
    assert a.sent == [FIRST, SECOND]  # at once, for a while
    a.now = PAUSE_S
    a.ask(FIRST, B)
    a.ask(SECOND, B)
    await settle()
    assert a.sent[2:] == ["tidelog.notify.b.packed", FIRST, SECOND]


async def test_a_broker_that_is_gone_is_found_by_each_request() -> None:
    a, b = await brokers()
    b.transport.cut()
    inboxes = [a.ask(subject, B) for subject in (FIRST, SECOND)]
    await settle()
    assert a.heard == [Message(inbox, b"", status=NO_RESPONDERS) for inbox in inboxes]


async def test_packs_are_bounded() -> None:
    a, b = await brokers()
    for _ in range(MAX_FRAMES + 1):
        a.link.publish(FIRST, [b"small"], to=B)
    await settle()
    assert a.sent == ["tidelog.notify.b.packed", FIRST]
    a.transport.sent.clear()
    for _ in range(9):
        a.link.publish(FIRST, [bytes(MAX_FRAME_BYTES)], to=B)
    a.link.publish(SECOND, [bytes(MAX_FRAME_BYTES + 1)], to=B)
    assert SECOND in a.sent  # a large one leaves alone, at once
    await settle()
    assert max(len(data) for _, data, _ in a.transport.sent) < MAX_BYTES + 1024
    assert len(b.heard) == MAX_FRAMES + 1 + 10


async def test_a_small_max_payload_bounds_packs_too() -> None:
    a, b = await brokers()
    a.transport.max_payload = 4096
    for _ in range(10):
        a.link.publish(FIRST, [bytes(1000)], to=B)
    await settle()
    assert len(b.heard) == 10
    assert len(a.sent) == 5


async def test_few_packs_are_remembered() -> None:
    a, _ = await brokers()
    for _ in range(MAX_REMEMBERED + 5):
        a.ask(FIRST, B)
        a.ask(SECOND, B)
        await settle()
    remembered = [inbox for inbox in a.transport.inboxes if inbox not in a.link._inboxes]
    assert len(remembered) == MAX_REMEMBERED
    a.link._on_pack_unheard(b"tidelog.inbox.a.1.1", None, b"NATS/1.0 503\r\n\r\n", b"")  # that of a forgotten one
    assert a.refusals.counts() == {}


async def test_what_is_no_503_has_no_pack_sent_again() -> None:
    a, _ = await brokers()
    a.ask(FIRST, B)
    a.ask(SECOND, B)
    await settle()
    (inbox,) = [inbox for inbox in a.transport.inboxes if inbox not in a.link._inboxes]
    FakeTransport(a.hub).publish(inbox, [b"an answer"])
    await settle()
    assert len(a.sent) == 1
    assert a.refusals.counts() == {"packed": {"status": 1}}


async def test_a_pack_that_does_not_decode_is_dropped_whole(caplog: pytest.LogCaptureFixture) -> None:
    a, b = await brokers()
    pack = encode_pack([Frame(FIRST.encode(), b"", b"", b"one")]) + b"\0"
    a.link.publish(SUBJECTS.packed(B), [pack])
    await settle()
    assert b.heard == []
    assert b.refusals.counts() == {"packed": {"malformed": 1}}
    assert "a pack of messages is dropped" in caplog.text


async def test_a_bug_in_one_handler_ends_no_other_frame() -> None:
    _, b = await brokers()

    def fails(_: Message) -> None:
        raise KeyError("a bug")

    await b.link.subscribe("tidelog.s.3.replicate", fails)
    pack = encode_pack([Frame(subject.encode(), b"", b"", b"") for subject in ("tidelog.s.3.replicate", FIRST)])
    with pytest.raises(KeyError):  # which the connection logs and counts
        b.link._on_pack(Message("s", pack))
    assert [message.subject for message in b.heard] == [FIRST]


async def test_without_a_connection_nothing_is_gathered() -> None:
    a, _ = await brokers()
    a.transport.lose()
    assert not a.link.publish(FIRST, [b"one"], to=B)


async def test_what_cannot_be_sent_to_one_broker_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = await brokers()
    publish = a.transport.publish

    def fails(subject: str, *args: Any, **options: Any) -> bool:
        if subject == SUBJECTS.packed(C):
            raise KeyError("a bug")
        return publish(subject, *args, **options)

    monkeypatch.setattr(a.transport, "publish", fails)
    for broker in (C, B):
        a.link.publish(FIRST, [b"one"], to=broker)
        a.link.publish(SECOND, [b"two"], to=broker)
    await settle()
    assert [message.data for message in b.heard] == [b"one", b"two"]
    assert "2 messages to broker c are lost" in caplog.text


async def pack(a: Broker, at: float) -> bool:
    """Whether two messages to b leave as one."""
    a.now = at
    a.transport.sent.clear()
    a.ask(FIRST, B)
    a.ask(SECOND, B)
    await settle()
    return a.sent[0] == SUBJECTS.packed(B)


async def test_the_pause_doubles_until_a_pack_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    a, b = await brokers(b_takes_packs=False)
    at, pauses = 0.0, []
    for _ in range(8):
        assert await pack(a, at)
        until = a.link._packs._paused_until[B]
        assert not await pack(a, until - 0.01)
        pauses.append(until - at)
        at = until
    assert pauses == [PAUSE_S * n for n in (1, 2, 4, 8, 16, 32, 60, 60)]
    assert a.link.unheard_packs == 8
    assert caplog.text.count("nobody listens where messages to broker b leave together") == 1
    await b.link.take_packs(SUBJECTS, B)
    for after in (0.0, PAUSE_S):
        assert await pack(a, at + after)
    assert not a.link._packs._unheard


async def test_packs_that_left_before_the_pause_make_it_no_longer() -> None:
    a, _ = await brokers(b_takes_packs=False)
    for _ in range(2 * MAX_FRAMES):
        a.link.publish(FIRST, [b"small"], to=B)
    await settle()
    assert a.link.unheard_packs == 2
    assert a.link._packs._paused_until[B] == PAUSE_S


async def test_where_packs_may_not_be_published_messages_leave_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    a, b = await brokers()
    for subject in (SUBJECTS.packed(B), SUBJECTS.parked(B), f"other.notify.{C}.packed"):
        for act in Act:
            a.transport.violations.tell(Violation(act=act, subject=subject))
    a.transport.violations.tell(Violation(act=Act.PUBLISH, subject=SUBJECTS.packed(B)))
    assert caplog.text.count("NATS does not let this broker publish where messages to broker b") == 1
    assert list(a.link._packs._paused_until) == [B]
    assert not await pack(a, REFUSED_PAUSE_S - 0.1)
    assert len(b.heard) == 2
    assert a.link.unheard_packs == 2
    assert await pack(a, REFUSED_PAUSE_S)
