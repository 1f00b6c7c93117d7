"""A leader that stood still (SIGSTOP) while another was elected: its answers to publishes that its successor stores.

Bare requests and envelopes reach every broker that believes it leads. A client takes the first answer, so none may
say that a record was not stored which the successor commits.
"""

# Rules: R30, R35.

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.replicated_cluster import ReplicatedCluster, observed
from tests.integration.rig.waiting import until
from tests.integration.rig.workload import wait_in_sync
from tidelog.server.devcluster import DevCluster
from wire.errors import Code
from wire.messaging.transport import Message
from wire.partition_messages.liftbridge_envelope import decode_ack, encode_publish
from wire.protobuf.tidelog_pb2 import AckPolicy
from wire.protobuf.tidelog_pb2 import Message as EnvelopeMessage

STREAM = "woken"
BROKERS = 5
"""Two of them stand still, and the others are a majority of the metadata group."""
SILENCE = 2.0
LEASE = 5.0
SETTINGS: dict[str, dict[str, Any]] = {"metadata": {"broker_silence_timeout_s": SILENCE, "leader_lease_s": LEASE}}
REQUESTS = 200
PAUSE = 0.002
"""Seconds between two requests: all of them in the time that a woken leader takes to hear of its successor."""


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[DevCluster]:
    with dev_cluster(tmp_path / "cluster", nodes=BROKERS, settings=SETTINGS) as running:
        yield running


@pytest.fixture
async def cluster(processes: DevCluster) -> AsyncIterator[ReplicatedCluster]:
    async with observed(processes) as running:
        yield running


class Asker:
    """Sends bare requests and envelopes in turn, each with an inbox of its own, and keeps every answer."""

    def __init__(self, cluster: ReplicatedCluster) -> None:
        self._nats = cluster.nats
        self.answers: dict[bytes, list[str]] = {}
        """Value -> the result of each answer: a code, or "stored"."""

    def ask(self, value: bytes) -> None:
        answers = self.answers[value] = []
        inbox = self._nats.new_inbox()
        self._nats.on_inbox(inbox, lambda message: answers.append(told(message)))
        if len(self.answers) % 4:
            self._nats.publish(STREAM, [value], reply=inbox)
        else:
            message = EnvelopeMessage(value=value, ackInbox=inbox, ackPolicy=AckPolicy.ALL)
            self._nats.publish(STREAM, [encode_publish(message)])


def told(message: Message) -> str:
    try:
        answer = json.loads(message.data)
    except ValueError:
        return decode_ack(message.data).errorCode or "stored"
    return str(answer["tidelog"]["code"]) if "error" in answer else "stored"


def is_denial(answer: str) -> bool:
    return answer != "stored" and not Code[answer].unknown_outcome


@pytest.mark.parametrize("stands_still", [SILENCE + 0.7, LEASE + 0.5], ids=["within its lease", "beyond its lease"])
async def test_a_woken_leader_denies_no_record_of_its_successor(
    cluster: ReplicatedCluster, stands_still: float
) -> None:
    client = cluster.client
    await client.create_stream(STREAM, subject=STREAM, replication_factor=3, config={"min_isr": 1})
    await wait_in_sync(cluster.url, STREAM)
    controller = (await client.cluster_status())["controller"]
    replicas = (await client.describe(STREAM))["partitions"][0]["replicas"]
    old = await cluster.leader(STREAM, isr=3)
    if old.broker == controller:
        await client.move_leader(STREAM, 0, next(broker for broker in replicas if broker != controller))
        old = await cluster.leader(STREAM, above_epoch=old.leader_epoch, isr=3)
    slow, successor = sorted(
        (broker for broker in replicas if broker != old.broker), key=lambda broker: broker == controller
    )
    asker = Asker(cluster)

    # An uncommitted tail: one member of the ISR stands still, the other holds the records of the leader.
    cluster.stop(slow)
    for number in range(5):
        asker.ask(b"tail %d" % number)
    await cluster.until_replica(STREAM, successor, lambda r: r.log_end_offset == 5, "the replication of the tail")
    cluster.stop(old.broker)
    stopped_at = time.monotonic()
    # The request to drain lies unread in the socket of the one that stands still.
    moving = asyncio.ensure_future(client.move_leader(STREAM, 0, successor))

    async def another_leads() -> bool:
        found = (await client.describe(STREAM))["partitions"][0]
        return found["leader"] not in (None, old.broker) and found["log_end_offset"] is not None

    await until(another_leads, "another leader")
    # Half of the requests lie unread before the one that stands still, the others come while it wakes.
    for number in range(REQUESTS // 2):
        asker.ask(b"unread %d" % number)
    await asyncio.sleep(max(0.0, stopped_at + stands_still - time.monotonic()))
    cluster.wake(old.broker)
    for number in range(REQUESTS // 2):
        asker.ask(b"asked %d" % number)
        await asyncio.sleep(PAUSE)
    print(f"\nthe move: {(await asyncio.gather(moving, return_exceptions=True))[0]}")

    async def acknowledged() -> bool:
        return all("stored" in said for value, said in asker.answers.items() if not value.startswith(b"tail"))

    await until(acknowledged, "an acknowledgement of every request")
    cluster.wake(slow)
    await cluster.assert_identical(STREAM)
    stored = set(await cluster.committed(STREAM))
    assert len(stored) >= REQUESTS
    print(Counter(answer for said in asker.answers.values() for answer in said))
    denied = {value: said for value, said in asker.answers.items() if value in stored and any(map(is_denial, said))}
    assert not denied, f"{len(denied)} of {len(stored)} stored records were denied: {next(iter(denied.items()))}"
