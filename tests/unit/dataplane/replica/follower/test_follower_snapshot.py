"""A follower below the leader's log start begins there, with the leader's producers and epochs of earlier records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dataplane.replica import replica_refusals
from dataplane.replica.follower.follower import Follower
from dataplane.replica.follower.follower_states import MAX_SNAPSHOT_BYTES, Idle, Installing, SnapshotAnswer, Truncating
from dataplane.replica.replica_effects import FollowerEffect, InstallSnapshot, SendFetch, SendSnapshotRequest
from tests.unit.dataplane.replica.cores import answer, ends, follower
from wire.errors import Code, TidelogError
from wire.types import LeaderEpoch, Offset

CONTENT = b"0123456789"


def before_log(start: int) -> TidelogError:
    return TidelogError(Code.OFFSET_BEFORE_LOG, "below the log start", {"log_start": str(start)})


def request(effects: list[FollowerEffect]) -> SendSnapshotRequest:
    (found,) = effects
    assert isinstance(found, SendSnapshotRequest)
    return found


def refused(core: Follower, start: int = 50) -> SendSnapshotRequest:
    """`core` has been told that its LEO lies below the leader's log start."""
    core.start(0.0)
    ends(core, 5, 7)
    return request(answer(core, error=before_log(start)))


def piece(
    core: Follower,
    *,
    offset: int = 50,
    position: int = 0,
    data: bytes = CONTENT,
    size: int = len(CONTENT),
    number: int | None = None,
    leader_epoch: int = 5,
    error: TidelogError | None = None,
    now: float = 0.0,
) -> list[FollowerEffect]:
    state = core.state
    assert isinstance(state, Installing)
    return core.on_snapshot_answer(
        SnapshotAnswer(
            number=state.number if number is None else number,
            leader_epoch=LeaderEpoch(leader_epoch),
            offset=Offset(offset),
            size=size,
            position=position,
            piece=data,
            error=error,
        ),
        now,
    )


@pytest.fixture
def core() -> Follower:
    return follower((5, 0), log_end=7)


def test_the_state_is_asked_for_before_anything_is_dropped_and_installed_when_all_of_it_is_there(
    core: Follower,
) -> None:
    assert refused(core).offset is None
    second = request(piece(core, data=CONTENT[:4]))
    assert (second.offset, second.position) == (50, 4)
    third = request(piece(core, position=4, data=CONTENT[4:8]))
    assert (third.offset, third.position) == (50, 8)
    assert piece(core, position=8, data=CONTENT[8:]) == [
        InstallSnapshot(Offset(50), (CONTENT[:4], CONTENT[4:8], CONTENT[8:]))
    ]
    assert isinstance(core.state, Truncating)
    (fetch,) = core.on_truncated(Offset(50), Offset(50), 0.0)
    assert isinstance(fetch, SendFetch)
    assert (fetch.offset, core.high_watermark) == (50, 50)


def test_a_log_start_that_moves_on_begins_it_again(core: Follower) -> None:
    refused(core)
    piece(core, data=CONTENT[:4])
    again = request(piece(core, error=before_log(80)))
    assert (again.offset, again.position) == (None, 0)
    assert piece(core, offset=80) == [InstallSnapshot(Offset(80), (CONTENT,))]


def test_a_log_start_that_is_heard_of_before_the_end_of_the_installation_changes_nothing(core: Follower) -> None:
    refused(core)
    piece(core)
    core.on_log_start(Offset(50))  # the housekeeping looks at the log, which has begun anew
    core.validate()
    core.on_truncated(Offset(50), Offset(50), 0.0)
    core.validate()
    assert core.log_end_offset == 50


def test_after_the_installation_too(core: Follower) -> None:
    refused(core)
    piece(core)
    core.on_truncated(Offset(50), Offset(50), 0.0)
    assert request(answer(core, error=before_log(80))).offset is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"position": 3, "data": CONTENT[4:]},
        {"position": 4, "data": CONTENT[4:], "offset": 60},
        {"position": 4, "data": b""},
        {"position": 4, "data": CONTENT},
        {"position": 4, "data": CONTENT[4:], "size": MAX_SNAPSHOT_BYTES + 1},
    ],
    ids=["another position", "another state", "nothing", "too much", "too large"],
)
def test_a_piece_that_does_not_fit_is_not_taken_and_all_is_asked_for_anew(
    core: Follower, wrong: dict[str, int]
) -> None:
    refused(core)
    piece(core, data=CONTENT[:4])
    assert piece(core, **wrong) == []  # type: ignore[arg-type]
    assert isinstance(core.state, Installing)
    again = request(core.tick(core.next_deadline()))
    assert (again.offset, again.position) == (None, 0)


