"""Permissions of NATS as `tidelog security nats-config` prints them: each allowed and each forbidden subject tried
against a real nats-server, and a whole cluster whose users have no more than they need."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

import tidelog
from spark_connector.reads.client_log import ClientLog
from spark_connector.shared.connections import Address, Cluster, kept
from spark_connector.shared.retrying import Patience
from tests.integration.rig.brokers_status import described
from tests.integration.rig.command_line import tidelog_command
from tests.integration.rig.dev_cluster import assert_logs_without
from tests.integration.rig.least_privilege import PASSWORD, client_of, least_privilege, printed, with_password
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.transactions.told_transactions import until_told
from tidelog.nats.nats_server import EmbeddedNatsServer
from tidelog.server.devcluster import DevCluster
from wire.security.permissions import Role, Scope, permissions_of
from wire.types import StreamName

USERS = {
    "broker-b1": ["--role", "broker", "--broker", "b1", "--subject", "orders", "--subject", "payments"],
    "broker-b2": ["--role", "broker", "--broker", "b2", "--subject", "orders", "--subject", "payments"],
    "broker-b3": ["--role", "broker", "--broker", "b3", "--subject", "orders", "--subject", "payments"],
    "admin": ["--role", "admin"],
    "admin-orders": ["--role", "admin", "--stream", "orders"],
    "producer-orders": ["--role", "producer", "--stream", "orders", "--subject", "orders", "--partitions", "2"],
    "consumer-orders": ["--role", "consumer", "--stream", "orders"],
    "spark-orders": ["--role", "spark", "--stream", "orders", "--stream", "payments"],
    "consumer-payments": ["--role", "consumer", "--stream", "payments"],
    "member-billing": ["--role", "consumer", "--stream", "orders", "--group", "billing", "--user", "member-billing"],
    "billing-1": ["--role", "consumer", "--role", "producer", "--stream", "orders", "--group", "invoicing",
                  "--transactional-id", "billing-1", "--user", "billing-1"],
    "monitoring": ["--role", "monitoring"],
}  # fmt: skip
SCOPES = {
    "broker-b1": (Role.BROKER, Scope(broker="b1", subjects=("orders", "payments"))),
    "admin": (Role.ADMIN, Scope(inbox_prefix="_INBOX.admin")),
    "admin-orders": (Role.ADMIN, Scope(streams=("orders",), inbox_prefix="_INBOX.admin-orders")),
    "producer-orders": (
        Role.PRODUCER,
        Scope(streams=("orders",), subjects=("orders",), partitions=2, inbox_prefix="_INBOX.producer-orders"),
    ),
    "consumer-orders": (Role.CONSUMER, Scope(streams=("orders",), inbox_prefix="_INBOX.consumer-orders")),
    "spark-orders": (Role.SPARK, Scope(streams=("orders", "payments"), inbox_prefix="_INBOX.spark-orders")),
    "member-billing": (
        Role.CONSUMER,
        Scope(streams=("orders",), groups=("billing",), inbox_prefix="_INBOX.member-billing"),
    ),
    "monitoring": (Role.MONITORING, Scope(inbox_prefix="_INBOX.monitoring")),
}

# What nobody but brokers may do, and what each client must not do besides.
OF_BROKERS = [
    "tidelog.orders.0.replicate", "tidelog.orders.0.offset", "tidelog.orders.0.checkpoint", "tidelog.orders.0.mark",
    "tidelog.notify.b1",
    "tidelog.__audit.0.write", "tidelog.__audit", "tidelog.__audit.0.append",
    "tidelog.metadata.probe.b1", "tidelog.metadata.drain.b1", "tidelog.metadata.status.b1", "tidelog.metadata.cluster",
    "tidelog.metadata.controller",
    "tidelog.inbox.b1.x.1", "_INBOX.another.x.1", "$JS.API.INFO", "$SYS.REQ.SERVER.PING",
    "tidelog.metadata.push.orders",
]  # fmt: skip
WRITES = [
    "tidelog.api.stream.create.orders", "tidelog.api.stream.alter.orders", "tidelog.api.stream.delete.orders",
    "tidelog.api.partition.move_leader.orders", "tidelog.api.partition.unclean_elect.orders",
    "tidelog.api.cluster.alter", "tidelog.api.cluster.rebalance_leaders",
]  # fmt: skip
OTHERS = [
    "tidelog.payments.0.append", "tidelog.payments.0.leader", "tidelog.payments.0.fetch",
    "tidelog.payments.0.fetch.b1", "tidelog.api.metadata.payments", "tidelog.api.stream.describe.payments",
    "tidelog.api.stream.delete.payments", "payments", "payments.1", "orders.eu", "orders.2",
    "tidelog.metadata.topology", "tidelog.metadata.topology.payments",
]  # fmt: skip
AUDIT = ["tidelog.__audit.0.fetch", "tidelog.__audit.0.fetch.b1"]
GROUPS = [
    "tidelog.__groups.0.heartbeat.billing",
    "tidelog.__groups.0.commit.billing",
    "tidelog.__groups.0.offsets.billing",
    "tidelog.__groups.0.cursor.billing",
]
OTHER_GROUPS = [subject.replace("billing", "other") for subject in GROUPS] + ["tidelog.__groups.0.coordinate"]
READING = ["tidelog.orders.0.fetch", "tidelog.orders.0.fetch.b1"]
WRITING = ["tidelog.orders.0.append", "tidelog.orders.0.leader", "orders", "orders.1"]
MAY_NOT_PUBLISH = {
    "broker-b1": ["tidelog.api.stream.delete.orders", "tidelog.orders.0.append", "tidelog.orders.0.fetch", "orders",
                  "$JS.API.INFO", "$SYS.REQ.SERVER.PING", "elsewhere", "tidelog.metadata.topology"],
    "admin": [*OF_BROKERS, *READING, *WRITING, *(each for each in OTHERS if ".api." not in each)],
    "admin-orders": [*OF_BROKERS, *AUDIT, *READING, *WRITING, *OTHERS, "tidelog.api.cluster.alter"],
    "producer-orders": [*OF_BROKERS, *AUDIT, *WRITES, *OTHERS, *READING, "tidelog.api.stream.list"],
    "consumer-orders": [*OF_BROKERS, *AUDIT, *WRITES, *OTHERS, *WRITING, *GROUPS, "tidelog.api.producer.init"],
    "member-billing": [*OF_BROKERS, *AUDIT, *WRITES, *OTHERS, *WRITING, *OTHER_GROUPS, "tidelog.__groups.0.append",
                       "tidelog.api.group.reset.billing", "tidelog.api.group.delete.billing"],
    "spark-orders": [*OF_BROKERS, *AUDIT, *WRITES, *WRITING, "tidelog.payments.0.append", "tidelog.logins.0.fetch"],
    "monitoring": [*OF_BROKERS, *AUDIT, *WRITES, *READING, *WRITING, "tidelog.api.producer.init"],
}  # fmt: skip
EVERYTHING = [">", "_INBOX.>", "tidelog.>", "orders", "tidelog.orders.0.append", "tidelog.inbox.>", "$SRV.PING",
              "tidelog.metadata.push.logins", "tidelog.metadata.push.*", "tidelog.metadata.push.>"]  # fmt: skip
MAY_NOT_SUBSCRIBE = {user: [*EVERYTHING, "_INBOX.another.>", "_INBOX.another.x.1"] for user in SCOPES} | {
    "broker-b1": [">", "_INBOX.>", "tidelog.>", "tidelog.inbox.>", "tidelog.inbox.b2.x.*", "tidelog.notify.b2",
                  "tidelog.orders.0.fetch.b2", "elsewhere", "$SYS.>", "$JS.>"]
}  # fmt: skip


@pytest.fixture(scope="module")
def config() -> str:
    users = "\n".join(printed(*arguments) for arguments in USERS.values())
    return f"authorization {{ users: [\n{with_password(users)}\n] }}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, config: str) -> Iterator[EmbeddedNatsServer]:
    with EmbeddedNatsServer(store_dir=tmp_path_factory.mktemp("permissions"), config=config) as running:
        yield running


async def violations(server: EmbeddedNatsServer, user: str, lines: list[str]) -> str:
    """What the server says to these protocol lines of a user."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        async with asyncio.timeout(LIMIT):
            await reader.readline()
            login = f'{{"user": "{user}", "pass": "{PASSWORD}", "verbose": false}}'
            writer.write(f"CONNECT {login}\r\n".encode() + b"".join(f"{line}\r\n".encode() for line in lines))
            writer.write(b"PING\r\n")
            said = b""
            while b"PONG" not in said:
                said += (part := await reader.read(65536))
                assert part, f"the server hung up: {said!r}"
    finally:
        writer.close()
    return said.decode()


