"""`tidelog server` with a wall clock that a test shifts: python -m tests.integration.rig.shifted_broker --config F

The file F.ahead says by how many seconds it is ahead of the host's."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from tidelog.cli.administration.server import server

LOOK_S = 0.02


def shift(file: Path) -> None:
    """For the whole life of this process. The monotonic clock goes on as it does."""
    real, ahead = time.time_ns, [0]
    time.time_ns = lambda: real() + ahead[0]

    def look() -> None:
        while True:
            if file.exists() and (text := file.read_text()):
                ahead[0] = int(text) * 1_000_000_000
            time.sleep(LOOK_S)

    threading.Thread(target=look, daemon=True).start()


if __name__ == "__main__":
    shift(Path(f"{sys.argv[sys.argv.index('--config') + 1]}.ahead"))
    server(sys.argv[1:])
