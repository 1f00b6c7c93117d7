"""Decides whether a publish is stored: one decision for every way in which publishes come.

Bare publishes, messages with JetStream's headers, envelopes and batches of this process are `PublishRun`s; `.append`
requests are `ClientBatch`es. The driver calls `AppendRules.decide` when the turn of a publish has come: every earlier
publish that is stored is in the log by then, or in the open batch that this publish will join. The rules are applied
in this order. The first rule that a publish breaks decides, and the driver carries the decision out.

    rule                                                                               otherwise
    the request names this LeaderEpoch, or none (R1)                                   Refuse
    this broker leads, and has the key of an encrypted stream                          Refuse
    the partition takes publishes: read-only, ISR, room, lease, quota (`Admission`)    Refuse
    the sender may use the producer id (R76); a transactional batch has a ticket (R48) Refuse
    the headers ask for nothing that streams lack                                      Refuse
    the log ends where the headers expect its end (R46)                                Refuse, once certain
    the batch is no repetition of its producer's (R33)                                 AnswerWith the original
    the request names the partitioning version of the log (R61)                        Hold, or Refuse
    the sequence is the producer's next, and its state fits into memory (R33, R48)     Refuse
    the message ids are new (R45)                                                      AnswerWith the originals
    the new message ids fit into memory (R45)                                          Refuse
    the log ends where the `.append` request expects its end                           Refuse
    the last record has the message id that the headers expect (R46)                   Refuse, once certain
    the quota has room for all of the records                                          Store the first ones

A repetition gets the offsets of its original whatever partitioning version it names, also where the partition takes no
records any more (R61). Otherwise its client would write the records a second time, to other partitions.

A refusal for an unexpected end of the log is true of one log, and a deposed leader must not deny a record that its
successor has stored (R35). Such a refusal is sent when it is true of every leader (`Once`).

The batch of an `.append` request may wait until earlier batches are decoded. `admit` is called when the request comes.
It applies the rules that need no decoded records, so that a refused batch costs little, and a stranger learns nothing
about a producer id. `decide` applies the first three rules again; a batch that was admitted in the same step, since
which nothing was appended, is decided by `decide_admitted`.

Messages that were received together are one `PublishRun` as long as one decision holds for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from dataplane.replica.derived.dedup_window import kept_form
from dataplane.replica.derived.producer_table import Duplicate, Rejected, Verdict, may_be_stored
from dataplane.replica.leader.ack_levels import AckLevel
from dataplane.replica.leader.partitioning import VersionAwaited, takes_plain
from dataplane.replica.replica_refusals import fenced
from wire.batch import ReceivedBatch
from wire.error_details import LAST_OFFSET
from wire.errors import Code, CorruptData, InvariantViolation, TidelogError
from wire.partition_messages.jetstream import wrong_message_id
from wire.protobuf.tidelog_pb2 import AppendRequest
from wire.security.batch_proofs import check_batch_proof
from wire.security.tickets import partition_target
from wire.types import FIRST_TRANSACTIONAL_ID, NO_PRODUCER, LeaderEpoch, Offset

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dataplane.replica.derived.producer_table import ProducerTable
    from dataplane.replica.leader.leader import Leader
    from dataplane.replica.leader.log_clock import LogClock
    from dataplane.replica.leader.repetitions import Repetitions
    from wire.batch import BatchHeader, EncodedBatch
    from wire.partition_messages.jetstream import PublishHeaders
    from wire.security.producer_keys import ProducerKeys
    from wire.security.tickets import Tickets
    from wire.types import PartitionView


class OpenRecords(Protocol):
    """The records of the open batch: they are accepted, and not in the log yet."""

    @property
    def open_records(self) -> int: ...
    @property
    def open_ids(self) -> Mapping[bytes, int]:
        """Message ids in the kept form -> places in the open batch."""
        ...

    @property
    def last_id(self) -> bytes | None:
        """The message id of the last record."""
        ...


@dataclass(slots=True)
class PublishRun:
    """One message, a run of messages, or a batch of this process."""

    level: AckLevel | None
    """When it is acknowledged; None: no acknowledgement is wanted."""
    records: int = 1
    sizes: int | NDArray[np.integer[Any]] | None = None
    """Bytes of each record that count against the quota; None: none do."""
    ids: Sequence[tuple[int, bytes]] = ()
    """Message ids: (place in the run, id in its kept form)."""
    headers: PublishHeaders | None = None
    """Headers of one message that are to be obeyed, beside its message id."""
    ahead: OpenRecords | None = None
    """Given with `ids` and `headers`."""
    is_mixed: bool = False
    """Some messages of the run want no acknowledgement."""


_NO_BATCH: Final = memoryview(b"")


@dataclass(slots=True, eq=False)
class ClientBatch:
    """An `.append` request."""

    inbox: str | None
    """Where the answer goes; None: none is wanted."""
    max_body_bytes: int
    """Bounds the body before and after decompression."""
    request: AppendRequest = field(default_factory=AppendRequest)
    buffer: memoryview = _NO_BATCH
    """The encoded batch."""
    level: AckLevel | None = None
    """As of `PublishRun`; `admit` raises the level of transactional batches."""
    received: ReceivedBatch | None = None
    """Set by `admit`, once the sender may write under the producer id."""
    content: EncodedBatch | None = None
    """The decoded records, set before `decide`."""

    @property
    def opened(self) -> ReceivedBatch:
        if self.received is None:
            raise InvariantViolation("a batch is decoded that was not admitted")
        return self.received

    @property
    def decoded(self) -> EncodedBatch:
        if self.content is None:
            raise InvariantViolation("the turn of a batch has come before it is decoded")
        return self.content

    @property
    def size(self) -> int:
        """Bytes of the encoded batch."""
        return len(self.buffer)


@dataclass(slots=True)
class Store:
    ids: Sequence[tuple[int, bytes]] = ()
    """The new message ids of a client's batch: (place of the record, id in its kept form)."""
    repeated: Mapping[int, Offset] = field(default_factory=dict)
    """Places of records that are in the log already, and are left out -> offsets of the originals."""
    over_quota: TidelogError | None = None
    """The refusal of the records that the quota has no room for."""
    taken: int = 0
    """With `over_quota`: the first so many records are stored."""


