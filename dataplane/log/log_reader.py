"""Reading a log from its files: batches, times, headers.

Any thread, any time; blocking. No lock is held while the disk reads: bytes that were read while the log was cut are
forgotten and read again (`stable`). The I/O lock is taken to wait for the end of a cut, and to load the index of a cold
segment.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from dataplane.log.segments.index import IndexEntry
from dataplane.log.segments.scan import walk
from dataplane.log.segments.segment import base_offset_of
from dataplane.log.storage.log_errors import LogDamaged
from dataplane.replica.derived.transaction_table import is_aborted
from wire.batch import HEADER_SIZE, RecordBatch, parse_header
from wire.error_details import LOG_START
from wire.errors import Code, CorruptData, TidelogError
from wire.types import Offset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dataplane.log.log_state import LogState
    from dataplane.log.segments.index import SparseIndex
    from dataplane.log.segments.segment import Segment
    from wire.batch import BatchHeader
    from wire.types import Buffer

T = TypeVar("T")


class LogReader:
    def __init__(self, state: LogState) -> None:
        self._state = state

    def read_from_disk(self, offset: Offset, *, max_bytes: int, end_offset: Offset) -> Buffer:
        """As `read`, from the files; may hold fewer batches than fit. Headers are checked, bodies are for the receiver
        to check.

        Blocking, any thread. Raises TidelogError(OFFSET_BEFORE_LOG), CorruptData (damage), LogDamaged (the disk).
        """
        return self.stable(lambda: self._read_from_disk(offset, max_bytes, end_offset))

    def stable(self, attempt: Callable[[], T]) -> T:
        """The result of a reading `attempt` during which nothing was cut."""
        state = self._state
        while True:
            cuts = state.cuts
            if cuts % 2:
                with state.io_lock:  # until the cut is done
                    continue
            try:
                result = attempt()
            except (OSError, CorruptData) as error:
                if state.cuts != cuts:
                    continue
                if isinstance(error, OSError):
                    raise LogDamaged(f"reading {state.directory} failed: {error}") from error
                raise
            if state.cuts == cuts:
                return result

    def _read_from_disk(self, offset: Offset, max_bytes: int, end_offset: Offset) -> Buffer:
        end_offset = min(end_offset, self._state.log_end_offset)
        segments = self._state.segments
        self.check_not_before_log(offset, segments)
        number = bisect_right(segments, offset, key=base_offset_of) - 1
        while number < len(segments) and offset < end_offset:
            index = self._index(segments, number)
            found = self._read_segment(segments[number], index.before_offset(offset), offset, max_bytes, end_offset)
            if found is not None:
                return found
            number += 1  # the records behind `offset` were compacted away up to the end of that segment
        return b""

    def _read_segment(
        self, segment: Segment, start: IndexEntry, offset: Offset, max_bytes: int, end_offset: Offset
    ) -> Buffer | None:
        """None: the segment has no record at or above `offset`."""
        size = segment.size
        with self._state.handles.borrow(segment.path) as handle:
            for position, header in self.walk_segment(segment, handle, start, size):  # noqa: B007 - used where it ends
                if header.end_offset > offset:
                    break
            else:
                return None
            if header.end_offset > end_offset:
                return b""
            block = self._state.files.read(handle, min(max(max_bytes, header.size), size - position), position)
        whole = header.size
        while whole < len(block):
            if len(block) - whole < HEADER_SIZE:
                break
            header = self._header(segment, block, whole, position)
            if whole + header.size > len(block) or header.end_offset > end_offset:
                break
            whole += header.size
        return block if whole == len(block) else memoryview(block)[:whole]  # not copied: it may be megabytes

    def offset_for_timestamp(
        self,
        timestamp_ns: int,
        end_offset: Offset,
        *,
        decrypt: Callable[[Buffer], bytes] = bytes,
        read_uncommitted: bool = False,
    ) -> Offset | None:
        """The offset of the first record, in order of offset, with a timestamp of at least `timestamp_ns`; None when
        there is none below `end_offset`. Control batches do not count, and those of aborted transactions with
        `read_uncommitted` alone. `decrypt` makes a batch that is encrypted one that is not. Blocking, any thread.
        Raises as `read_from_disk` and `decrypt`."""
        return self.stable(
            lambda: self._offset_for_timestamp(timestamp_ns, end_offset, decrypt, read_uncommitted=read_uncommitted)
        )

    def _offset_for_timestamp(
        self, timestamp: int, end_offset: Offset, decrypt: Callable[[Buffer], bytes], *, read_uncommitted: bool
    ) -> Offset | None:
        state = self._state
        end_offset = min(end_offset, state.log_end_offset)
        segments = state.segments
        for number, segment in enumerate(segments):
            if segment.base_offset >= end_offset:
                break
            if segment.max_timestamp < timestamp:
                continue
            start = self._index(segments, number).before_timestamp(timestamp)
            with state.handles.borrow(segment.path) as handle:
                for position, header in self.walk_segment(segment, handle, start, segment.size):
                    if header.base_offset >= end_offset:
                        return None
                    if header.last_timestamp < timestamp or header.is_control:
                        continue
                    if read_uncommitted or not is_aborted(header, state.derived.producers.transactions):
                        found = self._record_at(handle, position, header, timestamp, decrypt)
                        return found if found < end_offset else None
        return None

    def _record_at(
        self,
        handle: int,
        position: int,
        header: BatchHeader,
        timestamp: int,
        decrypt: Callable[[Buffer], bytes],
    ) -> Offset:
        if header.first_timestamp >= timestamp and not header.offset_span:
            return header.base_offset
        stored = self._state.files.read(handle, header.size, position)
        batch = RecordBatch.decode(decrypt(stored) if header.is_encrypted else stored)
        return Offset(int(batch.offsets[np.argmax(batch.timestamps >= timestamp)]))

    def span(self, offset: Offset, size: int, end_offset: Offset) -> tuple[Offset, int]:
        """(the offset at which about `size` bytes of the log from `offset` on end, about how many bytes there are up to
        `end_offset`). The first is above `offset`, but at most `end_offset`; between the entries of the index offsets
        are taken to be equally large. Blocking, any thread. Raises as
        `read_from_disk`."""
        return self.stable(lambda: self._span(offset, size, end_offset))

    def _span(self, offset: Offset, size: int, end_offset: Offset) -> tuple[Offset, int]:
        segments = self._state.segments
        self.check_not_before_log(offset, segments)
        begin = self._position_of(segments, offset)
        end = self._position_of(segments, end_offset)
        found = self._offset_at(segments, begin + size)
        return Offset(min(max(found, offset + 1), end_offset)), max(0, end - begin)

    def _position_of(self, segments: tuple[Segment, ...], offset: Offset) -> int:
        """In bytes from the beginning of the first segment."""
        number = max(0, bisect_right(segments, offset, key=base_offset_of) - 1)
        before = self._index(segments, number).before_offset(offset)
        after = self._entry_after(segments, number, before)
        return sum(segment.size for segment in segments[:number]) + _between(
            offset, (before.offset, before.position), (after.offset, after.position)
        )

    def _offset_at(self, segments: tuple[Segment, ...], position: int) -> Offset:
        number = 0
        while number + 1 < len(segments) and position >= segments[number].size:
            position -= segments[number].size
            number += 1
        before = self._index(segments, number).before_position(position)
        after = self._entry_after(segments, number, before)
        return Offset(_between(position, (before.position, before.offset), (after.position, after.offset)))

    def _entry_after(self, segments: tuple[Segment, ...], number: int, entry: IndexEntry) -> IndexEntry:
        """The next entry of that segment, or its end."""
        after = self._index(segments, number).after(entry)
        if after is not None:
            return after
        is_last = number + 1 == len(segments)
        end = self._state.log_end_offset if is_last else segments[number + 1].base_offset
        return IndexEntry(end, segments[number].size, entry.max_timestamp)

    def first_timestamp(self, base_offset: int) -> int | None:
        """ns; of the first record of a segment; None: it has none, or was just cut. Blocking, any thread. Raises as
        `read_from_disk`."""
        return self.stable(lambda: self._first_timestamp(base_offset))

    def _first_timestamp(self, base_offset: int) -> int | None:
        state = self._state
        segments = state.segments
        segment = segments[max(0, bisect_right(segments, base_offset, key=base_offset_of) - 1)]
        if not segment.size:
            return None
        with state.handles.borrow(segment.path) as handle:
            block = state.files.read(handle, HEADER_SIZE, 0)
        return self._header(segment, block, 0, 0).first_timestamp

    def appended_by(self, segment: Segment) -> int:
        """The time of the log, ns since 1970, when all of `segment` was there; where the log has no time, that of its
        newest record. Blocking, any thread. Raises as `read_from_disk`."""
        return self.stable(lambda: self._appended_by(segment))

    def _appended_by(self, segment: Segment) -> int:
        state = self._state
        segments = state.segments
        following = bisect_right(segments, segment.base_offset, key=base_offset_of)
        appended = state.derived.producers.time
        if following < len(segments) and segments[following].size:
            with state.handles.borrow(segments[following].path) as handle:
                block = state.files.read(handle, HEADER_SIZE, 0)
            appended = self._header(segments[following], block, 0, 0).append_time or appended
        return appended or segment.max_timestamp

    def producer_batches(self, from_offset: Offset, end_offset: Offset | None = None) -> Iterator[BatchHeader]:
        """Headers of the batches from the one that holds `from_offset` on, up to the one that ends at `end_offset`, to
        rebuild what producers wrote.

        While nobody cuts the log; segments that `remove_before` takes meanwhile are left out. Raises LogDamaged,
        CorruptData.
        """
        segments = self._state.segments
        number = max(0, bisect_right(segments, from_offset, key=base_offset_of) - 1)
        for at in range(number, len(segments)):
            if end_offset is not None and segments[at].base_offset >= end_offset:
                return
            yield from self._headers_between(from_offset, end_offset, segments, at)

    def _headers_between(
        self, offset: Offset, end_offset: Offset | None, segments: tuple[Segment, ...], number: int
    ) -> Iterator[BatchHeader]:
        """Goes on where it was when the segment is replaced meanwhile."""
        state = self._state
        segment = segments[number]
        while True:
            cuts = state.cuts
            if cuts % 2:
                with state.io_lock:
                    continue
            try:
                start = self._index(segments, number).before_offset(offset)
                with state.handles.borrow(segment.path) as handle:
                    for _, header in self.walk_segment(segment, handle, start, segment.size):
                        if end_offset is not None and header.end_offset > end_offset:
                            return
                        if header.end_offset > offset:
                            yield header
                            offset = header.end_offset
            except (OSError, CorruptData) as error:
                if segment not in state.segments:
                    return  # removed for its age
                if state.cuts != cuts:
                    continue
                if isinstance(error, OSError):
                    raise LogDamaged(f"reading {state.directory} failed: {error}") from error
                raise
            if state.cuts == cuts:
                return

    def walk_segment(
        self, segment: Segment, handle: int, start: IndexEntry, size: int
    ) -> Iterator[tuple[int, BatchHeader]]:
        """(byte position, header) of the batches from `start` to byte `size`; bodies are not checked. Raises OSError,
        CorruptData."""
        try:
            yield from walk(self._state.files, handle, start.position, size, start.offset, verify=False)
        except CorruptData as error:
            raise CorruptData(f"{segment.path} is damaged {error}") from error

    @staticmethod
    def _header(segment: Segment, block: bytes, at: int, position: int) -> BatchHeader:
        try:
            return parse_header(block, at)
        except CorruptData as error:
            raise CorruptData(f"{segment.path} is damaged at byte {position + at}: {error}") from error

    def _index(self, segments: tuple[Segment, ...], number: int) -> SparseIndex:
        state = self._state
        segment = segments[number]
        index = segment.index
        if index is None:
            with state.io_lock:
                present = state.segments  # `segments` may be of a time when it was the last one
                following = bisect_right(present, segment.base_offset, key=base_offset_of)
                end = present[following].base_offset if following < len(present) else state.log_end_offset
                index = segment.load(state.handles, end)
        if segment.is_finished:
            state.pool.indexes.used(segment)
        return index

    @staticmethod
    def check_not_before_log(offset: Offset, segments: tuple[Segment, ...]) -> None:
        start = segments[0].base_offset if segments else 0
        if offset < start:
            raise TidelogError(
                Code.OFFSET_BEFORE_LOG, f"offset {offset} is before the log's start {start}", [LOG_START.of(start)]
            )


def _between(at: int, first: tuple[int, int], last: tuple[int, int]) -> int:
    """The second number that goes with `at`, on the line from `first` to `last`."""
    (begin, value), (end, last_value) = first, last
    if at >= end or end <= begin:
        return last_value if at >= end else value
    return value + (last_value - value) * (at - begin) // (end - begin)
