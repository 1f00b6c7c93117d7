"""Answers to bad input: one sentence that names the thing and the remedy, and a broker that goes on.

From the command line: on stderr, with a non-zero exit status. From the client: a typed exception. Messages that a
broker drops shows in a counter of `cluster status` and in a line of its log, and is never stored.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client as NatsClient

import tidelog
from tests.integration.rig.brokers_status import counters_of_all
from tests.integration.rig.command_line import assert_refused, assert_usage_error, start_tidelog, tidelog_command
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.waiting import LIMIT, until, wait_until
from tests.integration.rig.workload import wait_in_sync
from tests.peers import as_broker
from tidelog.client.client import Client
from tidelog.nats.nats_server import EmbeddedNatsServer
from tidelog.server.devcluster import DevCluster
from tidelog.server.peers.peer_link import PeerLink
from wire.batch import BatchBuilder
from wire.partition_messages.append import encode_append
from wire.partition_messages.liftbridge_envelope import MAGIC, encode_publish
from wire.partition_messages.replication import decode_header
from wire.protobuf.tidelog_pb2 import AppendRequest, FetchRequest, Message, ReplicationRequest
from wire.types import LeaderEpoch, Offset

STREAM = "orders"
SMALL = "small"  # takes records of 1,000 bytes at most
MAX_PAYLOAD = 8 << 20  # of the cluster's NATS server, in bytes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with dev_cluster(tmp_path_factory.mktemp("bad-input") / "cluster") as running:
        asyncio.run(_create_streams(running.nats_url))
        pids = {broker: running.pid(broker) for broker in running.broker_ids}
        yield running
        assert {broker: running.pid(broker) for broker in running.broker_ids} == pids, "a broker has died"
        asyncio.run(_still_serving(running.nats_url))


async def _create_streams(url: str) -> None:
    async with await tidelog.connect(url) as client:
        await client.create_stream(STREAM, partitions=2, replication_factor=3)
        await client.create_stream(SMALL, replication_factor=3, config={"max_record_bytes": 1000})
    await wait_in_sync(url, STREAM)
    await wait_in_sync(url, SMALL)


async def _still_serving(url: str) -> None:
    async with await tidelog.connect(url) as client, client.producer(STREAM) as producer:
        for partition in (0, 1):
            receipt = await producer.send(b"after all that", partition=partition)
            consumer = client.consume(STREAM, start={partition: receipt.offset}, partitions=[partition], stop="latest")
            found = [r.value async for r in consumer]
            assert found == [b"after all that"]
        await client.create_stream("after", replication_factor=3)
        await client.delete_stream("after")


@pytest.fixture
async def client(cluster: DevCluster) -> AsyncIterator[Client]:
    async with await tidelog.connect(cluster.nats_url) as connected:
        yield connected


@pytest.fixture
async def bare(cluster: DevCluster) -> AsyncIterator[NatsClient]:
    """A plain NATS client, of the stock package."""
    connection = await nats.connect(cluster.nats_url)
    yield connection
    await connection.close()


@pytest.fixture
async def peers(cluster: DevCluster) -> AsyncIterator[PeerLink]:
    """A broker of this cluster that makes mistakes."""
    async with as_broker(cluster) as link:
        yield link


def run(cluster: DevCluster, *arguments: str, stdin: str = "") -> Any:
    return tidelog_command(*arguments, "--server", cluster.nats_url, stdin=stdin)


# ---- names, subjects, settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["stream", "describe", "nowhere"],
        ["stream", "delete", "nowhere", "--yes"],
        ["publish", "nowhere", "value"],
        ["subscribe", "nowhere", "--stop", "latest"],
    ],
    ids=" ".join,
)
def test_an_unknown_stream_on_the_command_line(cluster: DevCluster, arguments: list[str]) -> None:
    assert_refused(run(cluster, *arguments), "'nowhere' does not exist", "`tidelog stream list`")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a.b"], ["'a.b'", "A-Z, a-z, 0-9", "choose"]),
        (["notify"], ["'notify' is reserved", "choose another"]),
        (["x", "--subject", "a.*"], ["'a.*'", "wildcard", "one plain subject"]),
        (["x", "--subject", "tidelog.>"], ["'tidelog.>'", "wildcard"]),
        (["x", "--subject", "tidelog.x"], ["'tidelog.x'", "own namespace", "choose another"]),
        (["x", "--subject", "_INBOX.x"], ["'_INBOX.x'", "answers", "choose another"]),
        (["x", "--subject", "$SYS.x"], ["'$SYS.x'", "NATS server", "choose another"]),
        (["x", "--subject", f"{STREAM}.1"], [f"{STREAM}.1", f"stream {STREAM}", "choose another"]),
        ([STREAM], [STREAM, "exists", "choose another"]),
        (["x", "--replication-factor", "4"], ["=4", "live brokers, 3", "b1, b2, b3", "ask for 3 at most"]),
        (["x", "--config", "colour=red"], ["'colour'", "known", "min_isr"]),
        (["x", "--config", "segment_bytes=1"], ["segment_bytes='1'", "4096", "give a number"]),
        (["x", "--config", "durability=maybe"], ["'maybe'", "durable", "accepted"]),
        (["x", "--config", "min_isr=4"], ["min_isr=4", "replication factor 3", "lower"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_stream_that_cannot_be_created(cluster: DevCluster, arguments: list[str], words: list[str]) -> None:
    assert_refused(run(cluster, "stream", "create", *arguments), *words)


def test_flags_that_cannot_be(cluster: DevCluster) -> None:
    create = ("stream", "create", "x")
    assert_usage_error(run(cluster, *create, "--config", "colour"), "'colour' is not KEY=VALUE")
    assert_usage_error(
        run(cluster, *create, "--replication-factor", "0"), "--replication-factor", "0 is not in the range"
    )
    assert_usage_error(run(cluster, *create, "--partitions", "100000"), "--partitions", "100000 is not in the range")
    assert_usage_error(run(cluster, "publish", STREAM, "v", "--header", "=x"), "'=x' is no NAME=VALUE")


async def test_refusals_have_types(client: Client) -> None:
    """The same, from the client."""
    for call, expected in (
        (client.describe("nowhere"), tidelog.UnknownStream),
        (client.delete_stream("nowhere"), tidelog.UnknownStream),
        (client.offsets("nowhere", "latest"), tidelog.UnknownStream),
        (client.producer("nowhere").start(), tidelog.UnknownStream),
        (client.producer("nowhere").send(b"v"), tidelog.UnknownStream),
        (client.consume("nowhere").start(), tidelog.UnknownStream),
        (client.create_stream("a b"), tidelog.BadName),
        (client.create_stream("api"), tidelog.BadName),
        (client.create_stream("x", subject=">"), tidelog.BadSubject),
        (client.create_stream("x", subject="tidelog.notify.b1"), tidelog.BadSubject),
        (client.create_stream("x", subject=f"{STREAM}.7"), tidelog.SubjectTaken),
        (client.create_stream(STREAM), tidelog.StreamExists),
        (client.create_stream("x", replication_factor=4), tidelog.BadReplicationFactor),
        (client.create_stream("x", replication_factor=0), tidelog.BadReplicationFactor),
        (client.create_stream("x", config={"colour": "red"}), tidelog.BadConfig),
        (client.create_stream("x", config={"min_isr": 4}), tidelog.BadConfig),
        (client.create_stream("x", partitions=0), tidelog.BadConfig),
    ):
        with pytest.raises(expected):
            await call
    with pytest.raises(tidelog.BadName):
        client.producer("a.b")
    with pytest.raises(tidelog.BadName):
        client.consume("")
    assert "x" not in {summary["name"] for summary in await client.streams()}


# ---- positions -----------------------------------------------------------------------------------------------------


async def test_offsets_out_of_range(cluster: DevCluster, client: Client, bare: NatsClient) -> None:
    async with client.producer(STREAM) as producer:
        end = (await producer.send(b"last", partition=0)).offset + 1

    # Below, a typing error is refused at once; a broker says where its log begins.
    assert_refused(run(cluster, "subscribe", STREAM, "--start", "-1"), "'-1' is no position", "an offset")
    with pytest.raises(tidelog.BadRequest, match="offset -1 is outside 0"):
        await client.consume(STREAM, start=-1).start()
    below = FetchRequest(offset=-5, max_bytes=1000, max_wait_ms=10).SerializeToString()
    answer = await bare.request(f"tidelog.{STREAM}.0.fetch", below, timeout=LIMIT)
    assert answer.headers is not None
    assert answer.headers["Tidelog-Error"] == "OFFSET_BEFORE_LOG"
    assert answer.headers["Tidelog-Log-Start"] == "0"

    # Above, where reading is to end: refused. Without a stop it waits for the log to grow.
    above = ("subscribe", STREAM, "--partition", "0", "--start", str(end + 1), "--stop", "latest")
    assert_refused(
        run(cluster, *above), f"offset {end + 1} of {STREAM}/0", f"end of the committed log, {end}", "start at"
    )
    with pytest.raises(tidelog.OffsetOutOfRange):
        await client.consume(STREAM, start={0: end + 1}, partitions=[0], stop="latest").start()
    assert [r async for r in client.consume(STREAM, start={0: end}, partitions=[0], stop="latest")] == []
    waiting = client.consume(STREAM, start={0: end + 1}, partitions=[0])
    async with waiting as consumer, client.producer(STREAM) as producer:
        await producer.send_many([b"skipped", b"awaited"], partition=0)
        assert (await anext(aiter(consumer))).value == b"awaited"

    assert_refused(run(cluster, "subscribe", STREAM, "--partition", "7"), "no partition 7", "the stream has 0, 1")
    assert_refused(run(cluster, "publish", STREAM, "v", "--partition", "7"), "no partition 7", "it has 0, 1")


# ---- no broker --------------------------------------------------------------------------------------------------


async def test_no_nats_server(free_port: int) -> None:
    url = f"nats://127.0.0.1:{free_port}"
    commands = [["stream", "list"], ["publish", "s", "v"], ["subscribe", "s"], ["cluster", "status"]]
    done = await asyncio.gather(
        *(asyncio.to_thread(tidelog_command, *command, "--server", url) for command in commands),
    )
    for refused in done:
        assert_refused(refused, f"no NATS server answers at {url}", "tidelog up")
    with pytest.raises(tidelog.NoServer, match=url):
        await tidelog.connect(url)
    with pytest.raises(tidelog.NoServer, match=r"ws://127\.0\.0\.1:80 is no nats:// or tls:// URL"):
        await tidelog.connect("ws://127.0.0.1:80")
    with pytest.raises(tidelog.NoServer, match=r"http://127\.0\.0\.1:80 is a web address.* nats://127\.0\.0\.1:4222"):
        await tidelog.connect("http://127.0.0.1:80")


def test_a_broker_waits_for_a_nats_server_that_is_not_there_yet(free_port: int, tmp_path: Path) -> None:
    url = f"nats://127.0.0.1:{free_port}"
    folder, said = tmp_path / "b1", tmp_path / "b1.err"
    with said.open("w") as errors:
        broker = start_tidelog("server", "--id", "b1", "--nats", url, "--data-dir", str(folder), stderr=errors)
    try:
        waits = f"b1 waits for NATS: no NATS server answers at {url}"
        wait_until(lambda: waits in said.read_text(), f"the log line {waits!r}")
        with EmbeddedNatsServer(store_dir=tmp_path / "nats", port=free_port):
            wait_until((folder / "ready").exists, "the broker")
            broker.terminate()
            wait_until(lambda: broker.poll() is not None, "the end of the broker")
            assert broker.returncode == 0, said.read_text()
    finally:
        broker.kill()
        broker.wait()


def test_a_broker_ends_where_nats_refuses_it(free_port: int, tmp_path: Path) -> None:
    server = ("server", "--id", "b1", "--data-dir", str(tmp_path / "b1"), "--nats")
    for url in ("http://127.0.0.1:80", "nats://", "nats://127.0.0.1:99999"):
        assert tidelog_command(*server, url).returncode == 1
    login = "authorization { user: us, password: secret }"
    with EmbeddedNatsServer(store_dir=tmp_path / "nats", port=free_port, config=login) as nats_server:
        refused = tidelog_command(*server, nats_server.url)
        assert refused.returncode == 1
        assert "refuses these credentials" in refused.stderr


async def test_nats_without_brokers(tmp_path: Path) -> None:
    with EmbeddedNatsServer(store_dir=tmp_path) as server:
        command = asyncio.create_task(asyncio.to_thread(tidelog_command, "stream", "list", "--server", server.url))
        async with await tidelog.connect(server.url, api_timeout=0.5) as client:
            for call in (client.streams(), client.producer("s").start(), client.consume("s").start()):
                with pytest.raises(tidelog.NoServer, match=r"no Tidelog broker answers .*tidelog server"):
                    await call
        assert_refused(await command, f"no Tidelog broker answers at {server.url}", "start `tidelog server`")


# ---- ports and folders ---------------------------------------------------------------------------------------------


def test_a_port_that_is_taken(cluster: DevCluster, tmp_path: Path) -> None:
    port = cluster.nats_url.rsplit(":", 1)[1]
    done = tidelog_command("up", "--port", port, "--data-dir", str(tmp_path / "new" / "up"))
    assert_refused(done, f"port {port}", "taken", "choose another port")
    assert not (tmp_path / "new").exists(), "what it made is gone"
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "notes.txt").write_text("mine")
    done = tidelog_command("up", "--port", port, "--data-dir", str(tmp_path / "up"))
    assert_refused(done, f"port {port}", "taken", "choose another port")
    assert (tmp_path / "up" / "notes.txt").read_text() == "mine"
    again = tidelog_command("up", "--port", port, "--nodes", "1", "--data-dir", str(tmp_path / "up"))
    assert_refused(again, f"port {port}")  # and not the number of nodes: the first failure has fixed nothing

    raft = raft_address(cluster, "b1")
    server: tuple[str, ...] = ("server", "--id", "z", "--nats", cluster.nats_url, "--data-dir", str(tmp_path / "z"))
    server += ("--raft-secret-file", str(cluster.data_dir / "raft-secret"))
    done = tidelog_command(*server, "--raft-address", raft, "--namespace", "other")
    assert_refused(done, raft, "cannot be bound", "another address")


def raft_address(cluster: DevCluster, broker: str) -> str:
    document = json.loads((cluster.data_dir / "cluster.json").read_text())
    (address,) = [b["raft"] for b in document["brokers"] if b["id"] == broker]
    return str(address)


def test_a_folder_that_is_in_use(cluster: DevCluster) -> None:
    done = tidelog_command("up", "--port", "0", "--data-dir", str(cluster.data_dir))
    assert_refused(done, str(cluster.data_dir), "in use by process", "another folder")
    config = str(cluster.data_dir / "b1.toml")
    done = tidelog_command("server", "--config", config)
    assert_refused(done, str(cluster.broker_dir("b1")), f"in use by process {cluster.pid('b1')}", "--data-dir")


def test_a_folder_of_another_broker_or_cluster(cluster: DevCluster, tmp_path: Path) -> None:
    """Folders of two clusters change places, while a cluster runs and while it stands still."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for broker in ("b1", "b3"):
        shutil.copytree(cluster.broker_dir(broker), ours / broker)
        (ours / broker / "lock").unlink()
    other = DevCluster(theirs, nodes=3, port=0)
    with other:
        other.wait_ready(2 * LIMIT)
        server = ["server", "--nats", other.nats_url, "--data-dir", str(ours / "b1"), "--id"]
        assert_refused(
            tidelog_command(*server, "b1"), f"{ours / 'b1'} belongs to cluster", "this is cluster", "--data-dir"
        )
        assert_refused(tidelog_command(*server, "b2"), f"{ours / 'b1'} belongs to broker 'b1', not to 'b2'", "--id")
    server = ["server", "--nats", cluster.nats_url, "--data-dir", str(theirs / "b1"), "--id"]
    assert_refused(tidelog_command(*server, "b1"), f"{theirs / 'b1'} belongs to cluster", "--data-dir")

    # There is no controller yet. The foreign broker and one of the others hear of each other's cluster first, and
    # the one of the two that is answered first ends.
    (theirs / "b3").rename(theirs / "b3.own")
    shutil.copytree(ours / "b3", theirs / "b3")
    with other:
        with pytest.raises(tidelog.TidelogError) as ended:
            other.wait_ready(2 * LIMIT)
        sentence = r"(b[123]) ended .*theirs/\1 belongs to cluster .*, but this is"
        assert re.search(sentence, str(ended.value)), ended.value
        assert not other.is_ready("b3"), "a broker on a folder of another cluster never serves"
        for broker in other.broker_ids:  # a second one may have been answered, and be about to end
            if other.pid(broker) is not None:
                other.kill(broker)
        shutil.rmtree(theirs / "b3")
        (theirs / "b3.own").rename(theirs / "b3")
        for broker in other.broker_ids:
            other.start_broker(broker)
        other.wait_ready(2 * LIMIT)


