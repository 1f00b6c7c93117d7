"""Transactions from begin to end: who is fenced, what is decided, what is told, and what a successor knows."""

from __future__ import annotations

import pytest

from tests.unit.tidelog.server.coordinators.groups.groups_world import make_ticket, view
from tests.unit.tidelog.server.coordinators.transactions.transactions_world import (
    ID,
    PARTITION,
    TIMEOUT,
    World,
    code,
    init_request,
    partition,
)
from tidelog.server.coordinators.transactions import transaction_shard as module
from tidelog.server.coordinators.transactions.participants import GroupIn, PartitionIn
from tidelog.server.coordinators.transactions.transaction_metadata import Idle, Open, Outcome
from tidelog.server.coordinators.transactions.transaction_shard import BARRIER, HOLD_S, MAX_HELD
from wire.errors import Code, TidelogError
from wire.internal_records import transaction_records
from wire.internal_records.transaction_records import MAX_EPOCH, MAX_TIMEOUT_MS, ProducerIdsKey, producer_id
from wire.operations.transaction_operations import TRANSACTION_ABORT, TRANSACTION_DESCRIBE, TRANSACTION_LIST
from wire.protobuf.transactions_pb2 import AddRequest, AddResponse, EndRequest, EndResponse, InitRequest, InitResponse
from wire.security.tickets import group_target, partition_target


def test_a_transaction_is_told_to_all_that_take_part_and_the_next_one_has_the_next_epoch() -> None:
    world = World()
    producer = world.init()
    assert (producer.id, producer.epoch) == (producer_id(PARTITION, 0), 0)
    tickets = producer.add(0, 2, groups=("g",))
    targets = [partition_target("s", 1, 0, 1), partition_target("s", 1, 2, 1), group_target("g")]
    assert tickets == [make_ticket(producer.id, 0, target) for target in targets]
    world.confirms = False
    token = world.send(producer.end_request())
    assert token not in world.answers
    assert {told.to for told in world.undelivered} == {
        PartitionIn("s", 1, 0, 1),
        PartitionIn("s", 1, 2, 1),
        GroupIn("g"),
    }
    assert {(told.producer_id, told.producer_epoch, told.commits) for told in world.undelivered} == {
        (producer.id, 0, True)
    }
    world.confirm(*world.undelivered[:2])
    world.settle()
    assert token not in world.answers
    world.confirm()
    world.settle()
    answer = world.answers[token]
    assert isinstance(answer, EndResponse)
    assert (answer.next_epoch, [*answer.waits_for]) == (1, [])


def test_a_decision_is_told_with_its_record_and_not_before() -> None:
    """The driver lets deliveries go when the records are committed."""
    world = World()
    producer = world.init()
    producer.add(0)
    world.shard.take("end", producer.end_request())
    settled = world.shard.settle(world.now, world.times)
    assert len(settled.records) == len(settled.deliveries) == 1
    assert not settled.answers
    assert world.successor().transactions[ID].state_name == "open", "without that record nothing is decided"
    world.log += settled.records
    assert world.successor().transactions[ID].state_name == "committing"


def test_a_successor_tells_again_what_was_decided() -> None:
    for commits in (True, False):
        world = World()
        producer = world.init()
        producer.add(0, groups=("g",))
        world.confirms = False
        world.send(producer.end_request(commits=commits))
        first = {*world.undelivered}
        world.fail_over(compacted=True)
        assert {*world.undelivered} == first
        world.confirms = True
        world.confirm()
        world.settle()
        assert producer.end(commits=commits).next_epoch == 1, "sent again: the first one's answer was lost"


def test_an_end_that_is_sent_again_is_answered_alike_and_the_contrary_is_refused() -> None:
    world = World()
    producer = world.init()
    producer.add(0)
    assert producer.end().next_epoch == 1
    assert producer.end(epoch=0).next_epoch == 1
    world.fail_over()
    assert producer.end(epoch=0).next_epoch == 1
    assert producer.refused(producer.end_request(commits=False, epoch=0)) is Code.TRANSACTION_COMMITTED
    producer.add(1)
    assert producer.end(commits=False).next_epoch == 2
    assert producer.refused(producer.end_request(commits=True, epoch=1)) is Code.TRANSACTION_ABORTED
    assert producer.refused(producer.end_request(epoch=0)) is Code.PRODUCER_FENCED


