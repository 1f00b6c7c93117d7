"""What the headers of bare publishes ask for, as JetStream's publishers set them: obeyed, or refused (R46).

    the message and the stream's settings alone       refused at once: any leader refuses it
    an expected last sequence, seq = offset + 1       the open batch is sealed, and the log's end compared
    a message id that is in the log                   answered as the original, when that is committed
    an expected message id of the last record         compared with the last one of the open batch, or of the log
    a rollup                                          refused, unless it is a repetition

That is JetStream's order. Where nobody can be told of a refusal message ids alone are obeyed, and the message is stored
like any other: without a reply subject, and by a stream that answers no bare publishes (`reply_acks=false`), beside a
service or a JetStream that is meant.

"Not what you expected" is a fact of one log, and a deposed leader must not deny what its successor stored (R35). So
such a refusal waits until it holds of every leader:

    the expected place is taken         until the record that took it is committed
    anything else, several replicas     until a controller has counted on this leader after the message came
                                        (`MetadataPort.led_at`): no other one was elected before, so none heard it
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dataplane.broker.leading.ingest import Ingest, envelope_waits, envelope_waits_for_all
from dataplane.broker.roles.role_answers import BareReplies, EnvelopeReply
from dataplane.replica.derived.dedup_window import kept_form
from dataplane.replica.leader.ack_levels import AckLevel, ack_level
from wire.error_details import LAST_OFFSET, LIMIT, RETRY_AFTER_MS
from wire.errors import Code, TidelogError
from wire.partition_messages.jetstream import PublishHeaders, wrong_message_id
from wire.protobuf.tidelog_pb2 import Message
from wire.types import Offset

if TYPE_CHECKING:
    from dataplane.broker.leading.repetitions import Repetitions
    from dataplane.broker.reading.readable_role import ReadableRole
    from dataplane.replica.leader.leader import Leader
    from dataplane.replica.replica_effects import LeaderEffect

MAX_WAITING: Final = 10_000
"""Refusals and repetitions of one partition that wait; one more is answered with BACKPRESSURE."""
_LOOK_EVERY: Final = 0.02
"""Seconds between two looks at whether a controller has been heard."""


@dataclass(frozen=True, slots=True)
class ExpectationReply:
    """The answer to a message whose expected place is taken, once that is committed."""

    reply: bytes
    error: TidelogError


@dataclass(frozen=True, slots=True)
class _Unproved:
    reply: bytes
    error: TidelogError
    came_at: float
    until: float


class PublishRules:
    """The rules of one leader. `refuse` answers with an error that another leader may contradict, `run` carries effects
    out."""

    def __init__(
        self,
        role: ReadableRole,
        core: Leader,
        repetitions: Repetitions,
        run: Callable[[list[LeaderEffect]], None],
        refuse: Callable[[list[bytes | None], TidelogError], None],
        refuse_envelope: Callable[[EnvelopeReply, TidelogError], None],
    ) -> None:
        self._role = role
        self._context = role.context
        self._core = core
        self._repetitions = repetitions
        self._run = run
        self._refuse = refuse
        self._refuse_envelope = refuse_envelope
        self._unproved: deque[_Unproved] = deque()
        self._looking = False
        self.waiting = 0
        """Answers that were given to the core, and have not come back."""

    # ------------------------------------------------------------------ Rules of `dataplane.broker.leading.ingest`
    # `reply`: None where no answer is wanted, or none is given.

    # R46: A bare publish may expect the last sequence or the last message id of the log. The leader compares, and
    # refuses only once the refusal holds for every leader: when the record that took the place is committed, or, where
    # the log ends below the expected place or has another last id, when a controller has counted on this leadership
    # after the message came (R29). After `confirm_timeout_ms`, or at the end of the leadership, the answer is
    # OUTCOME_UNKNOWN. Other headers of JetStream that streams do not have are refused by the message alone.
    # Hazard: A publisher that compares and sets is told "not stored" by the old leader, and the new one has stored it.
    def before(self, ingest: Ingest, wanted: PublishHeaders, reply: bytes | None) -> bool:
        """Whether the message is settled without a look at its message id. May seal the open batch."""
        if reply is None or not wanted.asks_for_more:
            return False
        view = self._role.view
        error = wanted.refuse(view.key.stream, view.subject)
        if error is not None:
            self._drop(reply, error)
            return True
        for end in wanted.expected_ends():
            ingest.seal_open()
            if end != self._core.log_end_offset:
                self._refuse_end(reply, end)
                return True
        return False

    def repeated(self, message_id: bytes, reply: bytes | None) -> bool:
        """The message is in the log: it is answered."""
        offset = self._repetitions.find(message_id)
        if offset is None:
            return False
        self._context.counters.repeated_records += 1
        if reply is not None:
            level = self._level
            token = BareReplies([(offset, [reply])], needs_lease=level.is_local, is_repetition=True, is_counted=True)
            self._await(level, Offset(offset + 1), token, reply)
        return True

    def may_know(self, message_ids: Collection[bytes]) -> bool:
        return self._repetitions.may_hold(message_ids)

    def refuse_ids(self, new: int) -> TidelogError | None:
        return self._repetitions.refuse(new)

    def repeated_envelope(self, message_id: bytes, message: Message) -> bool:
        offset = self._repetitions.find(message_id)
        if offset is None:
            return False
        self._context.counters.repeated_records += 1
        if envelope_waits(message):
            level = self._level if envelope_waits_for_all(message) else ack_level(self._role.view, by_leader=True)
            view, now_ns = self._role.view, self._context.time_ns()
            token = EnvelopeReply(message, view.subject, offset, now_ns, level.is_local, is_counted=True)
            if self.waiting >= MAX_WAITING:
                self._refuse_envelope(token, self._too_many())
            else:
                self._wait(level, Offset(offset + 1), token)
        return True

    # Keeps R46.
    def after(self, ingest: Ingest, wanted: PublishHeaders, reply: bytes | None) -> bool:
        """Whether the message, which is no repetition, is settled."""
        message_id = wanted.message_id
        if message_id is not None:
            error = self._repetitions.refuse(ingest.open_ids + 1)
            if error is not None:
                self._drop(reply, error)
                return True
        if reply is None or not wanted.asks_for_more:
            return False
        expected = wanted.last_message_id
        if expected is not None:
            last = ingest.last_id() if ingest.open_records else self._repetitions.last_id(self._core.log_end_offset)
            if last != kept_form(expected):
                self._refuse_id(reply, expected, last)
                return True
        error = wanted.refuse_new(self._role.view.key.stream)
        if error is not None:
            self._drop(reply, error)
            return True
        return False

    # ------------------------------------------------------------------ refusals
    @property
    def _level(self) -> AckLevel:
        return ack_level(self._role.view)

    def _drop(self, reply: bytes | None, error: TidelogError) -> None:
        self._context.counters.dropped_refused += 1
        if reply is not None:
            self._refuse([reply], error)

    def _refuse_end(self, reply: bytes, expected: int) -> None:
        end = self._core.log_end_offset
        error = TidelogError(
            Code.INCORRECT_OFFSET,
            f"the next record of {self._role.view.key} gets sequence {end + 1}, not the one after the expected last"
            f" sequence {expected if expected >= 0 else '(no number)'}; read what was written, and decide again",
            [LAST_OFFSET.of(end - 1)],
        )
        if expected < 0 or len(self._role.view.replicas) == 1:
            self._say(reply, error)
        elif expected < end:
            level = AckLevel(is_local=False, is_synced=self._role.view.config.is_durable)
            self._context.counters.dropped_refused += 1
            self._await(level, Offset(expected + 1), ExpectationReply(reply, error), reply)
        else:
            self._prove(reply, error)

    def _refuse_id(self, reply: bytes, expected: bytes, last: bytes | None) -> None:
        error = wrong_message_id(expected, last)
        if len(self._role.view.replicas) == 1:
            self._say(reply, error)
        else:
            self._prove(reply, error)

    def _say(self, reply: bytes, error: TidelogError) -> None:
        """It holds of every leader."""
        self._context.counters.dropped_refused += 1
        self._role.answers.bare_error([reply], error)

    def _await(self, level: AckLevel, end: Offset, token: object, reply: bytes) -> None:
        if self.waiting >= MAX_WAITING:
            self._refuse([reply], self._too_many())
            return
        self._wait(level, end, token)

    def _wait(self, level: AckLevel, end: Offset, token: object) -> None:
        self.waiting += 1
        timeout = self._role.view.config.confirm_timeout_ms / 1000
        self._run(self._core.await_ack(level, end, token, timeout, self._context.now()))
        self._role.timer.schedule()

    def _prove(self, reply: bytes, error: TidelogError) -> None:
        self._context.counters.dropped_refused += 1
        if len(self._unproved) >= MAX_WAITING:
            self._refuse([reply], self._too_many())
            return
        now = self._context.now()
        self._unproved.append(_Unproved(reply, error, now, now + self._role.view.config.confirm_timeout_ms / 1000))
        if not self._looking:
            self._looking = True
            self._context.loop.call_later(_LOOK_EVERY, self._look)

    def _look(self) -> None:
        self._looking = False
        now, waiting = self._context.now(), self._unproved
        while waiting and not self._role.ended:
            oldest = waiting[0]
            if self._context.metadata.led_at(oldest.came_at):
                waiting.popleft()
                self._role.answers.bare_error([oldest.reply], oldest.error)
            elif now >= oldest.until:
                waiting.popleft()
                self._refuse([oldest.reply], oldest.error)
            else:
                break
        if waiting and not self._role.ended:
            self._looking = True
            self._context.loop.call_later(_LOOK_EVERY, self._look)

    def _too_many(self) -> TidelogError:
        return TidelogError(
            Code.BACKPRESSURE,
            f"{MAX_WAITING} refusals and repetitions for {self._role.view.key} wait already; slow down",
            [RETRY_AFTER_MS.of(100), LIMIT.of("waiting_answers")],
        )

    def abandon(self) -> None:
        """The role ends."""
        for each in self._unproved:
            self._refuse([each.reply], each.error)
        self._unproved.clear()
