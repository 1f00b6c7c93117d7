"""Whatever is lost, late or out of order between members and their coordinator: no two members hand out records of one
partition, and when messages arrive again, each partition has an owner."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.unit.tidelog.client.fake_coordinator import ModelGroup
from tidelog.client.group.membership import Effects, MemberSettings, Membership, Revoke, SendHeartbeat
from wire.errors import TidelogError
from wire.internal_records.group_records import StreamPartition
from wire.protobuf.groups_pb2 import HeartbeatRequest, HeartbeatResponse

PARTITIONS = frozenset(StreamPartition("s", 1, partition) for partition in range(4))
SESSION = 30.0
MEMBERS = st.integers(0, 2)


@dataclass
class Program:
    """One member, what it still has to give up, and the messages on their way to and from it."""

    machine: Membership
    giving_up: set[StreamPartition] = field(default_factory=set)
    requests: list[tuple[int, HeartbeatRequest]] = field(default_factory=list)
    answers: list[tuple[int, HeartbeatResponse | TidelogError]] = field(default_factory=list)
    number: int = 0
    """Of the newest heartbeat that the coordinator has got."""


class Members(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.group = ModelGroup("g", lambda _: PARTITIONS)
        self.heard: dict[str, float] = {}
        self.ids = 0
        given = MemberSettings(group="g", streams=("s",), session_timeout=SESSION, max_poll_interval=200.0)
        self.programs = [Program(Membership(given, self.new_id)) for _ in range(3)]

    def new_id(self) -> str:
        self.ids += 1
        return f"m{self.ids}"

    def carry_out(self, program: Program, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, SendHeartbeat):
                program.requests.append((effect.number, effect.request))
            elif isinstance(effect, Revoke):
                program.giving_up |= effect.partitions

    # ---- what members and programs do

    @rule(which=MEMBERS)
    def call(self, which: int) -> None:
        program = self.programs[which]
        if program.machine.member_id:
            self.carry_out(program, program.machine.app_calls(self.now))
            program.machine.app_returns(self.now)
        else:
            self.carry_out(program, program.machine.begin(self.now))

    @rule(which=MEMBERS, count=st.integers(1, 4))
    def give_up(self, which: int, count: int) -> None:
        program = self.programs[which]
        done = frozenset(sorted(program.giving_up)[:count])
        program.giving_up -= done
        self.carry_out(program, program.machine.given_up(done, self.now))

    @rule(seconds=st.sampled_from([0.01, 1.0, 5.0, 12.0, 29.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for member, heard in [*self.heard.items()]:
            if self.now - heard >= SESSION:
                del self.heard[member]
                self.group.remove(member)
                self.push()

    @rule(which=MEMBERS)
    def tick(self, which: int) -> None:
        program = self.programs[which]
        self.carry_out(program, program.machine.tick(self.now))

    @rule(which=MEMBERS)
    def stop_waiting(self, which: int) -> None:
        """For the answer to the heartbeat in flight."""
        machine = self.programs[which].machine
        self.carry_out(self.programs[which], machine.on_silence(machine._number, self.now))

    # ---- the network

    @rule(which=MEMBERS, at=st.integers(0, 3))
    def arrive(self, which: int, at: int) -> None:
        program = self.programs[which]
        if at < len(program.requests):
            number, request = program.requests.pop(at)
            self.take(program, number, request)

    def take(self, program: Program, number: int, request: HeartbeatRequest) -> None:
        program.number = max(program.number, number)
        try:
            answer: HeartbeatResponse | TidelogError = self.group.heartbeat(request)
            self.heard[request.member] = self.now
        except TidelogError as error:
            answer = error
        if request.member not in self.group.members:
            self.heard.pop(request.member, None)
        program.answers.append((number, answer))
        self.push()

    def push(self) -> None:
        for program in self.programs:
            member = self.group.members.get(program.machine.member_id)
            if member is not None and member.told != member.version:
                program.answers.append((program.number, self.group.answer(member, 0, unasked=True)))

    @rule(which=MEMBERS, at=st.integers(0, 3), lost=st.booleans())
    def hear(self, which: int, at: int, lost: bool) -> None:
        program = self.programs[which]
        if at < len(program.answers):
            answer = program.answers.pop(at)
            if not lost:
                self.tell(program, *answer)

    def tell(self, program: Program, number: int, answer: HeartbeatResponse | TidelogError) -> None:
        machine = program.machine
        if isinstance(answer, TidelogError):
            self.carry_out(program, machine.on_refused(number, answer, self.now))
        else:
            self.carry_out(program, machine.on_answer(number, answer, self.now))
        program.giving_up &= machine.owned

    @rule(which=MEMBERS)
    def lose_requests(self, which: int) -> None:
        self.programs[which].requests.clear()

    # ---- what always holds

    @invariant()
    def one_member_reads_a_partition(self) -> None:
        for partition in PARTITIONS:
            readers = [
                program.machine.member_id
                for program in self.programs
                if partition in program.machine.owned and self.now < program.machine.session_until
            ]
            assert len(readers) <= 1, f"{partition} is read by {readers}"

    @invariant()
    def the_coordinator_gives_a_partition_once(self) -> None:
        assert all(len(owners) == 1 for owners in self.group.owners.values())

    def teardown(self) -> None:
        """Without losses each partition has an owner."""
        for _ in range(400):
            for which, program in enumerate(self.programs):
                self.call(which)
                self.give_up(which, 4)
                for number, request in [program.requests.pop(0) for _ in range(len(program.requests))]:
                    self.take(program, number, request)
                for number, answer in [program.answers.pop(0) for _ in range(len(program.answers))]:
                    self.tell(program, number, answer)
                if self.now >= program.machine.next_deadline:
                    self.tick(which)
                if not program.requests and not program.answers:
                    self.stop_waiting(which)
            self.wait(1.0)
            self.one_member_reads_a_partition()
        owned = [program.machine.owned for program in self.programs if self.now < program.machine.session_until]
        assert sorted(of for each in owned for of in each) == sorted(PARTITIONS)


Members.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestMembers = Members.TestCase
