"""The connection over which clients ask is lost alone: another broker becomes the controller, and answers."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import tidelog
from tests.integration.rig.dev_cluster import assert_logs_without
from tests.integration.rig.waiting import LIMIT, until
from tidelog.server.devcluster import DevCluster


class Wires:
    """Passes on the connections of brokers to nats-server, and cuts those of one name."""

    def __init__(self) -> None:
        self.target = 0
        """nats-server's port."""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self._listening.getsockname()[1]}"
        self._cut = b""
        self._open: dict[socket.socket, bytes] = {}
        """Each with what it said first."""
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, name: str) -> None:
        """The connection of that name, and each further one; an empty name: none any more."""
        self._cut = name.encode()
        for wire, said in list(self._open.items()):
            if self._is_cut(said):
                wire.shutdown(socket.SHUT_RDWR)

    def _is_cut(self, said: bytes) -> bool:
        return bool(self._cut) and b'"%b"' % self._cut in said

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(("127.0.0.1", self.target)) as server:
            client.sendall(server.recv(1 << 16))  # INFO
            said = client.recv(1 << 16)
            self._open[client] = said
            if not self._is_cut(said):
                server.sendall(said)
                threading.Thread(target=_pass_on, args=(server, client), daemon=True).start()
                _pass_on(client, server)
            del self._open[client]


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


class WiredCluster(DevCluster):
    """Its brokers connect through `wires`."""

    wires: Wires

    @property
    def nats_url(self) -> str:
        self.wires.target = self.nats.port
        return self.wires.url


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[WiredCluster]:
    running = WiredCluster(tmp_path, nodes=3, port=0)
    running.wires = Wires()
    with running:
        running.wait_ready(2 * LIMIT)
        yield running
        assert_logs_without(running, "Traceback")
    running.wires.close()


async def test_a_controller_that_clients_cannot_ask_gives_way_and_its_log_names_the_connection(
    cluster: WiredCluster,
) -> None:
    async with await tidelog.connect(cluster.nats.url, api_timeout=LIMIT) as client:
        await client.create_stream("s", partitions=3, replication_factor=3)
        deaf = (await client.cluster_status())["controller"]
        assert deaf is not None
        cluster.wires.cut(f"tidelog {deaf} public")
        async with client.producer("s", acks="all") as producer:
            await asyncio.gather(*(producer.send(b"x", partition=partition) for partition in range(3)))
        assert (await client.cluster_status())["controller"] != deaf
        said = cluster.log_file(deaf).read_text()
        assert f"the connection to NATS was lost (tidelog {deaf} public); connecting again" in said
        assert f"controller {deaf} gives way to another voter: clients cannot ask it" in said
        cluster.wires.cut("")
        await until(lambda: f"connected to NATS again (tidelog {deaf} public)" in cluster.log_file(deaf).read_text())
        await client.create_stream("t")
