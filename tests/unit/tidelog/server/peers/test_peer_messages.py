"""Messages between brokers: what is taken, what is refused and why. Both ends are real, NATS is one process."""

# Rules: R42.

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from tests.fake_nats import FakeTransport, Hub
from tidelog.nats.header_block import encode_headers
from tidelog.server.peers import peer_tags, replay_window
from tidelog.server.peers.peer_link import LOG_INTERVAL_S, PeerLink, Refusals, kind_of
from tidelog.server.peers.peer_tags import CLAIM, PEER, TRAILER_BYTES, UNHEARD_PER_S, Signer
from tidelog.server.peers.replay_window import WINDOW, ReplayWindow
from wire.errors import TidelogError
from wire.messaging.transport import NO_RESPONDERS, TAG_HEADER, Message
from wire.security.cluster_secrets import ClusterSecret, ClusterSecrets, parse_secrets, public_secrets
from wire.subjects import Subjects
from wire.types import BrokerId, Buffer, StreamName

SUBJECT = "tidelog.s.0.replicate"
OLD, NEW = ClusterSecret(b"the old secret of the cluster"), ClusterSecret(b"the new secret of the cluster")


@dataclass
class Broker:
    """`heard`: what its handlers were given."""

    hub: Hub
    name: str
    secrets: ClusterSecrets = field(default_factory=lambda: ClusterSecrets([OLD]))
    heard: list[Message] = field(default_factory=list)
    current_lives: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.now = 0.0
        self.transport = FakeTransport(self.hub)
        self.refusals = Refusals(self.name, lambda: self.now)
        self.link = PeerLink(
            self.transport, self.secrets, f"life of {self.name}", self.refusals, lambda: self.current_lives
        )

    async def listens(self, subject: str = SUBJECT) -> Broker:
        await self.link.subscribe(subject, self.heard.append)
        return self


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def pair() -> tuple[Hub, Broker, Broker]:
    hub = Hub()
    return hub, Broker(hub, "a"), await Broker(hub, "b").listens()


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 200_000])
@pytest.mark.parametrize("headers", [None, {"Tidelog-Error": "OFFSET_AHEAD", "A": " of two words "}])
async def test_a_message_arrives_as_it_was_sent(size: int, headers: dict[str, str] | None) -> None:
    _, a, b = await pair()
    data = Random(size).randbytes(size)
    parts: list[Buffer] = [data[:7], memoryview(data)[7:]]
    assert a.link.publish(SUBJECT, parts, reply="inbox.1", headers=headers)
    await settle()
    (message,) = b.heard
    written = None if headers is None else {name: value.strip() for name, value in headers.items()}
    assert message == Message(SUBJECT, data, "inbox.1", written)
    assert type(message.data) is bytes
    assert b.refusals.counts() == {}


@pytest.mark.parametrize("size", [0, 40, 1023, 1024, 200_000])
async def test_one_changed_bit_is_refused(size: int) -> None:
    _, a, b = await pair()
    a.link.publish(SUBJECT, [Random(1).randbytes(size)], reply="inbox.1")
    await settle()
    b.heard.clear()
    sent = a.transport.sent[0][1]
    places = range(len(sent)) if size < 100 else (0, 1, size - 1, size, size + 20, size + 44)
    for place in places:
        forged = bytearray(sent)
        forged[place] ^= 0x10
        a.transport.publish(SUBJECT, [forged], reply="inbox.1")
    await settle()
    assert b.heard == []
    assert sum(b.refusals.counts()["replicate"].values()) == len(places)


@pytest.mark.parametrize("length", [0, 1, TRAILER_BYTES - 1, TRAILER_BYTES])
async def test_a_message_without_a_trailer_is_refused(length: int) -> None:
    _, a, b = await pair()
    a.transport.publish(SUBJECT, [bytes(length)])
    await settle()
    assert b.heard == []
    assert b.refusals.counts() == {"replicate": {"version" if length == TRAILER_BYTES else "short": 1}}


