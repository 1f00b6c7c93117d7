"""Fixtures that tests of several folders share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.runtime.loopback import free_ports
from tidelog.runtime.server import EmbeddedNatsServer


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write down what the transcripts of tests/testdata print now"
    )


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
