"""Tidelog: durable, partitioned, replicated logs over NATS subjects.

    async with await tidelog.connect("nats://127.0.0.1:4222") as client:
        await client.create_stream("flights", subject="flights", partitions=3, replication_factor=3)
        async with client.producer("flights", acks="all") as producer:
            receipt = await producer.send(b"value", key=b"AA")
        async for record in client.consume("flights", start="earliest", stop="latest"):
            print(record.partition, record.offset, record.value)

Names are imported when they are first used, so that `import tidelog` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tidelog.process.shadowing import check_not_hidden, warn_if_hidden

if TYPE_CHECKING:
    from tidelog.client.base.exceptions import BadConfig as BadConfig
    from tidelog.client.base.exceptions import BadName as BadName
    from tidelog.client.base.exceptions import BadReplicationFactor as BadReplicationFactor
    from tidelog.client.base.exceptions import BadRequest as BadRequest
    from tidelog.client.base.exceptions import BadSubject as BadSubject
    from tidelog.client.base.exceptions import BufferFull as BufferFull
    from tidelog.client.base.exceptions import Closed as Closed
    from tidelog.client.base.exceptions import CorruptBatch as CorruptBatch
    from tidelog.client.base.exceptions import CorruptEnvelope as CorruptEnvelope
    from tidelog.client.base.exceptions import CursorChanged as CursorChanged
    from tidelog.client.base.exceptions import DeliveryTimeout as DeliveryTimeout
    from tidelog.client.base.exceptions import DeserializationFailed as DeserializationFailed
    from tidelog.client.base.exceptions import FencedInstance as FencedInstance
    from tidelog.client.base.exceptions import GroupNotEmpty as GroupNotEmpty
    from tidelog.client.base.exceptions import IncorrectOffset as IncorrectOffset
    from tidelog.client.base.exceptions import LeaderNotMoved as LeaderNotMoved
    from tidelog.client.base.exceptions import LimitReached as LimitReached
    from tidelog.client.base.exceptions import LogTruncated as LogTruncated
    from tidelog.client.base.exceptions import MessageTooLarge as MessageTooLarge
    from tidelog.client.base.exceptions import NoKey as NoKey
    from tidelog.client.base.exceptions import NoServer as NoServer
    from tidelog.client.base.exceptions import NoSpace as NoSpace
    from tidelog.client.base.exceptions import NotAssigned as NotAssigned
    from tidelog.client.base.exceptions import NotEnoughReplicas as NotEnoughReplicas
    from tidelog.client.base.exceptions import NotInTransaction as NotInTransaction
    from tidelog.client.base.exceptions import NotPermitted as NotPermitted
    from tidelog.client.base.exceptions import OffsetOutOfRange as OffsetOutOfRange
    from tidelog.client.base.exceptions import OutOfOrderSequence as OutOfOrderSequence
    from tidelog.client.base.exceptions import PartitionRetired as PartitionRetired
    from tidelog.client.base.exceptions import ProducerFenced as ProducerFenced
    from tidelog.client.base.exceptions import ReadOnly as ReadOnly
    from tidelog.client.base.exceptions import RecordTooLarge as RecordTooLarge
    from tidelog.client.base.exceptions import SerializationFailed as SerializationFailed
    from tidelog.client.base.exceptions import StaleCommit as StaleCommit
    from tidelog.client.base.exceptions import StaleGeneration as StaleGeneration
    from tidelog.client.base.exceptions import StalePartitioning as StalePartitioning
    from tidelog.client.base.exceptions import StreamExists as StreamExists
    from tidelog.client.base.exceptions import SubjectTaken as SubjectTaken
    from tidelog.client.base.exceptions import TransactionAborted as TransactionAborted
    from tidelog.client.base.exceptions import UnknownGroup as UnknownGroup
    from tidelog.client.base.exceptions import UnknownMember as UnknownMember
    from tidelog.client.base.exceptions import UnknownStream as UnknownStream
    from tidelog.client.base.exceptions import UnknownTransaction as UnknownTransaction
    from tidelog.client.base.exceptions import WrongCluster as WrongCluster
    from tidelog.client.base.exceptions import WrongIncarnation as WrongIncarnation
    from tidelog.client.base.read_positions import AtTime as AtTime
    from tidelog.client.base.records import Batch as Batch
    from tidelog.client.base.records import BatchReceipt as BatchReceipt
    from tidelog.client.base.records import Receipt as Receipt
    from tidelog.client.base.records import Record as Record
    from tidelog.client.client import Client as Client
    from tidelog.client.client import connect as connect
    from tidelog.client.consumer.consumer import Consumer as Consumer
    from tidelog.client.group.group_consumer import Committed as Committed
    from tidelog.client.group.group_consumer import GroupConsumer as GroupConsumer
    from tidelog.client.group.named_cursor import Cursor as Cursor
    from tidelog.client.group.named_cursor import CursorValue as CursorValue
    from tidelog.client.producer.producer import Producer as Producer
    from tidelog.client.transaction.prepared_transactions import FamilyCommit as FamilyCommit
    from tidelog.client.transaction.prepared_transactions import PreparedTransaction as PreparedTransaction
    from tidelog.client.transaction.transactional_producer import TransactionalProducer as TransactionalProducer
    from wire.errors import Code as Code
    from wire.errors import TidelogError as TidelogError

check_not_hidden("wire")
warn_if_hidden("metadata", "dataplane")

_ERRORS = (
    "BadConfig", "BadName", "BadReplicationFactor", "BadRequest", "BadSubject", "BufferFull", "Closed", "CorruptBatch",
    "CorruptEnvelope", "CursorChanged", "DeliveryTimeout", "DeserializationFailed", "FencedInstance", "GroupNotEmpty",
    "IncorrectOffset", "LeaderNotMoved", "LimitReached", "LogTruncated", "MessageTooLarge", "NoKey", "NoServer",
    "NoSpace", "NotAssigned", "NotEnoughReplicas", "NotInTransaction", "NotPermitted", "OffsetOutOfRange",
    "OutOfOrderSequence", "PartitionRetired", "ProducerFenced", "ReadOnly", "RecordTooLarge", "SerializationFailed",
    "StaleCommit", "StaleGeneration", "StalePartitioning", "StreamExists", "SubjectTaken", "TransactionAborted",
    "UnknownGroup", "UnknownMember", "UnknownStream", "UnknownTransaction", "WrongCluster", "WrongIncarnation",
)  # fmt: skip

_HOMES = {
    **dict.fromkeys(_ERRORS, "tidelog.client.base.exceptions"),
    "AtTime": "tidelog.client.base.read_positions",
    "Batch": "tidelog.client.base.records",
    "BatchReceipt": "tidelog.client.base.records",
    "Client": "tidelog.client.client",
    "Code": "wire.errors",
    "Committed": "tidelog.client.group.group_consumer",
    "Consumer": "tidelog.client.consumer.consumer",
    "Cursor": "tidelog.client.group.named_cursor",
    "CursorValue": "tidelog.client.group.named_cursor",
    "FamilyCommit": "tidelog.client.transaction.prepared_transactions",
    "GroupConsumer": "tidelog.client.group.group_consumer",
    "PreparedTransaction": "tidelog.client.transaction.prepared_transactions",
    "Producer": "tidelog.client.producer.producer",
    "Receipt": "tidelog.client.base.records",
    "Record": "tidelog.client.base.records",
    "TidelogError": "wire.errors",
    "TransactionalProducer": "tidelog.client.transaction.transactional_producer",
    "connect": "tidelog.client.client",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tidelog' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
