"""A replication exchange captured on the real subjects and checked byte by byte against the protocol document.

The bytes are taken apart here by hand (protobuf wire format, struct), so that a slip in `wire/` cannot hide in both
places.
"""

# Rules: R7, R9, R83.

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidelog
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.waiting import until
from tests.integration.rig.workload import wait_in_sync
from tidelog.nats.nats_connection import NatsConnection
from tidelog.server.devcluster import DevCluster
from wire.messaging.transport import Message

STREAM = "cap"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DevCluster]:
    """Two replicas, so that there is one follower to watch; without the second answer to data waiters, which is
    ours."""
    settings = {"replica": {"push_to_waiters": False}}
    with dev_cluster(tmp_path / "cluster", nodes=2, settings=settings) as running:
        yield running


def protobuf_fields(data: bytes) -> dict[int, int | bytes]:
    """Field number -> varint or bytes."""
    fields: dict[int, int | bytes] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = varint()
        if tag & 7 == 0:
            fields[tag >> 3] = varint()
        else:
            assert tag & 7 == 2, f"wire type {tag & 7}"
            size = varint()
            fields[tag >> 3] = data[at : at + size]
            at += size
    return fields


class Capture:
    def __init__(self) -> None:
        self.messages: list[Message] = []

    def take(self, message: Message) -> None:
        """Notes it without the trailer, of a pack its frames (docs/messages.md)."""
        assert message.data[-1] == 1
        data = message.data[:-45]
        if not message.subject.endswith(".packed"):
            self.messages.append(message._replace(data=data))
            return
        at = 0
        while at < len(data):
            kind, *sizes = struct.unpack_from(">BHHHI", data, at)
            at += 11
            parts = []
            for size in sizes:
                parts.append(data[at : at + size])
                at += size
            subject, reply, _, payload = parts
            if kind == 0:
                self.messages.append(Message(subject.decode(), payload, reply.decode() or None))

    def seen(self, subject: str) -> list[Message]:
        return [m for m in self.messages if m.subject == subject]

    def answers(self, request: Message) -> list[Message]:
        return self.seen(request.reply or "")


async def test_the_exchange_is_the_protocol_documents(cluster: DevCluster) -> None:
    capture = Capture()
    tap = await NatsConnection.connect(cluster.nats_url, name="tap", inbox_prefix="_TAP")
    async with await tidelog.connect(cluster.nats_url) as client:
        await client.create_stream(STREAM, subject=STREAM, partitions=1, replication_factor=2)
        description = await wait_in_sync(cluster.nats_url, STREAM)
        (partition,) = description["partitions"]
        leader = partition["leader"]
        (follower,) = [r for r in partition["replicas"] if r != leader]
        replicate, offset = f"tidelog.{STREAM}.0.replicate", f"tidelog.{STREAM}.0.offset"
        notify, parked = f"tidelog.notify.{follower}", f"tidelog.notify.{leader}.parked"
        for subject in (replicate, offset, notify, parked, "tidelog.notify.*.packed", "tidelog.inbox.>"):
            await tap.subscribe(subject, capture.take)

        # An idle follower asks for nothing: its broker asks whether its fetch waits at the leader, and it does.
        def held() -> list[int]:
            """Numbers of the fetches of the partition that are held."""
            found = []
            for question in capture.seen(parked):
                incarnation, length = struct.unpack_from(">QH", question.data)
                assert (incarnation > 0, question.data[10 : 10 + length]) == (True, follower.encode())
                places = [*struct.iter_unpack(">QIQQQ", question.data[10 + length :])]
                for answer in capture.answers(question):
                    assert len(answer.data) == len(places), "one byte for each"
                    found += [
                        place[4]
                        for place, verdict in zip(places, answer.data, strict=True)
                        if verdict == 1 and place[:2] == (description["incarnation"], 0) and place[3] == 1
                    ]
            return found

        await until(lambda: len(held()) > 1, "the idle health check")
        assert len({*held()}) == 1, "the same fetch, again and again"

        # A record arrives: the data waiter notifies, and the follower fetches before its sleep is over.
        async with client.producer(STREAM, acks="all") as producer:
            receipt = await producer.send(b"value", key=b"key")
        assert receipt.offset == 0
        await until(lambda: capture.seen(notify), "the notification")
        notification = protobuf_fields(capture.seen(notify)[0].data)
        assert notification[1] == STREAM.encode(), "stream = 1"
        assert notification.get(2, 0) == 0, "partition = 2"
        await until(lambda: capture.seen(replicate), "the fetch after the notification")
        fetch = capture.seen(replicate)[0]
        fields = protobuf_fields(fetch.data)
        assert fields[1] == follower.encode(), "replicaID = 1"
        assert fields.get(2, 0) == 0, "offset = 2: the next one wanted"
        assert fields[3] == 1, "leaderEpoch = 3"

        def with_data() -> list[Message]:
            return [a for r in capture.seen(replicate) for a in capture.answers(r) if len(a.data) > 16]

        await until(with_data, "the answer with data")
        data = with_data()[0].data
        assert struct.unpack(">Qq", data[:16]) == (1, -1), "not committed yet when it left"
        (segment,) = (cluster.broker_dir(follower) / f"{STREAM}-{description['incarnation']}").glob("*/*.log")
        stored = segment.read_bytes()
        assert stored.startswith(data[16:]), "the follower's log holds the batches byte for byte as they came"
        (own,) = (cluster.broker_dir(leader) / f"{STREAM}-{description['incarnation']}").glob("*/*.log")
        assert own.read_bytes().startswith(data[16:]), "and so does the leader's"

        # The follower's acknowledgement is its next request: offset = next one wanted.
        await until(
            lambda: [r for r in capture.seen(replicate) if protobuf_fields(r.data).get(2) == 1], "the acknowledgement"
        )
        # An idle follower is told of the commit: HW 0 is the first record.
        await until(
            lambda: [
                a
                for r in capture.seen(replicate)
                for a in capture.answers(r)
                if len(a.data) == 16 and struct.unpack(">Qq", a.data) == (1, 0)
            ],
            "the new HW",
        )

        # A restarted follower asks where its newest epoch ends before it fetches.
        cluster.kill(follower)
        await asyncio.sleep(1.0)  # what it has sent before is captured by then
        capture.messages.clear()
        cluster.start_broker(follower)
        await until(lambda: [r for r in capture.seen(offset) if capture.answers(r)], "the offset exchange")
        request = next(r for r in capture.seen(offset) if capture.answers(r))
        assert protobuf_fields(request.data)[1] == 1, "leaderEpoch = 1: the newest one in its log"
        (answer,) = capture.answers(request)
        assert protobuf_fields(answer.data)[1] == 1, "endOffset = 1, exclusive"
        await until(lambda: capture.seen(replicate), "the first fetch after the restart")
        first_fetch = capture.messages.index(next(m for m in capture.messages if m.subject == replicate))
        assert capture.messages.index(answer) < first_fetch, "reconciled before the first fetch"
        await wait_in_sync(cluster.nats_url, STREAM)
    await tap.close()
