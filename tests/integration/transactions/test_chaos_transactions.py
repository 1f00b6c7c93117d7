"""Workers that read and write in transactions, while they and brokers are killed and stopped, for a short while.
`scripts/chaos --transactions` is the same for longer.

TIDELOG_CHAOS_SEED sets the seed.
"""

from __future__ import annotations

import argparse
import os
import random
from pathlib import Path

import pytest

from scripts.faults.chaos_transactions import chaos_transactions
from tests.integration.rig.dev_cluster import dev_cluster

MINUTES = 0.25
SEED = int(os.environ.get("TIDELOG_CHAOS_SEED", str(random.randrange(1 << 32))))


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_each_record_of_the_input_is_in_the_output_once(tmp_path: Path) -> None:
    options = argparse.Namespace(minutes=MINUTES, interval=2.0, nodes=3, seed=SEED, broken=None, json=False)
    with dev_cluster(tmp_path / "cluster") as cluster:
        passed = await chaos_transactions(cluster, tmp_path, options)
    assert passed, f"see the findings above; run it again: TIDELOG_CHAOS_SEED={SEED}"
