"""Facts that the parts of one `PartitionLog` share, and the few steps that keep it whole.

The fields are changed by the parts only; which of them a thread may change, and under which lock, stands in
`dataplane.log.partition_log`. Here are those steps that more than one part takes: how a failure becomes final, how a
cut is announced to readers, and how a new segment begins.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataplane.log.segments.segment import Segment
from dataplane.log.storage.checkpoints import (
    COMPACTION_FILE,
    NOT_COMPACTED,
    CompactionPoint,
    OffsetCheckpoint,
    read_compaction,
)
from dataplane.log.storage.files import is_no_space
from dataplane.log.storage.log_errors import LogDamaged, NoSpace
from dataplane.log.storage.manifest import Committed
from dataplane.log.storage.tail import Tail
from dataplane.replica.derived.producer_table import DEFAULT_LIMITS
from wire.types import LeaderEpoch, Offset

if TYPE_CHECKING:
    from dataplane.log.recovery.log_recovery import Recovery
    from dataplane.log.storage.manifest import ManifestEntry
    from dataplane.replica.derived.epochs import EpochEntry, LeaderEpochCache
    from dataplane.replica.derived.producer_table import ProducerLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Sizes in bytes."""

    segment_bytes: int = 256 << 20
    """An append that would take the last segment beyond this begins a new one. A single append may be larger."""
    index_interval_bytes: int = 64 << 10
    tail_bytes: int = 4 << 20
    """Newest batches kept in memory for `read`, unless all logs together hold too much: see `LogPool`."""
    preallocate_bytes: int = 0
    """Room reserved ahead of the end of the log, this much at a time, so that fdatasync need not write the length."""
    producers: ProducerLimits = DEFAULT_LIMITS


