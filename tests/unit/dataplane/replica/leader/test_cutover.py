"""A leader's report of where the layout before the newest one ends."""

from __future__ import annotations

from dataclasses import replace

from dataplane.replica.leader.partitioning import VersionAwaited
from dataplane.replica.replica_effects import LeaderEffect, ReportCutover
from tests.unit.dataplane.replica.cores import Driver, of, view
from tests.views import KEY, A, B, C
from wire.errors import Code, TidelogError
from wire.types import CutoverReport, LeaderEpoch, Offset, PartitionEpoch, PartitionView


def awaiting(version: int = 2, *, epoch: int = 2, leader_epoch: int = 1, awaits: bool = True) -> PartitionView:
    return replace(view(epoch=epoch, leader_epoch=leader_epoch), partitioning_version=version, awaits_cutover=awaits)


def ends(effects: list[LeaderEffect]) -> list[int]:
    return [effect.report.end_offset for effect in of(ReportCutover, effects)]


def replicated(driver: Driver, end: int) -> list[LeaderEffect]:
    return [effect for each in (B, C) for effect in driver.fetch(each, end)]


def test_the_end_of_the_log_is_reported_once_all_of_it_is_committed() -> None:
    driver = Driver()
    driver.append(3)
    assert ends(driver.leader.on_view(awaiting(), 0.0)) == []
    assert ends(driver.fetch(B, 3)) == []
    out = driver.fetch(C, 3)
    assert of(ReportCutover, out) == [
        ReportCutover(CutoverReport(key=KEY, leader=A, leader_epoch=LeaderEpoch(1), version=2, end_offset=Offset(3)))
    ]
    assert ends([*replicated(driver, 3), *driver.leader.tick(1.0)]) == []


def test_a_log_that_is_committed_is_reported_at_once() -> None:
    driver = Driver()
    driver.append(3)
    replicated(driver, 3)
    assert ends(driver.leader.on_view(awaiting(), 0.0)) == [3]


def test_records_that_come_meanwhile_do_not_move_the_end() -> None:
    driver = Driver()
    driver.append(3)
    driver.leader.on_view(awaiting(), 0.0)
    driver.append(2)
    assert ends(replicated(driver, 2)) == []
    assert ends(replicated(driver, 5)) == [3]


def test_a_view_that_still_awaits_it_has_it_reported_again_with_the_same_end() -> None:
    driver = Driver()
    driver.append(3)
    replicated(driver, 3)
    driver.leader.on_view(awaiting(), 0.0)
    driver.append(1)
    replicated(driver, 4)
    assert ends(driver.leader.on_view(awaiting(epoch=3), 0.0)) == [3]
    assert ends(driver.leader.on_view(awaiting(epoch=4, awaits=False), 0.0)) == []
    assert ends(driver.leader.tick(1.0)) == []


def test_the_next_cutover_has_an_end_of_its_own() -> None:
    driver = Driver()
    driver.append(3)
    replicated(driver, 3)
    driver.leader.on_view(awaiting(), 0.0)
    driver.leader.on_view(awaiting(epoch=3, awaits=False), 0.0)
    driver.append(4)
    replicated(driver, 7)
    out = driver.leader.on_view(awaiting(3, epoch=4), 0.0)
    assert [(each.report.version, each.report.end_offset) for each in of(ReportCutover, out)] == [(3, 7)]


def test_a_new_leader_reports_its_own_log_once_all_of_it_is_committed() -> None:
    """Whatever its predecessor has reported: that one's tail may not be in this log."""
    driver = Driver(awaiting(leader_epoch=2), log_end=5, high_watermark=2)
    assert ends(driver.leader.tick(0.0)) == []
    driver.append(1)
    assert ends(replicated(driver, 4)) == []
    assert [
        (each.report.leader_epoch, each.report.end_offset) for each in of(ReportCutover, replicated(driver, 6))
    ] == [(2, 5)]


def test_an_only_replica_reports_in_its_first_tick() -> None:
    alone = replace(awaiting(), replicas=(A,), isr=(A,), config=replace(view().config, min_isr=1))
    driver = Driver(alone, log_end=5, high_watermark=5)
    assert ends(driver.leader.tick(0.0)) == [5]


def test_below_min_isr_nothing_is_reported() -> None:
    driver = Driver(replace(view(), isr=(A,)))
    driver.append(3)
    below = replace(awaiting(), isr=(A,))
    assert ends([*driver.leader.on_view(below, 0.0), *replicated(driver, 3), *driver.leader.tick(1.0)]) == []
    back = replace(awaiting(), epoch=PartitionEpoch(3), isr=(A, B))
    assert ends(driver.leader.on_view(back, 1.0)) == [3]


def test_a_paused_partition_reports_without_a_record_that_would_wake_it() -> None:
    driver = Driver()
    driver.append(3)
    replicated(driver, 3)
    driver.leader.on_view(replace(view(epoch=2), paused=True), 0.0)
    assert ends(driver.leader.on_view(replace(awaiting(epoch=3), paused=True), 60.0)) == [3]


def test_a_member_that_has_not_fetched_in_this_leader_epoch_is_waited_for() -> None:
    """It may hold records of the older layout behind the end, and lead next."""
    driver = Driver(awaiting(leader_epoch=2), log_end=5, high_watermark=5)
    assert ends([*driver.leader.tick(0.0), *driver.fetch(B, 5)]) == []
    assert ends(driver.fetch(C, 5)) == [5]


def test_an_eligible_replica_is_waited_for_until_min_isr_members_go_on_without_it() -> None:
    alone = replace(awaiting(leader_epoch=2), isr=(A,), eligible=(C,))
    driver = Driver(alone, log_end=5, high_watermark=5)
    assert ends([*driver.leader.tick(0.0), *driver.fetch(B, 5)]) == []
    joined = replace(alone, epoch=PartitionEpoch(3), isr=(A, B), eligible=())
    assert ends(driver.leader.on_view(joined, 1.0)) == [5]


def test_an_eligible_replica_that_has_cut_its_log_is_not_waited_for() -> None:
    driver = Driver(replace(awaiting(leader_epoch=2), isr=(A,), eligible=(C,)), log_end=5, high_watermark=5)
    assert ends(driver.fetch(C, 4)) == [5]


def test_a_replica_that_would_not_lead_is_not_waited_for() -> None:
    driver = Driver(replace(awaiting(leader_epoch=2), isr=(A, B)), log_end=5, high_watermark=5)
    assert ends(driver.fetch(B, 5)) == [5]


def test_an_older_version_is_denied_when_every_replica_that_may_lead_has_cut_its_log() -> None:
    driver = Driver(awaiting(leader_epoch=2), log_end=5, high_watermark=5)
    driver.fetch(B, 5)
    assert driver.leader.admission.judge(1) is VersionAwaited.AWAITED
    driver.fetch(C, 5)
    denied = driver.leader.admission.judge(1)
    assert isinstance(denied, TidelogError)
    assert denied.code is Code.STALE_PARTITIONING