def test_a_folder_that_cannot_be_made() -> None:
    for arguments in (("up", "--port", "0", "--data-dir"), ("server", "--id", "b1", "--data-dir")):
        assert_refused(tidelog_command(*arguments, "/proc/tidelog"), "/proc/tidelog")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("x = = 3", ["not TOML"]),
        ("colour = 1", ["'colour'", "known"]),
        ("raft_peers = 3", ["raft_peers=3", "HOST:PORT"]),
        ("[replica]\nreplica_max_lag_time = 'long'", ["[replica] replica_max_lag_time", "'long'", "a number"]),
    ],
)
def test_a_configuration_file_that_cannot_be(tmp_path: Path, content: str, words: list[str]) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(f'id = "b1"\ndata_dir = "b1"\n{content}\n')
    assert_refused(tidelog_command("server", "--config", str(file)), *words)


def test_flags_of_a_server_that_cannot_be(tmp_path: Path) -> None:
    data = ("--data-dir", str(tmp_path / "b1"))
    assert_refused(tidelog_command("server", *data), "no id", "--id")
    assert_refused(tidelog_command("server", "--id", "b1", *data, "--raft-peer", "b2"), "'b2'", "ID=HOST:PORT")
    assert_refused(tidelog_command("server", "--config", str(tmp_path / "no.toml")), "no.toml", "cannot be read")
    assert_refused(tidelog_command("up", "--nodes", "17", *data), "17 nodes", "1 to 16")
    assert_usage_error(tidelog_command("up", "--port", "70000", *data), "--port", "70000")


