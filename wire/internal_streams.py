"""Tidelog's own streams: data that brokers keep in a log rather than in the metadata group.

Each is declared once, here. Its name begins with `__`, which no new stream of a user may. Its subject is
`<ns>.<name>`, which no user's stream could ever have, and by which `is_internal` distinguishes it from a user's stream
of that name: versions without internal streams took names with the prefix. Beyond that it is a stream as all are:
placed, replicated, moved and repaired by the same code, and read by consumers. The differences:
replicated, moved and repaired by the same code, and read by consumers. The differences:

- the controller creates it when it is first needed; nobody alters or deletes it, and lists of streams leave it out
  unless they are asked for it;
- its leader takes records from brokers alone, on `<ns>.<stream>.<partition>.write`: it listens neither on a subject for
  plain publishes nor on `.append`; and it gives them its last committed batch, on `.last`;
- its settings are those of its entry: of the cluster's defaults it takes `encryption` only.

To add one: an entry here, and the code that writes it: `tidelog.server.audit.internal_writer`, or a coordinator
(`tidelog.server.coordinators.driver.coordinator`), which writes beside the leader of the partition, in its process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wire.stream_config import StreamConfig
from wire.subjects import Subjects, ingest_subject
from wire.types import PartitionKey

PREFIX = "__"
_DAY_MS = 24 * 3_600_000
_INHERITED = ("encryption",)
"""Settings that take the cluster's default, if it has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalStream:
    name: str
    help: str
    partitions: int
    settings: StreamConfig

    @property
    def config(self) -> dict[str, str]:
        """The settings as texts, for its creation."""
        return {key: text for key, text in self.settings.to_strings().items() if key not in _INHERITED}


AUDIT = InternalStream(
    name="__audit",
    help="administrative acts, as `tidelog audit` shows them",
    partitions=1,
    settings=StreamConfig(
        reply_acks=False,
        segment_bytes=16 << 20,
        segment_max_age_ms=_DAY_MS,
        retention_max_age_ms=366 * _DAY_MS,
        retention_max_bytes=1 << 30,
    ),
)

ACTIVITY = InternalStream(
    name="__activity",
    help="what happened in the cluster, as `tidelog activity` shows it",
    partitions=1,
    settings=StreamConfig(
        reply_acks=False,
        segment_bytes=16 << 20,
        segment_max_age_ms=_DAY_MS,
        retention_max_age_ms=31 * _DAY_MS,
        retention_max_bytes=256 << 20,
    ),
)

GROUPS = InternalStream(
    name="__groups",
    help="consumer groups, their committed offsets, and cursors",
    partitions=8,
    settings=StreamConfig(reply_acks=False, compact=True, segment_bytes=16 << 20, segment_max_age_ms=_DAY_MS),
)
"""Each partition has a coordinator (`wire.internal_records.group_records`). Their number is fixed: it decides where a
group belongs."""

TRANSACTIONS = InternalStream(
    name="__transactions",
    help="transactional ids, and how far their transactions are",
    partitions=8,
    settings=StreamConfig(reply_acks=False, compact=True, segment_bytes=16 << 20, segment_max_age_ms=_DAY_MS),
)
"""Each partition has a coordinator (`wire.internal_records.transaction_records`). Their number is fixed: it decides
where an id belongs."""

INTERNAL_STREAMS: Mapping[str, InternalStream] = {
    stream.name: stream for stream in (AUDIT, ACTIVITY, GROUPS, TRANSACTIONS)
}
"""Internal streams by name."""


def is_reserved(name: str) -> bool:
    """Whether no user may create a stream of that name. A stream that has it may be a user's, of an earlier version."""
    return name.startswith(PREFIX)


def is_internal(name: str, subject: str, subjects: Subjects) -> bool:
    """Whether a stream is an internal one. `subject`: the stream's; `subjects`: of the cluster."""
    return name in INTERNAL_STREAMS and subject == subjects.internal(name)


def is_of_internal(key: PartitionKey, subject: str, subjects: Subjects) -> bool:
    """Whether a partition is one of an internal stream. `subject`: the partition's."""
    return key.stream in INTERNAL_STREAMS and subject == ingest_subject(subjects.internal(key.stream), key.partition)
