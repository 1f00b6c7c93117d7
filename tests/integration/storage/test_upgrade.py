"""A data folder that an earlier version has written, opened by this one (tests/testdata/upgrade/README.md)."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest

import tidelog
from tests.integration.rig.command_line import command
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.waiting import LIMIT, until
from tidelog.client.base.exceptions import BadName
from tidelog.server.devcluster import DevCluster

pytestmark = pytest.mark.timeout(900)

FOLDERS = Path(__file__).parents[2] / "testdata" / "upgrade"
STREAMS = {"flights": "flights", "__x": "__x", "__audit": "old.audit"}
"""Of the folder, with their subjects; each has 50 records of a producer and 5 of plain publishes."""


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    directory = tmp_path_factory.mktemp("upgraded")
    with tarfile.open(FOLDERS / "before_tags.tar.gz") as packed:
        packed.extractall(directory, filter="data")
    with dev_cluster(directory, nodes=1) as running:
        yield running


async def stored(client: tidelog.Client, stream: str) -> set[bytes]:
    return {record.value or b"" async for record in client.consume(stream, stop="latest")}


async def test_streams_of_users_keep_their_records_and_take_new_ones_whatever_their_names(upgraded: DevCluster) -> None:
    async with await tidelog.connect(upgraded.nats_url, api_timeout=LIMIT) as client:
        assert {each["name"]: each["subject"] for each in await client.streams()} == STREAMS
        status = await client.cluster_status()
        assert (status["streams"], status["internal_streams"]) == (3, 0)
        plain = await nats.connect(upgraded.nats_url)
        try:
            for stream, subject in STREAMS.items():
                expected = {f"{stream} {n}".encode() for n in range(50)}
                expected |= {f"{stream} plain {n}".encode() for n in range(5)}
                assert await stored(client, stream) == expected
                async with client.producer(stream) as producer:
                    await producer.send(b"produced", key=b"k")
                await plain.request(subject, b"published", timeout=LIMIT)
                assert await stored(client, stream) == expected | {b"produced", b"published"}
        finally:
            await plain.close()


async def test_they_are_altered_and_deleted_and_no_new_one_has_such_a_name(upgraded: DevCluster) -> None:
    async with await tidelog.connect(upgraded.nats_url, api_timeout=LIMIT) as client:
        await client.alter_stream("__x", config={"retention_max_age_ms": 1 << 40})
        await client.delete_stream("__x")
        with pytest.raises(BadName, match="begins with '__'"):
            await client.create_stream("__x")


async def test_acts_are_in_the_log_only_while_a_users_stream_has_the_name_of_the_trail(upgraded: DevCluster) -> None:
    (broker,) = upgraded.broker_ids
    async with await tidelog.connect(upgraded.nats_url, api_timeout=LIMIT) as client:
        await client.alter_stream("__audit", config={"retention_max_age_ms": 1 << 40})
        await client.alter_stream("flights", config={"retention_max_age_ms": 1 << 40})
        await until(lambda: "`tidelog stream delete __audit`" in upgraded.log_file(broker).read_text(), "a warning")
        log = upgraded.log_file(broker).read_text()
        assert log.count("administrative acts are recorded in the log only") == 1
        assert log.count("audit answered") >= 2
        status, out, err = command(upgraded, "audit", "--json")
        assert (status, out) == (1, "")
        assert "on subject 'old.audit', is a user's" in err

        await client.delete_stream("__audit")

        def acts() -> list[tuple[str, str]]:
            status, out, _ = command(upgraded, "audit", "--json")
            found = [json.loads(line) for line in out.splitlines()] if status == 0 else []
            return [(each["operation"], each["stream"]) for each in found if each["outcome"] == "answered"]

        expected = [("stream.alter", "__audit"), ("stream.alter", "flights"), ("stream.delete", "__audit")]
        await until(lambda: acts()[-3:] == expected, "the acts that have waited")
        assert (await client.describe("__audit"))["subject"] == "tidelog.__audit"
