"""A transactional producer that is messages, so that a test decides when each of them is sent, and sends it again."""

from __future__ import annotations

import asyncio
from typing import Any

import tidelog
from tests.integration.rig.waiting import LIMIT
from tidelog.nats.nats_connection import NatsConnection
from tidelog.server.devcluster import DevCluster
from wire.batch import BatchBuilder
from wire.error_details import REASON
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import COMMIT
from wire.internal_records.group_records import coordinator_subject as subject_of_group
from wire.internal_records.transaction_records import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    END,
    INIT,
    coordinator_partition,
    coordinator_subject,
)
from wire.internal_streams import TRANSACTIONS
from wire.operations.transaction_operations import TRANSACTION_COORDINATOR
from wire.partition_messages.append import encode_append
from wire.protobuf.groups_pb2 import CommitRequest, CommitResponse, CommittedOffset
from wire.protobuf.tidelog_pb2 import AppendRequest, AppendResponse
from wire.protobuf.transactions_pb2 import (
    AddRequest,
    AddResponse,
    EndRequest,
    EndResponse,
    InitRequest,
    InitResponse,
    TransactionPartition,
)
from wire.security.batch_proofs import add_batch_proof
from wire.security.tickets import partition_target
from wire.security.transaction_proofs import add_proof
from wire.subjects import Subjects
from wire.types import LeaderEpoch, Offset, StreamName

SUBJECTS = Subjects()


class MessageProducer:
    """Asks until it is answered; refusals that pass are asked again."""

    def __init__(self, cluster: DevCluster, nats: NatsConnection, client: tidelog.Client, name: str) -> None:
        self.cluster, self.nats, self.client, self.name = cluster, nats, client, name
        self.id = self.epoch = 0
        self.key = b""
        self._tickets: dict[tuple[str, int], bytes] = {}
        self._sequences: dict[tuple[str, int], int] = {}

    async def make_streams(self) -> None:
        """Tidelog's own."""
        await self.client._api.call(TRANSACTION_COORDINATOR, self.name)

    async def ask(self, subject: str, payload: bytes) -> bytes:
        async with asyncio.timeout(3 * LIMIT):
            while True:
                try:
                    message = await self.nats.request(subject, payload, timeout=2)
                except TimeoutError:
                    continue
                error = TidelogError.from_headers(message.headers)
                if message.status is None and error is None:
                    return message.data
                if error is not None:
                    reason = error.detail(REASON)  # a request without a LeaderEpoch is refused with it
                    error = error if reason is None else TidelogError(Code[reason], error.message)
                    if not error.retriable:
                        raise error
                await asyncio.sleep(0.05)

    async def _ask(self, kind: str, request: Any, *added: str) -> bytes:
        return await self.ask(coordinator_subject(SUBJECTS, kind, self.name, *added), request.SerializeToString())

    async def init(self, timeout: float = 60.0) -> None:
        request = InitRequest(transactional_id=self.name, timeout_ms=round(timeout * 1000), client="a test")
        answer = InitResponse.FromString(await self._ask(INIT, request))
        self.id, self.epoch, self.key = answer.producer_id, answer.producer_epoch, answer.key

    async def add(self, *partitions: tuple[str, int], groups: tuple[str, ...] = ()) -> None:
        for stream, partition in partitions:
            life = await self._life(stream, partition)
            self._tickets[stream, partition] = await self._added(ADD_PARTITIONS, stream, partitions=[life])
        for group in groups:
            self._tickets[group, -1] = await self._added(ADD_OFFSETS, group, groups=[group])

    async def _added(self, kind: str, added: str, **what: Any) -> bytes:
        """The ticket."""
        request = AddRequest(transactional_id=self.name, producer_id=self.id, producer_epoch=self.epoch, **what)
        add_proof(request, self.key)
        (ticket,) = AddResponse.FromString(await self._ask(kind, request, added)).tickets
        return ticket

    async def _life(self, stream: str, partition: int) -> TransactionPartition:
        known = await self.client.metadata(stream)
        return TransactionPartition(
            stream=stream,
            stream_incarnation=known.incarnation,
            partition=partition,
            partition_incarnation=known.partitions[partition].incarnation,
        )

    async def write(self, stream: str, partition: int, *values: str) -> None:
        """One batch, acknowledged."""
        life = await self._life(stream, partition)
        sequence = self._sequences.get((stream, partition), 0)
        builder = BatchBuilder()
        for value in values:
            builder.add_record(value.encode(), None)
        batch = builder.build(
            1,
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        request = AppendRequest(
            stream_incarnation=life.stream_incarnation,
            partition_incarnation=life.partition_incarnation,
            acks=AppendRequest.ALL,
            ticket=self._tickets[stream, partition],
        )
        parts, _ = batch.stamp(Offset(0), LeaderEpoch(0))
        target = partition_target(stream, life.stream_incarnation, partition, life.partition_incarnation)
        add_batch_proof(request, self.key, target, parts)
        payload = b"".join(bytes(part) for part in encode_append(request, parts))
        AppendResponse.FromString(await self.ask(SUBJECTS.append(StreamName(stream), partition), payload))
        self._sequences[stream, partition] = sequence + len(values)

    async def commit_offset(self, group: str, stream: str, partition: int, offset: int) -> None:
        life = await self._life(stream, partition)
        request = CommitRequest(
            group=group,
            producer_id=self.id,
            producer_epoch=self.epoch,
            ticket=self._tickets[group, -1],
            offsets=[
                CommittedOffset(stream=stream, incarnation=life.stream_incarnation, partition=partition, offset=offset)
            ],
        )
        add_proof(request, self.key)
        CommitResponse.FromString(
            await self.ask(subject_of_group(SUBJECTS, COMMIT, group), request.SerializeToString())
        )

    def end_request(self, *, commits: bool = True) -> bytes:
        request = EndRequest(
            transactional_id=self.name, producer_id=self.id, producer_epoch=self.epoch, commits=commits
        )
        add_proof(request, self.key)
        return request.SerializeToString()

    async def end(self, *, commits: bool = True) -> EndResponse:
        subject = coordinator_subject(SUBJECTS, END, self.name)
        answer = EndResponse.FromString(await self.ask(subject, self.end_request(commits=commits)))
        self.epoch = answer.next_epoch
        self._tickets.clear()
        self._sequences.clear()
        return answer

    async def refused(self, *, commits: bool) -> Code:
        try:
            await self.end(commits=commits)
        except TidelogError as error:
            return error.code
        raise AssertionError("the end was not refused")

    async def coordinator(self) -> str:
        """The broker."""
        return await self.leader(TRANSACTIONS.name, coordinator_partition(self.name))

    async def leader(self, stream: str, partition: int) -> str:
        async with asyncio.timeout(LIMIT):
            while True:
                leader = (await self.client.describe(stream))["partitions"][partition]["leader"]
                if leader is not None:
                    return leader
                await asyncio.sleep(0.05)
