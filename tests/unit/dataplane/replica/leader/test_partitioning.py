"""Which publishes a partition takes, by the partitioning version that they name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dataplane.replica.leader.partitioning import (
    VersionAwaited,
    judge,
    not_applied,
    plain_subjects,
    stamped_version,
    takes_plain,
)
from tests.views import KEY, A, partition_view
from wire.errors import Code, TidelogError
from wire.types import PartitionState, PartitionView

ROUTED: dict[str, Any] = {"partition_count": 2}
AWAITED: dict[str, Any] = {"partition_count": 2, "awaits_cutover": True}
SOURCES_AWAITED: dict[str, Any] = {"partition_count": 2, "awaits_sources": True}
PREPARED: dict[str, Any] = {"number": 2, "partition_count": 2}
DRAINING: dict[str, Any] = {"number": 2, "partition_count": 2, "state": PartitionState.DRAINING}
RETIRED: dict[str, Any] = {"number": 2, "partition_count": 2, "state": PartitionState.RETIRED}
HELD, TAKEN = VersionAwaited.AWAITED, None
STALE, LEAVES, GONE = Code.STALE_PARTITIONING, Code.PARTITION_DRAINING, Code.PARTITION_RETIRED


def view(*, number: int = 0, version: int = 3, **fields: Any) -> PartitionView:
    return replace(partition_view(A, key=replace(KEY, partition=number)), partitioning_version=version, **fields)


@pytest.mark.parametrize(
    ("fields", "unnamed", "older", "newest", "newer"),
    [
        (ROUTED, TAKEN, STALE, TAKEN, HELD),
        (AWAITED, TAKEN, STALE, HELD, HELD),
        (SOURCES_AWAITED, TAKEN, STALE, HELD, HELD),
        (PREPARED, STALE, STALE, STALE, HELD),
        (DRAINING, LEAVES, STALE, LEAVES, HELD),
        ({**DRAINING, "awaits_cutover": True}, LEAVES, STALE, LEAVES, HELD),
        (RETIRED, GONE, STALE, GONE, HELD),
    ],
)
def test_a_request_is_judged_by_the_version_that_it_names(
    fields: dict[str, Any], unnamed: object, older: object, newest: object, newer: object
) -> None:
    judged = [judge(view(**fields), version, can_deny=True) for version in (0, 2, 3, 4)]
    assert [each.code if isinstance(each, TidelogError) else each for each in judged] == [
        unnamed, older, newest, newer
    ]  # fmt: skip


@pytest.mark.parametrize("fields", [AWAITED, {**DRAINING, "awaits_cutover": True}])
def test_an_older_version_is_held_while_another_replica_may_hold_the_batch(fields: dict[str, Any]) -> None:
    assert judge(view(**fields), 2, can_deny=False) is HELD


@pytest.mark.parametrize("fields", [ROUTED, SOURCES_AWAITED, PREPARED, DRAINING, RETIRED])
def test_an_older_version_is_refused_once_the_cutover_is_told(fields: dict[str, Any]) -> None:
    error = judge(view(**fields), 2, can_deny=False)
    assert isinstance(error, TidelogError)
    assert error.code is STALE


def test_a_refusal_names_the_newest_version_and_the_leader() -> None:
    error = judge(view(), 1, can_deny=True)
    assert isinstance(error, TidelogError)
    assert dict(error.details) == {"version": "3", "leader": "a"}
    assert error.message == "stream s is in partitioning version 3, the request in 1; refresh the metadata"


def test_what_was_held_in_vain_is_to_be_tried_again() -> None:
    error = not_applied(view(number=1), 4)
    assert (error.code, error.details["version"]) == (Code.UNAVAILABLE, "3")
    assert error.message == "a has not applied partitioning version 4 of stream s in partition 1 yet; try again"


def test_what_may_be_stored_elsewhere_is_to_be_tried_again_and_not_taken_for_missing() -> None:
    error = not_applied(view(number=1), 2)
    assert error.code is Code.UNAVAILABLE
    assert "version" not in error.details
    assert error.message == (
        "stream s is in partitioning version 3, the request in 2, and a does not know yet whether another replica of"
        " partition 1 holds the batch; try again"
    )


@pytest.mark.parametrize(
    ("fields", "listens"),
    [
        (ROUTED, True),
        (AWAITED, True),
        (SOURCES_AWAITED, True),
        (PREPARED, False),
        (DRAINING, False),
        ({**DRAINING, "awaits_cutover": True}, True),
        (RETIRED, False),
        ({**RETIRED, "awaits_cutover": True}, False),
    ],
)
def test_plain_messages_are_taken_where_keys_are_routed_and_until_the_cutover_of_one_that_leaves_is_told(
    fields: dict[str, Any], listens: bool
) -> None:
    found = view(**fields)
    assert takes_plain(found) is listens
    assert plain_subjects(found) == (("s",) if listens else ())


def test_a_leader_listens_in_the_place_of_partitions_that_were_left_behind() -> None:
    assert plain_subjects(view(**ROUTED, further_subjects=("s.2", "s.4"))) == ("s", "s.2", "s.4")


@pytest.mark.parametrize(
    ("version", "awaits", "stamped"), [(1, False, 0), (2, True, 0), (2, False, 2), (3, True, 2), (3, False, 3)]
)
def test_batches_are_stamped_with_a_version_once_its_cutover_is_told(version: int, awaits: bool, stamped: int) -> None:
    assert stamped_version(view(version=version, awaits_cutover=awaits)) == stamped
    assert stamped_version(view(version=version, awaits_sources=awaits)) == stamped
