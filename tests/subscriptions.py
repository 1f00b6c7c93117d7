"""What always holds in a `SubscriptionState`, whatever was reported to it."""

from __future__ import annotations

from itertools import pairwise

from tidelog.client.consumer.subscription_state import AHEAD, AssignedPartition, Phase, SubscriptionState


def check(state: SubscriptionState) -> None:
    """Raises AssertionError."""
    for of, assigned in state.partitions.items():
        assert assigned.of == of
        assert assigned.phase is not Phase.DROPPED
        _check_positions(assigned)
    for stream in state.streams:
        for number, assigned in stream.partitions.items():
            assert state.partitions[stream.of(number)] is assigned
            assert assigned.stream is stream
            assert assigned.is_read
            assert (assigned in stream.turns) == bool(assigned.fetched)
            assert (assigned in stream.limited) == (assigned.limit is not None)
            assert (assigned in stream.before_cutovers) == (assigned.next_cutover is not None)
        read = {*stream.partitions.values()}
        assert {*stream.turns} | stream.limited | stream.before_cutovers <= read, "what is gone is gone everywhere"
    in_hand = [assigned for assigned in state.partitions.values() if assigned.in_hand is not None]
    assert in_hand == ([] if state.in_hand is None else [state.in_hand]), "records of one partition are in hand"
    failed = {one for one in state.failures if isinstance(one, AssignedPartition)}
    assert failed <= {*state.partitions.values()}


def _check_positions(assigned: AssignedPartition) -> None:
    finished, position = assigned.finished, assigned.position
    if finished is None or position is None:
        assert assigned.phase in (Phase.BEGINNING, Phase.LEAVING)
        assert not assigned.fetched
        return
    assert assigned.phase is not Phase.BEGINNING
    assert finished <= position
    assert sum(answer.takes_room for answer in assigned.fetched) <= AHEAD
    if assigned.phase is Phase.LEAVING:
        assert not assigned.fetched
        return
    assert position <= assigned.fetched_to
    for before, answer in pairwise(assigned.fetched):
        assert before.end <= answer.end
        assert answer.first == before.end or not answer.takes_room, "answers that were not begun follow each other"
    assert not assigned.fetched or assigned.fetched[-1].end == assigned.fetched_to
    for cutover in assigned.cutovers:
        inside = [answer for answer in assigned.fetched if answer.first < cutover < answer.end]
        assert not any(answer.takes_room for answer in inside), "answers are divided before they are handed out"
