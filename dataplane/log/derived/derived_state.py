"""What a log keeps of its batches beside them: what producers wrote, their transactions, and snapshots of the derived
state.

    append      the producers learn of each batch; at a roll, and every SNAPSHOT_INTERVAL_BYTES, the state of that
                moment is captured: a copy of references, taken between two batches
    later       a worker writes what was captured, once all records below it are durable
    open        the newest sound snapshot at or below the end of the log, and the headers of the batches behind it
    cut         the same, from a state that is still in memory (`RecentStates`) where there is one

What always holds: a snapshot is of a prefix of this log, and of durable records only. So it is removed, durably, BEFORE
the log is cut below it; and one that is being written when the log is cut is finished first, or forgotten.

Snapshots are kept at the beginnings of live segments (a later log start, from which a follower may have to begin) and
the two newest. One that is missing or damaged is built from the one before it and the batches between them.

Threads: `record`, `capture` by the appending thread, or while nobody appends. Everything else under `lock`, which is
taken before the log's I/O lock, and which the appending thread never takes.

## Recent states

States of the producer table at recent offsets, in memory, so that a truncation costs what it cuts off.

Without them a truncation would read the headers of up to SNAPSHOT_INTERVAL_BYTES of batches (about 20 us each), and
acknowledged writes wait for a follower that truncates.

    states      o               o       o   o o         the further back, the wider the distances between them
    log         |-------------------------------| LEO
                                  ^ cut to here: the state before it is taken, and the batches between are read

A cut of n batches reads the headers of at most `interval` or DISTANCE * n batches, whichever is more (and of one append
where that holds more), as long as it is not deeper than the oldest state: for that there are snapshots. `interval` is
STATE_INTERVAL, or the number of producers and aborted transactions where these are more: a state is a copy of
references to all of them, so that each batch pays for one reference at most.

What always holds: a state is that of a prefix of this log, without gaps; so the states above a cut are forgotten before
the first batch is appended behind it. Their memory: at most MAX_STATES states, and at most MAX_REFERENCES references
unless two states have more; a producer that wrote since takes up to about 1 kB in each of them.

Threads: as for `record` of the derived state.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from dataplane.log.derived.log_snapshot import (
    SNAPSHOT_SUFFIX,
    Section,
    Snapshot,
    decode_snapshot,
    encode_snapshot,
    snapshot_name,
)
from dataplane.log.storage.checkpoints import read_file, replace_file
from dataplane.replica.derived.epochs import LeaderEpochCache
from dataplane.replica.derived.producer_table import NOBODY, ProducerTable
from wire.errors import CorruptData
from wire.types import Offset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from dataplane.log.derived.log_snapshot import Section
    from dataplane.log.storage.files import FileSystem
    from dataplane.replica.derived.epochs import EpochEntry
    from dataplane.replica.derived.producer_table import KnownProducers, ProducerLimits
    from wire.batch import BatchHeader
    from wire.types import Offset

STATE_INTERVAL = 128
"""Batches between two states; with more producers and aborted transactions than that, as many as there are of these."""
DISTANCE: Final = 3
"""A state is forgotten once the two beside it are at most this many times as far apart as they are from the end."""
MAX_STATES: Final = 8
"""The oldest one is then some ten thousand batches back."""
MAX_REFERENCES: Final = 40_000
"""To producers and aborted transactions, in all states together: of two states of a full table of producers."""


class RecentState(NamedTuple):
    offset: Offset
    batches: int
    """Recorded before it, counted from any point further back."""
    producers: KnownProducers
    carried: tuple[Section, ...]
    captured: Offset
    """Offset of the newest state that was captured for a snapshot before it."""
    captured_bytes: int
    """Bytes of batches since then."""


class RecentStates:
    """Oldest first. See the module's text."""

    def __init__(self) -> None:
        self._states: list[RecentState] = []
        self.due = 0
        """The number of recorded batches from which on the next state is to be kept."""

    def keep(self, state: RecentState) -> None:
        """It is that of the log's end."""
        states = self._states
        states.append(state)
        for at in range(len(states) - 2, 0, -1):
            below, above = states[at - 1].batches, states[at + 1].batches
            if above - below <= DISTANCE * (state.batches - above):
                del states[at]
        references = sum(each.producers.references for each in states)
        while len(states) > MAX_STATES or (len(states) > 2 and references > MAX_REFERENCES):
            references -= states.pop(0).producers.references
        self._await_next()

    def back_to(self, start: Offset, end: Offset) -> RecentState | None:
        """The newest one from `start` to `end`, both inclusive; those above `end` are forgotten."""
        states = self._states
        while states and states[-1].offset > end:
            states.pop()
        self._await_next()
        return states[-1] if states and states[-1].offset >= start else None

    def clear(self) -> None:
        self._states.clear()
        self._await_next()

    def _await_next(self) -> None:
        newest = self._states[-1] if self._states else None
        self.due = newest.batches + max(STATE_INTERVAL, newest.producers.references) if newest else 0


