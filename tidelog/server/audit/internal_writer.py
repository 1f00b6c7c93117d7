"""Records that a broker writes into an internal stream (`wire.internal_streams`), and the last record of it.

One batch at a time, to the leader's `.write`, acknowledged as acks=all. An attempt whose answer is lost is repeated by
the caller, and may have been stored: readers recognise repeated records by an id in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from google.protobuf.message import DecodeError

from metadata.cluster.model import Partition, Stream
from metadata.runtime.metadata_service import MetadataService
from wire.batch import BatchBuilder, RecordBatch
from wire.errors import Code, TidelogError
from wire.internal_streams import InternalStream, is_internal
from wire.messaging.transport import NO_RESPONDERS, Message, PeerTransport
from wire.partition_messages.append import encode_append
from wire.protobuf.tidelog_pb2 import AppendRequest, AppendResponse
from wire.subjects import Subjects
from wire.types import LeaderEpoch, Offset, StreamName

CONFIRM_TIMEOUT_S = 5.0
"""Seconds for the ISR to have a batch; then the outcome is unknown."""


class InternalAppender:
    def __init__(
        self, metadata: MetadataService, peers: PeerTransport, subjects: Subjects, time_ns: Callable[[], int]
    ) -> None:
        self._metadata = metadata
        self._peers = peers
        self._subjects = subjects
        self._time_ns = time_ns

    async def append(self, stream: InternalStream, partition: int, values: Sequence[bytes]) -> None:
        """Returns when all of the ISR holds the records. The stream is created first where it is missing, if this
        broker is the controller. Raises TidelogError, TimeoutError; the records may have been written all the same, but
        not after STREAM_EXISTS: a user's stream has the name."""
        name = StreamName(stream.name)
        if name not in self._metadata.state.streams:
            await self._metadata.admin.create_internal(stream)
        known, found = self._led(stream, partition)
        builder = BatchBuilder()
        for value in values:
            builder.add_record(value)
        batch = builder.build(self._time_ns())
        parts, _ = batch.stamp(Offset(0), LeaderEpoch(0))
        request = AppendRequest(
            stream_incarnation=known.incarnation,
            partition_incarnation=found.incarnation,
            leader_epoch=found.leader_epoch,
            acks=AppendRequest.ALL,
            confirm_timeout_ms=round(CONFIRM_TIMEOUT_S * 1000),
        )
        payload = b"".join(bytes(part) for part in encode_append(request, parts))
        answer = await self._ask(self._subjects.write(name, partition), payload)
        try:
            AppendResponse.FromString(answer.data)
        except DecodeError as error:
            raise TidelogError(
                Code.INTERNAL, f"the answer of the leader of {stream.name}/{partition} does not decode: {error}"
            ) from error

    async def last(self, stream: InternalStream, partition: int) -> bytes | None:
        """Returns the last committed value; None: there is none. Raises TidelogError, TimeoutError, CorruptData."""
        name = StreamName(stream.name)
        if name not in self._metadata.state.streams:
            return None
        self._led(stream, partition)
        answer = await self._ask(self._subjects.last(name, partition), b"")
        return RecordBatch.decode(answer.data).values[-1] if answer.data else None

    async def _ask(self, subject: str, payload: bytes) -> Message:
        answer = await self._peers.request(subject, payload, timeout=2 * CONFIRM_TIMEOUT_S)
        if answer.status == NO_RESPONDERS:
            raise TidelogError(Code.UNAVAILABLE, f"nobody listens on {subject}")
        refusal = TidelogError.from_headers(answer.headers)
        if refusal is not None:
            raise refusal
        return answer

    def _led(self, stream: InternalStream, partition: int) -> tuple[Stream, Partition]:
        """Returns the stream and its partition, which has a leader. Raises TidelogError."""
        known = self._metadata.state.streams.get(StreamName(stream.name))
        if known is not None and not is_internal(known.name, known.subject, self._subjects):
            raise TidelogError(
                Code.STREAM_EXISTS,
                f"stream {stream.name}, on subject {known.subject!r}, is a user's, made under an earlier version, and"
                f" has the name of the stream for {stream.help}, which cannot be written: copy the records that you"
                f" need to another stream and delete this one (`tidelog stream delete {stream.name}`)",
            )
        found = None if known is None else known.partitions.get(partition)
        if known is None or found is None or found.leader is None:
            raise TidelogError(Code.UNAVAILABLE, f"nobody leads {stream.name}/{partition} now")
        return known, found
