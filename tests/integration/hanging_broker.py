"""`tidelog server` on a disk that hangs while a file beside its configuration is there (`b1.toml`: `b1.hangs`):

    python -m tests.integration.hanging_broker --config F

Only the syncs of its data plane hang: the Raft journal is as if it lay on another disk.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dataplane.log.files import RealFiles
from tidelog.cli.server import server

POLL = 0.02


def hanging_file(config: Path) -> Path:
    return config.with_suffix(".hangs")


def let_hang(while_there: Path) -> None:
    def hanging(sync: Callable[..., None]) -> Callable[..., None]:
        def waits(*arguments: Any) -> None:
            while while_there.exists():
                time.sleep(POLL)
            sync(*arguments)

        return waits

    for name in ("sync_data", "sync_all", "sync_directory"):
        setattr(RealFiles, name, hanging(getattr(RealFiles, name)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    given = parser.parse_args()
    let_hang(hanging_file(given.config))
    server(["--config", str(given.config)])


if __name__ == "__main__":
    main()
