"""Prepared transactions of a family: all of them are committed or none, once for each number, whenever the coordinator
dies. The story of it stands in tests/testdata/transactions."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

import tidelog.server.coordinators.transactions.transaction_shard as shard_module
from tests.unit.tidelog.server.coordinators.transactions.transactions_world import Producer, World, code, init_request
from tidelog.server.coordinators.driver.coordinator import MAX_REQUEST_BYTES
from tidelog.server.coordinators.shard import Settled
from tidelog.server.coordinators.transactions import families
from tidelog.server.coordinators.transactions.families import EARLIER_KEPT
from tidelog.server.coordinators.transactions.transaction_metadata import Ending, Idle, Open, Outcome
from wire.error_details import OUTCOME
from wire.errors import Code, TidelogError
from wire.internal_records.transaction_records import (
    MAX_EPOCH,
    MAX_MEMBERS,
    FamilyKey,
    coordinator_partition,
    coordinator_subject,
)
from wire.protobuf.transactions_pb2 import (
    EndFamilyRequest,
    EndFamilyResponse,
    FamilyMember,
    FamilyRequest,
    FamilyResponse,
    InitResponse,
)
from wire.subjects import Subjects

ENDED = EndFamilyResponse()
ABORTED = EndFamilyResponse(none_committed=True)
SUPERSEDED = EndFamilyResponse(superseded=True)


def prepared(world: World, child: str, *partitions: int, family: str = "f", **more: Any) -> Producer:
    producer = world.init(f"{family}~{child}", **more)
    producer.add(*(partitions or (0,)))
    return producer


def end_request(
    *producers: Producer,
    commits: bool = True,
    sequence: int = 0,
    others: bool = True,
    once: bool = False,
    family: str = "f",
    metadata: str = "",
) -> EndFamilyRequest:
    members = [
        FamilyMember(child=each.name.partition("~")[2], producer_id=each.id, producer_epoch=each.epoch)
        for each in producers
    ]
    return EndFamilyRequest(
        family=family,
        members=members,
        commits=commits,
        sequence=sequence,
        others=others,
        once=once,
        metadata=metadata,
    )


def last(world: World, family: str = "f") -> int | None:
    answer = world.ask(FamilyRequest(family=family))
    assert isinstance(answer, FamilyResponse)
    return answer.sequence if answer.HasField("sequence") else None


def told(world: World) -> set[tuple[str, bool]]:
    return {(each.transactional_id, each.commits) for each in world.undelivered}


def test_a_family_has_one_coordinator_and_one_subject_and_other_ids_stay_where_they_were() -> None:
    assert coordinator_partition("f~1") == coordinator_partition("f~2") == coordinator_partition("f")
    assert coordinator_subject(Subjects("ns"), "init", "f~1") == coordinator_subject(Subjects("ns"), "init", "f")
    assert coordinator_partition("billing-1") == zlib.crc32(b"billing-1") % 8, "as before there were families"


@pytest.mark.parametrize("kept", range(5))
def test_a_commit_of_which_the_first_records_are_there_is_complete(kept: int) -> None:
    """The records of a settlement may take several batches."""
    world = World()
    world.confirms = False
    request = end_request(a := prepared(world, "a", 0, 1), prepared(world, "b", 2), sequence=1)
    loser = prepared(world, "loser", 3)
    world.shard.take("driver", request)
    records = world.shard.settle(world.now, world.times).records
    assert next(key for key, _ in records) == FamilyKey("f").encode()
    assert len(records) == 4
    world.log += records[:kept]
    world.fail_over()
    states = {name: each.state for name, each in world.shard.transactions.items()}
    if kept == 0:
        assert all(isinstance(state, Open) for state in states.values())
        assert last(world) is None
    else:
        assert told(world) == {("f~a", True), ("f~b", True), *([("f~loser", False)] if kept == 4 else [])}
        assert last(world) == 1
        world.fail_over(compacted=True)
        assert {("f~a", True), ("f~b", True)} <= told(world)
    token = world.send(request)
    world.confirms = True
    world.confirm()
    world.settle()
    assert world.answers[token] == ENDED
    assert a.refused(a.end_request(commits=False)) is Code.TRANSACTION_COMMITTED
    assert isinstance(world.shard.transactions[loser.name].state, Open) is (0 < kept < 4)


def test_nothing_comes_before_the_records_of_what_a_family_has_decided_alone() -> None:
    """Or else the next commit of the family would take its record, and with it the decision."""
    world = World()
    world.confirms = False
    world.shard.take("driver", end_request(prepared(world, "a"), prepared(world, "b"), sequence=1))
    world.log += world.shard.settle(world.now, world.times).records[:1]
    world.undelivered.clear()
    world.shard = world.successor()
    world.shard.take("next", end_request(sequence=2))
    first = world.shard.settle(world.now, world.times)
    assert {key for key, _ in first.records} == {b"t\0f~a", b"t\0f~b"}
    assert not first.answers
    assert world.shard.is_waiting


def test_metadata_is_kept_with_the_commit_that_has_brought_it() -> None:
    world = World()
    world.ask(end_request(prepared(world, "a"), sequence=1, metadata="of a"))
    assert world.ask(end_request(prepared(world, "b"), sequence=1, metadata="of b")) == SUPERSEDED
    assert code(world.ask(end_request(sequence=2, metadata="x" * 513))) is Code.BAD_REQUEST
    world.now += 1
    world.settle()  # the record is written again, without its members
    for compacted in (False, True):
        world.fail_over(compacted=compacted)
        assert world.ask(FamilyRequest(family="f")) == FamilyResponse(sequence=1, metadata="of a")


def test_an_init_may_leave_an_open_transaction_alone() -> None:
    """Which may be prepared: its producer has given it away."""
    world = World()
    a = prepared(world, "a")
    asks = init_request("f~a")
    asks.yields = True
    assert code(world.ask(asks)) is Code.PRODUCER_FENCED
    assert world.ask(end_request(a, sequence=1)) == ENDED
    world.settle()
    answer = world.ask(asks)
    assert isinstance(answer, InitResponse)
    assert (answer.producer_id, answer.producer_epoch) == (a.id, a.epoch + 2), "as any other init"


def test_a_commit_is_the_last_request_of_its_settlement() -> None:
    """Of two commits of a family in one settlement the record of the first one would not be written."""
    world = World()
    world.shard.take(1, end_request(prepared(world, "a"), sequence=1, others=False))
    world.shard.take(2, FamilyRequest(family="f"))
    assert [token for token, _ in world.shard.settle(world.now, world.times).answers] == []
    settled = world.shard.settle(world.now, world.times)
    assert settled.answers == [(2, FamilyResponse(sequence=1))]


def test_a_commit_that_is_repeated_waits_for_markers_as_the_first_one() -> None:
    world = World()
    request = end_request(prepared(world, "a", 0, 1), prepared(world, "b"))
    world.confirms = False
    first = world.send(request)
    second = world.send(request)
    world.fail_over()
    third = world.send(request)
    for each in [*world.undelivered][:-1]:
        world.confirm(each)
        world.settle()
    assert not {first, second, third} & {*world.answers}
    world.confirm()
    world.settle()
    assert world.answers[third] == ENDED
    world.pass_(1)
    world.fail_over(compacted=True)
    assert world.ask(request) == ENDED, "the members are forgotten, and not their digest"


def test_what_a_commit_waits_for_is_named() -> None:
    world = World()
    world.confirms = False
    token = world.send(end_request(prepared(world, "a", 0, 1)))
    world.confirm(world.undelivered[0])
    world.pass_(2)
    assert world.answers[token] == EndFamilyResponse(waits_for=["s/1"])


@pytest.mark.parametrize("sequence", [0, 7])
def test_a_number_is_committed_once_and_a_smaller_one_never(sequence: int) -> None:
    world = World()
    assert world.ask(end_request(prepared(world, "a"), sequence=sequence)) == ENDED
    again = prepared(world, "a")
    world.confirms = False
    assert world.ask(end_request(again, sequence=sequence)) == SUPERSEDED
    assert told(world) == {("f~a", False)}
    world.confirms = True
    world.confirm()
    world.settle()
    if sequence:
        late = prepared(world, "a")
        assert code(world.ask(end_request(late, sequence=sequence - 1))) is Code.STALE_COMMIT
        assert late.refused(late.end_request()) is Code.TRANSACTION_ABORTED
    assert last(world) == sequence


def outcome(answer: Any) -> str | None:
    """Returns the outcome that the refusal of a commit reports."""
    assert code(answer) is Code.STALE_COMMIT
    told: str | None = answer.detail(OUTCOME)
    return told


def test_a_commit_that_comes_again_behind_later_ones_is_told_as_committed_while_that_is_known() -> None:
    world = World()
    first = end_request(prepared(world, "a"), sequence=1)
    assert world.ask(first) == ENDED
    for sequence in range(2, EARLIER_KEPT + 2):
        assert world.ask(end_request(prepared(world, "a"), sequence=sequence)) == ENDED
        assert world.ask(first) == ENDED
    world.pass_(1)
    world.fail_over(compacted=True)
    assert world.ask(first) == ENDED, "the numbers of earlier commits are in the record"
    other = end_request(prepared(world, "a"), sequence=1)
    world.init("f~a")
    world.init("f~a")
    assert outcome(world.ask(other)) == "unknown", "others have that number, and these may have had another one"
    assert world.ask(end_request(prepared(world, "a"), sequence=sequence + 1)) == ENDED
    assert outcome(world.ask(first)) == "unknown"
    assert outcome(world.ask(other)) == "unknown"
    assert last(world) == sequence + 1


@pytest.mark.parametrize("sequence", [4, 5, 6, 8, 9])
def test_what_is_known_to_be_committed_is_not_denied_under_another_number(sequence: int) -> None:
    world = World()
    first = prepared(world, "a")
    assert world.ask(end_request(first, sequence=5)) == ENDED
    assert world.ask(end_request(prepared(world, "a"), sequence=8)) == ENDED
    answer = world.ask(end_request(first, sequence=sequence))
    assert (answer == ENDED) if sequence <= 8 else (code(answer) is Code.TRANSACTION_COMMITTED)
    assert last(world) == 8, "a number above the last one is not taken"


@pytest.mark.parametrize("sequence", [4, 5, 6, 9])
def test_what_is_committed_with_others_than_these_is_not_told_as_not_committed(sequence: int) -> None:
    world = World()
    a, late = prepared(world, "a"), prepared(world, "b")
    assert world.ask(end_request(a, sequence=5, others=False)) == ENDED
    assert world.ask(end_request(prepared(world, "c"), sequence=6, others=False)) == ENDED
    answer = world.ask(end_request(a, late, sequence=sequence))
    if sequence == 6:
        assert answer == SUPERSEDED, "the number is committed, so nothing is written again"
    else:
        assert code(answer) is Code.TRANSACTION_COMMITTED
    assert late.refused(late.end_request()) is Code.TRANSACTION_ABORTED


def test_a_number_without_transactions_is_told_as_committed_where_it_was() -> None:
    world = World()
    for sequence in (3, 5):
        assert world.ask(end_request(sequence=sequence)) == ENDED
    assert world.ask(end_request(sequence=3)) == ENDED
    assert outcome(world.ask(end_request(sequence=4))) == "not_written"


def test_the_answer_of_a_commit_is_not_held_up_by_another_one_with_its_number() -> None:
    world = World()
    first = prepared(world, "a")
    assert world.ask(end_request(first, sequence=5)) == ENDED
    world.confirms = False
    token = world.send(end_request(prepared(world, "b"), sequence=8))
    assert world.ask(end_request(first, sequence=8)) == ENDED
    world.confirm()
    world.settle()
    assert world.answers[token] == ENDED


@pytest.mark.parametrize("why", ["once", "a month", "no room"])
def test_a_commit_of_a_family_that_is_forgotten_is_not_told_as_not_committed(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    a = prepared(world, "a")
    request = end_request(a, sequence=3, once=why == "once")
    assert world.ask(request) == ENDED
    world.pass_(1)
    if why == "no room":
        monkeypatch.setattr(families, "MAX_FAMILIES", 1)
        world.time_ns += families.KEPT_WHEN_FULL_S * 10**9 + 10**9
        assert world.ask(end_request(prepared(world, "a", family="g"), family="g")) == ENDED
    else:
        world.time_ns += (families.KEPT_ONCE_S if why == "once" else families.KEPT_S) * 10**9 + 10**9
        world.pass_(61)
    assert last(world) is None
    world.init("f~a")
    answer = world.ask(request)
    assert outcome(answer) == "unknown"
    assert isinstance(answer, TidelogError)
    assert "a" in answer.message
    assert "before you write them again" in answer.message
    assert last(world) is None


def test_a_family_that_begins_anew_with_a_smaller_number_denies_no_commit_of_the_forgotten_one() -> None:
    world = World()
    request = end_request(prepared(world, "a"), sequence=3)
    assert world.ask(request) == ENDED
    world.pass_(1)
    world.time_ns += families.KEPT_S * 10**9 + 10**9
    world.pass_(61)
    assert last(world) is None
    assert world.ask(end_request(prepared(world, "a"), sequence=2)) == ENDED
    assert outcome(world.ask(request)) == "unknown"
    assert last(world) == 2
    assert world.ask(end_request(prepared(world, "a"), sequence=3)) == ENDED
    assert outcome(world.ask(request)) == "unknown", "others have its number"
    assert last(world) == 3


@pytest.mark.parametrize("sequence", [1, 2, 5, 9, 10, 11])
def test_a_commit_that_is_not_kept_any_more_is_denied_under_no_number(sequence: int) -> None:
    world = World()
    first = prepared(world, "a")
    assert world.ask(end_request(first, sequence=1)) == ENDED
    for later in range(2, EARLIER_KEPT + 3):
        assert world.ask(end_request(prepared(world, "a"), sequence=later)) == ENDED
    assert outcome(world.ask(end_request(first, sequence=sequence))) == "unknown"
    assert last(world) == EARLIER_KEPT + 2


def test_what_was_committed_before_later_commits_is_not_told_as_aborted() -> None:
    world = World()
    first = prepared(world, "a")
    assert world.ask(end_request(first, sequence=1)) == ENDED
    assert world.ask(end_request(prepared(world, "a"), sequence=2)) == ENDED
    assert code(world.ask(end_request(first, commits=False))) is Code.TRANSACTION_COMMITTED


def test_an_abort_of_what_is_not_known_any_more_does_not_say_that_it_was_not_committed() -> None:
    world = World()
    first = prepared(world, "a")
    assert world.ask(end_request(first, sequence=1)) == ENDED
    for sequence in range(2, EARLIER_KEPT + 3):
        assert world.ask(end_request(prepared(world, "a"), sequence=sequence)) == ENDED
    late = prepared(world, "b")
    assert world.ask(end_request(first, late, commits=False)) == ENDED
    assert world.ask(end_request(late, commits=False)) == ABORTED
    forgotten = prepared(world, "c")
    forgotten.name = "f~nobody"
    assert world.ask(end_request(forgotten, commits=False)) == ENDED


def test_a_commit_of_long_ago_is_known_by_its_transactions_until_newer_producers_have_begun() -> None:
    world = World()
    both = end_request(prepared(world, "a"), prepared(world, "b"), sequence=0)
    assert world.ask(both) == ENDED
    for sequence in range(1, EARLIER_KEPT + 3):
        assert world.ask(end_request(prepared(world, "c"), sequence=sequence)) == ENDED
    assert world.ask(both) == ENDED
    world.init("f~a")
    assert outcome(world.ask(both)) == "unknown", "one of them is known to be committed"
    late, gone = prepared(world, "b"), prepared(world, "d")
    world.init("f~d")
    world.init("f~d")
    assert outcome(world.ask(end_request(late, gone, sequence=0))) == "not_written", "they are committed together"
    assert late.refused(late.end_request()) is Code.TRANSACTION_ABORTED


def test_the_first_commit_that_is_known_is_not_the_first_there_was() -> None:
    """A record of an earlier version, or of a family that was forgotten, names none before it."""
    world = World()
    first = end_request(prepared(world, "a"), sequence=3)
    world.init("f~a")
    world.init("f~a")
    assert world.ask(end_request(prepared(world, "a"), sequence=5)) == ENDED
    assert outcome(world.ask(first)) == "unknown"


def test_the_other_transactions_of_the_family_stay_where_that_is_asked_for_and_those_of_others_always() -> None:
    world = World()
    stays, mine, plain = prepared(world, "b"), prepared(world, "a"), world.init("f")
    other = world.init("ff~b")
    for each in (plain, other):
        each.add(0)
    assert world.ask(end_request(mine, sequence=1, others=False)) == ENDED
    assert stays.end().next_epoch == 1
    assert world.ask(end_request(prepared(world, "a"), sequence=2)) == ENDED
    assert isinstance(world.shard.transactions["f"].state, Open)
    assert isinstance(world.shard.transactions["ff~b"].state, Open)


@pytest.mark.parametrize("why", ["timed out", "fenced", "aborted", "committed", "unknown", "empty", "older", "newer"])
def test_one_that_is_not_open_keeps_all_from_being_committed(why: str) -> None:
    world = World()
    good, bad = prepared(world, "good"), prepared(world, "bad", timeout=10 if why == "timed out" else 60)
    match why:
        case "timed out":
            world.pass_(11)
        case "fenced":
            world.init("f~bad")
        case "aborted" | "committed":
            world.ask(bad.end_request(commits=why == "committed"))
        case "unknown":
            bad.name = "f~nobody"
        case "empty":
            bad = world.init("f~empty")
        case "older":
            bad.end(commits=False)
            bad.add(0)
            bad.epoch -= 1
        case "newer":
            bad.epoch += 1
        case _:
            raise AssertionError(why)
    answer = world.ask(end_request(good, bad))
    assert code(answer) is (Code.TRANSACTION_COMMITTED if why == "committed" else Code.TRANSACTION_ABORTED)
    assert isinstance(answer, TidelogError)
    assert bad.name in answer.message
    assert ("Write them again" in answer.message) is (why != "committed")
    assert last(world) is None
    assert good.refused(good.end_request()) is Code.TRANSACTION_ABORTED
    assert world.ask(end_request(prepared(world, "good"))) == ENDED, "the number is free still"


def test_a_part_of_the_family_is_aborted_and_what_is_committed_is_not() -> None:
    world = World()
    a, b, c = (prepared(world, each) for each in "abc")
    assert world.ask(end_request(a, commits=False, others=False)) == ABORTED
    assert world.ask(end_request(a, commits=False, others=False)) == ABORTED
    assert world.ask(end_request(b, others=False)) == ENDED
    assert code(world.ask(end_request(b, commits=False, others=False))) is Code.TRANSACTION_COMMITTED
    assert isinstance(world.shard.transactions[c.name].state, Open)
    assert world.ask(end_request(commits=False)) == ABORTED
    assert isinstance(world.shard.transactions[c.name].state, Idle)


def test_an_abort_of_all_others_ends_a_newer_transaction_under_the_id_of_one_that_is_named() -> None:
    world = World()
    older = prepared(world, "a")
    newer = prepared(world, "a")
    world.ask(end_request(older, commits=False, others=False))
    assert isinstance(world.shard.transactions["f~a"].state, Open)
    world.ask(end_request(older, commits=False))
    assert isinstance(world.shard.transactions["f~a"].state, Idle)
    assert newer.refused(newer.end_request()) is Code.PRODUCER_FENCED


def test_the_next_commit_waits_until_the_answer_of_the_one_before_has_left() -> None:
    """Or else that one would hear that its number is too small."""
    world = World()
    world.confirms = False
    first = world.send(end_request(prepared(world, "a"), sequence=1))
    assert code(world.ask(end_request(sequence=2))) is Code.UNAVAILABLE
    world.pass_(2)
    assert isinstance(world.answers[first], EndFamilyResponse)
    assert world.ask(end_request(sequence=2)) == ENDED
    assert isinstance(world.shard.transactions["f~a"].state, Ending)


@pytest.mark.parametrize(
    "request_",
    [
        EndFamilyRequest(family="f", members=[FamilyMember(child="a"), FamilyMember(child="a")]),
        EndFamilyRequest(family="f", members=[FamilyMember(child=str(n)) for n in range(MAX_MEMBERS + 1)]),
        EndFamilyRequest(family="f", sequence=1 << 63, commits=True),
        EndFamilyRequest(family="f", members=[FamilyMember(child="a~b")]),
        EndFamilyRequest(family="f~a"),
        FamilyRequest(family=""),
    ],
)
def test_what_cannot_be_is_refused(request_: Any) -> None:
    world = World()
    assert code(world.ask(request_)) in (Code.BAD_REQUEST, Code.BAD_NAME)
    assert not world.log


@pytest.mark.parametrize("name", ["f~", "~a", "f~a~b", "f~a.b", f"{'f' * 65}~a", f"f~{'a' * 65}"])
def test_an_id_that_is_no_child_of_a_family_is_refused(name: str) -> None:
    assert code(World().ask(init_request(name))) is Code.BAD_NAME


def test_the_last_commit_is_kept_for_a_month_and_longer_while_a_family_is_at_work() -> None:
    world = World()
    for sequence in range(2):
        assert world.ask(end_request(prepared(world, "a"), sequence=sequence)) == ENDED
        world.pass_(1)
        world.time_ns += (families.KEPT_S - 3600) * 10**9
        world.pass_(61)
        assert last(world) == sequence
    assert "f~a" not in world.shard.transactions, "an id without a transaction is forgotten after a week"
    world.time_ns += 3600 * 10**9
    world.pass_(61)
    assert last(world) is None
    assert world.successor(compacted=True).families.by_name == {}


def test_a_family_that_commits_once_is_forgotten_with_its_ids() -> None:
    world = World()
    assert world.ask(end_request(prepared(world, "a"), once=True)) == ENDED
    assert world.ask(end_request(prepared(world, "b", family="g"), family="g")) == ENDED
    world.pass_(1)
    world.fail_over(compacted=True)
    world.time_ns += (families.KEPT_ONCE_S - 3600) * 10**9
    world.pass_(61)
    assert last(world) == 0
    world.time_ns += 3600 * 10**9
    world.pass_(61)
    assert last(world) is None
    assert [*world.shard.transactions] == ["g~b"]
    assert [*world.successor(compacted=True).families.by_name] == ["g"]


def test_a_commit_that_would_keep_its_coordinator_busy_for_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "MAX_TOLD", 3)
    world = World()
    first, second = prepared(world, "a", 0, 1), prepared(world, "b", 0, 1)
    assert code(world.ask(end_request(first, second))) is Code.LIMIT_REACHED
    assert first.refused(first.end_request()) is Code.TRANSACTION_ABORTED
    assert last(world) is None
    assert world.ask(end_request(prepared(world, "a", 0, 1, 2))) == ENDED


def test_where_there_is_no_room_families_that_did_nothing_for_a_week_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "MAX_FAMILIES", 2)
    world = World()
    for name in ("f", "g"):
        assert world.ask(end_request(family=name)) == ENDED
    assert code(world.ask(end_request(family="h"))) is Code.LIMIT_REACHED
    world.time_ns += families.KEPT_WHEN_FULL_S * 10**9 + 10**9
    assert world.ask(end_request(family="f", sequence=1)) == ENDED
    assert world.ask(end_request(family="h")) == ENDED
    assert [*world.shard.families.by_name] == ["f", "h"]


def test_a_commit_that_comes_again_behind_the_next_one_does_not_end_the_wait_of_that_one() -> None:
    world = World()
    first = end_request(prepared(world, "a"), sequence=1)
    assert world.ask(first) == ENDED
    world.confirms = False
    second = world.send(end_request(prepared(world, "b", 0, 1), sequence=2))
    assert world.ask(first) == ENDED
    world.confirm(world.undelivered[0])
    world.pass_(2)
    assert world.answers[second] == EndFamilyResponse(waits_for=["s/1"])
    world.pass_(2)
    third = world.send(end_request(prepared(world, "c", 2), sequence=3))
    assert world.ask(first) == ENDED
    world.confirm()
    world.settle()
    assert world.answers[third] == ENDED, "it is answered when all know"


def test_a_commit_behind_which_there_is_another_one_tells_what_it_waits_for() -> None:
    world = World()
    world.confirms = False
    first = end_request(prepared(world, "a"), sequence=1)
    world.send(first)
    world.pass_(2)
    assert world.ask(end_request(sequence=2)) == ENDED
    assert world.ask(first) == EndFamilyResponse(waits_for=["s/0"])


def test_the_largest_request_is_one_that_a_coordinator_takes() -> None:
    most = (1 << 63) - 1
    members = [
        FamilyMember(child=f"{number:a>64}", producer_id=most, producer_epoch=MAX_EPOCH)
        for number in range(MAX_MEMBERS)
    ]
    request = EndFamilyRequest(
        family="f" * 64, members=members, commits=True, sequence=most, others=True, cluster_id="c" * 64
    )
    assert request.ByteSize() <= MAX_REQUEST_BYTES


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six participants."""
    monkeypatch.setattr(shard_module, "MAX_ASKED", 18)


