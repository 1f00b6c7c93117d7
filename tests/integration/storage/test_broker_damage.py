"""Damage that is met while brokers run: the actions of the replica, their order, and the answers to clients.

Real disks and a real nats-server; metadata is played by the test, view by view.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from dataplane.broker.leading.leader_driver import LeaderDriver
from dataplane.broker.reading.damaged_replica import DamagedReplica
from dataplane.log.recovery.damage import read_mark
from dataplane.log.storage.files import REAL_FILES
from dataplane.log.storage.manifest import MANIFEST_COPY_FILE, MANIFEST_FILE
from tests.integration.failover.test_broker_roles import KEY, SUBJECT, SUBJECTS, Node, a, client, fetch, publish, view
from tests.integration.rig.waiting import LIMIT, until
from tests.peers import peer_link
from tests.turns import finished
from tests.views import A, B
from wire.batch import BatchBuilder, RecordBatch, iter_batches
from wire.errors import Code, CorruptData, TidelogError
from wire.partition_messages.append import encode_append
from wire.partition_messages.replication import HEADER_SIZE
from wire.protobuf.tidelog_pb2 import AppendRequest, SnapshotRequest
from wire.types import Offset, StreamName

if TYPE_CHECKING:
    from pathlib import Path

    from dataplane.broker.roles.role import Role
    from tidelog.nats.nats_connection import NatsConnection
    from tidelog.nats.nats_server import EmbeddedNatsServer
    from wire.messaging.transport import Message

__all__ = ["a", "client"]


async def publish_all(client: NatsConnection, first: int, end: int) -> None:
    for number in range(first, end):
        await publish(client, b"record %d " % number + b"." * 300)


async def flip(role: Role, offset: int, *, in_body: bool = True) -> None:
    """One bit of the batch that holds `offset`; cached bytes are dropped."""
    await until(lambda: role.log.durable_end == role.log.log_end_offset)
    for path in sorted(role.log.directory.glob("*.log")):
        content = bytearray(path.read_bytes())
        for at, header in iter_batches(bytes(content)):
            if header.base_offset <= offset < header.end_offset:
                content[at + (header.size - 100 if in_body else 40)] ^= 4
                with path.open("r+b") as file:
                    file.write(content)
    role.log._state.forget_tail()


def whole_log(node: Node) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(node.replica.directory.glob("*.log")))


def values(message: Message) -> dict[int, bytes]:
    assert TidelogError.from_headers(message.headers) is None
    found: dict[int, bytes] = {}
    for at, _ in iter_batches(message.data, HEADER_SIZE):
        batch = RecordBatch.decode(message.data, at)
        found |= {int(offset): value or b"" for offset, value in zip(batch.offsets, batch.values, strict=True)}
    return found


def code(message: Message) -> Code | None:
    error = TidelogError.from_headers(message.headers)
    return error.code if error is not None else None


@pytest.mark.parametrize("in_body", [True, False])
async def test_a_follower_is_repaired_without_a_restart(
    a: Node, client: NatsConnection, nats_server: EmbeddedNatsServer, tmp_path: Path, in_body: bool
) -> None:
    await a.leads(view(isr=(A, B)))
    b = await Node(B, tmp_path / "b").start(nats_server.url)
    try:
        role = await b.follows(view(isr=(A, B)))
        await publish_all(client, 0, 60)
        await until(lambda: role.log.log_end_offset == 60)
        await flip(role, 10, in_body=in_body)
        truth = whole_log(a)
        b.replica.on_damage("somebody found it", b.context)
        assert role.failed is not None
        await until(lambda: b.metadata.withdrawals)
        assert read_mark(REAL_FILES, b.replica.directory) == "somebody found it"
        assert b.replica._log is not None
        assert b.replica._log.log_end_offset == 60, "first it leaves the ISR, then it cuts"
        for node in (a, b):
            node.broker.on_partitions([view(isr=(A,), epoch=2, leader_epoch=2)])
        await until(lambda: b.replica.log_end_offset == 60 and b.replica.failure is None)
        assert whole_log(b) == truth
        assert read_mark(REAL_FILES, b.replica.directory) is None
        (said,) = finished(b.broker.stream_status(KEY.stream, [KEY.partition], KEY.partition))["partitions"]
        told = [event["event"] for event in said["history"]]
        assert "its log is damaged: somebody found it" in told
        assert any(event.startswith("follows a in LeaderEpoch 2, log end 10") for event in told), told
        assert said["quarantined"]["events"] == 1
        latest = said["quarantined"]["latest"]
        assert latest is not None
        assert (latest["sound_end"], latest["known_end"], latest["lost"]) == (10, 60, False)
        assert finished(b.broker.status())["counters"]["damage_repaired"] == 1
        assert finished(b.broker.status())["damaged"] == []
    finally:
        await b.close()


async def test_a_follower_outside_the_isr_cuts_in_a_later_leader_epoch_only(
    a: Node, client: NatsConnection, nats_server: EmbeddedNatsServer, tmp_path: Path
) -> None:
    """Until then the leader goes by the earlier reports of the log, and an expansion may be on its way."""
    await a.leads(view(isr=(A,)))
    b = await Node(B, tmp_path / "b").start(nats_server.url)
    try:
        role = await b.follows(view(isr=(A,)))
        await publish_all(client, 0, 60)
        await until(lambda: role.log.log_end_offset == 60)
        await until(lambda: a.metadata.changes)  # the leader wants it in
        await flip(role, 10)
        b.replica.on_damage("somebody found it", b.context)
        await until(lambda: b.metadata.withdrawals)
        b.broker.on_partitions([view(isr=(A, B), epoch=2)])
        b.broker.on_partitions([view(isr=(A,), epoch=3)])
        await until(lambda: b.replica.machine.step is None)
        assert b.replica.failure is not None
        assert b.replica.log_end_offset == 60
        assert b.metadata.withdrawals[0].leader_epoch == 1
        for node in (a, b):
            node.broker.on_partitions([view(isr=(A,), epoch=4, leader_epoch=2)])
        await until(lambda: b.replica.log_end_offset == 60 and b.replica.failure is None)
    finally:
        await b.close()


async def test_a_restart_does_not_forget_it(
    client: NatsConnection, nats_server: EmbeddedNatsServer, tmp_path: Path
) -> None:
    """Recovery has no reason to look there: the segment is finished."""
    node = await Node(A, tmp_path / "a").start(nats_server.url)
    role = await node.leads(view())
    await publish_all(client, 0, 60)
    await flip(role, 10)
    assert code(await fetch(client, offset=10)) is Code.UNAVAILABLE
    await until(lambda: node.metadata.withdrawals)
    await node.close()
    again = await Node(A, tmp_path / "a").start(nats_server.url)
    try:
        assert again.unsound == (KEY,)
        assert finished(again.broker.status())["damaged"] == [str(KEY)]
    finally:
        await again.close()


@pytest.mark.parametrize("what", ["missing", "emptied"])
async def test_a_follower_whose_folder_was_lost_leaves_the_isr_first_and_copies_the_log_anew(
    a: Node, client: NatsConnection, nats_server: EmbeddedNatsServer, tmp_path: Path, what: str
) -> None:
    """Without a restart; and the next start finds nothing amiss."""
    await a.leads(view(isr=(A, B)))
    b = await Node(B, tmp_path / "b").start(nats_server.url)
    role = await b.follows(view(isr=(A, B)))
    await publish_all(client, 0, 60)
    await until(lambda: role.high_watermark == 60)
    folder = b.replica.directory
    await b.close()
    if what == "missing":
        shutil.rmtree(folder.parent)
    else:
        for path in folder.iterdir():
            path.unlink()
    b = await Node(B, tmp_path / "b").start(nats_server.url)
    try:
        assert b.unsound == (KEY,)
        b.broker.on_partitions([view(isr=(A, B))])
        assert b.replica.machine.step is None
        assert b.replica.role is None
        for node in (a, b):
            node.broker.on_partitions([view(isr=(A,), epoch=2, leader_epoch=2)])
        await until(lambda: b.replica.log_end_offset == 60 and b.replica.failure is None)
    finally:
        await b.close()
    b = await Node(B, tmp_path / "b").start(nats_server.url)
    try:
        assert b.unsound == ()
        assert b.replica.log_end_offset == 60
    finally:
        await b.close()


async def test_a_replica_that_was_lost_together_with_the_manifest_withdraws_when_it_hears_of_its_partition(
    nats_server: EmbeddedNatsServer, tmp_path: Path
) -> None:
    """Nothing tells it from one that was never here. The others, whose logs are there, go on."""
    other = replace(KEY, stream=StreamName("other"))
    node = await Node(A, tmp_path / "a").start(nats_server.url)
    node.broker.on_partitions([view(), view(key=other)])
    await until(lambda: all(isinstance(r.role, LeaderDriver) for r in node.broker._replicas.values()))
    folder = node.replica.directory
    await node.close()
    shutil.rmtree(folder.parent)
    for name in (MANIFEST_FILE, MANIFEST_COPY_FILE):
        (tmp_path / "a" / name).unlink()
    for _ in range(2):
        node = await Node(A, tmp_path / "a").start(nats_server.url)
        try:
            assert set(node.broker._replicas) <= {KEY, other}
            node.broker.on_partitions([view(), view(key=other)])
            await until(lambda: node.metadata.withdrawals or KEY in node.unsound)  # noqa: B023 - waited for here
            await until(lambda: isinstance(node.broker._replicas[other].role, LeaderDriver))  # noqa: B023
            assert node.replica.role is None
            assert node.replica.is_damaged
        finally:
            await node.close()
    assert node.unsound == (KEY,), "the manifest is whole again"


async def test_it_is_written_down_before_others_hear_of_it(a: Node, client: NatsConnection) -> None:
    role = await a.leads(view())
    await publish_all(client, 0, 60)
    await flip(role, 10)
    marks: list[str | None] = []
    tell = a.metadata.withdraw

    def withdraw(withdrawal: Any) -> None:
        marks.append(read_mark(REAL_FILES, role.log.directory))
        tell(withdrawal)

    a.metadata.withdraw = withdraw  # type: ignore[method-assign]
    await fetch(client, offset=10)
    await until(lambda: marks)
    assert marks[0] is not None


async def test_damage_that_a_leader_meets_when_it_looks_for_its_state_is_damage_like_any_other(
    a: Node, client: NatsConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = await a.leads(view())
    await publish_all(client, 0, 3)

    def snapshot_at(_offset: Offset) -> bytes:
        raise CorruptData("a flipped bit in a header")

    monkeypatch.setattr(role.log, "snapshot_at", snapshot_at)
    request = SnapshotRequest(
        replica_id=B, leader_epoch=1, broker_incarnation=1, stream_incarnation=3, partition_incarnation=3
    )
    assert peer_link(client).publish(SUBJECTS.snapshot(KEY.stream, 0), [request.SerializeToString()], reply="answers.b")
    await until(lambda: a.metadata.withdrawals)
    assert a.replica.is_damaged
    assert read_mark(REAL_FILES, a.replica.directory) is not None


async def test_a_leader_that_is_elected_before_its_withdrawal_is_heard_cuts_nothing(
    a: Node, client: NatsConnection
) -> None:
    role = await a.leads(view())
    await publish_all(client, 0, 60)
    await flip(role, 10)
    await fetch(client, offset=10)
    await until(lambda: len(a.metadata.withdrawals) == 1)
    a.broker.on_partitions([view(epoch=2, leader_epoch=2)])
    await until(lambda: len(a.metadata.withdrawals) == 2)
    assert a.replica.log_end_offset == 60


async def the_last_copy(a: Node, client: NatsConnection) -> None:
    """Records 0 to 59, of which 10 is damaged; withdrawn, without a leader."""
    role = await a.leads(view())
    await publish_all(client, 0, 60)
    await flip(role, 10)
    await fetch(client, offset=10)
    await until(lambda: a.metadata.withdrawals)
    a.broker.on_partitions([view(leader=None, epoch=2, leader_epoch=2)])
    await until(lambda: isinstance(a.replica.role, DamagedReplica) and a.replica.machine.step is None)


async def test_the_last_copy_is_read_below_and_above_the_damage(a: Node, client: NatsConnection) -> None:
    await the_last_copy(a, client)
    below = values(await fetch(client, earliest=True, max_bytes=2000))
    assert list(below) == list(range(len(below)))
    assert below
    above = values(await fetch(client, offset=20))
    assert above[20].startswith(b"record 20 ")
    assert code(await fetch(client, offset=10)) is Code.DAMAGED
    assert values(await fetch(client, offset=59))[59].startswith(b"record 59 ")
    assert a.replica.log_end_offset == 60
    (said,) = finished(a.broker.stream_status(KEY.stream))["partitions"]

    def sound_end() -> int | None:
        (report,) = finished(a.broker.stream_status(KEY.stream))["partitions"]
        damage = report["damage"]
        return damage["sound_end"] if damage is not None else None

    await until(lambda: sound_end() == 10)
    assert said["failed"]


async def test_the_last_copy_whose_damage_a_start_found_does_not_tell_where_it_ends(
    client: NatsConnection, nats_server: EmbeddedNatsServer, tmp_path: Path
) -> None:
    """A reader up to "latest" would end before the damage, and take what it got for all that was acknowledged."""
    node = await Node(A, tmp_path / "a").start(nats_server.url)
    role = await node.leads(view())
    await publish_all(client, 0, 60)
    await node.close()
    newest = max(role.log.directory.glob("*.log"))
    os.truncate(newest, newest.stat().st_size - 500)  # a record and a part of one
    again = await Node(A, tmp_path / "a").start(nats_server.url)
    try:
        again.broker.on_partitions([view(epoch=2)])
        await until(lambda: again.metadata.withdrawals)
        again.broker.on_partitions([view(leader=None, epoch=3, leader_epoch=2)])
        await until(lambda: isinstance(again.replica.role, DamagedReplica) and again.replica.machine.step is None)
        assert again.replica.log_end_offset == 58
        answer = await fetch(client, latest=True, max_bytes=0)
        error = TidelogError.from_headers(answer.headers)
        assert error is not None
        assert error.code is Code.DAMAGED
        assert "those below offset 58" in error.message
        assert code(await fetch(client, timestamp=1, max_bytes=0)) is Code.DAMAGED
        assert values(await fetch(client, offset=57))[57].startswith(b"record 57 ")
        assert code(await fetch(client, offset=58)) is Code.DAMAGED
    finally:
        await again.close()


async def test_the_last_copy_takes_no_records(a: Node, client: NatsConnection) -> None:
    await the_last_copy(a, client)
    builder = BatchBuilder()
    builder.add_record(b"x")
    request = AppendRequest(leader_epoch=2, stream_incarnation=3, partition_incarnation=3, acks=AppendRequest.ALL)
    parts = encode_append(request, builder.build(1).stamp(Offset(0), 0)[0])  # type: ignore[arg-type]
    answer = await client.request(SUBJECTS.append(KEY.stream, 0), b"".join(parts), timeout=LIMIT)
    error = TidelogError.from_headers(answer.headers)
    assert error is not None
    assert error.code is Code.UNAVAILABLE
    assert "elect-unclean load 0 a" in error.message
    bare = await client.request(SUBJECT, b"x", timeout=LIMIT)
    assert bare.status == 503
    assert a.replica.log_end_offset == 60


async def test_an_operator_accepts_the_loss(a: Node, client: NatsConnection) -> None:
    await the_last_copy(a, client)
    before = {path.name: path.read_bytes() for path in a.replica.directory.glob("*.log")}
    a.broker.on_partitions([view(epoch=3, leader_epoch=3, loss_accepted=True)])
    await until(lambda: isinstance(a.replica.role, LeaderDriver) and a.replica.machine.step is None)
    assert a.replica.log_end_offset == 10
    await publish_all(client, 10, 12)
    found = values(await fetch(client, offset=0))
    assert [value.split(b" .")[0] for value in found.values()] == [b"record %d" % n for n in range(12)]
    folder = a.replica.directory / "quarantine"
    report = json.loads((folder / "000001.json").read_text())
    assert (report["sound_end"], report["known_end"], report["lost"]) == (10, 60, True)
    kept = b"".join((folder / piece["file"]).read_bytes() for piece in report["kept"])
    assert kept == b"".join(before[name] for name in sorted(before))[-len(kept) :]


async def test_a_loss_was_accepted_of_the_damage_before_it_and_of_no_other(a: Node, client: NatsConnection) -> None:
    """It leads by an operator's word still when it meets the next damage."""
    role = await a.leads(view(loss_accepted=True))
    await publish_all(client, 0, 60)
    await flip(role, 10)
    await fetch(client, offset=10)
    await until(lambda: a.metadata.withdrawals)
    await until(lambda: not a.replica.machine.is_recording and a.replica.machine.step is None)
    assert a.replica.failure is not None
    assert a.replica.log_end_offset == 60
    a.broker.on_partitions([view(leader=None, epoch=2, leader_epoch=2)])
    await until(lambda: isinstance(a.replica.role, DamagedReplica) and a.replica.machine.step is None)
    a.broker.on_partitions([view(epoch=3, leader_epoch=3, loss_accepted=True)])
    await until(lambda: isinstance(a.replica.role, LeaderDriver) and a.replica.machine.step is None)
    assert a.replica.log_end_offset == 10
