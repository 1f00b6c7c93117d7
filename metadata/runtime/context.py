"""The parts of the metadata service that all its drivers use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from metadata.controller import ControllerCore
from metadata.metadata_settings import MetadataSettings
from metadata.runtime.clock import BrokerClock
from metadata.runtime.messages import Messages
from metadata.runtime.ports import BrokerPort
from metadata.runtime.tasks import Tasks
from metadata.state import ClusterState
from wire.messaging.transport import PeerTransport
from wire.security.producer_keys import ProducerKeys
from wire.subjects import Subjects
from wire.types import BrokerId, Incarnation


@dataclass(slots=True, kw_only=True)
class MetadataContext:
    broker_id: BrokerId
    life_id: str
    """Unique to this run of the process."""
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
    incarnation: Incarnation | None = None
    """The incarnation of this life, once registered; while the broker is declared dead, the one that died."""
    refused_requests: int = 0
    """Requests of clients and operators that the API refused."""
    unqueued_requests: int = 0
    """Those that it refused because too many waited."""
    closed: bool = False

    @property
    def is_controller(self) -> bool:
        return self.core.controller_epoch != 0
