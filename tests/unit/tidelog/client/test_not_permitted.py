"""What waits for an answer when NATS says that it was not permitted."""

from __future__ import annotations

import asyncio

import pytest

from tests.fake_nats import delivered
from tests.unit.tidelog.client.fake_broker import Cluster
from tidelog.client.base.exceptions import NotPermitted
from wire.messaging.transport import Message
from wire.messaging.violation import Act, Violation

APPEND = Violation(act=Act.PUBLISH, subject="tidelog.s.0.append")
LEADER = Violation(act=Act.PUBLISH, subject="tidelog.s.0.leader")
INBOXES = Violation(act=Act.SUBSCRIBE, subject="_INBOX.x.*", is_inbox=True)


async def test_a_call_fails_and_others_are_answered(cluster: Cluster) -> None:
    transport, _, client = cluster
    await client.streams()
    transport.listen("tidelog.api.cluster.status", lambda _: None)
    waiting = asyncio.create_task(client.cluster_status())
    await asyncio.sleep(0)
    other = asyncio.create_task(client.streams())
    await asyncio.sleep(0)
    transport.violations.tell(Violation(act=Act.PUBLISH, subject="tidelog.api.cluster.status"))
    with pytest.raises(NotPermitted, match=r"publish to 'tidelog\.api\.cluster\.status'.*--role monitoring"):
        await waiting
    assert await other


async def test_nothing_is_asked_while_the_inboxes_are_refused(cluster: Cluster) -> None:
    transport, broker, client = cluster
    async with client.producer("s") as producer:
        await producer.send(b"one")
        transport.violations.of_inboxes = INBOXES
        with pytest.raises(NotPermitted, match="inbox_prefix"):
            await client.streams()
        with pytest.raises(NotPermitted, match="inbox_prefix"):
            await producer.send(b"two")
        transport.violations.of_inboxes = None
        await producer.send(b"three")
    assert broker.logs["s", 0].values() == [b"one", b"three"]


async def test_a_record_that_was_refused_is_not_written_and_the_next_one_is_sent(cluster: Cluster) -> None:
    transport, broker, client = cluster
    async with client.producer("s") as producer:
        broker.swallow = 1
        waiting = asyncio.create_task(producer.send(b"one"))
        await delivered()
        assert not broker.swallow
        transport.violations.tell(APPEND)
        with pytest.raises(NotPermitted, match="--role producer --stream s") as caught:
            await waiting
        assert "may or may not" not in caught.value.message
        await producer.send(b"two")
    assert broker.logs["s", 0].values() == [b"two"]


@pytest.mark.parametrize("refused", [APPEND, LEADER, INBOXES])
async def test_of_several_that_wait_nobody_knows_which_were_written(cluster: Cluster, refused: Violation) -> None:
    transport, broker, client = cluster
    async with client.producer("s") as producer:
        broker.mute = 2
        sent = []
        for value in (b"one", b"two"):
            sent.append(producer.send_nowait(value))
            await delivered()
        transport.violations.tell(refused)
        for future in sent:
            with pytest.raises(NotPermitted, match="may or may not have been written"):
                await future


async def test_nobody_knows_which_of_two_producers_was_refused(cluster: Cluster) -> None:
    """The first one's record was stored before permissions changed."""
    transport, broker, client = cluster
    async with client.producer("s") as first:
        async with client.producer("s") as second:
            broker.mute = 1
            stored = first.send_nowait(b"one")
            await delivered()
            broker.swallow = 1
            refused = second.send_nowait(b"two")
            await delivered()
            transport.violations.tell(APPEND)
            for future in (stored, refused):
                with pytest.raises(NotPermitted, match="may or may not have been written"):
                    await future
        broker.swallow = 1
        alone = first.send_nowait(b"three")
        await delivered()
        transport.violations.tell(APPEND)
        with pytest.raises(NotPermitted) as caught:
            await alone
        assert "may or may not" not in caught.value.message
    assert broker.logs["s", 0].values() == [b"one"]


async def test_refused_answers_leave_open_whether_the_only_batch_was_written(cluster: Cluster) -> None:
    transport, broker, client = cluster
    async with client.producer("s") as producer:
        broker.mute = 1
        sent = producer.send_nowait(b"one")
        await delivered()
        transport.violations.tell(INBOXES)
        with pytest.raises(NotPermitted, match="may or may not have been written"):
            await sent


async def test_a_producer_without_acknowledgements_ends(cluster: Cluster) -> None:
    transport, _, client = cluster
    async with client.producer("s", acks="none") as producer:
        await producer.send(b"one")
        transport.violations.tell(Violation(act=Act.PUBLISH, subject="tidelog.other.0.append"))
        await producer.send(b"two")
        transport.violations.tell(APPEND)
        with pytest.raises(NotPermitted, match="publish to"):
            await producer.send(b"three")


async def test_a_producer_that_gets_no_id_is_told_the_permissions_for_its_stream(cluster: Cluster) -> None:
    """The subject on which ids are given out names no stream."""
    transport, _, client = cluster
    refused = Violation(act=Act.PUBLISH, subject="tidelog.api.producer.init")
    loop = asyncio.get_running_loop()

    def refuse(_message: Message) -> None:
        loop.call_soon(transport.violations.tell, refused)

    transport.listen(refused.subject, refuse)
    with pytest.raises(NotPermitted, match=r"nats-config --role producer --stream s` prints"):
        await client.producer("s").start()
