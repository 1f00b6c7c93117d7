"""The broker's answers to the controller: probes, which renew the lease, requests to drain, and status requests."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from metadata.lease import Lease
from metadata.raft import RaftStatus
from metadata.references import key_of
from metadata.runtime.context import MetadataContext
from metadata.runtime.namespace import Namespace
from wire import metadata_pb2 as pb
from wire.errors import Code, TidelogError
from wire.operation import Refusal
from wire.reports import BrokerReport, StreamReport
from wire.transport import Message, Subscription
from wire.types import BrokerId, LeaderEpoch, LeaderMove, StreamName

_log = logging.getLogger(__name__)

MAX_STATUS_REQUEST_BYTES = 4096
MAX_CONNECTED_S = 3600.0
"""Limit of the connection's age that an answer to a probe states."""


class ControllerRequests:
    """`labels`: read anew for each answer to a probe. `raft_status`: None before the Raft node has started.
    `deliver_applied`: tell the roles of this broker what is applied, if they have not heard of it yet. `folder`: of its
    data, for messages."""

    def __init__(
        self,
        context: MetadataContext,
        namespace: Namespace,
        labels: Mapping[str, str],
        raft_status: Callable[[], RaftStatus | None],
        deliver_applied: Callable[[], None],
        folder: str,
    ) -> None:
        self._context = context
        self._namespace = namespace
        self._labels = labels
        self._raft_status = raft_status
        self._deliver_applied = deliver_applied
        self._folder = folder
        self._lease = Lease(context.settings)
        self._probes_of_unknown_epoch = 0

    async def subscribe(self) -> list[Subscription]:
        transport, subjects, broker = self._context.transport, self._context.subjects, self._context.broker_id
        return [
            await transport.subscribe(subject, handler)
            for subject, handler in (
                (subjects.probe(broker), self._on_probe),
                (subjects.broker_status(broker), self._on_status_request),
                (subjects.drain(broker), self._on_drain_request),
            )
        ]

    def lease_valid(self, now: float) -> bool:
        return self._lease.is_valid(now)

    def led_at(self, moment: float) -> bool:
        return self._lease.proves(moment)

    def _on_probe(self, message: Message) -> None:
        context = self._context
        probe = context.messages.decode(pb.Probe, message)
        if probe is None or message.reply is None:
            return
        if probe.newcomer:
            self._answer_newcomer(probe, message.reply)
            return
        if not self._namespace.is_ours(probe.cluster_id, probe.controller):
            # That controller takes the first answer, which must be the one of its own broker of this name.
            return
        # A generation proves the lease once it is applied, and a leader that it deposes must not believe in that lease.
        self._deliver_applied()
        state, now = context.state, context.monotonic()
        # A probe that was meant for another life of this broker may be a copy.
        if probe.incarnation == context.incarnation and not self._lease.on_probe(
            probe, controller_epoch=state.controller_epoch, generation=state.generation, now=now
        ):
            self._probes_of_unknown_epoch += 1
            _log.info(
                "broker %s ignores a probe of controller epoch %d for its lease: %d is applied here",
                context.broker_id, probe.controller_epoch, state.controller_epoch,
            )  # fmt: skip
        elif probe.incarnation == context.incarnation:
            context.clock.on_probe(probe, self._lease.age_of(probe.controller_epoch, probe.answered, now))
        connected_for = now - context.transport.connected_since
        answer = pb.ProbeAnswer(
            broker=context.broker_id,
            life_id=context.life_id,
            incarnation=context.incarnation or 0,
            number=probe.number,
            generation=state.generation,
            labels=dict(self._labels),
            room=context.port.room().value,
            disk_hangs=context.port.disk_hangs(),
            nats_server=context.transport.server_id,
            connected_ms=int(1000 * min(MAX_CONNECTED_S, max(0.0, connected_for))),
            time_ns=context.clock.wall_ns(),
        )
        context.messages.answer(message.reply, answer.SerializeToString(), "the answer to a probe")

    def _answer_newcomer(self, probe: pb.Probe, reply: str) -> None:
        """A process is about to register under this broker's id."""
        context = self._context
        is_ours = not probe.cluster_id or self._namespace.is_ours(probe.cluster_id, context.broker_id)
        if context.incarnation is None or probe.newcomer == context.life_id or not is_ours:
            return
        answer = pb.ProbeAnswer(
            broker=context.broker_id,
            life_id=context.life_id,
            incarnation=context.incarnation,
            labels=dict(self._labels),
            data_dir=self._folder,
        )
        _log.warning("another process wants to register as broker %s, and is told to end", context.broker_id)
        context.messages.answer(reply, answer.SerializeToString(), "the answer to a newcomer")

    def _on_drain_request(self, message: Message) -> None:
        context = self._context
        request, reply = context.messages.decode(pb.DrainRequest, message), message.reply
        if request is None or reply is None or not self._namespace.is_ours(request.cluster_id, "its controller"):
            return
        move = LeaderMove(
            key=key_of(request.partition),
            leader=context.broker_id,
            leader_epoch=LeaderEpoch(request.leader_epoch),
            target=BrokerId(request.target),
        )

        def answer(error: TidelogError | None) -> None:
            context.transport.publish(reply, [b""], headers=error.to_headers() if error is not None else None)

        # This process may have stood still with the request unread, and another may lead since. The request itself says
        # that the controller counted on this broker when that answer had arrived, as a probe does.
        age = self._lease.age_of(request.controller_epoch, request.answered, context.monotonic())
        settings = context.settings
        left = min(request.timeout_ms / 1000, settings.drain_timeout_s, settings.leader_lease_s) - age
        if left > 0:
            context.port.drain_leader(move, left, answer)
        else:
            answer(
                TidelogError(
                    Code.LEADER_NOT_MOVED,
                    f"broker {context.broker_id} read the request to hand over {move.key} too late: another may lead by"
                    " now; look again",
                )
            )

    def _on_status_request(self, message: Message) -> None:
        context = self._context
        if message.reply is None:
            return
        request: Any = None
        if len(message.data) <= MAX_STATUS_REQUEST_BYTES:
            with contextlib.suppress(ValueError, RecursionError):
                request = json.loads(message.data)
        form: StreamReport | BrokerReport | Refusal
        asking = request.pop("cluster_id", None) if isinstance(request, dict) else None
        if isinstance(asking, str) and not self._namespace.is_ours(asking, "its controller"):
            return
        match request:
            case {"stream": str(stream)}:
                story_of = request.get("story_of")
                form = context.port.stream_report(StreamName(stream), story_of if isinstance(story_of, int) else None)
            case dict() if not request:
                form = self._broker_report()
            case _:
                error = TidelogError(
                    Code.BAD_REQUEST, 'a status request is {"stream": NAME}, or {} for the broker as a whole'
                )
                context.messages.drop(message.subject, message.data, error)
                form = Refusal(error=error.to_json())
        context.messages.answer(message.reply, json.dumps(form).encode(), "the status")

    def _broker_report(self) -> BrokerReport:
        report = self._context.port.broker_report()
        raft = self._raft_status()
        own = {
            "dropped_probes_of_unknown_epoch": self._probes_of_unknown_epoch,
            "dropped_raft_introductions": 0 if raft is None else raft.dropped_introductions,
            "dropped_metadata_messages": self._context.messages.dropped,
            "dropped_of_other_clusters": self._namespace.dropped,
            "dropped_claims": self._namespace.dropped_claims,
            "dropped_presence_questions": self._namespace.dropped_presence,
            **self._context.clock.counters(),
            "refused_api_requests": self._context.refused_requests,
            "dropped_api_requests": self._context.unqueued_requests,
        }
        refused = dict(report.get("refused_messages") or {})
        for address, count in () if raft is None else raft.unverified:
            refused[f"raft {address}".rstrip()] = {"secret": count}
        return {
            **report,
            "counters": {**report.get("counters", {}), **own},
            "refused_messages": refused,
            "clock": self._context.clock.report(),
        }
