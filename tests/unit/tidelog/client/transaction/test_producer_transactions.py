"""The transactions of one producer, as a state machine."""

from __future__ import annotations

from random import Random

import pytest

from tidelog.client.base.exceptions import (
    BadRequest,
    DeliveryTimeout,
    NotInTransaction,
    ProducerFenced,
    TransactionAborted,
)
from tidelog.client.producer.batches import ProducerSession
from tidelog.client.transaction.producer_transactions import (
    Drop,
    Effects,
    Gather,
    Grant,
    Participant,
    PartitionLife,
    SendAdd,
    SendEnd,
    State,
    Transactions,
)
from wire.errors import Code, TidelogError
from wire.internal_records.transaction_records import ADD_OFFSETS, ADD_PARTITIONS, MAX_ADDED, MAX_EPOCH
from wire.types import FIRST_TRANSACTIONAL_ID

FIRST = ProducerSession(FIRST_TRANSACTIONAL_ID, 4)
S0, S1 = PartitionLife("s", 1, 0, 1), PartitionLife("s", 1, 1, 1)
R0 = PartitionLife("r", 2, 0, 2)


def refused(code: Code) -> TidelogError:
    return TidelogError(code, f"refused: {code.name}")


def ready(session: ProducerSession = FIRST) -> Transactions:
    machine = Transactions("x")
    machine.on_init(session)
    return machine


def opened() -> Transactions:
    machine = ready()
    machine.begin()
    return machine


def add_of(machine: Transactions) -> SendAdd:
    (add,) = machine.gathered()
    assert isinstance(add, SendAdd)
    return add


def with_s0() -> tuple[Transactions, SendAdd]:
    """A partition has its ticket."""
    machine = opened()
    machine.on_wanted(S0)
    add = add_of(machine)
    assert machine.on_added(add, [b"t"]) == [Grant(S0, FIRST, b"t")]
    return machine, add


def committing() -> tuple[Transactions, SendEnd]:
    machine, _ = with_s0()
    assert machine.commit() == []
    (end,) = machine.on_written()
    assert end == SendEnd(FIRST, True)
    assert isinstance(end, SendEnd)
    return machine, end


def dropped(effects: Effects) -> TidelogError:
    (error,) = [effect.error for effect in effects if isinstance(effect, Drop)]
    return error


def test_from_the_first_record_to_the_next_transaction() -> None:
    machine, end = committing()
    assert machine.is_ending
    assert machine.on_ended(end, 5) == []
    assert machine.state is State.READY
    assert machine.failure is None
    machine.begin()
    assert machine.session == ProducerSession(FIRST_TRANSACTIONAL_ID, 5)
    assert machine.ticket(S0) is None, "tickets are of one transaction"


def test_what_is_wanted_of_a_stream_in_one_turn_is_asked_for_together() -> None:
    machine = opened()
    assert machine.on_wanted(S0) == [Gather()]
    assert machine.on_wanted("g") == []
    assert machine.on_wanted(R0) == []
    assert machine.on_wanted(S1) == []
    assert machine.on_wanted(S1) == []
    adds = machine.gathered()
    assert adds == [
        SendAdd(FIRST, ADD_PARTITIONS, "s", (S0, S1)),
        SendAdd(FIRST, ADD_OFFSETS, "g", ("g",)),
        SendAdd(FIRST, ADD_PARTITIONS, "r", (R0,)),
    ], "NATS tells for each stream and group who may add it"
    of_s, of_g, _ = adds
    assert isinstance(of_s, SendAdd)
    assert isinstance(of_g, SendAdd)
    assert machine.on_wanted(S1) == [], "it is asked for already"
    assert machine.gathered() == []
    assert machine.on_added(of_g, [b"g"]) == []
    assert machine.on_added(of_s, [b"0", b"1"]) == [Grant(S0, FIRST, b"0"), Grant(S1, FIRST, b"1")]
    assert machine.ticket("g") == b"g"
    assert machine.ticket(R0) is None


def test_a_request_has_no_more_participants_than_it_may() -> None:
    machine = opened()
    for number in range(MAX_ADDED + 1):
        machine.on_wanted(PartitionLife("s", 1, number, 1))
    sizes = [len(add.participants) for add in machine.gathered() if isinstance(add, SendAdd)]
    assert sizes == [MAX_ADDED, 1]


