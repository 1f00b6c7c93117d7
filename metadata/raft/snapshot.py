"""Snapshots: how one is kept on disk, written, sent to a node that is far behind, and received.

File layout (little endian), at most one file, replaced whole:

    "TLRSNAP1" | crc32c u32 | header length u32 | state length u64 | last index u64 | last term u64 | header | state

    crc     over everything after it
    last    the last entry that the snapshot covers
    header  msgpack: [[command, index, term] of that entry, the same of the entry before it]

A snapshot is written beside the old one, synced, renamed, and the rename synced; a received one is verified before it
replaces anything. `SnapshotStore` has the interface of PySyncObj's serializer (camel case): it neither forks nor
pickles.

What takes longer than a moment takes turns, one in each tick. The log stays as it is until the end:

    serialize ──turns──> encoded ──a thread──> written and synced ──renamed──> SUCCESS
        └──────────────── a snapshot of the leader is received: given up ───────┘
    received, renamed ──turns──> taken up; nothing is applied, and no snapshot is begun, before that

At the start the file is taken up in one go: nobody asks for the state yet.

A snapshot that cannot be WRITTEN costs nothing yet: the log stays as it is and the next attempt comes RETRY_S later. A
snapshot that cannot be READ or restored ends the process: going on would acknowledge entries on top of a state that was
never loaded.
"""

from __future__ import annotations

import logging
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

import crc32c
import msgpack

from metadata.raft.files import RaftFiles, open_emptied, read_file, write_synced
from metadata.raft.journal import Entry, SnapshotHead
from metadata.raft.ports import RaftPorts, Work
from metadata.raft.types import ExitProcess, RaftDamage, RaftStorageError, StateMachine
from wire.turns import LOOKS, Turns

_log = logging.getLogger(__name__)

FILE_MAGIC = b"TLRSNAP1"
CHUNK_BYTES = 256 << 10
"""Bytes of a snapshot in one message."""
SYNC_BYTES = 4 << 20
"""So many of a snapshot that is received are synced at once. A step of the event loop may take in as many, and with
smaller parts it would wait for the disk more often."""

RETRY_S = 10.0
CLOSE_S = 5.0
"""For which a node that closes waits for the disk to take a snapshot. What it leaves behind is not used."""

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


class _Writing:
    """Writes and syncs a snapshot beside the old one, in a thread."""

    def __init__(self, path: Path, head: SnapshotHead, state: bytes, files: RaftFiles) -> None:
        self.path = path
        self.failure: str | None = "it was not written"
        """None: the file is whole, and on disk."""
        self._head = head
        self._state = state
        self._files = files
        self._work: Work | None = None

    def start(self, start_thread: Callable[[Callable[[], None], str], Work]) -> None:
        try:
            self._work = start_thread(self.run, "raft snapshot")
        except RuntimeError as error:  # no room for a thread
            self.failure = str(error)

    def is_alive(self) -> bool:
        return self._work is not None and self._work.is_alive()

    def join(self, timeout: float | None = None) -> None:
        if self._work is not None:
            self._work.join(timeout)

    def run(self) -> None:
        try:
            write_synced(self._files, self.path, encode_snapshot(self._head, self._state))
            self.failure = None
        except Exception as error:  # noqa: BLE001 - whatever it was, the file is not whole
            self.failure = str(error) or repr(error)

    def discard(self) -> None:
        """On a full disk the file would take the room of files that must be written."""
        with suppress(OSError):
            self._files.remove(self.path)


