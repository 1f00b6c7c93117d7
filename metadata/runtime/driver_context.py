"""The parts of the metadata service that all its drivers use: background tasks, messages of brokers, and their context.

A task that fails is logged; all are cancelled when the service closes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Protobuf

from metadata.commands.cluster_state import ClusterState
from metadata.controller.controller import ControllerCore
from metadata.controller.metadata_settings import MetadataSettings
from metadata.runtime.applied_state import AppliedWaits
from metadata.runtime.broker_clock import BrokerClock
from metadata.runtime.metadata_ports import BrokerPort
from wire.errors import TidelogError
from wire.messaging.transport import Message, PeerTransport, answer_too_large
from wire.security.producer_keys import ProducerKeys
from wire.subjects import Subjects
from wire.types import BrokerId, Incarnation

_log = logging.getLogger(__name__)


class Tasks:
    def __init__(self, broker_id: BrokerId) -> None:
        self._id = broker_id
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start `work`; after `end` nothing is started."""
        if self._closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def end(self) -> None:
        """Cancel all tasks, without waiting for them."""
        self._closed = True
        for task in [*self._tasks]:
            task.cancel()

    async def wait_ended(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the metadata service of broker %s met a bug", self._id, exc_info=error)


MAX_MESSAGE_BYTES = 1 << 20
"""Limit of a message between brokers and controllers, and of a Raft command: items of messages are looked at one by
one."""

LOG_INTERVAL_S = 10.0
"""Pause between log lines about one subject: a line costs more than all else about a dropped message, and any NATS
client may publish on the subject of claims."""
MAX_LOGGED = 64
"""Limit of the subjects that are remembered for that; all are forgotten when one more comes."""

_Message = TypeVar("_Message", bound=Protobuf)


class Messages:
    def __init__(self, broker_id: BrokerId, transport: PeerTransport, monotonic: Callable[[], float]) -> None:
        self._id = broker_id
        self._monotonic = monotonic
        self._logged: dict[str, float] = {}
        """Times of the last log line, by subject."""
        self._transport = transport
        self.dropped = 0
        """Count of messages that did not decode."""

    def decode(self, kind: type[_Message], message: Message) -> _Message | None:
        """Returns None when the message is too large or does not decode: it is counted and logged."""
        return self.decode_data(kind, message.subject, message.data, MAX_MESSAGE_BYTES)

    def decode_data(self, kind: type[_Message], subject: str, data: bytes, most: int) -> _Message | None:
        """Decodes bytes that came on a subject, as `decode` does; at most `most` of them."""
        if len(data) > most:
            self.drop(subject, data, f"the limit is {most} bytes")
            return None
        try:
            return kind.FromString(data)
        except DecodeError as error:
            self.drop(subject, data, error)
            return None

    def drop(self, subject: str, data: bytes, error: object) -> None:
        self.dropped += 1
        now = self._monotonic()
        logged = self._logged.get(subject)
        if logged is not None and now - logged < LOG_INTERVAL_S:
            return
        if len(self._logged) >= MAX_LOGGED:
            self._logged.clear()
        self._logged[subject] = now
        _log.warning("dropped a message of %d bytes on %s: %s", len(data), subject, error)

    def answer(self, inbox: str, data: bytes, what: str) -> None:
        """Publishes an answer. If it is larger than a message may be, the error is published in its place."""
        try:
            self._transport.publish(inbox, [data])
        except TidelogError as error:
            refusal = answer_too_large(error, f"{what} of broker {self._id}")
            _log.error("%s", refusal.message)
            self._transport.publish(inbox, [b""], headers=refusal.to_headers())


@dataclass(slots=True, kw_only=True)
class MetadataContext:
    broker_id: BrokerId
    life_id: str
    """Unique to this process."""
    state: ClusterState
    core: ControllerCore
    port: BrokerPort
    transport: PeerTransport
    subjects: Subjects
    settings: MetadataSettings
    monotonic: Callable[[], float]
    clock: BrokerClock
    tasks: Tasks
    messages: Messages
    producer_keys: ProducerKeys
    applied: AppliedWaits = field(default_factory=AppliedWaits)
    incarnation: Incarnation | None = None
    """The incarnation of this process, once registered; while the broker is declared dead, the one that died."""
    refused_requests: int = 0
    """Count of the requests of clients and operators that the API refused."""
    unqueued_requests: int = 0
    """Count of the requests that the API refused because too many waited."""
    is_stopping: bool = False
    """This broker hands its leaderships over before it stops."""
    is_leaving: bool = False
    """It has done so, and waits until no ISR counts on it."""
    stopping_brokers: frozenset[BrokerId] = frozenset()
    """Brokers that do so, by the newest probe."""
    closed: bool = False

    @property
    def is_controller(self) -> bool:
        return self.core.controller_epoch != 0
