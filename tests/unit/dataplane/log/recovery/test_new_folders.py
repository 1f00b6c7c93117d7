"""The folder of a new log has a durable name when it is open, even if a process died right after it was made."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.storage.manifest import Manifest
from tests.simulation.machines.disk import SimDisk

HOME = Path("/data/s/0")


class _Watched(SimDisk):
    """`SimDisk` keeps each folder that was made; this one tells which were synced."""

    def __init__(self) -> None:
        super().__init__()
        self.synced_folders: list[Path] = []

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.synced_folders.append(path)


@pytest.mark.parametrize("made", ["not yet", "empty", "with files"])
def test_the_name_of_a_folder_is_synced_before_the_manifest_names_it(made: str) -> None:
    """A process may have died in front of that call."""
    disk, config = _Watched(), LogConfig(segment_bytes=4096)
    if made != "not yet":
        disk.make_directory(HOME)
    if made == "with files":
        PartitionLog.open(HOME, config, files=disk)
    disk.kill_process()
    manifest = Manifest(disk, HOME.parents[1], {})
    for expected in ([HOME, HOME.parent], [HOME]):
        disk.synced_folders.clear()
        PartitionLog.open(HOME, config, files=disk, entry=manifest.entry("s/0"))
        assert list(dict.fromkeys(disk.synced_folders)) == expected, "the names in it first: one commit may be enough"
        manifest.write()
        disk.kill_process()
