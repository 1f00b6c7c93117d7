"""The JSON API over NATS, `<ns>.api.<operation>[.<stream>]`, answered by the broker that is the controller.

A micro service, so that `nats micro ls` finds it. The operations are declared in `wire.operations.api_operations`;
`metadata.runtime.admin_answers` carries them out. A refusal travels twice: as `Tidelog-Error…` headers and as
`{"error": {…}}`. A deposed controller that still has the subscriptions stays silent: its successor gets the request
too. Every answer names the cluster in `Tidelog-Cluster`; a request that names another one is refused.

Requests of operations that read share answers: many equal ones at a time cost as much as one of them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import version
from time import thread_time
from typing import Any

from metadata.runtime.metadata_service import MetadataService
from tidelog.nats.micro import Answer, Endpoint, Service
from tidelog.server.audit.audit_trail import Act, AuditTrail
from wire.echo import echo
from wire.errors import CLUSTER_HEADER, Code, TidelogError
from wire.messaging.transport import Message, Transport
from wire.operations.json_codec import encode, encoding
from wire.operations.operation import Handler, Operation, Refusal, handlers_of
from wire.subjects import Subjects
from wire.turns import in_turns

_log = logging.getLogger(__name__)

_version = cache(version)
"""Text read from the disk once, not at the begin of each controller epoch, because it does not change."""


class Api:
    """See the module. `handed_over` have the handlers of the operations that the controller hands over.
    `on_controller` belongs to the service's `BrokerPort`."""

    def __init__(
        self,
        service: MetadataService,
        transport: Transport,
        subjects: Subjects,
        audit: AuditTrail,
        handed_over: Iterable[object],
        work_time: Callable[[], float] = thread_time,
    ) -> None:
        self._service = service
        self._audit = audit
        self._work_time = work_time
        self._transport = transport
        self._subjects = subjects
        self._endpoints = {
            subjects.api(operation.name, "*" if operation.named else None): Endpoint(
                self._serving(operation, handler), partial(_question, operation) if operation.is_shared else None
            )
            for owner in (
                service.admin,
                service.admin.repartitions,
                service.admin.reassignments,
                service.admin.membership,
                *handed_over,
            )
            for operation, handler in handlers_of(owner).items()
        }
        self._micro: Service | None = None
        self._is_closed = False

    async def on_controller(self, is_controller: bool) -> None:
        """Begins or ceases to answer."""
        if self._micro is not None:
            await self._micro.stop()
            self._micro = None
        if is_controller and not self._is_closed:
            self._micro = Service(
                self._transport,
                "tidelog",
                _version("tidelog"),
                "Durable, partitioned, replicated logs over NATS subjects",
                self._endpoints,
                self._service.on_request_unqueued,
                self._work_time,
                headers=self._own_headers,
            )
            await self._micro.start()

    async def close(self) -> None:
        """Ends with the broker: no act is carried out any more; those in work end with an unknown outcome."""
        self._is_closed = True
        await self.on_controller(False)

    def _serving(self, operation: Operation[..., Any, Any], handler: Handler) -> Callable[[Message], Awaitable[Answer]]:
        async def serve(message: Message) -> Answer:
            if not self._service.is_controller:
                return None
            own = self._own_headers()
            try:
                with self._audit.act(operation, message) as act:
                    self._check_cluster(message)
                    return await self._carry_out(operation, handler, message, act), own
            except TidelogError as error:
                self._service.on_request_refused()
                _log.info("refused a request on %s: %s", message.subject, error)
                return encode(Refusal(error=error.to_json())), {**error.to_headers(), **own}

        return serve

    async def _carry_out(
        self, operation: Operation[..., Any, Any], handler: Handler, message: Message, act: Act
    ) -> bytes:
        """Carries out a request; the only way to every handler. Access is decided here, before the handler."""
        act.request = request = operation.decode_request(message.data)
        self._check_subject(operation, request, message.subject)
        return await in_turns(encoding(await handler(request)))

    def _check_subject(self, operation: Operation[..., Any, Any], request: object, subject: str) -> None:
        """Checks that the request is about the name in its subject, for which NATS has given permission. Raises
        TidelogError(BAD_REQUEST)."""
        name, kind = operation.name_in(request), operation.kind_named
        if subject != self._subjects.api(operation.name, name):
            raise TidelogError(
                Code.BAD_REQUEST,
                f"the request is about {kind} {name!r:.80} and was sent to {subject!r}; name the same {kind} in both",
            )

    def _own_headers(self) -> dict[str, str]:
        """Returns the headers of every answer. A client drops answers of other clusters in its namespace, and waits for
        its own cluster's."""
        return {CLUSTER_HEADER: self._service.cluster_id}

    def _check_cluster(self, message: Message) -> None:
        """Raises TidelogError(WRONG_CLUSTER) where the request is for another cluster."""
        wanted = (message.headers or {}).get(CLUSTER_HEADER)
        if wanted is not None and wanted != self._service.cluster_id:
            raise TidelogError(
                Code.WRONG_CLUSTER,
                f"the request is for cluster {echo(wanted)}, this is cluster {self._service.cluster_id}; connect again",
            )


def _question(operation: Operation[..., Any, Any], message: Message) -> Hashable:
    """Returns the key of shared answers: all that the answer depends on, besides the state of the cluster. Requests
    that differ only in their spelling, such as in blanks or in unknown fields, have the same key."""
    asked: Hashable = message.data
    with suppress(TidelogError):  # the refusal of such a request shows its bytes
        asked = operation.decode_request(message.data)
    return message.subject, asked, (message.headers or {}).get(CLUSTER_HEADER)