def test_while_it_ends_the_contrary_is_refused_and_the_same_waits() -> None:
    world = World()
    producer = world.init()
    producer.add(0)
    world.confirms = False
    first = world.send(producer.end_request(commits=False))
    assert producer.refused(producer.end_request(commits=True)) is Code.TRANSACTION_ABORTED
    second = world.send(producer.end_request(commits=False))
    world.confirm()
    world.settle()
    assert world.answers[first] == world.answers[second] == EndResponse(next_epoch=1)


def test_an_end_of_nothing_raises_the_epoch_so_that_it_ends_nothing_when_it_comes_late() -> None:
    """Or else it would end the next transaction, of which its producer has written a part."""
    world = World()
    producer = world.init()
    late = producer.end_request(commits=False)
    assert producer.end(commits=False).next_epoch == 1
    producer.add(0)
    assert world.ask(late) == EndResponse(next_epoch=1)
    assert isinstance(world.shard.transactions[ID].state, Open)


def test_a_commit_of_a_transaction_that_its_coordinator_does_not_know_is_refused_for_good() -> None:
    """Its records were lost, so nobody would tell the partitions."""
    world = World()
    producer = world.init()
    assert producer.refused(producer.end_request()) is Code.TRANSACTION_ABORTED
    assert producer.refused(producer.end_request(epoch=0)) is Code.TRANSACTION_ABORTED
    producer.add(0, epoch=1)
    assert producer.refused(producer.end_request(epoch=0)) is Code.TRANSACTION_ABORTED
    assert isinstance(world.shard.transactions[ID].state, Open)


def test_a_new_producer_aborts_the_transaction_of_the_older_one_and_fences_it() -> None:
    world = World()
    old = world.init()
    old.add(0)
    world.confirms = False
    token = world.send(init_request())
    (told,) = world.undelivered
    assert (told.producer_epoch, told.commits) == (0, False)
    assert old.refused(old.add_request(1)) is Code.PRODUCER_FENCED
    assert old.refused(old.end_request()) is Code.PRODUCER_FENCED
    assert token not in world.answers, "a marker is missing: what the older one wrote would be seen with the new one's"
    world.confirm()
    world.settle()
    assert world.answers[token] == old.began(2)
    for epoch in (0, 1):
        assert old.refused(old.add_request(1, epoch=epoch)) is Code.PRODUCER_FENCED
        assert old.refused(old.end_request(epoch=epoch)) is Code.PRODUCER_FENCED
        assert old.refused(old.end_request(epoch=epoch, commits=False)) is Code.PRODUCER_FENCED


def test_a_new_producer_fences_an_older_one_that_is_idle() -> None:
    world = World()
    old = world.init()
    new = world.init()
    assert (new.id, new.epoch) == (old.id, 1)
    assert old.refused(old.add_request(0)) is Code.PRODUCER_FENCED
    assert old.refused(old.end_request()) is Code.PRODUCER_FENCED


def test_a_new_producer_does_not_change_what_the_older_one_has_decided() -> None:
    world = World()
    old = world.init()
    old.add(0)
    world.confirms = False
    end = world.send(old.end_request())
    init = world.send(init_request())
    again = world.send(old.end_request())
    assert all(told.commits for told in world.undelivered)
    world.confirm()
    world.settle()
    assert world.answers[end] == world.answers[again] == EndResponse(next_epoch=1), "ends are answered before inits"
    assert world.answers[init] == old.began(2)


def test_two_producers_that_begin_at_once_have_different_epochs() -> None:
    world = World()
    world.init().add(0)
    world.confirms = False
    tokens = [world.send(init_request()) for _ in range(2)]
    world.confirm()
    world.settle()
    answers = [world.answers[token] for token in tokens]
    assert [answer.producer_epoch for answer in answers if isinstance(answer, InitResponse)] == [2, 3]


