"""Answers of a leader to its followers, decoded and checked before the follower's state machine sees them.

Answers to requests for snapshots are in `dataplane.broker.snapshot_copying`.
"""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError

from dataplane.replica.follower_states import FetchAnswer, OffsetAnswer
from wire.batch import BatchHeader, iter_batches, verify_body
from wire.error_details import LEADER_EPOCH, LOG_START
from wire.errors import Code, CorruptData, TidelogError
from wire.messaging.transport import Message
from wire.partition_messages.replication import HEADER_SIZE, decode_header, sync_wanted
from wire.protobuf.tidelog_pb2 import LeaderEpochOffsetResponse
from wire.types import LeaderEpoch, Offset, PartitionEpoch


class Batches(NamedTuple):
    """The batches of an answer: their bytes, and their headers in order."""

    data: memoryview
    headers: list[BatchHeader]


def decode_fetch_answer(sequence: int, message: Message) -> tuple[FetchAnswer, Batches | None] | None:
    """None: a refusal that tells nothing of the leader. Raises CorruptData."""
    error = TidelogError.from_headers(message.headers)
    try:
        leader_epoch, high_watermark = decode_header(message.data)
    except CorruptData:
        if error is None:
            raise
        return None
    if error is not None and error.code is Code.OFFSET_BEFORE_LOG and error.detail(LOG_START) is None:
        raise CorruptData(f"{error.code.name} without a log start that is a number")
    batches = None
    if error is None and len(message.data) > HEADER_SIZE:
        data = memoryview(message.data)[HEADER_SIZE:]
        batches = Batches(data, _checked_headers(data, leader_epoch))
    answer = FetchAnswer(
        sequence=sequence,
        leader_epoch=leader_epoch,
        high_watermark=high_watermark,
        first_offset=batches.headers[0].base_offset if batches is not None else None,
        sync_to=sync_wanted(message.headers),
        error=error,
    )
    return answer, batches


def _checked_headers(data: memoryview, leader_epoch: LeaderEpoch) -> list[BatchHeader]:
    """Checks both CRCs of every batch, and that they follow one another."""
    headers: list[BatchHeader] = []
    for at, header in iter_batches(data):
        verify_body(data, at, header)
        if headers and header.base_offset < headers[-1].end_offset:
            raise CorruptData(f"batch at offset {header.base_offset} begins before {headers[-1].end_offset}")
        if header.leader_epoch > leader_epoch or (headers and header.leader_epoch < headers[-1].leader_epoch):
            raise CorruptData(
                f"batch at offset {header.base_offset} has LeaderEpoch {header.leader_epoch} out of order"
            )
        headers.append(header)
    return headers


def decode_offset_answer(number: int, message: Message, asked_in: LeaderEpoch) -> OffsetAnswer:
    """`asked_in`: the epoch of an answer that tells none. Raises CorruptData."""
    error = TidelogError.from_headers(message.headers)
    response = LeaderEpochOffsetResponse()
    epoch = asked_in
    if error is None:
        try:
            response.ParseFromString(message.data)
        except DecodeError as e:
            raise CorruptData(f"it is no LeaderEpochOffsetResponse: {e}") from None
        epoch = LeaderEpoch(response.current_leader_epoch)
    elif LEADER_EPOCH.name in error.details:
        told = error.detail(LEADER_EPOCH)
        if told is None:
            raise CorruptData("its LeaderEpoch is no number")
        epoch = LeaderEpoch(told)
    return OffsetAnswer(
        number=number,
        leader_epoch=epoch,
        epoch=LeaderEpoch(response.leader_epoch),
        end=Offset(response.endOffset),
        log_start_offset=Offset(response.log_start_offset),
        partition_epoch=PartitionEpoch(response.partition_epoch),
        error=error,
    )
