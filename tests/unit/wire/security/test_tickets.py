"""Tickets of transactions: they are made with the brokers' secret, and hold for what they were given for alone."""

from __future__ import annotations

import pytest

from wire.errors import Code, TidelogError
from wire.internal_records.transaction_records import MAX_TIMEOUT_MS
from wire.security.cluster_secrets import ClusterSecret, ClusterSecrets, public_secrets
from wire.security.tickets import LIFETIME_S, Tickets, group_target, partition_target
from wire.types import FIRST_TRANSACTIONAL_ID

ONE = FIRST_TRANSACTIONAL_ID
TARGET = partition_target("orders", 5, 0, 7)
OLD, NEW = ClusterSecret(b"an old secret of a cluster"), ClusterSecret(b"the new secret of the cluster")


class Clock:
    now = 1_000_000.5


def tickets(secrets: ClusterSecrets | None = None, cluster: str = "c1", clock: type[Clock] = Clock) -> Tickets:
    return Tickets(secrets or public_secrets(), lambda: cluster, lambda: clock.now)


def holds(by: Tickets, ticket: bytes, producer: int = ONE, epoch: int = 3, target: str = TARGET) -> bool:
    try:
        by.check(ticket, producer, epoch, target)
    except TidelogError:
        return False
    return True


def test_a_ticket_that_does_not_hold_is_told_as_such() -> None:
    with pytest.raises(TidelogError) as refused:
        tickets().check(b"", ONE, 3, TARGET)
    assert refused.value.code is Code.NOT_IN_TRANSACTION


def test_a_ticket_holds_for_what_it_was_given_for() -> None:
    ticket = tickets().make(ONE, 3, TARGET)
    assert holds(tickets(), ticket)
    assert not holds(tickets(), ticket, producer=ONE + 1)
    assert not holds(tickets(), ticket, epoch=2)
    assert not holds(tickets(), ticket, target=partition_target("orders", 5, 1, 7))
    assert not holds(tickets(), ticket, target=partition_target("orders", 6, 0, 7)), "another life of the stream"
    assert not holds(tickets(), ticket, target=partition_target("orders", 5, 0, 8)), "another life of the partition"
    assert not holds(tickets(), ticket, target=group_target("orders"))
    assert not holds(tickets(cluster="c2"), ticket)


def test_a_ticket_is_over_after_its_lifetime_which_is_longer_than_any_transaction_may_be_open() -> None:
    assert LIFETIME_S * 1000 > 2 * MAX_TIMEOUT_MS

    class Later(Clock):
        now = Clock.now + LIFETIME_S - 1

    ticket = tickets().make(ONE, 3, TARGET)
    assert holds(tickets(clock=Later), ticket)
    Later.now += 1
    with pytest.raises(TidelogError, match=r"is over since 0 s.*clocks of the brokers do not agree") as refused:
        tickets(clock=Later).check(ticket, ONE, 3, TARGET)
    assert refused.value.code is Code.NOT_IN_TRANSACTION


def test_no_bit_of_a_ticket_can_be_changed_nor_its_size() -> None:
    ticket = tickets().make(ONE, 3, TARGET)
    for bit in range(8 * len(ticket)):
        changed = bytearray(ticket)
        changed[bit // 8] ^= 1 << bit % 8
        assert not holds(tickets(), bytes(changed))
    for wrong in (b"", ticket[:-1], ticket + b"\0", bytes(len(ticket))):
        assert not holds(tickets(), wrong)


@pytest.mark.parametrize(
    ("made_with", "checked_with", "expected"),
    [
        ([OLD], [OLD], True),
        ([OLD], [OLD, NEW], True),
        ([OLD], [NEW, OLD], True),
        ([NEW, OLD], [OLD, NEW], True),
        ([OLD], [NEW], False),
    ],
)
def test_a_secret_is_replaced_without_a_stop(
    made_with: list[ClusterSecret], checked_with: list[ClusterSecret], expected: bool
) -> None:
    ticket = tickets(ClusterSecrets(made_with)).make(ONE, 3, TARGET)
    assert holds(tickets(ClusterSecrets(checked_with)), ticket) is expected
