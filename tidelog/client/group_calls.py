"""What programs and operators ask of consumer groups: a part of the client."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Literal

from tidelog.client.base.arguments import check_flag, check_number, check_whole
from tidelog.client.base.read_positions import AtTime
from tidelog.client.base.records import K, V
from tidelog.client.base.serialization import Deserializers
from tidelog.client.cluster.controller_api import Api
from tidelog.client.cluster.coordinator_link import CoordinatorLink
from tidelog.client.cluster.lifetime import Started
from tidelog.client.cluster.metadata_cache import MetadataCache
from tidelog.client.consumer.consumer import Consumer
from tidelog.client.consumer.fetcher import FetchSettings
from tidelog.client.consumer.offset_lookup import OffsetLookup
from tidelog.client.consumer.reading_options import checked_order, reading_options
from tidelog.client.consumer.stream_reading import StreamReading
from tidelog.client.consumer.subscription_state import SubscriptionState
from tidelog.client.group.group_admin import DescribedGroup, GroupAdmin, OffsetChange
from tidelog.client.group.group_consumer import GroupConsumer
from tidelog.client.group.named_cursor import Cursor
from tidelog.client.group.subscription import Listener, Name, checked_listeners, group_start, member_settings
from wire.messaging.transport import Transport
from wire.operations import api_operations as op
from wire.subjects import Subjects
from wire.types import StreamName


class GroupCalls(ABC):
    _api: Api
    _consumers: Started[Consumer[Any, Any] | GroupConsumer[Any, Any]]
    _groups: GroupAdmin
    _link: CoordinatorLink
    _lookup: OffsetLookup
    _metadata: MetadataCache
    _name: str
    _numbers: Iterator[int]
    _subjects: Subjects
    _transport: Transport

    @abstractmethod
    def _check_open(self) -> None: ...

    def subscribe(
        self,
        streams: str | Iterable[str] = (),
        *,
        group: str,
        patterns: str | Iterable[str] = (),
        instance_id: str | None = None,
        start: Literal["earliest", "latest", "new"] = "earliest",
        order: Literal["partition", "key"] = "key",
        auto_commit: bool = True,
        auto_commit_interval: float = 5.0,
        session_timeout: float = 45.0,
        rebalance_timeout: float = 60.0,
        max_poll_interval: float = 300.0,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
        max_bytes: int = 1 << 20,
        prefetch_bytes: int = 16 << 20,
        read_from: Literal["leader", "follower", "nearest"] = "leader",
        rack: str | None = None,
        on_gap: Literal["raise", "skip"] = "skip",
        on_out_of_range: Literal["earliest", "latest", "fail"] = "earliest",
        read_uncommitted: bool = False,
        key_deserializer: Callable[[bytes], K] | None = None,
        value_deserializer: Callable[[bytes], V] | None = None,
    ) -> GroupConsumer[K, V]:
        """A member of a consumer group, which shares the partitions of these streams with the group's other members.

        `patterns`: also streams whose names match, with `*` for any characters and `?` for one; new ones are found.
        `instance_id`: a name that this member keeps when it is started anew; then its partitions wait for it until its
        session ends, and nothing is moved. `start`: where a partition begins of which the group has committed nothing,
        spelled as in `consume`; one that a repartition has made begins with its first record where the group has
        committed something in those that its keys come from. `order`: with "key", the records of each key come in the
        order in which they were written, over all members, also where a repartition has taken the key to another
        partition: that one is read on when the group has committed the first one to its end (`GroupConsumer.waiting`).
        `auto_commit`: what is finished is committed every `auto_commit_interval` seconds, when
        partitions go, and at the end; else by `commit` alone. `session_timeout`: seconds after which a member that is
        not heard is removed; `rebalance_timeout`: seconds that it has to finish what it holds of a partition that goes
        to another member; `max_poll_interval`: seconds between two calls for records after which it leaves the group.
        `on_assigned`, `on_revoked`, `on_lost`: functions or coroutine functions that are called with a set of (stream,
        partition): before they are read; when they go, with a last chance to commit; and when others may have them
        already. `on_gap`: retention has removed the next records; `on_out_of_range`: a committed offset lies outside of
        the log. Both tell it in the log. The other options are those of `consume`.
        """
        self._check_open()
        settings = member_settings(
            group=group,
            streams=streams,
            patterns=patterns,
            instance_id=instance_id,
            client=self._name,
            session_timeout=session_timeout,
            rebalance_timeout=rebalance_timeout,
            max_poll_interval=max_poll_interval,
        )
        listeners = checked_listeners(on_assigned=on_assigned, on_revoked=on_revoked, on_lost=on_lost)
        check_number("auto_commit_interval", auto_commit_interval, 0.01, 3600)
        check_whole("max_bytes", max_bytes, 1, 1 << 30)
        check_whole("prefetch_bytes", prefetch_bytes, 1, 1 << 40)
        check_flag("read_uncommitted", read_uncommitted)
        source, near, gap, reset = reading_options(read_from, rack, on_gap, on_out_of_range)
        wanted = checked_order(order)
        number = next(self._numbers)
        deserializers = Deserializers(key_deserializer, value_deserializer)

        state = SubscriptionState(deserializers.read)

        def make_reading(stream: StreamName, progress: asyncio.Event) -> StreamReading:
            return StreamReading(
                self._transport,
                self._subjects,
                self._metadata,
                stream,
                state,
                prefetch_bytes=prefetch_bytes,
                settings=FetchSettings(max_bytes=max_bytes, read_uncommitted=read_uncommitted),
                read_from=source,
                rack=near,
                on_gap=gap,
                on_out_of_range=reset,
                spread=number,
                order=wanted,
                progress=progress,
            )

        return GroupConsumer(
            self._transport,
            self._subjects,
            self._metadata,
            self._link,
            self._lookup,
            settings=settings,
            start=group_start(start),
            order=wanted,
            auto_commit_interval=auto_commit_interval if auto_commit else None,
            listeners=listeners,
            state=state,
            make_reading=make_reading,
            started=self._consumers,
        )

    async def groups(self) -> op.GroupList:
        """All consumer groups, by name; `unanswered` are partitions of `__groups` whose coordinators did not answer,
        so that their groups are missing. Raises NoServer."""
        self._check_open()
        return await self._api.call(op.GROUP_LIST)

    async def describe_group(self, group: str) -> DescribedGroup:
        """A group's members and their partitions, what is committed, and as `progress` how far it is behind in each
        partition. Raises UnknownGroup, NoServer."""
        self._check_open()
        return await self._groups.describe(group)

    async def reset_group(
        self,
        group: str,
        *,
        to: str | int | datetime | AtTime | Mapping[Name, int] | None = None,
        shift: int | None = None,
        streams: str | Iterable[str] | None = None,
        partitions: Iterable[int] | None = None,
        dry_run: bool = False,
    ) -> list[OffsetChange]:
        """Commit other offsets for a group without members; returns what was committed before and is now, by stream and
        partition. `dry_run`: what would be, and nothing is changed.

        `to`: "earliest", "latest" (the end of the committed log), an offset, a datetime, AtTime or ISO-8601 text (the
        first record at or after it), or {(stream, partition): offset}. `shift`: so many offsets on, or back, from what
        is committed. An offset outside of the log becomes its start or end. `streams`: None = all of which something is
        committed; `partitions`: None = all.

        Raises GroupNotEmpty, UnknownGroup (without `streams`), UnknownStream, BadRequest, NoServer.
        """
        self._check_open()
        return await self._groups.reset(group, to, shift, streams, partitions, dry_run)

    async def delete_group(self, group: str) -> None:
        """Forget a group without members, and what it has committed. Raises GroupNotEmpty, UnknownGroup, NoServer."""
        self._check_open()
        await self._groups.delete(group)

    async def commit_offsets(self, group: str, offsets: Mapping[Name, int], metadata: str = "") -> None:
        """Commit {(stream, partition): the next offset to read} for a group without members, as programs do that choose
        their partitions themselves; `describe_group` tells them. Returns when the in-sync replicas have it. A call that
        failed with NoServer may still take effect later, and then takes a later one back.

        Raises GroupNotEmpty, UnknownStream, BadRequest, NoServer.
        """
        self._check_open()
        await self._groups.commit(group, offsets, metadata)

    def cursor(self, name: str) -> Cursor:
        """A named value in the cluster. Raises BadName."""
        self._check_open()
        return Cursor(self._link, name)
