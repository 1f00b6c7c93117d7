"""All scenarios by name.

A scenario is a sequence of faults, each timed by the effect of the one before, that leads to a state in which only one
rule of the protocol prevents a loss. Random faults reach that state once in ten thousand runs, the scenario in every
few runs.
"""

from __future__ import annotations

from typing import Any

from tests.simulation.scenarios import (
    disks,
    leadership,
    membership,
    partitions,
    programs,
    reassignments,
    removed_records,
)
from tests.simulation.scenarios.running import Scenario
from wire.durability import ACCEPTED, DURABLE

SCENARIOS: dict[str, Scenario] = {
    scenario.__name__.replace("_", " "): scenario
    for scenario in (
        leadership.see_saw,
        leadership.stale_follower,
        leadership.rolled_back_producer,
        leadership.long_zombie,
        leadership.stale_drain,
        leadership.slow_news,
        leadership.witnesses,
        membership.outsider,
        membership.last_standing,
        membership.lowered_min_isr,
        membership.late_expansion,
        membership.unheard_expansion,
        membership.two_controllers,
        membership.recreated_unheard,
        membership.nats_restarts,
        membership.nats_restarts_and_the_controller_too,
        disks.power_at_takeover,
        disks.sync_fails_then_power,
        disks.damage,
        disks.full_disks,
        disks.silent_damage,
        disks.hung_leader,
        removed_records.below_the_log_start,
        removed_records.copy_under_two_leaders,
        removed_records.compacted_below_a_tail_that_is_cut,
    )
}

LATER_SCENARIOS: dict[str, Scenario] = {
    scenario.__name__.replace("_", " "): scenario
    for scenario in (partitions.repartitioned_under_kills, partitions.late_source)
}
"""Drawn for runs that have none of the others, which so stay as they were."""

ASKED_SCENARIOS: dict[str, Scenario] = {
    scenario.__name__.replace("_", " "): scenario
    for scenario in (
        disks.lost_files,
        disks.first_back_without_its_page_cache,
        membership.stopped_together,
        partitions.tail_behind_the_cutover,
        partitions.repartitioned_while_records_go,
        reassignments.leader_dies_beside_a_learner,
        reassignments.reassigned_under_two_controllers,
        reassignments.cancelled_when_the_added_are_needed,
        reassignments.back_before_its_log_is_removed,
        programs.stopped_while_it_joins,
        programs.ends_that_groups_hear_late,
    )
}
"""In no run but those that are asked for by the name of their scenario: no seed draws them."""

_REPARTITIONED: dict[str, Any] = {
    "partitions": 3,
    "min_isr": 2,
    "keys": 0,
    "retention": (),
    "has_repartitions": True,
}

_REASSIGNED: dict[str, Any] = {
    "brokers": 4,
    "replication_factor": 3,
    "min_isr": 2,
    "streams": 1,
    "partitions": 1,
    "duration": 20.0,
}

REQUIRED_PLANS: dict[str, dict[str, Any]] = {
    "see saw": {"brokers": 5, "min_isr": 2, "duration": 20.0},
    "outsider": {"brokers": 5},
    "last standing": {"brokers": 5, "min_isr": 2},
    "lowered min isr": {"brokers": 5, "min_isr": 2},
    "late expansion": {"min_isr": 2},
    "unheard expansion": {"min_isr": 2},
    "rolled back producer": {"brokers": 5},
    "hung leader": {"min_isr": 2, "quick": False, "duration": 14.0},
    "recreated unheard": {"partitions": 1},
    "long zombie": {"duration": 18.0},
    "below the log start": {
        "min_isr": 2,
        "partitions": 1,
        "segment_bytes": 4096,
        "retention": (("retention_max_bytes", 1),),
        "housekeeping_interval": 0.05,
    },
    "copy under two leaders": {
        "streams": 1,
        "partitions": 1,
        "min_isr": 2,
        "segment_bytes": 4096,
        "keys": 60,
        "tombstone_retention_ms": 0,
        "min_dirty_ratio": 0.01,
        "housekeeping_interval": 0.05,
        "fetch_max_bytes": 256,
        "latency": 0.002,
    },
    "compacted below a tail that is cut": {
        "brokers": 5,
        "streams": 1,
        "partitions": 1,
        "min_isr": 2,
        "segment_bytes": 4096,
        "keys": 5,
        "min_dirty_ratio": 0.01,
        "housekeeping_interval": 0.05,
    },
    "repartitioned under kills": _REPARTITIONED | {"adoption_timeout_s": 0.3, "duration": 12.0},
    "late source": _REPARTITIONED,
    "tail behind the cutover": _REPARTITIONED | {"rate": 4.0, "quick": False, "duration": 14.0},
    "lost files": {"min_isr": 2, "keys": 0, "retention": (), "duration": 14.0, "identifies": False},
    "repartitioned while records go": _REPARTITIONED
    | {
        "streams": 1,
        "rate": 2.0,
        "quick": True,
        "latency": 0.002,
        "adoption_timeout_s": 0.3,
        "duration": 25.0,
        "segment_bytes": 4096,
        "identifies": False,
        "retention": (("retention_max_bytes", 1),),
        "housekeeping_interval": 0.2,
    },
    "first back without its page cache": {
        "brokers": 5,
        "min_isr": 2,
        "streams": 1,
        "partitions": 1,
        "durability": ACCEPTED,
        "asked": ACCEPTED,
        "duration": 25.0,
    },
    "stopped together": {
        "brokers": 5,
        "replication_factor": 2,
        "min_isr": 1,
        "durability": DURABLE,
        "asked": DURABLE,
        "duration": 25.0,
    },
    "leader dies beside a learner": _REASSIGNED,
    "reassigned under two controllers": _REASSIGNED,
    "back before its log is removed": _REASSIGNED,
    "cancelled when the added are needed": _REASSIGNED | {"brokers": 5},
    "stopped while it joins": {"partitions": 3, "min_isr": 2, "rate": 2.0, "has_group": True, "duration": 20.0},
    "ends that groups hear late": {
        "partitions": 2,
        "min_isr": 2,
        "keys": 0,
        "retention": (),
        "rate": 2.0,
        "latency": 0.002,
        "has_transactions": True,
        "duration": 14.0,
    },
}
"""Values that the plan of a run must have for the scenario to work."""
