"""Raft connections on TLS, over real loopback sockets: both ends are judged, nothing passes in plain text."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from metadata.raft import RaftCertificates, RaftConfigurationError
from metadata.raft.connection import CONNECTED, DISCONNECTED, FramedConnection, FrameServer
from metadata.raft.poller import EpollPoller
from metadata.raft.ports import StreamSocket
from metadata.raft.tls import RaftTls
from scripts.demos.certificates import Authority
from wire.security.cluster_secrets import ClusterSecret, ClusterSecrets

SECRET = ClusterSecrets([ClusterSecret(b"0123456789abcdef")])


def certificates(authority: Authority, name: str) -> RaftCertificates:
    certificate, key = authority.issue(name)
    return RaftCertificates(ca=authority.ca, cert=certificate, key=key)


class Acceptor:
    def __init__(self, tls: RaftTls | None) -> None:
        self.poller = EpollPoller()
        self.received: list[object] = []
        self.accepted: list[FramedConnection] = []
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        self._tls = tls
        self._server = FrameServer(self.poller, listener, on_accepted=self._accept, monotonic=time.monotonic)

    def _accept(self, accepted: StreamSocket, _host: str) -> None:
        connection = FramedConnection(
            self.poller,
            secrets=SECRET,
            acceptor_address=f"127.0.0.1:{self.port}",
            monotonic=time.monotonic,
            tls=self._tls,
            accepted=accepted,
        )
        connection.setOnMessageReceivedCallback(self.received.append)
        self.accepted.append(connection)

    def connect(self, tls: RaftTls | None, host: str = "127.0.0.1") -> FramedConnection:
        connection = FramedConnection(
            self.poller,
            secrets=SECRET,
            acceptor_address=f"{host}:{self.port}",
            monotonic=time.monotonic,
            tls=tls,
        )
        assert connection.connect("127.0.0.1", self.port)
        return connection

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline
            self.poller.poll(0.01)

    def close(self) -> None:
        for connection in self.accepted:
            connection.disconnect()
        self._server.unbind()
        self.poller.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "group")


@pytest.fixture
def acceptor(authority: Authority) -> Iterator[Acceptor]:
    made = Acceptor(RaftTls(certificates(authority, "acceptor")))
    yield made
    made.close()


def test_messages_of_all_sizes_arrive_in_order_both_ways(acceptor: Acceptor, authority: Authority) -> None:
    connection = acceptor.connect(RaftTls(certificates(authority, "initiator")))
    answers: list[object] = []
    connection.setOnMessageReceivedCallback(answers.append)
    acceptor.until(lambda: connection.state == CONNECTED)
    sent = [b"x" * size for size in (0, 1, 16_384, 3_000_000, 5, 70_000)]
    for message in sent:
        connection.send(message)
    acceptor.until(lambda: len(acceptor.received) == len(sent))
    assert acceptor.received == sent
    for message in sent:
        acceptor.accepted[0].send(message)
    acceptor.until(lambda: len(answers) == len(sent))
    assert answers == sent
    connection.disconnect()


def refused(acceptor: Acceptor, tls: RaftTls | None, host: str = "127.0.0.1") -> None:
    connection = acceptor.connect(tls, host)
    connected: list[bool] = []
    connection.setOnConnectedCallback(lambda: connected.append(True))
    acceptor.until(lambda: acceptor.accepted and acceptor.accepted[-1].state == DISCONNECTED)
    acceptor.until(lambda: connection.state == DISCONNECTED)
    assert not connected
    assert not acceptor.received


def test_another_authority_another_name_and_plain_text_are_refused(
    acceptor: Acceptor, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Authority(tmp_path / "other", "other")
    refused(acceptor, None)
    foreign = certificates(other, "foreign")
    refused(acceptor, RaftTls(foreign))
    assert foreign.key is not None
    refused(acceptor, RaftTls(RaftCertificates(ca=authority.ca, cert=foreign.cert, key=foreign.key)))
    refused(acceptor, RaftTls(certificates(authority, "own")), host="another.example")
    assert "no TLS with it (Hostname mismatch" in caplog.text
    assert (
        "no TLS with it (self-signed certificate in certificate chain" in caplog.text or "unable to get" in caplog.text
    )


def test_an_initiator_with_tls_tells_a_plain_acceptor_nothing(authority: Authority) -> None:
    plain = Acceptor(None)
    connection = plain.connect(RaftTls(certificates(authority, "initiator")))
    plain.until(lambda: plain.accepted and plain.accepted[0].state == DISCONNECTED)
    plain.until(lambda: connection.state == DISCONNECTED)
    assert not plain.received
    plain.close()


def test_new_connections_use_new_files_and_bad_ones_change_nothing(
    acceptor: Acceptor, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    of_initiator = certificates(authority, "initiator")
    tls = RaftTls(of_initiator)
    caplog.set_level(logging.INFO)
    for change in (lambda: None, lambda: authority.issue("initiator"), lambda: of_initiator.cert.write_text("half")):
        change()
        connection = acceptor.connect(tls)
        acceptor.until(lambda: connection.state == CONNECTED)  # noqa: B023 - called at once
        connection.disconnect()
        assert tls._looking is not None
        tls._looking.join(10)
    assert "Raft connections have new certificates" in caplog.text
    assert "going on with the earlier ones" in caplog.text


def test_files_that_cannot_be_used_are_named_at_the_start(authority: Authority, tmp_path: Path) -> None:
    good = certificates(authority, "good")
    missing = RaftCertificates(ca=authority.ca, cert=tmp_path / "missing", key=good.key)
    with pytest.raises(
        RaftConfigurationError,
        match=r"^TLS of Raft connections: the certificate \(raft_cert\) .*missing cannot be read: No such file",
    ):
        RaftTls(missing)
    with pytest.raises(RaftConfigurationError, match="KEY_VALUES_MISMATCH"):
        RaftTls(RaftCertificates(ca=authority.ca, cert=good.cert, key=certificates(authority, "other").key))


def test_a_file_system_that_hangs_keeps_no_connection_from_being_made(
    acceptor: Acceptor, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = RaftTls(certificates(authority, "initiator"))
    released = threading.Event()
    looks: list[None] = []
    look = tls._look

    def hang() -> list[tuple[int, int, int]]:
        looks.append(None)
        released.wait(30)
        return look()

    monkeypatch.setattr(tls, "_look", hang)
    for _ in range(3):
        connection = acceptor.connect(tls)
        acceptor.until(lambda: connection.state == CONNECTED)  # noqa: B023 - called at once
        connection.disconnect()
    assert len(looks) == 1
    released.set()
