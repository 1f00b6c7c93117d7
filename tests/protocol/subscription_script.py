"""Transcripts of `tidelog.client.consumer.subscription_state`: the partitions of one consumer of stream s.

Commands. What they return is printed, then each partition that has changed:

    metadata partitions=0,1:9 layouts=1;2@4,0 [generation=3]
                                  partitions with their incarnations (default 1); layouts by their number of partitions,
                                  oldest first, `@` the offsets at which each begins (`?`: not known yet)
    group                         a group reads the stream
    follow                        partitions that a repartition makes are read, too
    assign 0 1                    the partitions are to be read
    begin 0 at=5 [stop=9]         its start is known, or was sought
    fetch 0 records=3 [gap=2]     the next answer of a partition: records, then offsets without one
    take 9 | iterate 2 | batch    records are handed out, after those before were finished
    put-back | finish             what was taken did not come to the program | it asks for more, or commits
    pause 0 | resume 0
    revoke 0 1 | leave 0 | lose 0 the group takes partitions away | nothing more is handed out | it is gone
    committed 0=5                 this consumer has committed, or was told so
    group-committed 0=5           so has the group, by whichever member
    look                          limits are set anew
    read-up-to-cutovers | waiting | gone

A partition is shown as `0 reading 3<5<9`: finished, position, and where the next answer begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from tests.datadriven import Command, ScriptError
from tests.subscriptions import check
from tidelog.client.base.read_positions import AtOffset
from tidelog.client.cluster.metadata_cache import PartitionMetadata, StreamMetadata
from tidelog.client.consumer.consumer_config import ConsumerConfig
from tidelog.client.consumer.fetched_ahead import Answer
from tidelog.client.consumer.fetcher import PartitionFetcher
from tidelog.client.consumer.subscription_state import AssignedPartition, AssignedStream, SubscriptionState
from wire.batch import BatchBuilder, RecordBatch
from wire.layouts import NOT_REPORTED, Layout
from wire.stream_config import StreamConfig
from wire.types import BrokerId, Incarnation, LeaderEpoch, Offset, StreamName


class SubscriptionScript:
    def __init__(self) -> None:
        self._state = SubscriptionState()
        self._stream = AssignedStream("s", "key")
        self._state.open(self._stream)
        self._now = 100.0
        self._shown: dict[AssignedPartition, str] = {}
        """As they were printed last; those that are gone, too."""

    def __call__(self, command: Command) -> Sequence[str]:
        command.check_options(
            "partitions", "layouts", "generation", "at", "stop", "records", "gap", *map(str, range(9))
        )
        method = getattr(self, f"_{command.name.replace('-', '_')}", None)
        if method is None:
            raise ScriptError(f"there is no command {command.name}")
        lines = [*(method(command) or [])]
        check(self._state)
        for assigned in {**self._shown, **dict.fromkeys(self._state.partitions.values(), "")}:
            shown = _described(assigned)
            if self._shown.get(assigned) != shown:
                self._shown[assigned] = shown
                lines.append(shown)
        return lines

    def _of(self, number: str) -> AssignedPartition:
        return self._state.partitions[self._stream.of(int(number))]

    # ---- the stream

    def _metadata(self, command: Command) -> list[str]:
        self._now += 1
        effects = self._state.learn(self._stream, _metadata(command.options), self._now)
        return [f"{type(e).__name__}{f' {e.assigned.number}' if hasattr(e, 'assigned') else ''}" for e in effects]

    def _group(self, _: Command) -> None:
        self._stream.is_shared = True

    def _follow(self, _: Command) -> list[str]:
        self._stream.follows = True
        return [f"Begin {new.assigned.number}" for new in self._state.follow(self._stream)]

    def _look(self, _: Command) -> None:
        self._state.look(self._stream)

    # ---- partitions

    def _assign(self, command: Command) -> None:
        for number in command.words:
            self._state.assign(self._stream.of(int(number)), self._stream)

    def _begin(self, command: Command) -> None:
        (number,), options = command.words, command.options
        stop = AtOffset(int(options["stop"])) if "stop" in options else None
        incarnation = self._stream.incarnation_of(int(number)) or 0
        at = AtOffset(int(options.get("at", 0)))
        fetcher = PartitionFetcher(f"s/{number}", at, stop, ConsumerConfig(), partition_incarnation=incarnation)
        self._state.begin(self._of(number), fetcher)

    def _revoke(self, command: Command) -> list[str]:
        now = self._state.revoke([self._of(number).of for number in command.words])
        return [f"to give up now: {', '.join(str(assigned.number) for assigned in now) or 'none'}"]

    def _leave(self, command: Command) -> None:
        self._state.leave(self._of(command.words[0]))

    def _lose(self, command: Command) -> None:
        self._state.drop(self._of(command.words[0]))

    def _pause(self, command: Command) -> None:
        self._state.pause(self._of(number) for number in command.words)

    def _resume(self, command: Command) -> None:
        self._state.pause((self._of(number) for number in command.words), is_paused=False)

    # ---- records

    def _fetch(self, command: Command) -> list[str]:
        assigned = self._of(command.words[0])
        if not assigned.has_room:
            return ["no room"]
        count, gap = int(command.options.get("records", 0)), int(command.options.get("gap", 0))
        end = assigned.fetched_to + count
        batches = (_batch(assigned.fetched_to, count),) if count else ()
        self._state.add(assigned, Answer(batches, end + gap))
        return []

    def _take(self, command: Command) -> list[str]:
        assigned = self._state.next()
        if assigned is None:
            return ["nothing"]
        return [_records(assigned, [r.offset for r in self._state.take(assigned, int(command.words[0]))])]

    def _iterate(self, command: Command) -> list[str]:
        assigned, offsets = self._state.next(), []
        if assigned is None:
            return ["nothing"]
        for record in islice(assigned.records(), int(command.words[0])):
            assigned.last = record
            offsets.append(record.offset)
        return [_records(assigned, offsets)]

    def _batch(self, _: Command) -> list[str]:
        assigned = self._state.next()
        if assigned is None:
            return ["nothing"]
        return [_records(assigned, self._state.take_batch(assigned).offsets.tolist())]

    def _put_back(self, _: Command) -> None:
        self._state.put_back()

    def _finish(self, _: Command) -> list[str]:
        revoked = self._state.finish()
        return [] if revoked is None else [f"to give up now: {revoked.number}"]

    # ---- commits

    def _committed(self, command: Command) -> None:
        offsets = {self._stream.of(int(number)): int(offset) for number, offset in command.options.items()}
        self._state.on_committed(offsets)

    def _group_committed(self, command: Command) -> None:
        for number, offset in command.options.items():
            self._stream.on_group_committed(int(number), self._stream.incarnation_of(int(number)) or 0, int(offset))

    def _read_up_to_cutovers(self, _: Command) -> list[str]:
        return [", ".join(str(assigned.number) for assigned in self._state.at_cutovers) or "none"]

    def _waiting(self, _: Command) -> list[str]:
        return [
            f"{assigned.number} waits for {_sources({of.partition: end for of, end in sources.items()})}"
            for assigned, sources in self._state.waiting.items()
        ] or ["none"]

    def _gone(self, _: Command) -> list[str]:
        unsettled = [str(of) for of in sorted(self._state.unsettled)]
        uncommitted = [str(of) for of in sorted(self._state.uncommitted)]
        return [f"not in a transaction: {unsettled}", f"not committed: {uncommitted}"]


def _described(assigned: AssignedPartition) -> str:
    at = f" {assigned.finished}<{assigned.position}<{assigned.fetched_to}" if assigned.is_read else ""
    committed = "" if assigned.committed is None else f", committed {assigned.committed}"
    limit = (
        "" if assigned.limit is None else f", up to {assigned.limit.offset} before {_sources(assigned.limit.sources)}"
    )
    flags = [name for name in ("paused", "removed") if getattr(assigned, f"is_{name}")]
    return f"{assigned.number} {assigned.phase.value}{at}{committed}{limit}{''.join(f', {flag}' for flag in flags)}"


def _sources(sources: object) -> str:
    assert isinstance(sources, dict)
    return " ".join(f"{number}@{'?' if end == NOT_REPORTED else end}" for number, end in sorted(sources.items()))


def _records(assigned: AssignedPartition, offsets: list[int]) -> str:
    return f"{assigned.number}: {' '.join(map(str, offsets))}"


def _batch(offset: int, count: int) -> RecordBatch:
    builder = BatchBuilder()
    builder.add_values([b"%d" % number for number in range(offset, offset + count)])
    parts, _ = builder.build(1).stamp(Offset(offset), LeaderEpoch(1), append_time=1)
    return RecordBatch.decode(b"".join(parts))


def _metadata(options: dict[str, str]) -> StreamMetadata:
    layouts = []
    for version, text in enumerate(options["layouts"].split(";"), 1):
        count, _, starts = text.partition("@")
        begins = tuple(NOT_REPORTED if start == "?" else int(start) for start in starts.split(",") if start)
        layouts.append(Layout(version=version, partitions=int(count), generation=10 * (version - 1), starts=begins))
    partitions = {}
    for text in options["partitions"].split(","):
        number, _, incarnation = text.partition(":")
        partitions[int(number)] = PartitionMetadata(
            partition=int(number),
            incarnation=Incarnation(int(incarnation or 1)),
            leader=BrokerId("a"),
            isr=(BrokerId("a"),),
            leader_epoch=LeaderEpoch(1),
        )
    return StreamMetadata(
        name=StreamName("s"),
        cluster_id="",
        subject="s",
        incarnation=Incarnation(1),
        partitioning_version=len(layouts),
        routing_generation=int(options.get("generation", 0)),
        layouts=tuple(layouts),
        partitioner="crc32c",
        replication_factor=1,
        config=StreamConfig(),
        partitions=partitions,
        racks={},
    )