class LogState:
    """One log's; changed by its parts only."""

    def __init__(self, recovery: Recovery, config: LogConfig, entry: ManifestEntry | None) -> None:
        self.directory = recovery.directory
        self.entry = entry
        """That of this log in the manifest of the data folder; None: it lies in none."""
        self.config = config
        self.files = recovery.files
        self.pool = recovery.pool
        self.handles = recovery.handles

        self.io_lock = threading.Lock()
        """Held by every call that blocks on writing, so that one such thing happens at a time."""
        self.replacing = threading.Lock()
        """Held while `segments` and `epochs` are replaced, and never while one blocks."""
        self.removing = threading.Lock()
        """Held while files are removed that are no longer part of the log: none of their names is taken meanwhile."""
        self.cuts = 0
        """Odd while something is cut; another number once a byte position may mean another place than before."""

        self.failure: str | None = None
        """Final: nothing is written any more."""
        self.half_installed: str | None = None
        """An installation was begun and found no room to end: the next `install`, or the next open, does."""
        self.unsound = recovery.damaged
        """Nothing is written until the damage is cut."""
        self.is_of_another_history = recovery.is_of_another_history
        """The log is damaged in that its committed records are others than those that were committed here."""

        self.segments: tuple[Segment, ...] = tuple(recovery.segments)
        """Oldest first; not empty once opened. The last one is written to."""
        self.beyond = recovery.beyond
        """Segments behind damage, no part of the log."""
        self.log_end_offset = recovery.log_end_offset
        self.durable_end = Offset(0)
        self.once_known_end = recovery.known_end if recovery.damaged is not None else Offset(0)
        """See `known_end`; 0 where the log is not damaged."""
        checkpointed = recovery.checkpoint or OffsetCheckpoint(Offset(0), Offset(0))
        self.checkpoint = recovery.checkpoint
        """What is on disk, or durable with the next write of the manifest."""
        self.filed = recovery.filed
        """The one in the log's folder; None: there is none."""
        start = Offset(self.segments[0].base_offset if self.segments else 0)
        self.high_watermark = max(start, min(checkpointed.high_watermark, self.log_end_offset))
        self.compaction_point: CompactionPoint = (
            read_compaction(self.files, self.directory, self.high_watermark)
            if COMPACTION_FILE in recovery.names
            else NOT_COMPACTED
        )

        self.epochs: LeaderEpochCache = recovery.epochs
        """Changed by appends, new epochs and cuts only; read by any thread."""
        self.saved_epochs: tuple[EpochEntry, ...] = recovery.saved_epochs or ()
        self.derived = recovery.derived
        self.rewrite_epoch = 0
        """Counts the calls that replace records by others (`truncate`, `install`), or is about to (`examine`)."""
        self.tail = Tail(config.tail_bytes, self.pool.tails)
        self.cached_bytes: int | None = None
        """Bytes at the end of the log that the page cache keeps at least; None: as many as the system keeps."""
        self.index_due = 0
        """Byte position in the last segment at which the next index entry is made."""

    @property
    def log_start_offset(self) -> Offset:
        return Offset(self.segments[0].base_offset) if self.segments else self.log_end_offset

    @property
    def known_end(self) -> Offset:
        """Exclusive: records were durable or committed here up to there. Above the log's end in a damaged log only."""
        return max(self.once_known_end, self.log_end_offset)

    @property
    def refusal(self) -> str | None:
        """Why appends are refused; None while they are not."""
        return self.failure or self.unsound or self.half_installed

    def forget_tail(self) -> None:
        """What it holds is no part of the log any more, or nobody appends any more."""
        self.pool.tails.forget(self.tail)
        self.tail = Tail(self.config.tail_bytes, self.pool.tails)

    # ---- failing

    def check_writable(self) -> None:
        if self.failure is not None:
            raise LogDamaged(self.failure)

    def not_replaced(self, what: str, error: OSError) -> NoSpace | LogDamaged:
        """One of the small files, which is as it was: its new content lay in a file beside it."""
        return NoSpace(f"{what}: {error}") if is_no_space(error) else self.failed(f"{what}: {error}")

    def failed(self, reason: str) -> LogDamaged:
        self.failure = self.failure or f"{reason}; nothing is written to this log any more"
        return LogDamaged(self.failure)

    # ---- steps

    def vouched(self) -> Offset:
        """How far the checkpoint says that the log is durable."""
        return self.checkpoint.recovery_point if self.checkpoint else Offset(0)

    def vouch(self) -> None:
        """The manifest may say from now on what the checkpoint says. The holder of the I/O lock calls it, or of
        `replacing` while nothing is cut."""
        checkpoint = self.checkpoint
        if self.entry is not None and checkpoint is not None:
            committed = self._committed(min(checkpoint.high_watermark, checkpoint.recovery_point))
            start = checkpoint.log_start_offset or Offset(0)
            self.entry.raise_to(committed._replace(recovery_point=checkpoint.recovery_point, log_start_offset=start))

    def vouch_less(self, end: Offset, *, anew: bool = False) -> None:
        """The log is about to be cut to `end`, or begun anew there: the manifest says so first, durably. `anew`: what
        it says of the records below `end` does not hold either. Raises LogDamaged, NoSpace."""
        if self.entry is None or (known := self.entry.committed) is None:
            return
        if anew or end < known.vouched_end:
            point = None if known.recovery_point is None else min(end, known.recovery_point)
            lower = self._committed(min(end, known.high_watermark))._replace(
                recovery_point=point, log_start_offset=min(end, known.log_start_offset)
            )
            try:
                self.entry.replace(lower)
            except OSError as error:
                raise self.not_replaced(f"writing the manifest for {self.directory} failed", error) from error

    def _committed(self, high_watermark: Offset) -> Committed:
        return Committed(high_watermark, self.epochs.epoch_at(Offset(high_watermark - 1)) or LeaderEpoch(0))

    def new_segment(self, base_offset: int) -> Segment:
        segment = Segment(self.files, self.directory, base_offset)
        segment.open_for_writing(create=True)
        return segment

    def next_index_position(self) -> int:
        index = self.segments[-1].index
        assert index is not None
        return index.last.position + self.config.index_interval_bytes

    def cutting(self) -> _Cut:
        return _Cut(self)


class _Cut:
    """Makes `cuts` odd while something is cut; a failure in between ends all writing."""

    def __init__(self, state: LogState) -> None:
        self._state = state

    def __enter__(self) -> None:
        with self._state.replacing:  # whoever raises the checkpoint is done, or sees that it must not
            self._state.cuts += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._state.cuts += 1
        if isinstance(error, OSError):
            raise self._state.failed(f"cutting {self._state.directory} failed: {error}") from error