# ---- dropped messages ---------------------------------------------------------------------------------------------


async def counters(client: Client) -> Counter[str]:
    """Summed over the brokers."""
    return sum(map(Counter, (await counters_of_all(client)).values()), Counter())


async def wait_counted(client: Client, before: Counter[str], name: str, by: int) -> None:
    async def counted() -> bool:
        now = (await counters(client))[name] - before[name]
        assert now <= by, f"{name} went up by {now}, not by {by}"
        return now == by

    await until(counted, f"{name} higher by {by}")


def log_lines(cluster: DevCluster, *words: str) -> list[str]:
    lines = [line for b in cluster.broker_ids for line in cluster.log_file(b).read_text(errors="replace").splitlines()]
    return [line for line in lines if all(word in line for word in words)]


async def ends(client: Client, stream: str) -> dict[int, int]:
    return await client.offsets(stream, "latest")


async def test_records_above_the_limit(cluster: DevCluster, client: Client, bare: NatsClient) -> None:
    before, stored = await counters(client), await ends(client, SMALL)
    too_large = b"x" * 1001
    async with client.producer(SMALL) as producer:
        for send in (producer.send(too_large), producer.send_many([b"small", too_large])):
            with pytest.raises(tidelog.RecordTooLarge, match=r"1001 bytes .* 1000, the stream's max_record_bytes"):
                await send
        with pytest.raises(tidelog.RecordTooLarge):
            producer.send_nowait(b"x" * 600, key=b"k" * 401)
    async with client.producer(STREAM) as producer:
        with pytest.raises(tidelog.RecordTooLarge, match="1048576"):
            await producer.send(b"x" * MAX_PAYLOAD)
    done = run(cluster, "publish", SMALL, "x" * 1001)
    assert_refused(done, "1001 bytes", "1000, the stream's max_record_bytes", "send smaller records or raise")
    now = await counters(client)
    assert now["dropped_too_large"] == before["dropped_too_large"], "the client knows the limit, nothing was sent"

    answer = await bare.request(SMALL, too_large, timeout=LIMIT)
    error = json.loads(answer.data)["tidelog"]
    assert error["code"] == "RECORD_TOO_LARGE"
    assert "1001 bytes" in error["message"]
    assert "raise max_record_bytes" in error["message"]
    assert answer.headers is not None
    assert answer.headers["Tidelog-Error"] == "RECORD_TOO_LARGE"
    await bare.publish(SMALL, too_large)
    await bare.publish(SMALL, encode_publish(Message(value=too_large)))
    await bare.flush()
    await wait_counted(client, before, "dropped_too_large", by=3)
    assert log_lines(cluster, f"{SMALL}/0", "dropped", "1001 bytes", "WARNING")
    assert await ends(client, SMALL) == {0: stored[0]}, "nothing of it was stored"


