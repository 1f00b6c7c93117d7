"""Cached metadata of streams: their partitions, incarnations and leader epochs; asked for once and kept.

The metadata need not be right: requests carry incarnations and epochs, and a broker with newer ones refuses them. A
refusal with a code that says `refresh_metadata` leads back here. Requests for the same stream that come together share
one answer; when the last call that waits for it gives up, the request is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from tidelog.client.base.exceptions import WrongIncarnation, typed
from tidelog.client.cluster.controller_api import Api
from tidelog.client.cluster.route_updates import RouteUpdates
from wire.errors import Code, TidelogError
from wire.layouts import KeyOrder, Layout
from wire.messaging.transport import Transport
from wire.operations.api_operations import METADATA, StreamDescription, StreamRoutes, Topology
from wire.stream_config import StreamConfig
from wire.subjects import Subjects, check_stream_name
from wire.types import BrokerId, Incarnation, LeaderEpoch, PartitionState, StreamName

_MOST_PARTITIONS = 1 << 20
"""Partitions of a layout. Brokers take fewer; a larger answer is forged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    partition: int
    incarnation: Incarnation
    leader: BrokerId | None
    isr: tuple[BrokerId, ...]
    leader_epoch: LeaderEpoch
    state: PartitionState = PartitionState.ACTIVE

    @property
    def in_sync_followers(self) -> tuple[BrokerId, ...]:
        return tuple(replica for replica in self.isr if replica != self.leader)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMetadata:
    name: StreamName
    cluster_id: str
    """The id of the cluster that the client began with; empty where its brokers do not report one."""
    subject: str
    incarnation: Incarnation
    partitioning_version: int
    routing_generation: int
    """At which leaders, partitions or layouts last changed."""
    layouts: tuple[Layout, ...]
    """Oldest first; the last one is that of `partitioning_version`."""
    partitioner: str
    """The stream's hash of keys, for producers that choose none; one of a later version may be unknown here."""
    replication_factor: int
    config: StreamConfig
    """Settings that this version of the client does not know have their default."""
    partitions: Mapping[int, PartitionMetadata]
    """By number, ascending: those that have, or may have, records. Partitions that are only made ready for the next
    layout are left out."""
    racks: Mapping[BrokerId, str]
    """The racks of the replicas that have one."""

    @classmethod
    def of(cls, routes: StreamRoutes, cluster_id: str, racks: Mapping[BrokerId, str]) -> StreamMetadata:
        """Returns the metadata in `routes`. Raises TidelogError(INTERNAL) for routes that no broker makes."""
        layouts = _layouts(routes)
        return cls(
            name=StreamName(routes["name"]),
            cluster_id=cluster_id,
            subject=routes["subject"],
            incarnation=Incarnation(routes["incarnation"]),
            partitioning_version=routes["partitioning_version"],
            routing_generation=routes["routing_generation"],
            layouts=layouts,
            partitioner=routes["partitioner"],
            replication_factor=routes["replication_factor"],
            config=StreamConfig.from_strings_known(routes["config"]),
            partitions={
                route["partition"]: PartitionMetadata(
                    partition=route["partition"],
                    incarnation=Incarnation(route["incarnation"]),
                    leader=BrokerId(route["leader"]) if route["leader"] is not None else None,
                    isr=tuple(BrokerId(broker) for broker in route["isr"]),
                    leader_epoch=LeaderEpoch(route["leader_epoch"]),
                    state=_state(route["state"]),
                )
                for route in sorted(routes["partitions"], key=lambda route: route["partition"])
                if route["partition"] < layouts[-1].partitions or route["state"] != PartitionState.ACTIVE.value
            },
            racks=racks,
        )

    @property
    def key_order(self) -> KeyOrder:
        return KeyOrder(self.layouts, {number: known.incarnation for number, known in self.partitions.items()})


