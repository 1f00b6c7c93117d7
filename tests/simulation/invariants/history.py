"""The oracle: the batches that some leader's high watermark has covered. All of it stays at its offset, byte for byte,
for ever and for all clients, except for compaction: of a stream with `compact`, a record may go once a newer one of its
key is committed, and a tombstone in its time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from dataplane.replica.derived.epochs import LeaderEpochCache
from dataplane.replica.derived.producer_table import Producer, ProducerTable, packed_batches
from wire.batch import RecordBatch, iter_batches, parse_header
from wire.partition_messages.append import UNKNOWN_OFFSET
from wire.types import Offset

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from dataplane.broker.replica import Replica
    from tests.simulation.invariants.base import Acknowledged
    from tests.simulation.machines.broker import SimBroker
    from tests.simulation.world import World
    from wire.types import PartitionKey

ALL = 1 << 60


@dataclass(slots=True)
class History:
    """Of one partition."""

    end: int = 0
    batches: list[tuple[int, bytes]] = field(default_factory=list)
    """(base offset, bytes), ascending."""
    at: dict[int, bytes] = field(default_factory=dict)
    told_by: dict[int, str] = field(default_factory=dict)
    """Base offset -> the broker whose HW covered it first."""
    removed_to: int = 0
    """Offset below which retention has removed records on some broker."""
    settled_to: int = 0
    """Offset below which a leader has said that no replica serves records."""
    decisions: Mapping[tuple[int, int], bool] = field(default_factory=dict)
    """See `CommittedHistory`."""

    def add(self, base: int, data: bytes, broker: str) -> None:
        self.at[base] = data
        self.batches.append((base, data))
        self.end = next(header.end_offset for _, header in iter_batches(data))
        self.told_by[base] = broker

    def visible_rows(self, data: bytes) -> list[Row]:
        """The records of one batch that count: none of an aborted transaction."""
        header = parse_header(data)
        if header.is_transactional and self.decisions.get((header.producer_id, header.producer_epoch)) is False:
            return []
        return rows(data)

    def visible(self, start: int, end: int) -> list[int]:
        """Offsets of the records that a consumer gets, from `start` on, below `end`."""
        return [row.offset for row in self._visible_between(start, end)]

    def holds_nothing(self, start: int, end: int) -> bool:
        """No record that a consumer must get has an offset from `start` on, below `end`. Compaction may have removed
        tombstones, and the records that they delete."""
        newest = {row.offset if row.key is None else row.key: row for row in self._visible_between(start, end)}
        return all(row.key is not None and row.value is None for row in newest.values())

    def _visible_between(self, start: int, end: int) -> list[Row]:
        return [
            row
            for base, data in self.batches
            if base < end and parse_header(data).end_offset > start
            for row in self.visible_rows(data)
            if start <= row.offset < end
        ]


class CommittedHistory:
    def __init__(self, world: World) -> None:
        self.world = world
        self.of: dict[PartitionKey, History] = {}
        self.decisions: dict[tuple[int, int], bool] = {}
        """(producer, epoch) -> whether its transaction is committed. Those that are decided."""
        self.epochs: dict[int, int] = {}
        """By producer, the latest that a committed record of its transactional id has."""
        self.sessions: Callable[[PartitionKey], Iterable[Session]] = lambda _: ()
        """Of living producers."""

    @property
    def batches(self) -> int:
        return sum(len(history.batches) for history in self.of.values())

    def history(self, key: PartitionKey) -> History:
        found = self.of.get(key)
        if found is None:
            found = self.of[key] = History(decisions=self.decisions)
        return found

    def lives(self, stream: str, incarnation: int, partition: int) -> list[tuple[PartitionKey, History]]:
        """Of a partition as clients name it. It has several where it was removed, and made anew by a repartition."""
        return [
            (key, history)
            for key, history in self.of.items()
            if (key.stream, key.stream_incarnation, key.partition) == (stream, incarnation, partition)
        ]

    def named(self, stream: str, incarnation: int, partition: int) -> tuple[PartitionKey, History] | None:
        """As clients name a partition: its newest life."""
        lives = self.lives(stream, incarnation, partition)
        return max(lives, key=lambda life: life[0].partition_incarnation, default=None)

    def was_removed_with_its_partition(self, ack: Acknowledged) -> bool:
        """It was committed in an earlier life of the partition."""
        return any(
            row.value == ack.value and ack.offset in (row.offset, UNKNOWN_OFFSET)
            for _, history in self.lives(ack.stream, ack.stream_incarnation, ack.partition)
            for base, data in history.batches
            if ack.offset == UNKNOWN_OFFSET or base <= ack.offset < parse_header(data).end_offset
            for row in rows(data)
        )

    def removed(self, key: PartitionKey, end: int) -> None:
        """A broker keeps nothing below `end` any more."""
        history = self.history(key)
        history.removed_to = max(history.removed_to, end)

    def check_prefix(self, broker: SimBroker, replica: Replica, invariant: str, why: str) -> None:
        """That replica holds all that is committed, from its log start on."""
        history = self.history(replica.key)
        if replica.log_end_offset < history.end:
            self.world.broken(
                invariant,
                f"{replica.key} on {broker.id} ends at {replica.log_end_offset}, committed is {history.end} ({why})",
            )
        held = dict(batches_of(replica, 0, history.end))
        start = replica._log.log_start_offset if replica._log is not None else 0
        for base, data in history.batches:
            if base < start:
                continue  # removed for its age
            if held.get(base) != data and not (may_be_compacted(replica) and is_left_of(held.get(base), data)):
                self.world.broken(
                    invariant, f"{replica.key} on {broker.id} lacks the committed batch at {base} ({why})"
                )
        if may_be_compacted(replica):
            self._check_newest(broker, replica, held, invariant, why)

    def _check_newest(
        self, broker: SimBroker, replica: Replica, held: dict[int, bytes], invariant: str, why: str
    ) -> None:
        """Of each key the newest committed record is there; of a deleted one that is the tombstone, or nothing."""
        log, history = replica._log, self.history(replica.key)
        assert log is not None
        committed = [
            row
            for _, data in history.batches
            for row in history.visible_rows(data)
            if row.offset >= log.log_start_offset
        ]
        here = [row for data in held.values() for row in history.visible_rows(data)]
        has = set(here)
        newest = {row.key: row for row in committed}
        newest_here = {row.key: row for row in here}
        for row in committed:
            if row.key is None and row not in has:
                self.world.broken(invariant, f"{replica.key} on {broker.id} lacks {row}, which has no key ({why})")
        for key, row in newest.items():
            if key is None or newest_here.get(key) == row or (row.value is None and key not in newest_here):
                continue
            self.world.broken(
                invariant, f"{replica.key} on {broker.id}: newest is {row}, here it is {newest_here.get(key)} ({why})"
            )
        clean_end = log.compaction_point.clean_end
        cleaned = batches_of(replica, 0, clean_end, from_disk=True)
        on_disk = [row for _, data in cleaned for row in history.visible_rows(data)]
        clean = [row.key for row in on_disk if row.key is not None and row.offset < clean_end]
        if len(clean) > len(set(clean)):
            self.world.broken(invariant, f"{replica.key} on {broker.id} is not clean below {clean_end} ({why})")

    def check_derived_state(self, broker: SimBroker, replica: Replica, invariant: str, why: str) -> None:
        """The producers and leader epochs of that replica follow from the log, also from records that it never had, or
        does not keep any more."""
        log = replica._log
        if log is None:
            return
        history, end = self.history(replica.key), log.log_end_offset
        known = [header for _, data in history.batches for _, header in iter_batches(data) if header.end_offset <= end]
        own = [header for _, data in batches_of(replica, history.end, end) for _, header in iter_batches(data)]
        epochs = LeaderEpochCache()
        for header in (*known, *own):
            epochs.assign(header.leader_epoch, header.base_offset)
        epochs.truncate_before(log.log_start_offset)
        found = tuple(entry for entry in log.epochs.entries if entry.start < end)
        if found != epochs.entries:
            self.world.broken(
                invariant, f"{replica.key} on {broker.id} has epochs {found}, the log says {epochs.entries} ({why})"
            )
        if log.log_start_offset > 0 and log.directory in broker.disk.harmed_snapshots:
            return  # producers that wrote before the log start only may be unknown: their next batch is refused
        table = ProducerTable((*known, *own), limits=log.config.producers)
        truth, held = table.known, log.producers.known
        stable = table.transactions.last_stable(replica.high_watermark)
        # Its HW may be older than what it knows: a snapshot has left out the ends whose markers were committed.
        committed = table.transactions.last_stable(Offset(max(replica.high_watermark, history.end)))
        most = max(stable, min(committed, replica.high_watermark))
        if not stable <= log.transactions.last_stable(replica.high_watermark) <= most:
            self.world.broken(
                invariant,
                f"{replica.key} on {broker.id} has transactions {held.transactions} at HW {replica.high_watermark}, the"
                f" log says {truth.transactions} ({why})",
            )
        truth = truth._replace(transactions=held.transactions)  # of ended ones it knows those alone that count
        if may_be_compacted(replica) and end >= history.end:
            truth = held._replace(
                producers=with_times_of(held.producers, truth.producers),
                transactional=with_times_of(held.transactional, truth.transactional),
            )
        elif may_be_compacted(replica) and held.producers.keys() == truth.producers.keys():
            sessions = {session.producer_id: session for session in self.sessions(replica.key)}
            kept = {
                number: as_kept(held.producers[number], producer, sessions.get(number))
                for number, producer in truth.producers.items()
            }
            truth = held._replace(producers=kept)
        if held != truth:
            wrong = sorted(
                {*held.producers.items(), *held.transactional.items()}
                ^ {*truth.producers.items(), *truth.transactional.items()}
            )
            self.world.broken(
                invariant,
                f"{replica.key} on {broker.id} is wrong about producers {wrong}: {held[1:]}, not {truth[1:]} ({why})",
            )


def with_times_of(held: Mapping[int, Producer], truth: Mapping[int, Producer]) -> dict[int, Producer]:
    """`truth` with the times of `held`. A copy of a compacted log may lack the batch with the newest time, where the
    clock of a leader has gone back since."""
    return {
        number: producer.written_at(held[number].written) if number in held else producer
        for number, producer in truth.items()
    }


class Session(NamedTuple):
    """What a producer has sent to a partition under its present id."""

    producer_id: int
    next_sequence: int
    awaited: Collection[int]
    """Base sequences of the batches without an answer, which may be sent again."""


def as_kept(held: Producer, truth: Producer, session: Session | None) -> Producer:
    """`truth` with the batches and the time that `held` has, where the difference does no harm. `session`: None where
    the producer does not live any more.

    For copies that do not hold all that is committed: they lack batches that have five later ones of their producer
    below the HW, which the copy may not have yet. The producer had the answer before it sent the last of them: it does
    not send the batch again. A log that lacks batches takes the time from the others."""
    truth = truth.written_at(held.written)
    if session is not None and session.next_sequence == truth.next_sequence:
        return truth  # nothing was sent behind these batches that could have been cut
    awaited = session.awaited if session is not None else ()
    common = tuple(batch for batch in truth.batches if batch in held.batches)
    if truth.batches[-1] not in common or any(sequence in awaited for sequence, *_ in set(truth.batches) - set(common)):
        return truth
    older = tuple(batch for batch in held.batches if batch < truth.batches[0])
    return truth.with_batches(packed_batches((*older, *common)))


class Row(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None


def rows(data: bytes) -> list[Row]:
    """The records of one batch."""
    batch = RecordBatch.decode(data)
    return list(map(Row, batch.offsets.tolist(), batch.keys, batch.values))


def may_be_compacted(replica: Replica) -> bool:
    """A replica that has just begun a life does not know its earlier log yet."""
    return replica.view is None or replica.view.config.compact


def is_left_of(data: bytes | None, original: bytes) -> bool:
    """Whether `data` (None: nothing) is a possible result of compaction of a batch: some of its records, at its
    place."""
    if data is None:
        return True
    header, before = parse_header(data), parse_header(original)
    place = (before.base_offset, before.end_offset, before.leader_epoch, before.producer_id, before.base_sequence)
    return (
        header.base_offset, header.end_offset, header.leader_epoch, header.producer_id, header.base_sequence
    ) == place and set(rows(data)) <= set(rows(original))  # fmt: skip


def batches_of(replica: Replica, start: int, end: int, *, from_disk: bool = False) -> list[tuple[int, bytes]]:
    """(base offset, bytes) of the batches of the replica's log in [start, end)."""
    log = replica._log
    if log is None or end <= start:
        return []
    out: list[tuple[int, bytes]] = []
    at = max(start, log.log_start_offset)
    while at < end:
        parts = None if from_disk else log.read(Offset(at), max_bytes=ALL, end_offset=Offset(end))
        data = (
            b"".join(parts)
            if parts is not None
            else log.read_from_disk(Offset(at), max_bytes=1 << 20, end_offset=Offset(end))
        )
        if not data:
            break
        for position, header in iter_batches(data):
            out.append((header.base_offset, bytes(data[position : position + header.size])))
            at = header.end_offset
    return out


def value_at(replica: Replica, offset: int) -> bytes | None:
    """b"" for a tombstone. None: its log has no such record."""
    log = replica._log
    if log is None or not log.log_start_offset <= offset < log.log_end_offset:
        return None
    end = log.log_end_offset
    parts = log.read(Offset(offset), max_bytes=1, end_offset=end)  # one batch at least, of any size
    data = b"".join(parts) if parts else log.read_from_disk(Offset(offset), max_bytes=1, end_offset=end)
    for position, header in iter_batches(data):
        found = rows(bytes(data)[position : position + header.size])
        return next((row.value or b"" for row in found if row.offset == offset), None)
    return None