def concrete(pattern: str) -> str:
    """A subject that matches a pattern of NATS."""
    return re.sub(r"\*", "x", pattern).replace(">", "y.z")


@pytest.mark.parametrize("user", SCOPES)
async def test_what_a_role_may_and_may_not_do(server: EmbeddedNatsServer, user: str) -> None:
    granted = permissions_of(*SCOPES[user])
    for grant in granted.publish:
        said = await violations(server, user, [f"PUB {concrete(grant.subject)} 0\r\n"])
        assert "-ERR" not in said, f"{grant}: {said}"
    for number, grant in enumerate(granted.subscribe):
        said = await violations(server, user, [f"SUB {grant.subject} {number}", f"SUB {concrete(grant.subject)} x"])
        assert "-ERR" not in said, f"{grant}: {said}"
    for subject in MAY_NOT_PUBLISH[user]:
        said = await violations(server, user, [f"PUB {subject} 0\r\n"])
        assert f'Permissions Violation for Publish to "{subject}"' in said
    for subject in MAY_NOT_SUBSCRIBE[user]:
        said = await violations(server, user, [f"SUB {subject} 1"])
        assert f'Permissions Violation for Subscription to "{subject}"' in said


@pytest.mark.parametrize("user", SCOPES)
def test_what_is_printed_is_what_is_declared(user: str, config: str) -> None:
    granted = permissions_of(*SCOPES[user])
    block = printed(*USERS[user])
    subjects = re.findall(r'^        "([^"]+)"  #', block, re.MULTILINE)
    assert subjects == [grant.subject for grant in (*granted.publish, *granted.subscribe)]
    assert PASSWORD not in block
    assert config.count(f'user: "{user}"') == 1


