"""Consumers at a leader and at a follower: where they wait while a transaction is open, and when they go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dataplane.replica.consumers import ConsumerFetch
from dataplane.replica.replica_effects import RefuseConsumer, ServeConsumer
from dataplane.replica.replies import Reader
from tests.unit.dataplane.replica.cores import Driver, agrees, answer, follower, of
from tests.views import B, C
from wire.batch import BatchBuilder, BatchHeader, Marker, transaction_marker
from wire.errors import Code
from wire.types import FIRST_TRANSACTIONAL_ID, LeaderEpoch, Offset, PartitionEpoch

PRODUCER = FIRST_TRANSACTIONAL_ID + 1


def consumer(offset: int, *, wait: float = 1.0, read_uncommitted: bool = False) -> ConsumerFetch:
    return ConsumerFetch(
        offset=Offset(offset),
        leader_epoch=LeaderEpoch(0),
        max_bytes=1 << 20,
        max_wait=wait,
        last_record_epoch=LeaderEpoch(0),
        token=Reader("uncommitted" if read_uncommitted else "committed"),
        read_uncommitted=read_uncommitted,
    )


def record(offset: int, epoch: int = 0) -> BatchHeader:
    builder = BatchBuilder()
    builder.add_record(b"x")
    batch = builder.build(1, producer_id=PRODUCER, producer_epoch=epoch, base_sequence=0, is_transactional=True)
    return batch.stamp(Offset(offset), LeaderEpoch(1))[1]


def marker(offset: int, epoch: int = 0) -> BatchHeader:
    return transaction_marker(PRODUCER, epoch + 1, Marker.COMMIT).stamp(Offset(offset), LeaderEpoch(1))[1]


class TransactionalDriver(Driver):
    def write(self, header: BatchHeader) -> None:
        self.transactions.record(header)
        self.append(header.offset_count)

    def commit(self, end: int) -> list[tuple[str, int, int, bool]]:
        """(token, from, end, with records) of each consumer that is answered."""
        out = [*self.fetch(B, end), *self.fetch(C, end)]
        return answered([effect for effect in out if isinstance(effect, ServeConsumer)])


def answered(effects: list[ServeConsumer]) -> list[tuple[str, int, int, bool]]:
    return [(effect.token.inbox, effect.offset, effect.end, effect.max_bytes > 0) for effect in effects]


@pytest.fixture
def driver() -> TransactionalDriver:
    """A record at 0, one of an open transaction at 1, one more at 2; all committed."""
    driver = TransactionalDriver()
    driver.append(1)
    driver.write(record(1))
    driver.append(1)
    driver.commit(3)
    return driver


def ask(driver: Driver, fetch: ConsumerFetch, now: float = 0.0) -> list[tuple[str, int, int, bool]]:
    return answered(of(ServeConsumer, driver.leader.on_consumer_fetch(fetch, now)))


def test_an_open_transaction_holds_back_its_records_and_all_behind_them(driver: TransactionalDriver) -> None:
    assert driver.high_watermark == 3
    assert ask(driver, consumer(0)) == [("committed", 0, 1, True)]
    assert ask(driver, consumer(0, read_uncommitted=True)) == [("uncommitted", 0, 3, True)]
    assert ask(driver, consumer(1, wait=0)) == [("committed", 1, 1, False)]
    assert driver.leader.latest() == 1
    assert driver.leader.latest(read_uncommitted=True) == 3


def test_a_consumer_that_waits_there_sleeps_while_the_high_watermark_moves_and_wakes_with_the_marker(
    driver: TransactionalDriver,
) -> None:
    assert ask(driver, consumer(1)) == []
    driver.append(1)
    assert driver.commit(4) == []
    driver.write(marker(4))
    assert driver.commit(4) == [], "the marker is not committed"
    assert driver.leader.latest() == 1
    assert driver.commit(5) == [("committed", 1, 5, True)]
    assert driver.leader.latest() == 5


def test_a_consumer_of_uncommitted_records_is_woken_by_each_of_them(driver: TransactionalDriver) -> None:
    assert ask(driver, consumer(3)) == []
    assert ask(driver, consumer(3, read_uncommitted=True)) == []
    driver.append(1)
    assert driver.commit(4) == [("uncommitted", 3, 4, True)]


def test_the_wait_behind_an_open_transaction_ends_with_an_empty_answer(driver: TransactionalDriver) -> None:
    ask(driver, consumer(1, wait=2.0))
    ask(driver, consumer(3, wait=2.0, read_uncommitted=True))
    assert driver.leader.next_deadline() <= 2.0
    out = answered(of(ServeConsumer, driver.leader.tick(2.0)))
    assert out == [("committed", 1, 1, False), ("uncommitted", 3, 3, False)]


def test_an_open_transaction_behind_another_one_that_ended_holds_back_what_follows_it(
    driver: TransactionalDriver,
) -> None:
    ask(driver, consumer(1))
    driver.write(marker(3))
    driver.write(record(4, epoch=1))
    assert driver.commit(5) == [("committed", 1, 4, True)]


def test_the_end_is_never_below_the_first_record(driver: TransactionalDriver) -> None:
    """Retention has taken the first records of a transaction that is still open."""
    driver.leader.on_log_start(Offset(2))
    assert driver.leader.latest() == 2
    assert ask(driver, consumer(2, wait=0)) == [("committed", 2, 2, False)]
    purged = replace(driver.leader.view, epoch=PartitionEpoch(2), purged_end=Offset(3))
    driver.leader.on_view(purged, 0.0)
    assert driver.leader.latest() == 3
    (refused,) = of(RefuseConsumer, driver.leader.on_consumer_fetch(consumer(2), 0.0))
    assert refused.error.code is Code.OFFSET_BEFORE_LOG


def test_a_follower_serves_by_the_transactions_of_its_own_log() -> None:
    core = follower((5, 0), log_end=3)
    core.start(0.0)
    agrees(core)
    core._replica.transactions.record(record(1))
    answer(core, hw=3)
    assert core.high_watermark == 3
    assert answered([e for e in core.on_consumer_fetch(consumer(0), 0.0) if isinstance(e, ServeConsumer)]) == [
        ("committed", 0, 1, True)
    ]
    assert core.on_consumer_fetch(consumer(1), 0.0) == []
    core._replica.transactions.record(marker(3))
    effects = core.on_appended(Offset(4), Offset(3), 0.1)
    assert [e for e in effects if isinstance(e, ServeConsumer)] == [], "it does not know the marker to be committed"
    effects = answer(core, hw=4)
    assert answered([e for e in effects if isinstance(e, ServeConsumer)]) == [("committed", 1, 4, True)]
