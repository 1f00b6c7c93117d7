"""What programs and operators ask of consumer groups: a part of the client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Unpack

from tidelog.client.base.options import takes
from tidelog.client.base.read_positions import AtTime
from tidelog.client.base.records import K, V
from tidelog.client.cluster.controller_api import Api
from tidelog.client.cluster.coordinator_link import CoordinatorLink
from tidelog.client.cluster.lifetime import Started
from tidelog.client.cluster.metadata_cache import MetadataCache
from tidelog.client.consumer.consumer import Consumer
from tidelog.client.consumer.offset_lookup import OffsetLookup
from tidelog.client.group.group_admin import DescribedGroup, GroupAdmin, OffsetChange
from tidelog.client.group.group_consumer import GroupConsumer
from tidelog.client.group.named_cursor import Cursor
from tidelog.client.group.subscription import GroupConfig, GroupOptions, Name, member_settings
from wire.messaging.transport import Transport
from wire.operations import api_operations as op
from wire.subjects import Subjects


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

    @takes(GroupConfig)
    def subscribe(
        self,
        streams: str | Iterable[str] = (),
        *,
        group: str,
        patterns: str | Iterable[str] = (),
        instance_id: str | None = None,
        **options: Unpack[GroupOptions[K, V]],
    ) -> GroupConsumer[K, V]:
        """A member of a consumer group, which shares the partitions of these streams with the group's other members.

        `patterns`: also streams whose names match, with `*` for any characters and `?` for one; new ones are found.
        `instance_id`: a name that this member keeps when it is started anew; then its partitions wait for it until its
        session ends, and nothing is moved.
        """
        self._check_open()
        config: GroupConfig[K, V] = GroupConfig(**options)
        settings = member_settings(
            config, group=group, streams=streams, patterns=patterns, instance_id=instance_id, client=self._name
        )
        return GroupConsumer(
            self._transport,
            self._subjects,
            self._metadata,
            self._link,
            self._lookup,
            settings,
            config,
            spread=next(self._numbers),
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