# ---- a cluster of users with the least that they need --------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, config: str) -> Iterator[DevCluster]:
    with least_privilege(tmp_path_factory.mktemp("least") / "cluster", config) as running:
        running.wait_ready(2 * LIMIT)
        asyncio.run(_create_streams(running))
        yield running
        assert_logs_without(running, "Traceback", "ermissions")


async def _create_streams(cluster: DevCluster) -> None:
    async with await client_of(cluster, "admin") as admin:
        for stream in ("orders", "payments"):
            await admin.create_stream(stream, partitions=2, replication_factor=3)


async def test_each_does_its_work(cluster: DevCluster) -> None:
    async with await client_of(cluster, "producer-orders") as client, client.producer("orders") as producer:
        for number in range(200):
            producer.send_nowait(b"%d" % number, key=b"%d" % number)
        await producer.flush()
    plain = await nats.connect(
        cluster.nats_url, user="producer-orders", password=PASSWORD, inbox_prefix=b"_INBOX.producer-orders"
    )
    for subject in ("orders", "orders.1"):
        assert b'"stream":"orders"' in (await plain.request(subject, b"plain", timeout=LIMIT)).data
    await plain.close()
    async with await client_of(cluster, "consumer-orders") as client:
        found = [record.value async for record in client.consume("orders", start="earliest", stop="latest")]
        assert len(found) == 202
        replica = client.consume("orders", start="earliest", stop="latest", read_from="follower")
        assert len([record async for record in replica]) == 202
    async with await client_of(cluster, "monitoring") as client:
        assert (await client.cluster_status())["offline_partitions"] == 0
        assert {stream["name"] for stream in await client.streams()} == {"orders", "payments"}
        assert (await described(client, "payments"))["partitions"][0]["high_watermark"] == -1
    async with await client_of(cluster, "admin") as client:
        await client.alter_stream("orders", config={"retention_max_bytes": 1 << 30})
        await client.create_stream("gone", subject="orders.gone", replication_factor=3)
        await client.delete_stream("gone")
    async with await client_of(cluster, "admin-orders") as client:
        await client.alter_stream("orders", unset=["retention_max_bytes"])
    async with await client_of(cluster, "admin-orders", api_timeout=1) as client:
        with pytest.raises(tidelog.TidelogError):
            await client.delete_stream("payments")
        with pytest.raises(tidelog.TidelogError):
            await client.alter_cluster(config={"min_isr": 1})


