"""Connections and the listener over real loopback sockets, driven by polling, without a loop or a thread."""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from metadata.raft.connection import ACCEPT_PAUSE_S, CONNECTED, DISCONNECTED, FramedConnection, FrameServer
from metadata.raft.framing import FrameSession
from metadata.raft.poller import EpollPoller
from metadata.raft.ports import StreamSocket
from wire.security.cluster_secrets import ClusterSecret, ClusterSecrets

SECRET = ClusterSecrets([ClusterSecret(b"0123456789abcdef")])


@dataclass
class Ends:
    """A listener, and one connection from each side of it."""

    poller: EpollPoller = field(default_factory=EpollPoller)
    accepted: list[FramedConnection] = field(default_factory=list)
    received: list[object] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)
    """Which ends have met a first frame that does not verify."""
    now: float = 0.0

    def __post_init__(self) -> None:
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.server = FrameServer(self.poller, self.listener, on_accepted=self._accept, monotonic=self.clock)

    def clock(self) -> float:
        return self.now

    def _accept(self, accepted: StreamSocket, _host: str) -> None:
        connection = FramedConnection(
            self.poller,
            secrets=SECRET,
            acceptor_address="self",
            monotonic=self.clock,
            accepted=accepted,
            on_unverified=lambda: self.unverified.append("acceptor"),
        )
        connection.setOnMessageReceivedCallback(self.received.append)
        self.accepted.append(connection)

    def connect(self, secret: ClusterSecrets = SECRET) -> FramedConnection:
        connection = FramedConnection(
            self.poller,
            secrets=secret,
            acceptor_address="self",
            monotonic=self.clock,
            on_unverified=lambda: self.unverified.append("initiator"),
        )
        assert connection.connect("127.0.0.1", self.port)
        return connection

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline
            self.poller.poll(0.01)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    for connection in made.accepted:
        connection.disconnect()
    made.server.unbind()
    made.poller.close()


def test_messages_arrive_after_the_introduction(ends: Ends) -> None:
    connection = ends.connect()
    connection.setOnConnectedCallback(lambda: connection.send("127.0.0.1:9"))
    ends.until(lambda: ends.received)
    assert ends.received == ["127.0.0.1:9"]
    assert connection.established
    assert ends.accepted[0].established
    connection.disconnect()


def test_n_the_rest_of_a_partial_send_leaves_when_the_socket_takes_more(ends: Ends) -> None:
    connection = ends.connect()
    ends.until(lambda: connection.state == CONNECTED)
    message = b"x" * (12 << 20)
    connection.send("first")
    connection.send(message)
    assert connection.unsent_bytes > 0, "more than the socket buffers take at once"
    ends.until(lambda: len(ends.received) == 2)
    assert ends.received[1] == message
    connection.disconnect()


def test_the_last_message_of_a_dying_peer_is_still_read(ends: Ends) -> None:
    connection = ends.connect()
    ends.until(lambda: connection.state == CONNECTED)
    connection.send("last words")
    connection.disconnect()
    ends.until(lambda: ends.accepted[0].state == DISCONNECTED)
    assert ends.received == ["last words"]


def test_another_secret_is_never_connected(ends: Ends) -> None:
    connection = ends.connect(ClusterSecrets([ClusterSecret(b"another secret!!")]))
    lost: list[bool] = []
    connection.setOnDisconnectedCallback(lambda: lost.append(connection.established))
    ends.until(lambda: lost)
    assert lost == [False]
    ends.until(lambda: ends.accepted[0].state == DISCONNECTED)
    assert ends.received == []
    assert sorted(ends.unverified) == ["acceptor", "initiator"], "both know why"


@pytest.mark.parametrize("junk", [b"GET / HTTP/1.0\r\n\r\n" * 4, struct.pack("<I", 1 << 31) * 100])
def test_a_stranger_is_dropped_at_its_first_bytes(ends: Ends, junk: bytes) -> None:
    with socket.create_connection(("127.0.0.1", ends.port)) as stranger:
        stranger.sendall(junk)
        ends.until(lambda: ends.accepted and ends.accepted[0].state == DISCONNECTED)
    assert ends.received == []


