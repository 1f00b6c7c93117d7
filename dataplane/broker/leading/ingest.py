"""Messages that NATS clients publish to a stream's subject become records here, a received chunk at a time.

Nothing is done per message while a run is uniform: lengths and payloads go into the open batch as columns. Messages of
mixed sizes, with and without headers, are joined to columns a chunk at a time. Only four kinds of message are looked
at one by one: envelopes (they carry a key and an ack inbox), messages that are too large, and those of a chunk in which
a header asks for something, or a header block is malformed or has too many headers. Message ids alone, each new, are
taken in columns. A message that begins with the envelope's magic and does not decode is dropped, counted and logged,
never stored as a plain payload; so is one whose headers no reader could read.

The open batch is sealed when it is large enough, when a follower waits, or when the log is not syncing anyway: small
batches are latency, large ones throughput. Where many partitions have batches on their way, it gathers until the
partition's last one is committed (`Commits.gathers_until`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dataplane.broker.roles.role_answers import each_reply, reply_column
from dataplane.replica.derived.dedup_window import LONG, kept_form
from dataplane.replica.leader.ack_levels import AckLevel
from dataplane.replica.leader.append_rules import (
    STORE,
    AnswerTogether,
    AnswerWith,
    Apart,
    Decision,
    PublishRun,
    Refuse,
    Store,
)
from dataplane.replica.replies import Replies
from wire.batch import BatchBuilder, Compression, EncodedBatch, Joined, encode_headers
from wire.batch.encoded import RecordLimit
from wire.batch.record_headers import are_sound, block_fault, most_written, written_size
from wire.errors import Code, CorruptData, InvariantViolation, TidelogError
from wire.messaging.transport import BulkHandler, UniformRun
from wire.partition_messages.jetstream import MAY_ACT, MESSAGE_ID, PublishHeaders, sole_message_id
from wire.partition_messages.liftbridge_envelope import MAGIC, any_envelope, decode_publish, is_envelope
from wire.protobuf.tidelog_pb2 import AckPolicy, Message
from wire.types import Acks

_log = logging.getLogger(__name__)

_PER_RECORD = 16
"""Bytes of a batch that a record costs besides its payload, at most: two offsets and padding."""

_WORTH_COLUMNS = 4
"""Messages from which on joining them takes less time than adding each by itself."""

SEAL_BYTES = 256 << 10
"""An open batch of this size is sealed at once."""


class Publishes(Protocol):
    """The rest of the leader. `reply`: None where no answer is wanted, or none is given."""

    def decide(self, publish: PublishRun) -> Decision:
        """See `dataplane.replica.leader.append_rules`."""
        ...

    def seal(self) -> None:
        """The open batch goes into the log."""
        ...

    def wants_batch(self) -> bool:
        """The open batch need not grow any more."""
        ...

    def on_refused(self, replies: Replies, error: TidelogError, count: int) -> None:
        """`count` messages are not stored."""
        ...

    def on_denied(self, reply: bytes, refusal: Refuse) -> None:
        """A message is not stored whose headers ask for something."""
        ...

    def on_envelope_refused(self, message: Message, error: TidelogError) -> None: ...
    def on_repetition(self, publisher: bytes | Message | None, answer: AnswerWith) -> None:
        """The original is in the log. `publisher`: a reply subject, or the envelope."""
        ...


@dataclass(slots=True)
class OpenBatch:
    """A sealed batch, and the publishers of its records, by the places of the records in the batch."""

    batch: EncodedBatch
    replies: list[tuple[int, Replies]]
    """(place of the first, reply subjects from there on)."""
    envelopes: list[tuple[int, Message, int]]
    ids: list[tuple[int, bytes]]
    """Message ids in their kept form."""
    repetitions: list[tuple[int, Replies]]
    """(place of the original, reply subject) of bare messages that came again before the batch was sealed."""
    repeated: int
    """How many messages came again, envelopes and those without a reply subject among them."""


class Ingest(BulkHandler):
    """One partition's open batch, and the publishers that wait for its records. `is_inbox`: whether a broker answers
    on that subject; an envelope's `ackInbox` on which it does not is left out."""

    def __init__(
        self,
        publishes: Publishes,
        *,
        is_inbox: Callable[[bytes], bool],
        time_ns: Callable[[], int],
    ) -> None:
        self._publishes = publishes
        self._level: AckLevel | None = None
        """The level of messages that want an acknowledgement."""
        self._record_limit = RecordLimit(0)
        self._max_record = 0
        self._max_batch = 0
        self._is_inbox = is_inbox
        self._time_ns = time_ns
        self._with_replies = False
        self._builder = BatchBuilder()
        self._estimate = 0
        self._replies: list[tuple[int, Replies]] = []
        """(index of the first record in the open batch, reply subjects from there on)."""
        self._envelopes: list[tuple[int, Message, int]] = []
        self._seeks_repetitions = True
        self._ids: dict[bytes, int] = {}
        """Message ids of the open batch -> place, in the order of places."""
        self._last_id: tuple[int, bytes] = (-1, b"")
        """(place, id) of the newest one."""
        self._repetitions: list[tuple[int, Replies]] = []
        self._repeated = 0

    def configure(
        self,
        *,
        level: AckLevel,
        max_batch_bytes: int,
        record_limit: RecordLimit,
        with_replies: bool,
        seeks_repetitions: bool,
    ) -> None:
        """Before the first message, and whenever the stream's settings, or the largest message of NATS, change."""
        self._level = level
        self._seeks_repetitions = seeks_repetitions
        self._max_batch = max_batch_bytes
        self._record_limit, self._max_record = record_limit, record_limit.max_bytes
        self._with_replies = with_replies

    # ------------------------------------------------------------------ BulkHandler
    def on_uniform(self, run: UniformRun) -> None:
        if any_envelope(run):
            for payload, answer_to in zip(run.payloads(), _replies_of(run), strict=True):
                self._one(payload, answer_to, None)
            return
        count, stride, payload_size, reply = run.count, run.stride, run.payload_size, run.reply
        acknowledged = reply is not None and self._with_replies
        if payload_size > self._max_record:
            self._drop(_replies_of(run), self._too_large(payload_size), count)
            return
        each = payload_size + _PER_RECORD
        match self._publishes.decide(PublishRun(self._level if acknowledged else None, count, each)):
            case Refuse(error):
                self._drop(_replies_of(run), error, count)
                return
            case Store(taken=taken, over_quota=over_quota) if over_quota is not None:
                self._drop(_replies_of(run)[taken:], over_quota, count - taken)
                count = taken
        done = 0
        while done < count:
            room = (self._max_batch - self._estimate) // each
            if room < 1 and self._builder.count:
                self._publishes.seal()
                continue
            take = min(count - done, max(room, 1))
            part = run.block[done * stride : (done + take) * stride]
            if reply is not None and acknowledged:
                self._replies.append((self._builder.count, reply_column(part, take, *reply, stride)))
            self._builder.add_uniform(part, take, run.payload_at, payload_size, stride)
            self._estimate += take * each
            done += take

    def on_messages(self, payloads: list[bytes], replies: list[bytes | None], headers: list[bytes | None]) -> None:
        if len(payloads) < _WORTH_COLUMNS:
            self._each(payloads, replies, headers)
            return
        values = Joined.of(payloads)
        sizes = values.sizes
        blocks: Joined | None = None
        if headers.count(None) != len(headers):
            blocks = Joined.of([block or b"" for block in headers])
            if not are_sound(blocks.data, blocks.sizes):
                self._each(payloads, replies, headers)
                return
            largest = int((sizes + most_written(blocks.sizes)).max())
            sizes = sizes + blocks.sizes
        else:
            largest = int(sizes.max())
        # The magic may also lie inside a payload, or where two of them meet.
        if largest > self._max_record or (MAGIC in values.data and any(map(is_envelope, payloads))):
            self._each(payloads, replies, headers)
            return
        ids: list[tuple[int, bytes]] = []
        if blocks is not None and MAY_ACT in blocks.data:
            found = _sole_ids(headers)
            if found is None:
                self._each(payloads, replies, headers)
                return
            ids = found
        plain = replies.count(None) if self._with_replies else len(replies)
        acknowledged = plain < len(replies)
        done, before, count = 0, 0, len(payloads)
        sizes = sizes + _PER_RECORD
        level = self._level if acknowledged else None
        match self._publishes.decide(
            PublishRun(level, count, sizes, ids, ahead=self, is_mixed=acknowledged and plain > 0)
        ):
            case Apart():
                self._each(payloads, replies, headers)
                return
            case Refuse(error):
                self._drop(replies, error, count)
                return
            case Store(taken=taken, over_quota=over_quota) if over_quota is not None:
                self._drop(replies[taken:], over_quota, count - taken)
                count = taken
        ends = np.cumsum(sizes, dtype=np.int64)
        while done < count:
            upto = min(count, int(np.searchsorted(ends, before + self._max_batch - self._estimate, "right")))
            if upto <= done:
                if self._builder.count:
                    self._publishes.seal()
                    continue
                upto = done + 1
            if acknowledged:
                self._replies.append((self._builder.count, replies[done:upto]))
            if ids:
                shift = self._builder.count - done
                for place, message_id in ids:
                    if done <= place < upto:
                        self._note(message_id, place + shift)
            if done == 0 and upto == len(payloads):
                self._builder.add_joined(values, blocks)
            else:
                self._builder.add_joined(values.part(done, upto), None if blocks is None else blocks.part(done, upto))
            self._estimate += int(ends[upto - 1]) - before
            done, before = upto, int(ends[upto - 1])

    def chunk_done(self) -> None:
        if self._builder.count and (self._estimate >= SEAL_BYTES or self._publishes.wants_batch()):
            self._publishes.seal()

    # ------------------------------------------------------------------ the open batch
    @property
    def open_records(self) -> int:
        return self._builder.count

    @property
    def has_envelopes(self) -> bool:
        """Some publisher of the open batch may wait for less than the others."""
        return bool(self._envelopes)

    @property
    def open_ids(self) -> Mapping[bytes, int]:
        """Message ids of the open batch, and the places of their records."""
        return self._ids

    @property
    def last_id(self) -> bytes | None:
        """The message id of the last record of the open batch."""
        place, message_id = self._last_id
        return message_id if place == self._builder.count - 1 else None

    def take(self, compression: Compression) -> OpenBatch:
        """The batch with all records so far, and the publishers that wait. There must be records."""
        self._builder.has_message_ids = self._last_id[0] >= 0
        batch = self._builder.build(self._time_ns(), compression=compression)
        ids = [(place, message_id) for message_id, place in self._ids.items()]
        if not self._seeks_repetitions and self._last_id[0] >= 0:
            ids = [self._last_id]
        taken = OpenBatch(batch, self._replies, self._envelopes, ids, self._repetitions, self._repeated)
        self._replies, self._envelopes, self._repetitions, self._repeated = [], [], [], 0
        self._ids, self._last_id = {}, (-1, b"")
        self._estimate = 0
        return taken

    # ------------------------------------------------------------------ one by one
    def _each(self, payloads: list[bytes], replies: list[bytes | None], headers: list[bytes | None]) -> None:
        for payload, reply, header in zip(payloads, replies, headers, strict=True):
            self._one(payload, reply, header)

    def _one(self, payload: bytes, reply: bytes | None, header: bytes | None) -> None:
        if is_envelope(payload):
            self._envelope(payload, reply)
            return
        size = len(payload) + len(header or b"")
        error = self._refuse_record(payload, header)
        if error is not None:
            self._drop([reply], error, 1)
            return
        answer_to = reply if self._with_replies else None
        kept = obeyed = None
        if header and (wanted := PublishHeaders.of(header)) is not None:
            kept = None if wanted.message_id is None else kept_form(wanted.message_id)
            # Without a reply subject a refusal reaches nobody: only the message id is obeyed.
            if answer_to is not None and wanted.asks_for_more:
                obeyed = wanted
                if wanted.expected_ends() and self._builder.count:
                    self._publishes.seal()  # the end of the log is compared
        level, ids = None if answer_to is None else self._level, () if kept is None else ((0, kept),)
        if not self._is_stored(PublishRun(level, 1, size + _PER_RECORD, ids, obeyed, self), answer_to):
            return
        self._make_room(size)
        if kept is not None:
            self._note(kept, self._builder.count)
        if answer_to is not None:
            self._replies.append((self._builder.count, [answer_to]))
        self._builder.add_record(payload, headers=header or b"")
        self._estimate += size + 2 * _PER_RECORD

    def _envelope(self, payload: bytes, reply: bytes | None) -> None:
        try:
            message = decode_publish(payload)
        except CorruptData as e:
            self._drop([reply], _corrupt_envelope(str(e)), 1)
            return
        if message.ackInbox and not self._is_inbox(message.ackInbox.encode()):
            message.ackInbox = ""
        key = message.key if message.HasField("key") else None
        value = message.value if message.HasField("value") else None
        if message.ackPolicy not in _POLICIES:
            reason = f"the envelope asks for acknowledgement policy {message.ackPolicy}, unknown here"
            self._drop([reply], _corrupt_envelope(reason), 1)
            return
        try:
            headers = encode_headers(dict(message.headers)) if message.headers else b""
        except TidelogError as e:
            self._publishes.on_envelope_refused(message, e)
            return
        size = len(key or b"") + len(value or b"") + len(headers)
        if size > self._max_record:
            self._publishes.on_envelope_refused(message, self._too_large(size))
            return
        message_id = message.headers.get(MESSAGE_ID, b"")
        kept = kept_form(message_id)
        level, ids = self._level if _policy(message) is Acks.ALL else None, ((0, kept),) if message_id else ()
        if not self._is_stored(PublishRun(level, 1, size + _PER_RECORD, ids, None, self), message):
            return
        self._make_room(size)
        if message_id:
            self._note(kept, self._builder.count)
        self._envelopes.append((self._builder.count, message, self._time_ns()))
        self._builder.add_record(value, key, headers, message.timestamp or None)
        self._estimate += size + 4 * _PER_RECORD

    def _is_stored(self, publish: PublishRun, publisher: bytes | Message | None) -> bool:
        """False: the publisher is answered, or waits for its answer."""
        decision = self._publishes.decide(publish)
        if decision is STORE:
            return True
        match decision:
            case Refuse(error):
                if isinstance(publisher, Message):
                    self._publishes.on_envelope_refused(publisher, error)
                elif publisher is not None and publish.headers is not None:
                    self._publishes.on_denied(publisher, decision)
                else:
                    self._drop([publisher], error, 1)
            case AnswerTogether(place):
                self._repeated += 1
                if isinstance(publisher, Message):
                    self._envelopes.append((place, publisher, self._time_ns()))
                elif publisher is not None:
                    self._repetitions.append((place, [publisher]))
            case AnswerWith():
                self._publishes.on_repetition(publisher, decision)
            case _:
                raise InvariantViolation(f"nothing of the kind can be decided of one message: {decision}")
        return False

    # ------------------------------------------------------------------ message ids
    def _note(self, kept: bytes, place: int) -> None:
        """The record at `place` of the open batch has that id."""
        self._last_id = place, kept
        if self._seeks_repetitions:
            self._ids[kept] = place

    def _make_room(self, size: int) -> None:
        if self._builder.count and self._estimate + size > self._max_batch:
            self._publishes.seal()

    # ------------------------------------------------------------------ refusals
    def _drop(self, replies: list[bytes | None], error: TidelogError, count: int) -> None:
        self._publishes.on_refused(replies, error, count)

    def _refuse_record(self, payload: bytes, header: bytes | None) -> TidelogError | None:
        """The fault of the message itself, whatever the log holds."""
        size = len(payload)
        if header:
            fault = block_fault(header)
            if fault is not None:
                return fault
            if size + most_written(len(header)) > self._max_record:
                size += max(len(header), written_size(header))
        return self._too_large(size) if size > self._max_record else None

    def _too_large(self, size: int) -> TidelogError:
        return self._record_limit.too_large("a record", size)


