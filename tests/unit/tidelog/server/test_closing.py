"""Objects of a server that close others close all of them, whatever one raises."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.server.broker_runtime import BrokerRuntime
from tidelog.server.liftbridge.calls import Calls
from tidelog.server.liftbridge.port import LiftbridgePort


class Parts:
    def __init__(self, fails: str) -> None:
        self.closed: list[str] = []
        self._fails = fails

    def part(self, name: str, **more: Any) -> Any:
        async def close(*_: Any) -> bool:
            self.closed.append(name)
            if name == self._fails:
                raise RuntimeError(name)
            return True

        return SimpleNamespace(close=close, stop=close, aclose=close, **more)


async def test_a_broker_closes_its_log_though_another_part_cannot_be_closed() -> None:
    parts = Parts("routing")
    runtime: Any = object.__new__(BrokerRuntime)
    for name in ("routing", "pushes", "api", "audit_stream", "activity"):
        setattr(runtime, f"_{name}", parts.part(name))
    runtime.broker, runtime.metadata = parts.part("broker"), parts.part("metadata")
    runtime._registered = False
    with pytest.raises(RuntimeError, match="routing"):
        await runtime.close()
    assert parts.closed == ["routing", "pushes", "api", "audit_stream", "activity", "broker", "metadata"]


async def test_a_port_of_liftbridge_closes_its_client_though_calls_cannot_be_closed() -> None:
    parts = Parts("subscribing")
    port: Any = object.__new__(LiftbridgePort)
    calls: Any = object.__new__(Calls)
    calls._subscribing, calls._publishing = parts.part("subscribing"), parts.part("publishing")
    port._calls, port._server = calls, parts.part("server")
    port._gateway = SimpleNamespace(client=parts.part("client"), is_closing=False)
    with pytest.raises(RuntimeError, match="subscribing"):
        await port.close()
    assert parts.closed == ["subscribing", "publishing", "server", "client"]
    assert port._gateway.is_closing
