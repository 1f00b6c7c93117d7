"""What a command that waits for a cluster on its way says, and when."""

from __future__ import annotations

import asyncio
from typing import Any, Self

import pytest
from click.testing import CliRunner

from tidelog.cli import main
from tidelog.cli.terminal import delays, session
from tidelog.client import client
from tidelog.client.base.exceptions import BadReplicationFactor, NoServer
from tidelog.nats.nats_errors import NatsNotListening, NatsRefused
from wire.errors import Code

LINE = "waiting for the cluster at nats://n1:4222: nats-server, a controller, enough live brokers\n"


@pytest.mark.parametrize(("why", "said"), [(NatsRefused("no such user"), ""), (NatsNotListening("nothing"), LINE)])
def test_only_a_server_that_may_be_starting_is_said_to_be_waited_for(
    monkeypatch: pytest.MonkeyPatch, why: Exception, said: str
) -> None:
    """However long the answer takes, as on a machine with too much to do."""

    async def connect(_server: str | None, **_options: Any) -> None:
        await asyncio.sleep(0.2)
        raise NoServer(Code.UNAVAILABLE, str(why)) from why

    monkeypatch.setattr(client, "connect", connect)
    monkeypatch.setattr(session, "_SILENCE", 0.05)
    done = CliRunner().invoke(main, ["stream", "create", "s", "--server", "nats://n1:4222"])
    assert done.exit_code == 1
    assert done.stderr == f"{said}tidelog: {why}\n"


def test_another_replication_factor_says_what_it_waits_for_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    is_asked = asyncio.Event()

    class Waiting:
        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_error: object) -> None:
            return

        def delay(self) -> tuple[float, str]:
            # The task that asks reports before it lets others have their turn.
            is_asked.set()
            return 5.0, "stream.alter_factor: b3 is dead"

        async def alter_replication_factor(self, *_args: Any, **_given: Any) -> None:
            async with asyncio.timeout(10):
                await is_asked.wait()
            raise BadReplicationFactor(Code.BAD_REPLICATION_FACTOR, "b3 is dead")

    async def connect(_server: str | None, **_options: Any) -> Waiting:
        return Waiting()

    monkeypatch.setattr(client, "connect", connect)
    monkeypatch.setattr(delays, "SILENCE", 0.04)
    done = CliRunner().invoke(main, ["stream", "alter", "s", "--replication-factor", "4", "--yes"])
    assert done.exit_code == 1
    assert done.stderr == "waiting: stream.alter_factor: b3 is dead\ntidelog: b3 is dead\n"