async def test_a_message_counts_once_and_where_it_was_sent() -> None:
    _, a, b = await pair()
    await b.listens("tidelog.t.0.replicate")
    headers = {"Tidelog-Error": "NOT_LEADER"}
    a.link.publish(SUBJECT, [b"a request"], reply="inbox.1", headers=headers)
    await settle()
    assert len(b.heard) == 1
    sent = a.transport.sent[0][1]
    stranger = FakeTransport(b.hub)
    stranger.publish("tidelog.t.0.replicate", [sent], reply="inbox.1", headers=headers)
    stranger.publish(SUBJECT, [sent], reply="inbox.2", headers=headers)
    stranger.publish(SUBJECT, [sent], headers=headers)
    stranger.publish(SUBJECT, [sent], reply="inbox.1")
    stranger.publish(SUBJECT, [sent], reply="inbox.1", headers=headers | {"More": "of it"})
    stranger.publish(SUBJECT, [sent], reply="inbox.1", headers=headers)
    await settle()
    assert len(b.heard) == 1
    assert b.refusals.counts() == {"replicate": {"tag": 5, "replayed": 1}}


async def test_a_forged_message_is_refused_before_anything_of_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers may send by the hundred thousand: docs/security.md says what each costs."""
    _, a, b = await pair()
    a.link.publish(SUBJECT, [b"a request"], reply="inbox.1")
    await settle()
    genuine = a.transport.sent[0][1]

    def fail(*_: object) -> None:
        raise AssertionError("this costs more than a refusal may")

    monkeypatch.setattr("tidelog.server.peers.peer_link.decode_headers", fail)
    monkeypatch.setattr("tidelog.server.peers.peer_link.Message", fail)
    monkeypatch.setattr(peer_tags, "AESGCM", fail)
    monkeypatch.setattr(peer_tags, "ReplayWindow", fail)
    to_b = b.transport.raw[SUBJECT]
    block = encode_headers({"A": "b"})
    for number, data in enumerate((b"short", b"x" * 80, b"x" * 79 + peer_tags.VERSION)):
        to_b(SUBJECT.encode(), None, block, data)
        assert sum(b.refusals.counts()["replicate"].values()) == number + 1
    another_life = genuine[:-TRAILER_BYTES] + bytes(16) + genuine[16 - TRAILER_BYTES :]
    another_number = genuine[:-25] + bytes(8) + genuine[-17:]
    for data in (another_life, another_number):
        to_b(SUBJECT.encode(), b"\xff", None, data)
    to_b(SUBJECT.encode(), b"inbox.1", None, genuine)
    assert b.refusals.counts()["replicate"] == {"short": 1, "version": 1, "secret": 1, "tag": 2, "replayed": 1}
    assert len(b.link._verifier._senders) == 1


async def test_a_number_counts_as_come_with_a_verified_message_only() -> None:
    _, a, b = await pair()
    a.link.publish(SUBJECT, [b"1"])
    await settle()
    first = a.transport.sent[0][1]
    for number in (2, 1 << 60):
        FakeTransport(b.hub).publish(SUBJECT, [first[:-25] + number.to_bytes(8, "big") + first[-17:]])
    a.link.publish(SUBJECT, [b"2"])
    await settle()
    assert [message.data for message in b.heard] == [b"1", b"2"]
    assert b.refusals.counts() == {"replicate": {"tag": 2}}


async def test_a_broker_with_another_secret_is_a_stranger() -> None:
    hub, _, b = await pair()
    other = Broker(hub, "c", ClusterSecrets([NEW]))
    other.link.publish(SUBJECT, [b"x"])
    await settle()
    assert b.heard == []
    assert b.refusals.counts() == {"replicate": {"secret": 1}}


async def test_secrets_are_replaced_without_a_lost_message() -> None:
    """First added behind the old one, then in front of it, then the old one goes; at each step one broker after the
    other."""
    hub = Hub()
    a, b = await Broker(hub, "a").listens("to.a"), await Broker(hub, "b").listens("to.b")
    sent = count()
    for held in ([OLD, NEW], [NEW, OLD], [NEW]):
        for broker in (a, b):
            broker.secrets.replace(held)
            number = b"%d" % next(sent)
            a.link.publish("to.b", [number])
            b.link.publish("to.a", [number])
            await settle()
            assert a.heard[-1].data == b.heard[-1].data == number
    assert a.refusals.counts() == b.refusals.counts() == {}
    late = Broker(hub, "c", ClusterSecrets([OLD]))
    late.link.publish("to.a", [b"x"])
    await settle()
    assert a.refusals.counts() == {"a": {"secret": 1}}


async def test_a_message_of_a_secret_that_was_taken_out_is_refused() -> None:
    _, a, b = await pair()
    b.secrets.replace([OLD, NEW])
    a.link.publish(SUBJECT, [b"1"])
    await settle()
    b.secrets.replace([NEW])
    a.link.publish(SUBJECT, [b"2"])
    await settle()
    assert [message.data for message in b.heard] == [b"1"]
    assert b.refusals.counts() == {"replicate": {"secret": 1}}


async def test_only_a_verified_answer_ends_a_request() -> None:
    hub, a, b = await pair()
    stranger = FakeTransport(hub)

    def answer(message: Message) -> None:
        assert message.reply is not None
        stranger.publish(message.reply, [b"a lie"])
        stranger.publish(message.reply, [b"a long lie" * 10])
        hub.send(message.reply, b"", None, None)
        b.link.publish(message.reply, [b"the truth"], headers={"A": "b"})

    await b.link.subscribe("ask.b", answer)
    told = await a.link.request("ask.b", b"?", timeout=5)
    assert told.data == b"the truth"
    assert told.headers == {"A": "b"}
    assert a.refusals.counts() == {"answer": {"short": 2, "version": 1}}
    assert a.transport.inboxes == {}


def refuse(hub: Hub, inbox: str) -> None:
    hub._answer_no_responders(Message(inbox, b"", status=NO_RESPONDERS))


async def test_an_answer_counts_more_than_a_503() -> None:
    hub, a, b = await pair()
    refused: list[str] = []

    def answer(message: Message) -> None:
        assert message.reply is not None
        refuse(hub, message.reply)
        b.link.publish(message.reply, [b"it lives"])
        refuse(hub, message.reply)

    await b.link.subscribe("ask.b", answer)
    assert (await a.link.request("ask.b", b"?", timeout=5)).data == b"it lives"
    told = await a.link.request("ask.b", b"?", timeout=5, on_refused=lambda: refused.append("503"))
    assert told.data == b"it lives"
    assert refused == ["503"]
    assert a.refusals.counts() == {"answer": {"late 503": 2}}


async def test_a_503_without_an_answer_ends_a_request_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.server.peers.peer_link.REFUSAL_GRACE", 0.01)
    a = Broker(Hub(), "a")
    assert (await a.link.request("nobody", b"?", timeout=5)).status == NO_RESPONDERS
    refused: list[str] = []
    with pytest.raises(TimeoutError, match="nobody"):
        await a.link.request("nobody", b"?", timeout=1.0, on_refused=lambda: refused.append("503"))
    assert refused == ["503"]


async def test_a_503_is_the_first_message_of_an_inbox_or_forged() -> None:
    hub, a, b = await pair()
    heard: list[Message] = []
    inbox = a.link.new_inbox()
    a.link.on_inbox(inbox, heard.append)
    b.link.publish(inbox, [b"1"])
    await settle()
    refuse(hub, inbox)
    a.transport.inboxes[inbox](Message(inbox, b"", status=409))
    b.link.publish(inbox, [b"2"])
    await settle()
    assert [message.data for message in heard] == [b"1", b"2"]
    assert a.refusals.counts() == {"answer": {"late 503": 1, "status": 1}}


async def test_a_lost_connection_ends_requests() -> None:
    a = Broker(Hub(), "a")
    asked = asyncio.ensure_future(a.link.request("nobody", b"?", timeout=5, on_refused=lambda: None))
    await settle()
    a.transport.lose()
    with pytest.raises(TimeoutError, match="lost"):
        await asked
    with pytest.raises(TimeoutError, match="not sent"):
        await a.link.request("nobody", b"?", timeout=5)


async def test_claims_are_for_everybody_and_say_who_sent_them() -> None:
    hub, a, b = await pair()
    heard: list[tuple[bytes, bool]] = []
    await b.link.subscribe_claims("claims", lambda data, _, is_proved: heard.append((data, is_proved())))
    a.link.publish_claim("claims", b"mine", reply="inbox.1")
    await settle()
    _, data, headers = a.transport.sent[-1]
    assert data == b"mine"
    assert headers is not None
    stranger = FakeTransport(hub)
    for given_headers in (None, headers, {TAG_HEADER: "xyz"}, {TAG_HEADER: "00" * TRAILER_BYTES}, {TAG_HEADER: ""}):
        stranger.publish("claims", [b"mine"], reply="inbox.1", headers=given_headers)
    Broker(hub, "c", ClusterSecrets([NEW])).link.publish_claim("claims", b"another cluster's")
    await settle()
    assert heard == [(b"mine", True), *[(b"mine", False)] * 5, (b"another cluster's", False)]
    assert b.refusals.counts() == {}, "strangers may speak here"


async def test_claims_come_by_a_connection_of_their_own() -> None:
    hub = Hub()
    public, control = FakeTransport(hub), FakeTransport(hub)
    link = PeerLink(control, ClusterSecrets([OLD]), "a life", Refusals("b", lambda: 0.0), claims=public)
    await link.subscribe(SUBJECT, lambda _: None)
    await link.subscribe_claims("presence", lambda *_: None)
    await link.subscribe_claims("claims", lambda *_: None)
    assert set(control.subscribed) == {SUBJECT}
    assert set(public.subscribed) == {"presence", "claims"}


async def test_claims_are_proved_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    hub, a, b = await pair()
    heard: list[tuple[bytes, str | None, Callable[[], bool]]] = []
    await b.link.subscribe_claims("claims", lambda *claim: heard.append(claim))
    a.link.publish_claim("claims", b"mine", reply="inbox.1")
    await settle()
    headers = a.transport.sent[-1][2]
    with monkeypatch.context() as patch:
        patch.setattr("tidelog.server.peers.peer_link.decode_headers", None)
        patch.setattr("tidelog.server.peers.peer_link.Message", None)
        for block in (headers, {TAG_HEADER: "xyz"}, None):
            FakeTransport(hub).publish("claims", [b"mine"], reply="inbox.1", headers=block)
        await settle()
        b.transport.raw["claims"](b"claims", b"\xff", None, b"")
        b.transport.raw["claims"](b"claims", None, b"NATS/1.0 503\r\n\r\n", b"")
    assert [(payload, reply) for payload, reply, _ in heard] == [(b"mine", "inbox.1")] * 4 + [(b"", "\ufffd")]
    assert [is_proved() for *_, is_proved in heard] == [True, False, False, False, False], "the second is a copy"


async def test_keys_of_lives_that_were_not_heard_are_derived_so_often() -> None:
    hub, a, b = await pair()
    a.link.publish(SUBJECT, [b"1"])
    await settle()
    first, to_b = a.transport.sent[0][1], b.transport.raw[SUBJECT]

    def flood(times: int) -> None:
        for number in range(times):
            life = number.to_bytes(16, "big")
            to_b(SUBJECT.encode(), None, None, first[:-TRAILER_BYTES] + life + first[16 - TRAILER_BYTES :])

    flood(UNHEARD_PER_S + 5)  # a's own message was one
    assert b.refusals.counts()["replicate"] == {"tag": UNHEARD_PER_S - 1, "unheard": 6}
    late = Broker(hub, "late")
    for broker, text in ((a, b"2"), (late, b"lost")):
        broker.link.publish(SUBJECT, [text])
    await settle()
    assert [message.data for message in b.heard] == [b"1", b"2"], "a was heard before"
    proved: list[bool] = []
    await b.link.subscribe_claims("claims", lambda *claim: proved.append(claim[2]()))
    late.link.publish_claim("claims", b"mine")
    await settle()
    assert proved == [True], "claims have no limit"
    FakeTransport(hub).publish(SUBJECT, [first])
    b.link._verifier._senders.pop(next(reversed(b.link._verifier._senders)))  # as if late's claim had not come
    b.now += 1.5 / UNHEARD_PER_S
    late.link.publish(SUBJECT, [b"3"])
    late.link.publish(SUBJECT, [b"4"])
    await settle()
    assert [message.data for message in b.heard][2:] == [b"3", b"4"], "one that is verified is enough"


async def test_a_claim_is_no_message_between_brokers() -> None:
    """A stranger's question gets a claim with a proof, on any subject that the stranger chose."""
    hub, a, b = await pair()
    a.link.publish_claim(SUBJECT, b"a claim")
    headers = a.transport.sent[-1][2]
    assert headers is not None
    FakeTransport(hub).publish(SUBJECT, [b"a claim" + bytes.fromhex(headers[TAG_HEADER])])
    await settle()
    assert b.heard == []
    assert b.refusals.counts()["replicate"]["tag"] == 1