def _layouts(routes: StreamRoutes) -> tuple[Layout, ...]:
    told = tuple(
        Layout(
            version=form["version"],
            partitions=form["partitions"],
            generation=form["generation"],
            starts=tuple(form["starts"]),
        )
        for form in routes["layouts"]
    )
    if any(before.version + 1 != layout.version for before, layout in pairwise(told)):
        raise TidelogError(Code.INTERNAL, f"the layouts of stream {routes['name']!r} do not follow each other")
    if any(not 0 < layout.partitions <= _MOST_PARTITIONS for layout in told):
        raise TidelogError(
            Code.INTERNAL, f"a layout of stream {routes['name']!r} does not have 1 to {_MOST_PARTITIONS} partitions"
        )
    if not told:
        raise TidelogError(Code.INTERNAL, f"stream {routes['name']!r} has no layout")
    return told


def _state(text: str) -> PartitionState:
    try:
        return PartitionState(text)
    except ValueError:
        raise TidelogError(Code.INTERNAL, f"{text!r} is no state of a partition") from None


@dataclass(slots=True)
class _Asking:
    """A request for metadata on its way."""

    task: asyncio.Task[StreamMetadata]
    waiting: int = 0


class MetadataCache:
    def __init__(self, api: Api, transport: Transport, subjects: Subjects) -> None:
        self._api = api
        self._known: dict[StreamName, StreamMetadata] = {}
        self._created: dict[StreamName, Incarnation] = {}
        """Incarnations of streams that this client has created and not deleted since: a broker that reports an earlier
        incarnation has not applied the creation yet."""
        self._asking: dict[tuple[StreamName, bool], _Asking] = {}
        """Requests by stream, and whether the controller is to answer."""
        self.updates = RouteUpdates(api, transport, subjects, self._on_push)
        self._pushed: set[StreamName] = set()
        """Streams whose known metadata came by a push."""
        self._with_racks: set[StreamName] = set()
        """Streams whose racks are needed."""
        self._checks: dict[StreamName, asyncio.Task[None]] = {}
        """Checks of pushes that only the controller can judge."""

    def close(self) -> None:
        self.updates.close()
        for check in self._checks.values():
            check.cancel()

    async def why_over(self, stream: StreamName, known: StreamMetadata | None) -> TidelogError | None:
        """Asks anew. Returns why a producer or consumer that knows the stream as `known` cannot go on; None when it
        can, or without an answer."""
        try:
            now = await self.refresh(stream)
        except TidelogError as error:
            return None if error.retriable else error
        if known is None or now.incarnation == known.incarnation:
            return None
        return WrongIncarnation(
            Code.WRONG_INCARNATION,
            f"stream {stream!r} was deleted and created again; make a new producer or consumer",
        )

    def last_seen(self, stream: StreamName) -> StreamMetadata | None:
        return self._known.get(stream)

    async def get(self, stream: str) -> StreamMetadata:
        """Returns the metadata as last seen. Raises UnknownStream, BadName, NoServer."""
        name = stream_name(stream)
        return self._known.get(name) or await self.refresh(name)

    def need_racks(self, stream: StreamName) -> None:
        """From now on the controller is asked for the stream, because only it knows racks."""
        self._with_racks.add(stream)

    async def refresh(self, stream: str, *, of_controller: bool = False) -> StreamMetadata:
        """Returns the present metadata. `of_controller`: from the controller, with the racks; else from any broker."""
        name = stream_name(stream)
        of_controller = of_controller or name in self._with_racks
        asked = name, of_controller
        asking = self._asking.get(asked)
        if asking is None or asking.task.done():
            asking = self._asking[asked] = _Asking(asyncio.create_task(self._ask(name, of_controller)))
        asking.waiting += 1
        try:
            return await asyncio.shield(asking.task)
        finally:
            asking.waiting -= 1
            if not asking.waiting:
                asking.task.cancel()
            if self._asking.get(asked) is asking and (asking.task.done() or not asking.waiting):
                del self._asking[asked]

    def forget(self, stream: str) -> None:
        self._known.pop(StreamName(stream), None)

    def on_created(self, stream: StreamName, incarnation: int) -> None:
        """Notes that this client has created the stream, or found it when it wanted to: metadata of earlier
        incarnations do not count from now on."""
        self.forget(stream)
        self._created[stream] = Incarnation(incarnation)

    def on_deleted(self, stream: StreamName) -> None:
        """Notes that this client has deleted the stream."""
        self.forget(stream)
        self._created.pop(stream, None)

    async def _ask(self, name: StreamName, of_controller: bool) -> StreamMetadata:
        answer = None if of_controller else await self.updates.ask(name)
        found = None if answer is None else self._believed(name, answer)
        if found is None:
            try:
                found = self._read(name, await self._api.call(METADATA, name))
            except TidelogError as error:
                if not error.retriable:
                    self._known.pop(name, None)
                raise
        self._known[name] = found
        self._pushed.discard(name)
        self.updates.tell(name, found)
        return found

    def _believed(self, name: StreamName, answer: Topology) -> StreamMetadata | None:
        """Returns the metadata in the answer of some broker. None: it is behind; the controller is asked."""
        known = self._known.get(name)
        try:
            found = self._read(name, answer)
        except TidelogError:
            return None
        is_older = known is not None and found.routing_generation < known.routing_generation
        return None if is_older or found.incarnation < self._created.get(name, 0) else found

    def _read(self, name: StreamName, answer: Topology) -> StreamMetadata:
        """Returns the metadata in an answer; with the known racks, if it has none. Raises TidelogError(INTERNAL)."""
        known = self._known.get(name)
        racks = {} if known is None else known.racks
        if "racks" in answer:
            racks = {BrokerId(broker): rack for broker, rack in answer["racks"].items()}
        for routes in answer["streams"]:
            if routes["name"] == name:
                return StreamMetadata.of(routes, self._api.cluster_id, racks)
        raise TidelogError(Code.INTERNAL, f"the answer has no routes of stream {name!r}")

    # Keeps R68.
    def _on_push(self, name: StreamName, routes: StreamRoutes) -> None:
        """Takes pushed routes, which anybody with permission to publish there may have forged."""
        known = self._known.get(name)
        if known is None:
            return
        try:
            pushed = StreamMetadata.of(routes, self._api.cluster_id, known.racks)
        except TidelogError:
            self.updates.dropped_pushes += 1
            return
        if not _is_sound(pushed) or pushed.incarnation < known.incarnation:
            self.updates.dropped_pushes += 1
        elif pushed.incarnation > known.incarnation:
            self._check(name)
        elif pushed.routing_generation > known.routing_generation:
            self._known[name] = pushed
            self._pushed.add(name)
            self.updates.tell(name, pushed)
        elif name in self._pushed and pushed.routing_generation < known.routing_generation:
            self._check(name)  # either the push or the known metadata are old, or forged

    def _check(self, name: StreamName) -> None:
        """Asks the controller, once a second at most."""
        if name not in self._checks:
            task = self._checks[name] = asyncio.create_task(self._checked(name))
            task.add_done_callback(lambda _: self._checks.pop(name, None))

    async def _checked(self, name: StreamName) -> None:
        known = self._known.pop(name, None)  # it is removed so that an older answer is taken, too
        try:
            await self.refresh(name)
        except TidelogError as error:
            if error.retriable and known is not None:
                self._known.setdefault(name, known)
        await asyncio.sleep(1.0)


def _is_sound(pushed: StreamMetadata) -> bool:
    """Returns whether these can be the routes of a stream."""
    newest = pushed.layouts[-1]
    return (
        newest.version == pushed.partitioning_version
        and len(pushed.partitions) <= _MOST_PARTITIONS
        and all(partition in pushed.partitions for partition in range(newest.partitions))
    )


def partitions_spread_over(described: StreamDescription) -> int:
    """The number of partitions of the newest layout: others are made ready for one to come, or left over from an
    earlier one."""
    return described["layouts"][-1]["partitions"]


def stream_name(name: str) -> StreamName:
    """Returns the name, checked. Raises BadName."""
    try:
        return check_stream_name(name)
    except TidelogError as error:
        raise typed(error) from None
