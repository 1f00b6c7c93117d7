"""`tidelog server` with a file of the test as boot id: python -m tests.power_loss.broker [--broken RULE] --config F

The file lies beside the configuration, `b1.toml` has `b1.boot-id`: real processes, of which each can be on a machine of
its own that was started again.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from tests.integration.rig.broken_broker import RULES
from tidelog.cli.administration.server import server


def boot_id_file(config: Path) -> Path:
    return config.with_suffix(".boot-id")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--broken", choices=sorted(RULES))
    parser.add_argument("--config", type=Path, required=True)
    given = parser.parse_args()
    if given.broken:
        RULES[given.broken]()
    os.environ["TIDELOG_BOOT_ID_FILE"] = str(boot_id_file(given.config))
    server(["--config", str(given.config)])


if __name__ == "__main__":
    main()
