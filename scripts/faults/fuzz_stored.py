"""Whatever is stored is readable by every reader: appends of every kind, then every form of reading.

    scripts/fuzz --stored 20000          so many appends, on a cluster of its own
    scripts/fuzz --stored 20000 --seed 7

Strangers and honest clients append to one partition: messages with header blocks of any bytes, envelopes, batches of
`.append` whose contents are wrong behind right CRCs, calls of Liftbridge's API, publishes in JetStream's form,
transactions, producers; and a stranger who sends records under the id of an honest producer. Each value names its
append. Then a consumer, its batches, a member of a group, `tidelog subscribe` in two formats, a copy, Spark's task and
Liftbridge's Subscribe read the partition. None may fail, all see the same records, and each record that was
acknowledged is there, at its offset.
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import nats
from crc32c import crc32c
from google.protobuf.message import Message as ProtobufMessage
from grpc import aio
from nats.aio.client import Client as NatsClient

import tidelog
from spark_connector.reads.client_log import ClientLog
from spark_connector.reads.log_port import OffsetRange
from spark_connector.reads.read_task import TaskSettings, read_ranges
from spark_connector.shared.arrow_rows import spark_schema
from spark_connector.shared.connections import Address, Cluster
from spark_connector.shared.retrying import Patience
from tidelog.client.base.read_positions import AtTime
from tidelog.client.client import Client
from tidelog.server.devcluster import DevCluster
from wire.batch import BatchBuilder, Compression, encode_headers, header_items
from wire.batch.header import encode_header
from wire.errors import CorruptData, TidelogError
from wire.partition_messages.append import encode_append
from wire.partition_messages.liftbridge_envelope import decode_ack, encode_publish
from wire.protobuf import liftbridge_pb2 as pb
from wire.protobuf.tidelog_pb2 import AckPolicy, AppendRequest, AppendResponse, Message
from wire.types import LeaderEpoch, Offset, StreamName

STREAM, COPY = "stored", "stored-copy"
READ_S = 60.0
"""Seconds that a reader has for everything."""
_BLOCKS = (
    b"", b"x", b"\0", b"\r\n\r\n", b"hello world", b"NATS/2.0\r\nA: b\r\n\r\n", b"nats/1.0\r\nA: b\r\n\r\n",
    b" NATS/1.0\r\nA: b\r\n\r\n", b"NATS/1.0", b"NATS/1.0\r\n", b"NATS/1.0 503\r\n\r\n", b"NATS/1.0\nA: b\n\n",
    b"NATS/1.0\r\nA: b\r\n\r\n", b"NATS/1.0\r\nA: \xff\r\n\xfe: x\r\n\r\n", b"NATS/1.0\r\n: v\r\nno colon\r\n\r\n",
    b"\x01\x02\x03", b"\x01\x01\x00a\x01\x00\x00\x00b", b"\xff" * 20,
    b"NATS/1.0\r\n" + b"a:1\r\n" * 4096 + b"\r\n", b"NATS/1.0\r\n" + b"a:1\r\n" * 4097 + b"\r\n",
    b"NATS/1.0\r\n" + b"n" * 65_535 + b": v\r\n\r\n", b"NATS/1.0\r\n" + b"n" * 65_536 + b": v\r\n\r\n",
    b"NATS/1.0\r\n" + b"\xff" * 30_000 + b": v\r\n\r\n",
)  # fmt: skip
_MESSAGE_ID = "Nats-Msg-Id"
_TIMES = (None, None, 0, 1, -1, (1 << 63) - 1, -(1 << 63), 1_700_000_000_000_000_000)


class Appendables:
    """What can be appended, by a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def block(self) -> bytes:
        """A block of headers, of any bytes."""
        rng = self.rng
        block = rng.choice(_BLOCKS)
        match rng.randrange(6):
            case 0:
                return rng.randbytes(rng.randrange(40))
            case 1 if block:
                changed = bytearray(block)
                changed[rng.randrange(min(len(changed), 40))] ^= 1 << rng.randrange(8)
                return bytes(changed)
            case 2:
                return block[: rng.randint(0, len(block))]
            case 3:
                names = (b"Nats-Msg-Id", b"Nats-Expected-Last-Msg-Id", b"Nats-Rollup", b"Nats-TTL", b"Name", b"\xc3")
                blank = rng.choice((b"", b" ", b"  ", b"\t"))
                return b"NATS/1.0\r\n%b:%b%d\r\n\r\n" % (rng.choice(names), blank, rng.randrange(50))
            case _:
                return block

    def headers(self) -> dict[str, list[bytes]]:
        """As a producer takes them."""
        rng = self.rng
        names = ("", "a", "é", "\0", "Nats-Msg-Id", "n" * rng.choice((1, 65_535)))
        return {
            rng.choice(names): [rng.randbytes(rng.randrange(5))] * rng.randint(0, 3) for _ in range(rng.randrange(3))
        }

    def element(self) -> bytes:
        """An element of the column HEADERS."""
        rng = self.rng
        element = self.block() if rng.random() < 0.5 else encode_headers(self.headers())
        if element and rng.random() < 0.3:
            element = element[: rng.randrange(len(element))]
        return element

    def envelope(self, value: bytes, inbox: str) -> tuple[bytes, bytes, bool]:
        """And its message id, and whether it was changed afterwards."""
        rng = self.rng
        headers = {name: b"".join(values) for name, values in self.headers().items()}
        message_id = headers.get(_MESSAGE_ID, b"")
        if rng.random() < 0.1:
            headers |= {f"h{number}": b"" for number in range(rng.choice((4096, 4097)))}
        message = Message(
            value=value,
            key=rng.choice((None, b"", b"k")),
            timestamp=rng.choice(_TIMES) or 0,
            headers=headers,
            ackInbox=inbox,
            correlationId=value.decode(),
            ackPolicy=rng.choice((AckPolicy.ALL, AckPolicy.LEADER)),
        )
        payload = bytearray(encode_publish(message, crc=rng.random() < 0.5))
        is_changed = rng.random() < 0.2
        if is_changed:
            payload[rng.randrange(4, min(40, len(payload)))] ^= 1 << rng.randrange(8)
        return bytes(payload), message_id, is_changed

    def batch(self, values: list[bytes], **producer: Any) -> tuple[bytes, bool]:
        """One batch with right CRCs, and whether it was changed afterwards."""
        rng = self.rng
        builder = BatchBuilder()
        builder.has_message_ids = rng.random() < 0.3
        for value in values:
            headers = self.element() if rng.random() < 0.5 else b""
            builder.add_record(value, rng.choice((None, b"", b"k")), headers, rng.choice(_TIMES))
        built = builder.build(7, compression=rng.choice([*Compression]), **producer)
        parts, header = built.stamp(Offset(0), LeaderEpoch(0))
        body = bytearray(b"".join(map(bytes, parts[1:])))
        is_changed = rng.random() < 0.4
        if is_changed:
            if body and rng.random() < 0.7:
                # Offsets lie at the front of the columns.
                struct.pack_into("<B", body, rng.randrange(min(len(body), 200)), rng.choice((0, 1, 0x7F, 0xFF)))
            else:
                changes: list[dict[str, Any]] = [
                    {"columns": header.columns ^ 1 << rng.randrange(9)},
                    {"record_count": header.record_count + rng.choice((-1, 1))},
                    {"last_timestamp": header.first_timestamp},
                    {"attributes": header.attributes ^ 1 << rng.randrange(8)},
                    {"offset_span": rng.choice((header.record_count, header.record_count + 1))},
                ]
                header = header._replace(**rng.choice(changes))
        header = header._replace(body_crc=crc32c(bytes(body)))
        return encode_header(header) + bytes(body), is_changed


