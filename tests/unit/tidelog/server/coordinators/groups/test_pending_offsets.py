"""Offsets that transactions commit: pending until the transaction has ended, and no longer."""

from __future__ import annotations

import pytest

from tests.unit.tidelog.server.coordinators.groups.groups_world import (
    GROUP,
    RETENTION,
    Member,
    World,
    code,
    make_ticket,
    view,
)
from tidelog.server.coordinators.groups import pending_offsets as module
from tidelog.server.coordinators.groups.group_shard import BARRIER
from tidelog.server.coordinators.groups.pending_offsets import PROOF_S
from tidelog.server.coordinators.shard import Answer
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import StreamPartition
from wire.internal_records.transaction_records import GROUP_END
from wire.operations import api_operations as op
from wire.protobuf.groups_pb2 import CommitRequest, CommitResponse, CommittedOffset, OffsetsRequest, StreamPartitions
from wire.security.tickets import group_target

PRODUCER = 1 << 62
S0, S1 = (StreamPartition("s", 1, number) for number in (0, 1))


def committing(
    offsets: dict[int, int],
    *,
    producer: int = PRODUCER,
    epoch: int = 0,
    member: str = "",
    generation: int = 0,
    number: int = 0,
    metadata: str = "",
    ticket: bytes | None = None,
) -> CommitRequest:
    return CommitRequest(
        group=GROUP,
        member=member,
        generation=generation,
        producer_id=producer,
        producer_epoch=epoch,
        ticket=make_ticket(producer, epoch, group_target(GROUP)) if ticket is None else ticket,
        number=number,
        offsets=[
            CommittedOffset(stream="s", incarnation=1, partition=partition, offset=offset, metadata=metadata)
            for partition, offset in offsets.items()
        ],
    )


def end(world: World, *, epoch: int = 0, commits: bool = True, producer: int = PRODUCER, group: str = GROUP) -> object:
    return world.admin(GROUP_END, group, producer, epoch, commits)


def asked(world: World, *partitions: int) -> Answer:
    named = StreamPartitions(stream="s", incarnation=1, partitions=partitions)
    return world.ask(OffsetsRequest(group=GROUP, partitions=[named]))


def test_offsets_are_committed_with_their_transaction_and_not_before() -> None:
    world = World()
    world.commit("", {0: 3})
    assert isinstance(world.ask(committing({0: 5}, metadata="x")), CommitResponse)
    refused = asked(world, 0)
    assert code(refused) is Code.UNAVAILABLE
    assert isinstance(refused, TidelogError)
    assert refused.retry_after
    assert not isinstance(asked(world, 1), TidelogError), "of another partition nothing is pending"
    assert code(world.ask(OffsetsRequest(group=GROUP))) is Code.UNAVAILABLE
    world.fail_over(compacted=True)
    assert code(asked(world, 0)) is Code.UNAVAILABLE
    assert end(world) == {}
    assert world.committed() == {S0: 5}
    world.fail_over(compacted=True)
    assert world.committed() == {S0: 5}
    assert world.shard.groups[GROUP].offsets[S0].metadata == "x"


def test_offsets_go_with_a_transaction_that_is_aborted() -> None:
    world = World()
    world.commit("", {0: 3})
    world.ask(committing({0: 5, 1: 6}))
    assert end(world, commits=False) == {}
    assert world.committed() == {S0: 3}
    world.fail_over()
    assert world.committed() == {S0: 3}


def test_commits_of_one_transaction_are_merged_and_the_newer_offset_holds() -> None:
    world = World()
    world.ask(committing({0: 5, 1: 6}))
    world.ask(committing({1: 9}))
    end(world)
    assert world.committed() == {S0: 5, S1: 9}


def test_a_commit_of_a_transaction_that_comes_after_a_newer_one_changes_nothing() -> None:
    world = World()
    world.ask(committing({0: 5}, number=2))
    world.fail_over()
    assert code(world.ask(committing({0: 4}, number=1))) is Code.STALE_COMMIT
    assert isinstance(world.ask(committing({0: 5}, number=2)), CommitResponse), "sent again"
    world.ask(committing({1: 8}, number=3))
    end(world)
    assert world.committed() == {S0: 5, S1: 8}
    assert isinstance(world.ask(committing({0: 7}, number=1, epoch=1)), CommitResponse), "of the next transaction"


def test_what_comes_after_the_end_of_its_transaction_is_refused() -> None:
    """It would be pending for ever: nobody ends that transaction again."""
    for commits in (True, False):
        world = World()
        world.ask(committing({0: 5}))
        end(world, commits=commits)
        before = [*world.log]
        assert code(world.ask(committing({0: 9}))) is Code.PRODUCER_FENCED
        world.fail_over(compacted=True)
        assert code(world.ask(committing({0: 9}))) is Code.PRODUCER_FENCED
        assert world.log == [*before, BARRIER, BARRIER]


