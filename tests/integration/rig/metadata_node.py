"""One broker's metadata plane as a process, for tests that kill it: `python -m tests.integration.rig.metadata_node
JSON`.

Its data plane is a stand-in that writes down the views it gets and says that its leaders are at offset 0.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from metadata.controller.metadata_settings import MetadataSettings
from metadata.raft import RaftConfig, RaftNode
from metadata.runtime.metadata_service import MetadataService
from metadata.runtime.registration import Registration
from tests.peers import peer_link
from tidelog.nats.nats_connection import NatsConnection
from tidelog.server.api.handover import GroupRequests, TransactionRequests
from tidelog.server.api.json_api import Api
from tidelog.server.audit.audit_trail import AuditTrail
from wire.errors import Code, TidelogError
from wire.operations.reports import BrokerReport, StreamReport, UsageReport
from wire.security.cluster_secrets import public_secrets
from wire.subjects import Subjects
from wire.turns import Steps
from wire.types import (
    ALL_TAKEN_UP,
    BrokerId,
    DrainAnswer,
    Incarnation,
    LeaderMove,
    LogEnd,
    PartitionGone,
    PartitionKey,
    PartitionView,
    RoleProgress,
    Room,
    StreamName,
)


class Node:
    """The service's `BrokerPort`."""

    def __init__(
        self,
        broker: str,
        connection: NatsConnection,
        raft: Mapping[str, str],
        directory: Path,
        voter: bool,
        settings: Mapping[str, Any],
    ) -> None:
        subjects = Subjects()
        self._broker = broker
        self._folder = directory / "incarnation.json"
        self._views: dict[PartitionKey, PartitionView] = {}
        known: dict[str, Any] = {"cluster_id": "", "incarnation": 0}
        if self._folder.exists():
            known |= json.loads(self._folder.read_text())
        config = RaftConfig(
            address=raft[broker] if voter else None,
            peers=tuple(address for name, address in raft.items() if name != broker),
            directory=directory / "raft",
            secrets=public_secrets(),
        )
        peers = peer_link(connection)
        self.service = MetadataService(
            broker_id=BrokerId(broker),
            life_id=uuid.uuid4().hex,
            port=self,
            make_raft=lambda machine, on_status, on_peer_lost: RaftNode(
                config, machine, on_status=on_status, on_peer_lost=on_peer_lost
            ),
            transport=peers,
            subjects=subjects,
            settings=MetadataSettings(**settings),
            rng=Random(broker),
            secrets=public_secrets(),
            monotonic=asyncio.get_running_loop().time,
            time_ns=time.time_ns,
            registration=Registration(
                folder_same=self._folder.exists(),
                page_cache_survived=True,
                last_incarnation=Incarnation(known["incarnation"]),
                cluster_id=known["cluster_id"],
                labels={"pid": "test"},
                raft_address=raft[broker] if voter else "",
            ),
        )
        audit = AuditTrail(broker, life_id=broker, epoch=lambda: self.service.controller_epoch, time_ns=time.time_ns)
        handed_over = [kind(self.service, peers, subjects) for kind in (GroupRequests, TransactionRequests)]
        self.on_controller = Api(self.service, connection, subjects, audit, handed_over).on_controller

    def on_registered(self, cluster_id: str, incarnation: Incarnation) -> None:
        self._folder.write_text(json.dumps({"cluster_id": cluster_id, "incarnation": incarnation}))

    def on_partitions(self, changes: Sequence[PartitionView | PartitionGone]) -> None:
        for change in changes:
            if isinstance(change, PartitionView):
                self._views[change.key] = change
            else:
                self._views.pop(change.key)

    def on_all_partitions(self) -> None:
        pass

    def on_fatal(self, error: TidelogError) -> None:
        print(error, file=sys.stderr)

    def log_ends(self) -> Steps[dict[PartitionKey, LogEnd]]:
        yield from ()
        return {}

    def stream_report(
        self, stream: StreamName, _partitions: Collection[int], _story_of: int | None
    ) -> Steps[StreamReport]:
        yield 1
        return {
            "partitions": [
                {
                    "partition": key.partition,
                    "incarnation": key.partition_incarnation,
                    "leader_epoch": view.leader_epoch,
                    "log_end_offset": 0,
                    "replicas_progress": {},
                }
                for key, view in self._views.items()
                if key.stream == stream and view.leader == self._broker
            ]
        }

    def usage_report(self, after: str = "", upto: str | None = None) -> Steps[UsageReport]:
        yield 1
        return {"streams": {}}

    def broker_report(self) -> Steps[BrokerReport]:
        yield 1
        return {}

    def room(self) -> Room:
        return Room.AMPLE

    def disk_hangs(self) -> bool:
        return False

    def role_progress(self) -> RoleProgress:
        return ALL_TAKEN_UP

    def drain_leader(self, move: LeaderMove, _timeout: float, answer: DrainAnswer) -> None:
        answer(TidelogError(Code.LEADER_NOT_MOVED, f"{move.key} is not drained here"))


async def run(
    broker: str, nats: str, raft: Mapping[str, str], directory: Path, voter: bool, settings: Mapping[str, Any]
) -> None:
    connection = await NatsConnection.connect(nats, name=broker)
    service = Node(broker, connection, raft, directory, voter, settings).service
    await service.start()
    await service.wait_registered()
    print("registered", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    asyncio.run(run(**(given | {"directory": Path(given["directory"])})))
