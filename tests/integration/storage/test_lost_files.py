"""All brokers are killed, and one has lost files when they start again. All combinations: scripts/lost-files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.lost_files import HARMED, Harm, records_lost

if TYPE_CHECKING:
    from pathlib import Path


async def test_nothing_is_lost_with_the_folder_of_a_stream_on_the_broker_that_starts_first(tmp_path: Path) -> None:
    with dev_cluster(tmp_path / "cluster") as cluster:
        assert await records_lost(cluster, Harm("missing", "stream", HARMED), "load", tmp_path / "copies") == []
