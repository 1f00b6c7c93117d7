"""Who reaches the port for Liftbridge's clients, and what they may do there: TLS, certificates, logins."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError

from scripts.demos.certificates import Authority
from tests.integration.liftbridge.liftbridge_stub import Stub, stub
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.least_privilege import PASSWORD, client_of, printed, with_password
from tests.integration.rig.waiting import LIMIT, until
from tidelog.nats.nats_server import EmbeddedNatsServer
from tidelog.process.loopback import free_addresses, free_ports
from tidelog.process.private_files import PRIVATE_UMASK
from wire.protobuf import liftbridge_pb2 as pb
from wire.protobuf.tidelog_pb2 import AckPolicy

OF_PORT = ("--role", "producer", "--role", "consumer", "--role", "monitoring")


def ask(**options: Any) -> pb.FetchMetadataRequest:
    return pb.FetchMetadataRequest(**options)


def of(authority: Authority, pair: tuple[Path, Path] | None = None) -> grpc.ChannelCredentials:
    cert, key = (None, None) if pair is None else (pair[0].read_bytes(), pair[1].read_bytes())
    return grpc.ssl_channel_credentials(authority.ca.read_bytes(), key, cert)


async def answers(calls: Stub) -> bool:
    """False: the handshake is refused."""
    try:
        await calls.call(ask())
    except AioRpcError as error:
        if error.code() is StatusCode.UNAVAILABLE:
            return False
        raise
    return True


async def test_tls_and_certificates_keep_strangers_out(tmp_path: Path) -> None:
    authority, another = Authority(tmp_path / "ca"), Authority(tmp_path / "another")
    cert, key = authority.issue("b1")
    port = free_ports(1)[0]
    settings = {
        "b1": {
            "liftbridge_port": port,
            "liftbridge_cert": str(cert),
            "liftbridge_key": str(key),
            "liftbridge_ca": str(authority.ca),
        }
    }
    with dev_cluster(tmp_path / "cluster", nodes=1, settings_of=settings):
        address = f"127.0.0.1:{port}"
        async with stub(address, of(authority, authority.issue("client"))) as calls:
            assert (await calls.call(ask())).brokers[0].port == port
        for stranger in (of(authority), of(authority, another.issue("stranger")), None):
            async with stub(address, stranger) as calls:
                assert not await answers(calls)
        # A new certificate, of another authority: the next connections are shown it.
        new_cert, new_key = another.issue("b1")
        key.write_bytes(new_key.read_bytes())
        cert.write_bytes(new_cert.read_bytes())

        async def is_new() -> bool:
            async with stub(address, of(another, authority.issue("client"))) as calls:
                return await answers(calls)

        await until(is_new, "the new certificate")


async def test_the_port_may_do_what_its_login_may(tmp_path: Path) -> None:
    users = [
        printed("--role", "broker", "--broker", "b1", "--subject", "orders", "--user", "broker-b1"),
        printed(*OF_PORT, "--stream", "orders", "--subject", "orders", "--user", "port"),
        printed("--role", "admin", "--user", "admin"),
    ]
    config = with_password("authorization {\n  users = [\n" + "\n".join(users) + "\n  ]\n}\n")
    login = tmp_path / "login.toml"
    login.touch(mode=0o777 & ~PRIVATE_UMASK)
    login.write_text(f'[login]\nuser = "port"\npassword = "{PASSWORD}"\ninbox_prefix = "_INBOX.port"\n')
    port = free_ports(1)[0]
    own = {"login": {"user": "broker-b1", "password": PASSWORD}, "liftbridge_port": port}
    options: dict[str, Any] = {"nodes": 1, "nats_config": config}
    with dev_cluster(tmp_path / "c", settings_of={"b1": {**own, "liftbridge_login": str(login)}}, **options) as cluster:
        async with await client_of(cluster, "admin") as admin, stub(f"127.0.0.1:{port}") as calls:
            await admin.create_stream("orders")
            for policy in (AckPolicy.ALL, AckPolicy.NONE):
                await calls.call(pb.PublishRequest(stream="orders", value=b"x", ackPolicy=policy))
            request = pb.SubscribeRequest(stream="orders", startPosition=pb.EARLIEST, stopPosition=pb.STOP_OFFSET)
            messages, _, _ = await calls.records(request)
            assert [message.value for message in messages] == [b"x"]
            assert [each.name for each in (await calls.call(ask())).streamMetadata][1:] == ["orders"]
            for wrong in (
                pb.CreateStreamRequest(subject="mine", name="mine"),
                pb.DeleteStreamRequest(name="orders"),
                pb.SetStreamReadonlyRequest(name="orders", readonly=True),
            ):
                code, sentence = await calls.refusal(wrong)
                assert (code, "port" in sentence) == (StatusCode.PERMISSION_DENIED, True), sentence


def start(folder: Path, nats: str, *lines: str, before: str = "pass") -> str:
    """What a broker says whose start fails."""
    config = folder / "b9.toml"
    config.write_text("\n".join(['id = "b9"', f'nats = "{nats}"', 'data_dir = "b9"', *lines]) + "\n")
    code = f"{before}; from tidelog.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "server", "--config", str(config)],
        capture_output=True, text=True, timeout=2 * LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


async def test_a_port_that_cannot_be_opened_ends_the_start_with_a_sentence(tmp_path: Path) -> None:
    taken = int(free_addresses(1)[0].rpartition(":")[2])
    with dev_cluster(tmp_path / "c", nodes=1, settings_of={"b1": {"liftbridge_port": taken}}) as cluster:

        def said(*lines: str, before: str = "pass") -> str:
            return start(tmp_path, cluster.nats_url, *lines, before=before)

        here = f"liftbridge_port = {taken}"
        assert f"127.0.0.1:{taken} cannot be listened on" in await asyncio.to_thread(said, here)
        missing = await asyncio.to_thread(said, here, before="import sys; sys.modules['grpc'] = None")
        assert "pip install 'tidelog[liftbridge]'" in missing
        no_file = await asyncio.to_thread(said, here, 'liftbridge_cert = "nowhere.pem"')
        assert "nowhere.pem" in no_file
        (tmp_path / "text.pem").write_text("text")
        no_cert = await asyncio.to_thread(said, here, 'liftbridge_cert = "text.pem"')
        assert "text.pem" in no_cert


@pytest.mark.parametrize("text", ["", "not TOML =", "[login]\nuser = 3\n"])
async def test_a_login_that_is_none_ends_the_start_with_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "login.toml").write_text(text)
    config = printed("--role", "broker", "--broker", "b9", "--subject", "x", "--user", "broker-b9")
    only = with_password("authorization {\n  users = [\n" + config + "\n  ]\n}\n")
    server = EmbeddedNatsServer(port=0, store_dir=tmp_path / "nats", config=only)
    server.start()
    try:
        lines = [
            f"liftbridge_port = {free_ports(1)[0]}", 'liftbridge_login = "login.toml"', "[login]", 'user = "broker-b9"',
            f'password = "{PASSWORD}"',
        ]  # fmt: skip
        said = await asyncio.to_thread(start, tmp_path, server.url, *lines)
        assert "login" in said
    finally:
        server.stop()
