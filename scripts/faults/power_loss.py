"""Cut the power of brokers under acknowledged load, then look for records that are lost, repeated, reordered, never
sent, or different on replicas.

Three broker processes, each on a FUSE file system that forgets unsynced writes (tests/power_loss). First one
machine at a time loses its power, then all of them at once.

    scripts/power-loss --minutes 10
    scripts/power-loss --seed 7                           replays a run's choices (brokers, times, surviving writes)
    scripts/power-loss --broken no-fdatasync              must end in FAIL, or the check would not see a loss
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from random import Random, randrange

from scripts.faults.verdict import judge
from tests.integration.rig.broken_broker import RULES
from tests.power_loss.cluster import PowerLossCluster, why_not
from tests.power_loss.rounds import Report, all_at_once, one_at_a_time


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long to go on, half of it for each (default 2)")
    parser.add_argument("--seed", type=int, default=randrange(1 << 32), help="replays a run's choices")
    parser.add_argument("--broken", choices=sorted(RULES), help="run brokers with this rule broken")
    parser.add_argument("--keep", action="store_true", help="keep the logs")
    return parser.parse_args()


async def power_loss(cluster: PowerLossCluster, rng: Random, minutes: float) -> bool:
    ok = True
    for phase in (one_at_a_time, all_at_once):
        report: Report = await phase(cluster, rng, minutes * 30)
        print(report, flush=True)
        ok = ok and report.ok
    return ok


def main() -> int:
    options = arguments()
    reason = why_not()
    if reason is not None:
        print(f"power-loss: {reason}", file=sys.stderr)
        return 2
    rng = Random(options.seed)

    def check_in(folder: Path) -> bool:
        with PowerLossCluster(folder, rng=rng, broken=options.broken) as cluster:
            return asyncio.run(power_loss(cluster, rng, options.minutes))

    return judge("power-loss", options, check_in)


if __name__ == "__main__":
    sys.exit(main())