async def test_a_message_above_max_payload(bare: NatsClient, cluster: DevCluster, client: Client) -> None:
    """`max_record_bytes` may be above it; the limit of the NATS server applies then."""
    await client.create_stream("vast", replication_factor=3, config={"max_record_bytes": 4 * MAX_PAYLOAD})
    async with client.producer("vast") as producer:
        with pytest.raises(tidelog.RecordTooLarge, match="what the NATS server takes in one message"):
            await producer.send(b"x" * MAX_PAYLOAD)
        assert (await producer.send(b"x" * (MAX_PAYLOAD - 4096))).offset == 0
    with pytest.raises(nats.errors.MaxPayloadError):
        await bare.publish("vast", b"x" * (MAX_PAYLOAD + 1))
    # One that NATS takes and that fits into no message to a follower.
    answer = await bare.request("vast", b"x" * MAX_PAYLOAD, timeout=LIMIT)
    error = json.loads(answer.data)["tidelog"]
    assert error["code"] == "RECORD_TOO_LARGE"
    assert error["message"].endswith("raise max_payload of the NATS server"), "max_record_bytes is large enough"
    assert await ends(client, "vast") == {0: 1}
    await client.delete_stream("vast")


async def test_corrupt_envelopes(cluster: DevCluster, client: Client, bare: NatsClient) -> None:
    before, stored = await counters(client), await ends(client, STREAM)
    whole = encode_publish(Message(value=b"value", key=b"key"))
    corrupt = {
        "a flipped bit": whole[:-1] + bytes([whole[-1] ^ 1]),
        "cut off": whole[:-3],
        "the magic alone": MAGIC,
        "an unknown version": whole[:4] + b"\x09" + whole[5:],
        "no protobuf": encode_publish(Message(), crc=False) + b"\xff\xff",
    }
    for payload in corrupt.values():
        await bare.publish(STREAM, payload)
    answer = await bare.request(STREAM, corrupt["a flipped bit"], timeout=LIMIT)
    error = json.loads(answer.data)["tidelog"]
    assert error["code"] == "CORRUPT_ENVELOPE"
    assert "CRC" in error["message"]
    assert "not stored, send it again" in error["message"]
    await wait_counted(client, before, "dropped_corrupt_envelope", by=len(corrupt) + 1)
    assert (
        len(log_lines(cluster, f"{STREAM}/0", "dropped 1 published records", "the envelope was not stored", "WARNING"))
        >= len(corrupt) + 1
    )
    assert await ends(client, STREAM) == stored, "never stored as if it were a plain payload"

    answer = await bare.request(STREAM, b"plain", timeout=LIMIT)
    assert json.loads(answer.data)["offset"] == stored[0]
    expected = f"corrupt_envelope {before['dropped_corrupt_envelope'] + len(corrupt) + 1}"
    wait_until(lambda: expected in run(cluster, "cluster", "status").stdout, "the count in the status of the cluster")


