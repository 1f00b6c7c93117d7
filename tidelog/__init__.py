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

from tidelog.shadowing import check_not_hidden, warn_if_hidden

if TYPE_CHECKING:
    from tidelog.client.connecting import connect as connect
    from tidelog.client.connection import Client as Client
    from tidelog.client.consumer import Consumer as Consumer
    from tidelog.client.cursors import Cursor as Cursor
    from tidelog.client.cursors import CursorValue as CursorValue
    from tidelog.client.errors import BadConfig as BadConfig
    from tidelog.client.errors import BadName as BadName
    from tidelog.client.errors import BadReplicationFactor as BadReplicationFactor
    from tidelog.client.errors import BadRequest as BadRequest
    from tidelog.client.errors import BadSubject as BadSubject
    from tidelog.client.errors import BufferFull as BufferFull
    from tidelog.client.errors import Closed as Closed
    from tidelog.client.errors import CorruptBatch as CorruptBatch
    from tidelog.client.errors import CorruptEnvelope as CorruptEnvelope
    from tidelog.client.errors import CursorChanged as CursorChanged
    from tidelog.client.errors import DeliveryTimeout as DeliveryTimeout
    from tidelog.client.errors import DeserializationFailed as DeserializationFailed
    from tidelog.client.errors import FencedInstance as FencedInstance
    from tidelog.client.errors import GroupNotEmpty as GroupNotEmpty
    from tidelog.client.errors import IncorrectOffset as IncorrectOffset
    from tidelog.client.errors import LeaderNotMoved as LeaderNotMoved
    from tidelog.client.errors import LimitReached as LimitReached
    from tidelog.client.errors import LogTruncated as LogTruncated
    from tidelog.client.errors import MessageTooLarge as MessageTooLarge
    from tidelog.client.errors import NoKey as NoKey
    from tidelog.client.errors import NoServer as NoServer
    from tidelog.client.errors import NoSpace as NoSpace
    from tidelog.client.errors import NotAssigned as NotAssigned
    from tidelog.client.errors import NotEnoughReplicas as NotEnoughReplicas
    from tidelog.client.errors import NotInTransaction as NotInTransaction
    from tidelog.client.errors import NotPermitted as NotPermitted
    from tidelog.client.errors import OffsetOutOfRange as OffsetOutOfRange
    from tidelog.client.errors import OutOfOrderSequence as OutOfOrderSequence
    from tidelog.client.errors import PartitionRetired as PartitionRetired
    from tidelog.client.errors import ProducerFenced as ProducerFenced
    from tidelog.client.errors import ReadOnly as ReadOnly
    from tidelog.client.errors import RecordTooLarge as RecordTooLarge
    from tidelog.client.errors import SerializationFailed as SerializationFailed
    from tidelog.client.errors import StaleCommit as StaleCommit
    from tidelog.client.errors import StaleGeneration as StaleGeneration
    from tidelog.client.errors import StalePartitioning as StalePartitioning
    from tidelog.client.errors import StreamExists as StreamExists
    from tidelog.client.errors import SubjectTaken as SubjectTaken
    from tidelog.client.errors import TransactionAborted as TransactionAborted
    from tidelog.client.errors import UnknownGroup as UnknownGroup
    from tidelog.client.errors import UnknownMember as UnknownMember
    from tidelog.client.errors import UnknownStream as UnknownStream
    from tidelog.client.errors import UnknownTransaction as UnknownTransaction
    from tidelog.client.errors import WrongCluster as WrongCluster
    from tidelog.client.errors import WrongIncarnation as WrongIncarnation
    from tidelog.client.group_consumer import Committed as Committed
    from tidelog.client.group_consumer import GroupConsumer as GroupConsumer
    from tidelog.client.positions import AtTime as AtTime
    from tidelog.client.prepared import FamilyCommit as FamilyCommit
    from tidelog.client.prepared import PreparedTransaction as PreparedTransaction
    from tidelog.client.producer import Producer as Producer
    from tidelog.client.records import Batch as Batch
    from tidelog.client.records import BatchReceipt as BatchReceipt
    from tidelog.client.records import Receipt as Receipt
    from tidelog.client.records import Record as Record
    from tidelog.client.transactional_producer import TransactionalProducer as TransactionalProducer
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
    **dict.fromkeys(_ERRORS, "tidelog.client.errors"),
    "AtTime": "tidelog.client.positions",
    "Batch": "tidelog.client.records",
    "BatchReceipt": "tidelog.client.records",
    "Client": "tidelog.client.connection",
    "Code": "wire.errors",
    "Committed": "tidelog.client.group_consumer",
    "Consumer": "tidelog.client.consumer",
    "Cursor": "tidelog.client.cursors",
    "CursorValue": "tidelog.client.cursors",
    "FamilyCommit": "tidelog.client.prepared",
    "GroupConsumer": "tidelog.client.group_consumer",
    "PreparedTransaction": "tidelog.client.prepared",
    "Producer": "tidelog.client.producer",
    "Receipt": "tidelog.client.records",
    "Record": "tidelog.client.records",
    "TidelogError": "wire.errors",
    "TransactionalProducer": "tidelog.client.transactional_producer",
    "connect": "tidelog.client.connecting",
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