def test_a_refused_ticket_is_asked_for_again() -> None:
    machine, _ = with_s0()
    assert machine.on_ticket_refused(S1) == [], "it has none"
    assert machine.on_ticket_refused(S0) == [Gather()]
    assert machine.ticket(S0) is None
    add = add_of(machine)
    assert machine.on_ticket_refused(S0) == []
    assert machine.on_added(add, [b"new"]) == [Grant(S0, FIRST, b"new")]


def test_a_partition_whose_sequence_is_broken_ends_the_transaction() -> None:
    machine, _ = with_s0()
    assert isinstance(dropped(machine.on_wanted(S0)), TransactionAborted)
    assert machine.state is State.ABORT_ONLY


def test_too_few_tickets_doom_it() -> None:
    machine = opened()
    machine.on_wanted(S0)
    dropped(machine.on_added(add_of(machine), []))


@pytest.mark.parametrize("code", [Code.TRANSACTION_ABORTED, Code.LIMIT_REACHED, Code.UNAVAILABLE, Code.NOT_PERMITTED])
def test_an_add_that_is_refused_dooms_it(code: Code) -> None:
    machine = opened()
    machine.on_wanted(S0)
    error = dropped(machine.on_add_refused(add_of(machine), refused(code)))
    assert error is machine.refusal()
    assert error.details["outcome"] == "not_written"
    with pytest.raises(BadRequest):
        machine.begin()
    assert machine.commit() == [SendEnd(FIRST, False)], "the coordinator may have it open"
    assert machine.failure is error


def test_answers_to_an_earlier_transaction_change_nothing() -> None:
    machine, old = with_s0()
    machine.on_wanted(S1)
    late = add_of(machine)
    (_, end) = machine.abort()
    assert isinstance(end, SendEnd)
    machine.on_ended(end, 5)
    machine.begin()
    for answer in (machine.on_added(late, [b"t"]), machine.on_add_refused(late, refused(Code.PRODUCER_FENCED))):
        assert answer == []
    assert machine.on_ended(end, 9) == []
    assert machine.on_end_failed(end, refused(Code.PRODUCER_FENCED), may_be_done=False) == []
    assert machine.state is State.OPEN
    assert machine.ticket(S1) is None
    assert old.session == FIRST


def test_nothing_is_asked_of_a_coordinator_that_knows_nothing() -> None:
    machine = opened()
    machine.commit()
    assert machine.on_written() == []
    assert machine.state is State.READY
    machine.begin()
    dropped(machine.abort())
    assert machine.state is State.READY
    assert machine.session == FIRST, "its epoch is not used up"


def test_an_add_that_was_not_answered_has_to_be_aborted() -> None:
    machine = opened()
    machine.on_wanted(S0)
    machine.gathered()
    assert SendEnd(FIRST, False) in machine.abort()
    assert machine.on_ended(SendEnd(FIRST, False), 4) == [], "the coordinator has never seen it"
    assert (machine.state, machine.session.producer_epoch) == (State.READY, 4)


def test_a_record_that_fails_before_and_behind_commit() -> None:
    machine, _ = with_s0()
    dropped(machine.require_abort(refused(Code.READONLY)))
    assert machine.require_abort(refused(Code.NO_SPACE)) == [], "the first failure counts"
    assert machine.on_written() == []
    assert machine.commit() == [SendEnd(FIRST, False)]
    assert "READONLY" in str(machine.failure)
    machine, _ = with_s0()
    machine.commit()
    effects = machine.require_abort(refused(Code.READONLY))
    assert effects[-1] == SendEnd(FIRST, False), "it is aborted at once, for commit was called"
    assert machine.on_written() == []


def test_a_coordinator_that_has_aborted_it_ends_a_commit_for_certain() -> None:
    machine, end = committing()
    assert machine.on_end_failed(end, refused(Code.TRANSACTION_ABORTED), may_be_done=True) == [SendEnd(FIRST, False)]
    assert isinstance(machine.failure, TransactionAborted)
    machine.on_ended(SendEnd(FIRST, False), 5)
    assert (machine.state, machine.session.producer_epoch) == (State.READY, 5)


def test_an_abort_of_what_its_coordinator_has_aborted() -> None:
    machine, _ = with_s0()
    machine.abort()
    assert machine.on_end_failed(SendEnd(FIRST, False), refused(Code.TRANSACTION_ABORTED), may_be_done=False) == []
    assert (machine.state, machine.session.producer_epoch) == (State.READY, 5)


