"""The broker's answers to the controller: probes, which renew the lease, requests to drain, and status requests."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from metadata.cluster.references import key_of
from metadata.controller.lease import Lease
from metadata.raft import RaftStatus
from metadata.runtime.driver_context import MetadataContext
from metadata.runtime.namespace import Namespace
from metadata.runtime.rounds import Rounds
from metadata.runtime.views import Told
from wire.errors import Code, TidelogError
from wire.messaging.transport import Message, Subscription
from wire.operations.json_codec import encoding
from wire.operations.operation import Refusal
from wire.operations.reports import BrokerReport, StreamReport, UsageReport
from wire.protobuf import metadata_pb2 as pb
from wire.turns import Steps, in_turns
from wire.types import BrokerId, LeaderEpoch, LeaderMove, StreamName

_log = logging.getLogger(__name__)

MAX_STATUS_REQUEST_BYTES = 4096
MAX_STATUS_REQUESTS = 1024
"""Limit of the requests that wait for their answers; equal requests share a report."""
MAX_CONNECTED_S = 3600.0
"""Limit of the connection's age that an answer to a probe states."""


class ControllerRequests:
    """`labels`: read anew for each answer to a probe. `raft_status`: None before the Raft node has started.
    `deliver_applied`: hands one turn of applied changes to the roles of this broker. `folder`: path of its data, for
    messages."""

    def __init__(
        self,
        context: MetadataContext,
        namespace: Namespace,
        labels: Mapping[str, str],
        raft_status: Callable[[], RaftStatus | None],
        deliver_applied: Callable[[], Told],
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
        self._rounds = Rounds()
        """Rounds in which reports are made."""
        self._status_requests = 0
        """Count of the requests that wait for their answers."""

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
            # That controller takes the first answer, which must come from its own broker of this name.
            return
        # A generation proves the lease once it is applied, and a leader that it deposes must not believe in that lease.
        told = self._deliver_applied()
        state, now = context.state, context.monotonic()
        # A probe that was meant for another incarnation of this broker may be a copy.
        if probe.incarnation == context.incarnation and not self._lease.on_probe(
            probe, controller_epoch=state.controller_epoch, generation=told.ended, now=now
        ):
            self._probes_of_unknown_epoch += 1
            _log.info(
                "broker %s ignores a probe of controller epoch %d for its lease: %d is applied here",
                context.broker_id, probe.controller_epoch, state.controller_epoch,
            )  # fmt: skip
        elif probe.incarnation == context.incarnation:
            if probe.controller_epoch == state.controller_epoch:
                # Keeps R88. A deposed controller may name brokers that have returned since.
                context.stopping_brokers = frozenset(map(BrokerId, probe.stopping))
            context.clock.on_probe(probe, self._lease.age_of(probe.controller_epoch, probe.answered, now))
        connected_for = now - context.transport.connected_since
        roles = context.port.role_progress()
        answer = pb.ProbeAnswer(
            broker=context.broker_id,
            life_id=context.life_id,
            incarnation=context.incarnation or 0,
            number=probe.number,
            generation=state.generation,
            begun=told.begun,
            labels=dict(self._labels),
            room=context.port.room().value,
            disk_hangs=context.port.disk_hangs(),
            nats_server=context.transport.server_id,
            connected_ms=int(1000 * min(MAX_CONNECTED_S, max(0.0, connected_for))),
            time_ns=context.clock.wall_ns(),
            roles_pending=roles.pending,
            roles_done=roles.done,
            stopping=context.is_stopping,
            leaving=context.is_leaving,
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

        # This process may have stood still with the request unread, and another may lead since. The request names the
        # newest answer that the controller had when it counted on this broker, as a probe does.
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
        asking = request.pop("cluster_id", None) if isinstance(request, dict) else None
        if isinstance(asking, str) and not self._namespace.is_ours(asking, "its controller"):
            return
        if self._status_requests >= MAX_STATUS_REQUESTS:
            context.messages.drop(message.subject, message.data, f"{MAX_STATUS_REQUESTS} status requests wait already")
            return
        report = self._report(request)
        if report is not None:
            context.tasks.spawn(self._tell_status(json.dumps(request, sort_keys=True), report, message.reply))
            return
        error = TidelogError(
            Code.BAD_REQUEST, 'a status request is {"stream": NAME}, {"usage": true}, or {} for the broker as a whole'
        )
        context.messages.drop(message.subject, message.data, error)
        context.messages.answer(message.reply, json.dumps(Refusal(error=error.to_json())).encode(), "the status")

    def _report(self, request: Any) -> Callable[[], Steps[StreamReport | BrokerReport | UsageReport]] | None:
        """Returns a function that makes the requested report. None: the request is not valid."""
        port = self._context.port
        match request:
            case {"stream": str(stream)}:
                history_of, partitions = request.get("history_of"), request.get("partitions")
                history = history_of if isinstance(history_of, int) else None
                numbers = [each for each in partitions if isinstance(each, int)] if isinstance(partitions, list) else []
                return lambda: port.stream_report(StreamName(stream), numbers, history)
            case {"usage": True}:
                after, upto = request.get("after"), request.get("upto")
                if isinstance(after, str) and isinstance(upto, str):
                    return lambda: port.usage_report(after, upto)
                return port.usage_report
            case dict() if not request:
                return self._broker_report
            case _:
                return None

    async def _tell_status(
        self, question: str, report: Callable[[], Steps[StreamReport | BrokerReport | UsageReport]], reply: str
    ) -> None:
        def encoded() -> Steps[bytes]:
            form = yield from report()
            return (yield from encoding(form))

        self._status_requests += 1
        try:
            data = await self._rounds.join(question, lambda: in_turns(encoded()))
        finally:
            self._status_requests -= 1
        self._context.messages.answer(reply, data, "the status")

    def _broker_report(self) -> Steps[BrokerReport]:
        report = yield from self._context.port.broker_report()
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
