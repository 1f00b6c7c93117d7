"""One member of a consumer group, rule by rule."""

from __future__ import annotations

from itertools import count

import pytest

from tidelog.client.base.exceptions import FencedInstance, NotPermitted, UnknownMember
from tidelog.client.group.membership import (
    AskWhere,
    Assign,
    Effects,
    Fail,
    Lose,
    MemberSettings,
    Membership,
    Revoke,
    SendHeartbeat,
    State,
    Tell,
)
from wire.error_details import RETRY_AFTER_MS
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import StreamPartition, to_stream_partitions
from wire.protobuf.groups_pb2 import HeartbeatRequest, HeartbeatResponse

A, B, C = (StreamPartition("s", 5, partition) for partition in range(3))


class Member:
    """A membership whose heartbeats are looked at, and answered by hand."""

    def __init__(self, **settings: object) -> None:
        ids = count(1)
        given = {"group": "g", "streams": ("s",), "session_timeout": 30.0, "max_poll_interval": 100.0, **settings}
        self.machine = Membership(MemberSettings(**given), lambda: f"m{next(ids)}")  # type: ignore[arg-type]
        self.sent: list[SendHeartbeat] = []

    def __call__(self, effects: Effects) -> Effects:
        """Those that are no heartbeats."""
        self.sent += [effect for effect in effects if isinstance(effect, SendHeartbeat)]
        return [effect for effect in effects if not isinstance(effect, SendHeartbeat)]

    def state(self) -> State:
        return self.machine.state

    @property
    def last(self) -> HeartbeatRequest:
        return self.sent[-1].request

    def answer(
        self,
        now: float,
        version: int = 0,
        *assigned: StreamPartition,
        number: int | None = None,
        generation: int = 1,
        unasked: bool = False,
        interval_ms: int = 5000,
    ) -> Effects:
        answer = HeartbeatResponse(
            generation=generation,
            version=version,
            assigned=to_stream_partitions(assigned),
            heartbeat_interval_ms=interval_ms,
            unasked=unasked,
        )
        return self(self.machine.on_answer(self.sent[-1].number if number is None else number, answer, now))

    def refuse(self, code: Code, now: float, *details: object) -> Effects:
        error = TidelogError(code, "no", details)  # type: ignore[arg-type]
        return self(self.machine.on_refused(self.sent[-1].number, error, now))


def joined(*assigned: StreamPartition, **settings: object) -> Member:
    """At 0 s, with version 1 and its first STAY on the way, which is the second heartbeat."""
    member = Member(**settings)
    assert member(member.machine.begin(0.0)) == []
    assert member.answer(0.0, 1, *assigned) == ([Assign(frozenset(assigned))] if assigned else [])
    return member


def settled(*assigned: StreamPartition, **settings: object) -> Member:
    """Its first STAY was answered, too."""
    member = joined(*assigned, **settings)
    assert member.answer(0.0, 1) == []
    return member


class TestJoining:
    def test_a_join_says_what_it_subscribes_to_and_who_it_is(self) -> None:
        member = Member(patterns=("a-*",), instance="i", client="c", rebalance_timeout=7.0)
        member(member.machine.begin(0.0))
        assert member.last.kind == HeartbeatRequest.JOIN
        assert (member.last.group, member.last.member, member.last.instance, member.last.client) == (
            "g",
            "m1",
            "i",
            "c",
        )
        assert ([*member.last.subscription.streams], [*member.last.subscription.patterns]) == (["s"], ["a-*"])
        assert (member.last.session_timeout_ms, member.last.rebalance_timeout_ms) == (30_000, 7_000)

    def test_it_joins_again_under_the_same_id_until_it_is_answered(self) -> None:
        member = Member()
        member(member.machine.begin(0.0))
        assert member(member.machine.on_silence(1, 3.0)) == [AskWhere()]
        assert len(member.sent) == 1
        member(member.machine.tick(member.machine.next_deadline))
        assert (member.last.kind, member.last.member) == (HeartbeatRequest.JOIN, "m1")
        assert member.state() is State.JOINING
        member.answer(4.0, 1, A)
        assert member.state() is State.MEMBER

    def test_the_first_answer_is_applied_and_said_at_once(self) -> None:
        member = joined(A, B)
        assert (member.last.kind, member.last.applied) == (HeartbeatRequest.STAY, 1)
        assert not member.last.HasField("subscription")

    def test_a_refusal_that_does_not_pass_ends_it(self) -> None:
        member = Member()
        member(member.machine.begin(0.0))
        (fail,) = member.refuse(Code.NOT_PERMITTED, 0.0)
        assert isinstance(fail, Fail)
        assert isinstance(fail.error, NotPermitted)
        assert member.machine.next_deadline == float("inf")


