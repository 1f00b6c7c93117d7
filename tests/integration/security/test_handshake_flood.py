"""Strangers begin TLS handshakes on the brokers' Raft ports and do not end them, while acknowledged records are
published. Half of them say all that a client says at first, and then nothing; the others drip it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Iterator

import pytest

from scripts.demos.certificates import Authority
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.security.test_hostile_clients import under_load
from tidelog.server.devcluster import DevCluster

CONNECTIONS = 200
"""At a time, to each port."""
DRIP = 0.1
"""Seconds between two bytes: a whole hello takes longer than LIMIT."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    folder = tmp_path_factory.mktemp("handshakes")
    authority = Authority(folder / "certificates")
    settings = {}
    for name in ("b1", "b2", "b3"):
        certificate, key = authority.issue(name)
        settings[name] = {"raft_ca": str(authority.ca), "raft_cert": str(certificate), "raft_key": str(key)}
    with dev_cluster(folder / "cluster", settings_of=settings) as running:
        yield running


def client_hello() -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    said = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), said, server_hostname="localhost").do_handshake()
    return said.read()


HELLO = client_hello()


async def begin_handshake(port: int, *, drips: bool) -> None:
    """Returns when the broker has closed the connection."""
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        closed = asyncio.create_task(reader.read())
        try:
            for part in [bytes([byte]) for byte in HELLO] if drips else [HELLO]:
                writer.write(part)
                await asyncio.wait([closed], timeout=DRIP if drips else None)
                if closed.done():
                    break
            await closed
        finally:
            closed.cancel()
            writer.close()


async def test_no_handshake_lasts(cluster: DevCluster) -> None:
    """A byte now and then does not put off its end."""
    assert len(HELLO) * DRIP > LIMIT
    (port, *_) = ports(cluster)
    async with under_load(cluster, "lasting") as target:
        async with asyncio.timeout(LIMIT):
            await asyncio.gather(*(begin_handshake(port, drips=number % 2 == 0) for number in range(CONNECTIONS)))
        assert await target.counted("dropped_raft_introductions") > 0


async def test_a_broker_registers_and_the_controller_stays_while_handshakes_are_begun(cluster: DevCluster) -> None:
    async with under_load(cluster, "flooded") as target:
        before = await target.client.cluster_status()
        victim = next(name for name in cluster.broker_ids if name != before["controller"])

        async def go_on(port: int, *, drips: bool) -> None:
            while True:
                await begin_handshake(port, drips=drips)

        flood = [
            asyncio.create_task(go_on(port, drips=number % 2 == 0))
            for port in ports(cluster)
            for number in range(CONNECTIONS)
        ]

        async def dropped_again() -> bool:
            return await target.counted("dropped_raft_introductions") > 3 * CONNECTIONS

        await until(dropped_again, "the end of handshakes, to be begun again")
        cluster.kill(victim)
        cluster.start_broker(victim)
        await until(lambda: cluster.is_ready(victim), "the registration of the broker")
        after = await target.client.cluster_status()
        assert not [task for task in flood if task.done()], "the flood has ended"
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        assert (after["controller"], after["controller_epoch"]) == (before["controller"], before["controller_epoch"])


def ports(cluster: DevCluster) -> list[int]:
    """Of Raft."""
    brokers = json.loads((cluster.data_dir / "cluster.json").read_text())["brokers"]
    return [int(broker["raft"].rpartition(":")[2]) for broker in brokers]
