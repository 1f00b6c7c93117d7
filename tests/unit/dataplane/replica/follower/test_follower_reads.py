"""A follower serves committed records to consumers while it is in sync and fetching; else it sends them elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dataplane.replica.consumers import ConsumerFetch
from dataplane.replica.derived.epochs import EpochEntry, LeaderEpochCache
from dataplane.replica.follower.follower import Follower
from dataplane.replica.follower.follower_states import Fetching, Idle
from dataplane.replica.replica_effects import (
    FollowerEffect,
    RefuseConsumer,
    SendFetch,
    SendSnapshotRequest,
    ServeConsumer,
    Truncate,
)
from dataplane.replica.replica_settings import ReplicaSettings
from dataplane.replica.replies import Reader
from tests.unit.dataplane.replica.cores import EPOCH, SETTINGS, agrees, answer, ends, follower, refused
from tests.views import A
from wire.error_details import LIMIT
from wire.errors import Code, TidelogError
from wire.types import LeaderEpoch, Offset, PartitionEpoch

MAX_AGE = SETTINGS.follower_read_max_age


def serving(
    *, log_end: int = 10, high_watermark: int = 8, settings: ReplicaSettings = SETTINGS, loss_epoch: int = 0
) -> Follower:
    """Follower B with everything of epoch 5 up to `log_end`, idle since 0.0."""
    core = follower((5, 0), log_end=log_end, settings=settings, loss_epoch=loss_epoch)
    core.start(0.0)
    agrees(core)
    answer(core, hw=high_watermark)
    return core


def consumer(offset: int, *, wait: float = 1.0, leader_epoch: int = 5, last_epoch: int = 0) -> ConsumerFetch:
    return ConsumerFetch(
        offset=Offset(offset),
        leader_epoch=LeaderEpoch(leader_epoch),
        max_bytes=1 << 20,
        max_wait=wait,
        last_record_epoch=LeaderEpoch(last_epoch),
        token=Reader(f"at {offset}"),
    )


def refusal(effects: list[FollowerEffect]) -> TidelogError:
    (refused,) = [e for e in effects if isinstance(e, RefuseConsumer)]
    return refused.error


def served(effects: list[FollowerEffect]) -> list[tuple[str, int, int]]:
    """(token, offset, end) of each consumer that got records."""
    return [(e.token.inbox, e.offset, e.end) for e in effects if isinstance(e, ServeConsumer) and e.max_bytes > 0]


# ---------------------------------------------------------------- served
def test_records_below_its_own_high_watermark_are_served_and_no_more() -> None:
    core = serving(log_end=10, high_watermark=8)
    assert served(core.on_consumer_fetch(consumer(0), 0.0)) == [("at 0", 0, 8)]
    assert core.on_consumer_fetch(consumer(8), 0.0) == [], "it waits"


def test_a_high_watermark_above_its_log_end_is_not_believed() -> None:
    core = serving(log_end=10, high_watermark=99)
    assert served(core.on_consumer_fetch(consumer(0), 0.0)) == [("at 0", 0, 10)]


@pytest.mark.parametrize("leader_epoch", [0, 5])
def test_the_present_leader_epoch_or_none_is_served(leader_epoch: int) -> None:
    assert served(serving().on_consumer_fetch(consumer(0, leader_epoch=leader_epoch), 0.0))


def test_an_older_leader_epoch_is_fenced_and_a_newer_one_met_with_silence() -> None:
    core = serving()
    error = refusal(core.on_consumer_fetch(consumer(0, leader_epoch=4), 0.0))
    assert (error.code, error.details["leader_epoch"]) == (Code.FENCED_LEADER_EPOCH, "5")
    assert core.on_consumer_fetch(consumer(0, leader_epoch=6), 0.0) == []


def test_a_position_below_its_log_is_refused() -> None:
    core = follower((5, 4), log_start=4, log_end=10)
    core.start(0.0)
    agrees(core)
    answer(core, hw=10)
    assert refusal(core.on_consumer_fetch(consumer(3), 0.0)).code is Code.OFFSET_BEFORE_LOG


# ---------------------------------------------------------------- logs that were cut
def test_a_consumer_whose_last_record_was_cut_away_is_told() -> None:
    core = follower((3, 0), (5, 6), log_end=10)
    core.start(0.0)
    agrees(core)
    answer(core, hw=10)
    error = refusal(core.on_consumer_fetch(consumer(8, last_epoch=3), 0.0))
    assert (error.code, error.details["offset"]) == (Code.LOG_TRUNCATED, "6")
    assert served(core.on_consumer_fetch(consumer(6, last_epoch=3), 0.0))


def test_a_consumer_that_waits_is_told_of_the_cut_when_the_log_shows_it() -> None:
    """It read up to 100 in epoch 4; an unclean election cut the log at 90, and epoch 5 goes on from there."""
    epochs = LeaderEpochCache([EpochEntry(LeaderEpoch(3), Offset(0))])
    core = follower(log_end=90, epochs=epochs)
    core.start(0.0)
    agrees(core)
    answer(core, hw=90)
    assert core.on_consumer_fetch(consumer(100, last_epoch=4), 0.0) == [], "the log may just not be that long yet"
    answer(core, hw=90)
    epochs.assign(EPOCH, Offset(90))
    effects = core.on_appended(Offset(110), Offset(110), 0.1)
    assert served(effects) == [], "the records from 90 to 100 are others than it read"
    error = refusal(effects)
    assert (error.code, error.details["offset"]) == (Code.LOG_TRUNCATED, "90")


@pytest.mark.parametrize("last_epoch", [3, 4, 5])
def test_a_log_that_is_not_that_long_yet_is_not_taken_for_one_that_was_cut(last_epoch: int) -> None:
    """The consumer comes from a replica that is ahead of this one."""
    core = follower((3, 0), log_end=10)
    core.start(0.0)
    agrees(core)
    answer(core, hw=10)
    assert core.on_consumer_fetch(consumer(12, last_epoch=last_epoch), 0.0) == []


def test_an_empty_log_is_not_taken_for_one_that_was_cut() -> None:
    core = follower()
    core.start(0.0)
    answer(core, hw=0)
    assert core.on_consumer_fetch(consumer(12, last_epoch=5), 0.0) == []


# ---------------------------------------------------------------- waiting
def test_waiting_consumers_are_served_when_its_high_watermark_moves() -> None:
    core = serving(log_end=10, high_watermark=8)
    core.on_consumer_fetch(consumer(8), 0.0)
    core.on_consumer_fetch(consumer(10), 0.0)
    assert served(answer(core, hw=10)) == [("at 8", 8, 10)]
    answer(core, first=10, hw=12, now=0.1)
    assert served(core.on_appended(Offset(12), Offset(12), 0.1)) == [("at 10", 10, 12)]


def test_replication_goes_before_consumers() -> None:
    core = serving(log_end=10, high_watermark=10)
    core.on_consumer_fetch(consumer(10), 0.0)
    effects = core.on_appended(Offset(12), Offset(12), 0.1)
    assert isinstance(effects[0], SendFetch)
    assert isinstance(effects[-1], ServeConsumer)


def test_a_wait_ends_with_an_empty_answer() -> None:
    core = serving()
    core.on_consumer_fetch(consumer(8, wait=0.5), 0.0)
    assert core.next_deadline() == 0.5
    (effect,) = core.tick(0.5)
    assert effect == ServeConsumer(Reader("at 8"), Offset(8), 0, Offset(8))


def test_a_consumer_that_does_not_wait_is_answered_at_once() -> None:
    assert serving().on_consumer_fetch(consumer(8, wait=0.0), 0.0) == [
        ServeConsumer(Reader("at 8"), Offset(8), 0, Offset(8))
    ]


def test_waiting_consumers_are_bounded() -> None:
    core = serving(settings=ReplicaSettings(max_waiting_fetches=1))
    core.on_consumer_fetch(consumer(8), 0.0)
    assert refusal(core.on_consumer_fetch(consumer(9), 0.0)).code is Code.BACKPRESSURE


# ---------------------------------------------------------------- refused
def test_consumers_are_refused_before_the_first_fetch_of_the_leader_epoch() -> None:
    """Its HW of an earlier epoch is not confirmed yet."""
    core = follower((5, 0), log_end=10, high_watermark=10)
    core.start(0.0)
    assert "part" in refusal(core.on_consumer_fetch(consumer(0), 0.0)).message
    agrees(core)
    error = refusal(core.on_consumer_fetch(consumer(0), 0.0))
    assert (error.code, error.retriable) == (Code.UNAVAILABLE, True)
    assert "has not fetched in LeaderEpoch 5" in error.message
    answer(core, hw=10)
    assert served(core.on_consumer_fetch(consumer(0), 0.0))


def test_a_refused_fetch_is_no_good_fetch() -> None:
    core = follower()
    core.start(0.0)
    assert isinstance(core.state, Fetching)
    error = TidelogError(Code.BACKPRESSURE, "later", {"retry_after_ms": "10"})
    answer(core, error=error)
    assert refusal(core.on_consumer_fetch(consumer(0), 0.0)).code is Code.UNAVAILABLE


def test_consumers_are_refused_when_the_last_good_fetch_is_too_old() -> None:
    """A process that was stopped and goes on: no timer of its own had a chance."""
    core = serving()
    assert served(core.on_consumer_fetch(consumer(0), MAX_AGE - 0.1))
    error = refusal(core.on_consumer_fetch(consumer(0), MAX_AGE))
    assert (error.code, error.retriable) == (Code.UNAVAILABLE, True)
    assert f"{MAX_AGE} s" in error.message


def test_waiting_consumers_are_sent_elsewhere_when_it_loses_the_leader() -> None:
    core = serving()
    core.on_consumer_fetch(consumer(8, wait=60.0), 0.0)
    core.tick(2.0)  # fetches, and gets no answer
    sent_away = core.tick(2.5)
    assert refusal(sent_away).code is Code.UNAVAILABLE
    assert core.next_deadline() < 10.0, "nobody waits any more"


def test_a_fetch_that_is_slow_to_come_is_waited_for_no_longer_than_the_age_allows() -> None:
    core = serving(settings=ReplicaSettings(replica_max_leader_timeout=6.0))
    for _ in range(2):
        core._fetcher.timeout.failed()  # answers have been slow
    core.on_consumer_fetch(consumer(8, wait=60.0), 0.0)
    core.tick(2.0)
    assert core.next_deadline() == MAX_AGE
    assert refusal(core.tick(MAX_AGE)).code is Code.UNAVAILABLE


def test_a_replica_out_of_the_isr_serves_no_consumers() -> None:
    """It may lag however far."""
    core = serving()
    core.on_consumer_fetch(consumer(8), 0.0)
    in_sync = core.view
    out = replace(in_sync, isr=(A,), epoch=PartitionEpoch(2))
    assert "not in sync" in refusal(core.on_view(out, 0.0)).message
    assert "not in sync" in refusal(core.on_consumer_fetch(consumer(0), 0.0)).message
    core.on_view(replace(in_sync, epoch=PartitionEpoch(3)), 0.0)
    assert served(core.on_consumer_fetch(consumer(0), 0.0))


def test_consumers_are_refused_while_the_log_is_cut_and_before_the_next_fetch() -> None:
    core = serving(log_end=10, high_watermark=10, loss_epoch=6)
    core.on_consumer_fetch(consumer(10), 0.0)
    assert isinstance(core.state, Idle)
    sent_away = refused(core, Code.OFFSET_AHEAD)
    assert refusal(sent_away).code is Code.UNAVAILABLE
    assert ends(core, EPOCH, 4) == [Truncate(Offset(4), gives_up_committed=True)]
    assert refusal(core.on_consumer_fetch(consumer(0), 0.0)).code is Code.UNAVAILABLE
    core.on_truncated(Offset(0), Offset(4), 0.0)
    assert refusal(core.on_consumer_fetch(consumer(0), 0.0)).code is Code.UNAVAILABLE
    answer(core, hw=2)
    assert served(core.on_consumer_fetch(consumer(0), 0.0)) == [("at 0", 0, 4)], "HW = min(HW, LEO), it was committed"


def test_waiting_consumers_are_sent_elsewhere_when_the_log_is_dropped() -> None:
    core = serving(log_end=10, high_watermark=10)
    core.on_consumer_fetch(consumer(10), 0.0)
    assert isinstance(core.state, Idle)
    error = TidelogError(Code.OFFSET_BEFORE_LOG, "gone", {"log_start": "50"})
    effects = answer(core, error=error)
    assert isinstance(effects[0], SendSnapshotRequest)
    assert refusal(effects).code is Code.UNAVAILABLE


def test_a_partition_without_a_leader_serves_no_consumers() -> None:
    core = follower((5, 0), log_end=10, high_watermark=10, leader=None)
    core.start(0.0)
    assert refusal(core.on_consumer_fetch(consumer(0), 0.0)).code is Code.UNAVAILABLE


def test_waiting_consumers_are_sent_elsewhere_at_the_end_of_the_role() -> None:
    core = serving()
    core.on_consumer_fetch(consumer(8), 0.0)
    core.on_consumer_fetch(consumer(9), 0.0)
    ended = core.resign("LeaderEpoch 6 has begun", 1.0)
    assert [e.token.inbox for e in ended if isinstance(e, RefuseConsumer)] == ["at 8", "at 9"]
    assert core.resign("again", 1.0) == []


# ---------------------------------------------------------------- the setting
def test_an_idle_follower_must_not_be_stale_between_two_fetches() -> None:
    with pytest.raises(ValueError, match=r"follower_read_max_age \(2.4 s\)"):
        ReplicaSettings(follower_read_max_age=2.4)


# ---------------------------------------------------------------- bounds


def test_a_client_waits_in_a_bounded_number_of_places() -> None:
    settings = replace(SETTINGS, max_waiting_fetches=5, max_waiting_fetches_per_client=2)
    core = serving(settings=settings)

    def ask(client: str, *, wait: float = 1.0) -> list[FollowerEffect]:
        return core.on_consumer_fetch(replace(consumer(8, wait=wait), client=client, token=Reader(client)), 0.5)

    assert ask("greedy") == ask("greedy") == []
    error = refusal(ask("greedy"))
    assert (error.code, error.detail(LIMIT)) == (Code.BACKPRESSURE, "max_waiting_fetches_per_client")
    for other in ("a", "b", "c"):
        assert ask(other) == []
    assert refusal(ask("d")).detail(LIMIT) == "max_waiting_fetches"
    assert len(core.tick(1.6)) >= 5, "their time is up"
    assert ask("greedy", wait=1e9) == [], "the places are free again"


def test_no_consumer_waits_for_ever() -> None:
    settings = replace(SETTINGS, max_fetch_wait=1.0)
    core = serving(settings=settings)
    assert core.on_consumer_fetch(consumer(8, wait=4_294_967.0), 0.5) == []
    assert [e for e in core.tick(1.4) if isinstance(e, ServeConsumer)] == []
    assert [e.token.inbox for e in core.tick(1.6) if isinstance(e, ServeConsumer)] == ["at 8"]
