"""The JSON API over NATS, `<ns>.api.*`, answered by the broker that holds the controller's office.

A micro service, so that `nats micro ls` finds it. A refusal travels twice: as `Tidelog-Error…` headers and as
`{"error": {…}}`. Every answer names the cluster in `Tidelog-Cluster`; a request that names another one is refused.
A broker that has lost the office since it subscribed stays silent: its successor hears it too.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from importlib.metadata import version
from typing import Any, TypeAlias, TypeVar

from metadata.service import MetadataService
from tidelog.runtime.micro import Answer, Service
from wire.errors import CLUSTER_HEADER, Code, TidelogError
from wire.subjects import Subjects
from wire.transport import Message, Transport

_log = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 1 << 20

Request: TypeAlias = Mapping[str, Any]
Endpoint: TypeAlias = Callable[[Request], Awaitable[Mapping[str, Any]]]

_T = TypeVar("_T")

_version = cache(version)
"""Looked for on the disk, where it stays the same: once, not whenever an office begins."""


class Api:
    """See the module. `on_office` goes into `MetadataService.on_office`."""

    def __init__(self, service: MetadataService, transport: Transport, subjects: Subjects) -> None:
        self._service = service
        self._transport = transport
        self._endpoints: dict[str, Endpoint] = {
            subjects.api("stream.create"): self._create,
            subjects.api("stream.alter"): self._alter,
            subjects.api("stream.delete"): self._delete,
            subjects.api("stream.list"): self._list,
            subjects.api("stream.describe"): self._describe,
            subjects.api("metadata"): self._metadata,
            subjects.api("cluster.id"): self._cluster_id,
            subjects.api("cluster.status"): self._cluster_status,
            subjects.api("cluster.alter"): self._cluster_alter,
            subjects.api("producer.init"): self._producer_init,
            subjects.api("partition.move_leader"): self._move_leader,
            subjects.api("partition.unclean_elect"): self._unclean_elect,
        }
        self._micro: Service | None = None

    async def on_office(self, is_open: bool) -> None:
        """Begin or cease to answer."""
        if self._micro is not None:
            await self._micro.stop()
            self._micro = None
        if is_open:
            self._micro = Service(
                self._transport,
                "tidelog",
                _version("tidelog"),
                "Durable, partitioned, replicated logs over NATS subjects",
                {subject: self._serving(endpoint) for subject, endpoint in self._endpoints.items()},
            )
            await self._micro.start()

    def _serving(self, endpoint: Endpoint) -> Callable[[Message], Awaitable[Answer]]:
        async def serve(message: Message) -> Answer:
            if not self._service.in_office:
                return None
            own = {CLUSTER_HEADER: self._service.cluster_id}
            try:
                self._check_cluster(message)
                return json.dumps(await endpoint(_parse(message.data))).encode(), own
            except TidelogError as error:
                self._service.refused_requests += 1
                _log.info("refused a request on %s: %s", message.subject, error)
                return json.dumps({"error": error.to_json()}).encode(), {**error.to_headers(), **own}

        return serve

    def _check_cluster(self, message: Message) -> None:
        """Raises TidelogError(WRONG_CLUSTER) where the request is for another cluster."""
        wanted = (message.headers or {}).get(CLUSTER_HEADER)
        if wanted is not None and wanted != self._service.cluster_id:
            raise TidelogError(
                Code.WRONG_CLUSTER,
                f"the request is for cluster {wanted}, this is cluster {self._service.cluster_id}; connect again",
            )

    # ---- endpoints -------------------------------------------------------------------------------------------------

    async def _create(self, request: Request) -> Mapping[str, Any]:
        name = _take(request, "name", str)
        factor = request.get("replication_factor")
        return await self._service.create_stream(
            name,
            subject=_take(request, "subject", str) if request.get("subject") is not None else name,
            partitions=_take(request, "partitions", int) if request.get("partitions") is not None else 1,
            replication_factor=_take(request, "replication_factor", int) if factor is not None else None,
            config=_config(request),
        )

    async def _alter(self, request: Request) -> Mapping[str, Any]:
        return await self._service.alter_stream(_take(request, "name", str), _config(request), _unset(request))

    async def _delete(self, request: Request) -> Mapping[str, Any]:
        await self._service.delete_stream(_take(request, "name", str))
        return {}

    async def _list(self, _: Request) -> Mapping[str, Any]:
        return self._service.list_streams()

    async def _describe(self, request: Request) -> Mapping[str, Any]:
        return await self._service.describe_stream(_take(request, "name", str))

    async def _metadata(self, request: Request) -> Mapping[str, Any]:
        return self._service.stream_metadata(_take(request, "stream", str))

    async def _cluster_id(self, _: Request) -> Mapping[str, Any]:
        return {"cluster_id": self._service.cluster_id}

    async def _cluster_status(self, _: Request) -> Mapping[str, Any]:
        return await self._service.cluster_status()

    async def _cluster_alter(self, request: Request) -> Mapping[str, Any]:
        return await self._service.alter_cluster(_config(request), _unset(request))

    async def _producer_init(self, _: Request) -> Mapping[str, Any]:
        return await self._service.init_producer()

    async def _move_leader(self, request: Request) -> Mapping[str, Any]:
        return await self._service.move_leader(
            _take(request, "stream", str), _take(request, "partition", int), _take(request, "broker", str)
        )

    async def _unclean_elect(self, request: Request) -> Mapping[str, Any]:
        return await self._service.unclean_elect(
            _take(request, "stream", str),
            _take(request, "partition", int),
            _take(request, "broker", str),
            accept_loss=request.get("accept_loss") is True,
        )


def _parse(data: bytes) -> Request:
    if len(data) > MAX_REQUEST_BYTES:
        raise TidelogError(Code.BAD_REQUEST, f"a request of {len(data)} bytes is above {MAX_REQUEST_BYTES}")
    try:
        request = json.loads(data) if data else {}
    except ValueError as error:
        raise TidelogError(Code.BAD_REQUEST, f"the request is not JSON: {error}") from None
    if not isinstance(request, dict):
        raise TidelogError(Code.BAD_REQUEST, "the request is not a JSON object")
    return request


def _config(request: Request) -> dict[str, str]:
    config = request.get("config") or {}
    if not isinstance(config, dict) or not all(isinstance(value, str) for value in config.values()):
        raise TidelogError(Code.BAD_REQUEST, "config is not an object of texts")
    return config


def _unset(request: Request) -> list[str]:
    names = request.get("unset") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TidelogError(Code.BAD_REQUEST, "unset is not a list of texts")
    return names


def _take(request: Request, name: str, kind: type[_T]) -> _T:
    value = request.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = {"str": "a text", "int": "a whole number"}.get(kind.__name__, kind.__name__)
        raise TidelogError(Code.BAD_REQUEST, f"the request's {name} is {json.dumps(value)}, not {wanted}")
    return value