def settled(world: World, most: int = 1000) -> list[Settled]:
    """The next settlements, until nothing waits."""
    found: list[Settled] = []
    while world.shard.is_waiting and len(found) < most:
        found.append(world.shard.settle(world.now, world.times))
        world.shard.validate()
        world.log += found[-1].records
    return found


@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize("others", [True, False])
def test_a_family_is_committed_in_turns_and_nothing_else_is_decided_before_its_end(others: bool) -> None:
    world = World()
    members = [prepared(world, str(number), 0, 1, 2) for number in range(5)]
    losers = [prepared(world, f"loser{number}", 0, 1, 2) for number in range(3)]
    world.confirms = False
    world.shard.take("end", end_request(*members, sequence=1, others=others))
    world.shard.take("next", end_request(losers[0], sequence=2))
    world.shard.take("last", FamilyRequest(family="f"))
    found = settled(world)
    told = [len(each.deliveries) for each in found]
    assert max(told) <= 6
    assert sum(told) == (24 if others else 15)
    turns = 4 if others else 3
    assert all(told[:turns])
    assert not any(each.answers for each in found[:turns])
    answers = {token: answer for each in found for token, answer in each.answers}
    assert code(answers["next"]) is Code.UNAVAILABLE, "the answer of the first one is held"
    assert answers["last"] == FamilyResponse(sequence=1)
    assert {world.shard.transactions[each.name].state_name for each in members} == {"committing"}
    assert {world.shard.transactions[each.name].state_name for each in losers} == {"aborting" if others else "open"}


