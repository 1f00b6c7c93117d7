"""What was decided of transactions, once the partitions and groups that take part know it.

A commit and an abort are answered when they are decided, and wait 1.5 s at most until all participants are told; the
abort of a family waits for none. Until then the last stable offset stands before the transaction, and who reads
committed records up to "latest" ends there.
"""

from __future__ import annotations

from tests.integration.rig.waiting import LIMIT, until
from tidelog.client.client import Client
from wire.operations.transaction_operations import TransactionList


def all_are_told(listed: TransactionList) -> bool:
    """Whether each transaction of the list is open, and the list whole: those that have ended are not listed."""
    return not listed["unanswered"] and all(each["state"] == "open" for each in listed["transactions"])


async def until_told(client: Client, stream: str = "") -> None:
    """Until every transaction that has ended in the stream, or in any, is told to all of its participants."""

    async def told() -> bool:
        return all_are_told(await client.transactions(stream=stream))

    await until(told, "the end of transactions that are decided", 2 * LIMIT)
