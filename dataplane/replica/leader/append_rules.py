"""Whether a publish is stored: one decision for every way in which publishes come.

Clients' batches, bare publishes, messages with JetStream's headers, envelopes, and batches of this process are all an
`Asked`. `AppendRules.decide` is called when the turn of a publish has come: everything that came before it and is
stored is in the log, or in the open batch that it will join. It goes through the rules in this order, and the first one
that does not let the publish pass decides; the driver carries the decision out.

    rule                                                                             otherwise
    the LeaderEpoch that it names is this one (R1)                                   Refuse
    the partition takes publishes: its stream, ISR, room, lease, quota (`Admission`) Refuse
    its sender may use the producer id (R76); a transaction has a ticket (R48)       Refuse
    its headers ask for nothing that streams do not have                             Refuse
    the log ends where its headers expect it to end (R46)                            Refuse, once certain
    it is no repetition of its producer (R33)                                        AnswerWith the original
    it names the partitioning version of the log (R61)                               Hold, or Refuse
    it comes next of its producer, and there is room for the producer (R33, R48)     Refuse
    its message ids are new (R45)                                                    AnswerWith the originals
    there is room for new message ids (R45)                                          Refuse
    the log ends where the request of its batch expects it to end                    Refuse
    the last record has the message id that its headers expect (R46)                 Refuse, once certain
    the quota has room for all of its records                                        Store the first ones

A repetition gets the receipt of its original whatever partitioning version it names, and whether or not the partition
takes records (R61): its client would write the records to other partitions otherwise, a second time.

"Not what you expected" is a fact of one log, and a deposed leader must not deny what its successor stored (R35). So
such a refusal waits until it is true of every leader (`Once`).

A client's batch may have to wait for its turn, until those before it are decoded. `admit` is asked when it comes, so
that no work is done for a batch that is refused anyway, and nothing is known about a producer id by a stranger: it
applies the rules that need no look at the records. If the batch has waited, `decide` applies them again.

Messages that were received together are one `Asked`, a run, as long as nothing is to be decided of a single one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from dataplane.replica.derived.dedup_window import kept_form
from dataplane.replica.derived.producer_table import Duplicate, Rejected, Verdict, may_be_stored
from dataplane.replica.leader.ack_levels import AckLevel
from dataplane.replica.leader.partitioning import Held, takes_plain
from dataplane.replica.replica_refusals import fenced
from wire.error_details import LAST_OFFSET
from wire.errors import Code, CorruptData, InvariantViolation, TidelogError
from wire.partition_messages.jetstream import wrong_message_id
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
    from wire.batch import BatchHeader, EncodedBatch, ReceivedBatch
    from wire.partition_messages.jetstream import PublishHeaders
    from wire.protobuf.tidelog_pb2 import AppendRequest
    from wire.security.producer_keys import ProducerKeys
    from wire.security.tickets import Tickets


@dataclass(slots=True, kw_only=True)
class ClientBatch:
    """The batch of an `.append` request."""

    request: AppendRequest
    buffer: memoryview
    open: Callable[[memoryview], ReceivedBatch]
    """Checks what it says of itself. Raises CorruptData, TidelogError."""
    received: ReceivedBatch | None = None
    """Set once it has been opened and its sender may write under its producer id."""

    @property
    def opened(self) -> ReceivedBatch:
        if self.received is None:
            raise InvariantViolation("a batch is decoded that was not admitted")
        return self.received


class Ahead(Protocol):
    """Records that came before, are to be stored, and are not in the log yet."""

    @property
    def open_records(self) -> int: ...
    @property
    def open_ids(self) -> Mapping[bytes, int]:
        """Their message ids, in the kept form; their places among them."""
        ...

    @property
    def last_id(self) -> bytes | None:
        """The message id of the last one."""
        ...


@dataclass(slots=True, kw_only=True)
class Asked:
    """One publish, or a run of messages: everything that is decided by."""

    level: AckLevel | None
    """When it is acknowledged; None: no acknowledgement is wanted."""
    is_mixed: bool = False
    """Some messages of the run want no acknowledgement."""
    is_plain: bool = False
    """It comes on the subject of the stream, which names no partition for good, or from this process."""
    sizes: int | NDArray[np.integer[Any]] | None = None
    """Bytes that count against the quota, of each record; None: they are counted when it is in the log."""
    records: int = 1
    ids: Sequence[tuple[int, bytes]] = ()
    """Message ids of messages: (place in the run, id in its kept form)."""
    headers: PublishHeaders | None = None
    """Headers of one message that are to be obeyed, beside its message id."""
    ahead: Ahead | None = None
    """Given with `ids` and `headers`."""
    leader_epoch: int = 0
    """That the request names; 0: none."""
    version: int = 0
    """The partitioning version that it names; 0: none."""
    expected_end: int | None = None
    """Where the log has to end, exclusive, unless all of the records are repetitions."""
    batch: ClientBatch | None = None


class Here(NamedTuple):
    """What is true of this broker at the moment of a decision."""

    now: float
    """Monotonic seconds."""
    lease_valid: bool
    lacks_key: TidelogError | None
    """The stream is encrypted, and the key is not here."""


@dataclass(slots=True)
class Store:
    taken: int = 1
    """The first so many records of a run; the quota has no room for the others."""
    over_quota: TidelogError | None = None
    """To those others."""
    ids: Sequence[tuple[int, bytes]] = ()
    """Message ids that are new: (place of the record, id in its kept form)."""
    repeated: Mapping[int, Offset] = field(default_factory=dict)
    """Places of records that are in the log already, and are left out; the offsets of the originals."""


@dataclass(slots=True)
class AnswerWith:
    """The publish is in the log, and is answered when everything below `end` is committed."""

    base: Offset
    end: Offset
    repeated: Mapping[int, Offset]
    """As of `Store`."""
    is_duplicate: bool = False
    """The batch is in the log as a whole, at `base`."""


@dataclass(slots=True)
class AnswerTogether:
    """The original of the message is at this place of the records ahead, and both are answered together."""

    place: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing is decided before the next view (R61)."""


