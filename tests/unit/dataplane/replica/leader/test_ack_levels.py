"""A publish that asks for another level than its stream has waits for that level. Each test names the rule."""

from __future__ import annotations

import pytest

from dataplane.replica.leader.ack_levels import AckLevel, ack_level
from dataplane.replica.replica_effects import CompleteProduce, LeaderEffect, ProposeIsr, RequestSync, Respond
from dataplane.replica.replies import MarkReply
from tests.unit.dataplane.replica.cores import Driver, of, view
from tests.views import A, B, C
from wire.durability import ACCEPTED, DURABLE, Durability
from wire.errors import Code, TidelogError
from wire.types import Offset

SYNCED = AckLevel(is_local=False, is_synced=True)
CACHED = AckLevel(is_local=False, is_synced=False)


def done(effects: list[LeaderEffect]) -> list[str]:
    return [name(effect) for effect in of(CompleteProduce, effects) if effect.error is None]


def name(effect: CompleteProduce) -> str:
    assert isinstance(effect.token, MarkReply)
    return effect.token.inbox


def publish(driver: Driver, level: AckLevel, token: str) -> list[LeaderEffect]:
    """One record, in the page cache."""
    end = Offset(driver.leader.log_end_offset + 1)
    return [*driver.leader.await_ack(level, end, MarkReply(token), 10.0, 0.0), *driver.append(1, synced=False)]


def level(text: str, *, stream: Durability = DURABLE, by_leader: bool = False) -> AckLevel:
    return ack_level(view(durability=stream), Durability.parse(text) if text else None, by_leader=by_leader)


def test_the_streams_level_where_none_is_asked_for() -> None:
    assert level("") == SYNCED
    assert level("", stream=ACCEPTED) == CACHED
    assert level("", stream=Durability.parse("local_durable")) == AckLevel(is_local=True, is_synced=True)


def test_the_publishs_own_goes_before_it() -> None:
    assert level("accepted") == CACHED
    assert level("durable", stream=ACCEPTED) == SYNCED
    assert level("majority_durable", stream=ACCEPTED) == AckLevel(is_local=False, is_synced=True, floor=2)
    assert level("replica_accepted:3") == AckLevel(is_local=False, is_synced=False, floor=3)
    assert level("accepted", by_leader=True) == AckLevel(is_local=True, is_synced=False)
    assert level("", stream=ACCEPTED, by_leader=True) == AckLevel(is_local=True, is_synced=False)


@pytest.mark.parametrize(("text", "by_leader"), [("replica_durable:4", False), ("majority_durable", True)])
def test_a_level_that_no_partition_can_give_is_refused(text: str, by_leader: bool) -> None:
    with pytest.raises(TidelogError, match=text) as refused:
        level(text, by_leader=by_leader)
    assert refused.value.code is Code.BAD_REQUEST


def test_synced_by_all_on_an_accepted_stream() -> None:
    driver = Driver(view(durability=ACCEPTED))
    assert of(RequestSync, publish(driver, SYNCED, "t"))
    assert done(driver.fetch(B, 1, durable=0)) == []
    assert done(driver.fetch(C, 1, durable=0)) == []
    assert driver.leader.high_watermark == 1, "it commits like any other"
    assert done(driver.leader.on_synced(Offset(1), 0.0)) == []
    assert done(driver.fetch(B, 1, durable=1)) == []
    assert done(driver.fetch(C, 1, durable=1)) == ["t"]


def test_a_follower_that_says_nothing_of_syncs_has_synced_nothing_on_an_accepted_stream() -> None:
    driver = Driver(view(durability=ACCEPTED, isr=(A, B)))
    publish(driver, SYNCED, "t")
    driver.leader.on_synced(Offset(1), 0.0)
    assert done(driver.fetch(B, 1, durable=None)) == []
    assert done(driver.fetch(B, 1, durable=1)) == ["t"]


def test_an_accepted_stream_is_not_synced_while_no_publish_waits_for_it() -> None:
    driver = Driver(view(durability=ACCEPTED))
    assert of(RequestSync, publish(driver, CACHED, "t")) == []
    assert [answer.sync_to for answer in of(Respond, driver.fetch(B, 0))] == [0]


