"""A broker whose login may not subscribe to what it needs says so, and goes on as soon as it may."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest

from tests.integration.rig.brokers_status import described, status_of
from tests.integration.rig.command_line import command
from tests.integration.rig.least_privilege import PASSWORD, client_of, least_privilege, printed, with_password
from tests.integration.rig.nats_logins import reload
from tests.integration.rig.waiting import LIMIT, until, wait_until
from tidelog.client.base.exceptions import BadSubject
from tidelog.server.devcluster import DevCluster
from wire.errors import TidelogError

ADMIN = ("--inbox-prefix", "_INBOX.admin", "--user", "admin", "--password-file")


def users(*subjects: str, without: str = "") -> str:
    """With a broker that may subscribe to these subjects of streams, and all that it needs but the line `without`."""
    options = [option for subject in subjects for option in ("--subject", subject)]
    broker = printed("--role", "broker", "--broker", "b1", *options)
    if without:
        lines = broker.splitlines()
        assert sum(f'"{without}"' in line for line in lines) == 1, without
        broker = "\n".join(line for line in lines if f'"{without}"' not in line)
    others = printed("--role", "admin") + printed(
        "--role", "producer", "--stream", "a", "--subject", "a", "--partitions", "3"
    )
    return f"authorization {{ users: [\n{with_password(broker + others)}\n] }}"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DevCluster]:
    with least_privilege(tmp_path / "cluster", users("a"), nodes=1) as running:
        running.wait_ready(2 * LIMIT)
        (tmp_path / "password").write_text(PASSWORD)
        (tmp_path / "password").chmod(0o600)
        yield running


def errors(cluster: DevCluster) -> list[str]:
    return [line for line in cluster.log_file("b1").read_text().splitlines() if " ERROR " in line]


async def test_a_stream_that_nobody_would_hear_is_not_created(cluster: DevCluster) -> None:
    async with await client_of(cluster, "admin") as admin:
        with pytest.raises(BadSubject, match=r"broker b1 subscribe to 'b'.*add `--subject b`.*--role broker"):
            await admin.create_stream("b")
        with pytest.raises(BadSubject, match=r"subscribe to 'a\.x\.1'"):
            await admin.create_stream("c", subject="a.x", partitions=2)
        await admin.create_stream("a", partitions=3)
        assert [stream["name"] for stream in await admin.streams()] == ["a"]
        broker = await status_of(admin, "b1")
        assert broker["not_permitted"] == {"subscriptions": 0, "subscribe": [], "publish": []}
    assert not errors(cluster)


async def test_a_stream_that_is_heard_no_more_is_named_and_heard_again_without_a_restart(
    cluster: DevCluster, tmp_path: Path
) -> None:
    plain = await nats.connect(
        cluster.nats_url, user="producer-a", password=PASSWORD, inbox_prefix=b"_INBOX.producer-a"
    )
    async with await client_of(cluster, "admin") as admin:
        await admin.create_stream("a", partitions=2)
        assert b'"stream":"a"' in (await plain.request("a.1", b"one", timeout=LIMIT)).data
        reload(cluster.nats, users("elsewhere"))

        async def named() -> bool:
            partitions = (await admin.describe("a"))["partitions"]
            return [partition["not_heard"] for partition in partitions] == [{"b1": ["a"]}, {"b1": ["a.1"]}]

        await until(named)
        broker = await status_of(admin, "b1")
        assert broker["not_permitted"] == {"subscriptions": 2, "subscribe": ["a", "a.1"], "publish": []}
        said = errors(cluster)
        assert len(said) == 2
        assert "NATS does not let user 'broker-b1' subscribe to 'a'" in "\n".join(said)
        login = (*ADMIN, str(tmp_path / "password"))
        for words in (("stream", "describe", "a"), ("cluster", "status")):

            def is_shown(words: tuple[str, ...] = words) -> bool:
                status, shown, _ = command(cluster, *words, *login)
                return status == 0 and "a.1" in shown and "nats-config --role broker" in shown

            await asyncio.to_thread(wait_until, is_shown, f"the subject in what {words} shows")
        with pytest.raises(nats.errors.NoRespondersError):
            await plain.request("a", b"lost", timeout=LIMIT)

        reload(cluster.nats, users("a"))

        async def heard() -> bool:
            return not any(partition["not_heard"] for partition in (await described(admin, "a"))["partitions"])

        await until(heard)
        for subject in ("a", "a.1"):
            assert b'"stream":"a"' in (await plain.request(subject, b"two", timeout=LIMIT)).data
        broker = await status_of(admin, "b1")
        assert broker["not_permitted"]["subscriptions"] == 0  # type: ignore[index]
        assert len(errors(cluster)) == 2
    await plain.close()


async def test_a_permission_that_the_broker_itself_lacks_is_named(cluster: DevCluster) -> None:
    reload(cluster.nats, users("a", without="tidelog.*.*.append"))
    async with await client_of(cluster, "admin") as admin:
        await admin.create_stream("a")

        async def named() -> bool:
            broker = await status_of(admin, "b1")
            return "tidelog.a.0.append" in broker["not_permitted"]["subscribe"]  # type: ignore[index]

        await until(named)
        (partition,) = (await described(admin, "a"))["partitions"]
        assert partition["not_heard"] == {"b1": ["tidelog.a.0.append"]}
        history = await admin.partition_history("a", 0)
        assert "does not hear 'tidelog.a.0.append'" in str(history)
    assert "subscribe to 'tidelog.a.0.append'" in "\n".join(errors(cluster))


async def test_answers_that_the_broker_may_not_send_are_named(cluster: DevCluster) -> None:
    reload(cluster.nats, users("a", without="_INBOX.>"))
    async with await client_of(cluster, "admin", api_timeout=1) as admin:
        with pytest.raises(TidelogError, match="did not answer"):
            await admin.cluster_status()
    said = await until(lambda: errors(cluster))
    assert "NATS does not let user 'broker-b1' publish to '_INBOX.admin." in str(said)
    reload(cluster.nats, users("a"))
    async with await client_of(cluster, "admin") as admin:
        broker = await status_of(admin, "b1")
        assert broker["not_permitted"]["publish"][0].startswith("_INBOX.admin.")  # type: ignore[index]


def test_a_broker_with_the_login_of_another_ends_and_says_why(cluster: DevCluster) -> None:
    cluster.kill("b1")
    reload(cluster.nats, users("a").replace("tidelog.inbox.b1.>", "tidelog.inbox.b2.>"))
    cluster.start_broker("b1")
    with pytest.raises(TidelogError, match=r"subscribe to 'tidelog\.inbox\.b1\..*--role broker --broker b1"):
        cluster.wait_ready(2 * LIMIT)
