"""A stranger on NATS who hears everything, and who may publish everything: messages between brokers are altered, copied
to other subjects and inboxes, sent again at once or later, and refused in the name of NATS. It also begins transactions
that no coordinator knows, with tickets of others.

It has a source of chance of its own. `OnlyBrokersAreBelieved` says whether one of its messages was taken.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING

from tests.bodies import with_the_same_crc
from tests.simulation.machines.messaging import SimConnection
from tests.simulation.world import Process
from tidelog.server.peers.peer_tags import TRAILER_BYTES
from wire.batch import BatchBuilder, parse_header
from wire.messaging.transport import NO_RESPONDERS, Message
from wire.partition_messages.append import decode_append, encode_append
from wire.types import FIRST_TRANSACTIONAL_ID, NO_PRODUCER, LeaderEpoch, Offset

if TYPE_CHECKING:
    from tests.simulation.machines.messaging import Nats
    from wire.subjects import Subjects

REMEMBERED = 300
SHARE = 0.2
"""Of the messages that it hears, for which it sends one of its own."""
LONGEST_DELAY = 3.0
WAYS = ("altered", "bare", "under another's trailer", "elsewhere", "for another inbox", "again", "later", "refused")


class Forger:
    def __init__(self, nats: Nats, subjects: Subjects) -> None:
        self._nats = nats
        self._rng = Random(f"forger of {nats.world.seed}")
        self._rng_of_transactions = Random(f"forged transactions of {nats.world.seed}")
        self._rng_of_ids = Random(f"forged ids of {nats.world.seed}")
        self._inboxes = subjects.broker_inboxes()
        self._is_between_brokers = subjects.is_between_brokers
        self._heard: deque[Message] = deque(maxlen=REMEMBERED)
        self._is_speaking = False
        self._connection = SimConnection(nats, Process.begun(nats.world, "forger"), "forger")

    def begin(self) -> None:
        self._nats.overhears = self._on_message

    def end(self) -> None:
        self._nats.overhears = None

    def _on_message(self, message: Message) -> None:
        if message.subject.endswith(".append") and not self._is_speaking:
            self._begin_transaction(message)
            self._usurp(message)
            self._replace_body(message)
            return
        is_tagged = message.subject.startswith(self._inboxes) or self._is_between_brokers(message.subject)
        if self._is_speaking or not is_tagged or len(message.data) < TRAILER_BYTES:
            return
        rng = self._rng
        self._heard.append(message)
        if rng.random() >= SHARE:
            return
        other = rng.choice(self._heard)
        subject, data, reply, headers, _ = message
        payload, trailer = data[:-TRAILER_BYTES], data[-TRAILER_BYTES:]
        match rng.choice(WAYS):
            case "altered" if payload:
                altered = bytearray(data)
                altered[rng.randrange(len(payload))] ^= 1 << rng.randrange(8)
                self._say(message._replace(data=bytes(altered)))
            case "bare":
                self._say(message._replace(data=payload))
            case "under another's trailer":
                self._say(message._replace(data=other.data[:-TRAILER_BYTES] + trailer))
            case "elsewhere":
                self._say(Message(other.subject, data, reply, headers))
            case "for another inbox":
                self._say(Message(subject, data, other.reply, headers))
            case "again":
                self._say(message)
            case "later":
                self._nats.world.after(rng.random() * LONGEST_DELAY, lambda: self._say(other))
            case "refused" if reply is not None:
                self._refuse(reply)

    def _begin_transaction(self, message: Message) -> None:
        """With a batch of a producer that no coordinator knows, and the ticket of another one."""
        request, _ = decode_append(message.data)
        if not request.ticket or self._rng_of_transactions.random() >= SHARE:
            return
        builder = BatchBuilder()
        builder.add_record(b"forged:0:", b"0")
        number = FIRST_TRANSACTIONAL_ID + self._rng_of_transactions.randrange(1 << 20, 1 << 40)
        batch = builder.build(0, producer_id=number, producer_epoch=0, base_sequence=0, is_transactional=True)
        parts = encode_append(request, batch.stamp(Offset(0), LeaderEpoch(0))[0])
        self._say(message._replace(data=b"".join(parts), reply=self._connection.new_inbox()))

    def _usurp(self, message: Message) -> None:
        """With the batch that comes next under the id of whoever has sent this one, and the proof of this one."""
        request, buffer = decode_append(message.data)
        sent = parse_header(buffer)
        if sent.producer_id == NO_PRODUCER or self._rng_of_ids.random() >= SHARE:
            return
        builder = BatchBuilder()
        for _ in range(self._rng_of_ids.randrange(1, 3)):
            builder.add_record(b"forged:0:", b"0")
        batch = builder.build(
            0,
            producer_id=sent.producer_id,
            producer_epoch=sent.producer_epoch,
            base_sequence=sent.base_sequence + sent.record_count,
            is_transactional=sent.is_transactional,
        )
        parts = encode_append(request, batch.stamp(Offset(0), LeaderEpoch(0))[0])
        self._say(message._replace(data=b"".join(parts), reply=self._connection.new_inbox()))

    def _replace_body(self, message: Message) -> None:
        """With the batch that somebody has sent, and his proofs, but other values."""
        _, buffer = decode_append(message.data)
        if parse_header(buffer).producer_id == NO_PRODUCER or self._rng_of_ids.random() >= SHARE:
            return
        self._say(message._replace(data=with_the_same_crc(message.data), reply=self._connection.new_inbox()))

    def _say(self, message: Message) -> None:
        self._is_speaking = True
        self._connection.publish(message.subject, [message.data], reply=message.reply, headers=message.headers)
        self._is_speaking = False

    def _refuse(self, inbox: str) -> None:
        session = self._connection.session
        if session is not None:
            refusal = Message(inbox, b"", status=NO_RESPONDERS)
            self._nats._up(session, inbox, self._nats._route, session, refusal)
