"""`tidelog server` on a disk that hangs while a file beside its configuration is there (`b1.toml`: `b1.hangs`):

    python -m tests.integration.rig.hanging_broker [--journal] --config F

The syncs of its data plane hang, with `--journal` those of the Raft journal as well; without, it is as if that lay on
another disk.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dataplane.log.storage.files import RealFiles
from tidelog.cli.administration.server import server

POLL = 0.02


def hanging_file(config: Path) -> Path:
    return config.with_suffix(".hangs")


def let_hang(while_there: Path, *, journal: bool) -> None:
    def hanging(sync: Callable[..., None]) -> Callable[..., None]:
        def waits(*arguments: Any) -> None:
            while while_there.exists():
                time.sleep(POLL)
            sync(*arguments)

        return waits

    of_data: tuple[Any, Sequence[str]] = (RealFiles, ("sync_data", "sync_all", "sync_directory"))
    owner, names = (os, ("fsync", "fdatasync")) if journal else of_data
    for name in names:
        setattr(owner, name, hanging(getattr(owner, name)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--journal", action="store_true")
    given = parser.parse_args()
    let_hang(hanging_file(given.config), journal=given.journal)
    server(["--config", str(given.config)])


if __name__ == "__main__":
    main()
