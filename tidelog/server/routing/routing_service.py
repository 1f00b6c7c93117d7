"""Routing requests that clients send to any broker: the topology, and their reports of adoption
(`wire.operations.stream_routes`, `wire.operations.adoption_report`).

Clients have no tags as brokers have, so that everything here may be forged: requests wait in bounded queues, requests
that ask the same share an answer, and all of them together get a bounded share of the loop's time
(`tidelog.nats.micro`). A broker without contact to a controller for as long as its lease refuses to give routes, which
may be old; another one answers when the client asks again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from time import thread_time
from typing import Any

from metadata.cluster.model import Changes
from metadata.runtime.metadata_service import MetadataService
from tidelog.nats.micro import Answer, Endpoint, Service
from tidelog.server.routing.client_sessions import AdoptionSessions
from tidelog.server.routing.topology_pages import TopologyPages, decoded
from wire.echo import echo
from wire.error_details import RETRY_AFTER_MS
from wire.errors import CLUSTER_HEADER, Code, TidelogError
from wire.messaging.transport import Message, Transport
from wire.operations.adoption_report import MAX_REPORT_BYTES, SESSION_TTL_S, AdoptionReport
from wire.operations.json_codec import decode, encode
from wire.operations.operation import Refusal
from wire.subjects import Subjects
from wire.types import StreamName

_log = logging.getLogger(__name__)

QUEUE = "topology"
"""The queue of all brokers: one of them answers."""
RETRY_AFTER_S = 0.05
"""Seconds for a client that is refused because this broker may know old routes only."""


class RoutingRequests:
    """See the module. `metadata` is the broker's service; `now`: monotonic seconds."""

    def __init__(
        self,
        metadata: MetadataService,
        transport: Transport,
        subjects: Subjects,
        now: Callable[[], float],
        work_time: Callable[[], float] = thread_time,
    ) -> None:
        self._metadata = metadata
        self._transport = transport
        self._now = now
        self.sessions = AdoptionSessions()
        self._repartitioned: set[StreamName] = set()
        """Streams that are being repartitioned."""
        self.unqueued = 0
        """Requests dropped because their queue was full."""
        self.pages = TopologyPages(
            metadata.state,
            metadata.broker_id,
            subjects,
            lambda: metadata.stream_changes,
            transport.max_payload,
        )
        self._service = Service(
            transport,
            "tidelog-routing",
            "0",
            "",
            {
                subjects.topology(): Endpoint(
                    self._answering(self._tell_topology),
                    lambda message: (message.data, _cluster_in(message)),
                    queue=QUEUE,
                ),
                subjects.topology("*"): Endpoint(
                    self._answering(self._tell_stream),
                    lambda message: (message.subject, message.data, _cluster_in(message)),
                    queue=QUEUE,
                ),
                subjects.adopt(metadata.broker_id): Endpoint(self._answering(self._take_report)),
            },
            self._on_unqueued,
            work_time,
            headers=self._own_headers,
            is_listed=False,
        )

    async def start(self) -> None:
        await self._service.start()

    async def close(self) -> None:
        await self._service.stop()

    def observe(self, changes: Changes) -> None:
        """Takes the changes of an applied command, or of a snapshot."""
        self.pages.on_changes(changes)
        for name in {*changes.repartitioned, *(key.stream for key in changes.gone)}:
            stream = self._metadata.state.streams.get(name)
            if stream is not None and stream.repartition is not None:
                self._repartitioned.add(name)
            else:
                self._repartitioned.discard(name)

    def adopted(self) -> dict[str, int]:
        """Returns, by stream that is being repartitioned, the oldest routing generation that a session has applied;
        streams that no session names are missing."""
        return self.sessions.minimum(self._repartitioned, self._now())

    def counters(self) -> dict[str, int]:
        """Returns the counters for the broker's status."""
        return {
            "topology_adoption_min": min(self.adopted().values(), default=0),
            "topology_adoption_sessions": len(self.sessions),
            "refused_adoption_reports": self.sessions.refused,
            "dropped_routing_requests": self.unqueued,
        }

    def _answering(self, serve: Callable[[Message], Awaitable[bytes]]) -> Callable[[Message], Awaitable[Answer]]:
        async def answer(message: Message) -> Answer:
            own = self._own_headers()
            try:
                self._check_cluster(message)
                return await serve(message), own
            except TidelogError as error:
                return encode(Refusal(error=error.to_json())), {**error.to_headers(), **own}

        return answer

    async def _tell_topology(self, message: Message) -> bytes:
        if not self._metadata.lease_valid(self._now()):
            raise TidelogError(
                Code.UNAVAILABLE,
                f"broker {self._metadata.broker_id} has heard no controller for a while and may know old routes only;"
                " ask again, another broker may answer",
                [RETRY_AFTER_MS.of(int(1000 * RETRY_AFTER_S))],
            )
        self.pages.max_payload = self._transport.max_payload
        return await self.pages.page(message.data)

    async def _tell_stream(self, message: Message) -> bytes:
        """Returns the routes of the stream that the subject names, for which NATS has let the client ask."""
        name = message.subject.rpartition(".")[2]
        asked = decoded(message.data).streams
        if asked != [name]:
            raise TidelogError(
                Code.BAD_REQUEST,
                f"the request names the streams {echo(asked)}, and its subject {echo(name)}; name that one alone",
            )
        return await self._tell_topology(message)

    async def _take_report(self, message: Message) -> bytes:
        if len(message.data) > MAX_REPORT_BYTES:
            raise TidelogError(
                Code.BAD_REQUEST,
                f"a report of adoption of {len(message.data)} bytes is above {MAX_REPORT_BYTES}; name fewer streams",
            )
        try:
            report = decode(AdoptionReport, message.data, "the report")
        except ValueError as error:
            raise TidelogError(Code.BAD_REQUEST, str(error)) from None
        origin = (message.reply or "").rpartition(".")[0]
        self.sessions.report(report, origin, self._now())
        return encode({"ttl_ms": int(1000 * SESSION_TTL_S)})

    def _check_cluster(self, message: Message) -> None:
        """Raises TidelogError(WRONG_CLUSTER) where the request names another cluster."""
        wanted = _cluster_in(message)
        if wanted is not None and wanted != self._metadata.cluster_id:
            raise TidelogError(
                Code.WRONG_CLUSTER,
                f"the request is for cluster {echo(wanted)}, this is {self._metadata.cluster_id}; connect again",
            )

    def _own_headers(self) -> Mapping[str, str]:
        return {CLUSTER_HEADER: self._metadata.cluster_id}

    def _on_unqueued(self) -> None:
        self.unqueued += 1


def _cluster_in(message: Message) -> Any:
    return (message.headers or {}).get(CLUSTER_HEADER)
