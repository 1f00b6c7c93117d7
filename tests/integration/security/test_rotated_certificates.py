"""Certificates for NATS are replaced, while acknowledged records are published. Each of three brokers is connected to a
nats-server of its own, the three nats-servers are a cluster and want certificates of their clients.

A certificate is shown when a connection is made, so each step ends every nats-server once, one after the other: whoever
was connected to it comes to another one, with the certificate that lies there by then.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

import tidelog
from scripts.demos.certificates import Authority
from tests.integration.rig.nats_logins import nats_cluster, reload
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.rig.workload import Ledger, acked_load, assert_nothing_lost, wait_in_sync
from tests.integration.security.test_logins import broker
from tidelog.nats.login import NatsLogin
from tidelog.nats.login_sources import PREFIX
from tidelog.nats.nats_connection import NatsConnection
from tidelog.nats.nats_errors import NatsUnavailable
from tidelog.nats.nats_server import EmbeddedNatsServer
from tidelog.process.loopback import free_addresses

STREAM = "orders"
BROKERS = ("b1", "b2", "b3")


class Certificates:
    """Files at places that never change: those of each broker, of the client and of nats-server, and `trusted`, the
    authorities that all of them believe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.trusted = folder / "trusted.pem"
        self.old, self.new = Authority(folder, "old"), Authority(folder, "new")
        self.trust(self.old)

    def trust(self, *authorities: Authority) -> None:
        self.trusted.write_text("".join(authority.ca.read_text() for authority in authorities))

    def settings(self, name: str) -> dict[str, str]:
        return {
            "ca": str(self.trusted),
            "cert": str(self._folder / f"{name}.pem"),
            "key": str(self._folder / f"{name}.key"),
        }

    @property
    def of_server(self) -> str:
        files = self.settings("server")
        return (
            f'tls {{ cert_file: "{files["cert"]}", key_file: "{files["key"]}", ca_file: "{files["ca"]}"\n'
            "verify: true }"
        )


class Rotation:
    def __init__(self, servers: list[EmbeddedNatsServer], client: tidelog.Client, ledger: Ledger) -> None:
        self._servers = servers
        self._client = client
        self._ledger = ledger

    async def reload(self) -> None:
        for server in self._servers:
            await asyncio.to_thread(reload, server, server._config)

    async def connect_anew(self) -> None:
        """Every connection with NATS, one nats-server after the other."""
        for server in self._servers:
            server.kill()
            await self._goes_on()
            await asyncio.to_thread(server.start)
            await until(self._whole, "three live brokers, in sync")

    async def _goes_on(self) -> None:
        acked = len(self._ledger.acked)
        await until(lambda: len(self._ledger.acked) > acked + 500, "the load goes on", 3 * LIMIT)
        await until(self._whole, "three live brokers, in sync")

    async def _whole(self) -> bool:
        status = await self._client.cluster_status()
        (partition,) = (await self._client.describe(STREAM))["partitions"]
        return all(known["alive"] for known in status["brokers"]) and len(partition["isr"]) == len(BROKERS)


async def test_certificates_of_a_cluster_of_nats_servers_are_replaced_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Certificates(tmp_path / "certificates")
    everybody = (*BROKERS, "client")
    for name in ("server", *everybody):
        files.old.issue(name)
    (tmp_path / "secret").write_text("0123456789abcdef")
    (tmp_path / "secret").chmod(0o600)
    addresses = dict(zip(BROKERS, free_addresses(3), strict=True))
    with nats_cluster(tmp_path, files.of_server, size=3) as servers, ExitStack() as stack:
        for name, server in zip(BROKERS, servers, strict=True):
            (tmp_path / name).mkdir()
            peers = ", ".join(f'{other} = "{addresses[other]}"' for other in BROKERS if other != name)
            login = "".join(f'{key} = "{file}"\n' for key, file in files.settings(name).items())
            config = (
                f'nats = "{server.url}"\nraft_address = "{addresses[name]}"\nraft_peers = {{ {peers} }}\n'
                f'raft_secret_file = "{tmp_path / "secret"}"\n[login]\n{login}'
            )
            stack.enter_context(broker(tmp_path / name, config, name))
        for name in BROKERS:
            await until((tmp_path / name / "data" / "ready").exists, name)
        # Only now: in a broker's environment they would go before its own.
        for name, file in files.settings("client").items():
            monkeypatch.setenv(f"{PREFIX}{name.upper()}", file)
        url = servers[0].url
        async with await tidelog.connect(url) as client:
            await client.create_stream(STREAM, replication_factor=3)
            await wait_in_sync(url, STREAM)
            async with acked_load(url, STREAM, bare=False) as ledger:
                rotation = Rotation(servers, client, ledger)
                await until(lambda: len(ledger.acked) > 200, "acknowledged load")
                # Of the same authority.
                for name in everybody:
                    files.old.issue(name)
                await rotation.connect_anew()
                # Of another one, which everybody believes beside the first.
                files.trust(files.old, files.new)
                await rotation.reload()
                for name in everybody:
                    files.new.issue(name)
                await rotation.connect_anew()
                # The nats-servers, too; then the first authority is believed no longer.
                files.new.issue("server")
                await rotation.reload()
                files.trust(files.new)
                await rotation.reload()
                await rotation.connect_anew()
            stall = max(later - earlier for earlier, later in pairwise(ledger.ack_times[0]))
            print(f"\nlongest time without an acknowledgement: {stall * 1000:.0f} ms")
            assert ledger.unknown == 0, "acknowledged publishes failed"
            await assert_nothing_lost(url, ledger, {name: tmp_path / name / "data" for name in BROKERS})
        certificate, key = files.old.issue("late")
        of_old = NatsLogin(ca=files.trusted, cert=certificate, key=key)
        for server in servers:
            with pytest.raises(NatsUnavailable, match="give the right certificates"):
                await NatsConnection.connect(server.url, login=of_old)
    for name in BROKERS:
        assert "Traceback" not in (tmp_path / name / "broker.log").read_text()
