"""A development cluster as tests use it: all brokers serve, and afterwards their logs show no exception."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.integration.rig.waiting import LIMIT
from tidelog.server.devcluster import DevCluster


@contextmanager
def dev_cluster(directory: Path, *, nodes: int = 3, **options: Any) -> Iterator[DevCluster]:
    """`options`: those of DevCluster."""
    with DevCluster(directory, nodes=nodes, port=0, **options) as running:
        running.wait_ready(2 * LIMIT)
        yield running
        assert_logs_without(running, "Traceback")


def assert_logs_without(cluster: DevCluster, *words: str) -> None:
    for broker in cluster.broker_ids:
        log = cluster.log_file(broker).read_text(errors="replace")
        for word in words:
            assert word not in log, f"the log of {broker} shows {word!r}:\n{log[-3000:]}"
