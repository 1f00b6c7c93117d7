"""One partition's pipe to its leader: it carries out the effects of the partition's accumulator.

It encodes batches and publishes them with a reply inbox each, hands answers to the accumulator, and keeps one timer for
the accumulator's next deadline. There is no task per batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError

from tidelog.client.base.exceptions import typed
from tidelog.client.cluster.metadata_cache import PartitionMetadata, StreamMetadata
from tidelog.client.producer.accumulator import (
    Acknowledged,
    Effect,
    Failed,
    PartitionAccumulator,
    Probe,
    RefreshMetadata,
    WantSession,
    WantTicket,
)
from tidelog.client.producer.batches import BatchState, PendingBatch, ProducerSession
from tidelog.client.producer.encoding import encode_batch
from tidelog.client.producer.producer_config import ProducerConfig
from tidelog.client.producer.upkeep import Upkeep
from wire.batch import Compression
from wire.errors import Code, CorruptData, TidelogError
from wire.messaging.transport import NO_RESPONDERS, Message, Transport
from wire.messaging.violation import Violation
from wire.partition_messages.append import UNKNOWN_OFFSET, ask_durability, encode_append
from wire.partition_messages.replication import decode_header
from wire.protobuf.tidelog_pb2 import AppendRequest, AppendResponse, FetchRequest
from wire.security.batch_proofs import add_batch_proof
from wire.security.tickets import partition_target
from wire.subjects import Subjects
from wire.types import LeaderEpoch, Offset

PUBLISH_RETRY = 0.002
"""Seconds until the next attempt of a publish that the full buffer of the connection refused."""
_WIRE_ACKS = {"all": AppendRequest.ALL, "leader": AppendRequest.LEADER, "none": AppendRequest.NONE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """The callbacks of the producer to its pipes."""

    stop_gathering: Callable[[], object]
    """Called when a pipe is about to send."""
    left: Callable[[Pipe], object]
    """Called when a batch of the pipe was sent for the first time."""
    settle: Callable[[int, Acknowledged | Failed], object]
    """Called when a batch of the partition is resolved."""
    drained: Callable[[Pipe], object]
    """Called when the pipe of an older layout is to be handed over (`Routes.hand_over`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """The common parts of a producer's pipes."""

    upkeep: Upkeep
    transport: Transport
    subjects: Subjects
    asked: ProducerConfig[Any, Any]
    """The options that the program has given."""
    config: ProducerConfig[Any, Any]
    """The options that take effect with the stream's settings and the connection's bounds."""
    compression: Compression


class Pipe:
    """Carries out the effects of one partition's accumulator."""

    def __init__(self, sending: Sending, sender: Sender, layout: StreamMetadata, known: PartitionMetadata) -> None:
        config, partition = sending.config, known.partition
        self.partition = partition
        self.core = PartitionAccumulator(f"{layout.name}/{partition}", config, known.leader_epoch)
        self.touched_at = 0.0
        """Time when the records of this turn of the loop began to come in."""
        self._sender = sender
        self._compression = sending.compression
        self._dedup = config.dedup
        self._upkeep = sending.upkeep
        self._request = AppendRequest(
            cluster_id=layout.cluster_id,
            stream_incarnation=layout.incarnation,
            partition_incarnation=known.incarnation,
            partitioning_version=layout.partitioning_version,
            acks=_WIRE_ACKS[sending.asked.acks],
        )
        if config.confirm_timeout is not None:
            self._request.confirm_timeout_ms = max(1, round(config.confirm_timeout * 1000))
        if sending.asked.level is not None:
            ask_durability(self._request, sending.asked.level)
        self._transport = sending.transport
        self._loop = asyncio.get_running_loop()
        self._append_subject = sending.subjects.append(layout.name, partition)
        self._leader_subject = sending.subjects.leader(layout.name, partition)
        self._proof_target = partition_target(layout.name, layout.incarnation, partition, known.incarnation)
        """The partition, in proofs of batches (`wire.security.batch_proofs`)."""
        self._acknowledged = config.acks != "none"
        self._inboxes: dict[PendingBatch, list[str]] = {}
        self._probe_inbox: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._transport.violations.hear(self._on_violation, publishes_to=self._append_subject)

    def close(self) -> None:
        self._transport.violations.stop_hearing(self._on_violation)
        if self._timer is not None:
            self._timer.cancel()
        self._drop_probe()
        for batch in list(self._inboxes):
            self._drop_inboxes(batch)

    @property
    def is_idle(self) -> bool:
        """All records given to this partition are resolved."""
        return self.core.is_idle

    def on_session(self, session: ProducerSession, ticket: bytes = b"") -> None:
        """Takes a session. `ticket`: that of a transaction. The same session may come again with another ticket."""
        self._request.ticket = ticket
        if session != self.core.session:
            self.core.on_session(session)
        self.pump()

    @property
    def incarnations(self) -> tuple[int, int]:
        """Incarnations of the stream and the partition that it writes to."""
        return self._request.stream_incarnation, self._request.partition_incarnation

    def pump(self) -> None:
        """Sends every batch that may be sent, and sets the timer."""
        if self.core.is_over:
            return
        self._sender.stop_gathering()
        if self._transport.is_connected:
            while (batch := self.core.next_send(self._loop.time())) is not None:
                try:
                    is_sent = self._publish(batch)
                except TidelogError as error:  # NATS carries less than when the batch was filled, or nothing
                    self._carry_out(self.core.on_error(batch, batch.attempts, error, self._loop.time()))
                    continue
                if not is_sent:
                    self.core.on_publish_refused(batch, self._loop.time(), PUBLISH_RETRY)
                    break
                if batch.attempts == 1:
                    self._sender.left(self)
                if not self._acknowledged:
                    self._carry_out(self.core.on_published(batch))
        if self.core.is_outdated:
            self._settle_down()
        else:
            self._arm()

    def _settle_down(self) -> None:
        """Hands the pipe over if its layout is older and it is drained."""
        core = self.core
        if core.is_over:  # an effect has handed the pipe over
            return
        if core.is_drained:
            self._sender.drained(self)
        else:
            self._arm()

    def run(self, effects: list[Effect]) -> None:
        self._carry_out(effects)
        self.pump()

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Acknowledged() | Failed():
                    self._drop_inboxes(effect.batch)
                    self._sender.settle(self.partition, effect)
                case Probe():
                    self._probe()
                case WantSession():
                    self._upkeep.renew_session(self)
                case WantTicket():
                    self._upkeep.renew_ticket(self)
                case RefreshMetadata():
                    self._upkeep.check_layout()

    def _arm(self) -> None:
        due = self.core.next_deadline()
        if due is None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._drop_probe()
            return
        now = self._loop.time()
        # Without a connection due work cannot be done; it is tried again soon, not at once.
        due = max(due, now if self._transport.is_connected else now + 0.05)
        if self._timer is not None:
            if self._timer.when() <= due:
                return  # the timer fires early and is set anew then, which is cheaper than moving it with each batch
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.run(self.core.tick(self._loop.time()))

    # Messages

    def _publish(self, batch: PendingBatch) -> bool:
        if batch.encoded is None:
            if batch.timestamp == 0:
                batch.timestamp = time.time_ns()
            encoded = encode_batch(batch, self._compression, dedup=self._dedup)
            batch.encoded = encoded.stamp(Offset(0), LeaderEpoch(0))[0]
        self._request.leader_epoch = self.core.leader_epoch
        if batch.expected_offset is None:
            self._request.ClearField("expected_last_offset")
        else:
            self._request.expected_last_offset = batch.expected_offset - 1
        if batch.session is not None:
            add_batch_proof(self._request, batch.session.key, self._proof_target, batch.encoded)
        parts = encode_append(self._request, batch.encoded)
        if not self._acknowledged:
            return self._transport.publish(self._append_subject, parts)
        self._transport.violations.check_answers_arrive()
        inbox = self._transport.new_inbox()
        self._transport.on_inbox(inbox, partial(self._on_answer, batch, batch.attempts))
        self._inboxes.setdefault(batch, []).append(inbox)
        return self._transport.publish(self._append_subject, parts, reply=inbox)

    def _on_answer(self, batch: PendingBatch, attempt: int, message: Message) -> None:
        now = self._loop.time()
        if message.status == NO_RESPONDERS:
            self.run(self.core.on_no_responders(batch, attempt, now))
            return
        error = TidelogError.from_headers(message.headers)
        if error is not None:
            self.run(self.core.on_error(batch, attempt, error, now))
            return
        try:
            response = AppendResponse.FromString(message.data)
        except DecodeError:
            response = AppendResponse()
        if response.leader_epoch < 1:  # no leader sent it; another service may listen on this subject
            unknown = TidelogError(Code.OUTCOME_UNKNOWN, f"an answer to an append to {self.core.name} is of no leader")
            self.run(self.core.on_error(batch, attempt, unknown, now))
            return
        told = zip(response.repeated_records, response.original_offsets, strict=False)
        originals = {place: max(offset, UNKNOWN_OFFSET) for place, offset in told if place < len(batch)}
        self.run(self.core.on_acknowledged(batch, response.base_offset, response.leader_epoch, originals))

    def _on_violation(self, violation: Violation) -> None:
        """Handles a refusal by NATS, which does not name the message. Where several batches are out, of this
        producer or of others of this client, those before it may have been written, for permissions change."""
        is_append = violation.ends(self._append_subject)
        if not is_append and not violation.ends(self._leader_subject):
            return
        error = typed(violation.error())
        if not self._acknowledged:
            self._upkeep.end(error)  # the records are lost, and no caller waits for them
            return
        sent = [batch for batch in self.core.pending_batches if batch.state is BatchState.SENT]
        is_shared = self._transport.violations.is_shared(self._append_subject)
        if is_append and len(sent) == 1 and not is_shared and not violation.is_inbox:
            self.run(self.core.on_error(sent[0], sent[0].attempts, error, self._loop.time()))
        else:
            self.run(self.core.fail_all(error))

    def _probe(self) -> None:
        """Asks for the LeaderEpoch, the cheapest request that only a leader answers.

        All probes share an inbox: on a link that takes longer than the time between two of them, the answer to the
        newest one would never come in time.
        """
        if self._probe_inbox is None:
            self._probe_inbox = self._transport.new_inbox()
            self._transport.on_inbox(self._probe_inbox, self._on_probe_answer)
        inbox = self._probe_inbox
        request = FetchRequest(
            cluster_id=self._request.cluster_id,
            stream_incarnation=self._request.stream_incarnation,
            partition_incarnation=self._request.partition_incarnation,
            earliest=True,
        )
        self._transport.publish(self._leader_subject, [request.SerializeToString()], reply=inbox)

    def _on_probe_answer(self, message: Message) -> None:
        if message.status == NO_RESPONDERS:
            self.run(self.core.on_probe_no_responders(self._loop.time()))
        elif TidelogError.from_headers(message.headers) is None:
            try:
                leader_epoch, _ = decode_header(message.data)
            except CorruptData:
                return
            self.run(self.core.on_probe_answer(leader_epoch))
        else:
            self._upkeep.check_layout()

    def _drop_inboxes(self, batch: PendingBatch) -> None:
        for inbox in self._inboxes.pop(batch, ()):
            self._transport.on_inbox(inbox, None)

    def _drop_probe(self) -> None:
        if self._probe_inbox is not None:
            self._transport.on_inbox(self._probe_inbox, None)
            self._probe_inbox = None
