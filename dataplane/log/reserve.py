"""A file that takes up room, so that there is some to give back when the disk is full.

Others fill the same disk. What must be written even then (checkpoints, leader epochs, the Raft journal) is small, and
finds its room where this file was. Blocking.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from dataplane.log.files import FileSystem

_log = logging.getLogger(__name__)

RESERVE_FILE = "reserve"
"""In the data folder."""


class Reserve:
    def __init__(self, files: FileSystem, directory: Path) -> None:
        self._files = files
        self._path = directory / RESERVE_FILE

    def keep(self, size: int) -> None:
        """Takes `size` bytes, unless that many are taken. A disk that cannot give them leaves the broker without."""
        try:
            handle = self._files.open(self._path, write=True, create=True)
            try:
                taken = self._files.size(handle)
                if taken < size:
                    self._files.preallocate(handle, taken, size - taken)
                elif taken > size:
                    self._files.truncate(handle, size)
            finally:
                self._files.close(handle)
        except OSError as error:
            _log.info("no reserve is kept in %s: %s", self._path, error)
            self.release()

    def release(self) -> None:
        with suppress(OSError):
            self._files.remove(self._path)