async def test_a_member_has_its_group_and_no_other(cluster: DevCluster) -> None:
    async with await client_of(cluster, "member-billing") as client:
        async with client.subscribe("orders", group="billing") as member:
            count = 0
            while count < 202:
                count += len(await member.getmany(timeout=LIMIT))
        cursor = client.cursor("billing")
        assert await cursor.set(b"x") == (await cursor.get() or (b"", 0))[1]
        with pytest.raises(tidelog.NotPermitted, match=r"__groups\.\d\.heartbeat\.other"):
            await client.subscribe("orders", group="other").start()
        with pytest.raises(tidelog.NotPermitted):
            await client.cursor("other").get()
        with pytest.raises(tidelog.NotPermitted):
            await client.delete_group("billing")
    async with await client_of(cluster, "consumer-orders") as client:
        with pytest.raises(tidelog.NotPermitted):
            await client.subscribe("orders", group="billing").start()
    async with await client_of(cluster, "admin") as client:
        assert sum(entry["committed"] or 0 for entry in (await client.describe_group("billing"))["progress"]) == 202
        await client.delete_group("billing")


async def test_a_transactional_producer_has_its_id_and_no_other(cluster: DevCluster) -> None:
    async with (
        await client_of(cluster, "billing-1") as client,
        client.subscribe("orders", group="invoicing", auto_commit=False) as member,
        client.producer(transactional_id="billing-1", streams="orders") as producer,
    ):
        taken = await member.getmany(timeout=LIMIT)
        async with producer.transaction():
            receipt = await producer.send("orders", b"invoice", partition=0)
            await producer.send_offsets(group=member)
        committed = await member.committed()
        assert max(each.offset for each in committed.values()) == taken[-1].offset + 1
        with pytest.raises(tidelog.NotPermitted, match="billing-2"):
            await client.producer(transactional_id="billing-2").start()
        with pytest.raises(tidelog.NotPermitted):
            await client.abort_transaction("billing-1")
    async with await client_of(cluster, "admin") as client:
        await until_told(client)
    async with await client_of(cluster, "consumer-orders") as client:
        start = {0: receipt.offset}
        (seen,) = [each.value async for each in client.consume("orders", partitions=[0], start=start, stop="latest")]
        assert seen == b"invoice"
    async with await client_of(cluster, "producer-orders") as client:
        with pytest.raises(tidelog.NotPermitted):
            await client.producer(transactional_id="billing-1").start()
    async with await client_of(cluster, "admin") as client:
        assert (await client.describe_transaction("billing-1"))["state"] == "idle"
        await client.delete_group("invoicing")


async def test_a_producer_has_all_of_its_family_and_commits_for_it(cluster: DevCluster) -> None:
    async with await client_of(cluster, "billing-1") as client:
        prepared = []
        for child in ("0", "1"):
            async with client.producer(transactional_id=f"billing-1~{child}") as producer:
                await producer.begin()
                await producer.send("orders", b"of a family", partition=0)
                prepared.append(await producer.prepare())
        assert await client.commit_prepared("billing-1", [each for each in prepared if each], sequence=1)
        assert await client.committed_sequence("billing-1") == 1
        with pytest.raises(tidelog.NotPermitted):
            await client.committed_sequence("billing-2")
        with pytest.raises(tidelog.NotPermitted):
            await client.abort_prepared("billing-2", abort_others=True)
        with pytest.raises(tidelog.NotPermitted):
            await client.producer(transactional_id="billing-2~0").start()


def test_a_spark_job_reads_its_streams(cluster: DevCluster) -> None:
    """By the connection that Spark's tasks make."""
    login = (("password", PASSWORD), ("user", "spark-orders"))
    log = ClientLog(Cluster(Address((cluster.nats_url,), "tidelog", "_INBOX.spark-orders", login), Patience(60)))
    try:
        streams = (StreamName("orders"), StreamName("payments"))
        extents = log.extents(streams)
        assert [extents[stream].partitions.keys() for stream in streams] == [{0, 1}] * 2
        found = log.offsets_at({stream: {0: 0, 1: 0} for stream in streams})
        assert [found[stream].keys() for stream in streams] == [{0, 1}] * 2
    finally:
        kept.close()


async def test_a_failover_with_the_least(cluster: DevCluster) -> None:
    """A producer that may not read asks on `.leader` whether the leader is there."""
    async with await client_of(cluster, "admin") as admin, await client_of(cluster, "producer-orders") as client:
        async with client.producer("orders") as producer:
            before = await producer.send(b"before", partition=0)
            leader = (await admin.describe("orders"))["partitions"][0]["leader"]
            assert leader is not None
            cluster.kill(leader)
            receipts = [await producer.send(b"after", partition=0) for _ in range(20)]
            assert [r.offset for r in receipts] == list(range(before.offset + 1, before.offset + 21))
        cluster.start_broker(leader)
        await asyncio.to_thread(cluster.wait_ready, 2 * LIMIT)


