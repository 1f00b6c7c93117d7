"""The coordinators of a broker: one for each partition of `__groups` and of `__transactions` that it leads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dataplane.broker.roles.broker_context import LedPartition
from metadata.runtime.metadata_service import MetadataService
from tidelog.server.coordinators.driver.coordinator import Coordinator, CoordinatorCounters
from tidelog.server.coordinators.driver.coordinator_kinds import Coordinated, groups_and_cursors, transactional_ids
from tidelog.server.coordinators.groups.group_shard import GroupShard
from tidelog.server.coordinators.known_streams import StreamLife, StreamsView
from tidelog.server.coordinators.transactions.transaction_shard import TransactionShard
from wire.internal_streams import GROUPS, TRANSACTIONS, is_internal, is_of_internal
from wire.messaging.transport import PeerTransport, Transport
from wire.security.producer_keys import ProducerKeys
from wire.security.tickets import Tickets
from wire.subjects import Subjects

VIEW_SHARE = 0.05
"""The part of the event loop's time that is spent on views of all streams, while streams are created and deleted."""


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
        tickets: Tickets,
        producer_keys: ProducerKeys,
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
        self._tickets = tickets
        self._producer_keys = producer_keys
        self._kinds = {GROUPS.name: self._of_groups, TRANSACTIONS.name: self._of_transactions}
        self.counters = CoordinatorCounters()
        self._living: dict[tuple[str, int], Coordinator] = {}
        """Present coordinators by stream and partition."""
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

    @property
    def left_out(self) -> int:
        """Partitions of subscribed streams that no member of their group gets now, of the groups coordinated here."""
        living = [coordinator for coordinator in self._living.values() if not coordinator.is_over]
        shards = [each for coordinator in living if isinstance(each := coordinator.shard, GroupShard)]
        return sum(group.left_out for shard in shards for group in shard.groups.values())

    def agreed_time_ns(self) -> int | None:
        return self._metadata.agreed_time_ns()

    def lease_valid(self) -> bool:
        return self._metadata.lease_valid(self.now())

    def on_led(self, led: LedPartition) -> None:
        """See `BrokerContext.on_led`."""
        stream, partition = led.key.stream, led.key.partition
        kind = self._kinds.get(stream)
        if kind is not None and is_of_internal(led.key, led.subject, self.subjects):
            self._living[stream, partition] = Coordinator(led, self, kind(partition))

    def _of_groups(self, partition: int) -> Coordinated:
        make_shard = partial(
            GroupShard,
            broker=self.broker,
            partition=partition,
            patience=self._patience,
            retention=self._retention,
            check_ticket=self._tickets.check,
        )
        return groups_and_cursors(make_shard, self._producer_keys)

    def _of_transactions(self, partition: int) -> Coordinated:
        make_shard = partial(
            TransactionShard,
            broker=self.broker,
            partition=partition,
            patience=self._patience,
            make_ticket=self._tickets.make,
            producer_keys=self._producer_keys,
        )
        return transactional_ids(make_shard, self._producer_keys)

    def streams(self) -> StreamsView:
        """Returns the view, made anew when streams were created, deleted or repartitioned; less often where there are
        so many that this takes long."""
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
                    frozenset(number for number in stream.partitions if stream.is_made_ready(number)),
                )
                for name, stream in state.streams.items()
                if not is_internal(name, stream.subject, self.subjects)
            },
        )
        self._view_again_at = now + (self._work_time() - began) / VIEW_SHARE
        return self._view
