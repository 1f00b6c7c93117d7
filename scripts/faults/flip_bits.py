"""Flips one bit after the other in the data folder of a broker, and checks the next start of the broker.

    scripts/flip-bits --positions 10000 --seed 1

Prints the outcomes by kind of file; exit status 1 and the flip when a promise was broken (`tests/bit_flips`).
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from tests.bit_flips.flips import Bench, Broken, Tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--positions", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    logging.disable(logging.CRITICAL)
    memory = Path("/dev/shm")  # noqa: S108 - a folder of our own is made there
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as room:
        bench, tally = Bench(Path(room)), Tally()
        for number, flip in enumerate(islice(bench.flips(wanted.seed), wanted.positions), 1):
            try:
                bench.try_flip(flip, tally)
            except Broken as broken:
                print(f"BROKEN at flip {number} of seed {wanted.seed}: {broken}")
                return 1
            if number % 1000 == 0:
                print(f"{number} flips, {time.perf_counter() - began:.0f} s", file=sys.stderr)
    print(tally)
    print(f"{wanted.positions} flips of seed {wanted.seed} in {time.perf_counter() - began:.0f} s: no promise broken")
    return 0


if __name__ == "__main__":
    sys.exit(main())