Row = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]
"""Offset, key, value, headers."""


class StoredFuzz:
    """One run on a cluster that has ports of Liftbridge's. Strangers send under the ids of honest producers, too."""

    def __init__(self, cluster: DevCluster, seed: int) -> None:
        self._cluster = cluster
        self._seed = seed
        self._some = Appendables(seed)
        self._rng = self._some.rng
        self._acknowledged: dict[bytes, tuple[int | None, bytes]] = {}
        """By value: its offset, where that was told, and its message id. Acknowledgements of Liftbridge's do not say
        that the record repeats an earlier one."""
        self._names = 0
        self.refused = 0

    async def run(self, appends: int) -> bool:
        url = self._cluster.nats_url
        brokers = json.loads((self._cluster.data_dir / "cluster.json").read_text())["brokers"]
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(await tidelog.connect(url))
            await client.create_stream(STREAM, replication_factor=len(brokers))
            stranger = await nats.connect(url)
            stack.push_async_callback(stranger.close)
            channel = await stack.enter_async_context(aio.insecure_channel(brokers[0]["liftbridge"]))
            kinds: list[Callable[[], Any]] = [
                lambda: self._publish(stranger),
                lambda: self._send_envelope(stranger),
                lambda: self._append(stranger),
                lambda: self._call(channel),
                lambda: self._transact(client),
                lambda: self._under_a_foreign_id(client, stranger),
            ]
            weights = (40, 20, 30, 10, 2, 3)
            while self._names < appends:
                await asyncio.gather(
                    *(kind() for kind in self._rng.choices(kinds, weights, k=min(50, appends - self._names)))
                )
            print(f"{self._names} appends, {len(self._acknowledged)} acknowledged, {self.refused} refused")
            return await self._check(client, channel)

    def _name(self) -> bytes:
        self._names += 1
        return b"append %d" % self._names

    def _stored(self, value: bytes, offset: int | None, message_id: bytes = b"") -> None:
        self._acknowledged[value] = offset, message_id

    # ------------------------------------------------------------------ appends
    async def _publish(self, stranger: NatsClient) -> None:
        """NATS carries any bytes as headers; nats-py writes what it is given."""
        value, block = self._name(), self._some.block()
        inbox, answer = stranger.new_inbox(), asyncio.get_running_loop().create_future()
        subscription = await stranger.subscribe(inbox, cb=_into(answer), max_msgs=1)
        # `Client.publish` encodes a dictionary; this is what it writes then.
        size = len(block) + len(value)
        line = f"HPUB {STREAM} {inbox} {len(block)} {size}\r\n" if block else f"PUB {STREAM} {inbox} {size}\r\n"
        await stranger._send_command(line.encode() + block + value + b"\r\n")
        await stranger._flush_pending()
        told = await self._answer(answer)
        await _unsubscribed(subscription)
        if told is not None and "seq" in told and "error" not in told:
            if not told.get("duplicate"):
                self._stored(value, told["seq"] - 1)
        else:
            self.refused += 1

    async def _answer(self, answer: asyncio.Future[Any]) -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(10):
                return dict(json.loads((await answer).data))
        except TimeoutError:
            return None

    async def _send_envelope(self, stranger: NatsClient) -> None:
        value, inbox = self._name(), stranger.new_inbox()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        subscription = await stranger.subscribe(inbox, cb=_into(answer), max_msgs=1)
        payload, message_id, is_changed = self._some.envelope(value, inbox)
        await stranger.publish(STREAM, payload, reply=inbox)  # where a damaged one is refused
        try:
            async with asyncio.timeout(1 if is_changed else 10):  # the inbox may be what was changed
                ack = decode_ack((await answer).data)
        except (TimeoutError, CorruptData):
            self.refused += 1
        else:
            if ack.ackError:
                self.refused += 1
            elif not is_changed:
                self._stored(value, ack.offset, message_id)
        await _unsubscribed(subscription)

    async def _append(self, stranger: NatsClient, **producer: Any) -> AppendResponse | TidelogError:
        values = [self._name() for _ in range(self._rng.randint(1, 4))]
        batch, is_changed = self._some.batch(values, **producer)
        request = AppendRequest(acks=AppendRequest.ALL)
        answer = await stranger.request(
            f"tidelog.{STREAM}.0.append", b"".join(map(bytes, encode_append(request, [batch]))), timeout=10
        )
        error = TidelogError.from_headers(answer.headers)
        if error is not None:
            self.refused += len(values)
            return error
        response = AppendResponse.FromString(answer.data)
        if not is_changed and not response.repeated_records and not response.duplicate:
            for place, value in enumerate(values):
                self._stored(value, response.base_offset + place)
        return response

    async def _call(self, channel: aio.Channel) -> None:
        value = self._name()
        headers = {name: b"".join(values) for name, values in self._some.headers().items()}
        request = pb.PublishRequest(stream=STREAM, value=value, headers=headers, ackPolicy=AckPolicy.ALL)
        try:
            method: Any = channel.unary_unary("/proto.API/Publish")
            data = await method(request.SerializeToString(), timeout=10)
        except aio.AioRpcError:
            self.refused += 1
            return
        offset = pb.PublishResponse.FromString(data).ack.offset
        self._stored(value, offset, headers.get(_MESSAGE_ID, b""))

    async def _transact(self, client: Client) -> None:
        values = [self._name() for _ in range(3)]
        async with client.producer(streams=[STREAM], transactional_id=f"fuzz-{self._names}") as producer:
            try:
                async with producer.transaction():
                    receipts = [
                        await producer.send(STREAM, value, headers=self._some.headers(), timestamp=self._time())
                        for value in values
                    ]
            except TidelogError:
                self.refused += len(values)
                return
        for value, receipt in zip(values, receipts, strict=True):
            self._stored(value, receipt.offset)

    def _time(self) -> AtTime | None:
        time = self._rng.choice(_TIMES)
        return None if time is None else AtTime(time)

    async def _under_a_foreign_id(self, client: Client, stranger: NatsClient) -> None:
        """An honest producer, and a stranger who knows its id and its next sequence."""
        values = [self._name() for _ in range(3)]
        async with client.producer(STREAM) as producer:
            try:
                first = await producer.send(values[0], headers=self._some.headers())
                self._stored(values[0], first.offset)
                known = await self._producer_of(client, first.offset)
                if known is not None:
                    for sequence in (known[1], known[1] + 1):
                        with suppress(TidelogError):
                            await self._append(stranger, producer_id=known[0], producer_epoch=0, base_sequence=sequence)
                for value in values[1:]:
                    receipt = await producer.send(value, headers=self._some.headers())
                    if not receipt.duplicate:
                        self._stored(value, receipt.offset)
            except TidelogError:
                self.refused += 1

    async def _producer_of(self, client: Client, offset: int) -> tuple[int, int] | None:
        """(id, next sequence) of the producer of a record: batches say them to every consumer."""
        async for batch in client.consume(STREAM, start=offset, stop=offset + 1).batches():
            header = batch._columns.header
            return header.producer_id, header.base_sequence + header.record_count
        return None

    # ------------------------------------------------------------------ reading
    async def _check(self, client: Client, channel: aio.Channel) -> bool:
        try:
            rows = [_row(record) async for record in client.consume(STREAM, stop="latest")]
        except Exception as error:  # noqa: BLE001 - it is what is looked for
            print(f"FAIL: reader records: {type(error).__name__}: {error}"[:500])
            return False
        by_offset = {row[0]: row for row in rows}
        values = {row[2] for row in rows}
        is_fine = True
        for value, (offset, message_id) in self._acknowledged.items():
            found = by_offset.get(-1 if offset is None else offset)
            is_repetition = bool(message_id) and (
                offset == -1 or (found is not None and dict(found[3]).get(_MESSAGE_ID) == message_id)
            )
            if (value not in values) if offset is None else not (is_repetition or (found and found[2] == value)):
                print(f"FAIL: {value!r} was acknowledged at {offset}, and there is {found!r}"[:500])
                is_fine = False
        readers: dict[str, Callable[[], Any]] = {
            "batches": lambda: self._batches(client),
            "group": lambda: self._group(client, len(rows)),
            "jsonl": lambda: self._command("--json"),
            "raw": lambda: self._command("--format", "raw"),
            "copy": lambda: self._copy(client),
            "spark": lambda: asyncio.to_thread(self._spark),
            "liftbridge": lambda: self._liftbridge(channel),
        }
        expected: dict[str, Any] = {
            "jsonl": len(rows),
            "raw": None,
            "copy": [(None, *row[1:]) for row in rows],
            # A map of protobuf has no order; the port adds two headers to those of the record.
            "liftbridge": [
                (*row[:3], tuple(sorted({"subject": STREAM.encode(), "reply": b"", **dict(row[3])}.items())))
                for row in rows
            ],
        }
        for name, reader in readers.items():
            try:
                async with asyncio.timeout(READ_S):
                    found = await reader()
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - it is what is looked for
                print(f"FAIL: reader {name}: {type(error).__name__}: {error}"[:500])
                is_fine = False
                continue
            wanted = expected.get(name, rows)
            if wanted is not None and found != wanted:
                pairs = zip(found, wanted, strict=False) if isinstance(found, list) else [(found, wanted)]
                differs = next((pair for pair in pairs if pair[0] != pair[1]), "one ends earlier")
                print(f"FAIL: reader {name} sees something else: {differs!r}"[:500])
                is_fine = False
        return is_fine

    async def _batches(self, client: Client) -> list[Row]:
        rows: list[Row] = []
        async for batch in client.consume(STREAM, stop="latest").batches():
            assert batch.to_arrow().num_rows == len(batch)
            for offset, key, value, headers in zip(
                batch.offsets.tolist(), batch.keys, batch.values, batch.headers, strict=True
            ):
                rows.append((offset, key, value, header_items(headers)))
        return rows

    async def _group(self, client: Client, count: int) -> list[Row]:
        rows: list[Row] = []
        async with client.subscribe(STREAM, group="fuzz", start="earliest") as member:
            while len(rows) < count:
                rows += [_row(record) for record in await member.getmany(500, 1.0)]
            await member.commit()
        return rows

    async def _command(self, *options: str) -> int:
        """Lines of `tidelog subscribe`."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tidelog", "subscribe", STREAM, "--stop", "latest", *options,
            "--server", self._cluster.nats_url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, complaints = await process.communicate()
        assert process.returncode == 0, complaints.decode(errors="replace")[-400:]
        lines = out.splitlines() if "--json" in options else []
        for line in lines:
            json.loads(line)
        return len(lines)

    async def _copy(self, client: Client) -> list[Any]:
        await client.copy_stream(STREAM, COPY)
        return [(None, *_row(record)[1:]) async for record in client.consume(COPY, stop="latest")]

    def _spark(self) -> list[Row]:
        log = ClientLog(Cluster(Address((self._cluster.nats_url,), "tidelog", None, ()), Patience(60)))
        extent = log.extents([StreamName(STREAM)])[StreamName(STREAM)]
        ranges = [
            OffsetRange(extent.stream, extent.incarnation, number, held.incarnation, held.log_start, held.end)
            for number, held in extent.partitions.items()
        ]
        schema = spark_schema(include_headers=True)
        rows: list[Row] = []
        for batch in read_ranges(log, ranges, schema, TaskSettings(1 << 20, fail_on_data_loss=True)):
            batch.validate(full=True)
            for row in batch.to_pylist():
                items = tuple((each["key"], each["value"]) for each in row["headers"] or ())
                rows.append((row["offset"], row["key"], row["value"], items))
        return rows

    async def _liftbridge(self, channel: aio.Channel) -> list[Row]:
        request = pb.SubscribeRequest(stream=STREAM, startPosition=pb.EARLIEST, stopPosition=pb.STOP_LATEST)
        rows: list[Row] = []
        async for message in _messages(channel, request):
            key = message.key if message.HasField("key") else None
            value = message.value if message.HasField("value") else None
            rows.append((message.offset, key, value, tuple(sorted(message.headers.items()))))
        return rows


async def _messages(channel: aio.Channel, request: ProtobufMessage) -> AsyncIterator[Message]:
    """Until the subscription has reached its stop."""
    method: Any = channel.unary_stream("/proto.API/Subscribe")
    call = method(request.SerializeToString(), timeout=READ_S)
    is_first = True
    try:
        async for data in call:
            if not is_first:
                yield Message.FromString(data)
            is_first = False
    except aio.AioRpcError as error:
        if "Stop offset reached" not in str(error.details()):
            raise


def _row(record: tidelog.Record) -> Row:
    return record.offset, record.key, record.value, record.header_items


def _into(answer: asyncio.Future[Any]) -> Callable[[Any], Any]:
    async def take(message: Any) -> None:
        if not answer.done():
            answer.set_result(message)

    return take


async def _unsubscribed(subscription: Any) -> None:
    with suppress(nats.errors.Error):  # it is, after its one message
        await subscription.unsubscribe()
