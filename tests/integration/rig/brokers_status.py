"""What brokers tell of themselves, once each of them has told it.

`cluster_status` and `describe` ask the brokers and wait half a second: what a broker with much to do would tell is
not in the answer, or None. That says nothing about the cluster, so a test asks again.
"""

from __future__ import annotations

from tests.integration.rig.waiting import until
from tidelog.client.client import Client
from wire.operations.api_operations import BrokerStatus, ClusterStatus, StreamDescription


async def status_of_all(client: Client) -> ClusterStatus:
    """The status of the cluster with the counters of each broker that lives."""

    async def told() -> ClusterStatus | None:
        status = await client.cluster_status()
        return status if all(each["counters"] is not None for each in status["brokers"] if each["alive"]) else None

    return await until(told, "an answer of every broker that lives")


async def status_of(client: Client, broker: str) -> BrokerStatus:
    """The status of that broker, with its counters."""

    async def told() -> BrokerStatus | None:
        brokers = (await client.cluster_status())["brokers"]
        return next((each for each in brokers if each["id"] == broker and each["counters"] is not None), None)

    return await until(told, f"an answer of {broker}")


async def counters_of(client: Client, broker: str) -> dict[str, int]:
    return (await status_of(client, broker))["counters"] or {}


async def counters_of_all(client: Client) -> dict[str, dict[str, int]]:
    """By broker, of those that live."""
    return {each["id"]: each["counters"] or {} for each in (await status_of_all(client))["brokers"] if each["alive"]}


async def described(client: Client, stream: str) -> StreamDescription:
    """The stream, once the leader of each partition has told the ends of its log."""

    async def told() -> StreamDescription | None:
        found = await client.describe(stream)
        return found if all(each["log_end_offset"] is not None for each in found["partitions"]) else None

    found: StreamDescription = await until(told, f"what the leaders of {stream} tell")
    return found
