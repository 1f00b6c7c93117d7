"""Which settings agree, where they come from, and can be changed while a stream lives."""

from __future__ import annotations

import pytest

from metadata.cluster import stream_settings
from metadata.commands.cluster_state import ClusterState
from tests.unit.metadata.cluster_bench import Cluster
from wire.errors import Code, TidelogError
from wire.stream_config import StreamConfig
from wire.types import StreamName


def settings(cluster: Cluster, name: str = "s") -> StreamConfig:
    return cluster.state.streams[StreamName(name)].settings


@pytest.mark.parametrize(
    ("config", "factor", "words"),
    [
        ({"min_isr": "3"}, 2, ["min_isr=3", "replication factor 2", "lower it"]),
        ({"durability": "replica_durable:4"}, 3, ["replica_durable:4", "4 replicas", "3 at most"]),
        ({"durability": "replica_durable:2"}, 1, ["replica_durable:2", "1 at most"]),
        ({"durability": "replica_durable:2", "min_isr": "1"}, 3, ["min_isr=1", "below the 2", "replica_durable:2"]),
        ({"durability": "majority_durable", "min_isr": "2"}, 5, ["min_isr=2", "below the 3", "majority_durable"]),
        ({"on_under_capacity": "evict_oldest"}, 3, ["evict_oldest", "retention_max_bytes", "withdraw"]),
        (
            {"on_under_capacity": "evict_oldest", "compact": "true", "retention_max_bytes": "1"},
            3,
            ["evict_oldest", "compact=true", "withdraw"],
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused_at_create_and_at_alter(
    config: dict[str, str], factor: int, words: list[str]
) -> None:
    cluster = Cluster("a", "b", "c", "d", "e")
    replicas = " ".join("abcde"[:factor])
    refused = cluster.create("s", [replicas], config=config)
    assert refused.code is Code.BAD_CONFIG
    assert all(word in refused.message for word in words), refused.message
    cluster.create("s", [replicas])
    before = cluster.state.snapshot()
    again = cluster.alter_stream(config=config)
    assert (again.code, again.message) == (refused.code, refused.message)
    assert cluster.state.snapshot() == before


def test_evict_oldest_goes_with_any_limit() -> None:
    for limit in ("retention_max_age_ms", "retention_max_bytes", "retention_max_messages"):
        StreamConfig.from_strings({"on_under_capacity": "evict_oldest", limit: "1000"}).check(1)


@pytest.mark.parametrize(
    ("durability", "factor", "min_isr"),
    [
        ("durable", 3, 2),
        ("durable", 2, 1),
        ("local_durable", 3, 2),
        ("replica_durable:3", 3, 3),
        ("replica_accepted:1", 3, 1),
        ("majority_durable", 5, 3),
        ("majority_durable", 4, 3),
        ("majority_durable", 1, 1),
    ],
)
def test_a_level_says_how_many_must_be_in_sync(durability: str, factor: int, min_isr: int) -> None:
    cluster = Cluster("a", "b", "c", "d", "e")
    cluster.create("s", [" ".join("abcde"[:factor])], config={"durability": durability})
    assert settings(cluster).min_isr == min_isr


def test_a_min_isr_above_that_of_the_level_holds() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create(config={"durability": "replica_durable:1", "min_isr": "3"})
    assert settings(cluster).min_isr == 3


def test_settings_change_in_one_step_that_everybody_can_tell_by_the_epoch() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ["a b c", "b c a"])
    outcome = cluster.alter_stream(config={"retention_max_bytes": "1000", "compact": "true"})
    assert outcome.code is None
    assert outcome.changes.partitions == (cluster.key(0), cluster.key(1))
    for number in (0, 1):
        view = cluster.state.view(cluster.key(number))
        assert view is not None
        assert (view.config.retention_max_bytes, view.config.compact) == (1000, True)
        assert (view.epoch, view.leader_epoch) == (2, 1)


def test_a_change_without_effect_raises_no_epoch() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create(config={"compact": "true"})
    before = cluster.state.snapshot()
    assert cluster.alter_stream(config={"compact": "true"}, unset=["min_isr"]).code is None
    assert cluster.state.snapshot() == before


def test_a_setting_that_is_unset_has_its_default_again() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create(config={"min_isr": "1", "segment_bytes": "4096"})
    cluster.alter_stream(unset=["min_isr", "segment_bytes"])
    assert (settings(cluster).min_isr, settings(cluster).segment_bytes) == (2, StreamConfig().segment_bytes)


@pytest.mark.parametrize(
    ("config", "unset", "words"),
    [
        ({"nonsense": "1"}, [], ["nonsense", "known:"]),
        ({}, ["nonsense"], ["nonsense", "known:"]),
        ({"min_isr": "1"}, ["min_isr"], ["min_isr", "'1'", "unset"]),
        ({"segment_bytes": "many"}, [], ["segment_bytes='many'"]),
        ({"durability": "accepted"}, [], ["durability=durable", "accepted", "each publish"]),
        ({"durability": "replica_accepted:2"}, [], ["durability=durable", "replica_accepted:2"]),
        ({"encryption": "true"}, [], ["encryption=false", "another stream"]),
    ],
)
def test_a_request_with_a_fixed_setting_is_refused_whole(
    config: dict[str, str], unset: list[str], words: list[str]
) -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    before = cluster.state.snapshot()
    outcome = cluster.alter_stream(config={**config, "compact": "true"}, unset=unset)
    assert outcome.code is Code.BAD_CONFIG
    assert all(word in outcome.message for word in words), outcome.message
    assert cluster.state.snapshot() == before


def test_a_level_may_change_where_copies_count_as_before() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    assert cluster.alter_stream(config={"durability": "replica_durable:3"}).code is None
    assert settings(cluster).min_isr == 3
    assert cluster.alter_stream(config={"durability": "local_durable"}).code is None
    assert settings(cluster).min_isr == 2
    cluster.create("t", config={"durability": "accepted"})
    assert cluster.alter_stream("t", config={"durability": "replica_accepted:1"}).code is None
    assert cluster.alter_stream("t", unset=["durability"]).code is Code.BAD_CONFIG


def test_an_alteration_is_a_compare_and_set_on_the_streams_life_and_the_controller_epoch() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    old = cluster.state.streams[StreamName("s")].incarnation
    cluster.delete()
    assert cluster.alter_stream(config={"compact": "true"}).code is Code.UNKNOWN_STREAM
    cluster.create()
    assert cluster.alter_stream(config={"compact": "true"}, incarnation=old).code is Code.UNKNOWN_STREAM
    cluster.begin_controller_epoch("b")
    assert cluster.alter_stream(config={"compact": "true"}, epoch=1).code is Code.NOT_CONTROLLER
    assert cluster.alter_cluster(config={"compact": "true"}, epoch=1).code is Code.NOT_CONTROLLER
    assert not settings(cluster).compact


def test_altered_settings_survive_a_snapshot() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    cluster.alter_stream(config={"min_isr": "3"})
    cluster.alter_cluster(config={"compact": "true"})
    fresh = ClusterState()
    fresh.restore(cluster.state.snapshot())
    assert fresh.streams[StreamName("s")].min_isr == 3
    assert fresh.defaults == {"compact": "true"}


# ---- defaults of the cluster ---------------------------------------------------------------------------------------


def test_new_streams_get_the_clusters_defaults_where_they_have_no_setting_of_their_own() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("old")
    cluster.alter_cluster(config={"durability": "accepted", "confirm_timeout_ms": "500"})
    cluster.create("s", config={"confirm_timeout_ms": "700"})
    cluster.create("t", config={"durability": "durable"})
    assert (settings(cluster).is_durable, settings(cluster).confirm_timeout_ms) == (False, 700)
    assert (settings(cluster, "t").is_durable, settings(cluster, "t").confirm_timeout_ms) == (True, 500)
    assert settings(cluster, "old") == StreamConfig(min_isr=2)


def test_another_default_changes_no_stream_until_a_setting_is_unset() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.alter_cluster(config={"confirm_timeout_ms": "500"})
    cluster.create()
    cluster.alter_cluster(config={"confirm_timeout_ms": "900"})
    assert settings(cluster).confirm_timeout_ms == 500
    cluster.alter_stream(unset=["confirm_timeout_ms"])
    assert settings(cluster).confirm_timeout_ms == 900
    cluster.alter_cluster(unset=["confirm_timeout_ms"])
    cluster.alter_stream(unset=["confirm_timeout_ms"])
    assert settings(cluster).confirm_timeout_ms == 10_000


def test_a_level_of_the_streams_own_goes_before_a_default_min_isr() -> None:
    defaults = {"min_isr": "1"}
    assert stream_settings.with_defaults({"durability": "replica_durable:2"}, defaults) == {
        "durability": "replica_durable:2"
    }
    assert stream_settings.with_defaults({"durability": "durable"}, defaults)["min_isr"] == "1"


def test_a_default_is_looked_at_when_it_is_set() -> None:
    for config in ({"nonsense": "1"}, {"durability": "replica_durable"}):
        with pytest.raises(TidelogError, match=next(iter(config))):
            stream_settings.altered_defaults({}, changes=config, unset=[])


# ---- settings that one command obeys -------------------------------------------------------------------------------


def test_a_protected_stream_is_not_deleted_before_the_protection_is_lifted() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.alter_cluster(config={"delete_protection": "true"})
    cluster.create()
    before = cluster.state.snapshot()
    refused = cluster.delete()
    assert refused.code is Code.BAD_REQUEST
    assert "tidelog stream alter s --config delete_protection=false" in refused.message
    assert cluster.state.snapshot() == before
    cluster.alter_stream(config={"delete_protection": "false"})
    assert cluster.delete().code is None


# ---- min ISR and the partitions ------------------------------------------------------------------------------------


def test_a_lowered_min_isr_takes_the_right_to_lead_from_replicas_outside() -> None:
    """The leader goes on without them from now on."""
    cluster = Cluster("a", "b", "c")
    cluster.create()
    cluster.die("b", "c")
    assert cluster.shown() == "a | a | b c | @1"
    cluster.alter_stream(config={"min_isr": "1"})
    assert cluster.shown() == "a | a |  | @1"


def test_without_a_leader_a_lowered_min_isr_takes_the_eligible_into_the_isr() -> None:
    """Nothing commits meanwhile: they hold everything, and the first to return may lead."""
    cluster = Cluster("a", "b", "c")
    cluster.create()
    cluster.die("b", "c")
    cluster.die("a")
    assert cluster.shown() == "- | a | b c | @2"
    cluster.alter_stream(config={"min_isr": "1"})
    assert cluster.shown() == "- | a b c |  | @2"
    cluster.register("c")
    assert cluster.shown() == "- | a b c |  | @2"
    cluster.elect()
    assert cluster.shown() == "c | c |  | @3"


def test_a_min_isr_raised_above_the_isr_makes_no_replica_eligible() -> None:
    """The replicas outside left while commits went on."""
    cluster = Cluster("a", "b", "c")
    cluster.create(config={"min_isr": "1"})
    cluster.die("b", "c")
    cluster.alter_stream(config={"min_isr": "2"})
    assert cluster.shown() == "a | a |  | @1"
    cluster.die("a")
    cluster.register("b")
    assert cluster.shown() == "- | a |  | @2"


def test_an_isr_change_proposed_under_the_old_settings_does_nothing() -> None:
    """Else it could drop a member under the new min ISR that its leader had dropped under the old one."""
    cluster = Cluster("a", "b", "c")
    cluster.create(config={"min_isr": "1"})
    late = cluster.alteration("a")
    cluster.alter_stream(config={"min_isr": "3"})
    assert cluster.alter(late).items == (Code.STALE_EPOCH,)
