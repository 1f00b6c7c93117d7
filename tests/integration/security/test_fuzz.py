"""A few seconds of `scripts/fuzz`: hostile messages do no harm, and what is stored can be read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest

import tidelog
from scripts.faults.fuzz import arguments, fuzz
from scripts.faults.fuzz_stored import StoredFuzz
from tests.integration.liftbridge.liftbridge_stub import cluster_with_port
from tests.integration.rig.brokers_status import counters_of_all
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.waiting import LIMIT, until
from tidelog.client.client import Client
from tidelog.server.devcluster import DevCluster


@pytest.fixture(scope="module")
def with_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with cluster_with_port(tmp_path_factory.mktemp("stored") / "cluster") as running:
        yield running


async def test_some_thousands_of_hostile_messages(tmp_path: Path) -> None:
    with dev_cluster(tmp_path / "cluster") as cluster:
        assert await fuzz(cluster, arguments(["--seconds", "8", "--messages", "20000", "--seed", "1"]))


async def test_what_is_stored_of_some_hundred_appends_is_read_in_every_form(with_port: DevCluster) -> None:
    assert await StoredFuzz(with_port, 1).run(300)


async def test_header_blocks_that_no_reader_could_read(with_port: DevCluster) -> None:
    """NATS forwards any bytes as headers. The neighbours of a refused message are stored."""
    blocks = json.loads((Path(__file__).parents[2] / "testdata/headers/blocks.json").read_text())
    good = b"NATS/1.0\r\nGood: 1\r\n\r\n"
    refused = [text.encode("latin-1") for text in blocks["refused"].values()]
    kept = [text.encode("latin-1") for text in blocks["stored"].values() if text]
    bare = await nats.connect(with_port.nats_url)

    async def publish(block: bytes, reply: bytes = b"") -> None:
        await bare._send_command(b"HPUB blocks %b %d %d\r\n%bv\r\n" % (reply, len(block), len(block) + 1, block))

    try:
        async with await tidelog.connect(with_port.nats_url) as client:
            await client.create_stream("blocks", replication_factor=3)
            before = await _bad_headers(client)
            for block in [*refused, *kept]:
                for each in (good, block, good):
                    await publish(each)
            await bare.flush()

            async def counted() -> bool:
                return await _bad_headers(client) - before == len(refused)

            await until(counted, "a count of each refused block")
            inbox = await bare.subscribe("told")
            await publish(refused[0], b"told")
            await publish(good, b"told")
            await bare.flush()
            error = json.loads((await inbox.next_msg(timeout=LIMIT)).data)["tidelog"]
            assert error["code"] == "BAD_REQUEST"
            assert "not with NATS/1.0, and nobody could read it; send headers as NATS clients do" in error["message"]
            there = json.loads((await inbox.next_msg(timeout=LIMIT)).data)
            expected = 2 * (len(refused) + len(kept)) + len(kept) + 1
            assert there["offset"] == expected - 1
            found = [record.headers async for record in client.consume("blocks", stop="latest")]
            assert len(found) == expected
            assert sum(headers == {"Good": b"1"} for headers in found) == expected - len(kept)
    finally:
        await bare.close()


async def _bad_headers(client: Client) -> int:
    total: Counter[str] = Counter()
    for counted in (await counters_of_all(client)).values():
        total.update(counted)
    return total["dropped_bad_headers"]
