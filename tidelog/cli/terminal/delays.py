"""Reports on stderr why records wait, while a command publishes or reads."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

import click

from wire.echo import one_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SILENCE = 1.0
"""Seconds that records wait for a leader that refuses them, or is missing, before stderr reports it."""
AGAIN = 60.0
"""Seconds until the same reason is reported again."""


class _Waits(Protocol):
    """A producer or a consumer."""

    def delay(self) -> tuple[float, str] | None: ...


@asynccontextmanager
async def delays_reported(source: _Waits) -> AsyncIterator[None]:
    """Reports on stderr, inside the `with`, each reason that keeps records waiting for longer than SILENCE; the same
    reason again after AGAIN, where records wait for it then."""
    import asyncio

    async def watch() -> None:
        reported: dict[str, float] = {}
        while True:
            await asyncio.sleep(SILENCE / 4)
            delay, now = source.delay(), time.monotonic()
            reported = {reason: at for reason, at in reported.items() if now - at < AGAIN}
            if delay is not None and delay[0] >= SILENCE and delay[1] not in reported:
                reported[delay[1]] = now
                click.echo(f"waiting: {one_line(delay[1])}", err=True)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
