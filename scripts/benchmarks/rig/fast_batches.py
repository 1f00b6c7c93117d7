"""The client's side of JetStream's fast batches (ADR-50 of NATS, "Fast-ingest Batch Publishing"), without sockets.

A batch is begun, and its first message waits for the server's flow acknowledgement. Then the publisher sends on as long
as fewer than OUTSTANDING acknowledgements are due; the server says in each how many messages the next one covers, never
more than FLOW. The last message commits the batch, and the answer to it says how many were stored.

The reply subject of a message is all that makes it one of a batch:

    <inbox>.<flow>.<fail|ok>.<sequence in the batch>.<operation>.$FI

With "fail" a lost message ends the batch, so a batch that ends whole was stored in order and without gaps.
"""

from __future__ import annotations

import json

START, ADD, COMMIT, PING = 0, 1, 2, 4
"""Operations of a message of a batch. Operation 3 commits without storing its own message, and is not used."""
FLOW = 1_000
"""Messages from one acknowledgement to the next, at most. orbit.go's default is 100; of 100, 1,000 and 10,000, with 2
to 20 outstanding acknowledgements, this pair was among the fastest at both durabilities, on a busy machine."""
OUTSTANDING = 2
"""Acknowledgements that may be due. ADR-50: with two, the server works on one while messages of the next come."""


class BatchFailed(Exception):
    """The server ended a batch, or refused a message of it."""


class FastBatch:
    """The state of one batch of `count` messages. `inbox` is its own, and its last part is the id of the batch.

    Sequences begin with 1. Invariant: acknowledged <= sent <= count.
    """

    def __init__(self, inbox: str, count: int) -> None:
        if count < 1:
            raise ValueError(f"a batch has at least one message, and this one has {count}")
        self._prefix = f"{inbox}.{FLOW}.fail.".encode()
        self.count = count
        self.sent = 0
        self.acknowledged = 0
        """All messages up to this sequence are stored."""
        self._flow = 0
        """Messages that one acknowledgement covers now; 0 until the first one came."""
        self.is_committed = False

    def reply(self, sequence: int) -> bytes:
        """Returns the reply subject of that message."""
        operation = COMMIT if sequence == self.count else START if sequence == 1 else ADD
        return b"%s%d.%d.$FI" % (self._prefix, sequence, operation)

    @property
    def ping(self) -> bytes:
        """Reply subject of an empty message that asks for the newest acknowledgement."""
        return b"%s%d.%d.$FI" % (self._prefix, self.sent, PING)

    @property
    def room(self) -> int:
        """Number of further messages that may be sent now."""
        if self.sent == 0:
            return 1
        if self._flow == 0:
            return 0
        return max(0, min(self.count, self.acknowledged + self._flow * OUTSTANDING) - self.sent)

    def on_answer(self, payload: bytes) -> None:
        """Takes an acknowledgement. Raises BatchFailed for an error, a gap, or a batch that ended early."""
        if not payload:
            raise BatchFailed("nobody takes fast batches on this subject; the stream needs allow_batched")
        answer = json.loads(payload)
        match answer.get("type"):
            case "ack":
                # One that comes late says nothing new about what is stored, but the server's newest flow holds.
                self.acknowledged = max(self.acknowledged, min(answer["seq"], self.sent))
                self._flow = max(1, answer["msgs"])
            case "gap":
                raise BatchFailed(f"messages {answer['last_seq']} to {answer['seq'] - 1} of the batch were lost")
            case "err":
                raise BatchFailed(f"message {answer['seq']} was refused: {answer['error']['description']}")
            case _:
                self._on_publish_ack(answer)

    def _on_publish_ack(self, answer: dict[str, object]) -> None:
        """Takes the last acknowledgement, which ends the batch. Raises BatchFailed if messages are missing."""
        if error := answer.get("error"):
            raise BatchFailed(f"the batch was refused: {error}")
        stored = answer.get("count", 1)  # a batch of one message is answered like any publish
        if stored != self.count:
            raise BatchFailed(f"the batch ended with {stored} of {self.count} messages")
        self.acknowledged = self.count
        self.is_committed = True


def payloads(received: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Returns ([(subject, payload)] of the messages that a NATS server sent, the bytes of an incomplete one).

    A status (503: nobody listens) has an empty payload. Raises ConnectionError for an error of the connection.
    """
    found = []
    at = 0
    while (end := received.find(b"\r\n", at)) >= 0:
        words = received[at:end].split()
        if not words or words[0] not in (b"MSG", b"HMSG"):
            if words and words[0] == b"-ERR":
                raise ConnectionError(received[at:end].decode(errors="replace"))
            at = end + 2
            continue
        begin, total = end + 2, int(words[-1])
        if len(received) < begin + total + 2:
            break
        header = int(words[-2]) if words[0] == b"HMSG" else 0
        found.append((words[1], received[begin + header : begin + total]))
        at = begin + total + 2
    return found, received[at:]
