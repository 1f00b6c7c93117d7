"""`tidelog server` on a slow disk: python -m tests.integration.rig.slow_broker SECONDS --config F; each fdatasync takes
so long more."""

from __future__ import annotations

import sys
import time

from dataplane.log.storage.files import RealFiles
from tidelog.cli.administration.server import server


def slow_down(seconds: float) -> None:
    sync_data = RealFiles.sync_data

    def slowly(files: RealFiles, handle: int) -> None:
        time.sleep(seconds)
        sync_data(files, handle)

    RealFiles.sync_data = slowly  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    slow_down(float(sys.argv[1]))
    server(sys.argv[2:])