def test_the_first_add_of_the_next_transaction_waits_for_the_end_of_the_one_before() -> None:
    world = World()
    producer = world.init()
    producer.add(0)
    world.confirms = False
    world.send(producer.end_request())
    token = world.send(producer.add_request(0, epoch=1))
    assert token not in world.answers
    world.confirm()
    world.settle()
    assert isinstance(world.answers[token], AddResponse)
    state = world.shard.transactions[ID]
    assert (state.epoch, isinstance(state.state, Open)) == (1, True)


def test_what_is_held_for_long_is_answered_with_what_it_waits_for() -> None:
    world = World()
    producer = world.init()
    producer.add(0, groups=("g",))
    world.confirms = False
    end = world.send(producer.end_request())
    add = world.send(producer.add_request(0, epoch=1))
    init = world.send(init_request())
    world.pass_(HOLD_S + 0.5)
    answer = world.answers[end]
    assert isinstance(answer, EndResponse)
    assert (answer.next_epoch, sorted(answer.waits_for)) == (1, ["group g", "s/0"])
    for token in (add, init):
        refused = world.answers[token]
        assert code(refused) is Code.UNAVAILABLE
        assert isinstance(refused, TidelogError)
        assert refused.retry_after
    assert world.ask(producer.end_request()) == answer, "at once: it was decided long ago"
    world.confirms = True
    world.confirm()
    world.settle()
    producer.epoch = 1
    producer.add(0)


def test_requests_that_are_held_are_bounded_and_given_up_with_the_shard() -> None:
    world = World()
    producer = world.init()
    producer.add(0)
    world.confirms = False
    tokens = [world.send(producer.end_request()) for _ in range(MAX_HELD)]
    assert world.shard.waiting == MAX_HELD
    assert world.shard.waiting_bytes == MAX_HELD * producer.end_request().ByteSize()
    assert producer.refused(producer.end_request()) is Code.BACKPRESSURE
    world.shard.take("new", init_request())
    assert world.shard.abandon() == (["new"], tokens)
    assert (world.shard.waiting, world.shard.waiting_bytes) == (0, 0)


# ---- timeouts ------------------------------------------------------------------------------------------------------


def test_a_transaction_that_is_open_for_too_long_is_aborted_and_its_producer_goes_on() -> None:
    world = World()
    producer = world.init()
    producer.add(0)
    world.pass_(TIMEOUT - 1)
    assert isinstance(world.shard.transactions[ID].state, Open)
    world.pass_(2)
    assert isinstance(world.shard.transactions[ID].state, Idle)
    assert producer.refused(producer.add_request(1)) is Code.TRANSACTION_ABORTED
    assert producer.refused(producer.end_request()) is Code.TRANSACTION_ABORTED
    assert producer.end(commits=False).next_epoch == 1
    producer.add(1)
    assert producer.end().next_epoch == 2


def test_while_a_transaction_is_aborted_for_its_timeout_its_producer_hears_so() -> None:
    world = World()
    producer = world.init()
    producer.add(0)
    world.confirms = False
    world.pass_(TIMEOUT + 1)
    assert producer.refused(producer.add_request(1)) is Code.TRANSACTION_ABORTED
    assert producer.refused(producer.end_request()) is Code.TRANSACTION_ABORTED
    world.fail_over()
    assert world.shard.transactions[ID].state_name == "aborting"
    assert producer.refused(producer.end_request()) is Code.TRANSACTION_ABORTED


def test_an_end_that_waits_to_be_carried_out_comes_before_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    producer, other = world.init(), world.init("other")
    producer.add(0)
    monkeypatch.setattr(module, "MAX_BYTES", 1)
    world.now += 2 * TIMEOUT
    world.shard.take("other", other.add_request(1))
    world.shard.take("end", producer.end_request())
    world.settle()
    assert world.answers["end"] == EndResponse(next_epoch=1)


