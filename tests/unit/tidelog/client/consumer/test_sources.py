"""Which replica is read from."""

from __future__ import annotations

from tidelog.client.consumer.follower_sources import REST_NS, FollowerSources
from wire.types import BrokerId

B, C = BrokerId("b"), BrokerId("c")
NOW = 10 * REST_NS


def test_consumers_are_spread_over_the_followers() -> None:
    assert [FollowerSources((B, C), spread).choose(NOW) for spread in range(4)] == [B, C, B, C]


def test_one_follower_is_kept_while_it_serves() -> None:
    sources = FollowerSources((B, C), 0)
    assert {sources.choose(NOW + i) for i in range(10)} == {B}


def test_a_replica_that_does_not_serve_rests_and_the_leader_comes_last() -> None:
    sources = FollowerSources((B, C), 0)
    sources.rest(B, NOW)
    assert sources.choose(NOW) == C
    sources.rest(C, NOW + 1)
    assert sources.choose(NOW + 1) is None
    assert sources.choose(NOW + REST_NS) == B


def test_a_clock_that_is_set_back_makes_no_replica_rest_for_ever() -> None:
    sources = FollowerSources((B,), 0)
    sources.rest(B, NOW)
    assert sources.choose(NOW - 2 * REST_NS) == B


def test_newer_metadata_changes_the_choice_and_keeps_the_resting_replicas() -> None:
    sources = FollowerSources((B, C), 0)
    sources.rest(C, NOW)
    sources.know((C,))
    assert sources.choose(NOW) is None
    sources.know((C, B))
    assert sources.choose(NOW) == B
    sources.know(())
    assert sources.choose(NOW) is None


def test_while_the_leader_is_the_nearest_nothing_is_asked_for() -> None:
    sources = FollowerSources((), 0)
    sources.know((), leader_is_nearest=True)
    assert not any(sources.is_out_of_date(NOW + i * REST_NS) for i in range(5))
    sources.know(())
    assert [sources.is_out_of_date(NOW + i * REST_NS) for i in range(5, 7)] == [True, True]


def test_without_followers_metadata_is_asked_for_once_in_a_while() -> None:
    sources = FollowerSources((), 0)
    asked = [sources.is_out_of_date(NOW + i * REST_NS // 4) for i in range(9)]
    assert asked == [False, False, False, False, True, False, False, False, True]
    sources.know((B,))
    assert not sources.is_out_of_date(NOW + 100 * REST_NS)
