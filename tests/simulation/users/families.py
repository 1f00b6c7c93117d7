"""A job whose tasks write in processes of their own, and whose driver commits for them: a family of transactional ids.

    driver     plans a batch, begins its tasks, and commits what they have prepared under the number of the batch. Then
               it writes down that the batch is done. Its successor goes on where that stands, so a batch may be
               written again that is committed
    tasks      ask what is committed, write their part of the batch, and prepare it. They outlive their driver. Some of
               them run twice at a time

The values of a batch are the same each time, and are dealt to the tasks anew.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.invariants.transactions import OUTPUTS, Ended
from tests.simulation.machines.messaging import SimConnection
from tests.simulation.users.transactors import SimTransactor, SimTransactors
from tests.simulation.world import Process
from tidelog.client.base.exceptions import DeliveryTimeout, StaleCommit, TransactionAborted
from tidelog.client.client import Client
from tidelog.client.transaction.prepared_transactions import PreparedTransaction
from wire.errors import TidelogError

if TYPE_CHECKING:
    from tidelog.client.transaction.transactional_producer import TransactionalProducer

FAMILY_NAME: Final = "x3"
TASKS: Final = 2


class SimDriver(SimTransactor):
    def __init__(self, all_of_them: SimTransactors, number: int, life: int) -> None:
        super().__init__(all_of_them, number, life)
        self.transactional_id = f"{FAMILY_NAME}~0"
        """That an operator aborts."""

    async def _live(self) -> None:
        await self.connection.connected()
        while self.is_newest or self.rng.random() < 0.9:
            self.is_busy = True
            try:
                await self._batch(self.all.batches_done)
            except (TidelogError, TimeoutError) as error:
                self.all.world.say(f"{self.name} gives its batch up: {error}")
                if self.rng.random() < 0.5:
                    await self._abort_all()
                await asyncio.sleep(0.1)
                continue
            await self._idle()
        self.is_busy = False

    async def _batch(self, number: int) -> None:
        """Raises TidelogError, TimeoutError."""
        of_batch = Random(f"{self.all.world.seed}-batch-{number}")
        values = [b"f:%d:%d" % (number, each) for each in range(of_batch.randrange(TASKS, 8))]
        self.all.invariants.batch(number, tuple(values), is_committed=False)
        dealt = values[:]
        self.rng.shuffle(dealt)
        reports: list[asyncio.Queue[PreparedTransaction | None]] = []
        for task in range(TASKS):
            reports.append(asyncio.Queue())
            for attempt in range(2 if self.rng.random() < 0.2 else 1):
                SimTask(self, number, f"{task}-{attempt}", dealt[task::TASKS], reports[-1])
        async with asyncio.timeout(4 * self.all.timeout):
            told = [await self._report(each) for each in reports]
        prepared = [each for each in told if each is not None]
        if self.rng.random() < 0.3:
            await asyncio.sleep(self.rng.random() * self.all.timeout * (1.2 if self.rng.random() < 0.2 else 0.3))
        if len(prepared) == TASKS or not prepared:
            await self._commit(number, values, prepared)
        else:
            self.all.world.say(f"{self.name}: a part of batch {number} found it committed")
        if self.rng.random() < 0.5:
            await asyncio.sleep(self.rng.random() * 0.5)
        self.all.batches_done = max(self.all.batches_done, number + 1)

    async def _report(self, reports: asyncio.Queue[PreparedTransaction | None]) -> PreparedTransaction | None:
        """Polled: it comes from another process."""
        while reports.empty():  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
        return reports.get_nowait()

    async def _commit(self, number: int, values: list[bytes], prepared: list[PreparedTransaction]) -> None:
        """Raises TidelogError."""
        while prepared:
            try:
                timeout = self.all.delivery_timeout_ms / 1000
                mine = await self.client.commit_prepared(FAMILY_NAME, prepared, sequence=number, timeout=timeout)
            except DeliveryTimeout as error:
                self.all.world.say(f"{self.name} commits again: {error}")
            except TransactionAborted:
                self._tell(prepared, commits=False)
                raise
            except StaleCommit as error:
                if not error.outcome_unknown:
                    self._tell(prepared, commits=False)
                raise
            else:
                self.all.world.say(f"{self.name} is told that batch {number} is committed ({mine=})")
                self._tell(prepared, commits=mine)
                break
        self.all.invariants.batch(number, tuple(values), is_committed=True)

    def _tell(self, prepared: list[PreparedTransaction], *, commits: bool) -> None:
        for _, producer_id, epoch, _ in prepared:
            self.all.invariants.transaction_told(Ended(self.name, producer_id, epoch, commits))

    async def _abort_all(self) -> None:
        try:
            await self.client.abort_prepared(FAMILY_NAME, abort_others=True, timeout=2.0)
        except TidelogError as error:
            self.all.world.say(f"{self.name} cannot abort: {error}")


class SimTask:
    """One attempt, a process of its own from its begin to its end."""

    def __init__(
        self,
        driver: SimDriver,
        number: int,
        child: str,
        values: list[bytes],
        reports: asyncio.Queue[PreparedTransaction | None],
    ) -> None:
        self.all = driver.all
        self.number, self.child, self.values, self._reports = number, child, values, reports
        self.name = f"{driver.name}-{number}-{child}-{next(driver.all.task_numbers)}"
        self.rng = Random(f"{driver.all.world.seed}-{self.name}")
        driver.all.world.after(0.0, self._begin)

    def _begin(self) -> None:
        self.process = Process.begun(self.all.world, self.name)
        with self.process.running():
            self.connection = SimConnection(self.all.nats, self.process, self.name)
            self.client = Client(self.connection, self.all.subjects, server="nats://simulated", name=self.name)
            self.process.create_task(self._live())

    async def _live(self) -> None:
        await self.connection.connected()
        try:
            self._reports.put_nowait(await self._write())
        except TidelogError as error:
            self.all.world.say(f"{self.name} fails: {error}")
        self.all.world.after(0.0, self._end)

    def _end(self) -> None:
        self.process.kill()
        self.all.nats.process_died(self.connection)

    async def _write(self) -> PreparedTransaction | None:
        """Raises TidelogError. None: its batch is committed."""
        last = await self.client.committed_sequence(FAMILY_NAME, timeout=self.all.delivery_timeout_ms / 1000)
        if last is not None and last >= self.number:
            return None
        producer: TransactionalProducer[Any, Any] = self.client.producer(
            transactional_id=f"{FAMILY_NAME}~{self.child}",
            streams=[OUTPUTS],
            transaction_timeout=self.all.timeout,
            delivery_timeout_ms=self.all.delivery_timeout_ms,
        )
        await producer.begin()
        for value in self.values:
            producer.send_nowait(OUTPUTS, value, partition=self.rng.randrange(self.all.output_partitions))
            if self.rng.random() < 0.3:
                await asyncio.sleep(self.rng.random() * 0.1)
        return await producer.prepare()
