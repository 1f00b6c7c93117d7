"""Carries out the requests of a fetcher: sends them to the leader or a follower, and waits between them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from tidelog.client.base.exceptions import NoServer, typed
from tidelog.client.consumer.fetched_ahead import Answer
from tidelog.client.consumer.fetcher import Ask, Deliver, Outcome, PartitionFetcher, Raise, Skip
from wire.batch import RecordBatch
from wire.errors import Code, TidelogError
from wire.messaging.transport import NO_RESPONDERS, Transport
from wire.subjects import Subjects
from wire.types import StreamName

_log = logging.getLogger(__name__)

LOOK_UP_TIMEOUT = 10.0
"""Seconds that looking up a start or a stop may take."""


class PartitionReader:
    """Carries out a fetcher's requests."""

    def __init__(
        self,
        fetcher: PartitionFetcher,
        transport: Transport,
        subjects: Subjects,
        stream: StreamName,
        partition: int,
        refresh: Callable[[], None],
    ) -> None:
        self.fetcher = fetcher
        self._transport = transport
        self._subjects = subjects
        self._stream = stream
        self.partition = partition
        self._leader_subject = subjects.fetch(stream, partition)
        self._refresh = refresh
        self._missed = 0
        """Records that were removed before they were read, since the last answer."""

    async def resolve(self) -> None:
        """Returns once start and stop are known. Raises typed errors; NoServer after LOOK_UP_TIMEOUT without a
        leader.
        """
        try:
            async with asyncio.timeout(LOOK_UP_TIMEOUT):
                while not self.fetcher.is_resolved:
                    await self._step()
        except TimeoutError:
            raise NoServer(
                Code.UNAVAILABLE,
                f"partition {self.fetcher.name} has had no leader for {LOOK_UP_TIMEOUT:g} s; "
                "see `tidelog cluster status`",
            ) from None

    async def read(self) -> Answer | None:
        """The next records or skipped offsets; None when the stop is reached. Raises typed errors."""
        while not self.fetcher.is_done:
            before = self.fetcher.position
            batches = await self._step()
            end = self.fetcher.position
            if end is not None and end != before:
                missed, self._missed = self._missed, 0
                return Answer(batches, end, missed)
        return None

    async def _step(self) -> tuple[RecordBatch, ...]:
        followers, now_ns = self.fetcher.followers, time.time_ns()
        if followers is not None and followers.is_out_of_date(now_ns):
            self._refresh()
        outcome = await self._exchange(self.fetcher.next_request(now_ns))
        match outcome:
            case Deliver(batches):
                return batches
            case Raise(error):
                raise error
            case Skip(first, end):
                self._missed += end - first
                _log.warning(
                    "missed %d records of %s, offsets %d to %d: they were removed before they were read",
                    end - first, self.fetcher.name, first, end - 1,
                )  # fmt: skip
                return ()
            case _:
                if outcome.refresh:
                    self._refresh()
                # 0 s too: an answer that is there already must not keep the loop from everyone else.
                await asyncio.sleep(outcome.seconds)
                return ()

    async def _exchange(self, ask: Ask) -> Outcome:
        subject = self._leader_subject
        if ask.source is not None:
            subject = self._subjects.fetch_from(self._stream, self.partition, ask.source)
        try:
            message = await self._transport.request(subject, ask.request.SerializeToString(), timeout=ask.timeout)
        except TimeoutError:
            if not self._transport.is_connected:
                return self.fetcher.on_disconnected()
            return self.fetcher.on_timeout()
        except TidelogError as not_permitted:
            return Raise(typed(not_permitted))
        if message.status == NO_RESPONDERS:
            return self.fetcher.on_no_responders()
        error = TidelogError.from_headers(message.headers)
        if error is not None:
            return self.fetcher.on_error(error)
        return self.fetcher.on_answer(message.data, message.headers)
