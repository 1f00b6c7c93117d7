"""Three broker processes, each on a small file system of its own that a test fills and frees again."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import tidelog
from tests.integration.rig.dev_cluster import assert_logs_without
from tests.integration.rig.waiting import LIMIT, until
from tidelog.server.devcluster import DevCluster

SIZE = 20 << 20
MIB = 1 << 20
SETTINGS: dict[str, dict[str, Any]] = {
    "storage": {"space_check_interval": 0.2},
    "replica": {"replica_max_idle_wait": 0.5, "replica_max_leader_timeout": 1.5, "replica_max_lag_time": 2.5},
}
"""The room that is kept free is the default: 1 MiB of such a disk, handed over below 2, all is well from 3 up."""


def _mount(kind: str, place: Path, image: Path) -> None:
    if kind == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)]
    else:
        with image.open("wb") as file:
            file.truncate(SIZE)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True, capture_output=True)
        command = ["mount", "-o", "loop", str(image), str(place)]
    subprocess.run(command, check=True, capture_output=True)


class SmallDisks:
    def __init__(self, processes: DevCluster) -> None:
        self.processes = processes
        self.pids = {broker: processes.pid(broker) for broker in processes.broker_ids}

    @property
    def brokers(self) -> list[str]:
        return self.processes.broker_ids

    def free(self, broker: str) -> int:
        found = os.statvfs(self.processes.broker_dir(broker))
        return found.f_bavail * found.f_frsize

    def fill(self, broker: str, leave: int) -> None:
        """A file of another program, which leaves so many bytes of the disk."""
        size = self.free(broker) - leave
        with self._ballast(broker).open("ab") as file, suppress(OSError):
            os.posix_fallocate(file.fileno(), file.tell(), size)

    def fill_up(self, broker: str) -> None:
        """To the last byte."""
        self.fill(broker, 0)
        with self._ballast(broker).open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    def make_room(self, *brokers: str) -> None:
        for broker in brokers:
            self._ballast(broker).unlink(missing_ok=True)

    def _ballast(self, broker: str) -> Path:
        return self.processes.broker_dir(broker) / "ballast"

    def check_all_are_alive(self) -> None:
        """Also checks that no broker logged a bug."""
        assert {broker: self.processes.pid(broker) for broker in self.brokers} == self.pids
        assert_logs_without(self.processes, "Traceback", "withdraws")


@contextmanager
def small_disks(folder: Path, kind: str = "tmpfs") -> Iterator[SmallDisks]:
    """`kind`: tmpfs or ext4. Skips the test where they cannot be mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system of 20 MB")
    brokers = DevCluster(folder, nodes=3, port=0, settings=SETTINGS)
    mounted: list[Path] = []
    try:
        for broker in brokers.broker_ids:
            place = brokers.broker_dir(broker)
            place.mkdir(parents=True)
            try:
                _mount(kind, place, folder / f"{broker}.image")
            except (OSError, subprocess.CalledProcessError) as error:
                said = getattr(error, "stderr", b"") or str(error).encode()
                pytest.skip(f"{kind} cannot be mounted here: {said.decode(errors='replace').strip()}")
            mounted.append(place)
        with brokers:
            brokers.wait_ready(2 * LIMIT)
            yield SmallDisks(brokers)
    finally:
        for place in mounted:
            subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)


async def until_room(client: tidelog.Client, broker: str, room: str) -> None:
    async def told() -> bool:
        status = await client.cluster_status()
        found = next(known for known in status["brokers"] if known["id"] == broker)
        return found["space"] is not None and found["space"]["room"] == room

    await until(told, f"room on the disk of {broker} that is {room}")


async def partition(client: tidelog.Client, stream: str) -> dict[str, Any]:
    return dict((await client.describe(stream))["partitions"][0])


async def until_led_by_another(client: tidelog.Client, stream: str, broker: str) -> dict[str, Any]:
    async def moved() -> dict[str, Any] | None:
        found = await partition(client, stream)
        return found if found["leader"] not in (None, broker) else None

    return dict(await until(moved, f"a leader of {stream} that is not {broker}"))


async def until_isr(client: tidelog.Client, stream: str, *brokers: str) -> dict[str, Any]:
    async def settled() -> dict[str, Any] | None:
        found = await partition(client, stream)
        return found if sorted(found["isr"]) == sorted(brokers) else None

    return dict(await until(settled, f"the ISR {', '.join(sorted(brokers))} of {stream}"))
