"""A login that lacks a permission is told at once which one, on a real nats-server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import tidelog
from spark_connector.reads.client_log import ClientLog
from spark_connector.reads.log_port import OffsetRange
from spark_connector.shared.connections import Address, Cluster, kept
from spark_connector.shared.retrying import Patience
from tests.integration.rig.command_line import tidelog_command
from tests.integration.rig.least_privilege import PASSWORD, client_of, least_privilege, printed, with_password
from tests.integration.rig.nats_logins import reload
from tests.integration.rig.waiting import LIMIT, until
from tidelog.client.base.exceptions import NotPermitted
from tidelog.client.client import Client
from tidelog.server.devcluster import DevCluster
from wire.types import Incarnation, Offset, StreamName

AT_ONCE = 0.8 * LIMIT
"""Seconds, on a machine with much else to do; what waits for an answer in vain takes LIMIT."""
KNOWS = ["tidelog.api.cluster.id", "tidelog.api.presence", "tidelog.api.metadata.orders"]


def user(name: str, publish: list[str]) -> str:
    """Of a client that may publish there, and has inboxes of its own."""
    allowed = ", ".join(f'"{subject}"' for subject in publish)
    return (
        f'{{ user: "{name}", password: "{PASSWORD}", permissions: {{ publish: {{ allow: [{allowed}] }},'
        f' subscribe: {{ allow: ["_INBOX.{name}.>"] }} }} }}'
    )


def users(*more: str) -> str:
    fixed = [
        with_password(printed("--role", "broker", "--broker", "b1", "--subject", "orders")),
        with_password(printed("--role", "admin")),
        with_password(printed("--role", "producer", "--stream", "orders")),
        user("nothing", ["nowhere"]),
        user("knows", [*KNOWS, "tidelog.api.producer.init"]),
        user("leader-only", [*KNOWS, "tidelog.orders.*.fetch"]),
    ]
    listed = "\n".join([*fixed, *more])
    return f"authorization {{ users: [\n{listed}\n] }}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    config = users()
    with least_privilege(tmp_path_factory.mktemp("not-permitted") / "cluster", config, nodes=1) as running:
        running.wait_ready(2 * LIMIT)
        asyncio.run(_fill(running))
        yield running


async def _fill(cluster: DevCluster) -> None:
    async with await client_of(cluster, "admin") as admin:
        await admin.create_stream("orders", partitions=2)
    async with await client_of(cluster, "producer-orders") as client, client.producer("orders") as producer:
        await producer.send(b"one", partition=0)


@contextmanager
def refused_at_once(who: str, subject: str, *words: str) -> Iterator[None]:
    began = time.monotonic()
    with pytest.raises(NotPermitted) as caught:
        yield
    assert time.monotonic() - began < AT_ONCE
    for word in (f"user '{who}'", repr(subject), *words):
        assert word in caught.value.message


async def _status(client: Client) -> None:
    await client.cluster_status()


async def _create(client: Client) -> None:
    await client.create_stream("more")


async def _send(client: Client) -> None:
    async with client.producer("orders") as producer:
        await producer.send(b"x", partition=0)


async def _send_unacknowledged(client: Client) -> None:
    async with client.producer("orders", acks="none") as producer:
        while True:
            await producer.send(b"x", partition=0)
            await asyncio.sleep(0.01)


async def _read(client: Client) -> None:
    async for _ in client.consume("orders", start=0, partitions=[0]):
        pass


async def _read_followers(client: Client) -> None:
    async for _ in client.consume("orders", start=0, partitions=[0], read_from="follower"):
        pass


async def _offsets(client: Client) -> None:
    await client.offsets("orders", "latest")


@pytest.mark.parametrize(
    ("who", "act", "subject", "remedy"),
    [
        ("nothing", _status, "tidelog.api.cluster.id", "--role consumer --stream STREAM"),
        ("knows", _status, "tidelog.api.cluster.status", "--role monitoring"),
        ("knows", _create, "tidelog.api.stream.create.more", "--role admin"),
        ("knows", _send, "tidelog.orders.0.append", "--role producer --stream orders"),
        ("knows", _send_unacknowledged, "tidelog.orders.0.append", "--role producer --stream orders"),
        ("leader-only", _send, "tidelog.api.producer.init", "--role producer"),
        ("knows", _read, "tidelog.orders.0.fetch", "--role consumer --stream orders"),
    ],
)
async def test_a_call_says_what_is_not_permitted(
    cluster: DevCluster, who: str, act: Callable[[Client], Coroutine[Any, Any, None]], subject: str, remedy: str
) -> None:
    async with await client_of(cluster, who, api_timeout=LIMIT) as client:
        with refused_at_once(who, subject, "publish to", f"tidelog security nats-config {remedy}"):
            await act(client)


async def test_a_forgotten_inbox_prefix_is_named_when_connecting(cluster: DevCluster) -> None:
    began = time.monotonic()
    with pytest.raises(NotPermitted, match=r"user 'knows' subscribe to '_INBOX\..*inbox_prefix.*'_INBOX.knows'"):
        await tidelog.connect(cluster.nats_url, user="knows", password=PASSWORD, api_timeout=LIMIT)
    assert time.monotonic() - began < AT_ONCE


@pytest.mark.parametrize(
    ("who", "prefix", "command", "words"),
    [
        ("knows", True, ["stream", "list"], ["user 'knows' publish to 'tidelog.api.stream.list'", "--role monitoring"]),
        ("knows", True, ["subscribe", "orders"], ["'tidelog.orders.", "--role consumer --stream orders"]),
        ("knows", True, ["publish", "orders", "--file", "-"], ["'tidelog.orders.", "--role producer --stream orders"]),
        ("knows", False, ["stream", "list"], ["user 'knows' subscribe to '_INBOX.", "--inbox-prefix"]),
    ],
)
def test_a_command_says_what_is_not_permitted(
    cluster: DevCluster, who: str, prefix: bool, command: list[str], words: list[str]
) -> None:
    url = cluster.nats_url.replace("nats://", f"nats://{who}:{PASSWORD}@")
    inboxes = ["--inbox-prefix", f"_INBOX.{who}"] if prefix else []
    done = tidelog_command(*command, "--server", url, *inboxes, stdin="a record\n")
    assert done.returncode == 1
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr


async def _incarnations(cluster: DevCluster) -> tuple[Incarnation, Incarnation]:
    async with await client_of(cluster, "knows") as client:
        layout = await client.metadata("orders")
    return layout.incarnation, layout.partitions[0].incarnation


def test_a_spark_job_says_what_is_not_permitted(cluster: DevCluster) -> None:
    login = (("password", PASSWORD), ("user", "knows"))
    with pytest.raises(NotPermitted, match="inboxPrefix"):
        ClientLog(Cluster(Address((cluster.nats_url,), "tidelog", None, login), Patience(60))).extents(
            (StreamName("orders"),)
        )
    incarnation, in_partition = asyncio.run(_incarnations(cluster))
    log = ClientLog(Cluster(Address((cluster.nats_url,), "tidelog", "_INBOX.knows", login), Patience(60)))
    try:
        with refused_at_once("knows", "tidelog.orders.0.fetch", "--role consumer --stream orders"):
            log.extents((StreamName("orders"),))
        task = OffsetRange(StreamName("orders"), incarnation, 0, in_partition, Offset(0), Offset(1))
        with refused_at_once("knows", "tidelog.orders.0.fetch", "--role consumer --stream orders"):
            list(log.fetch(task, 1 << 20))
    finally:
        kept.close()


async def test_a_client_goes_on_when_it_is_permitted(cluster: DevCluster) -> None:
    reload(cluster.nats, users(user("late", [*KNOWS, "tidelog.api.producer.init"])))
    async with await client_of(cluster, "late", api_timeout=LIMIT) as client, client.producer("orders") as producer:
        with refused_at_once("late", "tidelog.orders.0.append"):
            await producer.send(b"x", partition=0)
        reload(cluster.nats, users(user("late", [*KNOWS, "tidelog.api.producer.init", "tidelog.orders.*.append"])))
        receipt = await until(lambda: producer.send(b"y", partition=0))
        assert receipt.partition == 0
