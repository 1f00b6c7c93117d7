"""A cluster as tasks and driver of a write use it: streams with their lives, families with their last commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tidelog.client.base.exceptions import ProducerFenced
from tidelog.client.transaction.prepared_transactions import FamilyCommit, PreparedTransaction
from wire.errors import Code, TidelogError


@dataclass
class FakeSinkCluster:
    streams: dict[str, int] = field(default_factory=dict)
    """The incarnation of each."""
    families: dict[str, FamilyCommit] = field(default_factory=dict)
    once: list[str] = field(default_factory=list)
    """Families that were made for one commit."""
    prepared: dict[str, list[tuple[str, int, bytes | None]]] = field(default_factory=dict)
    """By transactional id: records (stream, its incarnation, value)."""
    records: list[tuple[str, int, bytes | None]] = field(default_factory=list)
    """That are committed."""
    forgets: bool = False
    """It does not know which transactions were committed."""
    knows_aborted: bool = True
    """The answer to aborts: none of the transactions was committed before."""

    def create(self, stream: str) -> None:
        """Again, if it is there."""
        self.streams[stream] = self.streams.get(stream, 0) + 1

    def values(self, stream: str) -> list[bytes | None]:
        """Of its present life."""
        return [value for name, life, value in self.records if (name, life) == (stream, self.streams[stream])]

    # As the client.

    async def metadata(self, stream: str) -> SimpleNamespace:
        if stream not in self.streams:
            raise TidelogError(Code.UNKNOWN_STREAM, f"there is no stream {stream!r}")
        return SimpleNamespace(incarnation=self.streams[stream])

    async def last_commit(self, family: str, *, timeout: float) -> FamilyCommit | None:
        assert timeout > 0
        return self.families.get(family)

    async def commit_prepared(
        self,
        family: str,
        transactions: Sequence[PreparedTransaction],
        *,
        sequence: int,
        once: bool,
        metadata: str,
        timeout: float,
    ) -> bool:
        assert timeout > 0
        assert len(metadata) <= 512
        last = self.families.get(family)
        if last is not None and sequence < last.sequence:
            raise TidelogError(Code.STALE_COMMIT, f"family {family!r} has committed {last.sequence}")
        if last is not None and sequence == last.sequence:
            if self.forgets:
                raise TidelogError(Code.STALE_COMMIT, "whether these were committed before is not known any more")
            return False
        for each in transactions:
            self.records += self.prepared.pop(each.transactional_id)
        for name in [name for name in self.prepared if name.startswith(f"{family}~")]:
            del self.prepared[name]
        self.families[family] = FamilyCommit(sequence, metadata)
        self.once += [family] if once else []
        return True

    async def abort_prepared(self, family: str, transactions: Sequence[PreparedTransaction], **_: Any) -> bool:
        for each in transactions:
            self.prepared.pop(each.transactional_id, None)
        return self.knows_aborted

    def producer(self, *, transactional_id: str, **_: Any) -> FakeTransactionalProducer:
        return FakeTransactionalProducer(self, transactional_id)

    async def close(self) -> None:
        pass


class FakeTransactionalProducer:
    def __init__(self, cluster: FakeSinkCluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self.in_transaction = False

    async def start(self, *, fences: bool = True) -> None:
        if not fences and self._name in self._cluster.prepared:
            raise ProducerFenced(Code.PRODUCER_FENCED, f"{self._name} is in use")

    async def begin(self) -> None:
        self.in_transaction = True
        self._cluster.prepared[self._name] = []

    async def send_many(self, stream: str, values: Sequence[bytes | None], **_: Any) -> None:
        life = self._cluster.streams[stream]
        self._cluster.prepared[self._name] += [(stream, life, value) for value in values]

    async def prepare(self) -> PreparedTransaction:
        return PreparedTransaction(self._name, 1, 0)

    async def close(self) -> None:
        pass
