"""Strangers who write under the producer id of somebody else, or under one that nobody has, or whose transactions reach
for streams and groups of others: on NATS that is open to all, and as another producer of the stream, which has the
permissions for it alone."""

# Rules: R76.

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

import tidelog
from tests.bodies import with_the_same_crc
from tests.integration.rig.brokers_status import counters_of_all, described
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.least_privilege import client_of, least_privilege, printed, with_password
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.transactions.told_transactions import until_told
from tidelog.client.client import Client
from tidelog.server.devcluster import DevCluster
from wire.batch import BatchBuilder
from wire.errors import Code, TidelogError
from wire.internal_records.transaction_records import ADD_OFFSETS, ADD_PARTITIONS, END
from wire.messaging.transport import Message
from wire.operations import api_operations as op
from wire.partition_messages.append import encode_append
from wire.protobuf.tidelog_pb2 import AppendRequest
from wire.protobuf.transactions_pb2 import AddRequest, AddResponse, EndRequest, EndResponse, TransactionPartition
from wire.security.batch_proofs import add_batch_proof
from wire.security.tickets import partition_target
from wire.security.transaction_proofs import add_proof
from wire.subjects import Subjects
from wire.types import LeaderEpoch, Offset, StreamName

STREAM = "orders"
OTHERS = "invoices"
GROUP = "billing"
INVENTED = (1 << 62) - 1
SUBJECT = Subjects().append(StreamName(STREAM), 0)
PRODUCER = ("--role", "producer", "--stream", STREAM)


def _users() -> str:
    producer = with_password(printed(*PRODUCER))
    attacker = with_password(printed(*PRODUCER, "--transactional-id", "attacks", "--user", "attacker"))
    broker = with_password(printed("--role", "broker", "--broker", "b1", "--subject", STREAM, "--subject", OTHERS))
    others = [
        with_password(printed("--role", "admin")),
        with_password(printed("--role", "consumer", "--stream", STREAM)),
    ]
    listed = "\n".join([broker, *others, producer, attacker])
    return f"authorization {{ users: [\n{listed}\n] }}"


@pytest.fixture(scope="module", params=["open", "least privilege"])
def is_open(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "open")


