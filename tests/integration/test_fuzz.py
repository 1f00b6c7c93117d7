"""A few seconds of `scripts/fuzz`: hostile messages do no harm."""

from __future__ import annotations

from pathlib import Path

from scripts.fuzz import arguments, fuzz
from tests.integration.dev_cluster import dev_cluster


async def test_some_thousands_of_hostile_messages(tmp_path: Path) -> None:
    with dev_cluster(tmp_path / "cluster") as cluster:
        assert await fuzz(cluster, arguments(["--seconds", "8", "--messages", "20000", "--seed", "1"]))