Batches: TypeAlias = "Callable[[Offset, Offset], Iterator[BatchHeader]]"
"""Their headers, between two offsets at which batches begin."""

SNAPSHOT_INTERVAL_BYTES = 64 << 20
"""Bytes of batches, between two snapshots: what an open has to walk over at most, header by header."""
MAX_CAPTURED = 2
"""Captured and not written yet; the oldest is forgotten, and built from the log should it be needed."""
NEWEST_KEPT = 2

_log = logging.getLogger(__name__)


class _Captured(NamedTuple):
    offset: Offset
    epochs: tuple[EpochEntry, ...]
    producers: KnownProducers
    carried: tuple[Section, ...]


class DerivedState:
    """See the module's text. What touches the disk raises OSError unless it says otherwise."""

    def __init__(self, files: FileSystem, directory: Path, limits: ProducerLimits) -> None:
        self._files = files
        self._directory = directory
        self._limits = limits
        self.producers = ProducerTable(limits=limits)
        """As of the log's end."""
        self.lock = threading.Lock()
        self._carried: tuple[Section, ...] = ()
        """Sections of the snapshot that the present state was built on."""
        self._captured: deque[_Captured] = deque(maxlen=MAX_CAPTURED)
        self._bytes = 0
        """Bytes of batches since the last one that was captured, or began the present state."""
        self._newest = Offset(0)
        """Offset of the newest state that was captured, or that the present one was built on."""
        self._recent = RecentStates()
        self._batches = 0
        """Recorded so far."""
        self.damaged: dict[int, str] = {}
        """A sentence for each snapshot that was found damaged, by its offset."""
        self._offsets: set[int] | None = None
        """The offsets of the snapshots in the folder, which this process alone changes; None: not known."""
        self._removed = False
        """Snapshots were removed, and the folder not synced since."""

    # ---- appending

    def record(self, headers: Sequence[BatchHeader], size: int) -> bool:
        """They were appended, `size` bytes together; whether it is time to capture the state."""
        for header in headers:
            self.producers.record(header)
        self._bytes += size
        self._batches += len(headers)
        if self._batches >= self._recent.due:
            self._keep_recent(headers[-1].end_offset)
        return self._bytes >= SNAPSHOT_INTERVAL_BYTES

    def _keep_recent(self, offset: Offset) -> None:
        known = self.producers.known
        self._recent.keep(RecentState(offset, self._batches, known, self._carried, self._newest, self._bytes))

    def capture(self, offset: Offset, epochs: Iterable[EpochEntry]) -> None:
        """The state is that of `offset` now. Nothing happens when it is that of an earlier call."""
        if offset <= self._newest:
            return
        began = tuple(entry for entry in epochs if entry.start < offset)
        self._captured.append(_Captured(offset, began, self.producers.known, self._carried))
        self._newest, self._bytes = offset, 0

    # ---- writing

    def is_due(self, durable_end: Offset) -> bool:
        """Whether `write_captured` would write something."""
        captured = self._next_captured()
        return captured is not None and captured.offset <= durable_end

    def write_captured(self, durable_end: Offset, bases: Iterable[int]) -> None:
        """Writes what was captured at or below `durable_end`, and removes the snapshots that are kept no longer:
        `bases` are the beginnings of the segments. A snapshot saves time only: one that cannot be written is said in
        the log."""
        written = False
        while (captured := self._next_captured()) is not None and captured.offset <= durable_end:
            try:
                self.write(Snapshot(*captured))
            except OSError as error:
                _log.warning("%s: the state at offset %d is not written: %s", self._directory, captured.offset, error)
            else:
                written = True
            with suppress(ValueError):  # forgotten meanwhile
                self._captured.remove(captured)
        if written:
            self.remove_surplus(bases)

    def _next_captured(self) -> _Captured | None:
        try:
            return self._captured[0]
        except IndexError:
            return None

    def write(self, snapshot: Snapshot) -> None:
        """Durably."""
        replace_file(self._files, self._path(snapshot.offset), encode_snapshot(snapshot))
        if self._offsets is not None:
            self._offsets.add(snapshot.offset)

    def remove_surplus(self, bases: Iterable[int]) -> None:
        """Leaves the newest ones, and those at the beginnings of the segments. Not synced: one that a crash brings back
        is right as long as the log is not cut, and `cut` syncs."""
        offsets = self.offsets()
        kept = {*bases, *offsets[-NEWEST_KEPT:]}
        for offset in offsets:
            if offset not in kept:
                self._remove(offset)

    def _remove(self, offset: int) -> None:
        self._removed = True
        self._files.remove(self._path(offset))
        if self._offsets is not None:
            self._offsets.discard(offset)

    def cut(self, end: Offset) -> None:
        """Before the log is cut to `end`: what says more goes, durably. `restore` follows, before `lock` is let go: it
        forgets the captured state."""
        for offset in reversed(self.offsets()):
            if offset > end:
                self._remove(offset)
        if self._removed:
            self._files.sync_directory(self._directory)
            self._removed = False

    def begin_at(self, snapshot: Snapshot) -> None:
        """The present state is that of the snapshot."""
        self._captured.clear()
        self._recent.clear()
        self._carried = snapshot.carried
        self._newest, self._bytes = snapshot.offset, 0
        self.producers.restore(snapshot.producers)

    def _go_back_to(self, state: RecentState, end: Offset) -> None:
        """The present state is `state` again, in a log that now ends at `end`."""
        while self._captured and self._captured[-1].offset > end:
            self._captured.pop()
        self._batches, self._carried = state.batches, state.carried
        self._newest, self._bytes = state.captured, state.captured_bytes
        self.producers.restore(state.producers)

    # ---- reading

    def offsets(self) -> list[int]:
        """Offsets of the snapshots in the folder, the oldest first."""
        if self._offsets is None:
            self.found(self._files.names(self._directory))
        return sorted(self._offsets or ())

    def found(self, names: Iterable[str]) -> None:
        """`names`: of the files in the folder."""
        self._offsets = {int(name.removesuffix(SNAPSHOT_SUFFIX)) for name in names if _is_snapshot(name)}

    def look_again(self) -> None:
        """The folder was changed by others."""
        self._offsets = None

    def content_at(self, offset: Offset) -> bytes | None:
        """As it lies on disk; None: missing, damaged, or no state to go on from."""
        found = self._load(offset)
        return found[0] if found is not None and found[1].is_whole else None

    def newest(self, start: Offset, end: Offset) -> Snapshot | None:
        """The newest sound one from `start` to `end`, both inclusive, that is a state to go on from."""
        for offset in reversed(self.offsets()):
            if start <= offset <= end:
                found = self._load(offset)
                if found is not None and found[1].is_whole:
                    return found[1]
        return None

    def _load(self, offset: int) -> tuple[bytes, Snapshot] | None:
        path = self._path(offset)
        try:
            content = read_file(self._files, path)
            if content is None:
                return None
            snapshot = decode_snapshot(content)
            if snapshot.offset != offset:
                raise CorruptData(f"it is the state at offset {snapshot.offset}")
        except (CorruptData, OSError) as error:
            self.damaged[offset] = f"{path} is damaged and not used: {error}"
            _log.warning("%s", self.damaged[offset])
            return None
        return content, snapshot

    def restore(self, start: Offset, end: Offset, batches: Batches) -> Offset:
        """The producers' state at `end`, from a state in memory or a snapshot and the `batches` behind it. Where the
        walk began.

        Raises what `batches` raises; the state is then that of a part of the log."""
        base: RecentState | Snapshot
        if recent := self._recent.back_to(start, end):
            base = recent
            self._go_back_to(recent, end)
        else:
            base = self.newest(start, end) or without_past(start)
            self.begin_at(base)
        for header in batches(base.offset, end) if base.offset < end else ():
            self.record([header], header.size)
        self.producers.transactions.forget_aborted(start)
        return base.offset

    def build(
        self,
        offset: Offset,
        start: Offset,
        epochs: LeaderEpochCache,
        batches: Batches,
    ) -> Snapshot:
        """The state at `offset`, from the newest snapshot below it and the batches between them; what lies before the
        log's `start` and is in no snapshot is not known any more, but for the epochs. Raises what `batches` raises."""
        before = self.newest(start, offset) or without_past(start)
        table = ProducerTable(limits=self._limits)
        table.restore(before.producers)
        for header in batches(before.offset, offset) if before.offset < offset else ():
            table.record(header)
        began = tuple(entry for entry in epochs.entries if entry.start < offset)
        return Snapshot(offset, began, table.known, before.carried)

    def _path(self, offset: int) -> Path:
        return self._directory / snapshot_name(offset)


def without_past(start: Offset) -> Snapshot:
    """The state at the log start where no snapshot has it."""
    return Snapshot(start, producers=NOBODY._replace(is_partial=start > 0))


def _is_snapshot(name: str) -> bool:
    return name.endswith(SNAPSHOT_SUFFIX) and name.removesuffix(SNAPSHOT_SUFFIX).isdigit()
