"""A Spark query reads a stream and writes another one, each record once. Leaders, the controller and the coordinator of
the query's transactions are killed, an executor of the query, and the query itself: with -9, also between the sink's
commit and Spark's, and in order. Once all brokers and NATS stand still for a minute. In the end each input is in the
output exactly once, in the order of its key.

    scripts/chaos --spark --minutes 5 --interval 10
    scripts/chaos --spark --broken at-least-once     must end in FAIL, since micro-batches are written again
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import tidelog
from tests.integration.rig.workload import wait_in_isr, wait_in_sync
from tidelog.server.devcluster import DevCluster
from wire.internal_records.transaction_records import coordinator_partition
from wire.internal_streams import TRANSACTIONS

SOURCE: Final = "spark-in"
TARGET: Final = "spark-out"
PARTITIONS: Final = 3
KEYS: Final = 50
RATE: Final = 2000
"""Records a second, about."""
CATCH_UP_S: Final = 240.0
"""For the query to write what was published."""
RECOVERY_S: Final = 60.0
STANDSTILL_S: Final = 60.0
MASTER: Final = "local-cluster[2,1,1024]"
"""Two executors with one slot each."""
PLANNED: Final = (
    "between the commits", "coordinator", "query in order", "executor", "standstill", "query -9", "controller",
    "query in order", "query in order",
)  # fmt: skip
"""Each of them happens, in this order, between the others."""


@dataclass(slots=True)
class SparkChaos:
    cluster: DevCluster
    folder: Path
    options: argparse.Namespace
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    query: subprocess.Popen[bytes] | None = None
    sent: dict[bytes, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """Acknowledged values by key, in their order."""

    def say(self, what: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {what}, {sum(map(len, self.sent.values()))} acknowledged", flush=True)

    def keep_up(self) -> None:
        """Start the query where it does not run."""
        if self.query is not None and self.query.poll() is None:
            return
        if self.query is not None:
            self.say(f"the query has ended with {self.query.returncode}, and is started again")
        self.counts["query started"] += 1
        guarantee = "at_least_once" if self.options.broken == "at-least-once" else "exactly_once"
        with (self.folder / f"query-{self.counts['query started']}.log").open("wb") as log:
            self.query = subprocess.Popen(
                [
                    sys.executable, "-m", "tests.integration.spark.spark_query", self.cluster.nats_url, SOURCE, TARGET,
                    str(self.folder), guarantee, MASTER,
                ],
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    async def run(self, client: tidelog.Client) -> None:
        rng, end = random.Random(self.options.seed), time.monotonic() + self.options.minutes * 60
        await self._until_it_writes()
        planned, number = [*PLANNED], 0
        while time.monotonic() < end or (planned and not self.options.broken):
            dice, chosen = rng.random(), rng.randrange(PARTITIONS)
            number += 1
            if planned and number % 2 == 0:
                what = planned.pop(0)
            else:
                what = "leader" if dice < 0.6 else "coordinator" if dice < 0.8 else "controller"
            await self._strike(client, what, rng.choice((SOURCE, TARGET)), chosen)
            await asyncio.sleep(self.options.interval)
            self.keep_up()

    async def _strike(self, client: tidelog.Client, what: str, stream: str, partition: int) -> None:
        self.say(f"kill: {what}")
        self.counts[what] += 1
        match what:
            case "between the commits":
                (self.folder / "die").touch()
                await self._until_query_ended()
            case "query -9":
                self._kill_query()
                await self._until_query_ended()
            case "query in order":
                assert self.query is not None
                self.query.send_signal(signal.SIGTERM)
                await self._until_query_ended()
            case "executor":
                os.kill(await self._executor(), signal.SIGKILL)
                await self._until_it_writes()
            case "standstill":
                await self._stand_still(client)
            case "coordinator" if self.options.broken != "at-least-once":
                await self._kill_broker(client, TRANSACTIONS.name, coordinator_partition(self._query_id()))
            case "controller":
                controller = (await client.cluster_status())["controller"]
                await self._restart(client, controller or self.cluster.broker_ids[0])
            case _:
                await self._kill_broker(client, stream, partition)

    def _kill_query(self) -> None:
        """With its JVM, which is in its process group."""
        assert self.query is not None
        with suppress(ProcessLookupError):
            os.killpg(self.query.pid, signal.SIGKILL)

    async def _executor(self) -> int:
        """The process of one; waits until there is one."""
        assert self.query is not None
        deadline = time.monotonic() + CATCH_UP_S
        while True:
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    if (
                        b"CoarseGrainedExecutorBackend" in (process / "cmdline").read_bytes()
                        and os.getpgid(int(process.name)) == self.query.pid
                    ):
                        return int(process.name)
            assert time.monotonic() < deadline, "the query has no executor"
            await asyncio.sleep(0.1)

    async def _stand_still(self, client: tidelog.Client) -> None:
        """Of all processes of the cluster at once: connections stay, and nobody answers."""
        found = [self.cluster.nats_pid, *(self.cluster.pid(broker) for broker in self.cluster.broker_ids)]
        pids = [pid for pid in found if pid is not None]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(STANDSTILL_S)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        self.say("the cluster goes on")
        await self._until_in_isr(client)
        await self._until_it_writes()

    async def _until_query_ended(self) -> None:
        assert self.query is not None
        deadline = time.monotonic() + CATCH_UP_S
        while self.query.poll() is None:
            assert time.monotonic() < deadline, "the query goes on"
            await asyncio.sleep(0.1)
        await self._until_it_writes()

    async def _until_it_writes(self) -> None:
        """It has ended another micro-batch, so that the next fault meets a query at work: Spark starts slowly."""
        written, deadline = self._micro_batches(), time.monotonic() + CATCH_UP_S
        while self._micro_batches() == written:
            self.keep_up()
            assert time.monotonic() < deadline, f"the query writes nothing for {CATCH_UP_S:g} s"
            await asyncio.sleep(0.1)

    def _micro_batches(self) -> int:
        """That Spark has committed."""
        return max((int(path.name) for path in (self.folder / "checkpoint" / "commits").glob("[0-9]*")), default=-1)

    def _query_id(self) -> str:
        """The family of its transactions."""
        found: str = json.loads((self.folder / "checkpoint" / "metadata").read_text())["id"]
        return found

    async def _kill_broker(self, client: tidelog.Client, stream: str, partition: int) -> None:
        leader = (await client.describe(stream))["partitions"][partition]["leader"]
        await self._restart(client, leader or self.cluster.broker_ids[0])

    async def _restart(self, client: tidelog.Client, broker: str) -> None:
        self.cluster.kill(broker)
        await asyncio.sleep(self.options.interval * 0.3)
        self.cluster.start_broker(broker)
        await self._until_in_isr(client)

    async def _until_in_isr(self, client: tidelog.Client) -> None:
        for stream in (SOURCE, TARGET):
            await wait_in_isr(client, stream, self.options.nodes, timeout=RECOVERY_S)

    async def until_caught_up(self, client: tidelog.Client) -> None:
        await self._until_written(client, sum(map(len, self.sent.values())), CATCH_UP_S)

    async def _until_written(self, client: tidelog.Client, count: int, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while (found := sum(map(len, (await by_key(client, TARGET)).values()))) < count:
            self.keep_up()
            if time.monotonic() > deadline:
                self.say(f"{found} of {count} are written after {timeout:g} s")
                return
            await asyncio.sleep(2.0)

    def end(self) -> None:
        if self.query is not None and self.query.poll() is None:
            self.query.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.query.wait(30)
            self._kill_query()

    @asynccontextmanager
    async def load(self, client: tidelog.Client) -> AsyncIterator[None]:
        async def publish() -> None:
            number = 0
            async with client.producer(SOURCE, delivery_timeout_ms=120_000) as producer:
                while True:
                    numbers = range(number, number + RATE // 10)
                    keys, values = [b"k%d" % (n % KEYS) for n in numbers], [b"%d" % n for n in numbers]
                    await producer.send_many(values, keys=keys)
                    for key, value in zip(keys, values, strict=True):
                        self.sent[key].append(value)
                    number = numbers.stop
                    await asyncio.sleep(0.1)

        publishing = asyncio.create_task(publish())
        try:
            yield
        finally:
            publishing.cancel()
            with suppress(asyncio.CancelledError):
                await publishing


async def by_key(client: tidelog.Client, stream: str) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = defaultdict(list)
    async for batch in client.consume(stream, stop="latest").batches():
        for key, value in zip(batch.keys, batch.values, strict=True):
            found[key or b""].append(value or b"")
    return found


async def chaos_spark(cluster: DevCluster, folder: Path, options: argparse.Namespace) -> bool:
    home = folder / "query"
    home.mkdir(parents=True)
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[2]))
    async with await tidelog.connect(cluster.nats_url) as client:
        for stream in (SOURCE, TARGET):
            await client.create_stream(stream, partitions=PARTITIONS, replication_factor=min(options.nodes, 3))
            await wait_in_sync(cluster.nats_url, stream)
        chaos = SparkChaos(cluster, home, options)
        chaos.keep_up()
        try:
            async with chaos.load(client):
                await chaos.run(client)
            await chaos.until_caught_up(client)
        finally:
            await asyncio.to_thread(chaos.end)
        given, found = await by_key(client, SOURCE), await by_key(client, TARGET)
    missing = sum(len({*values} - {*found[key]}) for key, values in given.items())
    repeated = sum(len(values) - len({*values}) for values in found.values())
    foreign = sum(len({*values} - {*given[key]}) for key, values in found.items())
    disordered = sum([*dict.fromkeys(found[key])] != values for key, values in given.items()) if not missing else 0
    lost = sum(len({*values} - {*given[key]}) for key, values in chaos.sent.items())
    print(", ".join(f"{what} {count}" for what, count in chaos.counts.items()))
    print(
        f"{sum(map(len, given.values()))} in, {sum(map(len, found.values()))} out; missing {missing}, repeated"
        f" {repeated}, never written {foreign}, keys out of order {disordered}, acknowledged inputs lost {lost}"
    )
    return not (missing or repeated or foreign or disordered or lost)
