"""Tests that speak as a broker of a cluster."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidelog.nats.nats_connection import NatsConnection
from tidelog.server.devcluster import DevCluster
from tidelog.server.peers.peer_link import PeerLink, Refusals
from tidelog.server.secret_file import SecretFile
from wire.messaging.transport import Transport
from wire.security.cluster_secrets import ClusterSecrets, public_secrets


def peer_link(transport: Transport, secrets: ClusterSecrets | None = None) -> PeerLink:
    """`secrets`: without them the public one."""
    return PeerLink(transport, secrets or public_secrets(), uuid.uuid4().hex, Refusals("a test", time.monotonic))


@asynccontextmanager
async def as_broker(cluster: DevCluster) -> AsyncIterator[PeerLink]:
    connection = await NatsConnection.connect(cluster.nats_url, inbox_prefix="tidelog.inbox.stranger")
    yield peer_link(connection, secrets_of(cluster))
    await connection.close()


def secrets_of(cluster: DevCluster) -> ClusterSecrets:
    return ClusterSecrets(SecretFile.read(cluster.data_dir / "raft-secret").secrets)
