"""What a command that waits for a cluster on its way says, and when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from click.testing import CliRunner

from tidelog.cli import main
from tidelog.cli.terminal import session
from tidelog.client import client
from tidelog.client.base.exceptions import NoServer
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
