"""Background tasks of the metadata plane. A task that fails is logged; all are cancelled when the service closes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from wire.types import BrokerId

_log = logging.getLogger(__name__)


class Tasks:
    def __init__(self, broker_id: BrokerId) -> None:
        self._id = broker_id
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start `work`; after `end` nothing is started."""
        if self._closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def end(self) -> None:
        """Cancel all tasks, without waiting for them."""
        self._closed = True
        for task in [*self._tasks]:
            task.cancel()

    async def wait_ended(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the metadata service of broker %s met a bug", self._id, exc_info=error)
