"""The layouts that a producer sends by, with a pipe for each partition of each: the driver of `Routes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from tidelog.client.base.arguments import bad, shown, whole
from tidelog.client.cluster.metadata_cache import PartitionMetadata, StreamMetadata
from tidelog.client.producer.accumulator import Acknowledged, Failed
from tidelog.client.producer.batches import ProducerSession
from tidelog.client.producer.layout_routes import Moved, RoutedLayout, Routes, Split
from tidelog.client.producer.partitioner import KeyHash, Partitioner
from tidelog.client.producer.pipe import Pipe, Sender, Sending
from tidelog.client.producer.upkeep import Upkeep
from wire.types import LeaderEpoch


class ProducerLayouts:
    """`settle`: called when a batch of a partition is resolved. `on_switch`: called when the newest
    layout is another one, or records have moved."""

    def __init__(
        self,
        first: StreamMetadata,
        upkeep: Upkeep,
        *,
        sending: Sending,
        make_waiting: Callable[[], object],
        stop_gathering: Callable[[], object],
        settle: Callable[[int, Acknowledged | Failed], object],
        on_switch: Callable[[], object],
        key_hash: KeyHash,
        spread: int,
        with_sessions: bool,
    ) -> None:
        self._upkeep = upkeep
        self._sending = sending
        self._stop_gathering = stop_gathering
        self._settle = settle
        self._on_switch = on_switch
        self._key_hash = key_hash
        self._spread = spread
        self._with_sessions = with_sessions
        self._next: StreamMetadata | None = None
        """Metadata to adopt when a pipe is handed over, because too many layouts are in use."""
        self._left_out = range(0)
        """Partitions that keys are not spread over any more, also those that were removed since."""
        self._routes: Routes[Pipe] | None = None
        self._routes = self.routes = Routes(first.name, self._made(first), make_waiting)

    @property
    def newest(self) -> RoutedLayout[Pipe]:
        return self.routes.newest

    def adopt(self, metadata: StreamMetadata) -> None:
        """Sends by the newest layout of these metadata from now on, if it is another one."""
        if not self.routes.wants(metadata.partitioning_version) or not is_whole(metadata):
            return
        if self.routes.is_full:
            self._next = metadata
            return
        self._next = None
        layout = self._made(metadata)
        outdated = self.routes.switch(layout)
        self._on_switch()
        if self._with_sessions:
            for pipe in layout.targets.values():
                pipe.core.expect_session()
            self._upkeep.renew_session(_Pipes(self.routes, [*layout.targets.values()]))
        for pipe in outdated:
            pipe.pump()

    def chosen(self, partition: object) -> Pipe:
        """Returns the pipe of a partition that the program has chosen. Raises BadRequest, PARTITION_RETIRED."""
        number = whole(partition)
        if number is None:
            raise bad(f"partition={shown(partition)} is not a whole number; leave it out, or give one of the stream's")
        pipe = self.routes.for_partition(number)
        if pipe is not None:
            return pipe
        if number in self._left_out:
            raise self.routes.not_routed(number)
        known = ", ".join(map(str, self.newest.targets))
        raise bad(f"there is no partition {partition!r} in {self.routes.stream!r}; it has {known}")

    def carry_out(self, partition: int, moved: Moved[Pipe]) -> None:
        """Carries out the effects of moving records of the partition to others."""
        for effect in moved.effects:
            match effect:
                case Failed():
                    self._settle(partition, effect)
                case Split(waiting):
                    if not waiting.done():
                        waiting.set_result(effect)
        self._on_switch()
        for pipe in moved.targets:
            pipe.pump()

    def _made(self, metadata: StreamMetadata) -> RoutedLayout[Pipe]:
        version, count = metadata.partitioning_version, metadata.layouts[-1].partitions
        most = max(*(each.partitions for each in metadata.layouts), *(number + 1 for number in metadata.partitions))
        self._left_out = range(count, most)
        layout: RoutedLayout[Pipe] = RoutedLayout(
            version, Partitioner(range(count), key_hash=self._key_hash, start=self._spread), {}
        )
        sender = Sender(
            stop_gathering=self._stop_gathering,
            left=self._left,
            settle=partial(self._settled, metadata),
            drained=self._hand_over,
        )
        for partition in range(count):
            known = self._with_own_epoch(metadata, partition)
            layout.targets[partition] = Pipe(self._sending, sender, metadata, known)
        return layout

    def _with_own_epoch(self, metadata: StreamMetadata, partition: int) -> PartitionMetadata:
        """Returns the partition with the LeaderEpoch that a pipe knows, since that of a push can be forged: a leader of
        a later one answers with it, and one of an earlier one does not answer."""
        known = metadata.partitions[partition]
        pipe = None if self._routes is None else self._routes.newest.targets.get(partition)
        if pipe is None or pipe.incarnations != (metadata.incarnation, known.incarnation):
            return known
        return replace(known, leader_epoch=LeaderEpoch(pipe.core.leader_epoch))

    def _left(self, pipe: Pipe) -> None:
        self.routes.left(pipe)

    def _settled(self, metadata: StreamMetadata, partition: int, effect: Acknowledged | Failed) -> None:
        if isinstance(effect, Acknowledged):
            if effect.base_offset < 0:
                self._upkeep.check_unheard()
            elif self.routes.on_acknowledged(metadata.partitioning_version):
                self.adopt(metadata)
        self._settle(partition, effect)

    def _hand_over(self, pipe: Pipe) -> None:
        moved = self.routes.hand_over(pipe)
        pipe.close()
        self.carry_out(pipe.partition, moved)
        if self._next is not None:
            self.adopt(self._next)


def is_whole(metadata: StreamMetadata) -> bool:
    """Returns whether each partition exists that records are to go to."""
    return all(partition in metadata.partitions for partition in range(metadata.layouts[-1].partitions))


class _Pipes:
    """Pipes that get one session together."""

    def __init__(self, routes: Routes[Pipe], pipes: Sequence[Pipe]) -> None:
        self._routes = routes
        self._pipes = pipes

    @property
    def is_idle(self) -> bool:
        """Whether all pipes are idle, also those of older layouts, whose records may go on to these."""
        return all(pipe.is_idle for pipe in self._routes.targets)

    def on_session(self, session: ProducerSession) -> None:
        for pipe in self._pipes:
            if not pipe.core.is_over:
                pipe.on_session(session)


def tell_epochs(pipes: Sequence[Pipe], layout: StreamMetadata) -> None:
    """Gives the pipes the controller's LeaderEpochs of their partitions."""
    for pipe in pipes:
        known = layout.partitions.get(pipe.partition)
        if known is not None:
            pipe.run(pipe.core.on_metadata(known.leader_epoch))
