"""The cluster of `scripts/demo --secure`, without the demo's records: each role does its work, what must be refused is
refused, and the attempts see a cluster in which one of the protections is missing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import nats
import pytest

from scripts.demos import demo_security
from scripts.demos.demo_security import Access, NotRefused, attempts, secure
from spark_connector.reads.client_log import ClientLog
from spark_connector.shared.connections import Address, Cluster, kept
from spark_connector.shared.retrying import Patience
from tests.integration.rig.dev_cluster import assert_logs_without, dev_cluster
from tests.integration.rig.waiting import LIMIT
from tidelog.server.devcluster import DevCluster
from wire.types import StreamName

STREAM = "flights"
BROKERS = ["b1", "b2", "b3"]
VALUE = b'{"dep_delay": 11}'
NEEDLE = b'"dep_delay"'
Attempt = Callable[[DevCluster, Access], Awaitable[object]]


async def publish(cluster: DevCluster, access: Access, *, encryption: bool = True) -> None:
    async with await access.connect(cluster.nats_url, "admin") as admin:
        await admin.alter_cluster(config={"encryption": str(encryption).lower()})
        await admin.create_stream(STREAM, subject=STREAM, partitions=2, replication_factor=3)
    async with await access.connect(cluster.nats_url, "producer") as client, client.producer(STREAM) as producer:
        for number in range(100):
            producer.send_nowait(VALUE, key=b"%d" % number)
        await producer.flush()


async def test_each_role_does_its_work_and_what_must_be_refused_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    access = secure(tmp_path, STREAM, BROKERS, partitions=2)
    with dev_cluster(tmp_path, **access.cluster) as cluster:
        await publish(cluster, access)
        bare = await nats.connect(cluster.nats_url, **access.of_bare_nats("producer"))
        assert b'"stream":"flights"' in (await bare.request(f"{STREAM}.1", VALUE, timeout=LIMIT)).data
        await bare.close()
        async with await access.connect(cluster.nats_url, "consumer") as consumer:
            values = [record.value async for record in consumer.consume(STREAM, start="earliest", stop="latest")]
        assert values == [VALUE] * 101
        options = access.of_spark("spark")
        login = tuple((name.removeprefix("nats."), text) for name, text in options.items() if name.startswith("nats."))
        log = ClientLog(Cluster(Address((cluster.nats_url,), "tidelog", options["inboxPrefix"], login), Patience(60)))
        try:
            assert log.extents((StreamName(STREAM),))[StreamName(STREAM)].partitions.keys() == {0, 1}
        finally:
            kept.close()

        caplog.clear()
        await demo_security._without_login(cluster, access)
        assert caplog.text == ""
        refused = await attempts(cluster, access, STREAM, NEEDLE)
        assert len(refused) == 11
        assert {refusal.answer for refusal in refused if "consumer" in refusal.attempt} == {"Permissions Violation"}
        async with await access.connect(cluster.nats_url, "admin") as admin:
            for stream in (STREAM, "__audit"):
                assert (await admin.describe(stream))["config"]["encryption"] == "true"
        assert_logs_without(cluster, "is open to other users", "ermissions")


@pytest.fixture(scope="module")
def weak(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DevCluster, Access]]:
    """The same cluster without any of the protections."""
    folder = tmp_path_factory.mktemp("weak")
    access = secure(folder, STREAM, BROKERS, partitions=2)
    rules: str = access.cluster["nats_config"].replace('"verify": true', '"verify": false')
    rules = re.sub(r"^  permissions: {.*?^  }$", "", rules, flags=re.MULTILINE | re.DOTALL)
    admin = re.findall(r"nkey: (\S+)", rules)[0]
    options = {
        **access.cluster,
        "nats_config": f"{rules}\nallow_non_tls: true\nno_auth_user: {admin}",
        "settings_of": {broker: {"login": of["login"]} for broker, of in access.cluster["settings_of"].items()},
    }
    with dev_cluster(folder, **options) as cluster:
        asyncio.run(publish(cluster, access, encryption=False))
        yield cluster, access


@pytest.mark.parametrize(
    ("attempt", "why"),
    [
        (lambda cluster, _: demo_security._plain_nats(cluster.nats_url), "nats://.* does not end a connection"),
        (demo_security._without_certificate, "without a client's certificate: connected"),
        (demo_security._without_login, "without a login: connected"),
        (
            lambda cluster, access: demo_security._permissions(cluster, access, STREAM),
            "reads _INBOX.spark.>, and nats-server says nothing",
        ),
        (lambda cluster, _: demo_security._plain_raft(cluster), "tcp://.* does not end a connection"),
        (lambda cluster, access: demo_security._disks(cluster, access, NEEDLE), "lie in the clear"),
    ],
)
async def test_a_missing_protection_is_seen(
    weak: tuple[DevCluster, Access], monkeypatch: pytest.MonkeyPatch, attempt: Attempt, why: str
) -> None:
    monkeypatch.setattr(demo_security, "PATIENCE", 1.0)
    with pytest.raises(NotRefused, match=why):
        await attempt(*weak)
