"""Compaction of a log: of each key the newest record below the last stable offset stays, at its offset.

    log start            clean_end              map's end            last stable        log end
        |   one of each key  |   dirty: a map of    |   dirty: next pass   |   never touched |
        |                    |   its keys is made   |                      |   nor is the last segment
        |<-- rewritten, segment by segment -------->|

One pass: the keys of the dirty part go into a map of bounded size (hash of the key -> newest offset); where it is full
the part ends, and another pass goes on from there. Then each segment from the oldest up to that point loses the records
that the map knows newer ones of, and is replaced (`CompactedSegments.replace_segment`). When all of them are,
`clean_end` moves up, durably. A pass that is broken off has done no harm and begins anew.

Records without a key are no key's records: they stay. No publish may be refused for one, since plain publishes have
none.

Below the last stable offset every transaction has ended. Records of committed ones are like all others. Those of
aborted ones count as not there: they supersede nothing, a tombstone among them deletes nothing, and their batches are
emptied whether they can be read or not. Markers stay.

A batch by which a repetition is recognised stays, with no record if need be. Which ones these are is judged at the end
of what is finished: below the HW, so that no truncation makes others count.

## Tombstones

A key without a value deletes the key. It stays until everything below it has been clean for `tombstone_retention_ms`,
counted here, by the time on which most brokers agree (R72): a consumer that reads on within that time from a deleted
record comes to the tombstone. Passes set a mark: the clean end now (`settled_end`), and since when; the first pass
after that time removes the tombstones below it and sets the next mark. So a tombstone is remembered for once to twice
that time.

Replicas compact when they like. They agree on this:

  - a record that two of them hold at an offset is the same;
  - below the lower of their `clean_end`s both hold the newest record of each key, unless it is a tombstone.

A tombstone that is gone here cannot be copied from here any more. So that a replica that was away does not keep what it
deleted, a log says below which offset that may be (`CompactionPoint`), and a follower that ends below it copies the
whole log anew (`dataplane.replica.leader.leader`). A tombstone goes only in a pass after the one that removed what it
deletes; so a log without it is also one without that.

## Newest offsets

Which record of each key is the newest: a map from hashes of keys to offsets, in a fixed amount of memory.

Open addressing in numpy arrays: a hash lies at its slot, or in the first free one behind it. Many are put in and looked
up at a time, one probe of all of them after the other; there is no Python object per key.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from dataplane.log.compaction.segment_rewrite import batches_of, rewrite
from dataplane.log.derived.log_snapshot import decode_snapshot
from dataplane.log.storage.files import is_no_space
from dataplane.log.storage.log_errors import LogDamaged, NoSpace
from dataplane.replica.derived.producer_table import ProducerTable
from wire.errors import CorruptData, TidelogError
from wire.types import Offset

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from numpy.typing import NDArray

    from dataplane.encryption.bodies import BatchCipher
    from dataplane.log.compaction.segment_rewrite import BoolArray, LocatedBatch
    from dataplane.log.partition_log import PartitionLog
    from dataplane.log.segments.segment import Segment
    from dataplane.log.storage.checkpoints import CompactionPoint

    Int64Array: TypeAlias = NDArray[np.int64]
    HashArray: TypeAlias = NDArray[np.uint64]

SLOT_BYTES: Final = 24
"""16 of the hash, 8 of the offset."""
NONE: Final = -1
"""Instead of an offset."""
_AT_A_TIME: Final = 4096
_FILLED: Final = 0.75
"""The part of the slots that is filled, at most: with more, probes become many."""


class NewestOffsets:
    """`memory` in bytes. `add` in growing order of offsets."""

    def __init__(self, memory: int) -> None:
        slots = max(memory // SLOT_BYTES, 4 * _AT_A_TIME)
        self._hashes = np.zeros((slots, 2), np.uint64)
        self._offsets = np.full(slots, NONE, np.int64)
        self._room = int(slots * _FILLED) - _AT_A_TIME
        self._count = 0

    def __len__(self) -> int:
        """Keys in it."""
        return self._count

    def add(self, hashes: HashArray, offsets: Int64Array) -> int:
        """hashes [n, 2], offsets [n]. How many of them are in it now, from the first on: fewer than n when it is
        full."""
        for start in range(0, len(offsets), _AT_A_TIME):
            if self._count >= self._room:
                return start
            self._add(hashes[start : start + _AT_A_TIME], offsets[start : start + _AT_A_TIME])
        return len(offsets)

    def _add(self, hashes: HashArray, offsets: Int64Array) -> None:
        slots = (hashes[:, 0] % len(self._offsets)).astype(np.int64)
        while len(offsets):
            free = self._offsets[slots] == NONE
            claimed = slots[free]
            # Of several for one slot the last one gets it, hash and offset alike; the others see that below.
            self._hashes[claimed] = hashes[free]
            self._offsets[claimed] = offsets[free]
            self._count += len(np.unique(claimed))
            mine = (self._hashes[slots] == hashes).all(axis=1)
            self._offsets[slots[mine]] = offsets[mine]
            others = ~mine
            hashes, offsets = hashes[others], offsets[others]
            slots = (slots[others] + 1) % len(self._offsets)

    def find(self, hashes: HashArray) -> Int64Array:
        """[n]: the newest offset of each, NONE for a key that is not in it."""
        found = np.full(len(hashes), NONE, np.int64)
        asked = np.arange(len(hashes))
        slots = (hashes[:, 0] % len(self._offsets)).astype(np.int64)
        while len(asked):
            offsets = self._offsets[slots]
            mine = (self._hashes[slots] == hashes[asked]).all(axis=1) & (offsets != NONE)
            found[asked[mine]] = offsets[mine]
            others = ~mine & (offsets != NONE)
            asked = asked[others]
            slots = (slots[others] + 1) % len(self._offsets)
        return found


class Dirt(NamedTuple):
    """Bytes of the segments that compaction may touch."""

    dirty: int
    """Bytes of those that reach above `clean_end`."""
    total: int

    @property
    def ratio(self) -> float:
        return self.dirty / self.total if self.total else 0.0


def dirt_of(log: PartitionLog, high_watermark: Offset) -> Dirt:
    """Loop thread."""
    clean_end = log.compaction_point.clean_end
    stable_end = log.last_stable(high_watermark)
    sizes = [(segment.size, end > clean_end) for segment, end in log.swapping.finished_below(stable_end)]
    return Dirt(sum(size for size, is_dirty in sizes if is_dirty), sum(size for size, _ in sizes))


def tombstones_are_due(log: PartitionLog, retention_ms: int, now_ms: int | None) -> bool:
    """`now_ms`: None while the time is not agreed (R72)."""
    point = log.compaction_point
    if now_ms is None or not point.tombstones or not point.clean_end:
        return False
    return now_ms >= point.settled_at_ms + retention_ms


@dataclass(slots=True)
class Compacted:
    """The work of a pass so far."""

    segments: int = 0
    """Replaced."""
    records: int = 0
    """Removed."""
    bytes: int = 0
    """Given back."""
    left_whole: int = 0
    """Batches that would be larger without the records that should go: they stay as they are, and nothing behind them
    counts as clean."""


class _Overtaken(Exception):
    """The log was cut, dropped or closed meanwhile."""


class _Removed(Exception):
    """Retention has removed the segment meanwhile: nothing of it is to be compacted."""


class CompactionPass:
    """One pass over one log, up to the last stable offset at that high watermark. Belongs to one thread, in which it is
    made; the log goes on meanwhile. `now_ms`: the agreed time (R72); None: no tombstone goes. `memory`: bytes for the
    map.
    `max_batch_bytes`: a larger batch that an older version compacted is made smaller, if that can be."""

    def __init__(
        self,
        log: PartitionLog,
        high_watermark: Offset,
        *,
        tombstone_retention_ms: int,
        now_ms: int | None,
        memory: int,
        max_batch_bytes: int,
        cipher: BatchCipher,
    ) -> None:
        self.done = Compacted()
        self.is_overtaken = False
        """The log was cut, dropped or closed meanwhile: another pass begins anew."""
        self._log = log
        self._rewrite_epoch = log.rewrite_epoch
        self._point = log.compaction_point
        self._now_ms = now_ms
        self._max_batch_bytes = max_batch_bytes
        self._cipher = cipher
        stable_end, self._aborted = log.swapping.decided_below(high_watermark)
        self._segments = log.swapping.finished_below(stable_end)
        is_over = now_ms is not None and now_ms >= self._point.settled_at_ms + tombstone_retention_ms
        self._is_due = is_over and not self._point.is_in_doubt
        self._tombstones_below = self._point.settled_end if self._is_due else Offset(0)
        self._tombstones = 0
        self._readable_end = log.log_end_offset
        """Behind it are batches that cannot be looked into, or could not be rewritten: whatever they hold of a key
        counts as not clean."""
        self._first_gone = log.log_end_offset
        """Offset of the first record that this pass takes."""
        self._newest = NewestOffsets(memory)
        self._producers = ProducerTable()
        """As of the end of what is finished, not of the log: what is written behind that may be cut."""

    def steps(self) -> Generator[int, None, None]:
        """Yields after each small piece of work the bytes read and written in it. Closed before its end, it leaves
        nothing behind. Raises LogDamaged, CorruptData (of the log), NoSpace."""
        try:
            end = yield from self._map_keys()
            if self._segments:
                self._producers = self._producers_at(self._segments[-1][1])
            for segment, segment_end in self._segments:
                if segment.base_offset >= end:
                    break
                with suppress(_Removed):
                    yield from self._rewrite(segment, segment_end)
            self._finish(end)
        except _Overtaken:
            self.is_overtaken = True

    # ---- the map

    # R57: Compaction counts what is committed. A pass goes up to the last stable offset of its beginning. Records of
    # committed transactions count as all others do. Records of aborted ones supersede nothing, their tombstones delete
    # nothing, and their batches are emptied. Transactional batches stay transactional and markers stay. When a pass is
    # over, aborted transactions are forgotten of which no record is left below `clean_end`.
    # Hazard: An aborted value that takes the committed one with it; a deleted key that comes back because its last
    # value was transactional.
    def _map_keys(self) -> Generator[int, None, Offset]:
        """Where it ends: exclusive; below it the newest record of each key that is dirty is known. That is before the
        first batch that cannot be looked into."""
        clean_end = mapped = self._point.clean_end
        for segment, segment_end in self._segments:
            if segment_end <= clean_end:
                continue
            with suppress(_Removed):
                try:
                    for found in batches_of(segment, self._reader(segment), self._cipher, self._aborted):
                        end = self._map(found)
                        if end is not None:
                            return end
                        yield sum(len(batch.data) for batch in found)
                except (LogDamaged, CorruptData):
                    self._check_still_there(segment)
                    raise
            mapped = segment_end
        return mapped

    def _map(self, found: list[LocatedBatch]) -> Offset | None:
        """Where the map ends, when it ends among these: no room, or nothing to be seen."""
        unreadable = next((number for number, batch in enumerate(found) if _is_unreadable(batch)), None)
        if unreadable is not None:
            end = self._map(found[:unreadable])
            return end if end is not None else max(self._point.clean_end, found[unreadable].header.base_offset)
        contents = [batch.content for batch in found if batch.content is not None]
        if not contents:
            return None
        offsets = np.concatenate([content.offsets[content.keyed] for content in contents])
        hashes = np.concatenate([content.key_hashes() for content in contents])
        first = int(np.searchsorted(offsets, self._point.clean_end))
        offsets = offsets[first:]
        taken = self._newest.add(hashes[first:], offsets)
        return Offset(int(offsets[taken])) if taken < len(offsets) else None

    def _reader(self, segment: Segment) -> Callable[[int, int], bytes]:
        return lambda size, position: self._log.swapping.read_segment(segment, size, position)

    def _check_still_there(self, segment: Segment) -> None:
        """The bytes make no sense, or cannot be replaced: are they still the log's? Raises _Overtaken, _Removed."""
        log = self._log
        if log.rewrite_epoch != self._rewrite_epoch or log.refusal is not None:
            raise _Overtaken
        if not log.swapping.holds(segment):
            raise _Removed

    # ---- rewriting

    def _producers_at(self, offset: Offset) -> ProducerTable:
        """As the batches below `offset` left them."""
        try:
            snapshot = decode_snapshot(self._log.snapshot_at(offset))
        except TidelogError as error:  # removed for its age
            raise _Overtaken from error
        table = ProducerTable(limits=self._log.config.producers)
        table.restore(snapshot.producers)
        return table

    def _rewrite(self, segment: Segment, end: Offset) -> Generator[int, None, None]:
        size = segment.size
        rewriting = rewrite(
            segment,
            end,
            files=self._log.files,
            read=self._reader(segment),
            cipher=self._cipher,
            aborted=self._aborted,
            judge=self._judge,
            on_left_whole=self._left_whole,
            is_remembered=self._producers.remembers,
            index_interval=self._log.config.index_interval_bytes,
            max_batch_bytes=self._max_batch_bytes,
        )
        try:
            new = yield from rewriting
        except (LogDamaged, CorruptData):
            self._check_still_there(segment)
            raise
        except OSError as error:
            reason = f"what is left of {segment.path} cannot be written: {error}"
            raise (NoSpace(reason) if is_no_space(error) else LogDamaged(reason)) from error
        if new is None:
            return
        with suppress(TidelogError):  # removed for its age
            self._log.snapshot_at(end)  # what producers wrote in the batches that go is known by nothing else
        if not self._log.swapping.replace_segment(segment, new.path, new.size, new.index, self._rewrite_epoch):
            self._log.files.remove(new.path)
            self._check_still_there(segment)
            raise _Overtaken
        self.done.segments += 1
        self.done.records += new.removed
        self.done.bytes += size - new.size

    def _judge(self, found: list[LocatedBatch]) -> Iterator[BoolArray | None]:
        contents = [batch.content for batch in found]
        for batch in found:
            if _is_unreadable(batch):
                self._nothing_is_clean_from(batch.header.base_offset)
        hashes = [content.key_hashes() for content in contents if content is not None]
        newest = self._newest.find(np.concatenate(hashes)) if hashes else np.empty(0, np.int64)
        at = 0
        for content in contents:
            if content is None:
                yield None
                continue
            keyed = np.flatnonzero(content.keyed)
            kept = np.ones(len(content.offsets), np.bool_)
            kept[keyed] = newest[at : at + len(keyed)] <= content.offsets[keyed]
            at += len(keyed)
            gone = content.tombstones & (content.offsets < self._tombstones_below)
            if bool((kept & gone).any()):
                self._forget_tombstones()
            kept &= ~gone
            if not kept.all():
                self._first_gone = min(self._first_gone, Offset(int(content.offsets[int(kept.argmin())])))
            self._tombstones += int((kept & content.tombstones).sum())
            yield kept

    def _nothing_is_clean_from(self, offset: Offset) -> None:
        """Records that should be gone from there on may still be there: so tombstones stay, and the next pass looks
        again."""
        self._readable_end = min(self._readable_end, offset)
        self._tombstones_below = min(self._tombstones_below, offset)

    def _left_whole(self, batch: LocatedBatch) -> None:
        assert batch.content is not None
        self._nothing_is_clean_from(batch.header.base_offset)
        self._tombstones += int(batch.content.tombstones.sum())
        self.done.left_whole += 1

    def _forget_tombstones(self) -> None:
        """Before the first one goes: from now on it cannot be copied from here."""
        if self._point.deletions_end < self._tombstones_below:
            self._save(self._point._replace(deletions_end=self._tombstones_below))

    def _finish(self, end: Offset) -> None:
        end = min(end, self._readable_end)
        if self.done.left_whole:
            # What supersedes a record that is gone may be in that batch or behind it. Below clean_end the newest record
            # of each key must be there: so it does not move up, and falls to the first record that this pass took.
            end = min(end, self._point.clean_end, self._first_gone)
        point = self._point._replace(
            clean_end=end,
            settled_end=min(self._point.settled_end, end),
            tombstones=self._tombstones,
        )
        settles = self._is_due
        if not self._point.is_in_doubt:
            point = point._replace(deleted_end=max(self._point.deletions_end, end))
        elif end > self._point.deletions_end:
            point = point._replace(deletions_end=end, deleted_end=end)
            settles = True
        if settles and self._now_ms is not None:
            point = point._replace(settled_end=end, settled_at_ms=self._now_ms)
        self._save(point)

    def _save(self, point: CompactionPoint) -> None:
        if not self._log.swapping.save_compaction_point(point, self._rewrite_epoch):
            raise _Overtaken
        self._point = point


def _is_unreadable(batch: LocatedBatch) -> bool:
    return batch.content is None and not batch.is_aborted and not batch.header.is_control
