"""What a transactional producer has taken for its transaction: a writer for each stream, and offsets on their way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic

from tidelog.client.metadata import stream_name
from tidelog.client.records import K, V
from tidelog.client.transaction import Effects, Grant, PartitionLife, Transactions
from tidelog.client.transaction_writer import TransactionWriter
from wire.errors import Code, TidelogError
from wire.types import StreamName


class TransactionWork(Generic[K, V]):
    """`serve` says whose transactions these are, before anything else."""

    def __init__(self, make_writer: Callable[[StreamName], TransactionWriter[K, V]]) -> None:
        self._make_writer = make_writer
        self._writers: dict[str, TransactionWriter[K, V]] = {}
        self._gone: set[str] = set()
        """Streams whose coordinator knows no partition of the life that the writer has."""
        self._offsets: set[object] = set()
        """One for each call that has offsets on their way to a group."""

    def serve(
        self, machine: Transactions, carry_out: Callable[[Effects], object], on_progress: Callable[[], object]
    ) -> None:
        self._machine = machine
        self._carry_out = carry_out
        self._on_progress = on_progress

    # ---- what the program does

    def opened(self, stream: str) -> TransactionWriter[K, V] | None:
        """The writer of a stream that has been opened."""
        writer = self._writers.get(stream)
        return writer if writer is not None and writer.is_started else None

    async def open(self, stream: str) -> TransactionWriter[K, V]:
        """Raises BadName, UnknownStream, NoServer, …"""
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
        """Returns when the writers know what they have asked about their streams."""
        for writer in self.writers:
            await writer.catch_up()

    def begin(self) -> None:
        """Another transaction has begun."""
        self._offsets.clear()
        self.leave_gone()
        for writer in self.writers:
            writer.begin()

    def leave_gone(self) -> None:
        """A stream that is gone, or another one now, is opened anew when it is used. No transaction is open."""
        for name, writer in tuple(self._writers.items()):
            if writer.failure is not None:
                self._remove(name, writer.failure)
            elif name in self._gone:
                self._remove(name, TidelogError(Code.WRONG_INCARNATION, f"stream {name!r} was deleted"))
        self._gone.clear()

    @contextmanager
    def offsets(self) -> Iterator[None]:
        """While offsets are on their way to a group."""
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
        """For good."""
        for name in tuple(self._writers):
            self._remove(name, error)

    # ---- what the session says

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

    # ---- what the writers say

    def on_wanted(self, partition: PartitionLife) -> None:
        self._carry_out(self._machine.on_wanted(partition))

    def on_ticket_refused(self, partition: PartitionLife) -> None:
        self._carry_out(self._machine.on_ticket_refused(partition))

    def on_settled(self, failure: TidelogError | None) -> None:
        if failure is not None:
            self._carry_out(self._machine.doom(failure))
        self._on_progress()

    # ----

    def _remove(self, name: str, error: TidelogError) -> None:
        self._writers.pop(name)._abort(error)
