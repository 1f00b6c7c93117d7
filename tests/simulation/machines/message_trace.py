"""Describes messages for the trace of a run: requests and answers of the data plane, and requests of brokers to the
controller. Probes and requests of the API are left out, because they are many and say little."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from tidelog.nats.header_block import decode_headers
from tidelog.server.peers.peer_tags import TRAILER_BYTES
from wire.batch import iter_batches
from wire.errors import CorruptData, TidelogError
from wire.messaging.packed import decode_pack
from wire.messaging.transport import NO_RESPONDERS, Message
from wire.partition_messages.append import decode_append
from wire.partition_messages.replication import HEADER_SIZE, decode_header
from wire.protobuf import metadata_pb2 as meta
from wire.protobuf import tidelog_pb2 as pb
from wire.subjects import Subjects

MAX_INBOXES = 20_000
_SUBJECTS = Subjects()


class MessageTrace:
    def __init__(self) -> None:
        self._asked: dict[str, str] = {}
        """Inbox -> the subject on which the answer to it was asked for."""

    def sent(self, message: Message) -> None:
        for each in _unpacked(message):
            self._sent(each)

    def _sent(self, message: Message) -> None:
        if message.reply is not None and not message.subject.startswith("tidelog.metadata."):
            self._asked[message.reply] = message.subject
            if len(self._asked) > MAX_INBOXES:
                del self._asked[next(iter(self._asked))]

    def of(self, message: Message) -> str | None:
        """The line of the trace, of a pack those of its frames; None when the message has none."""
        lines = [line for each in _unpacked(message) if (line := self._of(each)) is not None]
        return "\n".join(lines) or None

    def _of(self, message: Message) -> str | None:
        asked = self._asked.get(message.subject)
        if message.status is None and _SUBJECTS.is_between_brokers(asked or message.subject):
            message = message._replace(data=message.data[:-TRAILER_BYTES])
        try:
            return _request(message) if asked is None else _answer(asked, message)
        except (CorruptData, DecodeError):
            return f"{asked or message.subject}: {len(message.data)} bytes that do not decode"


def _unpacked(message: Message) -> list[Message]:
    """The frames of a pack, as they would have travelled alone; of any other message itself."""
    if not message.subject.endswith(".packed"):
        return [message]
    try:
        frames = decode_pack(message.data[:-TRAILER_BYTES])
    except CorruptData:
        return []  # a forger's
    return [
        Message(
            frame.subject.decode(),
            bytes(frame.payload) + bytes(TRAILER_BYTES),
            frame.reply.decode() or None,
            decode_headers(frame.headers)[0] if frame.headers else None,
            NO_RESPONDERS if frame.nobody_listens else None,
        )
        for frame in frames
    ]


def _request(message: Message) -> str | None:
    subject, data = message.subject, message.data
    what: str | None = None
    if subject.endswith(".replicate"):
        fetch = pb.ReplicationRequest.FromString(data)
        synced = f", synced to {fetch.durable_offset}" if fetch.HasField("durable_offset") else ""
        kind = "reports" if fetch.progress_only else "fetches from"
        what = f"{fetch.replicaID} {kind} {fetch.offset} in e{fetch.leaderEpoch} #{fetch.sequence}{synced}"
    elif subject.endswith(".offset"):
        asks = pb.LeaderEpochOffsetRequest.FromString(data)
        what = f"{asks.replica_id} asks where e{asks.leaderEpoch} ends, in e{asks.current_leader_epoch}"
    elif subject.endswith(".checkpoint"):
        wants = pb.SnapshotRequest.FromString(data)
        at = f"offset {wants.offset}" if wants.HasField("offset") else "the log start"
        what = f"{wants.replica_id} asks for the state at {at} from byte {wants.position}, in e{wants.leader_epoch}"
    elif subject.endswith(".append"):
        append, batch = decode_append(data)
        records = ", ".join(
            f"{header.record_count} records"
            + (f" of producer {header.producer_id} from #{header.base_sequence}" if header.producer_id >= 0 else "")
            for _, header in iter_batches(batch)
        )
        what = f"append of {records} in e{append.leader_epoch}, acks {pb.AppendRequest.Acks.Name(append.acks)}"
    elif ".notify." in subject:
        notified = pb.PartitionNotification.FromString(data)
        what = f"new data in {notified.stream}/{notified.partition} e{notified.leader_epoch}"
    elif subject == _SUBJECTS.controller():
        what = _controller_request(meta.ControllerRequest.FromString(data))
    return None if what is None else f"<- {subject.removeprefix('tidelog.')}: {what}"


def _controller_request(request: meta.ControllerRequest) -> str:
    changes = [
        f"{item.leader} wants ISR {','.join(life.broker for life in item.new_isr)} at p{item.expected_epoch}"
        for item in request.alter_isr.items
    ]
    reports = [
        f"{item.replica} reports {item.leader}, e{item.leader_epoch} of"
        f" {item.partition.stream}/{item.partition.partition}"
        for item in request.report_leaders.items
    ]
    return "; ".join(changes + reports) or f"{request.broker} asks for {request.WhichOneof('body')}"


def _answer(asked: str, message: Message) -> str | None:
    where = f"<- answer on {asked.removeprefix('tidelog.')}:"
    if message.status == NO_RESPONDERS:
        return f"{where} nobody listens"
    error = TidelogError.from_headers(message.headers)
    if error is not None:
        return f"{where} {error.code.name}"
    if asked.endswith(".offset"):
        ends = pb.LeaderEpochOffsetResponse.FromString(message.data)
        return f"{where} e{ends.leader_epoch} ends at {ends.endOffset}, in e{ends.current_leader_epoch}"
    if asked.endswith(".checkpoint"):
        piece = pb.SnapshotResponse.FromString(message.data[HEADER_SIZE:])
        end = piece.position + len(piece.piece)
        return f"{where} bytes {piece.position} to {end} of {piece.size} of the state at {piece.offset}"
    if asked.endswith(".append"):
        done = pb.AppendResponse.FromString(message.data)
        return f"{where} at {done.base_offset} in e{done.leader_epoch}{', a duplicate' if done.duplicate else ''}"
    if asked.endswith(".replicate") or ".fetch" in asked:
        epoch, high_watermark = decode_header(message.data)
        return f"{where} e{epoch} HW {high_watermark} {_batches(memoryview(message.data)[HEADER_SIZE:])}"
    return None


def _batches(data: memoryview) -> str:
    """`[3,5)e1`: records 3 and 4, of LeaderEpoch 1."""
    found = [f"[{header.base_offset},{header.end_offset})e{header.leader_epoch}" for _, header in iter_batches(data)]
    return " ".join(found) or "empty"