async def test_the_life_that_was_heard_the_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_tags, "MAX_SENDERS", 2)
    hub, a, b = await pair()
    others = [Broker(hub, f"other {number}") for number in range(2)]
    a.link.publish(SUBJECT, [b"a"])
    for other in others:
        other.link.publish(SUBJECT, [b"x"])
        a.link.publish(SUBJECT, [b"a"])
    await settle()
    copies = [(name, sent[0][1]) for name, sent in (("a", a.transport.sent), ("first", others[0].transport.sent))]
    for _, data in copies:
        FakeTransport(hub).publish(SUBJECT, [data])
    await settle()
    assert b.refusals.counts() == {"replicate": {"replayed": 1}}, "the first other life was forgotten, a was not"


@pytest.mark.parametrize("kind", ["messages", "claims"])
async def test_lives_that_are_over_do_not_push_out_a_current_one(kind: str) -> None:
    """More of them than are remembered speak, and then all of what they said comes once more, from a stranger."""
    hub, a, b = await pair()
    b.current_lives = ["life of a", "life of b"]
    a.link.publish(SUBJECT, [b"a"])
    await b.link.subscribe_claims("claims", lambda *claim: claim[2]() and None)
    over = [Broker(hub, f"over {number}") for number in range(peer_tags.MAX_SENDERS + 1)]
    for broker in over:
        if kind == "claims":
            broker.link.publish_claim("claims", b"x")
        else:
            broker.link.publish(SUBJECT, [b"x"])
    await settle()
    stranger = FakeTransport(hub)
    for broker in over:
        ((subject, data, headers),) = broker.transport.sent
        stranger.publish(subject, [data], headers=headers)
    stranger.publish(SUBJECT, [a.transport.sent[0][1]])
    await settle()
    assert [message.data for message in b.heard].count(b"a") == 1
    assert b.refusals.counts()["replicate"]["replayed"] == 1
    assert len(b.link._verifier._senders) == peer_tags.MAX_SENDERS


