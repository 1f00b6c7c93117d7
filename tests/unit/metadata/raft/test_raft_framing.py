"""Two frame sessions over a wire that tests bend: replay, reorder, redirect, damage."""

from __future__ import annotations

import pickle
import struct
from typing import Any

import msgpack
import pytest

from metadata.raft.framing import MAX_FIRST_FRAME_BYTES, MAX_FRAME_BYTES, WELCOME, FrameError, FrameSession
from wire.security.cluster_secrets import ClusterSecret, ClusterSecrets

SECRET = ClusterSecrets([ClusterSecret(b"0123456789abcdef")])
ADDRESS = "127.0.0.1:7001"


def session(
    *,
    initiator: bool,
    secrets: ClusterSecrets = SECRET,
    nonce: bytes | None = None,
    address: str = ADDRESS,
    group: str = "",
) -> FrameSession:
    fill = b"i" if initiator else b"a"
    return FrameSession(
        secrets=secrets, nonce=nonce or fill * 16, initiator=initiator, acceptor_address=address, group=group
    )


def introduced(initiator: FrameSession, acceptor: FrameSession) -> tuple[FrameSession, FrameSession]:
    answer = acceptor.feed(initiator.hello())
    assert initiator.feed(answer) == b""
    assert initiator.next_message() == [WELCOME, acceptor._group]
    return initiator, acceptor


@pytest.fixture
def pair() -> tuple[FrameSession, FrameSession]:
    return introduced(session(initiator=True), session(initiator=False))


@pytest.mark.parametrize("groups", [("", ""), ("a", "a"), ("", "a"), ("a", "")])
def test_nodes_of_one_group_and_new_ones_meet(groups: tuple[str, str]) -> None:
    introduced(session(initiator=True, group=groups[0]), session(initiator=False, group=groups[1]))


def test_nodes_of_two_groups_stay_apart() -> None:
    with pytest.raises(FrameError, match="of cluster b, and this node's data folder belongs to cluster a"):
        introduced(session(initiator=True, group="a"), session(initiator=False, group="b"))


def test_messages_arrive_whole_in_any_cut(pair: tuple[FrameSession, FrameSession]) -> None:
    initiator, acceptor = pair
    messages = [{"type": "a", "entries": [(b"\0x", 1, 2)]}, "text", [1, None, True], {"k": b"x" * 100_000}]
    stream = b"".join(initiator.seal(message) for message in messages)
    received = []
    for position in range(0, len(stream), 777):
        acceptor.feed(stream[position : position + 777])
        while (message := acceptor.next_message()) is not None:
            received.append(message)
    assert received == [{"type": "a", "entries": [[b"\0x", 1, 2]]}, *messages[1:]]
    assert acceptor.established


def test_the_other_direction_has_its_own_keys(pair: tuple[FrameSession, FrameSession]) -> None:
    initiator, _ = pair
    initiator.feed(initiator.seal("reflected"))
    with pytest.raises(FrameError, match="does not verify"):
        initiator.next_message()


@pytest.mark.parametrize("order", [[0, 0], [1, 0], [1]], ids=["repeated", "reordered", "left out"])
def test_frames_out_of_their_order_do_not_verify(pair: tuple[FrameSession, FrameSession], order: list[int]) -> None:
    initiator, acceptor = pair
    frames = [initiator.seal("first"), initiator.seal("second")]
    acceptor.feed(b"".join(frames[number] for number in order))
    with pytest.raises(FrameError, match="does not verify"):
        list(iter(acceptor.next_message, None))


def test_a_recorded_connection_cannot_be_replayed(pair: tuple[FrameSession, FrameSession]) -> None:
    initiator, _ = pair
    recorded = initiator.hello() + initiator.seal("command")
    victim = session(initiator=False, nonce=b"another nonce 16")
    victim.feed(recorded)
    with pytest.raises(FrameError, match="does not verify"):
        victim.next_message()


@pytest.mark.parametrize(
    "other",
    [{"secrets": ClusterSecrets([ClusterSecret(b"another secret!!")])}, {"address": "127.0.0.1:7002"}],
    ids=["secret", "redirected"],
)
def test_another_secret_or_voter_does_not_verify(other: dict[str, Any]) -> None:
    initiator, acceptor = session(initiator=True), session(initiator=False, **other)
    initiator.feed(acceptor.feed(initiator.hello()))
    with pytest.raises(FrameError, match="does not verify"):
        initiator.next_message()
    assert not initiator.established


def test_every_changed_byte_is_noticed(pair: tuple[FrameSession, FrameSession]) -> None:
    initiator, _ = pair
    frame = initiator.seal("command")
    for position in range(4, len(frame)):
        _, victim = introduced(session(initiator=True), session(initiator=False))
        victim.feed(frame[:position] + bytes([frame[position] ^ 1]) + frame[position + 1 :])
        with pytest.raises(FrameError, match="does not verify"):
            victim.next_message()


def test_a_stranger_cannot_announce_a_large_frame() -> None:
    acceptor = session(initiator=False)
    acceptor.feed(session(initiator=True).hello() + struct.pack("<I", MAX_FIRST_FRAME_BYTES + 1) + bytes(16))
    with pytest.raises(FrameError, match=f"limit is {MAX_FIRST_FRAME_BYTES}"):
        acceptor.next_message()


def test_the_length_is_capped_for_everybody(pair: tuple[FrameSession, FrameSession]) -> None:
    initiator, acceptor = pair
    acceptor.feed(initiator.seal("hello"))
    acceptor.next_message()
    acceptor.feed(struct.pack("<I", MAX_FRAME_BYTES + 1) + bytes(16))
    with pytest.raises(FrameError, match=f"limit is {MAX_FRAME_BYTES}"):
        acceptor.next_message()
    with pytest.raises(FrameError, match="above the limit"):
        initiator.seal(bytes(MAX_FRAME_BYTES))


@pytest.mark.parametrize("junk", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(40), pickle.dumps("x" * 40)])
def test_other_protocols_are_refused(junk: bytes) -> None:
    with pytest.raises(FrameError, match="does not speak"):
        session(initiator=False).feed(junk)


def test_a_pickle_in_a_verified_frame_is_only_bytes(
    pair: tuple[FrameSession, FrameSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    initiator, acceptor = pair
    evil = pickle.dumps(print, 2)
    monkeypatch.setattr(msgpack, "packb", lambda _message: evil)
    acceptor.feed(initiator.seal(None))
    with pytest.raises(FrameError, match="msgpack"):
        acceptor.next_message()


def test_nothing_can_be_sealed_before_the_keys_are_known() -> None:
    with pytest.raises(FrameError, match="hello"):
        session(initiator=True).seal("early")
