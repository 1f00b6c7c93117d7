"""The cheap part of `scripts/fuzz --stored`: what a leader takes, of all that can be appended, every reader can read.
No process, no network: the leader's checks and the readers' decoding alone."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from dataplane.broker.leading.ingest import Ingest
from dataplane.replica.leader.ack_levels import AckLevel
from dataplane.replica.leader.append_rules import STORE, Decision, PublishRun
from scripts.faults.fuzz_stored import Appendables
from spark_connector.shared.arrow_rows import ArrowRows, spark_schema
from tidelog.cli.records.records_json import from_json, headers_to_json, to_json
from tidelog.client.base.records import Batch, Record
from wire.batch import Compression, EncodedBatch, RecordBatch, encode_headers, header_items
from wire.batch.encoded import RecordLimit
from wire.errors import CorruptData, TidelogError
from wire.protobuf.tidelog_pb2 import Message
from wire.types import LeaderEpoch, Offset

LIMIT = RecordLimit(200_000)
APPENDS = 200


class TakesAll:
    """A leader that stores whatever can be read."""

    def __init__(self, keep: Callable[[EncodedBatch], None], some: Appendables) -> None:
        self._keep = keep
        self._some = some
        self.refused = 0
        self.ingest = Ingest(self, is_inbox=lambda _: True, time_ns=lambda: 5)

    def decide(self, publish: PublishRun) -> Decision:
        return STORE

    def seal(self) -> None:
        self._keep(self.ingest.take(self._some.rng.choice([*Compression])).batch)

    def wants_batch(self) -> bool:
        return True

    def _count(self, *_: object) -> None:
        self.refused += 1

    on_refused = on_denied = on_envelope_refused = on_repetition = _count


def taken(seed: int) -> tuple[list[bytes], int]:
    """The batches that a leader stores of some appends, and how many of them it refused."""
    some = Appendables(seed)
    stored: list[bytes] = []

    def keep(batch: EncodedBatch) -> None:
        stored.append(b"".join(map(bytes, batch.stamp(Offset(len(stored) * 100), LeaderEpoch(1), 5)[0])))

    leader = TakesAll(keep, some)
    ingest = leader.ingest
    ingest.configure(
        level=AckLevel(is_local=False, is_synced=True),
        max_batch_bytes=1 << 20,
        record_limit=LIMIT,
        with_replies=True,
        seeks_repetitions=False,
    )
    for number in range(APPENDS):
        value = b"append %d" % number
        match some.rng.randrange(3):
            case 0:
                many = some.rng.choice((1, 2, 10))
                ingest.on_messages([value] * many, [None] * many, [some.block() for _ in range(many)])
            case 1:
                ingest.on_messages([some.envelope(value, "inbox")[0]], [None], [None])
            case _:
                batch, _ = some.batch([value] * 3)
                try:
                    keep(EncodedBatch.from_bytes(batch, max_body_bytes=1 << 20, record_limit=LIMIT))
                except (CorruptData, TidelogError):
                    leader.refused += 1
        ingest.chunk_done()
    return stored, leader.refused


@pytest.mark.parametrize("seed", range(3))
def test_what_a_leader_takes_every_reader_reads(seed: int) -> None:
    stored, refused = taken(seed)
    assert len(stored) + refused > APPENDS
    assert min(len(stored), refused) > APPENDS / 5, "the fuzz appends much of either kind"
    spark = ArrowRows(spark_schema(include_headers=True), "s", 0)
    for data in stored:
        columns = RecordBatch.decode(data)
        batch = Batch("s", 0, columns)
        records = list(batch.records())
        assert len(records) == len(batch) == columns.header.record_count
        assert [dict(record.headers) for record in records] == [dict(headers) for headers in batch.headers]
        rows = spark.convert(columns)
        rows.validate(full=True)
        headers = [[(each["key"], each["value"]) for each in found or ()] for found in rows["headers"].to_pylist()]
        assert headers == [list(record.header_items) for record in records]
        assert batch.to_arrow().num_rows == len(records)
        for record in records:
            printed_and_copied(record)


def printed_and_copied(record: Record) -> None:
    """As `subscribe --json`, a template, Liftbridge's Subscribe and a copy do with it."""
    parsed = from_json(to_json(record).encode())
    assert (parsed.value, parsed.key) == (record.value, record.key)
    assert json.loads(headers_to_json(record)).keys() == record.headers.keys()
    assert record.time.tzinfo is not None
    Message(headers=record.headers, key=record.key, value=record.value, timestamp=record.timestamp).SerializeToString()
    by_name: dict[str, list[bytes]] = {}
    for name, value in header_items(record.headers):
        by_name.setdefault(name, []).append(value)
    written = encode_headers(by_name)
    assert len(written) + len(record.key or b"") + len(record.value or b"") <= LIMIT.max_bytes
