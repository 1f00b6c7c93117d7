"""The audit trail on real processes: who is named in it, where its records are kept, and that nobody else writes it."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

import tidelog
from tests.integration.rig.brokers_status import described
from tests.integration.rig.command_line import command
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.least_privilege import PASSWORD, client_of, least_privilege, printed, with_password
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.security.test_permissions import USERS
from tidelog.client.base.exceptions import BadName, BadRequest
from tidelog.server.devcluster import DevCluster
from wire.batch import BatchBuilder
from wire.internal_streams import AUDIT
from wire.partition_messages.append import encode_append
from wire.protobuf.tidelog_pb2 import AppendRequest
from wire.subjects import Subjects
from wire.types import LeaderEpoch, Offset, StreamName

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with dev_cluster(Path(tmp_path_factory.mktemp("audit"))) as running:
        yield running


def records(cluster: DevCluster, *arguments: str) -> list[dict[str, Any]]:
    status, out, err = command(cluster, "audit", "--json", *arguments)
    assert (status, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


def acts(cluster: DevCluster, stream: str) -> list[tuple[str, str]]:
    return [(record["operation"], record["outcome"]) for record in records(cluster, "--stream", stream)]


async def test_acts_are_read_back_in_order_with_their_clients_and_outcomes(own: DevCluster) -> None:
    async with await tidelog.connect(own.nats_url, api_timeout=LIMIT) as client:
        await client.create_stream("one")
        await client.alter_stream("one", config={"compact": True})
        with pytest.raises(tidelog.TidelogError):
            await client.create_stream("one")
        await client.streams()
        await client.delete_stream("one")
    expected = [
        ("stream.create", "answered"),
        ("stream.alter", "answered"),
        ("stream.create", "refused"),
        ("stream.delete", "answered"),
    ]
    await until(lambda: acts(own, "one") == expected, "four acts in the trail")
    found = records(own, "--stream", "one")
    assert found[1]["request"]["config"] == {"compact": "true"}
    assert found[2]["code"] == "STREAM_EXISTS"
    assert all(re.fullmatch(r"[^@]+@\S+ .+", record["claimed"]) for record in found)
    assert {record["nats"] for record in found} == {None}
    assert len({record["connection"] for record in found}) == 1
    lines = "".join(own.log_file(broker).read_text() for broker in own.broker_ids)
    assert all(json.dumps(record) in lines for record in found), "the log has the same records"
    status, out, _ = command(own, "audit", "--stream", "one")
    assert status == 0
    assert all(word in out for word in ("stream.alter", "refused: STREAM_EXISTS", "?"))
    assert records(own, "--since", "2100-01-01") == []


async def test_the_internal_stream_is_hidden_and_nobody_but_brokers_changes_or_writes_it(own: DevCluster) -> None:
    subjects = Subjects()
    async with await tidelog.connect(own.nats_url, api_timeout=LIMIT) as client:
        await client.create_stream("two")
        await until(lambda: acts(own, "two"), "the first act")
        status = await client.cluster_status()
        assert AUDIT.name not in {stream["name"] for stream in await client.streams()}
        assert AUDIT.name in {stream["name"] for stream in await client.streams(internal=True)}
        assert status["streams"] == len(await client.streams())
        assert (status["internal_streams"], status["internal_partitions"]) == (1, 1)
        assert ", and 1 internal: 0 offline" in " ".join(command(own, "cluster", "status")[1].split())
        with pytest.raises(BadRequest, match="Tidelog's own"):
            await client.delete_stream(AUDIT.name)
        with pytest.raises(BadRequest, match="Tidelog's own"):
            await client.alter_stream(AUDIT.name, config={"retention_max_age_ms": 1})
        with pytest.raises(BadRequest, match="from brokers only"):
            await client.producer(AUDIT.name).send(b"forged")
        with pytest.raises(BadName, match="begins with '__'"):
            await client.create_stream("__mine")
        with pytest.raises(BadName, match="as the options of commands do"):
            await client.create_stream("-rf", subject="x")
        found = await client.describe(AUDIT.name)
        assert (len(found["partitions"][0]["replicas"]), found["config"]["producer_byte_rate"]) == (3, "0")
        plain = await nats.connect(own.nats_url)
        try:
            for subject in (found["subject"], subjects.append(StreamName(AUDIT.name), 0)):
                with pytest.raises(nats.errors.NoRespondersError):
                    await plain.request(subject, b"forged", timeout=LIMIT)
        finally:
            await plain.close()
    expected = [("stream.delete", "refused"), ("stream.alter", "refused")]
    await until(lambda: acts(own, AUDIT.name) == expected, "what was tried")


async def test_a_strangers_record_is_not_taken(own: DevCluster) -> None:
    """What a broker would send, but for the tag that proves it."""
    builder = BatchBuilder()
    builder.add_record(b'{"id": "0-0", "operation": "forged"}')
    async with await tidelog.connect(own.nats_url, api_timeout=LIMIT) as client:
        await client.create_stream("five")
        await until(lambda: acts(own, "five"), "the first act")
        (before,) = (await described(client, AUDIT.name))["partitions"]
        (known,) = (await client.metadata(AUDIT.name)).partitions.values()
        request = AppendRequest(leader_epoch=known.leader_epoch, acks=AppendRequest.ALL)
        parts, _ = builder.build(1).stamp(Offset(0), LeaderEpoch(0))
        message = b"".join(bytes(part) for part in encode_append(request, parts))
        subject = Subjects().write(StreamName(AUDIT.name), 0)
        plain = await nats.connect(own.nats_url)
        try:
            for length in (0, 1, len(message)):
                await plain.publish(subject, message[:length])
                await plain.publish(subject, message[:length], reply="tidelog.inbox.b1.x.1")
            with pytest.raises(nats.errors.TimeoutError):
                await plain.request(subject, message, timeout=0.3)
        finally:
            await plain.close()

        async def refused() -> bool:
            told = [broker.get("refused_messages") or {} for broker in (await client.cluster_status())["brokers"]]
            return sum(sum(kinds.get("write", {}).values()) for kinds in told) >= 6

        await until(refused, "six counted messages")
        (after,) = (await described(client, AUDIT.name))["partitions"]
        assert after["log_end_offset"] == before["log_end_offset"]


async def test_the_trail_goes_on_with_another_controller_and_after_a_restart_of_all(own: DevCluster) -> None:
    async with await tidelog.connect(own.nats_url, api_timeout=LIMIT) as client:
        await client.create_stream("three")
        await until(lambda: acts(own, "three"), "the first act")
        killed = str((await client.cluster_status())["controller"])
        own.kill(killed)
        await client.delete_stream("three")
        await until(lambda: len(acts(own, "three")) >= 2, "the act of the next controller")
        own.start_broker(killed)
        own.wait_ready(2 * LIMIT)
    found = [record for record in records(own, "--stream", "three") if record["outcome"] == "answered"]
    assert [record["operation"] for record in found] == ["stream.create", "stream.delete"]
    assert found[0]["controller"] == killed != found[1]["controller"]
    assert len({record["id"] for record in records(own)}) == len(records(own))


async def test_a_controller_that_is_stopped_leaves_no_act_out(own: DevCluster) -> None:
    """Of many at a time: those that it has carried out before its end, and while it ends."""
    async with await tidelog.connect(own.nats_url, api_timeout=2 * LIMIT) as client:
        await client.create_stream("six")
        is_stopped = asyncio.Event()
        altered = 0

        async def alter(first: int) -> None:
            nonlocal altered
            age = first
            while not is_stopped.is_set():
                await client.alter_stream("six", config={"retention_max_age_ms": age})
                age += 1
                altered += 1

        altering = [asyncio.create_task(alter(1_000_000 * number)) for number in range(1, 11)]
        await until(lambda: altered > 20, "acts, of which more are on their way")
        stopped = str((await client.cluster_status())["controller"])
        await asyncio.to_thread(own.kill, stopped, signal.SIGTERM)
        is_stopped.set()
        await asyncio.gather(*altering)
        own.start_broker(stopped)
        own.wait_ready(2 * LIMIT)
    log = "".join(own.log_file(broker).read_text() for broker in own.broker_ids)
    told = {json.loads(line)["id"] for line in re.findall(r"audit (?:answered|unknown) (\{.*)", log)}
    assert len(told) > 20
    await until(lambda: told <= {record["id"] for record in records(own)}, "all acts in the trail")


async def test_the_trail_is_followed(own: DevCluster) -> None:
    async with await tidelog.connect(own.nats_url, api_timeout=LIMIT) as client:
        await client.create_stream("four")
        seen: asyncio.Queue[str] = asyncio.Queue()

        async def follow() -> None:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tidelog", "audit", "--follow", "--json", "--stream", "four",
                "--server", own.nats_url, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            assert process.stdout is not None
            try:
                async for line in process.stdout:
                    seen.put_nowait(json.loads(line)["operation"])
            finally:
                process.kill()
                await process.wait()

        following = asyncio.create_task(follow())
        try:
            async with asyncio.timeout(LIMIT):
                assert await seen.get() == "stream.create"
                await client.delete_stream("four")
                assert await seen.get() == "stream.delete"
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def test_before_the_first_act_there_is_no_trail(tmp_path: Path) -> None:
    with dev_cluster(tmp_path, nodes=1) as fresh:
        status, out, err = command(fresh, "audit", "--json")
        assert (status, out) == (0, "")
        assert "no act is recorded yet" in err


async def test_the_user_of_another_account_is_named_as_nats_says_and_cannot_name_another(tmp_path: Path) -> None:
    broker = printed(*USERS["broker-b1"], "--across-accounts")
    roles = ("--role", "admin", "--user", "ops", "--account", "OPS")
    client, exports, imports = re.split(r"^# in account \w+\n", printed(*roles), flags=re.MULTILINE)
    admin = printed("--role", "admin")
    config = with_password(
        f"accounts {{\nTIDELOG {{ users: [\n{broker}\n{admin}\n]\n{exports}}}\n"
        f"OPS {{ users: [\n{client}\n]\n{imports}}}\n}}"
    )
    forged = {"Nats-Request-Info": json.dumps({"acc": "OPS", "user": "root"})}
    with least_privilege(tmp_path / "cluster", config, nodes=1) as running:
        running.wait_ready(2 * LIMIT)
        plain = await nats.connect(running.nats_url, user="ops", password=PASSWORD, inbox_prefix=b"_INBOX.ops")
        body = json.dumps({"name": "orders"}).encode()

        async def create() -> bool:
            try:
                await plain.request("tidelog.api.stream.create.orders", body, timeout=LIMIT, headers=forged)
            except nats.errors.NoRespondersError:
                return False  # the controller begins to listen some time after its broker serves
            return True

        await until(create, "an answer of the controller")
        await plain.close()
        async with await client_of(running, "ops") as operator:
            await operator.delete_stream("orders")

            async def both() -> list[dict[str, Any]] | None:
                found = [
                    json.loads(record.value or b"") async for record in operator.consume(AUDIT.name, stop="latest")
                ]
                return found if len(found) == 2 else None

            found = await until(both, "both acts")
    assert [record["operation"] for record in found] == ["stream.create", "stream.delete"]
    assert {(record["nats"]["account"], record["nats"]["user"]) for record in found} == {("OPS", "ops")}
    assert found[0]["nats"]["host"] == "127.0.0.1"
    assert found[0]["claimed"] is None