def test_a_new_coordinator_gives_a_transaction_the_time_that_is_left_and_patience_at_least() -> None:
    for waited, left in ((20.0, 40.0), (59.0, 5.0), (1000.0, 5.0), (-1000.0, 60.0)):
        world = World()
        world.init().add(0)
        world.time_ns += round(waited * 1e9)
        world.fail_over()
        state = world.shard.transactions[ID].state
        assert isinstance(state, Open)
        assert state.deadline - world.now == pytest.approx(left), waited


@pytest.mark.parametrize("opened", ["agreed", "not agreed"])
def test_a_new_coordinator_whose_clock_is_off_gives_a_transaction_all_of_its_time(opened: str) -> None:
    """As where the clock was off when the transaction began."""
    world = World()
    world.agrees = opened == "agreed"
    world.init().add(0)
    world.agrees = not world.agrees
    world.time_ns += 8 * 24 * 3600 * 10**9
    world.fail_over()
    state = world.shard.transactions[ID].state
    assert isinstance(state, Open)
    assert state.deadline - world.now == pytest.approx(60.0)


@pytest.mark.parametrize("days", [8, -8])
def test_a_coordinator_whose_clock_is_off_forgets_no_id(days: int) -> None:
    world = World()
    world.init()
    world.agrees, world.time_ns = False, world.time_ns + days * 24 * 3600 * 10**9
    world.init("other")
    world.now += 120
    world.settle()
    world.agrees, world.time_ns = True, world.time_ns - days * 24 * 3600 * 10**9
    world.now += 120
    world.settle()
    assert list(world.shard.transactions) == [ID, "other"]
    assert world.successor().transactions["other"].changed_at > world.time_ns, "it has no date"


def test_patience_is_no_longer_than_the_timeout() -> None:
    world = World()
    world.init(timeout=0.5).add(0)
    world.fail_over()
    state = world.shard.transactions[ID].state
    assert isinstance(state, Open)
    assert state.deadline - world.now == pytest.approx(0.5)


# ---- streams -------------------------------------------------------------------------------------------------------


def test_a_partition_that_is_gone_needs_no_marker() -> None:
    world = World()
    producer = world.init()
    producer.add(0)
    producer.add(0, stream="r", incarnation=2, partition_incarnation=2)
    world.confirms = False
    token = world.send(producer.end_request())
    world.confirm(*[told for told in world.undelivered if isinstance(told.to, PartitionIn) and told.to.stream == "r"])
    world.change(view(20, r=(2, 1)))
    assert world.answers[token] == EndResponse(next_epoch=1)
    assert not any(map(world.shard.awaits, world.undelivered))


def test_a_stream_that_was_created_again_is_another_one() -> None:
    world = World()
    producer = world.init()
    producer.add(0)
    world.change(view(20, s=(15, 4)))
    world.confirms = False
    assert world.ask(producer.end_request()) == EndResponse(next_epoch=1)
    assert not world.undelivered


def test_a_partition_that_the_metadata_here_do_not_have_yet_is_told() -> None:
    world = World(view(10, s=(1, 4)))
    producer = world.init()
    assert producer.refused(producer.add_request(0, stream="n", incarnation=11)) is Code.UNAVAILABLE
    world.change(view(11, s=(1, 4), n=(11, 1)))
    producer.add(0, stream="n", incarnation=11, partition_incarnation=11)
    world.confirms = False
    world.send(producer.end_request())
    world.view = view(10, s=(1, 4))  # of another broker, which is behind
    world.fail_over()
    assert len(world.undelivered) == 1


def test_a_partition_that_is_not_there_takes_no_part() -> None:
    world = World()
    producer = world.init()
    for more in ({"stream": "x"}, {"incarnation": 2}, {"partition_incarnation": 2}):
        assert producer.refused(producer.add_request(0, **more)) is Code.WRONG_INCARNATION
    assert producer.refused(producer.add_request(4)) is Code.WRONG_INCARNATION
    assert producer.refused(producer.add_request(0, stream="__groups")) is Code.WRONG_INCARNATION
    assert producer.refused(producer.add_request(0, stream="a.b")) is Code.BAD_NAME
    assert producer.refused(producer.add_request(groups=("a b",))) is Code.BAD_NAME
    assert isinstance(world.shard.transactions[ID].state, Idle)


