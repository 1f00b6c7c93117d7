"""Ends of transactions at the leader: a coordinator asks on `.mark`, the marker goes into the log, and the coordinator
is answered when it is committed (R49).

    the producer's epoch is over here        its marker is in the log: answered when all of the log is committed
    it is not                                the marker is appended, and answered when it is committed

Both wait for the commit because a marker that is not committed may be lost with this leader. A coordinator that had an
answer before would forget a transaction that is open at the next leader, where consumers wait for its end.

A marker ends a transaction whose records were accepted before. So it is taken where records are not: by a stream that
is read-only, paused, or above its quota, and without the master key of an encrypted one, for it is not encrypted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from dataplane.replica.leader.ack_levels import AckLevel
from dataplane.replica.replies import MarkReply
from wire.batch import Marker, transaction_marker
from wire.budget import Bound, Budget
from wire.errors import TidelogError
from wire.internal_records.transaction_records import MAX_EPOCH
from wire.protobuf.tidelog_pb2 import EndTransactionRequest
from wire.types import FIRST_TRANSACTIONAL_ID

if TYPE_CHECKING:
    from dataplane.broker.leading.appending import Appending
    from dataplane.broker.reading.readable_role import ReadableRole
    from dataplane.replica.leader.leader import Leader
    from dataplane.replica.replica_effects import LeaderEffect
    from wire.messaging.transport import Message

WAITING_MARKS: Final = Bound(
    on="ends of transactions that wait for their commit",
    name="waiting_marks",
    per="a partition",
    items=10_000,
    answer="BACKPRESSURE",
)


class TransactionMarks:
    """Takes the markers of one leader. `run` carries effects of the core out."""

    def __init__(
        self, role: ReadableRole, core: Leader, appending: Appending, run: Callable[[list[LeaderEffect]], None]
    ) -> None:
        self._role = role
        self._context = role.context
        self._core = core
        self._appending = appending
        self._run = run
        self._waiting = Budget(WAITING_MARKS, role.view.key)

    # R49: A marker is answered when it is committed. If the producer's epoch in the log is above the asked one, the
    # marker is there already, and the answer waits until all of the present log is committed; otherwise the leader
    # appends it. A repeated request, or one of a deposed coordinator, changes nothing. A read-only or paused
    # partition, one above its quota, and a leader without the master key take markers.
    # Hazard: A marker that is lost with its leader after the coordinator has forgotten the transaction.
    def on_mark(self, message: Message) -> None:
        if self._role.ended or not message.reply:
            return
        request = EndTransactionRequest()
        if not self._role.requests.decode("mark", request, message):
            return
        if request.producer_id < FIRST_TRANSACTIONAL_ID or not 0 <= request.producer_epoch <= MAX_EPOCH:
            why = f"names producer {request.producer_id} in epoch {request.producer_epoch}, which has no transactions"
            self._role.requests.refuse_bad_of_peer("mark", message, why)
            return
        error = self._mark(request, message.reply)
        if error is not None:
            self._role.peer_answers.error(message.reply, error)
        self._role.timer.schedule()

    def _mark(self, request: EndTransactionRequest, inbox: str) -> TidelogError | None:
        """The error to answer with at once."""
        now, view = self._context.now(), self._role.view
        if self._waiting.full():
            return self._waiting.refuse()
        level = AckLevel(is_local=False, is_synced=view.config.is_durable)  # the HW
        timeout = view.config.confirm_timeout_ms / 1000
        token = MarkReply(inbox)
        epoch = self._role.log.producers.epoch_of(request.producer_id)
        if epoch is not None and epoch > request.producer_epoch:
            self._waiting.take()
            self._run(self._core.await_ack(level, self._core.log_end_offset, token, timeout, now))
            return None
        error = self._core.admission.refuse_marker(now)
        if error is not None:
            return error
        marker = transaction_marker(
            request.producer_id,
            request.producer_epoch + 1,
            Marker.COMMIT if request.commits else Marker.ABORT,
            self._context.time_ns(),
        )
        self._appending.seal()  # it comes behind all that was published until now
        header = self._appending.append(marker)
        if isinstance(header, TidelogError):
            return header
        self._waiting.take()
        effects = self._core.await_ack(level, header.end_offset, token, timeout, now)
        self._run([*effects, *self._core.on_appended(header.end_offset, header.size, now)])
        return None

    def complete(self, token: MarkReply, error: TidelogError | None) -> None:
        self._waiting.release()
        if error is None:
            self._role.peer_answers.done(token.inbox)
        else:
            self._role.peer_answers.error(token.inbox, error)
