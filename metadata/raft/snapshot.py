"""Snapshots: how one is kept on disk, written, sent to a node that is far behind, and received.

File layout (little endian), at most one file, replaced whole:

    "TLRSNAP1" | crc32c u32 | header length u32 | state length u64 | last index u64 | last term u64 | header | state

    crc     over everything after it
    last    the last entry that the snapshot covers
    header  msgpack: [[command, index, term] of that entry, the same of the entry before it]

A snapshot is written beside the old one, synced, renamed, and the rename synced; a received one is verified before it
replaces anything. `SnapshotStore` has the interface of PySyncObj's serializer (camel case): it neither forks nor
pickles.

A snapshot that cannot be WRITTEN costs nothing yet: the log stays as it is and the next attempt comes RETRY_S later. A
snapshot that cannot be READ or restored ends the process: going on would acknowledge entries on top of a state that was
never loaded.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

import crc32c
import msgpack

from metadata.raft.journal import Entry, SnapshotHead, sync_directory, write_all
from metadata.raft.types import ExitProcess, RaftDamage, RaftStorageError, StateMachine

_log = logging.getLogger(__name__)

FILE_MAGIC = b"TLRSNAP1"
CHUNK_BYTES = 256 << 10
"""Bytes of a snapshot in one message."""

RETRY_S = 10.0

_PREFIX = struct.Struct("<8sI")
_CHECKED = struct.Struct("<IQQQ")

# PySyncObj's SERIALIZER_STATE.
NOT_SERIALIZING: Final = 0
SERIALIZING: Final = 1
SUCCESS: Final = 2
FAILED: Final = 3

Chunk = tuple[bytes, bool, bool]
"""(bytes, is the first, is the last). The last one is empty."""


def encode_snapshot(head: SnapshotHead, state: bytes) -> bytes:
    header: bytes = msgpack.packb([list(head.last), list(head.before_last)])
    checked = _CHECKED.pack(len(header), len(state), head.last.index, head.last.term) + header + state
    return _PREFIX.pack(FILE_MAGIC, crc32c.crc32c(checked)) + checked


def decode_snapshot(data: bytes, source: Path) -> tuple[SnapshotHead, bytes]:
    """Raises RaftStorageError, naming `source`: RaftDamage when the bytes are not a whole and sound snapshot."""
    fixed = _PREFIX.size + _CHECKED.size
    if len(data) >= fixed:
        magic, checksum = _PREFIX.unpack_from(data)
        header_length, state_length, _, _ = _CHECKED.unpack_from(data, _PREFIX.size)
        whole = len(data) == fixed + header_length + state_length
        if magic == FILE_MAGIC and whole and crc32c.crc32c(memoryview(data)[_PREFIX.size :]) == checksum:
            last, before_last = msgpack.unpackb(data[fixed : fixed + header_length])
            return SnapshotHead(Entry(*last), Entry(*before_last)), data[fixed + header_length :]
    title = data[: len(FILE_MAGIC)]
    of_another_version = title[:-1] == FILE_MAGIC[:-1] and title != FILE_MAGIC
    raise (RaftStorageError if of_another_version else RaftDamage)(
        f"The Raft snapshot {source} is damaged or of another version ({len(data)} bytes); stop this voter, empty its "
        "Raft directory "
        f"and let it synchronise from the others."
    )


def offered_entry(first_chunk: bytes) -> tuple[int, int]:
    """Index and term of the last entry that the snapshot beginning with `first_chunk` covers; (0, 0) when it is too
    short.
    """
    if len(first_chunk) < _PREFIX.size + _CHECKED.size:
        return 0, 0
    _, _, last_index, last_term = _CHECKED.unpack_from(first_chunk, _PREFIX.size)
    return last_index, last_term


class SnapshotStore:
    """The snapshot file of one node, and the state machine it is taken from and restored into."""

    def __init__(
        self,
        path: Path,
        state_machine: StateMachine,
        *,
        exit_process: ExitProcess,
        may_send: Callable[[object], bool],
        monotonic: Callable[[], float],
    ) -> None:
        """`may_send(node)`: False while too much for that node is unsent; the next chunk then waits."""
        self._path = path
        self._state_machine = state_machine
        self._exit_process = exit_process
        self._may_send = may_send
        self._monotonic = monotonic
        self._finished: int | None = None
        self._current_id = 0
        self._retry_at: float | None = None
        self._outgoing: dict[object, BinaryIO] = {}
        self._incoming: BinaryIO | None = None

    def head(self) -> SnapshotHead | None:
        """The position that the file on disk covers; None when there is none. Raises RaftStorageError when it is
        damaged."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        return decode_snapshot(data, self._path)[0]

    def _install(self, temporary: Path) -> None:
        temporary.replace(self._path)
        sync_directory(self._path.parent)

    def close(self) -> None:
        for file in self._outgoing.values():
            file.close()
        self._outgoing.clear()
        self._drop_incoming()

    # ---------------------------------------------------------------------------- taking one

    def serialize(self, data: tuple[object, tuple[bytes, int, int], tuple[bytes, int, int], object], id: int) -> None:  # noqa: A002
        """Take and store a snapshot; `checkSerializing` then reports it once. `data[1:3]` are the last two entries
        applied.
        """
        self._current_id = id
        encoded = encode_snapshot(SnapshotHead(Entry(*data[1]), Entry(*data[2])), self._state_machine.snapshot())
        temporary = self._path.with_suffix(".tmp")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                write_all(descriptor, encoded)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._install(temporary)
        except OSError as error:
            _log.error(
                "The Raft snapshot %s cannot be written (%s); the log grows until it can. Next attempt in %g s.",
                self._path, error, RETRY_S,
            )  # fmt: skip
            with suppress(OSError):  # on a full disk it would take the room of files that must be written
                temporary.unlink(missing_ok=True)
            self._finished = FAILED
            self._retry_at = self._monotonic() + RETRY_S
            return
        # Open transmissions go on from the file they have open; the receiver asks again if that has become too old.
        self._finished = SUCCESS
        self._retry_at = None

    def checkSerializing(self) -> tuple[int, int | None]:  # noqa: N802
        if self._finished is not None:
            finished, self._finished = self._finished, None
            return finished, self._current_id
        if self._retry_at is not None and self._monotonic() < self._retry_at:
            return SERIALIZING, self._current_id
        return NOT_SERIALIZING, None

    def deserialize(self) -> tuple[None, tuple[bytes, int, int], tuple[bytes, int, int], None]:
        """Load the file into the state machine.

        Returns (None, last entry, the one before, None) in PySyncObj's order.
        """
        try:
            head, state = decode_snapshot(self._path.read_bytes(), self._path)
            self._state_machine.restore(state)
        except Exception as error:  # noqa: BLE001 - PySyncObj would swallow it and acknowledge entries without the state below them
            self._exit_process(f"The Raft snapshot {self._path} cannot be loaded ({error}); this process ends.")
        return None, head.last, head.before_last, None

    # ---------------------------------------------------------------------------- sending one

    def getTransmissionData(self, transmissionID: object) -> Chunk | None:  # noqa: N802, N803
        """The next chunk for a node, None when there is nothing to send now."""
        if not self._may_send(transmissionID):
            return None
        file = self._outgoing.get(transmissionID)
        if file is None:
            try:
                file = self._path.open("rb")
            except OSError as error:
                _log.warning("The Raft snapshot %s cannot be read for a node that is behind (%s).", self._path, error)
                return None
            self._outgoing[transmissionID] = file
        first = file.tell() == 0
        data = file.read(CHUNK_BYTES)
        if not data:
            self.cancelTransmisstion(transmissionID)
        return data, first, not data

    def cancelTransmisstion(self, id: object) -> None:  # noqa: A002, N802
        file = self._outgoing.pop(id, None)
        if file is not None:
            file.close()

    # ---------------------------------------------------------------------------- receiving one

    def setTransmissionData(self, data: Chunk | None) -> bool:  # noqa: N802
        """Take a chunk. True when it was the last and the snapshot, verified and durable, has replaced the old one."""
        if data is None:
            return False
        chunk, first, last = data
        temporary = self._path.with_suffix(".incoming")
        try:
            if first:
                self._drop_incoming()
                self._incoming = temporary.open("wb")
            if self._incoming is None:
                return False
            self._incoming.write(chunk)
            if not last:
                return False
            self._incoming.flush()
            os.fsync(self._incoming.fileno())
            self._drop_incoming()
            decode_snapshot(temporary.read_bytes(), temporary)
            self._install(temporary)
        except (OSError, RaftStorageError) as error:
            _log.error("A snapshot from the Raft leader was not installed (%s); it will be sent again.", error)
            self._drop_incoming()
            return False
        return True

    def _drop_incoming(self) -> None:
        if self._incoming is not None:
            self._incoming.close()
            self._incoming = None
