"""A follower that is gone costs the leader nothing for ever."""

from __future__ import annotations

from dataplane.replica.effects import LeaderEffect, Notify
from dataplane.replica.epochs import LeaderEpochCache
from dataplane.replica.leader import Leader
from dataplane.replica.requests import FollowerFetch
from dataplane.replica.settings import ReplicaSettings
from wire.stream_config import StreamConfig
from wire.types import (
    BrokerId,
    Incarnation,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    PartitionKey,
    PartitionView,
    StreamName,
)

A, B = BrokerId("a"), BrokerId("b")


def test_a_follower_that_never_fetches_again_is_not_notified_for_ever() -> None:
    settings = ReplicaSettings()
    leader = Leader(
        view=PartitionView(
            key=PartitionKey(StreamName("s"), Incarnation(1), 0, Incarnation(1)),
            subject="s",
            config=StreamConfig(min_isr=1),
            replicas=(A, B),
            leader=A,
            isr=(A,),
            eligible=(),
            epoch=PartitionEpoch(1),
            leader_epoch=LeaderEpoch(1),
        ),
        broker=A,
        incarnation=Incarnation(10),
        log_start_offset=Offset(0),
        log_end_offset=Offset(0),
        durable_end=Offset(0),
        high_watermark=Offset(0),
        epochs=LeaderEpochCache(),
        settings=settings,
        now=0.0,
    )
    leader.on_fetch(
        FollowerFetch(
            replica=B,
            incarnation=Incarnation(20),
            leader_epoch=LeaderEpoch(1),
            sequence=1,
            offset=Offset(0),
            durable_end=Offset(0),
            progress_only=False,
            inbox="inbox",
        ),
        0.0,
    )
    leader.on_appended(Offset(5), 100, 0.0)

    def notifications(effects: list[LeaderEffect]) -> int:
        return sum(isinstance(e, Notify) for e in effects)

    assert notifications(leader.tick(0.1)) == 1
    assert notifications(leader.tick(1.0)) == 1
    silent = settings.replica_max_lag_time + 1.0
    leader.tick(silent)
    assert notifications(leader.tick(silent + 1.0)) == 0
    assert leader.next_deadline() > silent + 1.4, "nothing to wake for every notify_retry"