@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize("died_after", range(6))
def test_a_commit_in_turns_is_complete_wherever_the_coordinator_dies(died_after: int) -> None:
    world = World()
    members = [prepared(world, str(number), 0, 1, 2) for number in range(5)]
    request = end_request(*members, sequence=1)
    world.confirms = False
    world.shard.take("end", request)
    settled(world, died_after)
    world.fail_over(compacted=True)
    committed = {world.shard.transactions[each.name].state_name for each in members}
    assert committed == {"committing" if died_after else "open"}
    assert last(world) == (1 if died_after else None)
    world.confirms = True
    world.settle()
    assert len([each for each in world.undelivered if each.commits]) in (0, 15)
    world.confirm()
    world.settle()
    assert world.ask(request) == ENDED
    assert {world.shard.transactions[each.name].last for each in members} == {Outcome.COMMITTED}
    world.pass_(0.5)
    assert world.shard.families.by_name["f"].members == ()


@pytest.mark.usefixtures("short_turns")
def test_the_answer_to_an_end_is_due_when_all_are_aborted() -> None:
    world = World()
    members = [prepared(world, str(number), 0, 1, 2) for number in range(5)]
    world.confirms = False
    world.shard.take("end", end_request(*members, commits=False))
    found = settled(world)
    answered = [number for number, each in enumerate(found) if each.answers]
    told = [number for number, each in enumerate(found) if each.deliveries]
    assert (answered, told) == ([2], [0, 1, 2])
    assert found[2].answers == [("end", ABORTED)]
    assert found[2].begun == {"end"}, "some of it is decided before"
    world.shard.take("again", end_request(*members, sequence=1))
    refused = [answer for each in settled(world) for _, answer in each.answers]
    assert [code(each) for each in refused] == [Code.TRANSACTION_ABORTED]


@pytest.mark.usefixtures("short_turns")
def test_the_end_of_a_family_that_is_under_way_is_given_up_as_one_that_may_be_decided() -> None:
    world = World()
    members = [prepared(world, str(number), 0, 1, 2) for number in range(5)]
    world.shard.take("end", end_request(*members, commits=False))
    assert not settled(world, 1)[0].answers
    assert world.shard.waiting == 1
    assert world.shard.abandon() == ([], ["end"])
