"""The bounds of the port for Liftbridge's clients that gRPC keeps for it."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tidelog.server.liftbridge import port as module
from tidelog.server.liftbridge.port import LiftbridgePort
from tidelog.server.liftbridge.port_settings import LiftbridgeSettings


async def _is_served(connection: socket.socket) -> bool:
    """gRPC greets it, in place of closing it."""
    async with asyncio.timeout(30):
        try:
            return bool(await asyncio.get_running_loop().sock_recv(connection, 100))
        except ConnectionResetError:
            return False


def _connected(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port))
    made.setblocking(False)
    return made


async def test_connections_beyond_the_limit_are_closed_and_one_that_ends_makes_room(
    monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    options = dict(module._OPTIONS)
    assert options["grpc.max_allowed_incoming_connections"] == module.MAX_CONNECTIONS
    few = tuple({**options, "grpc.max_allowed_incoming_connections": 3}.items())
    monkeypatch.setattr(module, "_OPTIONS", few)
    port = LiftbridgePort.bind(
        LiftbridgeSettings(host="127.0.0.1", port=free_port, advertised=f"127.0.0.1:{free_port}")
    )
    await port._server.start()
    connections = [_connected(free_port) for _ in range(5)]
    try:
        served = [await _is_served(each) for each in connections]
        assert sum(served) == 3
        connections[served.index(True)].close()
        async with asyncio.timeout(30):
            while True:
                connections.append(_connected(free_port))
                if await _is_served(connections[-1]):
                    break
    finally:
        for each in connections:
            each.close()
        await port.close()