async def test_corrupt_batches(cluster: DevCluster, client: Client, bare: NatsClient) -> None:
    before, stored = await counters(client), await ends(client, STREAM)
    builder = BatchBuilder()
    builder.add_record(b"value", b"key")
    batch = b"".join(map(bytes, builder.build(1).stamp(Offset(0), LeaderEpoch(1))[0]))
    request = AppendRequest(acks=AppendRequest.ALL)
    corrupt = [
        b"",
        b"\xff" * 50,
        *(
            b"".join(map(bytes, encode_append(request, [part])))
            for part in (batch[:50], batch[:-1] + b"\x55", b"\x55" + batch[1:], batch + batch, b"")
        ),
    ]
    for payload in corrupt:
        answer = await bare.request(f"tidelog.{STREAM}.0.append", payload, timeout=LIMIT)
        assert answer.headers is not None
        assert answer.headers["Tidelog-Error"] == "CORRUPT_BATCH", payload
        assert "send it again" in answer.headers["Tidelog-Message"]
    await wait_counted(client, before, "dropped_corrupt_batch", by=len(corrupt))
    assert len(log_lines(cluster, f"{STREAM}/0", "refused a batch", "does not decode", "WARNING")) >= len(corrupt)
    assert await ends(client, STREAM) == stored


