"""Participants of a transaction, and the message that notifies each of its end."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from tidelog.server.coordinators.known_streams import StreamsView
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import StreamPartition, check_group_name
from wire.internal_records.group_records import coordinator_partition as coordinator_of_group
from wire.internal_records.transaction_records import GROUP_END
from wire.internal_streams import GROUPS
from wire.operations import json_codec
from wire.protobuf.tidelog_pb2 import EndTransactionRequest
from wire.protobuf.transactions_pb2 import TransactionPartition
from wire.security.tickets import group_target, partition_target
from wire.subjects import Subjects, check_stream_name
from wire.types import StreamName


class PartitionIn(NamedTuple):
    """A partition, with the incarnations in which records of the transaction are written to it."""

    stream: str
    stream_incarnation: int
    partition: int
    partition_incarnation: int

    def __str__(self) -> str:
        return f"{self.stream}/{self.partition}"

    @property
    def target(self) -> str:
        """The target of its ticket."""
        return partition_target(*self)

    @property
    def of(self) -> StreamPartition:
        return StreamPartition(self.stream, self.stream_incarnation, self.partition)

    def is_unknown(self, view: StreamsView) -> bool:
        """The partition may exist: its metadata is not applied here yet."""
        return max(self.stream_incarnation, self.partition_incarnation) > view.generation

    def is_gone(self, view: StreamsView) -> bool:
        """This incarnation of the stream or of the partition has ended, or never was."""
        return not self.is_unknown(view) and view.partition_incarnation(self.of) != self.partition_incarnation

    def check(self, view: StreamsView, broker: str) -> None:
        """Raises TidelogError: it cannot take part."""
        check_stream_name(self.stream)
        if self.is_unknown(view):
            raise TidelogError(Code.UNAVAILABLE, f"{broker} does not know partition {self} of that life yet; try again")
        if self.is_gone(view):
            raise TidelogError(
                Code.WRONG_INCARNATION,
                f"there is no partition {self} of that life; the stream was deleted, and maybe created again",
            )

    def to_record(self) -> TransactionPartition:
        return TransactionPartition(**self._asdict())

    @classmethod
    def of_record(cls, record: TransactionPartition) -> PartitionIn:
        return cls(record.stream, record.stream_incarnation, record.partition, record.partition_incarnation)


class GroupIn(NamedTuple):
    """A consumer group, whose offsets the transaction commits."""

    group: str

    def __str__(self) -> str:
        return f"group {self.group}"

    @property
    def target(self) -> str:
        """The target of its ticket."""
        return group_target(self.group)

    def is_gone(self, view: StreamsView) -> bool:  # noqa: ARG002 - a partition's answer depends on it
        return False

    def check(self, view: StreamsView, broker: str) -> None:  # noqa: ARG002 - as above
        """Raises TidelogError: there can be no such group."""
        check_group_name(self.group)


Participant: TypeAlias = PartitionIn | GroupIn


class Told(NamedTuple):
    """Notifies a participant of the end of a transaction. It is a `Delivery`."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commits: bool
    to: Participant

    def subject(self, subjects: Subjects) -> str:
        match self.to:
            case PartitionIn(stream=stream, partition=partition):
                return subjects.mark(StreamName(stream), partition)
            case GroupIn(group=group):
                return subjects.coordinate(StreamName(GROUPS.name), coordinator_of_group(group))

    def payload(self) -> bytes:
        match self.to:
            case PartitionIn() as to:
                return EndTransactionRequest(
                    producer_id=self.producer_id,
                    producer_epoch=self.producer_epoch,
                    commits=self.commits,
                    stream_incarnation=to.stream_incarnation,
                    partition_incarnation=to.partition_incarnation,
                ).SerializeToString()
            case GroupIn(group=group):
                request = {
                    "group": group,
                    "producer_id": self.producer_id,
                    "producer_epoch": self.producer_epoch,
                    "commits": self.commits,
                }
                return json_codec.encode({"operation": GROUP_END.name, "request": request})
