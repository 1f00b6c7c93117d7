"""Whatever producers, operators and the metadata do, and whenever the coordinator moves or loses its last records: a
transaction has one decision, which all that take part hear; nothing takes part in a transaction that has ended;
transactions end; and no producer is fenced unless another one has begun, or an operator or its family has ended what
was open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.unit.tidelog.server.coordinators.groups.groups_world import view
from tests.unit.tidelog.server.coordinators.transactions.transactions_world import ID, Producer, World, init_request
from tidelog.server.coordinators.shard import Answer
from tidelog.server.coordinators.transactions.participants import GroupIn, Participant, PartitionIn
from tidelog.server.coordinators.transactions.transaction_metadata import Ending, Idle
from tidelog.server.coordinators.transactions.transaction_shard import Request, TransactionShard
from wire.errors import Code, TidelogError
from wire.internal_records.transaction_records import FamilyKey
from wire.operations.transaction_operations import TRANSACTION_ABORT, TRANSACTION_DESCRIBE
from wire.protobuf.transactions_pb2 import (
    AddRequest,
    AddResponse,
    EndFamilyRequest,
    EndFamilyResponse,
    EndRequest,
    EndResponse,
    FamilyMember,
    FamilyRecord,
    InitRequest,
    InitResponse,
)

IDS = st.sampled_from((ID, "u", "f~0", "f~1", "f~2"))
FAMILY = "f"
PARTITIONS = st.frozensets(st.integers(0, 2), min_size=1)
OF = tuple[int, int]
"""A transaction: number of the producer, and epoch."""


def facts(shard: TransactionShard, unwritten: AbstractSet[str]) -> object:
    """Who was told of a decision is not in the records, nor at once that everybody was (`unwritten`)."""
    found = {}
    for name, each in sorted(shard.transactions.items()):
        if name in unwritten:
            continue
        record = each.to_record()
        if isinstance(each.state, Ending):
            record.ClearField("partitions")
            record.ClearField("groups")
        found[name] = record
    families = {name: (each.sequence, each.digest) for name, each in shard.families.by_name.items()}
    return found, shard.given, families


class TransactionShardMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.world = World(view(s=(1, 3)))
        self.world.confirms = False
        self.generation = 10
        self.producers: list[Producer] = []
        """As they were told, also older ones that were fenced."""
        self.asked: dict[object, tuple[Request, Producer | None]] = {}
        self.heard: set[object] = set()
        self.fencings: Counter[str] = Counter()
        """Inits, acts of operators and ends of the whole family, by transactional id: nothing else fences."""
        self.inits: dict[object, int] = {}
        """By token: the fencings of its id so far, when the request was sent."""
        self.fenced_at: dict[int, int] = {}
        """The same of the init that has begun a producer, by the producer's `id()`."""
        self.added: dict[OF, set[Participant]] = {}
        """Acknowledged."""
        self.decided: dict[OF, bool] = {}
        """That somebody was told, or that was answered."""
        self.confirmed: set[tuple[OF, Participant]] = set()
        self.sequences: dict[int, frozenset[OF]] = {}
        """What was committed with each."""
        self.read = 0
        """Records of the log that were looked at."""

    def send(self, request: Request, producer: Producer | None = None) -> None:
        if isinstance(request, InitRequest):
            self.fencings[request.transactional_id] += 1
        if isinstance(request, EndFamilyRequest) and request.others:
            self.fencings.update(("f~0", "f~1", "f~2"))
        token = self.world.send(request)
        self.asked[token] = (request, producer)
        self.inits[token] = self.fencings[getattr(request, "transactional_id", "")]
        self.hear()

    def hear(self) -> None:
        for key, value in self.world.log[self.read :]:
            if key == FamilyKey(FAMILY).encode() and value is not None:
                self.on_commit(FamilyRecord.FromString(value))
        self.read = len(self.world.log)
        for told in self.world.undelivered:
            self.decide((told.producer_id, told.producer_epoch), told.commits)
        for token, answer in [*self.world.answers.items()]:
            if token in self.asked and token not in self.heard:
                self.heard.add(token)
                self.on_answer(*self.asked[token], answer, self.inits[token])

    def on_commit(self, record: FamilyRecord) -> None:
        members = frozenset((each.producer_id, each.producer_epoch) for each in record.members)
        assert all(record.sequence >= before for before in self.sequences), "a sequence goes back"
        if members:
            assert self.sequences.setdefault(record.sequence, members) == members, "a sequence is committed twice"
        for member in members:
            self.decide(member, commits=True)

    def decide(self, of: OF, commits: bool) -> None:
        assert self.decided.setdefault(of, commits) is commits, f"{of} is decided twice, and differently"

    def on_answer(self, request: Request, producer: Producer | None, answer: Answer, fencings: int) -> None:
        """`fencings`: of its transactional id, when it was sent."""
        match request, answer:
            case ((AddRequest() | EndRequest()), TidelogError(code=Code.PRODUCER_FENCED)) if producer is not None:
                name = request.transactional_id
                assert self.fencings[name] > self.fenced_at[id(producer)], f"nobody else has begun under {name}"
            case InitRequest(), InitResponse():
                newer = Producer(self.world, request.transactional_id, answer.producer_id, answer.producer_epoch)
                assert all(newer.epoch > each.epoch for each in self.producers if each.id == newer.id)
                assert (newer.id, newer.epoch) not in self.decided
                self.producers.append(newer)
                self.fenced_at[id(newer)] = fencings
            case AddRequest(), AddResponse():
                of = (request.producer_id, request.producer_epoch)
                added: set[Participant] = {PartitionIn.of_record(each) for each in request.partitions}
                added |= {GroupIn(each) for each in request.groups}
                if of in self.decided:
                    self.check_notified(of, added)
                self.added.setdefault(of, set()).update(added)
            case EndRequest(), EndResponse():
                of = (request.producer_id, request.producer_epoch)
                self.decide(of, request.commits)
                if producer is not None:
                    producer.epoch = max(producer.epoch, answer.next_epoch)
                if not answer.waits_for:
                    for participant in self.added.get(of, ()):
                        gone = participant.is_gone(self.world.view)
                        assert gone or (of, participant) in self.confirmed, f"{participant} does not know of the end"
            case EndFamilyRequest(commits=True), EndFamilyResponse(superseded=False):
                for member in request.members:
                    of = (member.producer_id, member.producer_epoch)
                    self.decide(of, commits=True)
                    for participant in self.added.get(of, ()) if not answer.waits_for else ():
                        gone = participant.is_gone(self.world.view)
                        assert gone or (of, participant) in self.confirmed, f"{participant} does not know of the end"
            case EndFamilyRequest(commits=False), EndFamilyResponse():
                for member in request.members:
                    is_committed = self.decided.get((member.producer_id, member.producer_epoch), False)
                    assert not (answer.none_committed and is_committed)
            case _:
                pass

    def check_notified(self, of: OF, participants: set[Participant]) -> None:
        """The end of a transaction may be decided in the turn that has answered an add to it (an add and an init were
        held until the transaction before was complete): then the end is sent to what that add has added, too."""
        notified = {each.to for each in self.world.undelivered if (each.producer_id, each.producer_epoch) == of}
        for each in participants - notified:
            gone = each.is_gone(self.world.view)
            assert gone or (of, each) in self.confirmed, f"{each} takes part, and is not notified of the end"

    @rule(name=IDS)
    def init(self, name: str) -> None:
        self.send(init_request(name))

    @rule(which=st.integers(0, 3), partitions=PARTITIONS, group=st.booleans(), back=st.integers(0, 1))
    def add(self, which: int, partitions: frozenset[int], group: bool, back: int) -> None:
        if self.producers:
            producer = self.producers[-1 - which % len(self.producers)]
            incarnation = self.world.view.streams["s"].incarnation
            groups = ("g",) if group else ()
            self.send(
                producer.add_request(
                    *partitions,
                    groups=groups,
                    epoch=producer.epoch - back,
                    incarnation=incarnation,
                    partition_incarnation=incarnation,
                ),
                None if back else producer,
            )

    @rule(which=st.integers(0, 3), commits=st.booleans(), back=st.integers(0, 1))
    def end(self, which: int, commits: bool, back: int) -> None:
        if self.producers:
            producer = self.producers[-1 - which % len(self.producers)]
            request = producer.end_request(commits=commits, epoch=producer.epoch - back)
            self.send(request, None if back else producer)

    @rule(which=st.integers(0, 3), commits=st.booleans())
    def end_is_not_told_in_time(self, which: int, commits: bool) -> None:
        """Its producer goes on to the next transaction."""
        self.add(which, frozenset({0}), group=False, back=0)
        self.end(which, commits, 0)
        self.world.pass_(2.0)
        self.hear()

    def end_family(self, commits: bool, sequence: int, others: bool, back: int, left_out: int) -> EndFamilyRequest:
        newest = {each.name: each for each in self.producers if each.name.startswith(f"{FAMILY}~")}
        members = [
            FamilyMember(
                child=name.removeprefix(f"{FAMILY}~"), producer_id=each.id, producer_epoch=max(0, each.epoch - back)
            )
            for name, each in newest.items()
            if name != f"{FAMILY}~{left_out}"
        ]
        return EndFamilyRequest(family=FAMILY, members=members, commits=commits, sequence=sequence, others=others)

    @rule(
        commits=st.sampled_from((True, True, True, False)),
        ahead=st.integers(-1, 1),
        others=st.booleans(),
        back=st.sampled_from((0, 0, 0, 1)),
        left_out=st.integers(0, 5),
    )
    def family_ends(self, commits: bool, ahead: int, others: bool, back: int, left_out: int) -> None:
        last = max(self.sequences, default=5)
        self.send(self.end_family(commits, last + ahead, others, back, left_out))

    @rule(partitions=PARTITIONS)
    def family_prepares(self, partitions: frozenset[int]) -> None:
        for name in ("f~0", "f~1", "f~2"):
            self.send(init_request(name))
            self.add(0, partitions, group=False, back=0)

    @rule(kept=st.integers(0, 3), left_out=st.integers(0, 5))
    def coordinator_loses_a_part_of_a_commit(self, kept: int, left_out: int) -> None:
        last = max(self.sequences, default=5)
        self.world.shard.take("lost", self.end_family(True, last + 1, True, 0, left_out))
        self.fencings.update(("f~0", "f~1", "f~2"))
        self.world.log += self.world.shard.settle(self.world.now, self.world.times).records[:kept]
        self.world.fail_over()
        self.hear()

    @rule(share=st.integers(1, 3))
    def confirm(self, share: int) -> None:
        for told in self.world.undelivered[::share]:
            self.confirmed.add(((told.producer_id, told.producer_epoch), told.to))
            if self.world.shard.awaits(told):
                self.world.confirm(told)
        self.world.settle()
        self.hear()

    @rule(seconds=st.sampled_from((0.5, 2.0, 70.0)))
    def pass_(self, seconds: float) -> None:
        self.world.pass_(seconds)
        self.hear()

    @rule(name=IDS)
    def operator_aborts(self, name: str) -> None:
        self.fencings[name] += 1
        self.world.admin(TRANSACTION_ABORT, name)
        self.world.admin(TRANSACTION_DESCRIBE, name)
        self.hear()

    @rule()
    def recreate(self) -> None:
        self.generation += 10
        self.world.change(view(self.generation, s=(self.generation, 3)))
        self.hear()

    @rule(compacted=st.booleans())
    def coordinator_moves(self, compacted: bool) -> None:
        unwritten = {*self.world.shard._decisions.unwritten}
        assert facts(self.world.successor(compacted=compacted), unwritten) == facts(self.world.shard, unwritten)
        self.world.fail_over(compacted=compacted)
        self.hear()

    @rule(which=st.integers(0, 3), commits=st.booleans(), kept=st.integers(0, 2))
    def coordinator_loses_its_last_records(self, which: int, commits: bool, kept: int) -> None:
        """Neither answers nor deliveries have left; a part of the records may be committed."""
        if self.producers:
            producer = self.producers[-1 - which % len(self.producers)]
            self.world.shard.take("lost", producer.end_request(commits=commits))
            self.world.shard.take("lost, too", init_request("u"))
            self.fencings["u"] += 1
            self.world.log += self.world.shard.settle(self.world.now, self.world.times).records[:kept]
            self.world.fail_over()
            self.hear()

    @invariant()
    def numbers_are_given_once(self) -> None:
        owners: dict[int, str] = {}
        for producer in self.producers:
            assert owners.setdefault(producer.id, producer.name) == producer.name

    def teardown(self) -> None:
        """Everybody confirms: all transactions end."""
        if not hasattr(self, "world"):
            return
        self.world.pass_(70)
        self.world.fail_over()
        self.world.confirms = True
        self.world.confirm()
        self.world.pass_(70)
        assert all(isinstance(each.state, Idle) for each in self.world.shard.transactions.values())
        assert not self.world.shard.waiting


TransactionShardMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestTransactionShard = TransactionShardMachine.TestCase


def test_an_add_and_the_init_that_ends_it_may_be_carried_out_in_one_turn() -> None:
    machine = TransactionShardMachine()
    machine.begin()
    machine.family_prepares(frozenset({0}))
    machine.end_is_not_told_in_time(which=0, commits=False)
    machine.family_prepares(frozenset({0}))  # the add and the init of `f~2` are held until everybody knows of that end
    machine.confirm(share=1)
    machine.teardown()
