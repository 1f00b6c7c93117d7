"""Before Raft a broker asks to which cluster the others belong."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from tests.fake_nats import FakeTransport, Hub
from tests.peers import peer_link
from tidelog.server import broker_process
from tidelog.server.broker_process import FoundCluster, _ask_for_cluster
from tidelog.server.peers.peer_link import PeerLink
from wire.protobuf import metadata_pb2 as pb
from wire.security.cluster_secrets import ClusterSecret, ClusterSecrets
from wire.subjects import Subjects
from wire.types import BrokerId

SUBJECTS = Subjects("tidelog")
SECRETS = [ClusterSecret(b"the secret of this cluster")]
FOLDER = cast(Any, SimpleNamespace(cluster_id="ours"))


def link(hub: Hub, secrets: list[ClusterSecret] = SECRETS) -> PeerLink:
    return peer_link(FakeTransport(hub), ClusterSecrets(secrets))


def claim(cluster_id: str) -> bytes:
    return pb.ClusterClaim(broker="b2", life_id="b2", cluster_id=cluster_id).SerializeToString()


async def ask(peers: PeerLink) -> FoundCluster:
    return await _ask_for_cluster(BrokerId("b1"), FOLDER, peers, SUBJECTS, "b1")


@pytest.mark.parametrize("to_all", [False, True])
async def test_an_answer_comes_to_the_inbox_or_to_all(to_all: bool) -> None:
    hub = Hub()
    living, stranger = link(hub), link(hub, [ClusterSecret(b"another secret, of nobody here")])

    def on_question(_: bytes, reply: str | None, __: object) -> None:
        if reply is not None:
            to = SUBJECTS.cluster() if to_all else reply
            stranger.publish_claim(to, claim("forged"))
            living.publish_claim(to, claim("ours"))

    await living.subscribe_claims(SUBJECTS.cluster(), on_question)
    assert await ask(link(hub)) == FoundCluster("ours", True)


async def test_an_old_claim_that_comes_again_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another cluster that had the same secret."""
    monkeypatch.setattr(broker_process, "CLUSTER_CHECK_TIMEOUT", 0.1)
    hub = Hub()
    living, stranger = link(hub), link(hub, [ClusterSecret(b"another secret, of nobody here")])

    def on_question(_: bytes, reply: str | None, __: object) -> None:
        if reply is not None:
            living.publish_claim(SUBJECTS.cluster(), claim("the one before"))
            stranger.publish_claim(SUBJECTS.cluster(), claim("ours"))

    await living.subscribe_claims(SUBJECTS.cluster(), on_question)
    assert await ask(link(hub)) == FoundCluster("", False)


async def test_what_nobody_proves_counts_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_process, "CLUSTER_CHECK_TIMEOUT", 1.0)
    hub = Hub()
    stranger = link(hub, [ClusterSecret(b"another secret, of nobody here")])

    def on_question(_: bytes, reply: str | None, __: object) -> None:
        if reply is not None:
            stranger.publish_claim(reply, claim("another"))
            stranger.publish_claim(reply, claim("a third"))
            stranger.publish_claim(reply, b"\xff")

    await stranger.subscribe_claims(SUBJECTS.cluster(), on_question)
    assert await ask(link(hub)) == FoundCluster("another", False)


async def test_it_ends_without_nats(monkeypatch: pytest.MonkeyPatch) -> None:
    """To subscribe takes until the connection is back."""
    monkeypatch.setattr(broker_process, "CLUSTER_CHECK_TIMEOUT", 0.1)
    transport = FakeTransport(Hub())

    async def never(*_: object) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(transport, "subscribe_raw", never)
    transport.lose()
    assert await asyncio.wait_for(ask(peer_link(transport)), 30) == FoundCluster("", False)
    assert transport.inboxes == {}
