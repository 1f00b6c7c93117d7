"""Whatever members, operators and the metadata do, and whenever the coordinator moves: no partition is held by two
members, a successor that has read the log knows what its predecessor knew, and members that do as they are told end up
with balanced shares of everything."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import count
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import tidelog.server.coordinators.groups.assignor as assignor_module
import tidelog.server.coordinators.groups.consumer_group as group_module
from tests.unit.tidelog.server.coordinators.groups.groups_world import GROUP, World, view
from tidelog.server.coordinators.groups.group_shard import GroupShard
from wire.internal_records.group_records import StreamPartition, from_stream_partitions
from wire.operations import api_operations as op
from wire.protobuf.groups_pb2 import CommitResponse, HeartbeatRequest, HeartbeatResponse

NAMES = st.sampled_from([f"m{n}" for n in range(5)])
STREAMS = st.frozensets(st.sampled_from(("s", "t")), min_size=1)


def facts(shard: GroupShard) -> object:
    return {
        name: (group.generation, group.emptied_at, dict(sorted(group.members.items())), group.offsets)
        for name, group in sorted(shard.groups.items())
    }, shard.cursors.known


class GroupShardMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.world = World(view(s=(1, 3), t=(2, 2)))
        self.generation = 10
        self.lives = count()
        self.ids: dict[str, str] = {}
        """Of the newest life of each; no two lives have the same id."""
        self.versions: dict[str, int] = {}
        self.has: dict[str, frozenset[StreamPartition]] = {}
        """What each member reads, by its own belief: it gives up at once what it must."""
        self.acknowledged: dict[StreamPartition, int] = {}

    def hear(self, member: str, answer: object) -> None:
        if not isinstance(answer, HeartbeatResponse):
            self.has.pop(member, None)
            self.versions.pop(member, None)
            return
        if answer.version > self.versions.setdefault(member, 0):
            self.versions[member] = answer.version
            self.has[member] = from_stream_partitions(answer.assigned)

    @rule(member=NAMES, streams=STREAMS, static=st.booleans())
    def join(self, member: str, streams: frozenset[str], static: bool) -> None:
        if self.ids.get(member) not in self.versions:
            member = self.ids[member] = f"{member}-{next(self.lives)}"
            self.hear(member, self.world.join(member, *sorted(streams), instance="i" if static else ""))
            self.forget_removed()  # whose instance this one has taken: it is told at once

    def forget_removed(self) -> None:
        group = self.world.shard.groups.get(GROUP)
        for member in [member for member in self.versions if group is None or member not in group.members]:
            self.has.pop(member, None)
            self.versions.pop(member)

    @rule(member=NAMES)
    def beat(self, member: str) -> None:
        member = self.ids.get(member, member)
        if member in self.versions:
            self.hear(member, self.world.heartbeat(member, applied=self.versions[member]))

    @rule(member=NAMES, kind=st.sampled_from((HeartbeatRequest.LEAVE, HeartbeatRequest.PART)))
    def leave(self, member: str, kind: HeartbeatRequest.Kind.ValueType) -> None:
        member = self.ids.get(member, member)
        self.has.pop(member, None)
        self.versions.pop(member, None)
        self.world.heartbeat(member, kind)

    @rule(seconds=st.floats(0.1, 12))
    def pass_(self, seconds: float) -> None:
        """A member whose session may be over reads no more: it would have given up by its own clock."""
        self.world.pass_(seconds)
        self.forget_removed()

    @rule(member=NAMES, offset=st.integers(0, 99))
    def commit(self, member: str, offset: int) -> None:
        member = self.ids.get(member, member)
        held = self.has.get(member, frozenset())
        ours = sorted(partition for partition in held if partition.stream == "s")
        if not ours:
            return
        (of, *_) = ours
        answer = self.world.commit(member, {of.partition: offset}, incarnation=of.incarnation)
        if isinstance(answer, CommitResponse):
            self.acknowledged[of] = offset

    @rule(compacted=st.booleans())
    def coordinator_moves(self, compacted: bool) -> None:
        before = facts(self.world.shard)
        successor = self.world.successor(compacted=compacted)
        assert facts(successor) == before
        self.world.fail_over(compacted=compacted)

    @rule(streams=STREAMS)
    def recreate(self, streams: frozenset[str]) -> None:
        self.generation += 10
        present = {name: (life.incarnation, len(life.partitions)) for name, life in self.world.view.streams.items()}
        present |= dict.fromkeys(streams, (self.generation, 3))
        self.world.change(view(self.generation, **present))

    @rule()
    def operator_looks(self) -> None:
        self.world.admin(op.GROUP_LIST)

    @invariant()
    def no_two_members_read_one_partition(self) -> None:
        read = [partition for held in self.has.values() for partition in held]
        assert len(read) == len(set(read)), self.has

    @invariant()
    def what_was_acknowledged_is_committed(self) -> None:
        known = self.world.shard.groups.get(GROUP)
        for of, offset in self.acknowledged.items():
            if not self.world.view.is_gone(of):
                assert known is not None
                assert known.offsets[of].offset == offset

    def teardown(self) -> None:
        """All members beat until nothing moves: every partition is read by one of those that want it."""
        if not hasattr(self, "world"):
            return
        for _ in range(8):
            for member in sorted(self.versions):
                self.beat_once(member)
        group = self.world.shard.groups.get(GROUP)
        if group is None or not self.versions:
            return
        living = {name: member for name, member in group.members.items() if not member.parted}
        wanted = {
            partition
            for member in group.members.values()
            for name in self.world.view.streams
            if name in member.subscribed.streams or any(fnmatchcase(name, each) for each in member.subscribed.patterns)
            for partition in self.world.view.partitions(name)
        }
        parted = {p for name, member in group.members.items() if name not in living for p in member.assigned}
        assert {p for name in living for p in self.has.get(name, ())} | parted == wanted

    def beat_once(self, member: str) -> None:
        self.hear(member, self.world.heartbeat(member, applied=self.versions[member]))


GroupShardMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestGroupShard = GroupShardMachine.TestCase


class SlowGroupShardMachine(GroupShardMachine):
    """Targets are computed partition by partition, and a request or two come between each two of them."""

    @initialize()
    def begin(self) -> None:
        super().begin()
        self.patches = [patch.object(group_module, "TURN", 1), patch.object(assignor_module, "PIECE", 1)]
        for each in self.patches:
            each.start()
        self.world.most_turns = 1

    @rule(turns=st.integers(1, 9))
    def go_on(self, turns: int) -> None:
        self.world.most_turns = turns
        self.world.settle()
        self.world.most_turns = 1

    @rule(compacted=st.booleans())
    def coordinator_moves(self, compacted: bool) -> None:
        """Members that have nothing to give up may have a newer generation at the successor."""
        self.world.fail_over(compacted=compacted)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.most_turns = None
            super().teardown()
            for each in self.patches:
                each.stop()


SlowGroupShardMachine.TestCase.settings = GroupShardMachine.TestCase.settings
TestSlowGroupShard = SlowGroupShardMachine.TestCase