@pytest.mark.parametrize("code", [Code.UNAVAILABLE, Code.OUTCOME_UNKNOWN, Code.NOT_PERMITTED, Code.UNKNOWN_TRANSACTION])
def test_a_commit_that_may_be_carried_out_stays_so(code: Code) -> None:
    machine, end = committing()
    assert machine.on_end_failed(end, refused(code), may_be_done=True) == []
    assert machine.state is State.COMMITTING
    assert isinstance(machine.failure, DeliveryTimeout)
    assert machine.failure.outcome_unknown
    for call in (machine.begin, machine.abort):
        with pytest.raises(TidelogError):
            call()
    assert machine.commit() == [SendEnd(FIRST, True)]
    assert machine.on_end_failed(end, refused(Code.NOT_PERMITTED), may_be_done=False) == []
    assert isinstance(machine.failure, DeliveryTimeout), "the attempt before may have been carried out"
    assert machine.commit() == [SendEnd(FIRST, True)]
    machine.on_ended(end, 5)
    assert machine.failure is None


@pytest.mark.parametrize("code", [Code.UNAVAILABLE, Code.NOT_PERMITTED])
def test_a_commit_that_nobody_can_have_carried_out_is_aborted_before_the_next_one(code: Code) -> None:
    machine, end = committing()
    assert machine.on_end_failed(end, refused(code), may_be_done=False) == []
    assert isinstance(machine.failure, TransactionAborted)
    seen = [machine.unconfirmed is not None]
    with pytest.raises(BadRequest):
        machine.begin()
    with pytest.raises(NotInTransaction):
        machine.commit()
    assert machine.abort() == [SendEnd(FIRST, False)]
    machine.on_ended(SendEnd(FIRST, False), 5)
    seen.append(machine.unconfirmed is not None)
    assert seen == [True, False]
    machine.begin()


@pytest.mark.parametrize(("may_be_done", "outcome"), [(True, "unknown"), (False, "not_written")])
def test_a_producer_that_is_fenced_while_it_commits(may_be_done: bool, outcome: str) -> None:
    machine, end = committing()
    error = dropped(machine.on_end_failed(end, refused(Code.PRODUCER_FENCED), may_be_done))
    assert isinstance(error, ProducerFenced)
    assert error.details["outcome"] == outcome
    assert machine.state is State.FENCED
    for call in (machine.begin, machine.commit):
        with pytest.raises(ProducerFenced):
            call()
    assert machine.abort() == []
    assert machine.refusal() is error


def test_a_commit_of_which_the_coordinator_knows_nothing_is_not_told_as_done() -> None:
    machine, end = committing()
    machine.on_ended(end, 4)
    assert isinstance(machine.failure, DeliveryTimeout)
    assert machine.state is State.NEW


def test_an_id_that_was_forgotten_needs_another_init() -> None:
    machine, _ = with_s0()
    machine.abort()
    machine.on_end_failed(SendEnd(FIRST, False), refused(Code.UNKNOWN_TRANSACTION), may_be_done=False)
    assert machine.state is State.NEW
    machine.on_init(ProducerSession(FIRST_TRANSACTIONAL_ID + 1, 0))
    machine.begin()


def test_epochs_run_out() -> None:
    machine = ready(ProducerSession(FIRST_TRANSACTIONAL_ID, MAX_EPOCH))
    machine.begin()
    machine.on_wanted(S0)
    machine.on_added(add_of(machine), [b"t"])
    machine.commit()
    (end,) = machine.on_written()
    assert isinstance(end, SendEnd)
    machine.on_ended(end, MAX_EPOCH + 1)
    assert machine.state is State.NEW
    assert machine.failure is None


@pytest.mark.parametrize(
    ("producer_id", "epoch"),
    [(7, 0), (1 << 63, 0), (-1, 0), (FIRST_TRANSACTIONAL_ID, -1), (FIRST_TRANSACTIONAL_ID, MAX_EPOCH + 1)],
)
def test_ids_that_no_coordinator_gives_out(producer_id: int, epoch: int) -> None:
    with pytest.raises(TidelogError, match="gave out"):
        ready(ProducerSession(producer_id, epoch))


