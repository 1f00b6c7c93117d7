"""A client of a broker in memory."""

from __future__ import annotations

import pytest

from tests.unit.tidelog.client.fake_broker import Cluster, make


@pytest.fixture
async def cluster() -> Cluster:
    """With the streams `s`, of one partition, and `three`."""
    transport, broker, client = make()
    broker.create("s", 1)
    broker.create("three", 3)
    return transport, broker, client
