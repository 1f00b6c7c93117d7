"""Accumulators of a partition s/0 in LeaderEpoch 1; time is a number."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from tidelog.client.producer.accumulator import Acknowledged, Effect, Failed, PartitionAccumulator
from tidelog.client.producer.batches import PendingBatch, ProducerSession
from tidelog.client.producer.producer_config import ProducerConfig
from wire.errors import Code, TidelogError

CONFIG: ProducerConfig = ProducerConfig(batch_bytes=100)


def core(acks: Literal["all", "leader", "none"] = "all", **changes: float) -> PartitionAccumulator:
    made = PartitionAccumulator("s/0", replace(CONFIG, acks=acks, **changes), leader_epoch=1)  # type: ignore[arg-type]
    if acks != "none":
        made.on_session(ProducerSession(7, 0))
    return made


def fill(acc: PartitionAccumulator, batches: int, now: float = 0.0, *, records: int = 1) -> None:
    """`batches` full batches of `records` each."""
    for _ in range(batches):
        acc.gathering.seal()
        for _ in range(records):
            acc.gathering.append(b"v", None, None, None, 100 // records, None, now)


def sent(acc: PartitionAccumulator, now: float = 0.0) -> list[PendingBatch]:
    out = []
    while (batch := acc.next_send(now)) is not None:
        out.append(batch)
    return out


def refused(code: Code, **details: str) -> TidelogError:
    return TidelogError(code, f"refused: {code.name}", details)


def resolved(effects: list[Effect]) -> list[PendingBatch]:
    return [e.batch for e in effects if isinstance(e, (Acknowledged, Failed))]


def failure(effects: list[Effect]) -> TidelogError:
    (failed,) = [e for e in effects if isinstance(e, Failed)]
    return failed.error
