"""Compaction of one segment: the records to keep, and the file in which they are written down without the rest.

    00000000000000004096.compacted.tmp       removed at the next open, should a crash leave it

Nothing is written before the first batch that loses a record. The whole batches before it are copied then, as bytes.
The fate of a batch:

    all its records stay           as it is, byte for byte
    some stay                      the same batch with holes, if that is not larger than it was; else as it is, and the
                                   caller is told: what it lost is still there
    none stays                     it goes; but a control batch over the same offsets is left of the first batch of each
                                   leader epoch in the segment, by which the epochs are found again, of the last one of
                                   the segment, by which its end is known, and of those by which a producer's repetition
                                   is recognised, also by replicas that copy this log; until it is none of these any
                                   more
    of an aborted transaction      as if none of its records stayed, whether it can be read or not
    control, or not to be read     as it is

A batch that is larger than `max_batch_bytes`, because an older version made it larger than it was, is written anew in
its smallest form, however little stays of it.

An encrypted batch is decrypted, and its rest is encrypted anew, with a data key of this broker's own. So
replicas that compact it hold other bytes, of the same records. Without its master key it is not to be read.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from dataplane.encryption.bodies import OVERHEAD
from dataplane.log.segments.index import NO_TIMESTAMP, IndexEntry, SparseIndex
from dataplane.log.storage.checkpoints import TEMPORARY_SUFFIX
from wire.batch import (
    HEADER_SIZE,
    CompactableBatch,
    ControlType,
    decode_control,
    emptied,
    parse_header,
    verify_body,
)
from wire.batch.header import body_of
from wire.errors import CorruptData, TidelogError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from dataplane.encryption.bodies import BatchCipher
    from dataplane.log.segments.segment import Segment
    from dataplane.log.storage.files import FileSystem
    from dataplane.replica.derived.transaction_table import AbortedBatches
    from wire.batch import BatchHeader, EncodedBatch
    from wire.types import Buffer

    BoolArray: TypeAlias = NDArray[np.bool_]
    Judge: TypeAlias = Callable[[list["LocatedBatch"]], Iterator[BoolArray | None]]
    """Which records of each batch stay; None: all. Asked for one batch after the other, as they are rewritten."""

BLOCK_BYTES: Final = 1 << 20
"""Read at a time; more where one batch is larger."""
_SYNC_BYTES: Final = 8 << 20
"""Written before it is synced: one sync of a whole segment would hold up the syncs that publishers wait for."""


class LocatedBatch(NamedTuple):
    position: int
    """Bytes, in the segment."""
    header: BatchHeader
    data: memoryview
    """Header and body."""
    content: CompactableBatch | None
    """None: no single record can be taken from it."""
    is_aborted: bool
    """Its records do not count."""


def batches_of(
    segment: Segment, read: Callable[[int, int], bytes], cipher: BatchCipher, aborted: AbortedBatches
) -> Iterator[list[LocatedBatch]]:
    """The batches of a segment, about BLOCK_BYTES of them at a time; CRCs are checked. `read(size, position)`. Raises
    CorruptData that names the place, and as `read` does."""
    position = 0
    wanted = BLOCK_BYTES
    while position < segment.size:
        size = min(wanted, segment.size - position)
        block = read(size, position)
        view = memoryview(block)
        found: list[LocatedBatch] = []
        at, needed = 0, HEADER_SIZE
        try:
            while at + needed <= len(block):
                header = parse_header(block, at)
                if at + header.size > len(block):
                    needed = header.size
                    break
                is_aborted = aborted.has_batch(header)
                content = None
                if is_aborted:
                    verify_body(block, at, header)
                else:
                    content = _opened(block, at, header, cipher)
                found.append(LocatedBatch(position + at, header, view[at : at + header.size], content, is_aborted))
                at += header.size
            if len(block) < size or position + at + (needed if at < len(block) else 0) > segment.size:
                raise CorruptData("the file ends within a batch")
        except CorruptData as error:
            raise CorruptData(f"{segment.path} is damaged at byte {position + at}: {error}") from error
        yield found
        position += at
        wanted = max(BLOCK_BYTES, needed)


def _opened(block: bytes, at: int, header: BatchHeader, cipher: BatchCipher) -> CompactableBatch | None:
    if not header.is_encrypted:
        return CompactableBatch.decode(block, at, header)
    verify_body(block, at, header)
    if not cipher.can_encrypt:
        return None
    try:
        plain = b"".join(cipher.decrypt(header, body_of(block, at, header)))
    except TidelogError:  # no key for this one
        return None
    return CompactableBatch.decode(plain, 0, parse_header(plain))


@dataclass(frozen=True, slots=True)
class RewrittenSegment:
    """The file that is to take the place of a segment; synced."""

    path: Path
    size: int
    index: SparseIndex
    """Complete: it ends with the entry at the end of the file."""
    removed: int
    """Records."""


class _Output:
    """The new file, from its first byte on."""

    def __init__(self, files: FileSystem, path: Path) -> None:
        self._files = files
        self.path = path
        self.size = 0
        """Bytes, with the ones that are not written yet."""
        self._parts: list[Buffer] = []
        self._written = 0
        self._synced = 0
        self.is_finished = False
        self._handle = files.open(path, write=True, create=True)
        files.truncate(self._handle, 0)

    def add(self, parts: list[Buffer]) -> None:
        self._parts += parts
        self.size += sum(map(len, parts))

    def write(self) -> int:
        """Bytes."""
        amount = self.size - self._written
        if amount:
            self._files.write(self._handle, self._parts, self._written)
            self._parts, self._written = [], self.size
        if self.size - self._synced >= _SYNC_BYTES:
            self._sync()
        return amount

    def _sync(self) -> None:
        self._files.sync_data(self._handle)
        self._synced = self.size

    def finish(self) -> None:
        self.write()
        self._files.sync_all(self._handle)
        self.is_finished = True

    def close(self) -> None:
        self._files.close(self._handle)


def rewrite(
    segment: Segment,
    end_offset: int,
    *,
    files: FileSystem,
    read: Callable[[int, int], bytes],
    cipher: BatchCipher,
    aborted: AbortedBatches,
    judge: Judge,
    on_left_whole: Callable[[LocatedBatch], None],
    is_remembered: Callable[[BatchHeader], bool],
    index_interval: int,
    max_batch_bytes: int,
) -> Generator[int, None, RewrittenSegment | None]:
    """Yields, step by step, the bytes read and written; returns the new file, None when nothing changes.

    `end_offset` is where the next segment begins. `on_left_whole` is called with a batch that stays as it is, although
    records of it should go, before anything behind it is judged. Given up (closed) between two steps, it leaves no
    file. Raises CorruptData, OSError (of the new file, or of `read`).
    """
    output: _Output | None = None
    index = SparseIndex(segment.base_offset)
    size, newest, previous_end, epoch = 0, NO_TIMESTAMP, segment.base_offset, -1
    removed = 0
    try:
        for found in batches_of(segment, read, cipher, aborted):
            yield sum(len(batch.data) for batch in found)
            for batch, kept in zip(found, judge(found), strict=True):
                header = batch.header
                is_last = batch.position + header.size == segment.size
                is_wanted = is_last or header.leader_epoch != epoch or is_remembered(header)
                left = _what_is_left(batch, kept, cipher, is_wanted=is_wanted, max_batch_bytes=max_batch_bytes)
                if batch.is_aborted:
                    removed += header.record_count
                elif kept is not None:
                    if left is not None:
                        removed += int((~kept).sum())
                    elif not kept.all():
                        on_left_whole(batch)
                epoch = header.leader_epoch
                if left is not None and output is None:
                    output = _Output(files, segment.path.with_suffix(f".compacted{TEMPORARY_SUFFIX}"))
                    yield from _copy(read, batch.position, output)
                if output is not None:
                    output.add([batch.data] if left is None else left)
                    if not left and left is not None:
                        continue
                if size - index.last.position >= index_interval:
                    index.add(IndexEntry(previous_end, size, newest))
                size = output.size if output is not None else batch.position + header.size
                newest = max(newest, header.last_timestamp)
                previous_end = header.end_offset
            if output is not None:
                yield output.write()
        if output is None:
            return None
        index.add(IndexEntry(end_offset, size, newest))
        output.finish()
        return RewrittenSegment(output.path, size, index, removed)
    finally:
        if output is not None:
            output.close()
            if not output.is_finished:
                with contextlib.suppress(OSError):  # it is removed at the next open
                    files.remove(output.path)


def _copy(read: Callable[[int, int], bytes], end: int, output: _Output) -> Iterator[int]:
    for position in range(0, end, BLOCK_BYTES):
        output.add([read(min(BLOCK_BYTES, end - position), position)])
        yield output.write()


def _what_is_left(
    batch: LocatedBatch, kept: BoolArray | None, cipher: BatchCipher, *, is_wanted: bool, max_batch_bytes: int
) -> list[Buffer] | None:
    """None: it is left as it is."""
    header, content = batch.header, batch.content
    if not is_wanted and header.is_control and decode_control(batch.data).type == ControlType.EMPTIED:
        return []
    if batch.is_aborted or (kept is not None and not kept.any()):
        if not is_wanted:
            return []
        left: EncodedBatch | None = emptied(header)
    elif content is None or kept is None:
        return None
    elif kept.all():
        # Encryption makes a batch larger after its size was looked at, and messages have room for that.
        too_large = header.size - max_batch_bytes - (OVERHEAD if header.is_encrypted else 0)
        if too_large <= 0 or not content.has_offset_deltas:
            return None
        left = content.keep(kept, content.header.length - too_large)
    else:
        left = content.keep(kept)
    if left is None:
        return None
    if header.is_encrypted and not left.header.is_control:
        return cipher.encrypt(left.header, left.parts)[0]
    return left.restamp()[0]