class TestHeartbeats:
    def test_the_next_one_is_sent_when_the_coordinator_says(self) -> None:
        member = settled(A)
        assert member.machine.next_deadline == 5.0
        assert member(member.machine.tick(4.9)) == []
        assert len(member.sent) == 2
        member(member.machine.tick(5.0))
        assert len(member.sent) == 3

    @pytest.mark.parametrize(("told_ms", "waits"), [(1, 0.05), (3_600_000, 10.0)])
    def test_the_interval_is_bounded(self, told_ms: int, waits: float) -> None:
        member = joined(A)
        member.answer(0.0, 1, interval_ms=told_ms)
        assert member.machine.next_deadline == waits

    def test_one_is_in_flight(self) -> None:
        member = joined(A, B)
        assert member.machine.next_deadline == 100.0, "only the program's call is waited for"
        member(member.machine.tick(20.0))
        member(member.machine.request_heartbeat(20.0))
        member.answer(21.0, 2, A, number=1, unasked=True)
        assert len(member.sent) == 2
        member.answer(22.0, 2)
        assert len(member.sent) == 3, "what was asked for meanwhile leaves when the answer is there"

    def test_waits_grow_while_nobody_listens_and_the_controller_is_asked(self) -> None:
        member = settled(A, chance=lambda: 1.0)
        now, waits = 5.0, []
        for _ in range(12):
            member(member.machine.tick(now))
            assert member(member.machine.on_no_responders(member.sent[-1].number, now)) == [AskWhere()]
            waits.append(member.machine.next_deadline - now)
            now = member.machine.next_deadline
        assert waits == sorted(waits)
        assert waits[0] == pytest.approx(0.05)
        assert waits[-1] == pytest.approx(1.0)

    def test_a_refusal_that_passes_is_waited_out_as_long_as_it_says(self) -> None:
        member = joined(A)
        assert member.refuse(Code.BACKPRESSURE, 1.0, RETRY_AFTER_MS.of(3000)) == []
        assert member.machine.next_deadline == pytest.approx(4.0)
        assert member.state() is State.MEMBER

    def test_an_outcome_of_an_earlier_heartbeat_changes_nothing(self) -> None:
        member = settled(A)
        member(member.machine.tick(5.0))
        assert member(member.machine.on_silence(2, 5.0)) == []
        assert member(member.machine.on_no_responders(2, 5.0)) == []
        assert member(member.machine.on_refused(2, TidelogError(Code.UNAVAILABLE, ""), 5.0)) == []
        assert member.state() is State.MEMBER

    def test_what_does_not_pass_is_heard_unasked(self) -> None:
        member = settled(A)
        error = TidelogError(Code.UNKNOWN_MEMBER, "removed")
        assert member(member.machine.on_refused(2, error, 1.0)) == [Lose(frozenset({A}))]
        assert member.last.kind == HeartbeatRequest.JOIN
        assert member(member.machine.on_refused(2, error, 1.0)) == [], "of its earlier life"


class TestSession:
    def test_records_are_handed_out_for_a_session_from_the_sending_of_what_was_answered(self) -> None:
        member = settled(A)
        member(member.machine.tick(5.0))
        member.answer(6.9, 1)
        assert member.machine.session_until == 35.0
        assert member.machine.session_until > 34.9
        assert member.machine.session_until <= 35.0

    def test_an_unasked_answer_does_not_prolong_it(self) -> None:
        member = settled(A)
        member(member.machine.tick(5.0))
        member.answer(6.0, 2, A, B, unasked=True)
        assert member.machine.session_until == 30.0

    def test_a_late_answer_counts_from_its_own_heartbeat(self) -> None:
        member = settled(A)
        member(member.machine.tick(5.0))
        late = member.sent[-1].number
        member(member.machine.on_silence(late, 8.0))
        member(member.machine.tick(20.0))
        assert member.sent[-1].number != late
        member.answer(21.0, 1, number=late)
        assert member.machine.session_until == 35.0

    def test_without_an_answer_partitions_are_kept_and_nothing_is_handed_out(self) -> None:
        member = settled(A)
        member(member.machine.tick(5.0))
        member(member.machine.on_silence(member.sent[-1].number, 40.0))
        assert member.machine.session_until <= 40.0
        assert member.machine.owned == {A}
        member(member.machine.tick(41.0))
        assert member.answer(41.5, 1) == []
        assert member.machine.session_until > 41.5

    def test_an_answer_that_comes_after_the_session_of_its_heartbeat_changes_nothing(self) -> None:
        """The coordinator may have removed the member, and given its partitions to another one."""
        member = Member()
        member(member.machine.begin(0.0))
        member(member.machine.on_silence(1, 3.0))
        member(member.machine.tick(29.0))
        assert member.answer(30.0, 1, A, number=1) == []
        assert member.state() is State.JOINING
        assert member.machine.owned == set()
        assert member.answer(30.1, 1_000_001, B) == [Assign(frozenset({B}))]

    def test_nor_does_an_unasked_one(self) -> None:
        member = settled(A)
        assert member.answer(30.0, 2, A, B, number=2, unasked=True) == []
        assert member.machine.owned == {A}
        member(member.machine.tick(30.0))
        assert member.answer(30.1, 2, A, B) == [Assign(frozenset({B}))]

    def test_where_it_is_in_flight_the_next_heartbeat_follows(self) -> None:
        member = settled(A)
        member(member.machine.tick(5.0))
        assert member.answer(40.0, 2, A, B) == []
        member(member.machine.tick(member.machine.next_deadline))
        assert member.answer(40.5, 2, A, B) == [Assign(frozenset({B}))]

    def test_nothing_is_handed_out_before_the_first_answer(self) -> None:
        member = Member()
        assert member.machine.session_until <= 0.0
        member(member.machine.begin(0.0))
        assert member.machine.session_until <= 0.0


