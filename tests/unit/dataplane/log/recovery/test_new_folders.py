"""The folder of a new log has a durable name before it gets files, even if a process died right after it was made."""

from __future__ import annotations

from pathlib import Path

from dataplane.log.partition_log import LogConfig, PartitionLog
from tests.simulation.machines.disk import SimDisk

HOME = Path("/data/s/0")


class _Watched(SimDisk):
    """`SimDisk` keeps each folder that was made; this one tells which were synced while a folder had no files."""

    def __init__(self) -> None:
        super().__init__()
        self.synced_before_files: list[Path] = []

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        if not self.names(HOME):
            self.synced_before_files.append(path)


def test_the_name_of_an_empty_folder_is_synced_before_it_gets_files() -> None:
    disk, config = _Watched(), LogConfig(segment_bytes=4096)
    disk.make_directory(HOME)
    disk.kill_process()  # in front of the call that syncs HOME's name
    PartitionLog.open(HOME, config, files=disk)
    assert disk.synced_before_files == [HOME, HOME.parent]
    disk.kill_process()
    disk.synced_before_files.clear()
    PartitionLog.open(HOME, config, files=disk)
    assert disk.synced_before_files == [], "it has files"
