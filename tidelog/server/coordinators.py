"""The coordinators of a broker: one for each partition of `__groups` that it leads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dataplane.broker.led_partition import LedPartition
from metadata.runtime.service import MetadataService
from tidelog.groups.shard import GroupShard
from tidelog.groups.streams import StreamLife, StreamsView
from tidelog.server.coordinator import Coordinator
from wire.internal_streams import GROUPS, is_internal, is_of_internal
from wire.peers import PeerTransport
from wire.subjects import Subjects
from wire.transport import Transport

VIEW_SHARE = 0.05
"""Of the event loop's time that is spent on views of all streams, while streams are created and deleted."""


class Coordinators:
    """It is the coordinators' `CoordinatorPorts`. `retention`: seconds for which a group without members is kept;
    `patience`: `leader_lease_s`; `work_time`: seconds that the thread of the loop has worked."""

    def __init__(
        self,
        metadata: MetadataService,
        *,
        clients: Transport,
        peers: PeerTransport,
        subjects: Subjects,
        now: Callable[[], float],
        time_ns: Callable[[], int],
        patience: float,
        retention: float,
        work_time: Callable[[], float],
    ) -> None:
        self.clients = clients
        self.peers = peers
        self.subjects = subjects
        self.now = now
        self.time_ns = time_ns
        self._metadata = metadata
        self._patience = patience
        self._retention = retention
        self._work_time = work_time
        self._living: dict[int, Coordinator] = {}
        """By partition."""
        self._view = StreamsView()
        self._view_of: int | None = None
        """`stream_changes` when `_view` was made."""
        self._view_again_at = 0.0

    @property
    def broker(self) -> str:
        return self._metadata.broker_id

    @property
    def cluster_id(self) -> str:
        return self._metadata.cluster_id

    def lease_valid(self) -> bool:
        return self._metadata.lease_valid(self.now())

    def on_led(self, led: LedPartition) -> None:
        """See `BrokerContext.on_led`."""
        if led.key.stream == GROUPS.name and is_of_internal(led.key, led.subject, self.subjects):
            partition = led.key.partition
            make_shard = partial(
                GroupShard,
                broker=self.broker,
                partition=partition,
                patience=self._patience,
                retention=self._retention,
            )
            self._living[partition] = Coordinator(led, self, make_shard)

    def streams(self) -> StreamsView:
        """Made anew when streams were created or deleted; less often where there are so many that this takes long."""
        changes = self._metadata.stream_changes
        now = self.now()
        if changes == self._view_of or now < self._view_again_at:
            return self._view
        began = self._work_time()
        state = self._metadata.state
        self._view_of = changes
        self._view = StreamsView(
            state.generation,
            {
                name: StreamLife(
                    stream.incarnation,
                    {number: partition.incarnation for number, partition in stream.partitions.items()},
                )
                for name, stream in state.streams.items()
                if not is_internal(name, stream.subject, self.subjects)
            },
        )
        self._view_again_at = now + (self._work_time() - began) / VIEW_SHARE
        return self._view