def test_an_end_without_offsets_leaves_a_proof_too_also_where_the_group_is_gone() -> None:
    world = World()
    assert end(world) == {}
    assert code(world.ask(committing({0: 9}))) is Code.PRODUCER_FENCED
    world.commit("", {0: 1})
    world.admin(op.GROUP_DELETE, GROUP)
    world.fail_over(compacted=True)
    assert code(world.ask(committing({0: 9}))) is Code.PRODUCER_FENCED
    assert isinstance(world.ask(committing({0: 9}, epoch=1)), CommitResponse)


def test_an_end_that_is_told_again_changes_nothing() -> None:
    world = World()
    world.ask(committing({0: 5}))
    end(world)
    world.ask(committing({0: 7}, epoch=1))
    before = len(world.log)
    for commits in (True, False):
        assert end(world, commits=commits) == {}
    assert len(world.log) == before
    end(world, epoch=1)
    assert world.committed() == {S0: 7}


def test_offsets_are_written_before_the_proof_that_they_are_committed() -> None:
    """A part of the records may be all that a successor finds; it is told of the end again."""
    world = World()
    world.ask(committing({0: 5, 1: 6}))
    before = len(world.log)
    end(world)
    written = world.log[before:]
    for part in range(len(written)):
        world.log = world.log[:before] + written[:part]
        world.shard = world.successor()
        end(world)
        assert world.committed() == {S0: 5, S1: 6}, part


def test_a_ticket_is_asked_for() -> None:
    world = World()
    for ticket in (
        b"",
        b"x",
        make_ticket(PRODUCER, 1, group_target(GROUP)),
        make_ticket(PRODUCER, 0, group_target("h")),
    ):
        assert code(world.ask(committing({0: 5}, ticket=ticket))) is Code.NOT_IN_TRANSACTION
    assert not world.log
    assert not world.shard.groups


def test_a_member_commits_under_the_same_rules_as_without_a_transaction() -> None:
    world = World()
    member = Member(world, "a")
    assert code(world.ask(committing({0: 5}))) is Code.GROUP_NOT_EMPTY
    assert code(world.ask(committing({0: 5}, member="b", generation=1))) is Code.UNKNOWN_MEMBER
    assert code(world.ask(committing({0: 5}, member="a", generation=9))) is Code.STALE_GENERATION
    world.commit("a", {1: 2}, number=7)
    offsets = committing({0: 5}, member="a", generation=member.generation, number=1)
    assert isinstance(world.ask(offsets), CommitResponse), "the producer numbers its own commits"
    end(world)
    assert world.committed() == {S0: 5, S1: 2}


def test_offsets_of_a_stream_that_was_deleted_are_given_up() -> None:
    world = World()
    world.ask(committing({0: 5}))
    world.change(view(20))
    assert end(world) == {}
    assert world.committed() == {}


def test_a_group_with_pending_offsets_is_neither_reset_nor_deleted_nor_forgotten() -> None:
    world = World()
    world.ask(committing({0: 5}))
    new: op.NewOffset = {"stream": "s", "partition": 0, "offset": 3}
    assert code(world.admin(op.GROUP_RESET, GROUP, [new])) is Code.UNAVAILABLE
    assert code(world.admin(op.GROUP_DELETE, GROUP)) is Code.UNAVAILABLE
    assert world.admin(op.GROUP_DESCRIBE, GROUP)["pending"] == [
        {"producer_id": PRODUCER, "stream": "s", "incarnation": 1, "partition": 0, "offset": 5}
    ]
    world.time_ns += round(RETENTION * 2e9)
    world.now += 120
    world.settle()
    assert GROUP in world.shard.groups
    end(world)
    assert world.admin(op.GROUP_DESCRIBE, GROUP)["pending"] == []
    assert world.committed() == {S0: 5}


def test_proofs_are_forgotten_when_no_ticket_is_valid_any_more_and_pending_offsets_are_not() -> None:
    world = World()
    world.ask(committing({0: 5}))
    end(world, producer=PRODUCER + 1)
    world.time_ns += (PROOF_S + 1) * 10**9
    world.now += 120
    world.settle()
    assert list(world.shard.pending.known[GROUP]) == [PRODUCER]
    assert list(world.successor().pending.known[GROUP]) == [PRODUCER]


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr(module, "MAX_PENDING", 1)
    world.ask(committing({0: 5}))
    assert code(world.ask(committing({1: 5}, producer=PRODUCER + 1))) is Code.LIMIT_REACHED
    assert end(world, producer=PRODUCER + 1) == {}, "an end is never refused"
    monkeypatch.setattr(module, "MAX_PENDING_BYTES", 60)
    assert code(world.ask(committing({1: 5}, metadata="x" * 60))) is Code.LIMIT_REACHED
    end(world)
    assert world.committed() == {S0: 5}