@dataclass(slots=True)
class AnswerWith:
    """The publish is in the log, and is answered when everything below `end` is committed."""

    base: Offset
    end: Offset
    repeated: Mapping[int, Offset]
    """As of `Store`."""
    is_duplicate: bool = False
    """The whole batch is in the log, at `base`."""


@dataclass(slots=True)
class AnswerTogether:
    """The original of the message is at this place of the open batch, and both are answered together."""

    place: int


@dataclass(frozen=True, slots=True)
class Hold:
    """The decision waits for the next view (R61)."""


class Once(Enum):
    """When a refusal is true of every leader, so that the publisher may take it for final."""

    NOT_KNOWN = "not known"
    """The refusal is true of this leader now; `answer_without_epoch` makes the answer of it."""
    NOW = "now"
    COMMITTED = "committed"
    """Once the record at the expected place is committed: every successor has that record."""
    LED = "led"
    """Once a controller has counted on this leader after the message came: no other leader was elected before, so none
    received the message (`MetadataPort.led_at`)."""


@dataclass(slots=True)
class Refuse:
    error: TidelogError
    once: Once = Once.NOT_KNOWN
    end: Offset = Offset(0)
    """With `COMMITTED`: the end of the record at the expected place, exclusive."""


@dataclass(frozen=True, slots=True)
class Apart:
    """One decision does not hold for all messages of the run: the driver has each of them decided by itself."""


Decision: TypeAlias = Store | AnswerWith | AnswerTogether | Hold | Refuse | Apart

HOLD: Final = Hold()
APART: Final = Apart()
STORE: Final = Store()