GARBAGE = (b"\0", b"\xff" * 50, b"{}", b"[1", bytes(range(256)))
"""None of these is a protobuf message."""


@pytest.mark.parametrize("what", ["replicate", "offset", "fetch"])
async def test_garbage_on_the_subjects_of_a_partition(
    cluster: DevCluster, client: Client, bare: NatsClient, peers: PeerLink, what: str
) -> None:
    before, ask = await counters(client), bare.request if what == "fetch" else peers.request
    for payload in GARBAGE:
        answer = await ask(f"tidelog.{STREAM}.0.{what}", payload, timeout=LIMIT)
        assert answer.headers is not None
        assert answer.headers["Tidelog-Error"] == "BAD_REQUEST"
        peers.publish(f"tidelog.{STREAM}.0.{what}", [payload])  # without a reply subject
    counted = len(GARBAGE) * (1 if what == "fetch" else 2)  # a fetch without a reply subject is not counted
    await wait_counted(client, before, "bad_requests", by=counted)
    assert log_lines(cluster, f"{STREAM}/0", "dropped a bad request", "WARNING")


async def test_a_stranger_is_no_replica(client: Client, peers: PeerLink) -> None:
    """A request that decodes and cannot be: the answer is an error with the 16 bytes, and the ISR stays."""
    isr = [p["isr"] for p in (await client.describe(STREAM))["partitions"]]
    layout = await client.metadata(STREAM)
    strange = ReplicationRequest(
        replicaID="stranger",
        leaderEpoch=layout.partitions[0].leader_epoch,
        stream_incarnation=layout.incarnation,
        partition_incarnation=layout.partitions[0].incarnation,
        offset=1 << 40,
    )
    answer = await peers.request(f"tidelog.{STREAM}.0.replicate", strange.SerializeToString(), timeout=LIMIT)
    assert answer.headers is not None
    assert answer.headers["Tidelog-Error"] == "STALE_EPOCH"
    assert decode_header(answer.data)[0] == layout.partitions[0].leader_epoch
    assert [p["isr"] for p in (await client.describe(STREAM))["partitions"]] == isr


