"""A worker that reads as a member of a group and writes in transactions, as a process that others kill, stop and start.

    python -m tests.integration.transactions.transactional_worker --server URL --stream STREAM --output STREAM --group
    GROUP
        --transactional-id ID --journal FILE

For each record that it reads it writes one, with the key of that record and the value `partition:offset:transaction`;
`transaction` is a name of its own. The offsets of the group are a part of the transaction. One in ABORT_ONE_OF is
aborted by the worker itself. Some transactions have one poll, others several; some name the offsets, others do not.

The journal is that of `tests.integration.groups.group_member`, and has besides:

    {"at", "kind": "writes", "transaction", "inputs": [[partition, first, next], …]}     before anything is sent
    {"at", "kind": "committed" | "aborted", "transaction"}                               as the client has said
    {"at", "kind": "unknown", "transaction"}                                             it does not know
    {"at", "kind": "sought"}                                                             back to what is committed
    {"at", "kind": "fenced"}                                                             a newer worker has the id
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
from pathlib import Path

import tidelog
from tests.integration.groups.group_member import PAUSE, Journal, hear_partitions, name_of

ABORT_ONE_OF = 12
MOST_RECORDS = 300
MOST_POLLS = 4
TRANSACTION_TIMEOUT_S = 10.0
"""Of one whose worker is gone; a stopped worker may wake behind it."""
_AGAIN = 0.2


class OnPurpose(Exception):
    """The worker aborts its transaction."""


class Worker:
    def __init__(self, options: argparse.Namespace, client: tidelog.Client) -> None:
        self._options = options
        self._journal = Journal(options.journal)
        self._life = f"{options.journal.stem}.{os.getpid()}"
        self._rng = random.Random(self._life)
        self._begun = 0
        self._producer = client.producer(
            transactional_id=options.transactional_id,
            transaction_timeout=TRANSACTION_TIMEOUT_S,
            streams=[options.output],
        )
        self._consumer = client.subscribe(
            [options.stream],
            group=options.group,
            start="earliest",
            auto_commit=False,
            session_timeout=options.session,
            on_assigned=hear_partitions(self._journal, "assigned"),
            on_revoked=hear_partitions(self._journal, "revoked"),
            on_lost=hear_partitions(self._journal, "lost"),
        )

    async def work(self, stop: asyncio.Event) -> None:
        """Until it is to stop, or is fenced."""
        try:
            async with self._consumer, self._producer:
                while not stop.is_set():
                    if records := await self._poll():
                        await self._handle(records)
        except tidelog.ProducerFenced:
            self._journal.write("fenced")

    async def _poll(self) -> list[tidelog.Record]:
        taken: list[tidelog.Record] = []
        wait = 0.2
        for _ in range(self._rng.choice((1, MOST_POLLS))):
            records = await self._consumer.getmany(MOST_RECORDS, timeout=wait)
            if not records:
                break
            wait = 0.0
            taken += records
            self._journal.write(
                "read",
                generation=self._consumer.generation,
                partition=records[0].partition,
                first=records[0].offset,
                next=records[-1].offset + 1,
                values=[name_of(record.value) for record in records],
            )
        return taken

    async def _handle(self, records: list[tidelog.Record]) -> None:
        self._begun += 1
        name = f"{self._life}.{self._begun}"
        self._journal.write("writes", transaction=name, inputs=ranges(records))
        try:
            await self._transact(name, records)
        except tidelog.ProducerFenced:
            self._journal.write("unknown", transaction=name)
            raise
        except OnPurpose:
            self._journal.write("aborted", transaction=name)
        except tidelog.DeliveryTimeout:
            await self._find_out(name)
        except tidelog.TidelogError as error:
            self._journal.write("aborted", transaction=name, error=str(error))
        else:
            self._journal.write("committed", transaction=name)
            return
        await self._go_back()

    async def _transact(self, name: str, records: list[tidelog.Record]) -> None:
        offsets = {(self._options.stream, partition): end for partition, _, end in ranges(records)}
        async with self._producer.transaction():
            for record in records:
                value = f"{record.partition}:{record.offset}:{name}".encode()
                self._producer.send_nowait(self._options.output, value, key=record.key)
            await asyncio.sleep(self._rng.choice((0.0, PAUSE, 10 * PAUSE)))
            if self._options.broken == "offsets-outside":
                await self._consumer.commit(offsets)
            elif self._rng.random() < 0.5:
                await self._producer.send_offsets(offsets, group=self._consumer)
            else:
                await self._producer.send_offsets(group=self._consumer)
            if self._rng.randrange(ABORT_ONE_OF) == 0:
                raise OnPurpose

    async def _find_out(self, name: str) -> None:
        """What became of a commit that was not answered."""
        while True:
            try:
                await self._producer.commit()
            except tidelog.DeliveryTimeout:
                continue
            except tidelog.TransactionAborted as error:
                self._journal.write("aborted", transaction=name, error=str(error))
            except tidelog.NotInTransaction as error:
                self._journal.write("unknown", transaction=name, error=str(error))
            else:
                self._journal.write("committed", transaction=name)
            return

    async def _go_back(self) -> None:
        """To what is committed. Until that is known, nothing more is read."""
        while True:
            try:
                await self._consumer.seek_to_committed()
            except tidelog.TidelogError as error:
                self._journal.write("not sought", error=str(error))
                await asyncio.sleep(_AGAIN)
            else:
                self._journal.write("sought")
                return


def ranges(records: list[tidelog.Record]) -> list[tuple[int, int, int]]:
    """(partition, first offset, next offset) of records that follow each other."""
    found: list[tuple[int, int, int]] = []
    for record in records:
        if found and found[-1][0] == record.partition and found[-1][2] == record.offset:
            found[-1] = (*found[-1][:2], record.offset + 1)
        else:
            found.append((record.partition, record.offset, record.offset + 1))
    return found


async def run(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with await tidelog.connect(options.server) as client:
        await Worker(options, client).work(stop)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--transactional-id", required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--session", type=float, default=4.0, help="session timeout, seconds")
    parser.add_argument("--broken", choices=["offsets-outside"], help="commit offsets outside of the transaction")
    asyncio.run(run(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
