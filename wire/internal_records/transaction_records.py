"""Transactions on the wire: where their coordinators listen, and the keys of the records that they keep.

A transactional id belongs to one partition of the internal stream `__transactions`, by its hash. The leader of that
partition is its coordinator. Producers ask it on

    <ns>.__transactions.<partition>.<kind>.<family>                     kind: init, end, end-family, family
    <ns>.__transactions.<partition>.add-partitions.<family>.<stream>
    <ns>.__transactions.<partition>.add-offsets.<family>.<group>

so that permissions of NATS can be given for one family, and for the streams and groups that its transactions may take
in: a marker is written where a transaction has taken part, whether or not records of it are there. The messages are
those of `wire/protobuf/transactions.proto`; errors stand in the headers of the answer, as everywhere.

A transactional id may be one of a family: FAMILY~CHILD. All of a family have one coordinator, since their partition is
the hash of FAMILY. An id without a tilde is a family of its own.

Where a transaction ends, its coordinator notifies the leader of each partition that takes part on `Subjects.mark`, and
the coordinator of each group on `Subjects.coordinate`, with GROUP_END in place of an operation of the API.

The stream is compacted. A key is a kind and a name, which cannot contain the zero byte between them:

    t ID     TransactionRecord
    f FAMILY FamilyRecord
    n        ProducerIds
    b        nothing: that it was committed proves that its LeaderEpoch lasts
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final, NamedTuple

from wire.internal_streams import TRANSACTIONS
from wire.names import check_name
from wire.operations.api_operations import Done
from wire.operations.operation import Operation
from wire.subjects import Subjects
from wire.types import FIRST_TRANSACTIONAL_ID, StreamName

INIT: Final = "init"
ADD_PARTITIONS: Final = "add-partitions"
"""An AddRequest with partitions of one stream."""
ADD_OFFSETS: Final = "add-offsets"
"""An AddRequest with one group."""
END: Final = "end"
END_FAMILY: Final = "end-family"
FAMILY: Final = "family"
ADDS: Final = (ADD_PARTITIONS, ADD_OFFSETS)
"""Kinds whose subject has a second name: that of the stream or of the group."""
KINDS: Final = (INIT, *ADDS, END, END_FAMILY, FAMILY)

MAX_PARTICIPANTS: Final = 1000
"""Limit of the partitions and groups of one transaction."""
MAX_ADDED: Final = 500
"""Limit of the partitions and groups of one request."""
MAX_MEMBERS: Final = 1000
"""Limit of the transactions of one family that are committed together."""
MAX_SEQUENCE: Final = (1 << 63) - 1
"""The highest sequence of a family's commits."""
MAX_METADATA: Final = 512
"""Limit of the characters that are kept with a family's commit."""
MIN_TIMEOUT_MS: Final = 100
DEFAULT_TIMEOUT_MS: Final = 60_000
MAX_TIMEOUT_MS: Final = 900_000
MAX_EPOCH: Final = (1 << 31) - 2
"""A producer with this epoch gets a new id when it begins anew."""

TILDE: Final = "~"
_SEPARATOR: Final = b"\0"
_SERIAL_BITS: Final = 56


def check_transactional_id(name: str) -> str:
    """Returns NAME, or FAMILY~CHILD. Raises TidelogError(BAD_NAME)."""
    if TILDE not in str(name):
        return check_name(name, "transactional id")
    family, _, child = name.partition(TILDE)
    check_family(family)
    check_name(child, f"what is behind the tilde of transactional id {family}{TILDE}…:")
    return name


def check_family(name: str) -> str:
    """Returns the name. Raises TidelogError(BAD_NAME)."""
    return check_name(name, "the family of transactional ids")


def family_of(transactional_id: str) -> str:
    """Returns the family of an id; an id without a tilde is a family of its own."""
    return transactional_id.partition(TILDE)[0]


def child_id(family: str, child: str) -> str:
    return f"{family}{TILDE}{child}"


def coordinator_partition(transactional_id: str) -> int:
    """The partition of `__transactions` to which an id, or a family, belongs."""
    return zlib.crc32(family_of(transactional_id).encode()) % TRANSACTIONS.partitions


def coordinator_subject(subjects: Subjects, kind: str, transactional_id: str, *added: str) -> str:
    """The subject on which the coordinator of an id, or of a family, takes requests of that kind. `added`: of ADDS, the
    stream or the group."""
    partition, family = coordinator_partition(transactional_id), family_of(transactional_id)
    return subjects.coordinator(StreamName(TRANSACTIONS.name), partition, kind, family, *added)


def producer_id(partition: int, serial: int) -> int:
    """Returns the `serial`th id, from 0, that the coordinators of a partition of `__transactions` give out. No other
    producer has it."""
    return FIRST_TRANSACTIONAL_ID | partition << _SERIAL_BITS | serial


@dataclass(frozen=True, slots=True)
class EndInGroup:
    group: str
    producer_id: int
    producer_epoch: int
    """The epoch of the transaction that ends."""
    commits: bool


GROUP_END = Operation(
    name="group.end",
    request=EndInGroup,
    answer=Done,
    help="a transaction has ended: its offsets of the group are committed, or given up",
    writes=True,
)
"""Not an operation of the API: only brokers request it."""


# ---- keys of the records -------------------------------------------------------------------------------------------


class TransactionKey(NamedTuple):
    transactional_id: str

    def encode(self) -> bytes:
        return b"t" + _SEPARATOR + self.transactional_id.encode()


class FamilyKey(NamedTuple):
    family: str

    def encode(self) -> bytes:
        return b"f" + _SEPARATOR + self.family.encode()


class ProducerIdsKey(NamedTuple):
    def encode(self) -> bytes:
        return b"n"


class BarrierKey(NamedTuple):
    def encode(self) -> bytes:
        return b"b"


RecordKey = TransactionKey | FamilyKey | ProducerIdsKey | BarrierKey


def decode_key(key: bytes) -> RecordKey:
    """Raises ValueError for a key of no kind that this version knows."""
    match key.decode().split(_SEPARATOR.decode()):
        case ["t", transactional_id]:
            return TransactionKey(transactional_id)
        case ["f", family]:
            return FamilyKey(family)
        case ["n"]:
            return ProducerIdsKey()
        case ["b"]:
            return BarrierKey()
        case _:
            pass
    raise ValueError(f"{key!r} is no key of {TRANSACTIONS.name}")