async def test_nobody_reads_the_answers_of_others(cluster: DevCluster) -> None:
    """The attack: a client that is limited to its own stream subscribes to everybody's inboxes."""
    refused: list[str] = []

    async def on_error(error: Exception) -> None:
        refused.append(str(error))

    spy = await nats.connect(cluster.nats_url, user="consumer-payments", password=PASSWORD, error_cb=on_error)
    heard: list[Any] = []

    async def listen(message: Any) -> None:
        heard.append(message)

    for subject in ("_INBOX.>", "_INBOX.consumer-orders.>", "tidelog.>", "tidelog.inbox.>", ">"):
        await spy.subscribe(subject, cb=listen)
        await spy.flush()
    # An answer sent to an inbox of its own, on another stream's request.
    await spy.publish("tidelog.orders.0.fetch", b"", reply="_INBOX.consumer-payments.x")
    await spy.publish("orders", b"forged")
    await spy.flush()
    async with await client_of(cluster, "consumer-orders") as client:
        before = [record.value async for record in client.consume("orders", start="earliest", stop="latest")]
    await spy.flush()
    assert before
    assert b"forged" not in before
    assert heard == []
    assert len([text for text in refused if "ermissions" in text]) == 7, refused
    await spy.close()


def test_a_client_whose_inboxes_are_not_its_own_is_told(cluster: DevCluster) -> None:
    url = cluster.nats_url.replace("nats://", f"nats://monitoring:{PASSWORD}@")
    done: subprocess.CompletedProcess[str] = tidelog_command("cluster", "status", "--server", url)
    assert done.returncode == 1
    assert "--inbox-prefix" in done.stderr
    done = tidelog_command("cluster", "status", "--server", url, "--inbox-prefix", "_INBOX.monitoring")
    assert done.returncode == 0, done.stderr


def test_an_admin_reads_the_audit_trail_without_a_complaint(cluster: DevCluster) -> None:
    url = cluster.nats_url.replace("nats://", f"nats://admin:{PASSWORD}@")
    done = tidelog_command("audit", "--json", "--server", url, "--inbox-prefix", "_INBOX.admin")
    assert done.returncode == 0
    assert "stream.create" in done.stdout
    assert "tidelog.metadata." not in done.stderr


# ---- clients in another account than the brokers -------------------------------------------------------------------


async def test_clients_in_another_account(tmp_path: Path) -> None:
    """Everything goes through services that the brokers' account exports, and nothing else of that account is seen."""
    broker = printed(*USERS["broker-b1"], "--across-accounts")
    roles = (
        "--role",
        "producer",
        "--role",
        "consumer",
        "--stream",
        "orders",
        "--subject",
        "orders",
        "--partitions",
        "2",
        "--user",
        "app",
    )
    client, exports, imports = re.split(r"^# in account \w+\n", printed(*roles, "--account", "APP"), flags=re.MULTILINE)
    admin = printed("--role", "admin")
    config = with_password(
        f"accounts {{\nTIDELOG {{ users: [\n{broker}\n{admin}\n]\n{exports}}}\n"
        f"APP {{ users: [\n{client}\n]\n{imports}}}\n}}"
    )
    with least_privilege(tmp_path / "cluster", config, nodes=1) as running:
        running.wait_ready(2 * LIMIT)
        async with await client_of(running, "admin") as operator:
            await operator.create_stream("orders", partitions=2)
            await operator.create_stream("payments")
        async with await client_of(running, "app") as app:
            async with app.producer("orders") as producer:
                sent = [await producer.send(b"%d" % number) for number in range(50)]
            assert len(sent) == 50
            found = [record.value async for record in app.consume("orders", start="earliest", stop="latest")]
            assert {*found} == {b"%d" % number for number in range(50)}
        async with await client_of(running, "app", api_timeout=2) as app:
            with pytest.raises(tidelog.TidelogError):
                await app.metadata("payments")
        plain = await nats.connect(running.nats_url, user="app", password=PASSWORD, inbox_prefix=b"_INBOX.app")
        assert b'"stream":"orders"' in (await plain.request("orders.1", b"plain", timeout=LIMIT)).data
        await plain.publish("orders", b"without a reply")
        await plain.close()
        async with await client_of(running, "app") as app:

            async def stored() -> bool:
                found = {record.value async for record in app.consume("orders", start="earliest", stop="latest")}
                return {b"plain", b"without a reply"} < found

            await until(stored, "the record without a reply")
        assert_logs_without(running, "Traceback", "ermissions")
