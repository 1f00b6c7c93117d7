"""Who connects to NATS and how, on real nats-servers: logins, refusals, clusters, TLS, rotation."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from scripts.demos.certificates import Authority
from tests.fake_nats import BulkSink
from tests.integration.rig.nats_logins import Operator, nats_cluster, refusals, user_keys
from tests.integration.rig.waiting import LIMIT, until
from tidelog.nats.login import NatsLogin
from tidelog.nats.nats_connection import NatsConnection
from tidelog.nats.nats_errors import NatsRefused, NatsUnavailable
from tidelog.nats.nats_server import EmbeddedNatsServer

ONE_USER = "authorization { user: u, password: pw }"
RIGHT = NatsLogin(user="u", password="pw")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


def tls_of(authority: Authority, extra: str = "", name: str = "server") -> str:
    certificate, key = authority.issue(name)
    return f'tls {{ cert_file: "{certificate}", key_file: "{key}", ca_file: "{authority.ca}"\n{extra} }}'


async def used(connection: NatsConnection) -> bool:
    """Whether it carries messages; it is closed."""
    answers: list[bytes] = []
    await connection.subscribe("a", lambda message: answers.append(message.data))
    connection.publish("a", (b"x",))
    await connection.flush()
    await connection.close()
    return answers == [b"x"]


# ---- refusals


@pytest.mark.parametrize("login", [NatsLogin(), NatsLogin(user="u", password="wrong"), NatsLogin(token="wrong")])
async def test_a_cluster_refuses_once_with_a_sentence(tmp_path: Path, login: NatsLogin) -> None:
    """Each refusal brings the addresses of the cluster's servers; taken for new ones they were tried for ever."""
    with nats_cluster(tmp_path, ONE_USER) as servers:
        async with asyncio.timeout(LIMIT):
            with pytest.raises(
                NatsRefused, match=r"at nats://127\.0\.0\.1:\d+ refuses these credentials.*give the right"
            ):
                await NatsConnection.connect(servers[0].url, login=login)
        assert sum(map(refusals, servers)) == 1


