"""Writes the records that a transactional producer sends to one stream.

It is a producer whose sessions come from transactions: each partition asks for one before its first batch, and gets it
with the ticket of that partition. Between transactions it takes no records.
"""

from __future__ import annotations

from typing import Protocol

from tidelog.client.accumulator import Acknowledged, Failed
from tidelog.client.metadata import StreamMetadata
from tidelog.client.pipe import Pipe
from tidelog.client.producer import Producer
from tidelog.client.records import K, V
from tidelog.client.transaction import Grant, PartitionLife
from wire.error_details import OUTCOME
from wire.errors import TidelogError


class Owner(Protocol):
    """Whose transactions these are."""

    def on_wanted(self, partition: PartitionLife) -> None:
        """Records wait for the ticket of the partition."""

    def on_ticket_refused(self, partition: PartitionLife) -> None: ...

    def on_settled(self, failure: TidelogError | None) -> None:
        """A batch was acknowledged, or has failed."""


class TransactionWriter(Producer[K, V]):
    """`serve` says whose it is, before anything else."""

    _owner: Owner
    _adopted_next: StreamMetadata | None = None
    """With another layout, which the next transaction goes by: the sequences of a transaction belong to one."""

    def serve(self, owner: Owner, barred: TidelogError | None) -> None:
        """`barred`: why no records are taken yet."""
        self._owner = owner
        self._upkeep.giver = self
        self._barred = barred
        self._receipts.is_quiet = True  # the commit raises it

    @property
    def is_started(self) -> bool:
        """It knows the partitions of its stream."""
        return self._partitioner is not None

    @property
    def failure(self) -> TidelogError | None:
        """Why it cannot go on: the stream is gone, or another one."""
        return self._fatal

    @property
    def is_idle(self) -> bool:
        """Everything that it took is acknowledged or has failed."""
        return all(pipe.is_idle for pipe in self._pipes.values())

    async def catch_up(self) -> None:
        """Returns when it knows what it has asked about its stream."""
        await self._upkeep.checked()

    def begin(self) -> None:
        """A transaction has begun."""
        for pipe in self._pipes.values():
            pipe.core.on_session(None)
        if self._adopted_next is not None:
            super()._adopt(self._adopted_next)
            self._note_applied(self._adopted_next)
            self._adopted_next = None
        self._barred = None

    def _adopt(self, layout: StreamMetadata) -> None:
        self._adopted_next = layout

    def _note_applied(self, layout: StreamMetadata) -> None:
        """Between transactions it sends nothing, and what it sends next goes by these routes."""
        if self._watch is not None and self._barred is not None:
            self._watch.applied = layout.routing_generation
        else:
            super()._note_applied(layout)

    def bar(self, error: TidelogError) -> None:
        """Take no more records, also of the calls that wait for room."""
        self._barred = error
        self._stop_gathering()
        self._buffer.fail_waiting(error)

    def hurry(self) -> None:
        """Send what lingers."""
        for pipe in self._pipes.values():
            pipe.core.gathering.seal()
            pipe.pump()

    def grant(self, grant: Grant) -> None:
        self._pipes[grant.partition.partition].on_session(grant.session, grant.ticket)

    def drop(self, error: TidelogError) -> None:
        """Give up everything that is not acknowledged."""
        for pipe in self._pipes.values():
            pipe.run(pipe.core.fail_all(error))

    def want_session(self, taker: Pipe) -> None:
        self._owner.on_wanted(self._life(taker))

    def want_ticket(self, taker: Pipe) -> None:
        self._owner.on_ticket_refused(self._life(taker))

    def _settle(self, partition: int, effect: Acknowledged | Failed) -> None:
        failure = None
        if isinstance(effect, Failed):
            # Nothing of the transaction will be read, whatever was written.
            failure = effect.error.with_details(OUTCOME.of("not_written"))
            effect = Failed(effect.batch, failure)
        super()._settle(partition, effect)
        self._owner.on_settled(failure)

    def _life(self, pipe: Pipe) -> PartitionLife:
        stream, partition = pipe.incarnations
        return PartitionLife(self._stream, stream, pipe.partition, partition)
