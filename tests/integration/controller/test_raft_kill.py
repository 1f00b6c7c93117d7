"""Kill -9 and power cuts of real Raft processes, and how quick they are. `scripts/raft-kill` runs the same for longer.

TIDELOG_RAFT_KILL_ROUNDS (default 8) sets the number of kill rounds, TIDELOG_RAFT_KILL_SEED their seed.
"""

from __future__ import annotations

import os
import random
import statistics
from pathlib import Path

import pytest

from tests.integration.rig.raft_cluster import measure, run_kill_rounds

ROUNDS = int(os.environ.get("TIDELOG_RAFT_KILL_ROUNDS", "8"))
SEED = int(os.environ.get("TIDELOG_RAFT_KILL_SEED", str(random.randrange(1 << 32))))


@pytest.mark.slow
@pytest.mark.timeout(60 + 10 * ROUNDS)
async def test_nothing_acknowledged_is_lost_or_applied_twice(tmp_path: Path) -> None:
    report = await run_kill_rounds(tmp_path, rounds=ROUNDS, seed=SEED)
    print(report)
    assert report.passed, f"{report}; run it again: TIDELOG_RAFT_KILL_ROUNDS={ROUNDS} TIDELOG_RAFT_KILL_SEED={SEED}"


@pytest.mark.slow
async def test_commands_and_failover_are_quick(tmp_path: Path) -> None:
    """No command waits for a heartbeat, and no failover for an election's time: both are long here, and a busy machine
    is quicker than that."""
    times = {"heartbeat_s": 0.6, "election_min_s": 2.0, "election_max_s": 3.0, "connection_timeout_s": 4.0}
    figures = await measure(tmp_path, commands=300, failovers=5, times=times)
    print(figures)
    assert statistics.median(figures.through_leader) < 0.25
    assert statistics.median(figures.through_follower) < 0.25
    assert statistics.median(figures.failovers) < 1.5
