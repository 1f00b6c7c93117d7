"""Kill all brokers of a cluster, harm files of one, start them again and read everything back: scripts/lost-files

Each combination of (missing | emptied | older) x (partition | stream | broker.json | raft) x (the broker that starts
first), with a new stream of 1,000 acknowledged records, RF 3, `durable`, min_isr 2. None may be missing. About ten
minutes; `--only TEXT` runs those with TEXT in their names ("raft older", "b2 starts first").
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.integration.rig.lost_files import LIMIT, all_harms, records_lost
from tidelog.server.devcluster import DevCluster


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="only combinations with TEXT in their name")
    only = parser.parse_args().only
    failed = 0
    with tempfile.TemporaryDirectory(prefix="lost-files-") as name:
        folder = Path(name)
        with DevCluster(folder / "cluster", nodes=3, port=0) as cluster:
            cluster.wait_ready(LIMIT)
            for number, harm in enumerate(all_harms(cluster.broker_ids)):
                if only not in str(harm):
                    continue
                began = time.monotonic()
                lost = asyncio.run(records_lost(cluster, harm, f"lost{number}", folder / f"copies{number}"))
                print(f"{harm}: {len(lost)} lost, {time.monotonic() - began:.0f} s", flush=True)
                failed += bool(lost)
    print("PASS" if not failed else f"FAIL: {failed} combinations lost records")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
