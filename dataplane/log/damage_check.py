"""Looking for damage in a log, and cutting it off.

    check       any thread, while appends and reads go on; the locks of every reader (`dataplane.log.log_reader`)
    examine     a worker, while no append runs; holds `removing`, and takes the I/O lock for a moment
    cut_damage  a worker, while no append runs; holds `removing`, the lock of the derived state and the I/O lock
    set_aside   a worker, while no append runs; holds `removing` and the I/O lock

All four block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dataplane.log.recovery.damage import Damage, Piece, Quarantine, remove_mark
from dataplane.log.recovery.log_recovery import remove_segment
from dataplane.log.segments.index import NO_TIMESTAMP
from dataplane.log.segments.scan import ChainBroken, only_zeros, walk
from dataplane.log.storage.files import is_no_space
from dataplane.log.storage.log_errors import LogDamaged, NoSpace
from wire.errors import CorruptData
from wire.types import Offset

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from dataplane.log.log_reader import LogReader
    from dataplane.log.log_state import LogState
    from dataplane.log.log_sync import LogSync
    from dataplane.log.snapshot_writer import SnapshotWriter
    from dataplane.log.truncation import Truncation


@dataclass(frozen=True, slots=True)
class Checked:
    """The part of a segment that `DamageCheck.check` has read."""

    size: int
    """Bytes, of whole batches."""
    is_whole: bool
    """The segment is read to the end of its synced part, or it is no longer there."""


class DamageCheck:
    def __init__(
        self, state: LogState, *, syncing: LogSync, reading: LogReader, capturing: SnapshotWriter, cutting: Truncation
    ) -> None:
        self._state = state
        self._syncing = syncing
        self._reading = reading
        self._capturing = capturing
        self._cutting = cutting

    def check(self, base_offset: int, position: int, max_bytes: int, stop: threading.Event) -> Checked:
        """Reads synced batches of the segment that begins at `base_offset` once more, from the disk, from byte
        `position` (where a batch begins) on, up to about `max_bytes` or until `stop` is set, and checks both CRCs.

        Blocking, any thread, while appends go on. Raises CorruptData (damage), LogDamaged (the disk).
        """
        return self._reading.stable(lambda: self._check(base_offset, position, max_bytes, stop))

    def _check(self, base_offset: int, position: int, max_bytes: int, stop: threading.Event) -> Checked:
        state = self._state
        segments = state.segments
        number = next((at for at, each in enumerate(segments) if each.base_offset == base_offset), None)
        if number is None or position >= segments[number].synced_size:
            return Checked(0, is_whole=True)
        segment, end = segments[number], segments[number].synced_size
        is_finished = number + 1 < len(segments) and segment.is_finished
        checked, previous_end = position, base_offset
        with state.handles.borrow(segment.path) as handle:
            state.files.forget_cached(handle, position, max_bytes)
            try:
                for at, header in walk(state.files, handle, position, end, base_offset, verify=True):
                    checked, previous_end = at + header.size, header.end_offset
                    if checked - position >= max_bytes or stop.is_set():
                        break
            except ChainBroken as broken:
                raise CorruptData(f"{segment.path} is damaged {broken}") from broken
            state.files.forget_cached(handle, position, checked - position)
        if checked == end and is_finished and previous_end != (following := segments[number + 1].base_offset):
            raise CorruptData(f"{segment.path} ends at offset {previous_end}, the next segment begins at {following}")
        return Checked(checked - position, is_whole=checked == end)

    def examine(self, *, without_beginning: bool = False) -> Damage:
        """Reads and checks the whole log, body by body, and returns where its sound part ends. In a sound log that is
        its end; in a log that has lost its first segments, or is of another history, it is the log start, unless
        `without_beginning` is set: then the log is taken to begin at its first segment, and for what it is.

        Blocking; no append may run meanwhile. Raises LogDamaged (the disk).
        """
        state = self._state
        with state.removing:
            with state.io_lock:
                state.rewrite_epoch += 1  # a compaction that is at work replaces no segment any more
            return self._examine(without_beginning)

    def _examine(self, without_beginning: bool) -> Damage:
        state = self._state
        end, epoch = int(state.log_start_offset), 0
        if not without_beginning and state.checkpoint is not None and state.checkpoint.log_start_offset is not None:
            end = state.checkpoint.log_start_offset
        file, size = "", 0
        reason = state.unsound or f"{state.directory} was read and is sound"
        try:
            for segment in state.segments if without_beginning or not state.is_of_another_history else ():
                if segment.base_offset != end:
                    reason = f"{state.directory} ends at offset {end}, the next segment begins at {segment.base_offset}"
                    break
                file, size = segment.path.name, 0
                with state.handles.borrow(segment.path) as handle:
                    batches = walk(state.files, handle, 0, segment.size, end, verify=True, epoch=epoch)
                    for position, header in batches:
                        end, epoch, size = header.end_offset, header.leader_epoch, position + header.size
        except ChainBroken as broken:
            reason = f"{state.directory / file} is damaged {broken}"
        except OSError as error:
            raise LogDamaged(f"reading {state.directory} failed: {error}") from error
        return Damage(
            file=file,
            first_byte=size,
            sound_end=Offset(end),
            known_end=state.known_end,
            reason=reason,
        )

    def cut_damage(self, damage: Damage, *, when_ns: int, lost: bool) -> dict[str, Any]:
        """Cuts the log where its sound part ends (`examine`) and removes the mark, so that the log takes appends again.
        The cut bytes go into `quarantine/`; returns the report of that. `lost`: an operator gave up records that only
        this log may hold.

        Only for replicas outside the ISR, or on an operator's command. Durable on return. Blocking; no append may run
        meanwhile. Raises LogDamaged, NoSpace (nothing was cut: there is no room for the quarantine), CorruptData (the
        disk returns other bytes than just before).
        """
        state = self._state
        with state.removing, state.derived.lock:
            with state.io_lock:
                state.check_writable()
                with state.cutting():
                    report = self._cut_damage(damage, when_ns, lost=lost)
            self._capturing.restore_producers()
            return report

    def _cut_damage(self, damage: Damage, when_ns: int, *, lost: bool) -> dict[str, Any]:
        state = self._state
        number = next((at for at, each in enumerate(state.segments) if each.path.name == damage.file), -1)
        report = self._into_quarantine(damage, self._behind(number, damage.first_byte), when_ns, lost=lost)
        state.vouch_less(damage.sound_end, anew=True)
        for segment in reversed(state.beyond):
            remove_segment(state.files, state.handles, segment)
        state.beyond = []
        newest = self._newest_timestamp(number, damage.first_byte, damage.sound_end)
        state.unsound = None
        state.is_of_another_history = False
        self._sync_again(number, damage.first_byte)
        self._cutting.cut_to(number, damage.first_byte, damage.sound_end, newest)
        if state.checkpoint is None:
            self._syncing.write_checkpoint(state.high_watermark, state.durable_end)
        state.once_known_end = Offset(0)
        remove_mark(state.files, state.directory)
        return report

    def _into_quarantine(self, damage: Damage, pieces: Sequence[Piece], when_ns: int, *, lost: bool) -> dict[str, Any]:
        state = self._state
        try:
            return Quarantine(state.files, state.directory).take(damage, pieces, when_ns=when_ns, lost=lost)
        except OSError as error:
            if is_no_space(error):
                raise NoSpace(f"what is cut out of {state.directory} cannot be put aside: {error}") from error
            raise

    def set_aside(self, offset: Offset, known_end: Offset, reason: str, *, when_ns: int) -> dict[str, Any]:
        """Copies all batches from the one that holds `offset` on into `quarantine/`, where only an operator removes
        them, before the log is cut there and records go that are committed; returns the report of that. The log stays
        as it is: a crash before the cut leaves it whole, and the copy is made once more.

        Durable on return. Blocking; no append may run meanwhile. Raises LogDamaged, NoSpace, CorruptData.
        """
        state = self._state
        with state.removing, state.io_lock:
            state.check_writable()
            try:
                number, size, end, _ = self._cutting.cut_point(offset)
                pieces = [
                    Piece(segment.path, size if at == number else 0, segment.size, whole=False)
                    for at, segment in enumerate(state.segments)
                    if at >= number
                ]
                damage = Damage(
                    file=state.segments[number].path.name if number >= 0 else "",
                    first_byte=size,
                    sound_end=end,
                    known_end=known_end,
                    reason=reason,
                )
                return self._into_quarantine(damage, pieces, when_ns, lost=True)
            except OSError as error:
                raise LogDamaged(f"setting aside what is cut out of {state.directory} failed: {error}") from error

    def _sync_again(self, number: int, size: int) -> None:
        """Has the kept bytes written and synced by the cut that an earlier life of the process may not have synced: a
        log that is opened damaged leaves its files as they are."""
        segments = self._state.segments[: number + 1]
        first = next((at for at, segment in enumerate(segments) if segment.doubtful_from is not None), None)
        if first is None:
            return
        for at, segment in enumerate(segments[first:], first):
            if at == number:
                segment.size = min(segment.size, size)
                segment.synced_size = min(segment.synced_size, size)
            segment.open_for_writing()
            segment.rewrite_doubtful()

    def _behind(self, number: int, position: int) -> list[Piece]:
        """The pieces behind that byte of that segment, in order, without room that was reserved and never written."""
        state = self._state
        pieces = []
        if number >= 0:
            segment = state.segments[number]
            with state.handles.borrow(segment.path) as handle:
                size = state.files.size(handle)
                if not only_zeros(state.files, handle, position, size):
                    pieces.append(Piece(segment.path, position, size, whole=False))
        for segment in (*state.segments[number + 1 :], *state.beyond):
            segment.close()
            state.handles.forget(segment.path)
            pieces.append(Piece(segment.path, 0, max(segment.size, segment.allocated), whole=True))
        return pieces

    def _newest_timestamp(self, number: int, size: int, end: Offset) -> int:
        """The largest timestamp in the first `size` bytes of that segment, which were checked."""
        state = self._state
        if number < 0:
            return NO_TIMESTAMP
        segment = state.segments[number]
        with state.handles.borrow(segment.path) as handle:
            batches = walk(state.files, handle, 0, size, segment.base_offset, verify=False)
            found = (header.last_timestamp for _, header in batches if header.end_offset <= end)
            return max(found, default=NO_TIMESTAMP)