def test_a_connection_that_ended_can_be_made_again(ends: Ends) -> None:
    connection = ends.connect()
    ends.until(lambda: connection.state == CONNECTED)
    ends.accepted[0].disconnect()
    ends.until(lambda: connection.state == DISCONNECTED)
    assert connection.connect("127.0.0.1", ends.port)
    ends.until(lambda: connection.state == CONNECTED)
    connection.send("again")
    ends.until(lambda: ends.received)
    assert ends.received == ["again"]
    connection.disconnect()


def test_a_refused_connection_ends_disconnected(ends: Ends) -> None:
    ends.server.unbind()
    connection = FramedConnection(ends.poller, secrets=SECRET, acceptor_address="self", monotonic=ends.clock)
    lost: list[bool] = []
    connection.setOnDisconnectedCallback(lambda: lost.append(True))
    if connection.connect("127.0.0.1", ends.port):
        ends.until(lambda: lost)
    assert connection.state == DISCONNECTED


def test_a_full_file_table_pauses_accepting_and_does_not_end_it(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __init__(self, listener: socket.socket) -> None:
            self.fileno = listener.fileno
            self.attempts = 0

        def accept(self) -> None:
            self.attempts += 1
            raise OSError(errno.EMFILE, "Too many open files")

    full = Full(ends.listener)
    monkeypatch.setattr(ends.server, "_listener", full)
    connection = ends.connect()
    ends.until(lambda: full.attempts)
    for _ in range(20):
        ends.poller.poll(0)
    assert full.attempts == 1, "no spinning"
    monkeypatch.undo()
    ends.now += ACCEPT_PAUSE_S
    connection.last_received = ends.now
    ends.server.resume()
    ends.until(lambda: connection.state == CONNECTED)
    connection.disconnect()


def test_a_peer_that_does_not_read_is_dropped_at_a_limit(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = ends.connect()
    ends.until(lambda: connection.state == CONNECTED)
    monkeypatch.setattr("metadata.raft.connection.MAX_UNSENT_BYTES", 20 << 20)
    connection.send(b"x" * (15 << 20))
    connection.send(b"x" * (15 << 20))
    assert connection.state == DISCONNECTED


def test_a_callback_that_disconnects_gets_nothing_more(ends: Ends) -> None:
    connection = ends.connect()
    ends.until(lambda: connection.state == CONNECTED)
    server_side = ends.accepted[0]
    received: list[object] = []

    def take(message: object) -> None:
        received.append(message)
        server_side.disconnect()

    server_side.setOnMessageReceivedCallback(take)
    for number in range(3):
        connection.send(number)
    ends.until(lambda: connection.state == DISCONNECTED)
    assert received == [0]


def test_a_waiting_poll_is_woken(ends: Ends) -> None:
    ends.poller.wake()
    began = time.monotonic()
    ends.poller.poll(60)
    assert time.monotonic() - began < 30
    assert ends.poller.handled == 1
    ends.poller.poll(0)
    assert ends.poller.handled == 0


def test_events_of_a_closed_socket_do_not_reach_its_successor(ends: Ends) -> None:
    left, right = socket.socketpair()
    other_left, other_right = socket.socketpair()
    called: list[str] = []

    def replace(_descriptor: int, _events: int) -> None:
        called.append("first")
        for victim in (left, other_left):
            ends.poller.unsubscribe(victim.fileno())
            ends.poller.subscribe(victim.fileno(), lambda *_: called.append("successor"), 0)

    for victim in (left, other_left):
        ends.poller.subscribe(victim.fileno(), replace, 1)
    right.send(b"x")
    other_right.send(b"x")
    ends.poller.poll(1)
    assert called == ["first"]
    for victim in (left, other_left):
        ends.poller.unsubscribe(victim.fileno())
    for open_socket in (left, right, other_left, other_right):
        open_socket.close()


def test_an_acceptor_sends_nothing_before_the_hello(ends: Ends) -> None:
    with socket.create_connection(("127.0.0.1", ends.port)) as stranger:
        ends.until(lambda: ends.accepted)
        stranger.settimeout(0)
        with pytest.raises(BlockingIOError):
            stranger.recv(1)
        session = FrameSession(secrets=SECRET, nonce=b"n" * 16, initiator=True, acceptor_address="self")
        stranger.sendall(session.hello())
        ends.poller.poll(1)
        stranger.settimeout(5)
        session.feed(stranger.recv(4096))
        assert session.next_message() == ["welcome", ""]