class SnapshotStore:
    """The snapshot file of one node, and the state machine it is taken from and restored into."""

    def __init__(
        self,
        path: Path,
        state_machine: StateMachine,
        *,
        exit_process: ExitProcess,
        may_send: Callable[[object], bool],
        ports: RaftPorts,
    ) -> None:
        """`may_send(node)`: False while too much for that node is unsent; the next chunk then waits."""
        self._path = path
        self._state_machine = state_machine
        self._exit_process = exit_process
        self._may_send = may_send
        self._monotonic = ports.monotonic
        self._files = ports.files
        self._start_thread = ports.start_thread
        self._current_id = 0
        self._head: SnapshotHead | None = None
        """Head of the snapshot that is being made; None: there is none, or it was given up."""
        self._encoding: Turns[bytes] | None = None
        self._writing: _Writing | None = None
        self._restoring: Turns[None] | None = None
        self._is_received = False
        self._retry_at: float | None = None
        self._outgoing: dict[object, tuple[int, int]] = {}
        """Handle of the file, and how far it was sent."""
        self._incoming: int | None = None
        """Handle of the file that is being received."""
        self._received = 0
        """Its bytes."""
        self._unsynced = 0
        """Bytes of it that no sync has covered."""

    def head(self) -> SnapshotHead | None:
        """The position that the file on disk covers; None when there is none. Raises RaftStorageError when it is
        damaged."""
        data = read_file(self._files, self._path)
        return None if data is None else decode_snapshot(data, self._path)[0]

    def exists(self) -> bool:
        """There is one to load."""
        return self._path.name in self._files.names(self._path.parent)

    def _install(self, temporary: Path) -> None:
        self._files.rename(temporary, self._path)
        self._files.sync_directory(self._path.parent)

    def close(self) -> None:
        if self._writing is not None:
            self._writing.join(CLOSE_S)
        for handle, _ in self._outgoing.values():
            self._files.close(handle)
        self._outgoing.clear()
        self._drop_incoming()

    # ---------------------------------------------------------------------------- taking one

    def serialize(self, data: tuple[object, tuple[bytes, int, int], tuple[bytes, int, int], object], id: int) -> None:  # noqa: A002
        """Begin a snapshot of the state as it is now; `checkSerializing` goes on with it, and reports its end once.
        `data[1:3]` are the last two entries applied.
        """
        self._current_id = id
        self._head = SnapshotHead(Entry(*data[1]), Entry(*data[2]))
        self._encoding = Turns(self._state_machine.snapshot())

    def checkSerializing(self) -> tuple[int, int | None]:  # noqa: N802
        if self._encoding is not None and self._encoding.turn(LOOKS):
            assert self._head is not None
            state, self._encoding = self._encoding.finish(), None
            self._writing = _Writing(self._path.with_suffix(".tmp"), self._head, state, self._files)
            self._writing.start(self._start_thread)
        if self._writing is not None and not self._writing.is_alive():
            writing, self._writing = self._writing, None
            if self._head is not None:
                return self._finish(writing), self._current_id
            writing.discard()
        waits = self._retry_at is not None and self._monotonic() < self._retry_at
        if waits or self.takes_turns or self._writing is not None:
            return SERIALIZING, self._current_id
        return NOT_SERIALIZING, None

    @property
    def takes_turns(self) -> bool:
        """There is work for the next tick."""
        return self._encoding is not None or self._restoring is not None

    def _finish(self, writing: _Writing) -> int:
        self._head = None
        failure = writing.failure
        if failure is None:
            try:
                self._install(writing.path)
            except OSError as error:
                failure = str(error)
        if failure is not None:
            _log.error(
                "The Raft snapshot %s cannot be written (%s); the log grows until it can. Next attempt in %g s.",
                self._path, failure, RETRY_S,
            )  # fmt: skip
            writing.discard()
            self._retry_at = self._monotonic() + RETRY_S
            return FAILED
        # Open transmissions go on from the file they have open; the receiver asks again if that has become too old.
        self._retry_at = None
        return SUCCESS

    def deserialize(self) -> tuple[None, tuple[bytes, int, int], tuple[bytes, int, int], None]:
        """Load the file into the state machine: at the start, else with `restored`.

        Returns (None, last entry, the one before, None) in PySyncObj's order.
        """
        try:
            data = read_file(self._files, self._path)
            head, state = decode_snapshot(b"" if data is None else data, self._path)
            self._restoring = Turns(self._state_machine.restore(state))
        except Exception as error:  # noqa: BLE001 - PySyncObj would swallow it and acknowledge entries without the state below them
            self._end(error)
        self.restored(LOOKS if self._is_received else sys.maxsize)
        return None, head.last, head.before_last, None

    def restored(self, looks: int = LOOKS) -> bool:
        """A turn of taking up the file that was loaded last. False: commands behind it have to wait."""
        try:
            if self._restoring is None or self._restoring.turn(looks):
                self._restoring = None
        except Exception as error:  # noqa: BLE001 - as above
            self._end(error)
        return self._restoring is None

    def _end(self, error: Exception) -> NoReturn:
        self._exit_process(f"The Raft snapshot {self._path} cannot be loaded ({error}); this process ends.")

    # ---------------------------------------------------------------------------- sending one

    def getTransmissionData(self, transmissionID: object) -> Chunk | None:  # noqa: N802, N803
        """The next chunk for a node, None when there is nothing to send now."""
        if not self._may_send(transmissionID):
            return None
        if transmissionID not in self._outgoing:
            try:
                self._outgoing[transmissionID] = self._files.open(self._path), 0
            except OSError as error:
                _log.warning("The Raft snapshot %s cannot be read for a node that is behind (%s).", self._path, error)
                return None
        handle, position = self._outgoing[transmissionID]
        data = self._files.read(handle, CHUNK_BYTES, position)
        self._outgoing[transmissionID] = handle, position + len(data)
        if not data:
            self.cancelTransmisstion(transmissionID)
        return data, position == 0, not data

    def cancelTransmisstion(self, id: object) -> None:  # noqa: A002, N802
        handle, _ = self._outgoing.pop(id, (None, 0))
        if handle is not None:
            self._files.close(handle)

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
                self._incoming, self._received, self._unsynced = open_emptied(self._files, temporary), 0, 0
            if self._incoming is None:
                return False
            self._files.write(self._incoming, (chunk,), self._received)
            self._received += len(chunk)
            self._unsynced += len(chunk)
            if self._unsynced >= SYNC_BYTES or last:
                # In parts: no step of the event loop waits until all of a large snapshot is on disk.
                self._files.sync_all(self._incoming)
                self._unsynced = 0
            if not last:
                return False
            self._drop_incoming()
            decode_snapshot(read_file(self._files, temporary) or b"", temporary)
            self._head = self._encoding = None  # an older snapshot must not take its place
            self._install(temporary)
            self._is_received = True
        except (OSError, RaftStorageError) as error:
            _log.error("A snapshot from the Raft leader was not installed (%s); it will be sent again.", error)
            self._drop_incoming()
            with suppress(OSError):
                self._files.remove(temporary)  # a full disk has no room for it
            return False
        return True

    def _drop_incoming(self) -> None:
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            self._files.close(incoming)
