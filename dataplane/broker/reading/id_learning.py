"""When a role learns the message ids of its log: a leader before the first publish comes, a follower behind what it
appends, many batches at once, so that little is left to read should it be elected."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from dataplane.log.storage.log_errors import LogDamaged
from wire.errors import CorruptData

if TYPE_CHECKING:
    from dataplane.broker.reading.readable_role import ReadableRole

LEARN_AFTER = 0.5
"""Seconds from a batch with message ids, at a follower, until a worker learns them and those that came meanwhile."""


class IdLearning:
    def __init__(self, role: ReadableRole) -> None:
        self._role = role
        self._due: asyncio.TimerHandle | None = None
        """Set from the moment at which it is due to the end of the work."""

    async def learn(self, pool: Executor) -> bool:
        """False: the log cannot be read, or the role has ended."""
        role, context = self._role, self._role.context
        role.ids.configure(role.view.config.dedup_window_ms, context.settings.max_message_ids)
        if role.ids.is_current(role.log):
            return True
        try:
            await context.loop.run_in_executor(pool, role.ids.catch_up, role.log, role.cipher.decrypted)
        except CorruptData as e:
            role.on_damage(f"reading message ids failed: {e}")
        except LogDamaged as e:
            role.fail(f"reading message ids failed: {e}")
        else:
            return not role.is_over()
        return False

    def later(self) -> None:
        """There may be ids to learn; a role that has ended learns none."""
        role = self._role
        if self._due is None and role.view.config.dedup_window_ms and not role.ids.is_current(role.log):
            self._due = role.context.loop.call_later(LEARN_AFTER, lambda: role.spawn(self._learn_now()))

    def stop(self) -> None:
        """The role ends; work that has begun is waited for elsewhere."""
        if self._due is not None:
            self._due.cancel()

    async def _learn_now(self) -> None:
        if not self._role.ended:
            await self.learn(self._role.context.readers)
        self._due = None