# ---- what cannot be ------------------------------------------------------------------------------------------------


def test_requests_that_cannot_be_are_refused_and_change_nothing() -> None:
    world = World()
    producer = world.init()
    before = [*world.log]
    for request, expected in (
        (InitRequest(transactional_id="a b", timeout_ms=1000), Code.BAD_NAME),
        (InitRequest(transactional_id="x", timeout_ms=0), Code.BAD_REQUEST),
        (InitRequest(transactional_id="x", timeout_ms=MAX_TIMEOUT_MS + 1), Code.BAD_REQUEST),
        (producer.add_request(), Code.BAD_REQUEST),
        (producer.add_request(*range(501)), Code.BAD_REQUEST),
    ):
        assert code(world.ask(request)) is expected, request
    assert world.log == before
    for unknown in (
        AddRequest(transactional_id="x", producer_id=producer.id, partitions=[partition(0)]),
        AddRequest(transactional_id=ID, producer_id=producer.id + 1, partitions=[partition(0)]),
        EndRequest(transactional_id="x", producer_id=producer.id),
        EndRequest(transactional_id=ID, producer_id=producer.id + 1),
        EndRequest(transactional_id=ID, producer_id=producer.id, producer_epoch=5),
        EndRequest(transactional_id=ID, producer_id=producer.id, producer_epoch=-1),
        producer.add_request(0, epoch=1),
        producer.add_request(0, epoch=-1),
    ):
        expected = Code.UNKNOWN_TRANSACTION if unknown.transactional_id == "x" else Code.PRODUCER_FENCED
        assert code(world.ask(unknown)) is expected, unknown
    assert {*world.log[len(before) :]} == {BARRIER}, "what it tells could be wrong by now"


def test_an_add_that_is_sent_again_gives_the_same_tickets_and_writes_nothing() -> None:
    world = World()
    producer = world.init()
    tickets = producer.add(0, groups=("g",))
    before = len(world.log)
    assert producer.add(0, groups=("g",)) == tickets
    assert world.log[before:] == [BARRIER]


def test_an_epoch_that_is_the_last_one_is_followed_by_a_new_number() -> None:
    world = World()
    producer = world.init()
    world.shard.transactions[ID].epoch = producer.epoch = MAX_EPOCH
    producer.add(0)
    assert producer.end().next_epoch == MAX_EPOCH + 1
    assert producer.refused(producer.add_request(0)) is Code.PRODUCER_FENCED
    assert producer.refused(producer.end_request()) is Code.PRODUCER_FENCED
    new = world.init()
    assert (new.id, new.epoch) == (producer.id + 1, 0)
    assert producer.refused(producer.add_request(0)) is Code.PRODUCER_FENCED


# ---- records -------------------------------------------------------------------------------------------------------


def test_numbers_of_producers_are_counted_before_they_are_used() -> None:
    """A part of the records may be all that a successor finds."""
    world = World()
    for name in "abc":
        world.shard.take(name, init_request(name))
    settled = world.shard.settle(world.now, world.times)
    assert settled.records[0][0] == ProducerIdsKey().encode()
    for part in range(len(settled.records) + 1):
        world.log = settled.records[:part]
        world.shard = world.successor()
        known = {each.producer_id for each in world.shard.transactions.values()}
        assert world.init("new").id not in known


def test_ids_that_are_idle_for_a_week_are_forgotten_and_their_numbers_are_not_used_again() -> None:
    world = World()
    first = world.init()
    world.init("open").add(0)
    world.confirms = False
    world.time_ns += (module.KEPT_S + 1) * 10**9
    world.now += 120
    world.settle()
    assert list(world.shard.transactions) == ["open"]
    assert list(world.successor().transactions) == ["open"]
    assert first.refused(first.add_request(0)) is Code.UNKNOWN_TRANSACTION
    assert world.init().id == producer_id(PARTITION, 2)


def test_records_of_kinds_that_this_version_does_not_know_are_skipped() -> None:
    world = World()
    world.init()
    world.log += [(b"z\0new", b"?"), (b"\xff", b""), (b"", None)]
    assert world.successor().unknown_records == 3


