"""Finds records that are in the log already, by their message ids, at the leader of one partition (R45).

The answer to a repetition is that of the original, and waits for the original's commit. Ids that a partition, or all
partitions that a broker leads, may remember are bounded; above the bound publishes with new ids are refused: an id that
was acknowledged is not forgotten before its window is over.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from dataplane.broker.leading.bounds_of_all import BoundsOfAll
from dataplane.replica.derived.dedup_window import kept_form
from wire.batch import parse_header
from wire.batch.message_ids import message_ids_of
from wire.error_details import LIMIT, RETRY_AFTER_MS
from wire.errors import Code, TidelogError
from wire.partition_messages.append import UNKNOWN_OFFSET
from wire.types import Offset

if TYPE_CHECKING:
    from dataplane.broker.reading.readable_role import ReadableRole
    from dataplane.broker.roles.id_keeper import IdKeeper
    from dataplane.replica.leader.log_clock import LogClock
    from wire.batch import BatchHeader, EncodedBatch


class Repetitions:
    def __init__(self, role: ReadableRole, keeper: IdKeeper, clock: LogClock) -> None:
        self._role = role
        self._context = role.context
        self._bounds = role.context.the(BoundsOfAll)
        self._keeper = keeper
        self._clock = clock
        self._leads = False
        self._counted = 0
        """The number of our ids, in `BoundsOfAll.message_ids`."""
        self.configure()

    def configure(self) -> None:
        """Take over the settings of the newest view."""
        self._keeper.configure(self._role.view.config.dedup_window_ms, self._context.settings.max_message_ids)
        self._count()

    @property
    def are_sought(self) -> bool:
        return self._keeper.table.is_on

    def find(self, message_id: bytes) -> Offset | None:
        """Where the record with that id (in its kept form) lies. An id is forgotten with its record: an answer that
        names a record which was deleted would acknowledge what is not there."""
        if not self.are_sought:
            return None
        found = self._keeper.table.find(message_id, self._clock.time(self._context.now()))
        self._count()
        return None if found is None or found < self._role.first_record else found

    def may_hold(self, message_ids: Collection[bytes]) -> bool:
        """False: none of them is in the log."""
        found = self.are_sought and self._keeper.table.may_hold(message_ids, self._clock.time(self._context.now()))
        self._count()
        return found

    def refuse(self, new: int) -> TidelogError | None:
        """Why records with `new` ids cannot be stored now."""
        if not self.are_sought or not new:
            return None
        if self._keeper.lacks is not None:
            return self._keeper.lacks
        most = self._context.settings.max_message_ids_of_all
        if self._keeper.table.has_room(new) and self._bounds.message_ids.count + new <= most:
            return None
        self._keeper.table.go_on_to(self._clock.time(self._context.now()))
        self._count()
        of_all = self._bounds.message_ids.count
        if not self._keeper.table.has_room(new):
            told = f"partition {self._role.view.key} remembers {self._keeper.table.count} message ids"
        elif of_all + new > most:
            told = f"the partitions that {self._context.broker} leads remember {of_all} message ids"
        else:
            return None
        return TidelogError(
            Code.BACKPRESSURE,
            f"{told}, and takes no new ones; publish slower, make dedup_window_ms shorter, or spread the records over"
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
        return self._keeper.table.last_id(end) if end > self._role.first_record else None

    def ids_of(self, batch: EncodedBatch) -> list[tuple[int, bytes]]:
        """The ids of a client's batch: (place, id in its kept form)."""
        if batch.columns is None:
            return []
        found = message_ids_of(batch.columns.headers, batch.record_count)
        return [(place, kept_form(message_id)) for place, message_id in found]

    def among(self, ids: list[tuple[int, bytes]], base: Offset) -> dict[int, Offset]:
        """The places of those that are repetitions, in the log or in the batch itself, which would begin at `base`;
        and the offsets of the originals."""
        if not self.are_sought:
            return {}
        repeated: dict[int, Offset] = {}
        new: dict[bytes, int] = {}
        for place, message_id in ids:
            found = self.find(message_id)
            if found is not None:
                repeated[place] = found
            elif message_id in new:
                repeated[place] = Offset(base + new[message_id])
            else:
                new[message_id] = place
        return repeated

    def left_out(self, ids: list[tuple[int, bytes]], base: Offset, end: Offset) -> dict[int, Offset]:
        """The places of the records that were, or may have been, left out of a batch of the log that is sent again; and
        the offsets of the originals, which lie below the end of that batch. A later record with the same id is no
        original, and may not be committed when the batch is."""
        if self._is_whole(base, end):
            return {}
        originals: dict[int, Offset] = {}
        for place, message_id in ids:
            found = self.find(message_id)
            if found is None or found >= end:
                originals[place] = UNKNOWN_OFFSET
            elif found != base + place:
                originals[place] = found
        return originals

    def _is_whole(self, base: Offset, end: Offset) -> bool:
        """The batch from `base` to `end` has a record at each of its offsets. False also where it is not in memory."""
        parts = self._role.log.read(base, max_bytes=1, end_offset=end)
        if not parts:
            return False
        header = parse_header(parts[0])
        return header.base_offset == base and header.record_count == end - base and not header.is_control

    def begin(self) -> None:
        """All ids of the log are known, but for those that cannot be read (`refuse`)."""
        self._leads = True
        self._count()

    def end(self) -> None:
        """The role ends."""
        if self._leads and self._keeper.lacks is None:
            self._keeper.on_led(self._role.log)
        self._leads = False
        self._bounds.message_ids.count -= self._counted
        self._counted = 0

    def _count(self) -> None:
        count = self._keeper.table.count if self._leads else 0
        self._bounds.message_ids.count += count - self._counted
        self._counted = count
