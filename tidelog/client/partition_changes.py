"""An operator's changes of partitions and of their number: a part of the client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Literal

from tidelog.client.api import Api
from tidelog.client.arguments import bad, check_flag, check_whole, partition_count, shown
from tidelog.client.metadata import stream_name
from wire.error_details import REPEATED
from wire.errors import TidelogError
from wire.layouts import MAX_PARTITIONS
from wire.operations.partition_operations import (
    LATEST,
    STREAM_DELETE_RECORDS,
    STREAM_PAUSE,
    STREAM_REPARTITION,
    STREAM_REPARTITION_CANCEL,
    STREAM_REPARTITION_STATUS,
    STREAM_RESUME,
    STREAM_SET_READONLY,
    ChangedPartition,
    Repartitioned,
    RepartitionStatus,
)

_MAX_OFFSET = (1 << 63) - 1


class PartitionChanges(ABC):
    _api: Api

    @abstractmethod
    def _check_open(self) -> None: ...

    async def set_readonly(
        self, stream: str, readonly: bool = True, partitions: Iterable[int] | None = None
    ) -> list[ChangedPartition]:
        """Let partitions (None: all) take no records, or with `readonly=False` take them again. A publish to one that
        takes none fails with ReadOnly; consumers read on. Returns the partitions when all live replicas know it, or
        after 3 s: `not_yet` names those that do not.

        Raises UnknownStream, BadRequest (no such partition, one of Tidelog's own streams), NoServer.
        """
        self._check_open()
        check_flag("readonly", readonly)
        name = stream_name(stream)
        numbers = [] if partitions is None else partition_numbers(partitions)
        answer = await self._api.call(STREAM_SET_READONLY, name=name, readonly=readonly, partitions=numbers)
        return answer["partitions"]

    async def pause(
        self, stream: str, partitions: Iterable[int] | None = None, resume_all: bool = False
    ) -> list[ChangedPartition]:
        """Pause partitions (None: all) to which nothing is published for long: their followers sleep, and cost next to
        nothing. A publish of any kind ends the pause of its partition by itself, and is stored and acknowledged as
        ever; with `resume_all` it ends the pause of the whole stream. Paused partitions can be read. Returns the
        partitions as `set_readonly` does.

        Raises UnknownStream, BadRequest (no such partition, one of Tidelog's own streams), NoServer.
        """
        self._check_open()
        check_flag("resume_all", resume_all)
        name = stream_name(stream)
        numbers = [] if partitions is None else partition_numbers(partitions)
        answer = await self._api.call(STREAM_PAUSE, name=name, partitions=numbers, resume_all=resume_all)
        return answer["partitions"]

    async def resume(self, stream: str, partitions: Iterable[int] | None = None) -> list[ChangedPartition]:
        """End the pause of partitions (None: all). Returns and raises as `pause`."""
        self._check_open()
        name = stream_name(stream)
        numbers = [] if partitions is None else partition_numbers(partitions)
        answer = await self._api.call(STREAM_RESUME, name=name, partitions=numbers)
        return answer["partitions"]

    async def repartition(self, stream: str, partitions: int, dry_run: bool = False) -> Repartitioned:
        """Spread the keys of a living stream over another number of partitions. With `dry_run` nothing is changed: the
        answer's `plan` tells what would be. Returns when new records go to the new layout, or after 3 s: `status` tells
        how far it is, as `repartition_status` does.

        Raises UnknownStream, BadRequest (another repartition is under way, it has so many partitions already, one of
        Tidelog's own streams, a compacted stream), BadConfig, LimitReached, BadReplicationFactor (too few live
        brokers), NoServer.
        """
        self._check_open()
        check_flag("dry_run", dry_run)
        wanted, name = partition_count(partitions), stream_name(stream)
        planned = await self._api.call(STREAM_REPARTITION, name=name, partitions=wanted, dry_run=True)
        if dry_run:
            return planned
        try:
            return await self._api.call(STREAM_REPARTITION, name=name, partitions=wanted, dry_run=False)
        except TidelogError as error:
            if not error.detail(REPEATED):
                raise
            # The answer was lost on the way, or takes longer than one attempt: what is under way may be ours.
            status = await self.repartition_status(name)
            begun = status["repartition"]
            if wanted != (status["partitions"] if begun is None else begun["partitions"]):
                raise
            return {"plan": planned["plan"], "status": status}

    async def repartition_status(self, stream: str) -> RepartitionStatus:
        """How far the repartition of a stream is; its field `repartition` is None while none is under way. Raises
        UnknownStream, NoServer."""
        self._check_open()
        return await self._api.call(STREAM_REPARTITION_STATUS, stream_name(stream))

    async def cancel_repartition(self, stream: str) -> RepartitionStatus:
        """Give up a repartition. That can be done until new records go to the new layout.

        Raises UnknownStream, BadRequest (none is under way, or it is too late), NoServer.
        """
        self._check_open()
        return await self._api.call(STREAM_REPARTITION_CANCEL, stream_name(stream))

    async def delete_records(
        self, stream: str, before: Mapping[int, int | Literal["latest"]]
    ) -> list[ChangedPartition]:
        """Delete the records below an offset, by partition; "latest": all that are committed, up to what `offsets`
        calls the end, which is in front of a transaction that is open. They are served no more,
        whatever happens to brokers; their bytes go with the segments that hold nothing else. An offset below the first
        record changes nothing. Returns the partitions, with their `log_start_offset`, when all live replicas know it,
        or after 3 s: `not_yet` names those that do not.

        Raises UnknownStream, BadRequest, OffsetOutOfRange (above the committed log: nothing was deleted), NoServer.
        """
        self._check_open()
        _check_offsets(before)
        offsets = {str(number): LATEST if offset == "latest" else offset for number, offset in before.items()}
        answer = await self._api.call(STREAM_DELETE_RECORDS, stream_name(stream), offsets)
        return answer["partitions"]


def partition_numbers(partitions: Iterable[int]) -> list[int]:
    """Raises BadRequest."""
    if isinstance(partitions, (str, bytes)) or not isinstance(partitions, Iterable):
        raise bad(f"partitions={shown(partitions)} is no list of numbers; give one such as [0, 2]")
    numbers = [*partitions]
    if not numbers:
        raise bad("partitions is empty; name one, or leave it out for all")
    for number in numbers:
        check_whole("partition", number, 0, MAX_PARTITIONS - 1)
    return numbers


def _check_offsets(before: object) -> None:
    if not isinstance(before, Mapping) or not before:
        raise bad(f"before={shown(before)} is no mapping of partitions to offsets; give one such as {{0: 1000}}")
    for number, offset in before.items():
        check_whole("partition", number, 0, MAX_PARTITIONS - 1)
        if offset != "latest":
            check_whole(f"the offset of partition {number}", offset, 0, _MAX_OFFSET)
