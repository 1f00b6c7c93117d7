"""Files of a broker's data folder that are gone, or are as they were some time ago, when it starts again.

Only the files of one broker at a time: the others hold what was committed. What is put back is old enough for the
manifest to tell; a copy that is younger than the last checkpoint is for the other rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.storage.data_dir import COPY_FILE, IDENTITY_FILE, list_partitions, partition_directory
from dataplane.log.storage.manifest import MANIFEST_COPY_FILE, MANIFEST_FILE, read_manifest

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from tests.simulation.machines.disk import SimDisk
    from wire.types import PartitionKey

HARMS = ("missing", "emptied", "older")
PARTS = ("partition", "stream", "manifest", "identity", "manifest and partition")


def lose_files(disk: SimDisk, data: Path, part: str, older: SimDisk | None, rng: Random, *, emptied: bool) -> bool:
    """`part`: of PARTS. `older`: a copy of the disk from before, from which they are put back. False: nothing was
    done, for there are no such files, or the copy is too young."""
    keys = list_partitions(disk, data)
    if not keys:
        return False
    folder = partition_directory(data, rng.choice(keys))
    if part == "identity":
        paths = [data / IDENTITY_FILE, data / COPY_FILE]
    elif part == "manifest":
        paths = [data / MANIFEST_FILE, data / MANIFEST_COPY_FILE]
    else:
        paths = [folder.parent if part == "stream" else folder]
        logs = [key for key in keys if paths[0] in partition_directory(data, key).parents] or [
            key for key in keys if partition_directory(data, key) == folder
        ]
        if older is not None and not all(_is_older(disk, older, data, key) for key in logs):
            return False
        if part == "manifest and partition":
            if older is not None:
                return False
            paths += [data / MANIFEST_FILE, data / MANIFEST_COPY_FILE]
    for path in paths:
        if older is not None and older.names(path.parent).count(path.name):
            disk.restore(path, older)
        else:
            disk.lose(path, emptied=emptied and disk.is_directory(path))
    return True


def _is_older(disk: SimDisk, older: SimDisk, data: Path, key: PartitionKey) -> bool:
    """The log of `older` ends below what the manifest says."""
    folder = partition_directory(data, key)
    entry = (read_manifest(disk, data) or {}).get(str(folder.relative_to(data)))
    if entry is None or not older.is_directory(folder):
        return False
    log, report = PartitionLog.open(folder, LogConfig(), files=older.copy())
    return report.damaged is None and log.log_end_offset < entry.high_watermark