class AppendRules:
    """The rules of one leader. `refuse_producer(now, time)`: why this broker can remember no further producer."""

    def __init__(
        self,
        core: Leader,
        repetitions: Repetitions,
        producers: ProducerTable,
        clock: LogClock,
        *,
        is_internal: bool,
        tickets: Tickets,
        producer_keys: ProducerKeys,
        refuse_producer: Callable[[float, int], TidelogError | None],
    ) -> None:
        self._core = core
        self._admission = core.admission
        self._repetitions = repetitions
        self._producers = producers
        self._clock = clock
        self._is_internal = is_internal
        self._tickets = tickets
        self._producer_keys = producer_keys
        self._refuse_producer = refuse_producer
        key = core.view.key
        self._target = partition_target(key.stream, key.stream_incarnation, key.partition, key.partition_incarnation)
        self._follow(core.view)

    def _follow(self, view: PartitionView) -> None:
        """Computes the facts that follow from a newer view."""
        self._view = view
        self._takes_plain = takes_plain(view)
        versions = (0, view.partitioning_version)
        self._open_versions = tuple(each for each in versions if self._admission.judge(each) is None)
        """Partitioning versions that are taken without a closer look."""

    def holds(self, version: int) -> bool:
        """Whether batches of that partitioning version are held."""
        return self._admission.judge(version) is VersionAwaited.AWAITED

    # ------------------------------------------------------------------ when an `.append` request comes
    # Keeps R14.
    def admit(
        self, batch: ClientBatch, now: float, *, lease_valid: bool, unable: TidelogError | None
    ) -> Hold | Refuse | None:
        """None: the batch may be decoded, and waits for its turn."""
        error = self._refuse_here(batch, now, lease_valid, unable)
        if error is not None:
            return Refuse(error)
        if batch.received is not None:
            return None
        asked = batch.level
        try:
            batch.received = received = self._opened(batch)
        except CorruptData as e:
            return Refuse(corrupt_batch(e))
        except TidelogError as e:
            return Refuse(e)
        if batch.level != asked:  # what the partition takes depends on the level
            error = self._admission.refuse(batch.level, lease_valid=lease_valid, now=now)
            if error is not None:
                return Refuse(error)
        version = batch.request.partitioning_version
        is_early = version not in self._open_versions and self.holds(version)
        return HOLD if is_early and not may_be_stored(self._verdict(received.header)) else None

    # Keeps R1.
    def _refuse_here(
        self, batch: ClientBatch, now: float, lease_valid: bool, unable: TidelogError | None
    ) -> TidelogError | None:
        """Refuses a batch of an earlier LeaderEpoch, then whatever this broker or the partition does not take now."""
        view, epoch = self._core.view, batch.request.leader_epoch
        if view is not self._view:
            self._follow(view)
        if epoch and epoch < self._core.leader_epoch:
            return fenced(view, LeaderEpoch(epoch))
        return unable or self._admission.refuse(batch.level, lease_valid=lease_valid, now=now)

    def _opened(self, batch: ClientBatch) -> ReceivedBatch:
        """Checks the header, the proof and the ticket. Raises CorruptData, TidelogError."""
        received = ReceivedBatch(batch.buffer, max_body_bytes=batch.max_body_bytes)
        header = received.header
        if header.producer_id != NO_PRODUCER:
            check_batch_proof(self._producer_keys, batch.request, header.producer_id, self._target, batch.buffer)
        batch.level = self._transactional_level(batch.level, batch.request.ticket, header)
        return received

    def _transactional_level(self, level: AckLevel | None, ticket: bytes, sent: BatchHeader) -> AckLevel | None:
        """When the batch is acknowledged: a transactional one not before the HW has passed it, whatever it asks for. A
        producer commits when all of its batches are acknowledged, and none of these may be lost with the leader
        afterwards. Raises TidelogError."""
        is_of_transactions = sent.producer_id >= FIRST_TRANSACTIONAL_ID
        if not is_of_transactions and not sent.is_transactional:
            return level
        if not is_of_transactions:
            raise _bad(f"producer {sent.producer_id} has no transactions; leave the transactional bit of its batch out")
        if not sent.is_transactional:
            raise _bad(f"producer {sent.producer_id} writes in transactions alone; set the bit of its batch")
        view = self._core.view
        if self._is_internal:
            raise _bad(f"no transaction writes to {view.key}")
        if level is None:
            raise _bad("a transaction cannot know what became of a batch with acks=none; use acks=all")
        if sent.has_message_ids:
            raise _bad(
                "a transaction stores no message ids: an aborted record would keep out its repetition; leave them out"
            )
        self._tickets.check(ticket, sent.producer_id, sent.producer_epoch, self._target)
        return AckLevel(is_local=False, is_synced=level.is_synced or view.config.is_durable, floor=level.floor)

    # ------------------------------------------------------------------ when the turn of a publish has come
    def decide(
        self, publish: PublishRun | ClientBatch, now: float, *, lease_valid: bool, unable: TidelogError | None
    ) -> Decision:
        """`now`: monotonic seconds. `unable`: why this broker stores nothing: its leadership has ended, or it lacks the
        key of an encrypted stream."""
        if isinstance(publish, ClientBatch):
            error = self._refuse_here(publish, now, lease_valid, unable)
            return self.decide_admitted(publish, now) if error is None else Refuse(error)
        view, error = self._core.view, unable
        if view is not self._view:
            self._follow(view)
        if not self._takes_plain:  # the leader of another partition listens there, and answers
            error = TidelogError(Code.NOT_LEADER, f"{view.key} takes no records, another partition does; try again")
        if error is None:
            error = self._admission.refuse(publish.level, lease_valid=lease_valid, now=now)
            if publish.is_mixed:
                other = self._admission.refuse(None, lease_valid=lease_valid, now=now)
                if (error is None) != (other is None):
                    return APART
        if error is not None:
            return Refuse(error)
        if publish.ids or publish.headers is not None:
            decision = (
                self._by_expected_ends(publish) or self._by_message_ids(publish, now) or self._by_last_record(publish)
            )
            if decision is not None:
                return decision
        quota, sizes, count = self._core.quota, publish.sizes, publish.records
        if sizes is None or not quota.is_set:
            return STORE
        taken = quota.take_uniform(count, sizes, now) if isinstance(sizes, int) else quota.take_sizes(sizes, now)
        return STORE if taken == count else Store(over_quota=quota.refusal(), taken=taken)

    # ------------------------------------------------------------------ messages
    # R46: A bare publish may expect the last sequence or the last message id of the log. The leader compares, and
    # refuses only once the refusal holds for every leader: when the record that took the place is committed, or, where
    # the log ends below the expected place or has another last id, when a controller has counted on this leadership
    # after the message came (R29). After `confirm_timeout_ms`, or at the end of the leadership, the answer is
    # OUTCOME_UNKNOWN. Other headers of JetStream that streams do not have are refused by the message alone.
    # Hazard: A publisher that compares and sets is told "not stored" by the old leader, and the new one has stored it.
    def _by_expected_ends(self, publish: PublishRun) -> Refuse | None:
        headers, view = publish.headers, self._core.view
        if headers is None:
            return None
        error = headers.refuse(view.key.stream, view.subject)
        if error is not None:
            return Refuse(error)
        end = self._core.log_end_offset
        return next((self._not_the_end(each) for each in headers.expected_ends() if each != end), None)

    def _not_the_end(self, expected: int) -> Refuse:
        view, end = self._core.view, self._core.log_end_offset
        error = TidelogError(
            Code.INCORRECT_OFFSET,
            f"the next record of {view.key} gets sequence {end + 1}, not the one after the expected last"
            f" sequence {expected if expected >= 0 else '(no number)'}; read what was written, and decide again",
            [LAST_OFFSET.of(end - 1)],
        )
        if expected < 0 or len(view.replicas) == 1:
            return Refuse(error, Once.NOW)
        if expected < end:
            return Refuse(error, Once.COMMITTED, Offset(expected + 1))
        return Refuse(error, Once.LED)

    def _by_message_ids(self, publish: PublishRun, now: float) -> AnswerWith | AnswerTogether | Refuse | Apart | None:
        ahead = publish.ahead
        if not publish.ids or ahead is None:
            return None
        repetitions = self._repetitions
        if publish.records > 1:
            new = {message_id for _, message_id in publish.ids}
            if repetitions.are_sought and (
                len(new) < len(publish.ids)
                or not ahead.open_ids.keys().isdisjoint(new)
                or repetitions.may_hold(new, now)
            ):
                return APART
        else:
            message_id = publish.ids[0][1]
            place = ahead.open_ids.get(message_id)
            if place is not None:
                return AnswerTogether(place)
            found = repetitions.find(message_id, now)
            if found is not None:
                return _originals({0: found}, self._core.log_end_offset)
        error = repetitions.refuse(len(ahead.open_ids) + len(publish.ids), now)
        if error is None:
            return None
        return Refuse(error) if publish.records == 1 else APART

    # Keeps R46.
    def _by_last_record(self, publish: PublishRun) -> Refuse | None:
        headers, ahead, view = publish.headers, publish.ahead, self._core.view
        if headers is None or ahead is None:
            return None
        expected = headers.last_message_id
        if expected is not None:
            last = ahead.last_id if ahead.open_records else self._repetitions.last_id(self._core.log_end_offset)
            if last != kept_form(expected):
                once = Once.NOW if len(view.replicas) == 1 else Once.LED
                return Refuse(wrong_message_id(expected, last), once)
        error = headers.refuse_new(view.key.stream)
        return None if error is None else Refuse(error)

    # ------------------------------------------------------------------ batches of clients
    def decide_admitted(self, batch: ClientBatch, now: float) -> Decision:
        """As `decide`, without the rules that `admit` has just applied to the batch and to its level as it is now."""
        request, sent = batch.request, batch.opened.header
        ids = self._repetitions.ids_of(batch.decoded) if sent.has_message_ids else ()
        decision = self._by_producer(request.partitioning_version, sent, ids, now)
        if decision is not None:
            return decision
        end = self._core.log_end_offset
        repeated = self._repetitions.among(ids, end, now) if ids else {}
        is_repeated = len(repeated) == sent.record_count
        if is_repeated and sent.producer_id == NO_PRODUCER:
            return _originals(repeated, end)
        # A producer's batch that has repetitions only is stored without records, so that its sequences are taken.
        error = self._repetitions.refuse(len(ids) - len(repeated), now) if ids else None
        if error is not None:
            return Refuse(error)
        if request.HasField("expected_last_offset") and not is_repeated:
            expected_end = request.expected_last_offset + 1
            if expected_end != end:
                return Refuse(self._another_end(expected_end))
        return Store([each for each in ids if each[0] not in repeated], repeated) if ids else STORE

    def _by_producer(
        self, version: int, sent: BatchHeader, ids: Sequence[tuple[int, bytes]], now: float
    ) -> Decision | None:
        """What follows from the producer and the partitioning version of a client's batch; None: nothing."""
        verdict = self._verdict(sent)
        if version not in self._open_versions and not may_be_stored(verdict):
            judged = self._admission.judge(version)
            if judged is VersionAwaited.AWAITED:
                return HOLD
            if judged is not None:
                return self._known_by_ids(sent, ids, now) or Refuse(judged)
        if isinstance(verdict, Duplicate):
            base, end = verdict.base_offset, verdict.end_offset
            return AnswerWith(base, end, self._repetitions.left_out(ids, base, end, now), is_duplicate=True)
        if isinstance(verdict, Rejected):
            return Refuse(self._admission.refusal_of(verdict))
        error = self._refuse_producer_of(sent, now)
        return None if error is None else Refuse(error)

    def _verdict(self, sent: BatchHeader) -> Verdict:
        return self._producers.check(
            sent.producer_id, sent.producer_epoch, sent.base_sequence, sent.record_count, sent.body_crc
        )

    def _known_by_ids(self, sent: BatchHeader, ids: Sequence[tuple[int, bytes]], now: float) -> AnswerWith | None:
        """The producer table does not know the batch. All of its message ids may be known."""
        if not ids or sent.producer_id != NO_PRODUCER:
            return None
        end = self._core.log_end_offset
        repeated = self._repetitions.among(ids, end, now)
        if len(repeated) < sent.record_count or max(repeated.values()) >= end:
            return None
        return _originals(repeated, end)

    def _refuse_producer_of(self, sent: BatchHeader, now: float) -> TidelogError | None:
        """Why a batch that comes next of its producer is not taken for what the producer costs to remember."""
        if sent.producer_id >= FIRST_TRANSACTIONAL_ID:
            time = self._clock.time(now)
            error = self._producers.refuse_transaction(sent.producer_id, sent.producer_epoch, time)
            if error is not None:
                return error
        if sent.producer_id != NO_PRODUCER and self._producers.grows_with(sent.producer_id):
            return self._refuse_producer(now, self._clock.time(now))
        return None

    def _another_end(self, expected: int) -> TidelogError:
        end = self._core.log_end_offset
        return TidelogError(
            Code.INCORRECT_OFFSET,
            f"the next record of {self._core.view.key} gets offset {end}, not the expected {expected}; read what was"
            " written, and decide again",
            [LAST_OFFSET.of(end - 1)],
        )


def _originals(repeated: Mapping[int, Offset], end: Offset) -> AnswerWith:
    """The answer to a publish of which nothing is new; the log ends at `end`."""
    return AnswerWith(end, Offset(max(repeated.values()) + 1), repeated)


def corrupt_batch(error: CorruptData) -> TidelogError:
    return TidelogError(Code.CORRUPT_BATCH, f"the batch does not decode: {error}; send it again")


def _bad(sentence: str) -> TidelogError:
    return TidelogError(Code.BAD_REQUEST, sentence)