def test_a_state_that_is_not_sound_is_asked_for_ever_more_slowly(core: Follower) -> None:
    refused(core)
    now, waits = 0.0, []
    for _ in range(6):
        piece(core, now=now)
        assert core.on_bad_snapshot(now) == []
        waits.append(core.next_deadline() - now)
        now = core.next_deadline()
        core.tick(now)
    assert waits == sorted(waits)
    assert waits[0] == pytest.approx(0.2)
    assert waits[-1] == pytest.approx(2.0)


def test_answers_of_others_and_late_ones_change_nothing(core: Follower) -> None:
    first = refused(core)
    assert piece(core, leader_epoch=4) == []
    request(piece(core, data=CONTENT[:4]))
    state = core.state
    assert piece(core, number=first.number, data=CONTENT[:4]) == []
    assert core.state == state


def test_of_a_later_epoch_nothing_is_installed(core: Follower) -> None:
    refused(core)
    assert piece(core, leader_epoch=6) == []
    assert isinstance(core.state, Installing)
    assert core.state.pieces == ()


def test_silence_is_asked_again_and_the_received_part_is_kept(core: Follower) -> None:
    refused(core)
    piece(core, data=CONTENT[:4])
    due = core.next_deadline()
    again = request(core.tick(due))
    assert (again.offset, again.position) == (50, 4)
    assert core.next_deadline() - due > due, "less often each time"


def test_without_responders_it_asks_again_soon(core: Follower) -> None:
    refused(core)
    core.on_no_responders(0.1)
    assert core.next_deadline() == pytest.approx(0.12)


def test_while_it_lasts_consumers_are_refused_and_an_answer_to_a_fetch_is_late(core: Follower) -> None:
    refused(core)
    assert core.on_notification(LeaderEpoch(5), 0.0) == []
    core.on_synced(Offset(7), 0.0)
    assert isinstance(core.state, Installing)


def test_a_reconnect_begins_with_the_reconciliation(core: Follower) -> None:
    refused(core)
    core.on_connection(1.0, 1.0)
    assert not isinstance(core.state, Installing)


def deletions_gone(core: Follower) -> list[FollowerEffect]:
    core.start(0.0)
    ends(core, 5, 7)
    return answer(core, error=replica_refusals.deletions_gone(core.view.key, Offset(2), Offset(7)))


def test_a_follower_that_lacks_removed_tombstones_begins_anew_though_the_leaders_log_reaches_further_back() -> None:
    """Its records may have been deleted by them, and no record that it could fetch would say so."""
    core = follower((5, 0), log_end=7)
    core._replica.view = replace(core.view, isr=(core.view.leader or core.broker,))
    assert request(deletions_gone(core)).offset is None
    state = core.state
    assert isinstance(state, Installing)
    whole = SnapshotAnswer(
        number=state.number, leader_epoch=LeaderEpoch(5), offset=Offset(2), size=1, piece=b"x", deleted_end=Offset(33)
    )
    assert core.on_snapshot_answer(whole, 0.0) == [InstallSnapshot(Offset(2), (b"x",), Offset(33))]


@pytest.mark.parametrize("eligible", [False, True])
def test_a_replica_that_is_relied_on_gives_nothing_up_for_deletions_and_does_not_ask_at_once(eligible: bool) -> None:
    """It holds all that is committed, and a tombstone that went was."""
    core = follower((5, 0), log_end=7)
    if eligible:
        core._replica.view = replace(core.view, isr=(), eligible=(core.broker,))
    assert deletions_gone(core) == []
    assert core.next_deadline() == core.settings.offset_retry
    assert core.tick(core.settings.offset_retry / 2) == []
    (again,) = core.tick(core.settings.offset_retry)
    assert isinstance(again, SendFetch)
    assert again.offset == 7


def test_a_leader_that_refuses_an_offset_in_its_log_is_not_suspected(core: Follower) -> None:
    """It answers."""
    core.start(0.0)
    ends(core, 5, 7)
    assert answer(core, error=before_log(3)) == []
    assert core.state == Idle(1, Offset(7), core.settings.offset_retry)
    for _ in range(40):
        assert isinstance(core.state, Idle)
        now = core.state.until
        (again,) = core.tick(now)
        assert isinstance(again, SendFetch)
        assert answer(core, error=before_log(3), now=now) == []