async def test_garbage_on_the_subjects_of_brokers(cluster: DevCluster, client: Client, peers: PeerLink) -> None:
    """From a broker: that of others is in test_forged_messages.py."""
    before = await counters(client)
    for payload in GARBAGE:
        peers.publish("tidelog.notify.b1", [payload])
        for what in ("probe.b2", "controller", "drain.b2"):
            peers.publish(f"tidelog.metadata.{what}", [payload], reply=peers.new_inbox())
    for payload in (b"", b"[]", b'{"stream": 3}'):
        answer = await peers.request("tidelog.metadata.status.b3", payload, timeout=LIMIT)
        assert json.loads(answer.data)["error"]["code"] == "BAD_REQUEST"
    await wait_counted(client, before, "bad_requests", by=len(GARBAGE))
    await wait_counted(client, before, "dropped_metadata_messages", by=3 * len(GARBAGE) + 3)
    assert log_lines(cluster, "dropped a notification", "WARNING")
    for what in ("probe.b2", "controller", "drain.b2", "status.b3"):
        assert log_lines(cluster, "dropped a message", f"tidelog.metadata.{what}", "WARNING")


async def test_garbage_on_the_api(cluster: DevCluster, client: Client, bare: NatsClient) -> None:
    before = await counters(client)
    calls = (
        f"stream.create.{STREAM}",
        f"stream.delete.{STREAM}",
        f"stream.describe.{STREAM}",
        f"metadata.{STREAM}",
        f"partition.move_leader.{STREAM}",
        f"partition.unclean_elect.{STREAM}",
        "cluster.status",
    )
    for call in calls:
        for payload in (b"\xff\xfe", b"[]", b"null", b"{"):
            answer = await bare.request(f"tidelog.api.{call}", payload, timeout=LIMIT)
            assert json.loads(answer.data)["error"]["code"] == "BAD_REQUEST"
            assert answer.headers is not None
            assert answer.headers["Tidelog-Error"] == "BAD_REQUEST"
    answer = await bare.request("tidelog.api.stream.create.x", b'{"name": 3}', timeout=LIMIT)
    assert "name is 3, not a text" in json.loads(answer.data)["error"]["message"]
    await wait_counted(client, before, "refused_api_requests", by=4 * len(calls) + 1)
    assert log_lines(cluster, "refused a request on tidelog.api.stream.create.x", "name is 3")


async def test_reply_subjects_that_are_none(cluster: DevCluster, client: Client) -> None:
    """NATS passes on any reply subject; an answer to a bad one goes nowhere, and nothing breaks."""
    host, port = cluster.nats_url.removeprefix("nats://").split(":")
    stored = await ends(client, STREAM)
    subjects = (STREAM, f"tidelog.{STREAM}.0.fetch", f"tidelog.{STREAM}.0.append", "tidelog.metadata.probe.b1")
    replies = (b"\xff\xfe", b"a\x01b", b"a..b", b">", b"x" * 3000)
    reader, writer = await asyncio.open_connection(host, int(port))
    await reader.readline()
    writer.write(b'CONNECT {"verbose": false}\r\n')
    for subject in (*subjects, "tidelog.api.stream.list"):
        for reply in replies:
            writer.write(b"PUB %b %b 2\r\n{}\r\n" % (subject.encode(), reply))
    writer.write(b"PING\r\n")
    while await reader.readline() != b"PONG\r\n":
        pass
    writer.close()

    async def all_stored() -> bool:
        return (await ends(client, STREAM))[0] == stored[0] + len(replies)

    await until(all_stored, "plain records, wherever their acknowledgements go,")
