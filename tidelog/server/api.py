"""The JSON API over NATS, `<ns>.api.*`, answered by the broker that is the controller.

A micro service, so that `nats micro ls` finds it. The operations are declared in `wire.operations`;
`metadata.runtime.admin` carries them out. A refusal travels twice: as `Tidelog-Error…` headers and as `{"error": {…}}`.
A deposed controller that still has the subscriptions stays silent: its successor gets the request too. Every answer
names the cluster in `Tidelog-Cluster`; a request that names another one is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import cache
from importlib.metadata import version
from typing import Any

from metadata.runtime.service import MetadataService
from tidelog.runtime.micro import Answer, Service
from wire.errors import CLUSTER_HEADER, Code, TidelogError
from wire.json_codec import encode
from wire.operation import Handler, Operation, Refusal, handlers_of
from wire.subjects import Subjects
from wire.transport import Message, Transport

_log = logging.getLogger(__name__)

_version = cache(version)
"""Read from the disk once, not at the begin of each controller epoch: it does not change."""


class Api:
    """See the module. `on_controller` belongs to the service's `BrokerPort`."""

    def __init__(self, service: MetadataService, transport: Transport, subjects: Subjects) -> None:
        self._service = service
        self._transport = transport
        self._endpoints = {
            subjects.api(operation.name): self._serving(operation, handler)
            for operation, handler in handlers_of(service.admin).items()
        }
        self._micro: Service | None = None

    async def on_controller(self, is_controller: bool) -> None:
        """Begin or cease to answer."""
        if self._micro is not None:
            await self._micro.stop()
            self._micro = None
        if is_controller:
            self._micro = Service(
                self._transport,
                "tidelog",
                _version("tidelog"),
                "Durable, partitioned, replicated logs over NATS subjects",
                self._endpoints,
            )
            await self._micro.start()

    def _serving(self, operation: Operation[..., Any, Any], handler: Handler) -> Callable[[Message], Awaitable[Answer]]:
        async def serve(message: Message) -> Answer:
            if not self._service.is_controller:
                return None
            own = {CLUSTER_HEADER: self._service.cluster_id}
            try:
                self._check_cluster(message)
                return await self._carry_out(operation, handler, message), own
            except TidelogError as error:
                self._service.on_request_refused()
                _log.info("refused a request on %s: %s", message.subject, error)
                return encode(Refusal(error=error.to_json())), {**error.to_headers(), **own}

        return serve

    async def _carry_out(self, operation: Operation[..., Any, Any], handler: Handler, message: Message) -> bytes:
        """The one way to every handler: access is decided here, before it, and writes are logged after it."""
        request = operation.decode_request(message.data)
        answer = await handler(request)
        if operation.writes:
            _log.info("answered %s %s", operation.name, operation.stream_of(request) or "")
        return encode(answer)

    def _check_cluster(self, message: Message) -> None:
        """Raises TidelogError(WRONG_CLUSTER) where the request is for another cluster."""
        wanted = (message.headers or {}).get(CLUSTER_HEADER)
        if wanted is not None and wanted != self._service.cluster_id:
            raise TidelogError(
                Code.WRONG_CLUSTER,
                f"the request is for cluster {wanted}, this is cluster {self._service.cluster_id}; connect again",
            )
