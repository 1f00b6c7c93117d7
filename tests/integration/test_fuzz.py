"""A few seconds of `scripts/fuzz`: hostile messages do no harm, and what is stored can be read."""

from __future__ import annotations

from pathlib import Path

from scripts.fuzz import arguments, fuzz
from scripts.fuzz_stored import StoredFuzz
from tests.integration.dev_cluster import dev_cluster
from tests.integration.liftbridge_stub import cluster_with_port


async def test_some_thousands_of_hostile_messages(tmp_path: Path) -> None:
    with dev_cluster(tmp_path / "cluster") as cluster:
        assert await fuzz(cluster, arguments(["--seconds", "8", "--messages", "20000", "--seed", "1"]))


async def test_what_is_stored_of_some_hundred_appends_is_read_in_every_form(tmp_path: Path) -> None:
    with cluster_with_port(tmp_path / "cluster") as cluster:
        assert await StoredFuzz(cluster, 1, forgers=False).run(300)
