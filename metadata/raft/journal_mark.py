"""How far the journal of this node was written, kept outside of the Raft directory.

    <raft>.synced      "TLRMARK1" | sequence u64 | crc32c u32      the newest batch of the journal that was synced

A Raft directory that is put back from an older copy is sound in itself: the node has forgotten terms, votes and entries
that it told others of, and could be elected twice in one term, or elect a leader that lacks committed commands. The
mark tells: a journal that ends before it is older (`dataplane.log.storage.manifest` does the same for the logs of
partitions).

The mark is written after each sync of the journal, before anything that depends on it leaves the node, so it is never
ahead of the journal. It is not synced itself: it outlives the process, and a loss of power may take it back to an
earlier batch, after which less is noticed. A mark that is missing or damaged says nothing.
"""

from __future__ import annotations

import logging
import struct
from pathlib import Path

import crc32c

from metadata.raft.files import OS_FILES, RaftFiles

_log = logging.getLogger(__name__)

_MAGIC = b"TLRMARK1"
_SEQUENCE = struct.Struct("<8sQ")
_CRC = struct.Struct("<I")


def mark_path(directory: Path) -> Path:
    """The mark of the node with that Raft directory."""
    return directory.with_name(f"{directory.name}.synced")


class JournalMark:
    """Blocking. `close` ends it."""

    def __init__(self, path: Path, files: RaftFiles = OS_FILES) -> None:
        """Raises OSError."""
        self._path = path
        self._files = files
        self._handle = files.open(path, write=True, create=True)
        self.sequence = _decode(files.read(self._handle, _SEQUENCE.size + _CRC.size, 0))
        """0: nothing is known."""
        self._has_failed = False

    # R77: A voter that has forgotten what it told others does not vote. Beside its Raft directory a node keeps the
    # number of the newest synced batch of its journal, written before anything that depends on the batch leaves the
    # node. A journal that ends before that number is set aside as damaged files are, and the voter neither votes nor
    # leads before it has synchronised from a leader that others have elected. For its first 2 s it hears no leader: one
    # that was deposed by a vote which the voter has forgotten would go on with its answers.
    # Hazard: An older copy of one voter's Raft directory is put back; it is elected in a term in which it was elected
    # before, and brokers apply two histories of the metadata.
    # Not covered: An older copy of the whole data folder. A loss of power may take the number back to what the
    # operating system had written of it.
    def write(self, sequence: int) -> None:
        """One that cannot be written stays as it is, which is told once."""
        self.sequence = sequence
        content = _SEQUENCE.pack(_MAGIC, sequence)
        try:
            self._files.write(self._handle, (content + _CRC.pack(crc32c.crc32c(content)),), 0)
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                _log.error(
                    "%s cannot be written (%s): an older copy of the Raft directory would not be noticed",
                    self._path, error.strerror or error,
                )  # fmt: skip

    def close(self) -> None:
        self._files.close(self._handle)


def _decode(content: bytes) -> int:
    if len(content) != _SEQUENCE.size + _CRC.size:
        return 0
    magic, sequence = _SEQUENCE.unpack_from(content)
    (checksum,) = _CRC.unpack_from(content, _SEQUENCE.size)
    return int(sequence) if magic == _MAGIC and checksum == crc32c.crc32c(content[: _SEQUENCE.size]) else 0
