"""A cluster of real broker processes, each on a disk of its own that loses power (see `tests.power_loss.mount`)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Self

from tests.integration.rig.hanging_broker import hanging_file
from tests.integration.rig.waiting import LIMIT
from tests.power_loss.broker import boot_id_file
from tests.power_loss.disk import Losses
from tests.simulation.machines.disk import Survival
from tidelog.nats.nats_server import ends_with_us
from tidelog.server.devcluster import DevCluster

POWER = "user.tidelog.power"
MOUNT_TIMEOUT = 60.0
"""Seconds."""
SURVIVALS: tuple[Survival, ...] = ("nothing", "random")
"""Survival of unsynced writes, in turns. All other outcomes lie between these."""


def why_not() -> str | None:
    """Why no such file system can be mounted here; None when it can."""
    if sys.platform != "linux":
        return "FUSE with these rules is mounted on Linux only"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse is missing, or may not be used"
    if shutil.which("fusermount3") is None and shutil.which("fusermount") is None:
        return "fusermount3 is missing (Debian: apt-get install fuse3)"
    try:
        import mfusepy  # noqa: F401 - it looks for the library
    except (ImportError, OSError) as error:
        return f"libfuse cannot be used ({error}); Debian: apt-get install libfuse3-3"
    return None


class PowerLossCluster:
    """`with PowerLossCluster(folder, …) as cluster:` mounts the disks and starts the brokers; everything ends with the
    block. Power is cut in `cut`; `start` brings the machines back, each in a new boot."""

    def __init__(
        self,
        folder: Path,
        *,
        rng: Random,
        broken: str | None = None,
        settings: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        """`broken`: a rule of `tests.integration.rig.broken_broker` that the brokers do not keep. `settings`: sections
        of their configuration."""
        arguments = ["--broken", broken] if broken else []
        self.brokers = DevCluster(
            folder,
            nodes=3,
            port=0,
            settings=settings,
            server_command=["-m", "tests.power_loss.broker", *arguments],
        )
        self.cuts = 0
        """Machines that lost their power, each time counted."""
        self.losses = Losses(0, 0)
        """Of all cuts together."""
        self._rng = rng
        self._mounts: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            for broker in self.brokers.broker_ids:
                self._mount(broker)
                self._boot(broker)
            self.brokers.start()
            self.brokers.wait_ready(2 * LIMIT)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def cut(self, brokers: Sequence[str], killed: Sequence[str] = ()) -> None:
        """All of `brokers` lose their power, at once; the brokers in `killed` lose only their processes."""
        dying = {*brokers, *killed}
        for pid in filter(None, map(self.brokers.pid, dying)):
            os.kill(pid, signal.SIGKILL)
        for broker in dying:
            self.brokers.kill(broker)
        for broker in brokers:
            disk = self.brokers.broker_dir(broker)
            how = SURVIVALS[self.cuts % len(SURVIVALS)]
            os.setxattr(disk, POWER, f"{how} {self._rng.randrange(1 << 32)}".encode())
            lost = Losses(**json.loads(os.getxattr(disk, POWER)))
            self.losses = Losses(self.losses.bytes + lost.bytes, self.losses.names + lost.names)
            self.cuts += 1
            self._boot(broker)

    def start(self, brokers: Sequence[str]) -> None:
        for broker in brokers:
            self.brokers.start_broker(broker)

    def _boot(self, broker: str) -> None:
        boot_id_file(self.brokers.data_dir / f"{broker}.toml").write_text(f"{uuid.uuid4()}\n")

    def _mount(self, broker: str) -> None:
        folder = self.brokers.broker_dir(broker)
        hangs_while = hanging_file(self.brokers.data_dir / f"{broker}.toml")
        folder.mkdir(parents=True)
        with (self.brokers.data_dir / f"{broker}-disk.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.power_loss.mount", str(folder), "--hangs-while", str(hangs_while)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=ends_with_us(),  # noqa: PLW1509 - see there
            )
        self._mounts[broker] = process
        deadline = time.monotonic() + MOUNT_TIMEOUT
        while not folder.is_mount():
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the disk of {broker} is not mounted: {Path(log.name).read_text()}")
            time.sleep(0.01)

    def _end(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.brokers.stop()
        for broker, process in self._mounts.items():
            unmount = shutil.which("fusermount3") or "fusermount"
            subprocess.run([unmount, "-u", "-z", str(self.brokers.broker_dir(broker))], check=False)
            try:
                process.wait(MOUNT_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
