"""The cluster state with which a cluster begins anew after it has lost a majority of its voters' folders.

It is the state of a voter that is left. Other voters may have applied commands that this one has not: their numbers
must not be given out again, for folders, logs and clients know them. So every number that only grows is raised by STEP,
the partitions have no leader, and no broker is alive until it registers. The proof of folders stays: a broker that has
not registered since still has the incarnation of its folder. One that has registered by a lost decision has an
incarnation of the skipped range, as have streams that were made by one (`Contents.lost`): their logs are not removed.
"""

from __future__ import annotations

from dataclasses import replace

from metadata.cluster import state_snapshot
from metadata.cluster.model import LostDecisions
from wire.turns import Turns
from wire.types import Generation, LeaderEpoch, PartitionEpoch

STEP = 1_000_000
"""Above the number of commands that a cluster can have committed without the voter which is left."""
PRODUCER_STEP = 1_000_000_000
"""STEP for producer ids: one command may allot many."""


def advanced(state: bytes) -> bytes:
    """Takes a snapshot of the cluster state, and returns the one to begin anew with. Raises CorruptData."""
    contents = Turns(state_snapshot.decoding(state)).finish()
    first, last = Generation(contents.generation + 1), Generation(contents.generation + STEP)
    contents.lost = (*contents.lost, LostDecisions(first, last))
    contents.generation = last
    contents.controller_epoch += STEP
    contents.controller, contents.controller_life_id = None, ""
    contents.next_producer_id += PRODUCER_STEP
    contents.brokers = {broker: replace(known, alive=False) for broker, known in contents.brokers.items()}
    for stream in contents.streams.values():
        stream.routing_generation = contents.generation
        stream.partitions = {
            number: replace(
                partition,
                leader=None,
                epoch=PartitionEpoch(partition.epoch + STEP),
                leader_epoch=LeaderEpoch(partition.leader_epoch + STEP),
            )
            for number, partition in stream.partitions.items()
        }
    return Turns(state_snapshot.encoding(contents)).finish()