class TestAssignment:
    def test_what_stays_is_not_touched(self) -> None:
        member = settled(A, B)
        assert member.answer(1.0, 2, B, C, number=2, unasked=True) == [Revoke(frozenset({A})), Assign(frozenset({C}))]
        assert member.machine.owned == {A, B, C}

    def test_an_older_version_changes_nothing(self) -> None:
        member = settled(A, B)
        member.answer(1.0, 3, A, number=2, unasked=True)
        assert member.answer(1.0, 2, A, B, C, number=2, unasked=True) == []
        assert member.answer(1.0, 3, number=2, unasked=True) == []
        assert member.machine.assigned == {A}

    def test_it_is_applied_when_everything_is_given_up(self) -> None:
        member = settled(A, B, C)
        member.answer(1.0, 2, A, number=2, unasked=True)
        assert len(member.sent) == 2, "nothing was given up yet"
        member(member.machine.given_up(frozenset({B}), 2.0))
        assert len(member.sent) == 2
        member(member.machine.given_up(frozenset({C}), 3.0))
        assert member.last.applied == 2
        assert member.machine.owned == {A}

    def test_the_version_that_is_applied_is_the_newest(self) -> None:
        member = settled(A, B, C)
        member.answer(1.0, 2, A, B, number=2, unasked=True)
        member.answer(1.0, 3, A, number=2, unasked=True)
        member(member.machine.given_up(frozenset({B, C}), 2.0))
        assert member.last.applied == 3

    def test_a_heartbeat_meanwhile_says_the_old_version(self) -> None:
        member = settled(A, B)
        member.answer(1.0, 2, A, number=2, unasked=True)
        member(member.machine.tick(5.0))
        assert member.last.applied == 1

    def test_one_that_comes_back_is_given_up_first_and_begun_anew(self) -> None:
        member = settled(A, B)
        assert member.answer(1.0, 2, A, number=2, unasked=True) == [Revoke(frozenset({B}))]
        assert member.answer(1.0, 3, A, B, number=2, unasked=True) == []
        assert member(member.machine.given_up(frozenset({B}), 2.0)) == [Assign(frozenset({B}))]
        assert member.last.applied == 3
        assert member.machine.owned == {A, B}

    def test_what_was_not_to_be_given_up_is_not(self) -> None:
        member = settled(A)
        assert member.machine.given_up(frozenset({A, C}), 1.0) == []
        assert member.machine.owned == {A}


