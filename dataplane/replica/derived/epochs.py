"""The leader-epoch cache: which leader epoch began at which offset of a partition's log.

Two replicas that hold the same offset do not necessarily hold the same record there; they do when they also agree on
the leader epoch that wrote it. So a log is summarised by the offsets at which its epochs begin, and truncation follows
that summary, never the high watermark (KIP-101, KIP-279).

    entries      (1, 0)        (3, 40)          (4, 90)
    log          |--- epoch 1 ---|----- epoch 3 -----|--- epoch 4 --- LEO
    end of 1 = 40, end of 3 = 90, end of 4 = LEO; asked for 2 the answer is epoch 1 and its end, 40

Invariants:
  - entries grow strictly, in epoch and in start offset;
  - only the last entry may be without a record yet: a leader records its epoch before its first append, and assigning
    an epoch at that same offset replaces it;
  - an epoch that has records keeps the offset at which it began until the log is cut below it.

Pure and in memory. The log persists it (`dataplane.log.storage.checkpoints`). The entries are one immutable tuple that
is replaced at every change, so another thread may read `entries` at any moment and gets a consistent picture.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from wire.errors import InvariantViolation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wire.types import LeaderEpoch, Offset


class EpochEntry(NamedTuple):
    """A leader epoch and the offset of its first record (the LEO of the time, while it has none)."""

    epoch: LeaderEpoch
    start: Offset


class EpochEnd(NamedTuple):
    """The answer to "where does that epoch end": the largest epoch not above the asked one, and its EXCLUSIVE end."""

    epoch: LeaderEpoch
    end: Offset


class LeaderEpochCache:
    """The epochs of one partition's log. See the module's text for its invariants."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        """Raises InvariantViolation for entries that do not grow strictly."""
        self._entries: tuple[EpochEntry, ...] = tuple(entries)
        self.validate()

    def validate(self) -> None:
        """Raises InvariantViolation for entries that do not grow strictly."""
        for before, after in pairwise(self._entries):
            if after.epoch <= before.epoch or after.start <= before.start:
                raise InvariantViolation(f"leader epochs must grow strictly, but {after} follows {before}")

    @classmethod
    def rebuilt(
        cls,
        vouched: Iterable[EpochEntry],
        batches: Iterable[tuple[LeaderEpoch, Offset]],
        scanned_from: Offset,
        log_end_offset: Offset,
    ) -> LeaderEpochCache:
        """The epochs that a checkpoint and the log tell together.

        `vouched` is the checkpoint: believed for epochs that begin before `scanned_from`. `batches` are (leader epoch,
        base offset) of every batch from `scanned_from` on, in order: they overrule the checkpoint. An epoch of the
        checkpoint that is newer than every batch and begins exactly at the log's end stays: a leader that had not
        written yet.
        """
        vouched = tuple(vouched)
        cache = cls(entry for entry in vouched if entry.start < scanned_from and entry.start <= log_end_offset)
        for epoch, base_offset in batches:
            cache.assign(epoch, base_offset)
        newest = cache.latest
        for entry in vouched:
            if entry.start == log_end_offset and (newest is None or entry.epoch > newest):
                cache.assign(entry.epoch, entry.start)
        return cache

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """Oldest first."""
        return self._entries

    @property
    def latest(self) -> LeaderEpoch | None:
        return self._entries[-1].epoch if self._entries else None

    # R4: The leader-epoch cache is a function of the log, durable on every replica. An entry (epoch, start) removes
    # the entries at or above start, and a truncation to an offset removes those at or above it. An entry is durable
    # with its first record, whose batch names the epoch; its file gets it after the bytes in front of it, and before an
    # index entry behind it makes an open pass over that batch. Entries that no checkpoint vouches for are rebuilt from
    # the batches. One without a record describes nothing that another replica could hold, and may be lost.
    # Hazard: Answers on `.offset` that do not describe the log.
    def assign(self, epoch: LeaderEpoch, start: Offset, log_end_offset: Offset | None = None) -> bool:
        """`epoch` wrote, or is about to write, the record at `start`. True if that changed the entries.

        `log_end_offset` is where the log ends before that record: at `start`, unless compaction left a gap between the
        two. Entries that begin there or later go first: no record stands behind them. An epoch that began earlier stays
        as it is. Raises InvariantViolation, and changes nothing, for an epoch below the one in force at `start`: a log
        never goes back in epochs.
        """
        end = start if log_end_offset is None else log_end_offset
        entries = self._entries
        if entries:
            last = entries[-1]
            if epoch == last.epoch and start > last.start:  # nearly always: the next batch of the same leader
                return False
            entries = tuple(entry for entry in entries if entry.start < end)
        if entries and epoch < entries[-1].epoch:
            raise InvariantViolation(f"leader epoch {epoch} cannot begin at offset {start}, after {entries[-1]}")
        if not entries or epoch > entries[-1].epoch:
            entries = (*entries, EpochEntry(epoch, start))
        changed = entries != self._entries
        self._entries = entries
        return changed

    def take_back(self, offset: Offset, before: tuple[EpochEntry, ...]) -> None:
        """The batches from `offset` on, assigned since the entries were `before`, were not written after all."""
        kept = (entry for entry in self._entries if entry.start < offset)
        self._entries = (*kept, *(entry for entry in before if entry.start >= offset))

    # Keeps R4.
    def truncate_from(self, offset: Offset) -> bool:
        """The log now ends at `offset`: removes the entries that begin at or after it. True if there were any."""
        kept = tuple(entry for entry in self._entries if entry.start < offset)
        changed = len(kept) != len(self._entries)
        self._entries = kept
        return changed

    def truncate_before(self, offset: Offset) -> bool:
        """The log now starts at `offset`: of the epochs that began before it only the last is kept, that of the record
        before `offset`. True if that changed the entries.

        It keeps the offset at which it began. Moved up to `offset` (as Kafka does) it would be replaced by an epoch
        that begins there, and of a replica that ends there it would not be known any more that it holds the same.
        """
        below = sum(entry.start < offset for entry in self._entries)
        self._entries = self._entries[max(0, below - 1) :]
        return below > 1

    def replace(self, entries: Iterable[EpochEntry]) -> None:
        """The log was dropped, and goes on as another one. Raises InvariantViolation, and changes nothing, for entries
        that do not grow strictly."""
        self._entries = LeaderEpochCache(entries).entries

    def epoch_at(self, offset: Offset) -> LeaderEpoch | None:
        """The leader epoch of the record at `offset`; None if every known epoch began above it."""
        return next((entry.epoch for entry in reversed(self._entries) if entry.start <= offset), None)

    def end_offset_for(self, asked_epoch: LeaderEpoch, log_end_offset: Offset) -> EpochEnd | None:
        """The largest epoch not above `asked_epoch` and its exclusive end; None if every known epoch is above it."""
        end = log_end_offset
        for entry in reversed(self._entries):
            if entry.epoch <= asked_epoch:
                return EpochEnd(entry.epoch, end)
            end = entry.start
        return None

    def __repr__(self) -> str:
        return f"LeaderEpochCache({', '.join(f'{entry.epoch}@{entry.start}' for entry in self._entries)})"
