"""Brokers, clients and the command line on nats-servers that ask who connects, over TLS."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import tidelog
from scripts.demos.certificates import Authority
from tests.integration.rig.command_line import COMMAND, assert_refused, tidelog_command
from tests.integration.rig.nats_logins import nats_cluster, refusals, reload, user_keys
from tests.integration.rig.waiting import LIMIT, until, wait_until
from tidelog.nats.nats_server import EmbeddedNatsServer
from tidelog.process.loopback import free_addresses, free_ports

PASSWORD = "known-only-here"
ROTATED = "known-only-later"


@contextmanager
def broker(folder: Path, config: str, name: str = "b1") -> Iterator[subprocess.Popen[bytes]]:
    """`tidelog server`, with its log in FOLDER/broker.log."""
    file = folder / f"{name}.toml"
    file.write_text(f'id = "{name}"\ndata_dir = "data"\n{config}')
    with (folder / "broker.log").open("ab") as log:
        process = subprocess.Popen([*COMMAND, "server", "--config", str(file)], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(2 * LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"{name} does not end:\n{(folder / 'broker.log').read_text()[-3000:]}") from None


def rules(password: str, authority: Authority, name: str) -> str:
    certificate, key = authority.issue(name)
    return (
        f"authorization {{ user: u, password: {password} }}\n"
        f'tls {{ cert_file: "{certificate}", key_file: "{key}", ca_file: "{authority.ca}", verify: true }}'
    )


def assert_nowhere(secret: str, folder: Path) -> None:
    """Not in any log below the folder."""
    for log in folder.rglob("*.log"):
        assert secret not in log.read_text(errors="replace"), log


@pytest.mark.parametrize("arguments", [["stream", "list"], ["stream", "create", "s"], ["server", "--id", "b9"]])
def test_a_command_without_or_with_a_wrong_login_is_refused_once(tmp_path: Path, arguments: list[str]) -> None:
    with nats_cluster(tmp_path, f"authorization {{ user: u, password: {PASSWORD} }}") as servers:
        where = ["--nats", servers[0].url, "--data-dir", str(tmp_path / "d")]
        where = where if arguments[0] == "server" else ["--server", servers[0].url]
        (tmp_path / "wrong").write_text("wrong")
        (tmp_path / "wrong").chmod(0o600)
        for login in ([], ["--user", "u", "--password-file", str(tmp_path / "wrong")]):
            done = tidelog_command(*arguments, *where, *login)
            assert_refused(done, "refuses these credentials", servers[0].url, "give the right user and password")
        assert sum(map(refusals, servers)) == 2


def test_a_password_among_the_arguments_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"nats://u:{PASSWORD}@127.0.0.1:1"
    for arguments in (["stream", "list", "--server", url], ["server", "--config", str(tmp_path / "no"), "--nats", url]):
        done = tidelog_command(*arguments)
        assert "WARNING: the password or token in --" in done.stderr
        assert "ps" in done.stderr
        assert PASSWORD not in done.stderr
    monkeypatch.setenv("TIDELOG_SERVER", url)
    done = tidelog_command("stream", "list")
    assert "WARNING" not in done.stderr
    assert PASSWORD not in done.stderr


async def test_a_lost_server_is_left_for_another_with_the_password_and_no_record_is_lost(tmp_path: Path) -> None:
    """The password is in the URL of the broker's file; the clients' is in the environment and in a context."""
    config = f"authorization {{ user: u, password: {PASSWORD} }}"
    with nats_cluster(tmp_path, config) as servers:
        url = servers[0].url.replace("//", f"//u:{PASSWORD}@")
        with broker(tmp_path, f'nats = "{url}"\n') as process:
            context = tmp_path / "nats" / "context" / "prod.json"
            context.parent.mkdir(parents=True)
            context.write_text(json.dumps({"url": servers[0].url, "user": "u", "password": PASSWORD}))
            await until((tmp_path / "data" / "ready").exists)
            environment = {"XDG_CONFIG_HOME": str(tmp_path)}
            done = await asyncio.to_thread(
                subprocess.run,
                [*COMMAND, "stream", "create", "s", "--context", "prod"],
                env=os.environ | environment,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == 0, done.stderr
            assert f"{context} is open to other users" in done.stderr
            async with await tidelog.connect(servers[0].url, user="u", password=PASSWORD) as client:
                async with client.producer("s") as producer:
                    await producer.send(b"first")
                    servers[0].kill()
                    receipts = [await producer.send(b"%d" % number) for number in range(100)]
                assert receipts
                assert set((await client.offsets("s", "latest")).values()) == {101}
            assert Path(f"/proc/{process.pid}/cmdline").read_bytes().count(PASSWORD.encode()) == 0
        assert refusals(servers[1]) == 0
    assert_nowhere(PASSWORD, tmp_path)
    log = (tmp_path / "broker.log").read_text()
    assert f"{tmp_path / 'b1.toml'} is open to other users of this machine" in log


async def test_passwords_and_certificates_are_rotated_under_load_without_a_failed_write(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    secret = tmp_path / "password"
    secret.write_text(PASSWORD)
    secret.chmod(0o600)
    certificate, key = authority.issue("client")
    config = rules(PASSWORD, authority, "server")
    with EmbeddedNatsServer(store_dir=tmp_path / "nats", port=free_ports(1)[0], config=config) as server:
        login = (
            f'user = "u"\npassword_file = "password"\nca = "{authority.ca}"\ncert = "{certificate}"\nkey = "{key}"\n'
        )
        with broker(tmp_path, f'nats = "{server.url}"\n[login]\n{login}'):
            await until((tmp_path / "data" / "ready").exists)
            client = await tidelog.connect(
                server.url, user="u", password_file=secret, ca=authority.ca, cert=certificate, key=key
            )
            await client.create_stream("s")
            producer = client.producer("s")
            sent, stop = 0, asyncio.Event()

            async def load() -> None:
                nonlocal sent
                while not stop.is_set():
                    await producer.send(b"%d" % sent)
                    sent += 1

            running = asyncio.create_task(load())
            await until(lambda: sent > 50)
            # The server's certificate first, without anybody noticing; then the password and the client's certificate.
            reload(server, rules(PASSWORD, authority, "server"))
            authority.issue("client")
            secret.write_text(ROTATED)
            reload(server, rules(ROTATED, authority, "server"))
            await until(lambda: client._transport.counters.losses)  # type: ignore[attr-defined]
            at_rotation = sent
            await until(lambda: sent > at_rotation + 50)
            stop.set()
            await running
            await producer.close()
            assert set((await client.offsets("s", "latest")).values()) == {sent}
            await client.close()
    for password in (PASSWORD, ROTATED):
        assert_nowhere(password, tmp_path)


async def test_a_seed_is_replaced_under_load_and_no_acknowledged_record_is_lost(tmp_path: Path) -> None:
    """nats-server knows the new key alone from then on, and cuts off the broker and the client."""
    seed, keys = tmp_path / "seed", [user_keys(), user_keys()]
    configs = [f"authorization {{ users: [{{ nkey: {key.public} }}] }}" for key in keys]
    seed.write_text(keys[0].seed)
    seed.chmod(0o600)
    with (
        EmbeddedNatsServer(store_dir=tmp_path / "nats", port=free_ports(1)[0], config=configs[0]) as server,
        broker(tmp_path, f'nats = "{server.url}"\n[login]\nnkey = "seed"\n'),
    ):
        await until((tmp_path / "data" / "ready").exists)
        async with await tidelog.connect(server.url, nkey=seed) as client:
            await client.create_stream("s")
            acknowledged: list[bytes] = []
            stop = asyncio.Event()

            async def load() -> None:
                async with client.producer("s") as producer:
                    while not stop.is_set():
                        value = b"%d" % len(acknowledged)
                        await producer.send(value)
                        acknowledged.append(value)

            running = asyncio.create_task(load())
            await until(lambda: len(acknowledged) > 50)
            seed.write_text(keys[1].seed)
            reload(server, configs[1])
            await until(lambda: client._transport.counters.losses)  # type: ignore[attr-defined]
            before = len(acknowledged)
            await until(lambda: len(acknowledged) > before + 50)
            stop.set()
            await running
            found = [record.value async for record in client.consume("s", start="earliest", stop="latest")]
            assert found == acknowledged
    assert "the connection to NATS was lost" in (tmp_path / "broker.log").read_text()
    for key in keys:
        assert_nowhere(key.seed, tmp_path)


def test_a_broker_makes_files_for_itself_alone_and_names_a_folder_that_is_open(tmp_path: Path) -> None:
    with EmbeddedNatsServer(store_dir=tmp_path / "nats") as server:
        for mode in (None, 0o755):
            if mode is not None:
                (tmp_path / "data").chmod(mode)
            with broker(tmp_path, f'nats = "{server.url}"\n'):
                wait_until((tmp_path / "data" / "ready").exists, "the broker")
                log = (tmp_path / "broker.log").read_text()
                assert (f"{tmp_path / 'data'} is open to other users" in log) == (mode is not None)
            if mode is None:
                data = tmp_path / "data"
                opened = [path for path in (data, *data.rglob("*")) if path.stat().st_mode & 0o077]
                assert not opened
                assert data.stat().st_mode & 0o777 == 0o700


async def test_brokers_speak_raft_over_tls_with_certificates_that_are_rotated(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    (tmp_path / "secret").write_text("0123456789abcdef")
    ids = ["b1", "b2", "b3"]
    addresses = dict(zip(ids, free_addresses(3), strict=True))
    with EmbeddedNatsServer(store_dir=tmp_path / "nats") as server, ExitStack() as stack:

        def start(name: str) -> subprocess.Popen[bytes]:
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            certificate, key = authority.issue(name)
            peers = ", ".join(f'{other} = "{addresses[other]}"' for other in ids if other != name)
            config = (
                f'nats = "{server.url}"\nraft_address = "{addresses[name]}"\nraft_peers = {{ {peers} }}\n'
                f'raft_secret_file = "{tmp_path / "secret"}"\n'
                f'raft_ca = "{authority.ca}"\nraft_cert = "{certificate}"\nraft_key = "{key}"\n'
            )
            return stack.enter_context(broker(folder, config, name))

        processes = {name: start(name) for name in ids}
        for name in ids:
            await until((tmp_path / name / "data" / "ready").exists)
        async with await tidelog.connect(server.url) as client:
            await client.create_stream("s", replication_factor=3)
            async with client.producer("s") as producer:
                await producer.send(b"first")
                for name in ids:
                    authority.issue(name)
                processes["b2"].kill()
                processes["b2"].wait()
                (tmp_path / "b2" / "data" / "ready").unlink(missing_ok=True)
                start("b2")
                await producer.send(b"second")
                await until((tmp_path / "b2" / "data" / "ready").exists)
        host, port = addresses["b1"].rsplit(":", 1)
        context = ssl.create_default_context(cafile=str(authority.ca))
        with socket.create_connection((host, int(port))) as plain:
            stranger = context.wrap_socket(plain, server_hostname=host)
            stranger.sendall(b"hello")
            with pytest.raises(ssl.SSLError, match="certificate"):
                stranger.recv(1)
        log = tmp_path / "b1" / "broker.log"
        await until(lambda: "no TLS with it (PEER_DID_NOT_RETURN_A_CERTIFICATE)" in log.read_text())
