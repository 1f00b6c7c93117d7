"""When a development cluster starts its nats-server again, and when it gives up."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from tidelog.nats.nats_server import EmbeddedNatsServer, NatsPortTaken, NatsServerFailed
from tidelog.server.devcluster import NATS_GIVE_UP, NATS_MAX_PAUSE, NATS_STEADY, NatsKeeper
from wire.errors import Code, TidelogError


class FakeServer:
    url = "nats://127.0.0.1:4222"
    port = 4222
    log_path = Path("nats/nats-server.log")

    def __init__(self) -> None:
        self.is_running = True
        self.exit_status: int | None = None
        self.failure: NatsServerFailed | None = None
        self.starts: list[float] = []
        self.now = 100.0

    def die(self) -> None:
        self.is_running, self.exit_status = False, -9

    def start(self) -> None:
        self.starts.append(self.now)
        if self.failure is not None:
            raise self.failure
        self.is_running, self.exit_status = True, None


class Bench:
    def __init__(self) -> None:
        self.server = FakeServer()
        self.said: list[str] = []
        self.keeper = NatsKeeper(cast(EmbeddedNatsServer, self.server), self.said.append, lambda: self.server.now)

    def pass_time(self, seconds: float) -> None:
        end = self.server.now + seconds
        while self.server.now < end:
            self.server.now += 0.1
            self.keeper.look()


def test_a_server_that_ends_is_started_again_at_once() -> None:
    bench = Bench()
    bench.keeper.look()
    assert (bench.server.starts, bench.said) == ([], [])
    bench.server.die()
    bench.keeper.look()
    assert bench.server.is_running
    ended, runs = bench.said
    assert ended.startswith("nats-server was killed by signal 9: the cluster stands still. Starting it again now")
    assert runs == "nats-server runs again at nats://127.0.0.1:4222; brokers and clients connect by themselves"


def test_the_pause_grows_for_one_that_does_not_stay_and_never_ends() -> None:
    bench = Bench()
    pauses = []
    for _ in range(9):
        bench.server.die()
        died = bench.server.now
        while not bench.server.is_running:
            bench.keeper.look()
            bench.server.now += 0.1
        pauses.append(bench.server.starts[-1] - died)
    assert pauses == pytest.approx([0.0, 0.5, 1.0, 2.0, 4.0, 8.0, *[NATS_MAX_PAUSE] * 3], abs=0.2)
    bench.pass_time(NATS_STEADY)
    bench.server.die()
    bench.keeper.look()
    assert bench.server.is_running, "it had stayed: no pause"


def test_one_that_cannot_start_ends_the_cluster_after_some_tries() -> None:
    bench = Bench()
    bench.server.failure = NatsPortTaken("port 4222 on 127.0.0.1 is taken")
    bench.server.die()
    began = bench.server.now
    with pytest.raises(TidelogError, match=r"cannot be started again.*port 4222 on 127\.0\.0\.1 is taken") as caught:
        bench.pass_time(2 * NATS_GIVE_UP + NATS_MAX_PAUSE)
    assert caught.value.code is Code.UNAVAILABLE
    assert bench.server.now - began >= NATS_GIVE_UP
    assert len(bench.server.starts) > 3
    assert sum("does not start, trying again" in line for line in bench.said) == len(bench.server.starts) - 1


def test_a_port_that_becomes_free_in_time_is_taken() -> None:
    bench = Bench()
    bench.server.failure = NatsPortTaken("port 4222 on 127.0.0.1 is taken")
    bench.server.die()
    bench.pass_time(NATS_GIVE_UP / 2)
    bench.server.failure = None
    bench.pass_time(NATS_MAX_PAUSE)
    assert bench.server.is_running
    bench.pass_time(NATS_STEADY)
    bench.server.failure = NatsPortTaken("port 4222 on 127.0.0.1 is taken")
    bench.server.die()
    bench.pass_time(NATS_GIVE_UP / 2)  # the time begins anew
