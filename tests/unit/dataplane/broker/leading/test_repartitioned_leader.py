"""A leader's driver while its stream is repartitioned: which batches it takes, holds and refuses, where it listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from dataplane.broker.leading.appending import PublishCounters
from dataplane.broker.leading.bounds_of_all import HELD_APPENDS, HOLD_S, BoundsOfAll
from dataplane.broker.leading.leader_driver import LeaderDriver, report_if_retired
from dataplane.replica.leader.leadership import FollowerFetch
from tests.tickets import add_proof_of
from tests.unit.dataplane.broker.role_bench import EPOCH, Bench, Loop, view
from tests.views import KEY, A, B
from wire.batch import BatchBuilder, iter_batches, with_message_id
from wire.errors import TidelogError
from wire.messaging.transport import Message
from wire.partition_messages.append import encode_append
from wire.protobuf.tidelog_pb2 import AppendRequest, AppendResponse, EndTransactionRequest
from wire.types import (
    FIRST_TRANSACTIONAL_ID,
    NO_PRODUCER,
    BrokerId,
    Incarnation,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    PartitionState,
    PartitionView,
)

SUBJECT = "tidelog.s.0.append"


def at(version: int, *, epoch: int = 0, **fields: Any) -> PartitionView:
    return replace(view(A, epoch=epoch or version), partitioning_version=version, **fields)


AWAITED = at(2, awaits_cutover=True)
TOLD = at(2, epoch=3)
LEAVES = at(2, partition_count=0, state=PartitionState.DRAINING, awaits_cutover=True)
LEFT = at(2, epoch=3, partition_count=0, state=PartitionState.DRAINING)
RETIRED = at(2, epoch=4, partition_count=0, state=PartitionState.RETIRED)
PREPARED = at(1, partition_count=0)


class Scene:
    def __init__(self, bench: Bench, loop: Loop, role: LeaderDriver) -> None:
        self.bench, self.loop, self.role = bench, loop, role
        self._asked = 0

    async def sees(self, view: PartitionView) -> None:
        self.role.on_view(view)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.loop.turn()

    def append(
        self,
        *values: bytes,
        version: int,
        producer: tuple[int, int, int] = (NO_PRODUCER, 0, 0),
        message_id: bytes | None = None,
        timeout_ms: int = 0,
        acks: AppendRequest.Acks.ValueType = AppendRequest.ALL,
    ) -> str:
        """Returns the token of its answer."""
        self._asked += 1
        token = f"t{self._asked}"
        builder = BatchBuilder()
        if message_id is None:
            builder.add_values(list(values))
        else:
            for value in values:
                builder.add_record(value, headers=with_message_id(b"", message_id))
            builder.has_message_ids = True
        producer_id, producer_epoch, base_sequence = producer
        batch = builder.build(
            5, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
        ).stamp(Offset(0), LeaderEpoch(0))[0]
        request = AppendRequest(
            leader_epoch=EPOCH, acks=acks, partitioning_version=version, confirm_timeout_ms=timeout_ms
        )
        if producer_id != NO_PRODUCER:
            add_proof_of(request, KEY, batch, producer_id)
        data = b"".join(map(bytes, encode_append(request, batch)))
        self.bench.ingest.subscribed[SUBJECT](Message(SUBJECT, data, token))
        self.loop.turn()
        return token

    def plain(self, value: bytes, subject: str = "s") -> None:
        ingest = self.bench.ingest.subscribed[subject]
        ingest.on_messages([value], [b"reply"], [None])
        ingest.chunk_done()
        self.loop.turn()

    def answer(self, token: str) -> str | None:
        """Code of an error, or base offset of a receipt."""
        for subject, data, headers in self.bench.control.sent:
            if subject == token:
                error = TidelogError.from_headers(headers)
                if error is not None:
                    return error.code.name
                receipt = AppendResponse.FromString(data)
                return f"{receipt.base_offset}" + (" again" if receipt.duplicate or receipt.repeated_records else "")
        return None

    @property
    def stamps(self) -> list[tuple[int, int]]:
        """(base offset, partitioning version) of the batches of the log."""
        log = self.bench.log
        found = log.read(log.log_start_offset, max_bytes=1 << 20, end_offset=log.log_end_offset)
        data = b"".join(map(bytes, found or []))
        return [(header.base_offset, header.partitioning_version) for _, header in iter_batches(data)]

    @property
    def ends(self) -> list[tuple[int, int]]:
        """(version, end) of the reports."""
        return [(report.version, report.end_offset) for report in self.bench.cutovers]

    @property
    def listens(self) -> set[str]:
        return {subject for subject in self.bench.ingest.subscribed if not subject.startswith("tidelog.")}


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async for each in _scene(at(1)):
        yield each


async def _scene(first: PartitionView) -> AsyncIterator[Scene]:
    loop = Loop()
    bench = Bench(loop)
    bench.log.assign_epoch(first.leader_epoch, Offset(0))
    role = LeaderDriver(bench.setup(first))
    await role.start()
    yield Scene(bench, loop, role)
    await role.end("over")


# ---- batches that name a version


async def test_batches_are_stamped_with_the_version_once_its_cutover_is_told(scene: Scene) -> None:
    scene.append(b"one", version=1)
    await scene.sees(AWAITED)
    scene.append(b"none", version=0)
    await scene.sees(TOLD)
    scene.append(b"two", version=2)
    assert scene.stamps == [(0, 0), (1, 0), (2, 2)]
    assert scene.ends == [(2, 1)]


async def test_a_batch_of_an_older_version_is_not_stored_and_counted(scene: Scene) -> None:
    await scene.sees(TOLD)
    token = scene.append(b"one", version=1)
    assert (scene.answer(token), scene.stamps) == ("STALE_PARTITIONING", [])
    assert scene.bench.context.the(PublishCounters).stale_partitioning_total == 1


@pytest.mark.parametrize("acks", [AppendRequest.LEADER, AppendRequest.NONE])
async def test_a_batch_of_an_older_version_is_not_stored_at_any_level(
    scene: Scene, acks: AppendRequest.Acks.ValueType
) -> None:
    await scene.sees(AWAITED)
    scene.append(b"one", version=1, acks=acks)
    assert scene.stamps == []
    assert scene.bench.context.the(PublishCounters).stale_partitioning_total == 1


@pytest.mark.parametrize("state", [AWAITED, TOLD, LEAVES, LEFT, RETIRED])
async def test_a_repetition_gets_its_receipt_whatever_it_names_and_whatever_became_of_the_partition(
    scene: Scene, state: PartitionView
) -> None:
    scene.append(b"one", version=1, producer=(7, 0, 0))
    await scene.sees(state)
    again = [scene.append(b"one", version=version, producer=(7, 0, 0)) for version in (0, 1, 2, 3)]
    assert [scene.answer(each) for each in again] == ["0 again"] * 4
    assert scene.stamps == [(0, 0)]


async def test_a_batch_that_may_have_been_stored_once_is_not_told_that_only_its_version_is_old(scene: Scene) -> None:
    """A client that hears STALE_PARTITIONING writes the records elsewhere."""
    for sequence in range(7):
        scene.append(b"one", version=1, producer=(7, 1, sequence))
    await scene.sees(TOLD)
    forgotten = scene.append(b"one", version=1, producer=(7, 1, 0))
    fenced = scene.append(b"one", version=1, producer=(7, 0, 0))
    gap = scene.append(b"one", version=1, producer=(7, 1, 9))
    unknown = scene.append(b"one", version=1, producer=(8, 0, 3))
    assert [scene.answer(each) for each in (forgotten, fenced, gap, unknown)] == [
        "OUT_OF_ORDER_SEQUENCE",
        "PRODUCER_FENCED",
        "STALE_PARTITIONING",
        "STALE_PARTITIONING",
    ]


async def test_records_whose_message_ids_are_all_known_get_their_receipt_under_an_older_version(scene: Scene) -> None:
    scene.append(b"one", version=1, message_id=b"id")
    await scene.sees(TOLD)
    known = scene.append(b"one", version=1, message_id=b"id")
    new = scene.append(b"one", version=1, message_id=b"other")
    assert [scene.answer(known), scene.answer(new)] == ["1 again", "STALE_PARTITIONING"]
    assert scene.stamps == [(0, 0)]


# ---- held batches


async def test_a_batch_of_the_newest_version_is_held_until_the_cutover_is_told(scene: Scene) -> None:
    await scene.sees(AWAITED)
    first = scene.append(b"one", version=2, producer=(7, 0, 0))
    second = scene.append(b"two", version=2, producer=(7, 0, 1))
    assert (scene.answer(first), scene.stamps) == (None, [])
    await scene.sees(TOLD)
    assert [scene.answer(first), scene.answer(second)] == ["0", "1"]
    assert scene.stamps == [(0, 2), (1, 2)]
    context = scene.bench.context
    assert (context.the(BoundsOfAll).held.bytes, context.the(PublishCounters).held_appends) == (0, 2)


async def test_a_batch_of_a_later_version_is_held_until_that_is_applied(scene: Scene) -> None:
    early = scene.append(b"one", version=2)
    await scene.sees(AWAITED)
    assert (scene.answer(early), scene.ends) == (None, [(2, 0)])
    await scene.sees(TOLD)
    assert scene.answer(early) == "0"


async def test_a_batch_that_was_held_is_refused_when_a_still_later_version_comes(scene: Scene) -> None:
    early = scene.append(b"one", version=2)
    await scene.sees(at(3))
    assert (scene.answer(early), scene.stamps) == ("STALE_PARTITIONING", [])


async def test_a_batch_that_was_held_obeys_what_else_has_changed(scene: Scene) -> None:
    early = scene.append(b"one", version=2)
    await scene.sees(replace(TOLD, readonly=True))
    assert (scene.answer(early), scene.stamps) == ("READONLY", [])


async def test_a_batch_is_held_for_a_while_only(scene: Scene) -> None:
    early = scene.append(b"one", version=2)
    scene.loop.run_to(scene.loop.now + HOLD_S - 0.01)
    assert scene.answer(early) is None
    scene.loop.run_to(scene.loop.now + 0.01)
    assert scene.answer(early) == "UNAVAILABLE"
    await scene.sees(TOLD)
    assert (scene.stamps, scene.bench.context.the(BoundsOfAll).held.bytes) == ([], 0)


async def test_a_batch_is_not_held_longer_than_its_client_waits(scene: Scene) -> None:
    early = scene.append(b"one", version=2, timeout_ms=100)
    longer = scene.append(b"two", version=2)
    scene.loop.run_to(scene.loop.now + 0.1)
    assert (scene.answer(early), scene.answer(longer)) == ("UNAVAILABLE", None)
    await scene.sees(TOLD)
    assert (scene.answer(longer), scene.stamps) == ("0", [(0, 2)])


async def test_held_batches_are_bounded_in_number_and_bytes(scene: Scene) -> None:
    held = [scene.append(b"one", version=2) for _ in range(HELD_APPENDS.items + 1)]
    assert [scene.answer(each) for each in held] == [None] * HELD_APPENDS.items + ["BACKPRESSURE"]
    scene.loop.run_to(scene.loop.now + HOLD_S)
    batch = 800_000
    held = [scene.append(bytes(batch), version=2) for _ in range(HELD_APPENDS.bytes // batch + 1)]
    assert [scene.answer(each) for each in held] == [None] * (len(held) - 1) + ["BACKPRESSURE"]
    scene.loop.run_to(scene.loop.now + HOLD_S)
    scene.bench.context.the(BoundsOfAll).held.take(HELD_APPENDS.bytes_of_all)
    assert scene.answer(scene.append(b"one", version=2)) == "BACKPRESSURE"


async def test_held_batches_are_refused_when_the_leadership_ends(scene: Scene) -> None:
    early = scene.append(b"one", version=2)
    await scene.role.end("another leads")
    assert (scene.answer(early), scene.bench.context.the(BoundsOfAll).held.bytes) == ("NOT_LEADER", 0)


# ---- partitions without keys


@pytest.mark.parametrize(
    ("state", "code"),
    [(PREPARED, "STALE_PARTITIONING"), (LEFT, "PARTITION_DRAINING"), (RETIRED, "PARTITION_RETIRED")],
)
async def test_a_partition_without_keys_takes_no_records(scene: Scene, state: PartitionView, code: str) -> None:
    await scene.sees(state)
    tokens = [scene.append(b"one", version=version) for version in (0, state.partitioning_version)]
    assert ([scene.answer(each) for each in tokens], scene.stamps) == ([code] * 2, [])


@pytest.mark.parametrize("state", [PREPARED, LEAVES, LEFT, RETIRED])
async def test_the_end_of_a_transaction_is_taken_in_a_partition_without_keys(
    scene: Scene, state: PartitionView
) -> None:
    await scene.sees(state)
    request = EndTransactionRequest(
        producer_id=FIRST_TRANSACTIONAL_ID,
        producer_epoch=0,
        commits=True,
        stream_incarnation=KEY.stream_incarnation,
        partition_incarnation=KEY.partition_incarnation,
    )
    mark = "tidelog.s.0.mark"
    scene.bench.control.subscribed[mark](Message(mark, request.SerializeToString(), "m"))
    scene.loop.turn()
    assert [base for base, _ in scene.stamps] == [0]


# ---- plain messages


async def test_the_open_batch_is_appended_in_front_of_the_cutover(scene: Scene) -> None:
    scene.bench.syncer.is_quick = False
    scene.plain(b"one")
    scene.plain(b"two")
    assert scene.bench.log.log_end_offset == 1, "the second one waits for the next batch"
    await scene.sees(AWAITED)
    scene.bench.syncer.asked.pop(0)(scene.bench.log.sync())
    assert (scene.stamps, scene.ends) == ([(0, 0), (1, 0)], [(2, 2)])


async def test_a_partition_that_leaves_takes_plain_messages_until_its_cutover_is_told(scene: Scene) -> None:
    scene.plain(b"one")
    await scene.sees(LEAVES)
    assert scene.ends == [(2, 1)]
    ingest = scene.bench.ingest.subscribed["s"]
    scene.plain(b"two")
    await scene.sees(LEFT)
    assert scene.listens == set()
    ingest.on_messages([b"late"], [b"reply.late"], [None])
    ingest.chunk_done()
    scene.loop.turn()
    assert scene.bench.log.log_end_offset == 2
    assert not [data for _, data, _ in scene.bench.control.sent if b"reply.late" in data], "another leader answers"


async def test_a_leader_listens_where_its_view_says(scene: Scene) -> None:
    assert scene.listens == {"s"}
    await scene.sees(replace(TOLD, further_subjects=("s.2", "s.4")))
    assert scene.listens == {"s", "s.2", "s.4"}
    scene.plain(b"one", "s.4")
    assert scene.bench.log.log_end_offset == 1
    await scene.sees(replace(at(3), further_subjects=("s.4",)))
    assert scene.listens == {"s", "s.4"}
    assert scene.role.subjects()[:2] == ["s", "s.4"]


async def test_a_prepared_partition_listens_from_its_cutover_on() -> None:
    async for scene in _scene(PREPARED):
        assert scene.listens == set()
        await scene.sees(replace(at(2), partition_count=1))
        assert scene.listens == {"s"}


async def test_a_retired_partition_is_reported_when_no_record_is_left(scene: Scene) -> None:
    scene.plain(b"one")
    log = scene.bench.log

    def reports() -> list[tuple[int, int]]:
        report_if_retired(scene.role)
        return [(report.leader_epoch, report.expected_epoch) for report in scene.bench.retired]

    await scene.sees(RETIRED)
    assert reports() == [], "there is a record"
    log.roll()
    log.sync()
    log.remove_before(log.log_end_offset)
    assert reports() == [(EPOCH, 4)]
    await scene.sees(replace(LEFT, epoch=PartitionEpoch(5)))
    assert reports() == [(EPOCH, 4)], "it drains, and may be read"


@pytest.mark.parametrize(("isr", "eligible", "goes"), [((A, B), (), True), ((A,), (B,), False), ((A,), (), False)])
async def test_a_retired_partition_stays_while_others_may_hold_records_of_it(
    isr: tuple[BrokerId, ...], eligible: tuple[BrokerId, ...], goes: bool
) -> None:
    """The log of this leader may have been lost, and the removal takes all replicas along."""
    left = view(A, B, isr=isr, min_isr=2, epoch=4)
    async for scene in _scene(replace(left, eligible=eligible, partition_count=0, state=PartitionState.RETIRED)):
        report_if_retired(scene.role)
        assert scene.bench.retired == [], "the other replica has not been heard in this LeaderEpoch"
        fetch = FollowerFetch(
            replica=B,
            incarnation=Incarnation(7),
            leader_epoch=LeaderEpoch(EPOCH),
            sequence=1,
            offset=Offset(0),
            durable_end=Offset(0),
            progress_only=True,
            inbox="",
        )
        scene.role.core.on_fetch(fetch, 0.0)
        report_if_retired(scene.role)
        assert [report.leader for report in scene.bench.retired] == [A] * goes