class _World:
    """A machine, and what is true of its transaction, whatever the machine hears of it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.machine = ready()
        self.epoch = FIRST.producer_epoch
        self.is_open = False
        self.is_committed = False
        self.has_timed_out = False

    @property
    def is_ready(self) -> bool:
        return self.machine.state is State.READY

    def end(self, *, commits: bool) -> None:
        self.is_committed = commits
        self.is_open = False
        self.epoch += 1

    def take_part(self) -> None:
        machine, random = self.machine, self.random
        participants: list[Participant] = [S0, S1, "g"]
        for participant in random.sample(participants, random.randrange(4)):
            machine.on_wanted(participant)
            for add in machine.gathered():
                assert isinstance(add, SendAdd)
                self.is_open = True
                if random.random() < 0.9:
                    machine.on_added(add, [b"t"] * len(add.participants))
                else:
                    machine.on_add_refused(add, refused(Code.UNAVAILABLE))

    def answer(self, end: SendEnd) -> Effects:
        """The request arrives or is lost, and so is its answer."""
        machine, random = self.machine, self.random
        arrives, is_answered = random.random() < 0.7, random.random() < 0.7
        if arrives and self.is_open and end.session.producer_epoch == self.epoch:
            self.end(commits=end.commits)
        if not arrives or not is_answered:
            may_be_done = arrives or random.random() < 0.5
            return machine.on_end_failed(end, refused(Code.UNAVAILABLE), may_be_done)
        if self.has_timed_out and end.commits:
            return machine.on_end_failed(end, refused(Code.TRANSACTION_ABORTED), may_be_done=False)
        return machine.on_ended(end, self.epoch)

    def check(self) -> None:
        failure = self.machine.failure
        assert not (isinstance(failure, TransactionAborted) and self.is_committed)
        if self.is_committed:
            assert failure is None or isinstance(failure, DeliveryTimeout)


@pytest.mark.parametrize("seed", range(300))
def test_what_is_told_of_a_commit_is_true(seed: int) -> None:
    """Answers are lost, requests are lost, and the coordinator aborts by itself. A commit that returns is committed,
    and one that is told as aborted is not, now or later."""
    world = _World(seed)
    machine, random = world.machine, world.random
    for _ in range(20):
        machine.begin()
        world.is_committed = world.has_timed_out = False
        world.take_part()
        takes_part = world.is_open
        if takes_part and random.random() < 0.1:
            world.end(commits=False)
            world.has_timed_out = True
        is_commit = random.random() < 0.8
        effects = machine.commit() if is_commit else machine.abort()
        effects = [*effects, *machine.on_written()]
        while not world.is_ready:
            (end,) = [effect for effect in effects if isinstance(effect, SendEnd)]
            effects = world.answer(end)
            world.check()
            if not effects and not world.is_ready:
                effects = machine.commit() if machine.state is State.COMMITTING else machine.abort()
        world.check()
        if is_commit and takes_part:
            assert world.is_committed == (machine.failure is None)


def test_a_transaction_that_somebody_else_has_committed_is_never_said_to_be_aborted() -> None:
    machine, _ = with_s0()
    machine.on_wanted(S1)
    error = dropped(machine.on_add_refused(add_of(machine), refused(Code.TRANSACTION_COMMITTED)))
    assert isinstance(error, DeliveryTimeout)
    assert "nothing" not in str(error)
    assert error.details["outcome"] == "unknown"
    (end,) = machine.commit()
    assert end == SendEnd(FIRST, False)
    assert isinstance(end, SendEnd)
    assert machine.on_end_failed(end, refused(Code.TRANSACTION_COMMITTED), False) == []
    assert machine.state is State.NEW, "the program goes on under a newer epoch"
    assert isinstance(machine.failure, DeliveryTimeout)
    assert "nothing" not in str(machine.failure)


def test_an_abort_of_what_somebody_else_has_committed_says_so_once() -> None:
    machine, _ = with_s0()
    (_, end) = machine.abort()
    assert isinstance(end, SendEnd)
    machine.on_end_failed(end, refused(Code.TRANSACTION_COMMITTED), False)
    assert isinstance(machine.unconfirmed, DeliveryTimeout)
    machine.on_init(ProducerSession(FIRST.producer_id, 7))
    machine.begin()
    assert machine.unconfirmed is None


def test_a_producer_whose_key_is_void_begins_anew() -> None:
    machine, _ = with_s0()
    (_, end) = machine.abort()
    assert isinstance(end, SendEnd)
    machine.on_end_failed(end, refused(Code.UNPROVEN_PRODUCER), False)
    assert machine.state is State.NEW
