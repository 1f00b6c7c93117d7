"""Kill Raft processes under load and check that nothing acknowledged is lost: scripts/raft-kill --rounds 100 --seed 7

`--without-sync` leaves out every fdatasync and cuts the journals anywhere: it must FAIL, or the test would see no loss.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

from tests.integration.rig.raft_cluster import KillReport, measure, run_kill_rounds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--without-sync", action="store_true", help="prove that the test sees losses")
    parser.add_argument("--figures", action="store_true", help="measure latency and failover first")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="raft-kill-") as folder:
        if options.figures:
            print(asyncio.run(measure(Path(folder) / "figures", commands=1000, failovers=10)), flush=True)

        def progress(report: KillReport) -> None:
            if report.rounds % 10 == 0:
                print(f"{report.rounds} rounds, {report.acknowledged} acknowledged", flush=True)

        print(f"seed {options.seed}", flush=True)
        rounds = run_kill_rounds(
            Path(folder) / "kills",
            rounds=options.rounds,
            seed=options.seed,
            sync=not options.without_sync,
            progress=progress,
        )
        report = asyncio.run(rounds)
    print(report)
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
