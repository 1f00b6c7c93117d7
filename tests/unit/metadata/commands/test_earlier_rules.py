"""A cluster that is upgraded: the voters apply the commands that an earlier version has committed."""

# Rules: R28.

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

import pytest

from metadata.cluster.command_rules import FURTHEST_LOG_LEADS, RULES
from metadata.commands.cluster_state import ClusterState
from tests.unit.metadata.cluster_bench import CLUSTER_ID, Cluster
from wire.protobuf import metadata_pb2 as pb
from wire.types import StreamName

HISTORIES = Path(__file__).parents[3] / "testdata" / "upgrade" / "metadata_before_r71.json.gz"


@pytest.mark.parametrize("number", range(12))
def test_commands_of_an_earlier_version_come_to_the_state_in_which_it_has_led(number: int) -> None:
    history = json.loads(gzip.decompress(HISTORIES.read_bytes()))[number]
    commands = [base64.b64decode(command) for command in history["commands"]]
    left, state = ClusterState(), ClusterState()
    left.restore(base64.b64decode(history["state"]))
    for command in commands:
        state.apply(command)
    assert state.snapshot() == left.snapshot()


def test_voters_with_snapshots_at_different_places_of_an_earlier_journal_come_to_one_state() -> None:
    history = json.loads(gzip.decompress(HISTORIES.read_bytes()))[0]
    commands = [base64.b64decode(command) for command in history["commands"]]
    early, late = ClusterState(), ClusterState()
    late.restore(base64.b64decode(history["state"]))
    for command in commands:
        early.apply(command)
    for state in (early, late):
        state.apply(
            pb.Command(
                begin_controller_epoch=pb.BeginControllerEpoch(
                    controller="a", life_id="a", expected_controller_epoch=state.controller_epoch, rules=RULES
                )
            ).SerializeToString()
        )
    assert early.rules == RULES
    assert early.snapshot() == late.snapshot()


def test_a_registration_of_this_version_counts_by_its_own_rules_before_its_first_controller_has_begun() -> None:
    """After the upgrade it may be committed before BeginControllerEpoch is."""
    cluster = Cluster("a", "b")
    cluster.create("s", ["a b"])
    cluster.state._contents.rules = 0
    for replace, back in ((None, []), (False, ["b"])):
        cluster.register("b", replace=replace)
        assert [entry.replica for entry in cluster.partition().returned] == back


def test_the_rules_of_this_version_hold_from_its_first_controller_on_and_never_go_back() -> None:
    cluster = Cluster("a", "b")
    for rules in (0, FURTHEST_LOG_LEADS - 1):
        cluster.apply(
            pb.Command(
                begin_controller_epoch=pb.BeginControllerEpoch(
                    controller="a",
                    life_id="a",
                    expected_controller_epoch=cluster.state.controller_epoch,
                    cluster_id=CLUSTER_ID,
                    rules=rules,
                )
            )
        )
        assert cluster.state.rules == RULES
    cluster.create("s", ["a b"])
    cluster.register("b")
    partition = cluster.state.streams[StreamName("s")].partitions[0]
    assert [entry.replica for entry in partition.returned] == ["b"]
    restored = ClusterState()
    restored.restore(cluster.state.snapshot())
    assert restored.rules == RULES
