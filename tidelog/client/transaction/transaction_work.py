"""The work of a transactional producer in its transaction: a writer for each stream, and offsets on their way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol

from tidelog.client.base.records import K, V
from tidelog.client.cluster.metadata_cache import stream_name
from tidelog.client.producer.pipe import Pipe
from tidelog.client.producer.producer import Producer
from tidelog.client.producer.upkeep import TransactionPolicy
from tidelog.client.transaction.producer_transactions import Effects, Grant, PartitionLife, Transactions
from wire.errors import Code, TidelogError
from wire.types import StreamName


class TransactionWriter(Producer[K, V]):
    """Writes the records that a transactional producer sends to one stream: a producer that its transactions command.

    Each partition asks for a session before its first batch, and gets it with the ticket of that partition. Between
    transactions it takes no records.
    """

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
        if self._next_layout is not None:
            self._adopt(self._next_layout)
            self._note_applied(self._next_layout)
            self._next_layout = None
        self._barred = None

    def bar(self, error: TidelogError) -> None:
        """Takes no more records, also of the calls that wait for room."""
        self._barred = error
        self._stop_gathering()
        self._buffer.fail_waiting(error)

    def finish(self, error: TidelogError) -> None:
        """Takes no more records, and sends lingering ones."""
        self.bar(error)
        self._hurry()

    def grant(self, grant: Grant) -> None:
        self._pipes[grant.partition.partition].on_session(grant.session, grant.ticket)

    def drop(self, error: TidelogError) -> None:
        """Gives up all records that are not acknowledged."""
        for pipe in self._pipes.values():
            pipe.run(pipe.core.fail_all(error))


class Session(Protocol):
    """The transactions with their coordinator."""

    machine: Transactions

    def carry_out(self, effects: Effects) -> None: ...

    def on_progress(self) -> None:
        """Called when a record or an offset of the transaction was acknowledged, or has failed."""


class TransactionWork(Generic[K, V]):
    """Gives the writers of its streams, of which it makes one at the first call for it, sessions and tickets."""

    def __init__(
        self, make_writer: Callable[[StreamName, TransactionPolicy], TransactionWriter[K, V]], session: Session
    ) -> None:
        self._make_writer = make_writer
        self._session = session
        self._writers: dict[str, TransactionWriter[K, V]] = {}
        self._gone: set[str] = set()
        """Streams of which the coordinator does not know the writer's incarnation."""
        self._offsets: set[object] = set()
        """An object for each call that has offsets on their way to a group."""

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
            writer = self._writers[name] = self._make_writer(name, self)
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
            self._session.on_progress()

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
            writer.finish(refusal)

    def drop(self, error: TidelogError) -> None:
        for writer in self._writers.values():
            writer.bar(error)
        for writer in self._writers.values():
            writer.drop(error)

    # ---- calls of the writers

    def refusal(self) -> TidelogError | None:
        return self._session.machine.refusal()

    def want_session(self, stream: StreamName, taker: Pipe) -> None:
        self._session.carry_out(self._session.machine.on_wanted(_life(stream, taker)))

    def want_ticket(self, stream: StreamName, taker: Pipe) -> None:
        self._session.carry_out(self._session.machine.on_ticket_refused(_life(stream, taker)))

    def on_settled(self, failure: TidelogError | None) -> None:
        if failure is not None:
            self._session.carry_out(self._session.machine.require_abort(failure))
        self._session.on_progress()

    # ----

    def _remove(self, name: str, error: TidelogError) -> None:
        self._writers.pop(name)._abort(error)


def _life(stream: StreamName, pipe: Pipe) -> PartitionLife:
    stream_incarnation, partition_incarnation = pipe.incarnations
    return PartitionLife(stream, stream_incarnation, pipe.partition, partition_incarnation)
