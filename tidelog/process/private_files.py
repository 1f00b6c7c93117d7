"""Files that nobody but their owner should read: secrets, and the records of a broker."""

from __future__ import annotations

import logging
import stat
from collections.abc import Iterable
from pathlib import Path

_log = logging.getLogger(__name__)

PRIVATE_UMASK = 0o077
"""A process with this umask makes folders of mode 0700 and files of mode 0600."""
_OTHERS = 0o077

_told: set[Path] = set()


def warn_of_open(files: Iterable[Path]) -> None:
    """Logs one line for each file or folder that users other than its owner may use; once in a process."""
    for file in files:
        try:
            mode = stat.S_IMODE(file.stat().st_mode)
        except OSError:
            continue
        if mode & _OTHERS and file not in _told:
            _told.add(file)
            wanted = 0o700 if file.is_dir() else 0o600
            _log.warning(
                "%s is open to other users of this machine (mode %04o): close it with `chmod %04o %s`",
                file, mode, wanted, file,
            )  # fmt: skip
