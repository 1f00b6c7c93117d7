"""Fixtures that tests of several folders share."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings

from tidelog.nats.nats_server import EmbeddedNatsServer
from tidelog.process.loopback import PORTS_VARIABLE, free_ports

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
"""Tests start brokers after they have used gRPC, whose handler of forks may end them with signal 11."""
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
"""Queries of tests are short: each JVM of Spark must start and compile quickly, not well."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write down what the transcripts of tests/testdata print now"
    )
    parser.addoption(
        "--examples", type=int, default=100, help="examples of a property that states no number of its own"
    )
    parser.addoption(
        "--outage-seconds",
        type=float,
        default=8.0,
        help="for so long the whole cluster stands still under a query of Spark; 60 for what the docs promise",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Examples of hypothesis are not timed, for the machine may be busy. Processes of pytest-xdist take their ports
    from ranges of their own, and so do the commands that they start. Those obey SIGINT even where a shell started
    pytest in the background, and so with SIGINT ignored, which children inherit."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.register_profile(
        "tidelog",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        max_examples=config.getoption("--examples"),
    )
    settings.load_profile("tidelog")
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        first = 11_000 + 2_000 * (int(worker.removeprefix("gw")) % 10)
        os.environ[PORTS_VARIABLE] = f"{first}-{first + 1_999}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """A teardown that hangs ends its process, as `faulthandler_timeout` does for the test itself; pytest does not time
    what follows a failure."""
    limit_s, stderr = float(item.config.getini("faulthandler_timeout")), item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(limit_s, exit=True, file=stderr)
    return (yield)


@pytest.fixture
def free_port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[EmbeddedNatsServer]:
    """A real nats-server on a free loopback port, alone for one test; `.url` is where it listens."""
    server = EmbeddedNatsServer(port=0, store_dir=tmp_path / "nats")
    server.start()
    try:
        yield server
    finally:
        server.stop()
