"""Power is lost under acknowledged load: real processes, each on a file system that forgets unsynced writes.

Longer: scripts/power-loss --minutes 10.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.integration.rig.dev_cluster import assert_logs_without
from tests.power_loss.cluster import PowerLossCluster, why_not
from tests.power_loss.rounds import all_at_once, one_at_a_time

SECONDS = 15.0
"""For each of the two ways to lose power; a round that has begun is finished."""


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_no_durable_acknowledgement_is_lost_with_the_power(tmp_path: Path) -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    rng = Random(5)
    with PowerLossCluster(tmp_path / "cluster", rng=rng) as cluster:
        for phase in (one_at_a_time, all_at_once):
            report = await phase(cluster, rng, SECONDS)
            print(f"\n{report}")
            assert report.ok, report
            assert report.rounds >= 1
            assert report.lost.bytes > 0, "nothing was lost: this power cut proves nothing"
        assert_logs_without(cluster.brokers, "Traceback")