def test_followers_are_asked_until_they_have_said_that_it_is_done() -> None:
    driver = Driver(view(durability=ACCEPTED))
    publish(driver, SYNCED, "t")
    assert [answer.sync_to for answer in of(Respond, driver.fetch(B, 0, durable=0))] == [1]
    assert [answer.sync_to for answer in of(Respond, driver.fetch(B, 1, durable=0))] == [1]
    assert not any(answer.sync_to for answer in of(Respond, driver.fetch(B, 1, durable=1)))


def test_a_publish_that_ended_unconfirmed_asks_for_no_more_syncs() -> None:
    driver = Driver(view(durability=ACCEPTED))
    publish(driver, SYNCED, "t")
    (ended,) = of(CompleteProduce, driver.leader.tick(10.0))
    assert ended.error is not None
    assert ended.error.code is Code.CONFIRM_TIMEOUT
    assert not of(Respond, driver.fetch(B, 1, durable=0, now=10.0))
    assert [answer.sync_to for answer in of(Respond, driver.leader.tick(10.3))] == [0]


def test_in_all_page_caches_on_a_durable_stream_ahead_of_the_high_watermark() -> None:
    driver = Driver()
    publish(driver, CACHED, "t")
    assert done(driver.fetch(B, 1, durable=0)) == []
    assert done(driver.fetch(C, 1, durable=0)) == ["t"]
    assert driver.leader.high_watermark == 0


def test_below_min_isr_nothing_is_acknowledged_in_any_way() -> None:
    for stream, asked in ((DURABLE, CACHED), (ACCEPTED, SYNCED)):
        driver = Driver(view(isr=(A, B), durability=stream))
        publish(driver, asked, "t")
        driver.leader.on_view(view(isr=(A,), epoch=2, durability=stream), 0.0)
        driver.leader.on_synced(Offset(1), 0.0)
        assert done(driver.leader.tick(1.0)) == []
        refused = driver.leader.admission.refuse(asked, lease_valid=True, now=0.0)
        assert refused is not None
        assert refused.code is Code.NOT_ENOUGH_REPLICAS


def test_the_maximal_isr_counts_for_either_mark() -> None:
    driver = Driver(view(isr=(A, B)))
    (proposal,) = of(ProposeIsr, driver.fetch(C, 0))
    assert {member.broker for member in proposal.change.new_isr} == {A, B, C}
    publish(driver, CACHED, "t")
    assert done(driver.fetch(B, 1, durable=0)) == []
    assert done(driver.fetch(C, 1, durable=0)) == ["t"]


def test_a_follower_that_lacks_records_acknowledged_from_page_caches_does_not_join() -> None:
    driver = Driver(view(isr=(A, B)))
    publish(driver, CACHED, "t")
    assert done(driver.fetch(B, 1, durable=0)) == ["t"]
    assert of(ProposeIsr, driver.fetch(C, 0)) == []
    assert of(ProposeIsr, driver.fetch(C, 1, durable=0)) != []


def test_a_follower_that_has_not_synced_records_acknowledged_as_synced_does_not_join() -> None:
    driver = Driver(view(isr=(A, B), durability=ACCEPTED))
    publish(driver, SYNCED, "t")
    driver.leader.on_synced(Offset(1), 0.0)
    assert done(driver.fetch(B, 1, durable=1)) == ["t"]
    answered = driver.fetch(C, 1, durable=0)
    assert of(ProposeIsr, answered) == []
    assert [answer.sync_to for answer in of(Respond, answered)] == [1], "it is asked to"
    assert of(ProposeIsr, driver.fetch(C, 1, durable=1)) != []


def test_a_follower_that_has_not_synced_records_of_earlier_epochs_does_not_join() -> None:
    driver = Driver(view(isr=(A, B), leader_epoch=2, durability=ACCEPTED), log_end=5, high_watermark=5)
    assert of(ProposeIsr, driver.fetch(C, 5, durable=4)) == []
    assert of(ProposeIsr, driver.fetch(C, 5, durable=5)) != []


def test_a_floor_waits_for_members_though_all_of_the_isr_has_it() -> None:
    driver = Driver(view(isr=(A, B), min_isr=1))
    three = AckLevel(is_local=False, is_synced=True, floor=3)
    publish(driver, three, "t")
    driver.leader.on_synced(Offset(1), 0.0)
    assert done(driver.fetch(B, 1)) == []
    assert driver.leader.high_watermark == 1
    (proposal,) = of(ProposeIsr, driver.fetch(C, 1))
    assert proposal.change.new_isr
    assert done(driver.leader.on_view(view(isr=(A, B, C), epoch=2, min_isr=1), 0.0)) == ["t"]