def test_what_a_successor_reads_is_what_there_was() -> None:
    world = World()
    world.confirms = False
    for name, action in (("idle", None), ("open", None), ("committing", True), ("aborting", False)):
        producer = world.init(name)
        if name != "idle":
            producer.add(0, 1, groups=("g",))
        if action is not None:
            world.send(producer.end_request(commits=action))
    for compacted in (False, True):
        found = world.successor(compacted=compacted)
        assert {name: each.state_name for name, each in found.transactions.items()} == {
            name: name for name in ("idle", "open", "committing", "aborting")
        }
        assert {name: each.to_record() for name, each in found.transactions.items()} == {
            name: each.to_record() for name, each in world.shard.transactions.items()
        }
        assert found.given == 4


# ---- operators -----------------------------------------------------------------------------------------------------


def test_operators_see_transactions_and_abort_one() -> None:
    world = World()
    world.init("idle")
    producer = world.init()
    producer.add(0, 2, groups=("g",))
    world.confirms = False
    assert [each["transactional_id"] for each in world.admin(TRANSACTION_LIST)["transactions"]] == [ID]
    assert [each["state"] for each in world.admin(TRANSACTION_LIST, True)["transactions"]] == ["open", "idle"]
    found = world.admin(TRANSACTION_DESCRIBE, ID)
    assert (found["state"], found["last"], found["client"]) == ("open", "none", "me@here")
    assert [each["partition"] for each in found["waits_for_partitions"]] == [0, 2]
    assert found["waits_for_groups"] == ["g"]
    aborted = world.admin(TRANSACTION_ABORT, ID)
    assert aborted["state"] == "aborting"
    assert world.admin(TRANSACTION_ABORT, ID) == aborted
    assert producer.refused(producer.end_request()) is Code.PRODUCER_FENCED
    world.confirm()
    world.settle()
    assert producer.refused(producer.add_request(0)) is Code.PRODUCER_FENCED
    assert world.shard.transactions[ID].last is Outcome.NONE
    assert code(world.admin(TRANSACTION_ABORT, ID)) is Code.NOT_IN_TRANSACTION
    assert code(world.admin(TRANSACTION_ABORT, "other")) is Code.UNKNOWN_TRANSACTION


def test_a_list_is_limited_to_a_stream_or_a_group() -> None:
    world = World()
    world.init().add(0)
    world.init("in-group").add(1, groups=("g",))

    def listed(*request: object) -> list[str]:
        return sorted(each["transactional_id"] for each in world.admin(TRANSACTION_LIST, *request)["transactions"])

    assert listed(False, "s") == sorted([ID, "in-group"])
    assert listed(False, "", "g") == listed(False, "s", "g") == ["in-group"]
    assert listed(False, "other") == listed(True, "", "other") == []


def test_what_is_decided_to_be_committed_is_not_aborted() -> None:
    world = World()
    producer = world.init()
    producer.add(0)
    world.confirms = False
    world.send(producer.end_request())
    assert code(world.admin(TRANSACTION_ABORT, ID)) is Code.NOT_IN_TRANSACTION
    assert world.shard.transactions[ID].state_name == "committing"


def test_a_list_is_as_long_as_an_answer_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LISTED", 2)
    world = World()
    for name in "abc":
        world.init(name).add(0)
        world.pass_(0.5)
    found = world.admin(TRANSACTION_LIST)
    assert [each["transactional_id"] for each in found["transactions"]] == ["a", "b"]
    assert found["left_out"] == 1


def test_a_request_adds_at_most_what_fits_into_it() -> None:
    most = AddRequest(
        transactional_id="i" * 64,
        producer_id=(1 << 63) - 1,
        producer_epoch=MAX_EPOCH,
        partitions=[partition(10_000, "s" * 64, (1 << 40), (1 << 40)) for _ in range(transaction_records.MAX_ADDED)],
        cluster_id="c" * 64,
    )
    assert most.ByteSize() <= 64 << 10