async def test_where_all_lives_are_current_ones_the_bound_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_tags, "MAX_SENDERS", 2)
    hub, _, b = await pair()
    others = [Broker(hub, f"other {number}") for number in range(3)]
    b.current_lives = [f"life of {other.name}" for other in others]
    for other in others:
        other.link.publish(SUBJECT, [b"x"])
    await settle()
    assert len(b.heard) == 3
    assert len(b.link._verifier._senders) == 2


def test_the_layout_is_the_documents() -> None:
    """By hand, with another implementation of HKDF: docs/messages.md, "The trailer"."""
    secrets = ClusterSecrets([OLD])
    signer = Signer(secrets, "a life")
    signer.trailer(PEER, "x", None, None, [])
    found = signer.trailer(PEER, "tidelog.s.0.offset", "_INBOX.1", {"B": "2", "A": "1"}, [b"pay", b"load"])
    life = hashlib.sha256(b"a life").digest()[:16]
    key = HKDF(SHA256(), 32, salt=None, info=b"tidelog peer v1 key " + life).derive(OLD.text)
    fingerprint = HKDF(SHA256(), 32, salt=None, info=b"tidelog peer v1 fingerprint").derive(OLD.text)[:4]
    short_key = HKDF(SHA256(), 32, salt=None, info=b"tidelog peer v1 short key " + life).derive(OLD.text)
    covered = b"peer tidelog.s.0.offset _INBOX.1\r\nA: 1\r\nB: 2\r\n\r\npayload"
    tag = hashlib.blake2b((2).to_bytes(8, "big") + covered, key=short_key, digest_size=16).digest()
    assert found == life + fingerprint + (2).to_bytes(8, "big") + tag + b"\x01"
    assert len(found) == TRAILER_BYTES == 45
    large = bytes(1024)
    tag = AESGCM(key).encrypt((3).to_bytes(12, "big"), b"", b"claim x \r\n\r\n" + large)
    found = signer.trailer(CLAIM, "x", None, None, [large[:48], large[48:]])
    assert found == life + fingerprint + (3).to_bytes(8, "big") + tag + b"\x01"


