"""Producers for the publishes of Liftbridge's clients: one for each stream and level in use.

A producer without users stays for the next publish until its place is needed. One whose stream is gone, or was
created anew, is left, and the next publish makes another.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidelog.client.client import Client
from tidelog.client.cluster.lifetime import close_all
from tidelog.client.cluster.metadata_cache import StreamMetadata
from tidelog.client.producer.producer import Producer
from wire.errors import Code, TidelogError

Level: TypeAlias = Literal["all", "leader"]

MAX_PRODUCERS = 64
BUFFER_BYTES = 4 << 20
"""Bytes of one producer's records that are not acknowledged: further publishes wait."""
_OVER = (Code.UNKNOWN_STREAM, Code.WRONG_INCARNATION)


@dataclass(slots=True, eq=False)
class Place:
    producer: Producer
    layout: StreamMetadata
    """The layout when the producer began."""
    users: int = 0


class Producers:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._places: dict[tuple[str, Level], Place] = {}
        """Places by stream and level; the one that was used last is last."""

    @asynccontextmanager
    async def use(self, stream: str, level: Level) -> AsyncIterator[Place]:
        """Gives a producer that has started; only the first use waits. Raises UnknownStream and the other errors of
        `Producer.start`; BACKPRESSURE while all places are in use."""
        place = await self._place(stream, level)
        place.users += 1
        try:
            yield place
        except TidelogError as error:
            if error.code in _OVER:
                self._leave((stream, level), place)
            raise
        finally:
            place.users -= 1

    async def close(self) -> None:
        places, self._places = self._places, {}
        await close_all([place.producer.close for place in places.values()])

    async def _place(self, stream: str, level: Level) -> Place:
        key = (stream, level)
        place = self._places.pop(key, None)
        if place is not None:
            self._places[key] = place
            return place
        await self._make_room()
        producer: Producer = self._client.producer(stream, acks=level, buffer_bytes=BUFFER_BYTES)
        try:
            await producer.start()
            layout = await self._client.metadata(stream)
            await self._make_room()  # other producers may have begun meanwhile
        except BaseException:
            await producer.close()
            raise
        made_meanwhile = self._places.get(key)
        if made_meanwhile is not None:
            await producer.close()
            return made_meanwhile
        place = self._places[key] = Place(producer, layout)
        return place

    async def _make_room(self) -> None:
        while len(self._places) >= MAX_PRODUCERS:
            idle = next((key for key, place in self._places.items() if not place.users), None)
            if idle is None:
                raise TidelogError(
                    Code.BACKPRESSURE,
                    f"publishes to {MAX_PRODUCERS} streams are under way at this broker, which is its limit; try again",
                )
            await self._places.pop(idle).producer.close()

    def _leave(self, key: tuple[str, Level], place: Place) -> None:
        """Forgets a producer after an error, which its other users get, too."""
        if self._places.get(key) is place:
            del self._places[key]