class TestLosing:
    def test_an_unknown_member_loses_all_and_joins_under_a_new_id(self) -> None:
        member = settled(A, B)
        member.answer(1.0, 2, A, number=2, unasked=True)
        member(member.machine.tick(5.0))
        assert member.refuse(Code.UNKNOWN_MEMBER, 5.0) == [Lose(frozenset({A, B}))]
        leave = member.sent[-2].request
        assert (leave.kind, leave.member) == (HeartbeatRequest.LEAVE, "m1"), "others need not wait for its session"
        assert (member.last.kind, member.last.member, member.last.applied) == (HeartbeatRequest.JOIN, "m2", 0)
        assert member.machine.session_until <= 5.0

    def test_an_answer_to_its_earlier_life_changes_nothing(self) -> None:
        member = settled(A)
        member(member.machine.tick(5.0))
        member.refuse(Code.UNKNOWN_MEMBER, 5.0)
        assert member.answer(5.0, 9, A, B, number=2) == []
        assert member.answer(5.0, 9, A, B, number=2, unasked=True) == []
        assert member.state() is State.JOINING
        assert member.answer(5.0, 1, C) == [Assign(frozenset({C}))]

    def test_a_coordinator_that_forgets_each_member_is_not_asked_without_a_pause(self) -> None:
        member = settled(A)
        member(member.machine.tick(5.0))
        member.refuse(Code.UNKNOWN_MEMBER, 5.0)
        member.answer(5.0, 1, A)
        assert member.last.kind == HeartbeatRequest.STAY
        member.refuse(Code.UNKNOWN_MEMBER, 5.0)
        assert member.last.kind == HeartbeatRequest.LEAVE, "the join waits"
        assert 5.0 < member.machine.next_deadline < 5.2

    def test_a_fenced_instance_is_over(self) -> None:
        member = settled(A, instance="i")
        member(member.machine.tick(5.0))
        lose, fail = member.refuse(Code.FENCED_INSTANCE, 5.0)
        assert lose == Lose(frozenset({A}))
        assert isinstance(fail, Fail)
        assert isinstance(fail.error, FencedInstance)
        assert member(member.machine.app_calls(6.0)) == []
        assert member.machine.next_deadline == float("inf")


class TestCalls:
    def test_a_program_that_takes_nothing_leaves(self) -> None:
        member = settled(A)
        member(member.machine.app_calls(10.0))
        member.machine.app_returns(20.0)
        assert member(member.machine.tick(119.0)) == []
        member.answer(119.0, 1)
        lose, tell = member(member.machine.tick(120.0))
        assert lose == Lose(frozenset({A}))
        assert isinstance(tell, Tell)
        assert isinstance(tell.error, UnknownMember)
        assert member.last.kind == HeartbeatRequest.LEAVE
        assert member.machine.session_until <= 120.0

    def test_a_program_that_waits_for_records_does_not(self) -> None:
        member = settled(A)
        member(member.machine.app_calls(10.0))
        assert member(member.machine.tick(1000.0)) == []
        assert member.state() is State.MEMBER

    def test_one_that_blocked_the_loop_hears_it_from_its_call(self) -> None:
        member = settled(A)
        member.machine.app_returns(0.0)
        lose, tell = member(member.machine.app_calls(500.0))
        assert (lose, type(tell)) == (Lose(frozenset({A})), Tell)
        assert member.last.kind == HeartbeatRequest.LEAVE

    def test_the_call_after_that_joins_anew(self) -> None:
        member = settled(A)
        member(member.machine.app_calls(500.0))
        member.machine.app_returns(500.0)
        member(member.machine.app_calls(501.0))
        assert (member.last.kind, member.last.member) == (HeartbeatRequest.JOIN, "m2")

    def test_a_static_member_keeps_its_place(self) -> None:
        member = settled(A, instance="i")
        member(member.machine.app_calls(500.0))
        assert member.last.kind == HeartbeatRequest.PART

    def test_leaving_is_repeated_until_the_session_would_be_over(self) -> None:
        member = settled(A)
        member(member.machine.app_calls(110.0))
        now = 110.0
        assert member.machine.next_deadline == float("inf")
        member(member.machine.on_silence(member.sent[-1].number, now))
        assert member.machine.next_deadline == float("inf"), "its session was over long ago"


class TestLeaving:
    def test_a_leave_does_not_wait_for_the_heartbeat_before(self) -> None:
        member = joined(A)
        member(member.machine.leave(1.0))
        assert member.last.kind == HeartbeatRequest.LEAVE
        member.answer(1.0, number=2)
        assert member.state() is State.LEAVING
        member.answer(1.0)
        assert member.state() is State.LEFT
        assert member.machine.next_deadline == float("inf")

    def test_it_is_repeated(self) -> None:
        member = settled(A)
        member(member.machine.leave(1.0))
        member(member.machine.on_no_responders(member.sent[-1].number, 1.0))
        member(member.machine.tick(member.machine.next_deadline))
        assert [beat.request.kind for beat in member.sent[-2:]] == [HeartbeatRequest.LEAVE] * 2

    def test_unknown_is_as_good_as_left(self) -> None:
        member = settled(A)
        member(member.machine.leave(1.0))
        assert member.refuse(Code.UNKNOWN_MEMBER, 1.0) == []
        assert member.state() is State.LEFT
