"""Clusters that the tests of a module share. A module with other needs has fixtures of its own by these names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.rig.dev_cluster import dev_cluster
from tidelog.server.devcluster import DevCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """Three brokers; but for clocks that settle sooner, with the default settings."""
    with dev_cluster(tmp_path_factory.mktemp("cluster"), settings={"metadata": {"clock_settle_s": 0.5}}) as running:
        yield running
