"""Background requests of a producer: sessions for its partitions, and checks of its stream's metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from tidelog.client.cluster.controller_api import Api
from tidelog.client.cluster.metadata_cache import MetadataCache, StreamMetadata
from tidelog.client.producer.batches import ProducerSession
from wire.errors import Code, TidelogError
from wire.messaging.violation import named
from wire.operations import api_operations as op
from wire.security.producer_keys import is_key
from wire.types import StreamName

UNHEARD_CHECK = 1.0
"""Seconds between two requests for the layout while records are sent whose refusals do not arrive (acks=none)."""


class SessionTaker(Protocol):
    @property
    def is_idle(self) -> bool: ...

    def on_session(self, session: ProducerSession) -> None: ...


class TransactionPolicy(Protocol):
    """The transactions that a producer's records are parts of. They give its partitions their sessions."""

    def refusal(self) -> TidelogError | None:
        """Returns the reason why no records are taken at present."""

    def want_session(self, stream: StreamName, taker: Any) -> None:
        """Called when records of `taker` wait for a session."""

    def want_ticket(self, stream: StreamName, taker: Any) -> None:
        """Called when the ticket of the session of `taker` was refused."""

    def on_settled(self, failure: TidelogError | None) -> None:
        """Called when a batch was acknowledged, or has failed."""


class Upkeep:
    """`give_up`: called with an error that ends the producer. `on_layout`: called with the present metadata."""

    def __init__(
        self,
        api: Api,
        metadata: MetadataCache,
        stream: StreamName,
        give_up: Callable[[TidelogError], None],
        on_layout: Callable[[StreamMetadata], None],
        transactions: TransactionPolicy | None,
    ) -> None:
        self._api = api
        self._metadata = metadata
        self._stream = stream
        self._give_up = give_up
        self._on_layout = on_layout
        self._tasks: set[asyncio.Task[None]] = set()
        self._refresh_task: asyncio.Task[None] | None = None
        self._look_task: asyncio.Task[None] | None = None
        self.layout: StreamMetadata | None = None
        """The stream as it was when the producer started."""
        self._transactions = transactions
        """Give the sessions; None: the controller gives out ids."""
        self._unheard_check_at = 0.0
        self.is_closing = False
        """Sessions are fetched for partitions that have unresolved batches only."""

    async def first_session(self) -> ProducerSession | None:
        """Returns the session that all partitions begin with. None: each asks for one when it has records to send."""
        return await self.new_session() if self._transactions is None else None

    async def new_session(self) -> ProducerSession:
        try:
            answer = await self._api.call(op.PRODUCER_INIT)
        except TidelogError as error:
            raise named(error, self._stream) from None
        producer_id, epoch, key = answer["producer_id"], answer["producer_epoch"], answer["key"]
        if not (0 <= producer_id < 1 << 63 and 0 <= epoch < 1 << 31 and is_key(key)):
            raise TidelogError(
                Code.INTERNAL, f"the answer to {op.PRODUCER_INIT.name} gives out id {producer_id}, epoch {epoch}"
            )
        return ProducerSession(producer_id, epoch, bytes.fromhex(key))

    def end(self, error: TidelogError) -> None:
        """Ends the producer, which cannot go on."""
        self._give_up(error)

    def renew_session(self, taker: SessionTaker) -> None:
        """Gets a session and gives it to `taker`."""
        if self._transactions is None:
            self._spawn(self._renew_session(taker))
        else:
            self._transactions.want_session(self._stream, taker)

    def renew_ticket(self, taker: SessionTaker) -> None:
        """Renews the ticket of the taker's session, which is of a transaction."""
        if self._transactions is not None:
            self._transactions.want_ticket(self._stream, taker)

    def check_layout(self) -> None:
        """Asks whether the stream is still the one of `layout`; one request at a time."""
        if self._refresh_task is None or self._refresh_task.done():
            self._refresh_task = self._spawn(self._check_layout())

    def look(self) -> None:
        """Asks for the metadata, though nothing has been refused: a push may be lost. Only an answer that the stream is
        gone, or was made anew, ends the producer; whatever else is wrong, its leader may take records all the same."""
        if self.layout is not None and (self._look_task is None or self._look_task.done()):
            self._look_task = self._spawn(self._look())

    async def _look(self) -> None:
        error = await self._metadata.why_over(self._stream, self.layout)
        if error is not None and error.code in (Code.UNKNOWN_STREAM, Code.WRONG_INCARNATION):
            self._give_up(error)
        elif error is None:
            self._adopt_last_seen()

    def check_unheard(self) -> None:
        """Calls `check_layout` now and then: a record was sent whose refusal would not arrive."""
        now = asyncio.get_running_loop().time()
        if now >= self._unheard_check_at:
            if self._unheard_check_at:
                self.check_layout()
            self._unheard_check_at = now + UNHEARD_CHECK

    async def checked(self) -> None:
        """Returns when the request of `check_layout` is answered."""
        if self._refresh_task is not None and not self._refresh_task.done():
            await asyncio.wait([self._refresh_task])

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _renew_session(self, taker: SessionTaker) -> None:
        while not self.is_closing or not taker.is_idle:
            try:
                session = await self.new_session()
            except TidelogError as error:
                if not error.retriable:
                    self._give_up(error)
                    return
                continue  # the call has waited its time; batches that grow too old fail meanwhile
            taker.on_session(session)
            return

    async def _check_layout(self) -> None:
        error = await self._metadata.why_over(self._stream, self.layout)
        if error is not None:
            self._give_up(error)
        else:
            self._adopt_last_seen()

    def _adopt_last_seen(self) -> None:
        layout = self._metadata.last_seen(self._stream)
        if layout is not None:
            self._on_layout(layout)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