def test_a_floor_above_the_isr_is_refused_before_anything_is_appended() -> None:
    driver = Driver(view(isr=(A, B), min_isr=1))
    refused = driver.leader.admission.refuse(
        AckLevel(is_local=False, is_synced=True, floor=3), lease_valid=True, now=0.0
    )
    assert refused is not None
    assert refused.code is Code.NOT_ENOUGH_REPLICAS
    assert "needs 3" in refused.message
    assert (
        driver.leader.admission.refuse(AckLevel(is_local=False, is_synced=True, floor=2), lease_valid=True, now=0.0)
        is None
    )


def test_a_floor_below_min_isr_does_not_lower_it() -> None:
    driver = Driver(view(isr=(A,), min_isr=2))
    refused = driver.leader.admission.refuse(
        AckLevel(is_local=False, is_synced=True, floor=1), lease_valid=True, now=0.0
    )
    assert refused is not None
    assert refused.code is Code.NOT_ENOUGH_REPLICAS


def test_later_publishes_do_not_wait_for_one_with_a_floor() -> None:
    driver = Driver(view(isr=(A, B), min_isr=1))
    publish(driver, AckLevel(is_local=False, is_synced=True, floor=3), "three")
    publish(driver, SYNCED, "all")
    driver.leader.on_synced(Offset(2), 0.0)
    assert done(driver.fetch(B, 2)) == ["all"]
    (ended,) = of(CompleteProduce, driver.leader.tick(10.0))
    assert (name(ended), ended.error and ended.error.code) == ("three", Code.CONFIRM_TIMEOUT)


def test_the_leaders_own_copy_in_either_way() -> None:
    driver = Driver(view(durability=ACCEPTED))
    assert done(publish(driver, AckLevel(is_local=True, is_synced=False), "cached")) == ["cached"]
    asked = publish(driver, AckLevel(is_local=True, is_synced=True), "synced")
    assert of(RequestSync, asked)
    assert done(asked) == []
    assert done(driver.leader.on_synced(Offset(2), 0.0)) == ["synced"]


def test_a_repetition_of_an_unsynced_batch_has_it_synced() -> None:
    driver = Driver(view(durability=ACCEPTED, isr=(A, B)))
    publish(driver, CACHED, "first")
    driver.fetch(B, 1, durable=None)
    again = driver.leader.await_ack(SYNCED, Offset(1), MarkReply("again"), 10.0, 0.0)
    assert of(RequestSync, again)
    assert [(answer.replica, answer.sync_to) for answer in of(Respond, again)] == [(B, 1)], "who sleeps is woken"
    driver.leader.on_synced(Offset(1), 0.0)
    assert done(driver.fetch(B, 1, durable=1)) == ["again"]


def test_a_repetition_that_every_member_has_accepted_waits_for_nothing_more() -> None:
    driver = Driver(view(isr=(A, B)))
    publish(driver, SYNCED, "first")
    driver.fetch(B, 1, durable=0)
    assert done(driver.leader.await_ack(CACHED, Offset(1), MarkReply("again"), 10.0, 0.0)) == ["again"]


def test_a_member_whose_disk_hangs_lags_where_a_publish_waits_for_its_sync() -> None:
    driver = Driver(view(durability=ACCEPTED, isr=(A, B), min_isr=1))
    publish(driver, SYNCED, "t")
    driver.leader.on_synced(Offset(1), 0.0)
    proposed: list[LeaderEffect] = []
    for second in range(1, 9):
        driver.fetch(B, 1, durable=0, now=float(second))
        proposed += of(ProposeIsr, driver.leader.tick(float(second)))
    assert proposed, "B holds up what waits for it"


def test_a_leadership_that_ends_leaves_all_of_them_unknown() -> None:
    driver = Driver(view(durability=ACCEPTED))
    for number, asked in enumerate((SYNCED, CACHED, AckLevel(is_local=True, is_synced=True))):
        publish(driver, asked, str(number))
    ended = of(CompleteProduce, driver.leader.resign("over", 1.0))
    assert {(name(effect), effect.error and effect.error.code) for effect in ended} == {
        (str(number), Code.OUTCOME_UNKNOWN) for number in range(3)
    }