def test_refusals_are_logged_once_in_a_while_and_quoted(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    refusals = Refusals("b1", lambda: now)
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            refusals.count("probe", "tag", b"a\nb" + b"x" * 5000)
        assert len(caplog.records) == 1
        refusals.count("drain", "tag", b"d")
        now = LOG_INTERVAL_S
        refusals.count("probe", "short", b"p")
    first, drain, last = [record.getMessage() for record in caplog.records]
    assert r"a\nb" in first
    assert len(first) < 500
    assert "1 messages of kind drain" in drain
    assert "1000 messages of kind probe" in last
    assert refusals.counts() == {"drain": {"tag": 1}, "probe": {"short": 1, "tag": 1000}}


def test_each_subject_of_brokers_has_a_kind() -> None:
    subjects, b = Subjects("ns"), BrokerId("b1")
    stream = StreamName("orders")
    assert [
        kind_of(subject)
        for subject in (
            subjects.replicate(stream, 3), subjects.offset(stream, 3), subjects.snapshot(stream, 3),
            subjects.notify(b), subjects.probe(b), subjects.broker_status(b), subjects.drain(b),
            subjects.controller(), subjects.cluster(),
        )
    ] == [
        "replicate", "offset", "checkpoint", "notify", "probe", "status", "drain",
        "controller", "cluster",
    ]  # fmt: skip


# ---- the window ----------------------------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.integers(0, 40), st.integers(0, 3 * 16), st.integers(0, 1 << 64)), max_size=200))
def test_the_window_takes_each_number_once(numbers: list[int]) -> None:
    """Against a set: with a window of 16."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_window, "WINDOW", 16)
        patch.setattr(replay_window, "_ALL", (1 << 16) - 1)
        window, seen, top = ReplayWindow(), set[int](), -1
        for number in numbers:
            expected = number > top or (number > top - 16 and number not in seen)
            assert window.take(number) is expected
            seen.add(number)
            top = max(top, number)


def test_a_message_as_old_as_the_window_is_refused() -> None:
    window = ReplayWindow()
    assert window.take(WINDOW)
    assert window.take(1)
    assert not window.take(0)
    assert not window.take(1)
    assert window.take(1 << 63)
    assert not window.take(WINDOW)


# ---- secrets -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"short", "line 1 of the file has 5 bytes"),
        (b"0123456789abcdef\nshort", "line 2 of the file has 5 bytes"),
        (b"0123456789abcdef\n" * 2, "twice"),
        (b"\n".join(b"%016d" % n for n in range(3)), "holds 3 lines"),
    ],
)
def test_secrets_that_cannot_be_used(text: bytes, words: str) -> None:
    with pytest.raises(TidelogError, match=words) as raised:
        parse_secrets(text, "the file")
    assert "0123456789abcdef" not in str(raised.value)


def test_secrets_of_a_file() -> None:
    first, second = parse_secrets(b"\n first secret, 123 \r\nsecond secret, 12\n", "the file")
    assert (first.text, second.text) == (b"first secret, 123", b"second secret, 12")
    secrets = ClusterSecrets([first, second])
    assert secrets.fingerprints == [first.fingerprint.hex(), second.fingerprint.hex()]
    assert "secret, 1" not in repr(first)
    changes: list[str] = []
    secrets.on_change(lambda: changes.append("changed"))
    secrets.replace([first, second])
    assert changes == []
    secrets.replace([second, first])
    assert changes == ["changed"]
    assert secrets.first == second
    assert not secrets.are_public
    assert public_secrets().are_public