class Once(Enum):
    """When a refusal is true of every leader, so that the publisher may take it for final."""

    NOT_KNOWN = "not known"
    """It is true here and now; `told_without_epoch` says how much of that a publisher is told."""
    NOW = "now"
    COMMITTED = "committed"
    """Once the record that took the place is committed: every successor has it."""
    LED = "led"
    """Once a controller has counted on this leader after the message came: no other one was elected before, so none
    received it (`MetadataPort.led_at`)."""


@dataclass(slots=True)
class Refuse:
    error: TidelogError
    once: Once = Once.NOT_KNOWN
    end: Offset = Offset(0)
    """The end of the record that took the place, exclusive."""


@dataclass(frozen=True, slots=True)
class Apart:
    """The messages of a run are not alike: each is decided by itself."""


Decision: TypeAlias = Store | AnswerWith | AnswerTogether | Hold | Refuse | Apart

HOLD: Final = Hold()
APART: Final = Apart()


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
        self._open_versions: tuple[int, ...] = ()
        """Partitioning versions that are taken without a closer look."""
        self.on_view()

    def on_view(self) -> None:
        """The leader has a newer view."""
        newest = self._core.view.partitioning_version
        self._open_versions = tuple(each for each in (0, newest) if self._admission.judge(each) is None)

    def holds(self, version: int) -> bool:
        """Whether a batch that was held for naming `version` waits still."""
        return self._admission.judge(version) is Held.HELD

    # ------------------------------------------------------------------ when a client's batch comes
    def admit(self, asked: Asked, here: Here) -> Hold | Refuse | None:
        """None: the batch waits for its turn, and is decoded."""
        error = self._refuse_here(asked, asked.level, here)
        if error is not None:
            return Refuse(error)
        batch = asked.batch
        if batch is None:
            return None
        if batch.received is None:
            try:
                batch.received = self._opened(asked, batch)
            except CorruptData as e:
                return Refuse(corrupt_batch(e))
            except TidelogError as e:
                return Refuse(e)
            if self._is_early(asked.version, batch.received.header):
                return HOLD
        return None

    def _refuse_here(self, asked: Asked, level: AckLevel | None, here: Here) -> TidelogError | None:
        """Why nothing is taken that asks for this level in this LeaderEpoch."""
        core = self._core
        if asked.is_plain and not takes_plain(core.view):  # the leader of another partition listens there, and answers
            return TidelogError(Code.NOT_LEADER, f"{core.view.key} takes no records, another partition does; try again")
        if asked.leader_epoch and asked.leader_epoch < core.leader_epoch:
            return fenced(core.view, LeaderEpoch(asked.leader_epoch))
        if here.lacks_key is not None:
            return here.lacks_key
        return self._admission.refuse(level, lease_valid=here.lease_valid, now=here.now)

    def _opened(self, asked: Asked, batch: ClientBatch) -> ReceivedBatch:
        """Raises CorruptData, TidelogError."""
        received = batch.open(batch.buffer)
        header = received.header
        if header.producer_id != NO_PRODUCER:
            check_batch_proof(self._producer_keys, batch.request, header.producer_id, self._target, batch.buffer)
        asked.level = self._transactional_level(asked.level, batch.request.ticket, header)
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

    def _is_early(self, version: int, sent: BatchHeader) -> bool:
        """Its partitioning version has not begun here yet, or is not known to have ended."""
        if version in self._open_versions or not self.holds(version):
            return False
        return not may_be_stored(self._verdict(sent))

    # ------------------------------------------------------------------ when its turn has come
    def decide(self, asked: Asked, here: Here, content: EncodedBatch | None = None, *, waited: bool = True) -> Decision:
        """`content`: the records of a client's batch. `waited`: it was not admitted at this moment."""
        if waited:
            error = self._refuse_here(asked, asked.level, here)
            if asked.is_mixed and (error is None) != (self._refuse_here(asked, None, here) is None):
                return APART
            if error is not None:
                return Refuse(error)
        if asked.batch is not None and content is not None:
            return self._decide_batch(asked, asked.batch.opened.header, content, here)
        return (
            self._by_expected_ends(asked)
            or self._by_message_ids(asked, here)
            or self._by_last_record(asked)
            or self._within_quota(asked, here)
        )

    # ------------------------------------------------------------------ messages
    # R46: A bare publish may expect the last sequence or the last message id of the log. The leader compares, and
    # refuses only once the refusal holds for every leader: when the record that took the place is committed, or, where
    # the log ends below the expected place or has another last id, when a controller has counted on this leadership
    # after the message came (R29). After `confirm_timeout_ms`, or at the end of the leadership, the answer is
    # OUTCOME_UNKNOWN. Other headers of JetStream that streams do not have are refused by the message alone.
    # Hazard: A publisher that compares and sets is told "not stored" by the old leader, and the new one has stored it.
    def _by_expected_ends(self, asked: Asked) -> Refuse | None:
        headers, view = asked.headers, self._core.view
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

    def _by_message_ids(self, asked: Asked, here: Here) -> AnswerWith | AnswerTogether | Refuse | Apart | None:
        ahead = asked.ahead
        if not asked.ids or ahead is None:
            return None
        repetitions = self._repetitions
        if asked.records > 1:
            new = {message_id for _, message_id in asked.ids}
            if repetitions.are_sought and (
                len(new) < len(asked.ids)
                or not ahead.open_ids.keys().isdisjoint(new)
                or repetitions.may_hold(new, here.now)
            ):
                return APART
        else:
            message_id = asked.ids[0][1]
            place = ahead.open_ids.get(message_id)
            if place is not None:
                return AnswerTogether(place)
            found = repetitions.find(message_id, here.now)
            if found is not None:
                return _originals({0: found}, self._core.log_end_offset)
        error = repetitions.refuse(len(ahead.open_ids) + len(asked.ids), here.now)
        if error is None:
            return None
        return Refuse(error) if asked.records == 1 else APART

    # Keeps R46.
    def _by_last_record(self, asked: Asked) -> Refuse | None:
        headers, ahead, view = asked.headers, asked.ahead, self._core.view
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

    def _within_quota(self, asked: Asked, here: Here) -> Store:
        quota, sizes = self._core.quota, asked.sizes
        if sizes is None or not quota.is_set:
            return Store(asked.records)
        if isinstance(sizes, int):
            taken = quota.take_uniform(asked.records, sizes, here.now)
        else:
            taken = quota.take_sizes(sizes, here.now)
        return Store(taken, None if taken == asked.records else quota.refusal())

    # ------------------------------------------------------------------ batches of clients
    def _decide_batch(self, asked: Asked, sent: BatchHeader, content: EncodedBatch, here: Here) -> Decision:
        ids = self._repetitions.ids_of(content) if sent.has_message_ids else ()
        decision = self._by_producer(asked.version, sent, ids, here)
        if decision is not None:
            return decision
        end = self._core.log_end_offset
        repeated = self._repetitions.among(ids, end, here.now) if ids else {}
        is_repeated = len(repeated) == sent.record_count
        if is_repeated and sent.producer_id == NO_PRODUCER:
            return _originals(repeated, end)
        # A batch of one producer that was sent again by another call: its place is taken by itself.
        error = self._repetitions.refuse(len(ids) - len(repeated), here.now) if ids else None
        if error is not None:
            return Refuse(error)
        if asked.expected_end is not None and not is_repeated and asked.expected_end != end:
            return Refuse(self._another_end(asked.expected_end))
        return Store(sent.record_count, None, [each for each in ids if each[0] not in repeated], repeated)

    def _by_producer(
        self, version: int, sent: BatchHeader, ids: Sequence[tuple[int, bytes]], here: Here
    ) -> Decision | None:
        """What follows from the producer and the partitioning version of a client's batch; None: nothing."""
        verdict = self._verdict(sent)
        if version not in self._open_versions and not may_be_stored(verdict):
            judged = self._admission.judge(version)
            if judged is Held.HELD:
                return HOLD
            if judged is not None:
                return self._known_by_ids(sent, ids, here) or Refuse(judged)
        if isinstance(verdict, Duplicate):
            base, end = verdict.base_offset, verdict.end_offset
            return AnswerWith(base, end, self._repetitions.left_out(ids, base, end, here.now), is_duplicate=True)
        if isinstance(verdict, Rejected):
            return Refuse(self._admission.told(verdict))
        error = self._refuse_producer_of(sent, here)
        return None if error is None else Refuse(error)

    def _verdict(self, sent: BatchHeader) -> Verdict:
        return self._producers.check(
            sent.producer_id, sent.producer_epoch, sent.base_sequence, sent.record_count, sent.body_crc
        )

    def _known_by_ids(self, sent: BatchHeader, ids: Sequence[tuple[int, bytes]], here: Here) -> AnswerWith | None:
        """The producer table does not know the batch. All of its message ids may be known."""
        if not ids or sent.producer_id != NO_PRODUCER:
            return None
        end = self._core.log_end_offset
        repeated = self._repetitions.among(ids, end, here.now)
        if len(repeated) < sent.record_count or max(repeated.values()) >= end:
            return None
        return _originals(repeated, end)

    def _refuse_producer_of(self, sent: BatchHeader, here: Here) -> TidelogError | None:
        """Why a batch that comes next of its producer is not taken for what the producer costs to remember."""
        if sent.producer_id >= FIRST_TRANSACTIONAL_ID:
            time = self._clock.time(here.now)
            error = self._producers.refuse_transaction(sent.producer_id, sent.producer_epoch, time)
            if error is not None:
                return error
        if sent.producer_id != NO_PRODUCER and self._producers.grows_with(sent.producer_id):
            return self._refuse_producer(here.now, self._clock.time(here.now))
        return None

    def _another_end(self, expected: int) -> TidelogError:
        end = self._core.log_end_offset
        return TidelogError(
            Code.INCORRECT_OFFSET,
            f"the next record of {self._core.view.key} gets offset {end}, not the expected {expected}; read what was"
            " written, and decide again",
            [LAST_OFFSET.of(end - 1)],
        )

    def stored(self, store: Store, header: BatchHeader, records: int, size: int, now: float) -> None:
        """What was decided to be stored is in the log, under `header`. `records` and `size` as it came, with those
        that were left out."""
        if store.ids:
            self._repetitions.stored(store.ids, header)
        self._core.quota.take(records, size, now)


def _originals(repeated: Mapping[int, Offset], end: Offset) -> AnswerWith:
    """The answer to a publish of which nothing is new; the log ends at `end`."""
    return AnswerWith(end, Offset(max(repeated.values()) + 1), repeated)


def corrupt_batch(error: CorruptData) -> TidelogError:
    return TidelogError(Code.CORRUPT_BATCH, f"the batch does not decode: {error}; send it again")


def _bad(sentence: str) -> TidelogError:
    return TidelogError(Code.BAD_REQUEST, sentence)
