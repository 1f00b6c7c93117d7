"""The accumulator against a model of a leader: losses, refusals and repetitions in any order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.replica.derived.producer_table import Duplicate, Fresh, ProducerLimits, ProducerTable
from tests.unit.tidelog.client.producer.accumulators import core, refused
from tidelog.client.producer.accumulator import (
    Effect,
    Failed,
    WantSession,
)
from tidelog.client.producer.batches import PendingBatch, ProducerSession
from wire.batch import BatchHeader
from wire.errors import Code, TidelogError
from wire.types import LeaderEpoch, Offset


class Leader:
    """A leader with the broker's own table of producers, and the content of its log."""

    def __init__(self) -> None:
        self.log: list[int] = []
        self.table = ProducerTable(limits=ProducerLimits(max_producers=1))

    def append(self, copy: tuple[ProducerSession, int, list[int]]) -> int | TidelogError:
        session, sequence, values = copy
        verdict = self.table.check(session.producer_id, session.producer_epoch, sequence, len(values))
        if isinstance(verdict, Duplicate):
            return verdict.base_offset
        if not isinstance(verdict, Fresh):
            return verdict.error
        base = len(self.log)
        self.log += values
        self.table.record(
            BatchHeader(
                base_offset=Offset(base), leader_epoch=LeaderEpoch(1), length=0, attributes=0, columns=1, body_crc=0,
                record_count=len(values), offset_span=0, first_timestamp=0, last_timestamp=0,
                producer_id=session.producer_id, producer_epoch=session.producer_epoch, base_sequence=sequence,
            )
        )  # fmt: skip
        return base


FOREIGN = -1
"""A record of another producer."""


@pytest.mark.parametrize("forgets", [False, True])
@settings(max_examples=150)
@given(st.data())
def test_whatever_is_lost_or_refused_each_record_is_written_once_and_in_order(
    forgets: bool, data: st.DataObject
) -> None:
    """Messages and answers are lost at random, leaders refuse at random, connections break; then all goes well. Where
    the leader forgets the producer as well, a record may fail, and then it is unknown whether it was written."""
    acc = core(delivery_timeout_ms=24 * 3_600_000)
    leader = Leader()
    now = 0.0
    given = 0
    sessions = 7
    failed: set[int] = set()
    wire: list[tuple[PendingBatch, int, tuple[ProducerSession, int, list[int]]]] = []
    answers: list[tuple[PendingBatch, int, int | TidelogError]] = []

    def handle(effects: list[Effect]) -> None:
        nonlocal sessions
        for effect in effects:
            if isinstance(effect, Failed):
                assert forgets
                assert effect.error.code is Code.OUTCOME_UNKNOWN
                failed.update(int(value or b"-1") for value in effect.batch.values)
            if isinstance(effect, WantSession):
                sessions += 1
                acc.on_session(ProducerSession(sessions, 0))

    def send() -> None:
        while (batch := acc.next_send(now)) is not None:
            assert batch.session is not None
            numbers = [int(value or b"-1") for value in batch.values]
            wire.append((batch, batch.attempts, (batch.session, batch.base_sequence, numbers)))

    kinds = ["append", "deliver", "lose", "refuse", "answer", "drop", "reconnect", "tick"]
    if forgets:
        kinds.append("forget")
    steps = data.draw(st.lists(st.sampled_from(kinds), max_size=60))
    for step in [*steps, *["reconnect", *["tick", "deliver", "answer"] * 40]]:
        now += 0.3
        if step == "append":
            acc.gathering.append(str(given).encode(), None, None, None, 60, None, now)
            given += 1
        elif step == "deliver":
            while wire:
                batch, attempt, copy = wire.pop(0)
                answers.append((batch, attempt, leader.append(copy)))
        elif step == "lose" and wire:
            wire.pop(0)
        elif step == "refuse" and wire:
            batch, attempt, _ = wire.pop(0)
            answers.append((batch, attempt, refused(Code.BACKPRESSURE)))
        elif step == "answer":
            while answers:
                batch, attempt, outcome = answers.pop(0)
                if isinstance(outcome, TidelogError):
                    handle(acc.on_error(batch, attempt, outcome, now))
                else:
                    handle(acc.on_acknowledged(batch, outcome, 1))
        elif step == "drop" and answers:
            answers.pop(0)
        elif step == "reconnect":
            handle(acc.on_reconnected(now))
        elif step == "tick":
            handle(acc.tick(now))
        elif step == "forget":
            sessions += 1
            leader.append((ProducerSession(sessions, 0), 0, [FOREIGN]))
        send()
    assert acc.is_idle
    written = [number for number in leader.log if number != FOREIGN]
    assert written == sorted(set(written))
    assert set(range(given)) - failed <= set(written)