async def test_a_refused_reconnect_is_tried_slowly_and_at_once_with_a_new_password(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    login = RIGHT
    with EmbeddedNatsServer(store_dir=tmp_path, config=ONE_USER) as server:
        connection = await NatsConnection.connect(server.url, login=lambda: login)
        server.stop()
        server._config = "authorization { user: u, password: new-password }"
        await asyncio.to_thread(server.start)
        await until(lambda: refusals(server))
        began, before = time.monotonic(), refusals(server)
        await until(lambda: refusals(server) >= before + 5)
        assert time.monotonic() - began > 2.5, "the pauses are a quarter of a second, a half, one, two, and so on"
        assert not connection.is_connected
        told = [record for record in caplog.records if "refuses the login" in record.getMessage()]
        assert told
        assert "Authorization Violation" in told[0].getMessage()
        login = NatsLogin(user="u", password="new-password")
        await until(lambda: connection.is_connected, timeout=7)  # the next pause is at least eight
        assert connection._client._refusals.failures == 0
        assert await used(connection)
    assert "new-password" not in caplog.text


async def test_what_is_refused_by_two_kinds_of_login_is_said_before_anything_is_sent(tmp_path: Path) -> None:
    with pytest.raises(NatsRefused, match=r"user and token are both given.*leave one out"):
        await NatsConnection.connect(login=NatsLogin(user="u", password="pw", token="t"))
    with pytest.raises(NatsRefused, match="the user 'u' is given without a password"):
        await NatsConnection.connect(login=NatsLogin(user="u"))
    with pytest.raises(NatsRefused, match=r"nobody\.creds cannot be read: No such file"):
        await NatsConnection.connect(login=NatsLogin(creds=tmp_path / "nobody.creds"))
    (tmp_path / "bad").write_text("SUNOSEED\n")
    with pytest.raises(NatsRefused, match="bad is not an NKey of a user: its seed is not valid"):
        await NatsConnection.connect(login=NatsLogin(nkey=tmp_path / "bad"))


# ---- the servers of a cluster


@pytest.mark.parametrize(
    ("config", "in_url", "login"),
    [
        (ONE_USER, "u:pw@", NatsLogin()),
        (ONE_USER, "", RIGHT),
        ("authorization { token: sesame }", "sesame@", NatsLogin()),
        ("authorization { user: u, password: 'p%/#@w' }", "u:p%25%2F%23%40w@", NatsLogin()),
    ],
)
async def test_a_lost_server_is_left_for_another_one_of_its_cluster_with_the_same_login(
    tmp_path: Path, config: str, in_url: str, login: NatsLogin
) -> None:
    with nats_cluster(tmp_path, config, size=3) as servers:
        url = servers[0].url.replace("//", f"//{in_url}")
        connection = await NatsConnection.connect(url, login=login)
        seen: set[str] = set()
        while len(seen) < 2:
            seen.add(connection.server_id)
            next(server for server in servers if server.port == connection.server_info["port"]).kill()
            await until(lambda: connection.server_id not in {"", *seen})
        assert sum(map(refusals, servers)) == 0
        assert await used(connection)


class PlainServer:
    """Listens as a nats-server of a given INFO, and keeps what is sent to it."""

    def __init__(self, **info: Any) -> None:
        self.info = {"server_id": "S", "version": "2.12.0", "max_payload": 1 << 20, "headers": True, **info}
        self.received = b""
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO %b\r\n" % json.dumps(self.info).encode())
        while line := await reader.readline():
            self.received += line
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    def connects(self) -> list[dict[str, Any]]:
        """What CONNECT said, each time."""
        lines = self.received.split(b"\r\n")
        return [json.loads(line.removeprefix(b"CONNECT ")) for line in lines if line.startswith(b"CONNECT ")]


@asynccontextmanager
async def plain_server(**info: Any) -> AsyncIterator[PlainServer]:
    server = PlainServer(**info)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()


async def test_a_server_that_has_left_the_cluster_gets_no_password_any_more() -> None:
    async with plain_server() as left, plain_server() as first:
        first.info["connect_urls"] = [f"127.0.0.1:{left.port}"]
        connection = await NatsConnection.connect(f"nats://u:pw@127.0.0.1:{first.port}")
        pool = connection._client._server_pool
        assert {server.uri.port for server in pool} == {first.port, left.port}
        await connection._client._process_info({"connect_urls": [f"127.0.0.1:{first.port}"]})
        assert {server.uri.port for server in connection._client._server_pool} == {first.port}
        await connection.close()
        assert [each["user"] for each in first.connects()] == ["u"]
        assert not left.received


async def test_what_is_no_address_of_a_server_is_not_tried() -> None:
    async with plain_server() as server:
        connection = await NatsConnection.connect(f"nats://127.0.0.1:{server.port}")
        told = ["h:99999", "h:x", "h", "", 7, None, "[::1", "u:p@good:1", "[::1]:2"]
        await connection._client._process_info({"connect_urls": told})
        found = [each.uri for each in connection._client._server_pool if each.discovered]
        assert [(uri.netloc, uri.hostname, uri.port) for uri in found] == [("good:1", "good", 1), ("[::1]:2", "::1", 2)]
        await connection.close()


async def test_each_url_has_its_own_login_and_those_told_of_have_that_of_the_one_that_told() -> None:
    async with plain_server() as told, plain_server() as second, plain_server() as first:
        first.info["connect_urls"] = [f"127.0.0.1:{told.port}"]
        urls = [f"nats://u{index}:pw{index}@127.0.0.1:{server.port}" for index, server in enumerate((first, second))]
        connection = await NatsConnection.connect(urls)
        logins = {address[1]: login.user for address, login in connection._client._url_logins.items() if login}
        joined = connection._client._current_server
        assert joined is not None
        expected = {first.port: "u0", second.port: "u1"}
        assert logins == (expected | {told.port: "u0"} if joined.uri.port == first.port else expected)
        await connection.close()


@pytest.mark.parametrize("pongs", [0, 1])
async def test_a_server_that_resets_the_first_connection_is_told_as_no_server(
    caplog: pytest.LogCaptureFixture, pongs: int
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id": "S", "max_payload": 1048576, "headers": true}\r\n')
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\n" * pongs)
        await writer.drain()
        at_once = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        writer.transport.abort()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        with pytest.raises(NatsUnavailable, match="no NATS server answers"):
            await NatsConnection.connect(f"nats://127.0.0.1:{port}", connect_timeout=5.0)
    assert "Traceback" not in caplog.text


# ---- TLS


@pytest.mark.parametrize("how", ["tls url", "ca", "tls", "tls_first"])
async def test_where_tls_is_wanted_nothing_is_sent_to_a_server_without_it(
    authority: Authority, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    async with plain_server() as server:
        scheme = "tls" if how == "tls url" else "nats"
        said = "tls_first" if how == "tls_first" else "offers no TLS, and nothing was sent to it"
        login = NatsLogin(
            user="u",
            password="secret-word",
            ca=authority.ca if how == "ca" else None,
            tls=how == "tls",
            tls_first=how == "tls_first",
        )
        with caplog.at_level(logging.DEBUG), pytest.raises(NatsUnavailable, match=said):
            await NatsConnection.connect(f"{scheme}://127.0.0.1:{server.port}", login=login, connect_timeout=5.0)
        assert b"CONNECT" not in server.received
        assert not server.received or how == "tls_first"
        assert "secret-word" not in caplog.text


async def test_a_reconnect_does_not_fall_back_to_plain_text(tmp_path: Path, authority: Authority) -> None:
    login = NatsLogin(user="u", password="secret-word", ca=authority.ca)
    rules = "authorization { user: u, password: secret-word }\n"
    with EmbeddedNatsServer(store_dir=tmp_path / "nats", config=rules + tls_of(authority)) as server:
        connection = await NatsConnection.connect(server.url, login=login)
        server.stop()
        fake = PlainServer()
        listening = await asyncio.start_server(fake.serve, "127.0.0.1", server.port)
        await until(lambda: connection._client._refusals.failures > 1)
        listening.close()
        assert not fake.received
        await asyncio.to_thread(server.start)
        await until(lambda: connection.is_connected)
        await connection.close()


async def test_tls_that_is_offered_and_not_required_is_used_where_it_is_wanted(
    tmp_path: Path, authority: Authority
) -> None:
    config = f"{ONE_USER}\n{tls_of(authority)}\nallow_non_tls: true"
    with EmbeddedNatsServer(store_dir=tmp_path / "nats", config=config) as server:
        for url, login in (
            (server.url, NatsLogin(user="u", password="pw", ca=authority.ca)),
            (server.url.replace("nats:", "tls:"), NatsLogin(user="u", password="pw", ca=authority.ca)),
        ):
            connection = await NatsConnection.connect(url, login=login)
            transport = connection._client.link_transport
            assert transport is not None
            assert transport.get_extra_info("sslcontext") is not None
            assert await used(connection)


async def test_a_certificate_of_another_authority_is_refused(tmp_path: Path, authority: Authority) -> None:
    other = Authority(tmp_path / "other")
    with EmbeddedNatsServer(store_dir=tmp_path / "nats", config=tls_of(authority)) as server:
        for login in (NatsLogin(), NatsLogin(ca=other.ca)):
            with pytest.raises(NatsRefused, match="certificate"):
                await NatsConnection.connect(server.url, login=login)


async def test_a_clients_certificate_of_another_authority_is_refused_with_a_sentence(
    tmp_path: Path, authority: Authority
) -> None:
    """The server ends the connection behind the handshake, and this may be noticed at any step that follows."""
    certificate, key = Authority(tmp_path / "other").issue("client")
    login = NatsLogin(ca=authority.ca, cert=certificate, key=key)
    with EmbeddedNatsServer(store_dir=tmp_path / "nats", config=tls_of(authority, "verify: true")) as server:
        for _ in range(20):
            with pytest.raises(NatsUnavailable, match="give the right certificates"):
                await NatsConnection.connect(server.url, login=login)


async def test_client_certificates_are_shown_and_reread(tmp_path: Path, authority: Authority) -> None:
    with EmbeddedNatsServer(store_dir=tmp_path / "nats", config=tls_of(authority, "verify: true")) as server:
        with pytest.raises(NatsRefused, match="wants a certificate of the client: give cert and key"):
            await NatsConnection.connect(server.url, login=NatsLogin(ca=authority.ca))
        certificate, key = authority.issue("client")
        login = NatsLogin(ca=authority.ca, cert=certificate, key=key)
        connection = await NatsConnection.connect(server.url, login=login)
        first = connection._client.login.tls
        authority.issue("client")
        server.kill()
        await until(lambda: not connection.is_connected)
        await asyncio.to_thread(server.start)
        await until(lambda: connection.is_connected)
        assert connection._client.login.tls is not first
        assert await used(connection)


async def test_files_that_do_not_fit_each_other_yet_change_nothing(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedNatsServer(store_dir=tmp_path / "nats", config=tls_of(authority, "verify: true")) as server:
        certificate, key = authority.issue("client")
        login = NatsLogin(ca=authority.ca, cert=certificate, key=key)
        connection = await NatsConnection.connect(server.url, login=login)
        other_certificate, _ = authority.issue("other")
        certificate.write_bytes(other_certificate.read_bytes())
        server.kill()
        await until(lambda: not connection.is_connected)
        await asyncio.to_thread(server.start)
        await until(lambda: connection.is_connected)
        assert await used(connection)
    assert "cannot be used as certificate and key" in caplog.text
    assert "going on with the login that was read before" in caplog.text


class TlsFirstServer(EmbeddedNatsServer):
    """It says nothing in plain text, so its port is all that can be waited for."""

    def _answers(self, ports_file: Path) -> bool:
        try:
            self.port = int(json.loads(ports_file.read_text())["nats"][0].rsplit(":", 1)[1])
        except (FileNotFoundError, ValueError):
            return False
        return True


async def test_tls_may_come_first(tmp_path: Path, authority: Authority) -> None:
    rules = f"{ONE_USER}\n{tls_of(authority, 'handshake_first: true')}"
    login = NatsLogin(user="u", password="pw", ca=authority.ca, tls_first=True)
    with TlsFirstServer(store_dir=tmp_path / "nats", config=rules) as server:
        connection = await NatsConnection.connect(server.url, login=login)
        assert await used(connection)
        with pytest.raises(NatsUnavailable, match="tls_first"):
            await NatsConnection.connect(
                server.url, login=NatsLogin(user="u", password="pw", ca=authority.ca), connect_timeout=1.0
            )


async def test_tls_carries_everything_and_reconnects(tmp_path: Path, authority: Authority) -> None:
    with EmbeddedNatsServer(store_dir=tmp_path / "nats", config=tls_of(authority)) as server:
        context = ssl.create_default_context(cafile=str(authority.ca))
        connection = await NatsConnection.connect(server.url, login=NatsLogin(tls_context=context))
        collector = BulkSink()
        await connection.subscribe_bulk("in", collector)
        for _ in range(2):
            collector.deliveries.clear()
            connection.publish_raw([b"PUB in 100\r\n%0100d\r\n" % index for index in range(3000)])
            connection.publish("in", (bytes(5_000_000),))
            await connection.flush()
            assert collector.payloads == [b"%0100d" % index for index in range(3000)] + [bytes(5_000_000)]
            server.kill()
            await until(lambda: not connection.is_connected)
            await asyncio.to_thread(server.start)
            await until(lambda: connection.is_connected)
        await connection.close()


async def test_the_servers_of_a_cluster_are_known_by_the_name_in_the_url(tmp_path: Path, authority: Authority) -> None:
    """nats-servers tell each other's addresses; their certificates are for names."""
    with nats_cluster(tmp_path, tls_of(authority)) as servers:
        url = f"tls://localhost:{servers[0].port}"
        connection = await NatsConnection.connect(url, login=NatsLogin(ca=authority.ca))
        told = [server for server in connection._client._server_pool if server.discovered]
        assert {server.tls_name for server in told} == {"localhost"}
        servers[0].kill()
        await until(lambda: connection.is_connected and connection.server_info["port"] == servers[1].port)
        assert await used(connection)


# ---- kinds of login


async def test_a_token_is_needed_and_survives_a_restart(tmp_path: Path) -> None:
    with EmbeddedNatsServer(store_dir=tmp_path / "nats", config="authorization { token: sesame }") as server:
        with pytest.raises(NatsRefused, match="refuses these credentials"):
            await NatsConnection.connect(server.url)
        connection = await NatsConnection.connect(server.url, login=NatsLogin(token="sesame"))
        server.kill()
        await until(lambda: not connection.is_connected)
        await asyncio.to_thread(server.start)
        await until(lambda: connection.is_connected)
        await connection.close()


async def test_an_nkey_signs(tmp_path: Path) -> None:
    keys, file = user_keys(), tmp_path / "user.nk"
    file.write_text(keys.seed + "\n")
    config = f"authorization {{ users: [{{ nkey: {keys.public} }}] }}"
    with EmbeddedNatsServer(store_dir=tmp_path / "nats", config=config) as server:
        assert await used(await NatsConnection.connect(server.url, login=NatsLogin(nkey=file)))
        file.write_text(user_keys().seed)
        with pytest.raises(NatsRefused, match="refuses these credentials"):
            await NatsConnection.connect(server.url, login=NatsLogin(nkey=file))


async def test_a_creds_file_is_read_anew_for_each_attempt(tmp_path: Path) -> None:
    first, second = Operator(), Operator()
    file = first.creds(tmp_path / "user.creds")
    with EmbeddedNatsServer(store_dir=tmp_path / "nats", config=first.config) as server:
        connection = await NatsConnection.connect(server.url, login=NatsLogin(creds=file))
        server.stop()
        server._config = second.config
        await asyncio.to_thread(server.start)
        await until(lambda: refusals(server))
        file.write_text("half writ")
        await asyncio.sleep(0.5)
        second.creds(file)
        await until(lambda: connection.is_connected)
        assert await used(connection)


@pytest.mark.parametrize("kind", ["nkey", "creds"])
async def test_without_the_package_for_nkeys_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setitem(sys.modules, "nkeys", None)
    with pytest.raises(NatsRefused, match=r"pip install nkeys.*extra 'nkeys'"):
        await NatsConnection.connect(login=NatsLogin(**{kind: tmp_path / "file"}))  # type: ignore[arg-type]


async def test_files_that_cannot_be_read_hold_nothing_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file system that hangs: the reconnect goes on with what was read before, and the loop with its work."""
    released = threading.Event()
    readings: list[bool] = []

    def login() -> NatsLogin:
        readings.append(released.wait(60 if readings else 0))
        return RIGHT

    with EmbeddedNatsServer(store_dir=tmp_path / "nats", config=ONE_USER) as server:
        connection = await NatsConnection.connect(server.url, login=login)
        server.kill()
        server.start()
        longest = before = time.monotonic()
        longest = 0.0
        while not (connection.counters.losses and connection.is_connected):
            await asyncio.sleep(0.01)
            now = time.monotonic()
            longest, before = max(longest, now - before), now
        assert longest < 10, "the reading would hold the loop up for a minute"
        assert len(readings) == 1, "one reading waits, and no further one is begun"
        assert "cannot be read within 2 s; going on with the login that was read before" in caplog.text
        released.set()
        assert await used(connection)
