"""The work of a transactional producer in its transaction: a writer for each stream, and offsets on their way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol

from tidelog.client.base.records import K, V
from tidelog.client.cluster.metadata_cache import StreamMetadata, stream_name
from tidelog.client.producer.accumulator import Acknowledged, Failed
from tidelog.client.producer.pipe import Pipe
from tidelog.client.producer.producer import Producer
from tidelog.client.transaction.producer_transactions import Effects, Grant, PartitionLife, Transactions
from wire.error_details import OUTCOME
from wire.errors import Code, TidelogError
from wire.types import StreamName


class Owner(Protocol):
    """The owner of the transactions."""

    def on_wanted(self, partition: PartitionLife) -> None:
        """Called when records wait for the ticket of the partition."""

    def on_ticket_refused(self, partition: PartitionLife) -> None: ...

    def on_settled(self, failure: TidelogError | None) -> None:
        """Called when a batch was acknowledged, or has failed."""


class TransactionWriter(Producer[K, V]):
    """Writes the records that a transactional producer sends to one stream.

    It is a producer whose sessions come from transactions: each partition asks for one before its first batch, and gets
    it with the ticket of that partition. Between transactions it takes no records. `serve` names its owner, before
    anything else.
    """

    _owner: Owner
    _adopted_next: StreamMetadata | None = None
    """Metadata with another layout, for the next transaction: the sequences of a transaction belong to one layout."""

    def serve(self, owner: Owner, barred: TidelogError | None) -> None:
        """Sets the owner. `barred`: why no records are taken yet."""
        self._owner = owner
        self._upkeep.giver = self
        self._barred = barred
        self._receipts.is_quiet = True  # the commit raises the failure

    @property
    def is_started(self) -> bool:
        """Whether it knows the partitions of its stream."""
        return self._partitioner is not None

    @property
    def failure(self) -> TidelogError | None:
        """Why it cannot go on: the stream is gone, or was created anew."""
        return self._fatal

    @property
    def is_idle(self) -> bool:
        """Whether all its records are acknowledged or have failed."""
        return all(pipe.is_idle for pipe in self._pipes.values())

    async def catch_up(self) -> None:
        """Returns when its request about the stream is answered."""
        await self._upkeep.checked()

    def begin(self) -> None:
        """Begins a transaction."""
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
        """Notes the routes as applied between transactions, too: nothing is sent then, and the next records go by
        them."""
        if self._watch is not None and self._barred is not None:
            self._watch.applied = layout.routing_generation
        else:
            super()._note_applied(layout)

    def bar(self, error: TidelogError) -> None:
        """Takes no more records, also of the calls that wait for room."""
        self._barred = error
        self._stop_gathering()
        self._buffer.fail_waiting(error)

    def hurry(self) -> None:
        """Sends lingering records."""
        for pipe in self._pipes.values():
            pipe.core.gathering.seal()
            pipe.pump()

    def grant(self, grant: Grant) -> None:
        self._pipes[grant.partition.partition].on_session(grant.session, grant.ticket)

    def drop(self, error: TidelogError) -> None:
        """Gives up all records that are not acknowledged."""
        for pipe in self._pipes.values():
            pipe.run(pipe.core.fail_all(error))

    def want_session(self, taker: Pipe) -> None:
        self._owner.on_wanted(self._life(taker))

    def want_ticket(self, taker: Pipe) -> None:
        self._owner.on_ticket_refused(self._life(taker))

    def _settle(self, partition: int, effect: Acknowledged | Failed) -> None:
        failure = None
        if isinstance(effect, Failed):
            # No record of the transaction will be read, whether it was written or not.
            failure = effect.error.with_details(OUTCOME.of("not_written"))
            effect = Failed(effect.batch, failure)
        super()._settle(partition, effect)
        self._owner.on_settled(failure)

    def _life(self, pipe: Pipe) -> PartitionLife:
        stream, partition = pipe.incarnations
        return PartitionLife(self._stream, stream, pipe.partition, partition)


class TransactionWork(Generic[K, V]):
    """`serve` sets the owner of the transactions, before anything else."""

    def __init__(self, make_writer: Callable[[StreamName], TransactionWriter[K, V]]) -> None:
        self._make_writer = make_writer
        self._writers: dict[str, TransactionWriter[K, V]] = {}
        self._gone: set[str] = set()
        """Streams of which the coordinator does not know the writer's incarnation."""
        self._offsets: set[object] = set()
        """An object for each call that has offsets on their way to a group."""

    def serve(
        self, machine: Transactions, carry_out: Callable[[Effects], object], on_progress: Callable[[], object]
    ) -> None:
        self._machine = machine
        self._carry_out = carry_out
        self._on_progress = on_progress

    # ---- calls of the program

    def opened(self, stream: str) -> TransactionWriter[K, V] | None:
        """Returns the writer of a stream that has been opened."""
        writer = self._writers.get(stream)
        return writer if writer is not None and writer.is_started else None

    async def open(self, stream: str) -> TransactionWriter[K, V]:
        """Returns the writer of the stream, opened if need be. Raises BadName, UnknownStream, NoServer, …"""
        name = stream_name(stream)
        writer = self._writers.get(name)
        if writer is None:
            writer = self._writers[name] = self._make_writer(name)
            writer.serve(self, self._machine.refusal())
        try:
            await writer.start()
        except TidelogError as error:
            if not writer.is_started and self._writers.get(name) is writer:
                self._remove(name, error)
            raise
        return writer

    async def catch_up(self) -> None:
        """Returns when the writers' requests about their streams are answered."""
        for writer in self.writers:
            await writer.catch_up()

    def begin(self) -> None:
        """Begins another transaction."""
        self._offsets.clear()
        self.leave_gone()
        for writer in self.writers:
            writer.begin()

    def leave_gone(self) -> None:
        """Removes writers whose stream is gone, or was created anew, to be opened anew. No transaction is open."""
        for name, writer in tuple(self._writers.items()):
            if writer.failure is not None:
                self._remove(name, writer.failure)
            elif name in self._gone:
                self._remove(name, TidelogError(Code.WRONG_INCARNATION, f"stream {name!r} was deleted"))
        self._gone.clear()

    @contextmanager
    def offsets(self) -> Iterator[None]:
        """Marks offsets as on their way to a group, inside the `with`."""
        call = object()
        self._offsets.add(call)
        try:
            yield
        finally:
            self._offsets.discard(call)
            self._on_progress()

    @property
    def writers(self) -> list[TransactionWriter[K, V]]:
        return [*self._writers.values()]

    def abandon(self, error: TidelogError) -> None:
        """Removes all writers, for good."""
        for name in tuple(self._writers):
            self._remove(name, error)

    # ---- calls of the session

    def on_gone(self, stream: str) -> None:
        self._gone.add(stream)

    @property
    def is_done(self) -> bool:
        return not self._offsets and all(writer.is_idle for writer in self._writers.values())

    def grant(self, grant: Grant) -> None:
        self._writers[grant.partition.stream].grant(grant)

    def close(self, refusal: TidelogError) -> None:
        for writer in self._writers.values():
            writer.bar(refusal)
            writer.hurry()

    def drop(self, error: TidelogError) -> None:
        for writer in self._writers.values():
            writer.bar(error)
        for writer in self._writers.values():
            writer.drop(error)

    # ---- calls of the writers

    def on_wanted(self, partition: PartitionLife) -> None:
        self._carry_out(self._machine.on_wanted(partition))

    def on_ticket_refused(self, partition: PartitionLife) -> None:
        self._carry_out(self._machine.on_ticket_refused(partition))

    def on_settled(self, failure: TidelogError | None) -> None:
        if failure is not None:
            self._carry_out(self._machine.require_abort(failure))
        self._on_progress()

    # ----

    def _remove(self, name: str, error: TidelogError) -> None:
        self._writers.pop(name)._abort(error)
