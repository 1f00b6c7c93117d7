"""The last copy of a partition, and it is damaged: no replica leads, and the readable records are read here.

The log is not cut and nothing is appended. Consumers find it where they look for a leader, and get the committed
records below the damage and, where the damage was met in an open log, above it too. A request for a damaged record gets
DAMAGED; a consumer may go on behind it. Where the damage was met at the opening, "latest" and a time get DAMAGED, too.
The answer to `.append` names an operator's choices. Bare publishes get NATS's own "no responders": only a leader
answers them.

It ends when a sound replica leads after all, or when an operator accepts the loss.
"""

from __future__ import annotations

import contextlib
import logging

from dataplane.broker.reading.readable_role import ReadableRole
from dataplane.broker.roles.role import RoleSetup, RoleSubscriptions
from dataplane.log.recovery.damage import Damage
from dataplane.log.storage.log_errors import LogDamaged
from dataplane.replica.consumers import ConsumerEffect, ConsumerFetch, Consumers, Readable
from dataplane.replica.replica_effects import ServeConsumer
from wire.error_details import BROKER
from wire.errors import Code, CorruptData, TidelogError
from wire.messaging.transport import Message
from wire.partition_messages.append import decode_append
from wire.protobuf.tidelog_pb2 import FetchRequest
from wire.types import Offset, PartitionView

_log = logging.getLogger(__name__)


class DamagedReplica(ReadableRole):
    """Read only. `damage`: found by a reading of the whole log; None until that is done."""

    title = "remnant"

    def __init__(self, setup: RoleSetup) -> None:
        super().__init__(setup)
        self.damage: Damage | None = None
        self._high_watermark = setup.high_watermark
        self._consumers = Consumers(self.log.epochs, self.context.settings, leads=False)
        self._subscriptions = RoleSubscriptions(self.context.loop)

    # ------------------------------------------------------------------ beginning and end
    async def start(self) -> None:
        _log.error(
            "partition %s: the copy on %s is the last one and is damaged; it is served for reading as far as it goes",
            self.view.key, self.context.broker,
        )  # fmt: skip
        self.history.add(f"serves a damaged copy in LeaderEpoch {self.leader_epoch}", self.context.now())
        self.spawn(self._examine())
        ingest, subjects, key = self.context.ingest, self.context.subjects, self.view.key
        await self._subscriptions.make(
            lambda: ingest.subscribe(subjects.fetch(key.stream, key.partition), self._handler(self.on_read)),
            lambda: ingest.subscribe(
                subjects.leader(key.stream, key.partition), self._handler(self.on_leader_question)
            ),
            lambda: ingest.subscribe(subjects.append(key.stream, key.partition), self._handler(self._on_append)),
        )
        if self.is_over():
            await self._subscriptions.drop()

    def give_up_starting(self) -> None:
        self._subscriptions.give_up()

    async def _examine(self) -> None:
        with contextlib.suppress(LogDamaged):  # which the next reader meets too
            self.damage = await self.context.loop.run_in_executor(self.context.readers, self.log.checking.examine)

    async def _let_go(self, reason: str) -> None:
        self._subscriptions.give_up()
        self._run(self._consumers.refuse_all(TidelogError(Code.UNAVAILABLE, f"{reason}; read again")))
        await self._subscriptions.drop()

    @property
    def high_watermark(self) -> Offset:
        return self._high_watermark

    def on_view(self, view: PartitionView) -> None:
        self.view = view

    def on_space(self, no_space: bool) -> None:
        pass  # nothing is written here

    def on_disk(self, hangs: bool) -> None:
        pass  # nor waited for

    def on_connection(self, connected: bool) -> None:
        pass

    def on_log_start(self) -> None:
        pass  # nothing of a damaged log is removed

    def _tick(self) -> None:
        now = self.context.now()
        if self._consumers.are_due(now):
            self._run(self._consumers.expire(now, self._readable_from(Offset(0))))

    def _next_deadline(self) -> float:
        return self._consumers.next_deadline()

    def _on_synced(self, durable_end: Offset) -> None:
        pass

    # ------------------------------------------------------------------ publishers
    def _on_append(self, message: Message) -> None:
        if self.ended or not message.reply:
            return
        try:
            request, _ = decode_append(message.data)
        except CorruptData:
            return
        # No replica leads in this LeaderEpoch. A leader of another one, not known here yet, may get the request too.
        if (
            request.leader_epoch == self.leader_epoch
            and not self.requests.is_for_another(request)
            and self.requests.is_same_incarnation(request.stream_incarnation, request.partition_incarnation)
        ):
            key = self.view.key
            self.answers.error(
                message.reply,
                TidelogError(
                    Code.UNAVAILABLE,
                    f"the last copy of {key}, on {self.context.broker}, is damaged: nothing is stored until an operator"
                    f" accepts the loss (tidelog partition elect-unclean {key.stream} {key.partition}"
                    f" {self.context.broker}) or brings another copy",
                ),
            )

    # ------------------------------------------------------------------ consumers
    def _look_up(self, position: str, request: FetchRequest, inbox: str) -> None:
        if position != "earliest" and self.log.known_end > self.log.log_end_offset:
            # What was acknowledged behind the damage is not in the log as it was opened. A reader up to the end would
            # take the records before the damage for all there are.
            what = f"where it ends is not known; the sound records are those below offset {self._high_watermark}"
            self.answers.error(inbox, self._damaged(what))
            return
        match position:
            case "earliest":
                self._fetch_from(request, self.first_record, inbox, looked_up=True)
            case "latest":
                self._fetch_from(request, self._latest(request), inbox, looked_up=True)
            case _:
                self._read_for_consumer(inbox, self._fetch_from_time(request, self._latest(request), inbox))

    def _latest(self, request: FetchRequest) -> Offset:
        return self._high_watermark if request.read_uncommitted else max(self.last_stable_offset, self.first_record)

    def _on_consumer_fetch(self, fetch: ConsumerFetch) -> None:
        self._run(self._consumers.on_fetch(fetch, self._readable_from(fetch.offset), self.context.now()))

    def _readable_from(self, offset: Offset) -> Readable:
        behind = self._high_watermark <= offset < self.log.known_end
        return Readable(
            view=self.view,
            log_start_offset=self.first_record,
            log_end_offset=self.log.log_end_offset,
            high_watermark=self._high_watermark,
            last_stable_offset=self.last_stable_offset,
            refusal=self._damaged(f"offset {offset} lies behind the damage") if behind else None,
        )

    def _run(self, effects: list[ConsumerEffect]) -> None:
        for effect in effects:
            if isinstance(effect, ServeConsumer):
                self._serve(effect)
            else:
                self._refuse_reader(effect)

    def _read_failed(self, inbox: str, error: LogDamaged | CorruptData | TidelogError) -> None:
        self.answers.error(inbox, error if isinstance(error, TidelogError) else self._damaged(str(error)))

    def _damaged(self, what: str) -> TidelogError:
        return TidelogError(
            Code.DAMAGED,
            f"the last copy of {self.view.key}, on {self.context.broker}, is damaged here: {what}",
            [BROKER.of(self.context.broker)],
        )
