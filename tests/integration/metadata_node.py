"""One broker's metadata plane as a process, for tests that kill it: `python -m tests.integration.metadata_node JSON`.

Its data plane is a stand-in that writes down the views it gets and says that its leaders are at offset 0.
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from metadata.raft import RaftConfig, RaftNode
from metadata.service import MetadataService, Registration
from metadata.settings import MetadataSettings
from tidelog.runtime.nats import NatsConnection
from tidelog.server.api import Api
from wire.reports import StreamReport
from wire.subjects import Subjects
from wire.types import BrokerId, Incarnation, PartitionGone, PartitionKey, PartitionView, StreamName


async def run(broker: str, nats: str, raft: Mapping[str, str], directory: Path, voter: bool) -> None:
    subjects = Subjects()
    connection = await NatsConnection.connect(nats, name=broker)
    folder = directory / "incarnation.json"
    known: dict[str, Any] = {"cluster_id": "", "incarnation": 0}
    if folder.exists():
        known |= json.loads(folder.read_text())
    views: dict[PartitionKey, PartitionView] = {}
    config = RaftConfig(
        address=raft[broker] if voter else None,
        peers=tuple(address for name, address in raft.items() if name != broker),
        directory=directory / "raft",
        secret=None,
    )
    service = MetadataService(
        broker_id=BrokerId(broker),
        life_id=uuid.uuid4().hex,
        make_raft=lambda machine, on_status, on_peer_lost: RaftNode(
            config, machine, on_status=on_status, on_peer_lost=on_peer_lost
        ),
        transport=connection,
        subjects=subjects,
        settings=MetadataSettings(),
        rng=Random(broker),
        monotonic=asyncio.get_running_loop().time,
        registration=Registration(
            folder_same=folder.exists(),
            page_cache_survived=True,
            last_incarnation=Incarnation(known["incarnation"]),
            cluster_id=known["cluster_id"],
            labels={"pid": "test"},
            raft_address=raft[broker] if voter else "",
        ),
    )

    def on_registered(cluster_id: str, incarnation: Incarnation) -> None:
        folder.write_text(json.dumps({"cluster_id": cluster_id, "incarnation": incarnation}))

    def on_partitions(changes: Sequence[PartitionView | PartitionGone]) -> None:
        for change in changes:
            if isinstance(change, PartitionView):
                views[change.key] = change
            else:
                views.pop(change.key)

    def status(stream: StreamName) -> StreamReport:
        return {
            "partitions": [
                {
                    "partition": key.partition,
                    "incarnation": key.partition_incarnation,
                    "leader_epoch": view.leader_epoch,
                    "log_end_offset": 0,
                    "replicas_progress": {},
                }
                for key, view in views.items()
                if key.stream == stream and view.leader == broker
            ]
        }

    service.on_partitions = on_partitions
    service.on_registered = on_registered
    service.broker_status = status
    service.on_office = Api(service, connection, subjects).on_office
    await service.start()
    await service.wait_registered()
    print("registered", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    asyncio.run(run(**(settings | {"directory": Path(settings["directory"])})))
