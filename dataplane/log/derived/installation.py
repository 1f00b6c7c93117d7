"""Beginning a log anew at an offset, with the derived state that another replica, or an earlier life of this one, knows
there.

The log that was here goes; what it goes on as is one empty segment, the leader epochs, a snapshot and a checkpoint.
That is many files, and a crash may come between any two of them. So the state is written down first, in a file of its
own, durably and all at once: before that the old log is there, whole; after it every open carries the installation out
again, from the beginning, until all of it is done and the file is removed. No log ever has a start without the epochs
and the producers that belong to it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dataplane.log.derived.log_snapshot import (
    SNAPSHOT_SUFFIX,
    Snapshot,
    decode_snapshot,
    encode_snapshot,
    snapshot_name,
)
from dataplane.log.segments.segment import INDEX_SUFFIX, LOG_SUFFIX, Segment
from dataplane.log.storage.checkpoints import (
    OffsetCheckpoint,
    read_file,
    remove_epochs,
    replace_file,
    write_epochs,
    write_offsets,
)
from wire.errors import CorruptData
from wire.types import Offset

if TYPE_CHECKING:
    from pathlib import Path

    from dataplane.log.storage.files import FileSystem

INSTALLATION_FILE = "installation"
"""A snapshot; there from the moment at which the old log is given up until the new one is whole."""

_log = logging.getLogger(__name__)


def begin(files: FileSystem, directory: Path, snapshot: Snapshot) -> None:
    """From here on the log is the new one. Raises OSError."""
    replace_file(files, directory / INSTALLATION_FILE, encode_snapshot(snapshot))


def finish(files: FileSystem, directory: Path) -> Snapshot | None:
    """Carries out what was begun; nobody holds files of the log open. None: nothing was begun. Raises OSError.

    Where the file is damaged the log begins at 0, with nothing: its leader knows from where it may go on.
    """
    path = directory / INSTALLATION_FILE
    content = read_file(files, path)
    if content is None:
        return None
    try:
        snapshot = decode_snapshot(content)
    except CorruptData as error:
        _log.warning("%s is damaged; the log begins at offset 0: %s", path, error)
        snapshot = Snapshot(Offset(0))
    _remove_old(files, directory)
    _make_new(files, directory, snapshot)
    files.remove(path)
    files.sync_directory(directory)
    return snapshot


def _remove_old(files: FileSystem, directory: Path) -> None:
    """Newest first, and nothing is vouched for before it: what is left at any moment is the beginning of a log."""
    write_offsets(files, directory, OffsetCheckpoint(Offset(0), Offset(0)))
    remove_epochs(files, directory)
    names = files.names(directory)
    for suffixes in ((SNAPSHOT_SUFFIX,), (INDEX_SUFFIX, LOG_SUFFIX)):
        for name in sorted((name for name in names if name.endswith(suffixes)), reverse=True):
            files.remove(directory / name)
            files.sync_directory(directory)


def _make_new(files: FileSystem, directory: Path, snapshot: Snapshot) -> None:
    segment = Segment(files, directory, snapshot.offset)
    segment.open_for_writing(create=True)
    segment.close()
    files.sync_directory(directory)
    write_epochs(files, directory, snapshot.epochs)
    if snapshot.offset:
        replace_file(files, directory / snapshot_name(snapshot.offset), encode_snapshot(snapshot))
    write_offsets(files, directory, OffsetCheckpoint(snapshot.offset, snapshot.offset, snapshot.offset))
