"""A voter whose Raft files are damaged begins anew, empty, and synchronises from the others.

That is safe, and an operator would be told to do the same: such a voter votes for no candidate, and counts for no
commit it has not stored, until it has everything that a leader has committed (`Journal.joined`). Where more than the
others can do without begin anew at once, no leader is elected before an operator brings one of their files back. Alone
(no peers) it would be the loss of the cluster's metadata: there the damage is refused.

    <raft>/damaged/1-journal, 1-snapshot, 1-reason.txt         the newest MAX_KEPT times are kept
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from metadata.raft.files import OS_FILES, RaftFiles, write_synced
from metadata.raft.types import RaftDamage, RaftStorageError

if TYPE_CHECKING:
    from pathlib import Path

    from metadata.raft.types import RaftConfig

_log = logging.getLogger(__name__)

FOLDER = "damaged"
MAX_KEPT = 3
_FILES = ("journal", "snapshot")

_Opened = TypeVar("_Opened")


def open_or_set_aside(config: RaftConfig, make: Callable[[], _Opened], files: RaftFiles = OS_FILES) -> _Opened:
    """The result of `make` on the files in the Raft directory. Raises the errors of `make`; RaftDamage only without
    peers."""
    try:
        return make()
    except RaftDamage as damage:
        if not config.peers:
            raise RaftStorageError(
                f"{damage} There are no others: this is the only copy of the cluster's metadata; restore the directory "
                f"{config.directory} from the newest backup. docs/storage.md says how to go on with an older copy, and "
                "what that costs."
            ) from damage
        _log.error("%s It is set aside, and this node begins anew, empty, and synchronises from the others.", damage)
        set_aside(config.directory, str(damage), files)
        return make()


def has_set_aside(directory: Path, files: RaftFiles = OS_FILES) -> bool:
    """Whether a life of this node had files in that directory that were damaged."""
    return FOLDER in files.names(directory)


def set_aside(directory: Path, reason: str, files: RaftFiles = OS_FILES) -> None:
    """Durably. Raises OSError."""
    folder = directory / FOLDER
    files.make_directory(folder)
    present = files.names(folder)
    numbers = sorted({int(name.split("-")[0]) for name in present if name[:1].isdigit()})
    number = numbers[-1] + 1 if numbers else 1
    for old in numbers[: max(0, len(numbers) + 1 - MAX_KEPT)]:
        for name in present:
            if name.startswith(f"{old}-"):
                files.remove(folder / name)
    write_synced(files, folder / f"{number}-reason.txt", f"{reason}\n".encode())
    for name in _FILES:
        if name in files.names(directory):
            files.rename(directory / name, folder / f"{number}-{name}")
    files.sync_directory(folder)
    files.sync_directory(directory)
