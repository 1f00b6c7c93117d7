"""Which partitions may append when much waits for its commit."""

from __future__ import annotations

from dataplane.replica.leader.commits import LATE, MOST_OF_A_CROWD, Uncommitted
from dataplane.replica.replica_settings import ReplicaSettings

SETTINGS = ReplicaSettings(max_uncommitted_bytes=5000, max_uncommitted_bytes_of_all=6400)
LATELY = LATE * SETTINGS.replica_max_lag_time
TOO_LONG = LATELY + 0.001


def shared(size: int, *, partitions: int = 4, waiting: int = 4) -> Uncommitted:
    made = Uncommitted(SETTINGS)
    made.size, made.partitions, made.waiting = size, partitions, waiting
    return made


def test_a_partition_has_a_bound_of_its_own_whatever_the_others_hold() -> None:
    assert shared(5001, partitions=1, waiting=1).why_not(5000, 0.0) is None
    assert "5001 bytes" in (shared(5001, partitions=1, waiting=1).why_not(5001, 0.0) or "")


def test_above_the_bound_of_all_partitions_above_their_share_are_refused() -> None:
    assert shared(6400).why_not(4000, LATELY) is None
    assert shared(6401).why_not(1600, LATELY) is None
    assert shared(6401).why_not(1601, LATELY) is not None


def test_while_commits_are_late_the_bound_is_divided_by_the_waiting_partitions() -> None:
    assert shared(1600).why_not(1600, TOO_LONG) is None
    assert shared(1601).why_not(401, TOO_LONG) is not None
    assert shared(1601).why_not(400, TOO_LONG) is None
    assert shared(1601).why_not(401, LATELY) is None


def test_a_crowd_divides_it_no_further() -> None:
    crowd = 10 * MOST_OF_A_CROWD
    limit = 6400 // MOST_OF_A_CROWD
    assert shared(limit, partitions=crowd, waiting=crowd).why_not(limit, TOO_LONG) is None
    assert shared(limit + 1, partitions=1, waiting=crowd).why_not(limit + 1, TOO_LONG) is not None


def test_commits_are_not_late_while_no_publish_waits() -> None:
    assert shared(6400, waiting=0).why_not(6400 // 4, TOO_LONG) is None
