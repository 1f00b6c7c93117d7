"""An operator of the cluster, who deletes records, makes partitions read-only and pauses them, and a reader that looks
for deleted records: once their deletion was answered, and the lease of whoever was not asked is over, no broker serves
them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Literal

from wire.errors import TidelogError

if TYPE_CHECKING:
    from tests.simulation.users.clients import Workload

BEHIND = 20
"""Offsets below the end of a deletion at which the reader begins."""
BEYOND = 5
"""Furthest that it asks beyond what is acknowledged: such a request is refused, unless more is committed by now."""


@dataclass(slots=True)
class Deletion:
    end: int
    """The first offset that was not deleted."""
    answered_at: float
    is_looked_for: bool = False
    """The reader has looked for its records, when nobody could be excused any more."""


class Operator:
    """Of one stream. `lease_s`: that of leaders."""

    def __init__(self, clients: Workload, lease_s: float) -> None:
        self._clients = clients
        self._lease_s = lease_s
        self._rng = Random(f"operator of {clients.world.seed}-{clients.process.name}")
        self._deletions: dict[tuple[int, int], Deletion] = {}
        """By incarnation of the stream, and partition."""
        self._one_by_one = asyncio.Lock()
        self.waits = 0
        """Changes that were asked for and not answered yet."""

    # ---- read-only

    def set_readonly(self, readonly: bool) -> bool:
        clients = self._clients
        if not clients.incarnation:
            return False
        numbers = [number for number in range(clients.partitions) if self._rng.random() < 0.7] or [0]
        wanted = numbers if readonly else None
        self.waits += 1
        clients.spawn(lambda: self._set_readonly(readonly, wanted))
        return True

    async def _set_readonly(self, readonly: bool, partitions: list[int] | None) -> None:
        """What made partitions read-only may have taken effect without an answer, and is taken back for all of them
        until that is answered."""
        clients = self._clients
        async with self._one_by_one:
            while True:
                try:
                    await clients.client.set_readonly(clients.stream, readonly, partitions)
                    clients.world.say(f"{clients.stream} {partitions or 'all'} read-only: {readonly}")
                    break
                except TidelogError as error:
                    clients.world.say(f"{clients.stream} is not set read-only={readonly}: {error}")
                    if readonly:
                        break
                    await asyncio.sleep(0.1)
        self.waits -= 1

    # ---- paused

    def pause(self) -> bool:
        """Records go on coming: their partitions are resumed by them."""
        clients = self._clients
        if not clients.incarnation:
            return False
        numbers = [number for number in range(clients.partitions) if self._rng.random() < 0.7] or [0]
        resume_all = self._rng.random() < 0.5
        self.waits += 1
        clients.spawn(lambda: self._pause(numbers, resume_all))
        return True

    async def _pause(self, numbers: list[int], resume_all: bool) -> None:
        clients = self._clients
        try:
            await clients.client.pause(clients.stream, numbers, resume_all)
            clients.world.say(f"{clients.stream} {numbers} is paused")
        except TidelogError as error:
            clients.world.say(f"{clients.stream} {numbers} is not paused: {error}")
        self.waits -= 1

    # ---- deleted records

    def delete_records(self) -> bool:
        clients = self._clients
        if not clients.incarnation:
            return False
        partition = self._rng.randrange(clients.partitions)
        known = clients.invariants.acked_end(clients.stream, clients.incarnation, partition)
        before: int | Literal["latest"] = "latest"
        if self._rng.random() < 0.6:
            before = self._rng.randrange(known + BEYOND)
        incarnation = clients.incarnation
        if not self._deletions:
            clients.spawn(self._look_for_ever)
        self._deletions.setdefault((incarnation, partition), Deletion(0, 0.0, is_looked_for=True))
        self.waits += 1
        clients.spawn(lambda: self._delete(incarnation, partition, before))
        return True

    async def _delete(self, incarnation: int, partition: int, before: int | Literal["latest"]) -> None:
        clients = self._clients
        try:
            answer = await clients.client.delete_records(clients.stream, {partition: before})
        except TidelogError as error:
            clients.world.say(f"{clients.stream}/{partition} keeps its records below {before}: {error}")
            answer = []
        for changed in answer:  # none, if the partition was removed with its last records
            start = changed["log_start_offset"]
            clients.world.say(f"{clients.stream}/{partition} starts at {start}; not known by {changed['not_yet']}")
            end = start if before == "latest" else before  # the leader's log may begin above that; another one need not
            known = self._deletions[incarnation, partition]
            if incarnation == clients.incarnation and end > known.end:
                self._deletions[incarnation, partition] = Deletion(end, clients.world.now)
        self.waits -= 1

    def delete_below(self, partition: int, before: int) -> None:
        """Nobody looks for these records afterwards: the partition may be removed, and made anew."""
        self.waits += 1
        self._clients.spawn(lambda: self._delete_below(partition, before))

    async def _delete_below(self, partition: int, before: int) -> None:
        clients = self._clients
        try:
            for changed in await clients.client.delete_records(clients.stream, {partition: before}):
                clients.world.say(f"{clients.stream}/{partition} starts at {changed['log_start_offset']}")
        except TidelogError as error:
            clients.world.say(f"{clients.stream}/{partition} keeps its records below {before}: {error}")
        self.waits -= 1

    async def _look_for_ever(self) -> None:
        clients = self._clients
        while True:
            await asyncio.sleep(0.2 + self._rng.random())
            here = [place for place in sorted(self._deletions) if place[0] == clients.incarnation]
            if here:
                incarnation, partition = self._rng.choice(here)
                await self._look(incarnation, partition, self._deletions[incarnation, partition])

    async def _look(self, incarnation: int, partition: int, deletion: Deletion) -> None:
        clients = self._clients
        read_from: Literal["leader", "follower"] = self._rng.choice(("leader", "follower"))
        begin = self._rng.randrange(max(0, deletion.end - BEHIND), deletion.end + 1)
        is_late = clients.world.now > deletion.answered_at + self._lease_s
        consumer = clients.client.consume(
            clients.stream,
            start={partition: begin},
            partitions=[partition],
            read_from=read_from,
            on_gap="skip",
            on_out_of_range="earliest",
        )
        found: int | None = None
        try:
            async with asyncio.timeout(1.0):
                await consumer.start()
                record = await consumer.getone()
                found = None if record is None else record.offset
        except (TidelogError, TimeoutError):
            pass  # nothing is above the deleted records, or nobody answers
        finally:
            await consumer.aclose()
        if not is_late or incarnation != clients.incarnation or not clients._is_of(consumer, incarnation):
            return
        deletion.is_looked_for = True
        if found is not None and found < deletion.end and not clients.invariants.has_zombie(clients.stream, partition):
            clients.world.broken(
                "DeletedRecordsStayDeleted",
                f"{clients.process.name} got {clients.stream}/{partition} offset {found} from a {read_from}, and all"
                f" below {deletion.end} was deleted at {deletion.answered_at:.3f}",
            )

    # ---- calm

    def unsettled(self) -> str | None:
        if self.waits:
            return f"{self.waits} requests of the operator of {self._clients.stream} have no answer"
        for (incarnation, partition), deletion in self._deletions.items():
            if incarnation == self._clients.incarnation and not deletion.is_looked_for:
                return f"nobody has looked for the deleted records of {self._clients.stream}/{partition}"
        return None
