"""Finds records that are in the log already, by their message ids, at the leader of one partition (R45).

The answer to a repetition is that of the original, and waits for the original's commit. Ids that a partition, or all
partitions that a broker leads, may remember are bounded; above the bound publishes with new ids are refused: an id that
was acknowledged is not forgotten before its window is over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dataplane.replica.derived.dedup_window import kept_form
from wire.batch import parse_header
from wire.batch.message_ids import message_ids_of
from wire.error_details import LIMIT, RETRY_AFTER_MS
from wire.errors import Code, TidelogError
from wire.partition_messages.append import UNKNOWN_OFFSET
from wire.types import Offset

if TYPE_CHECKING:
    from dataplane.replica.derived.dedup_window import MessageIds
    from dataplane.replica.leader.log_clock import LogClock
    from dataplane.replica.replica_settings import ReplicaSettings
    from wire.batch import BatchHeader, EncodedBatch
    from wire.stream_config import StreamConfig
    from wire.types import BrokerId, Buffer, PartitionKey


@dataclass(slots=True)
class IdsOfAll:
    """The message ids of all partitions that a broker leads."""

    count: int = 0


class KnownIds(Protocol):
    """The message ids that one replica knows."""

    table: MessageIds
    lacks: TidelogError | None
    """Why ids of the log are not known."""

    def configure(self, window_ms: int, most: int) -> None: ...


class Repetitions:
    """`first_record`: the first record that consumers may read. `read(base, end)`: batches of the log from `base` on;
    None or empty: they are not in memory."""

    def __init__(
        self,
        key: PartitionKey,
        broker: BrokerId,
        settings: ReplicaSettings,
        keeper: KnownIds,
        clock: LogClock,
        of_all: IdsOfAll,
        *,
        first_record: Callable[[], Offset],
        read: Callable[[Offset, Offset], Sequence[Buffer] | None],
    ) -> None:
        self._key = key
        self._broker = broker
        self._settings = settings
        self._keeper = keeper
        self._clock = clock
        self._of_all = of_all
        self._first_record = first_record
        self._read = read
        self._leads = False
        self._counted = 0
        """The number of our ids, in `IdsOfAll`."""

    def configure(self, config: StreamConfig) -> None:
        """Take over the settings of the newest view."""
        self._keeper.configure(config.dedup_window_ms, self._settings.max_message_ids)
        self._count()

    @property
    def are_sought(self) -> bool:
        return self._keeper.table.is_on

    def find(self, message_id: bytes, now: float) -> Offset | None:
        """Where the record with that id (in its kept form) lies. An id is forgotten with its record: an answer that
        names a deleted record would acknowledge a record that is gone."""
        if not self.are_sought:
            return None
        found = self._keeper.table.find(message_id, self._clock.time(now))
        self._count()
        return None if found is None or found < self._first_record() else found

    def may_hold(self, message_ids: Collection[bytes], now: float) -> bool:
        """False: none of them is in the log."""
        found = self.are_sought and self._keeper.table.may_hold(message_ids, self._clock.time(now))
        self._count()
        return found

    def refuse(self, new: int, now: float) -> TidelogError | None:
        """Why records with `new` ids cannot be stored now."""
        if not self.are_sought or not new:
            return None
        if self._keeper.lacks is not None:
            return self._keeper.lacks
        most = self._settings.max_message_ids_of_all
        if self._keeper.table.has_room(new) and self._of_all.count + new <= most:
            return None
        self._keeper.table.go_on_to(self._clock.time(now))
        self._count()
        of_all = self._of_all.count
        if not self._keeper.table.has_room(new):
            reason = f"partition {self._key} remembers {self._keeper.table.count} message ids"
        elif of_all + new > most:
            reason = f"the partitions that {self._broker} leads remember {of_all} message ids"
        else:
            return None
        return TidelogError(
            Code.BACKPRESSURE,
            f"{reason}, and takes no new ones; publish slower, make dedup_window_ms shorter, or spread the records over"
            " more partitions",
            [RETRY_AFTER_MS.of(100), LIMIT.of("message_ids")],
        )

    def stored(self, ids: Sequence[tuple[int, bytes]], header: BatchHeader) -> None:
        """Records of a batch that was appended; `ids` by place, in their kept form."""
        if ids:
            self._keeper.table.add_all(ids, header.base_offset, header.append_time)
            self._count()

    def last_id(self, end: Offset) -> bytes | None:
        """The message id of the last record of a log that ends there, in its kept form; None also where that record
        was deleted."""
        return self._keeper.table.last_id(end) if end > self._first_record() else None

    def ids_of(self, batch: EncodedBatch) -> list[tuple[int, bytes]]:
        """The ids of a client's batch: (place, id in its kept form)."""
        if batch.columns is None:
            return []
        found = message_ids_of(batch.columns.headers, batch.record_count)
        return [(place, kept_form(message_id)) for place, message_id in found]

    def among(self, ids: Sequence[tuple[int, bytes]], base: Offset, now: float) -> dict[int, Offset]:
        """The places of those that are repetitions, in the log or in the batch itself, which would begin at `base`;
        and the offsets of the originals."""
        if not self.are_sought:
            return {}
        repeated: dict[int, Offset] = {}
        new: dict[bytes, int] = {}
        for place, message_id in ids:
            found = self.find(message_id, now)
            if found is not None:
                repeated[place] = found
            elif message_id in new:
                repeated[place] = Offset(base + new[message_id])
            else:
                new[message_id] = place
        return repeated

    def left_out(self, ids: Sequence[tuple[int, bytes]], base: Offset, end: Offset, now: float) -> dict[int, Offset]:
        """The places of the records that were, or may have been, left out of a batch of the log that is sent again; and
        the offsets of the originals, which lie below the end of that batch. A later record with the same id is no
        original, and may not be committed when the batch is."""
        if self._is_whole(base, end):
            return {}
        originals: dict[int, Offset] = {}
        for place, message_id in ids:
            found = self.find(message_id, now)
            if found is None or found >= end:
                originals[place] = UNKNOWN_OFFSET
            elif found != base + place:
                originals[place] = found
        return originals

    def _is_whole(self, base: Offset, end: Offset) -> bool:
        """The batch from `base` to `end` has a record at each of its offsets. False also where it is not in memory."""
        parts = self._read(base, end)
        if not parts:
            return False
        header = parse_header(parts[0])
        return header.base_offset == base and header.record_count == end - base and not header.is_control

    def begin(self) -> None:
        """All ids of the log are known, but for those that cannot be read (`refuse`)."""
        self._leads = True
        self._count()

    def end(self) -> bool:
        """The role ends. Whether the ids of the whole log are known."""
        knows_all = self._leads and self._keeper.lacks is None
        self._leads = False
        self._of_all.count -= self._counted
        self._counted = 0
        return knows_all

    def _count(self) -> None:
        count = self._keeper.table.count if self._leads else 0
        self._of_all.count += count - self._counted
        self._counted = count