@pytest.fixture(scope="module")
def cluster(is_open: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    folder = tmp_path_factory.mktemp("stolen") / "cluster"
    with dev_cluster(folder, nodes=1) if is_open else least_privilege(folder, _users(), nodes=1) as running:
        running.wait_ready(2 * LIMIT)
        asyncio.run(_create(running, is_open))
        yield running


async def _create(cluster: DevCluster, is_open: bool) -> None:
    async with await _connect(cluster, is_open, "admin") as client:
        await client.create_stream(STREAM)
        await client.create_stream(OTHERS)


async def _connect(cluster: DevCluster, is_open: bool, user: str) -> Client:
    return await (tidelog.connect(cluster.nats_url) if is_open else client_of(cluster, user))


@pytest.fixture
async def victim(cluster: DevCluster, is_open: bool) -> AsyncIterator[Client]:
    async with await _connect(cluster, is_open, "producer-orders") as client:
        yield client


class Attacker:
    """A client that sends batches of its own making."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def target(self) -> str:
        known = await self.client.metadata(STREAM)
        return partition_target(STREAM, known.incarnation, 0, known.partitions[0].incarnation)

    async def own_id(self) -> tuple[int, bytes]:
        given = await self.client._api.call(op.PRODUCER_INIT)
        return given["producer_id"], bytes.fromhex(given["key"])

    async def send(
        self,
        producer_id: int,
        sequence: int,
        key: bytes = b"",
        value: bytes = b"of the attacker",
        *,
        with_another_body: bool = False,
    ) -> TidelogError | None:
        """The refusal of the batch, if it was refused. `with_another_body`: behind the same header and proofs."""
        builder = BatchBuilder()
        builder.add_record(value)
        batch = builder.build(1, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        parts, _ = batch.stamp(Offset(0), LeaderEpoch(0))
        request = AppendRequest(acks=AppendRequest.ALL)
        if key:
            add_batch_proof(request, key, await self.target(), parts)
        data = b"".join(encode_append(request, parts))
        if with_another_body:
            data = with_the_same_crc(data)
        transport = self.client._transport
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        inbox = transport.new_inbox()
        transport.on_inbox(inbox, lambda message: None if answer.done() else answer.set_result(message))
        async with asyncio.timeout(LIMIT):
            transport.publish(SUBJECT, [data], reply=inbox)
            return TidelogError.from_headers((await answer).headers)


@pytest.fixture
async def attacker(cluster: DevCluster, is_open: bool) -> AsyncIterator[Attacker]:
    async with await _connect(cluster, is_open, "attacker") as client:
        yield Attacker(client)


async def stored(cluster: DevCluster, is_open: bool) -> list[bytes | None]:
    async with await _connect(cluster, is_open, "admin") as client:
        await until_told(client, STREAM)
    async with await _connect(cluster, is_open, "consumer-orders") as client:
        return [record.value async for record in client.consume(STREAM, start="earliest", stop="latest")]


async def test_nobody_writes_under_the_id_of_another_and_nobody_learns_its_sequence(
    cluster: DevCluster, is_open: bool, victim: Client, attacker: Attacker
) -> None:
    own, key = await attacker.own_id()
    async with victim.producer(STREAM) as producer:
        await producer.send(b"first")
        later, _ = await attacker.own_id()
        assert own < later, "ids ascend, so the victim's is between them"
        for guessed in range(own + 1, later):
            for sequence in (0, 1, 2, 7):
                for with_key in (b"", key):
                    refusal = await attacker.send(guessed, sequence, with_key)
                    assert refusal is not None
                    assert refusal.code is Code.UNPROVEN_PRODUCER
                    assert not refusal.details, "it tells nothing about the producer"
        receipt = await producer.send(b"second")
    found = await stored(cluster, is_open)
    assert found[receipt.offset] == b"second"
    assert b"of the attacker" not in found


async def test_the_owner_of_an_id_is_not_told_that_another_batch_is_stored(attacker: Attacker) -> None:
    """By a bug of a client, for instance."""
    own, key = await attacker.own_id()
    assert await attacker.send(own, 0, key) is None
    refusal = await attacker.send(own, 0, key, b"something else")
    assert refusal is not None
    assert refusal.code is Code.OUT_OF_ORDER_SEQUENCE
    assert await attacker.send(own, 0, key) is None, "the same again gets its receipt"


async def test_a_batch_that_was_overheard_is_of_no_use_with_another_body(
    cluster: DevCluster, is_open: bool, attacker: Attacker
) -> None:
    """The stranger's comes first: the owner's had to wait for members of the ISR, and was heard meanwhile."""
    own, key = await attacker.own_id()
    value = b"of the owner of the id"
    refusal = await attacker.send(own, 0, key, value, with_another_body=True)
    assert refusal is not None
    assert refusal.code is Code.UNPROVEN_PRODUCER
    before = len(await stored(cluster, is_open))
    assert await attacker.send(own, 0, key, value) is None
    assert (await stored(cluster, is_open))[before:] == [value], "it is no repetition"


async def test_an_id_that_nobody_was_given_is_not_taken(
    cluster: DevCluster, is_open: bool, victim: Client, attacker: Attacker
) -> None:
    _, key = await attacker.own_id()
    for with_key in (b"", key):
        refusal = await attacker.send(INVENTED, 0, with_key)
        assert refusal is not None
        assert refusal.code is Code.UNPROVEN_PRODUCER
    async with victim.producer(STREAM) as producer:
        await producer.send(b"later")
    if is_open:

        async def counted() -> bool:
            return any(each["unproven_appends"] >= 2 for each in (await counters_of_all(victim)).values())

        await until(counted, "a count of refused batches")


async def test_nobody_else_ends_a_transaction(cluster: DevCluster, is_open: bool, victim: Client) -> None:
    """A stranger knows the transactional id, the id of the producer, and the epoch."""
    if not is_open:
        return  # NATS does not let others publish to the coordinator of that id
    transactional_id = "transfer"
    async with victim.producer(transactional_id=transactional_id) as producer:
        await producer.begin()
        await producer.send(STREAM, b"debit")
        session = producer._session.machine.session
        async with (
            await tidelog.connect(cluster.nats_url) as stranger,
            stranger.producer(transactional_id="another") as other,
        ):
            await other.begin()
            key = other._session.machine.session.key
            for proving in (b"", key):
                for commits in (True, False):
                    end = EndRequest(
                        transactional_id=transactional_id,
                        producer_id=session.producer_id,
                        producer_epoch=session.producer_epoch,
                        commits=commits,
                    )
                    add_proof(end, proving)
                    with pytest.raises(TidelogError) as refused:
                        await other._session._link.ask(END, transactional_id, end, EndResponse, timeout=LIMIT)
                    assert refused.value.code is Code.UNPROVEN_PRODUCER
        await producer.send(STREAM, b"credit")
        await producer.commit()
    found = await stored(cluster, is_open)
    assert found[-2:] == [b"debit", b"credit"]


async def test_a_transaction_takes_in_no_stream_and_no_group_of_others(
    cluster: DevCluster, is_open: bool, attacker: Attacker
) -> None:
    """Where it had taken part, a marker of it would be written, and a group be known, without any permission there."""
    async with await _connect(cluster, is_open, "admin") as admin:
        lives = {}
        for stream in (STREAM, OTHERS):
            known = await admin.metadata(stream)
            lives[stream] = TransactionPartition(
                stream=stream,
                stream_incarnation=known.incarnation,
                partition=0,
                partition_incarnation=known.partitions[0].incarnation,
            )
        own, foreign = lives[STREAM], lives[OTHERS]
        unnamed = Code.BAD_REQUEST if is_open else Code.NOT_PERMITTED
        attempts: list[tuple[str, str, list[TransactionPartition], list[str], Code]] = [
            (ADD_PARTITIONS, STREAM, [foreign], [], Code.BAD_REQUEST),
            (ADD_PARTITIONS, STREAM, [own, foreign], [], Code.BAD_REQUEST),
            (ADD_PARTITIONS, STREAM, [own], [GROUP], Code.BAD_REQUEST),
            (ADD_OFFSETS, STREAM, [], [GROUP], unnamed),
        ]
        if not is_open:  # else everybody may add everything
            attempts.append((ADD_PARTITIONS, OTHERS, [foreign], [], Code.NOT_PERMITTED))
            attempts.append((ADD_OFFSETS, GROUP, [], [GROUP], Code.NOT_PERMITTED))
        async with attacker.client.producer(transactional_id="attacks") as producer:
            await producer.start()
            session = producer._session.machine.session
            for kind, added, partitions, groups, code in attempts:
                add = AddRequest(
                    transactional_id="attacks",
                    producer_id=session.producer_id,
                    producer_epoch=session.producer_epoch,
                    partitions=partitions,
                    groups=groups,
                )
                add_proof(add, session.key)
                with pytest.raises(TidelogError) as refused:
                    await producer._session._link.ask(kind, "attacks", add, AddResponse, timeout=LIMIT, added=added)
                assert refused.value.code is code, f"{kind} {added}: {refused.value}"
            assert (await admin.describe_transaction("attacks"))["state"] == "idle", "nothing was added"
            await producer.begin()
            await producer.send(STREAM, b"its own")
            if not is_open:
                with pytest.raises(tidelog.TidelogError):
                    await producer.send_offsets({(STREAM, 0): 1}, group=GROUP)
                await producer.abort()
            else:
                await producer.commit()
        assert (await described(admin, OTHERS))["partitions"][0]["high_watermark"] == -1, "not even a marker is there"
        assert GROUP not in {group["name"] for group in (await admin.groups())["groups"]}