def _replies_of(run: UniformRun) -> list[bytes | None]:
    if run.reply is None:
        return [None] * run.count
    return each_reply(reply_column(run.block, run.count, *run.reply, run.stride))


def _corrupt_envelope(reason: str) -> TidelogError:
    return TidelogError(Code.CORRUPT_ENVELOPE, f"{reason}; the envelope was not stored, send it again")


def _sole_ids(headers: Sequence[bytes | None]) -> list[tuple[int, bytes]] | None:
    """The ids of the messages of a chunk: (place in it, id). None: some header asks for more."""
    ids: list[tuple[int, bytes]] = []
    for place, block in enumerate(headers):
        if block is None or MAY_ACT not in block:
            continue
        message_id = sole_message_id(block)
        if message_id is None:
            wanted = PublishHeaders.of(block)
            if wanted is None:
                continue
            message_id = wanted.message_id
            if message_id is None or wanted.asks_for_more:
                return None
        ids.append((place, message_id if len(message_id) <= LONG else kept_form(message_id)))
    return ids


_POLICIES = {AckPolicy.LEADER: Acks.LEADER, AckPolicy.ALL: Acks.ALL, AckPolicy.NONE: Acks.NONE}


def _policy(message: Message) -> Acks:
    return _POLICIES[message.ackPolicy]


def envelope_waits(message: Message) -> bool:
    """For an answer."""
    return bool(message.ackInbox) and _policy(message) is not Acks.NONE


def envelope_waits_for_all(message: Message) -> bool:
    return envelope_waits(message) and _policy(message) is Acks.ALL
