"""A broker in memory, speaking the real bytes of `.append`, `.fetch` and `.api`; for the asyncio drivers.

`FakeBroker` leads every partition of every stream it has; `kill` takes its subscriptions away, `swallow` makes it a
process that was killed with a message in hand. Followers have the leader's log; they serve, refuse, keep silent or are
gone.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NotRequired, TypeAlias, get_origin, get_type_hints

from dataplane.replica.derived.producer_table import Duplicate, Fresh, ProducerTable
from tests.fake_nats import FakeTransport, Hub
from tests.tickets import producer_keys
from tidelog.client.client import Client
from wire.batch import BatchBuilder, BatchHeader, EncodedBatch, RecordBatch
from wire.error_details import LAST_OFFSET, VERSION
from wire.errors import CLUSTER_HEADER, Code, TidelogError
from wire.layouts import NOT_REPORTED
from wire.messaging.transport import Message
from wire.operations.api_operations import OPERATIONS, StreamDescription, Topology
from wire.partition_messages.append import decode_append
from wire.partition_messages.replication import encode_header
from wire.protobuf.tidelog_pb2 import AppendRequest, AppendResponse, FetchRequest
from wire.security.batch_proofs import check_batch_proof
from wire.security.tickets import partition_target
from wire.subjects import Subjects
from wire.types import NO_PRODUCER, BrokerId, LeaderEpoch, Offset, StreamName

CLUSTER = "c1"


def api_subject(name: str) -> str:
    """On which a controller listens for that operation."""
    return Subjects().api(name, "*" if OPERATIONS[name].named else None)


@dataclass
class FakeLog:
    batches: list[tuple[BatchHeader, bytes]] = field(default_factory=list)
    end: int = 0
    start: int = 0
    settled: int | None = None
    """The settled log start; None: a broker of an earlier version does not report it."""
    uncommitted: int = 0
    """Records behind the end."""
    producers: ProducerTable = field(default_factory=ProducerTable)

    def values(self) -> list[bytes | None]:
        return [value for _, data in self.batches for value in RecordBatch.decode(data).values]


def blank(answer: type[Any], **given: Any) -> dict[str, Any]:
    """An answer of that kind with only the given fields, and none of those that may be missing."""
    empty = {str: "", int: 0, bool: False, list: [], dict: {}}
    hints = get_type_hints(answer, include_extras=True).items()
    required = ((name, kind) for name, kind in hints if get_origin(kind) is not NotRequired)
    return {name: empty.get(get_origin(kind) or kind) for name, kind in required} | given


class FakeBroker:
    def __init__(self, transport: FakeTransport, namespace: str = "tidelog") -> None:
        self.transport = transport
        self.subjects = Subjects(namespace)
        self.streams: dict[str, dict[str, Any]] = {}
        self.logs: dict[tuple[str, int], FakeLog] = defaultdict(FakeLog)
        self.leader_epoch = 1
        self.alive = True
        self.swallow = 0
        """So many appends are not even written, and never answered."""
        self.mute = 0
        """So many appends are written and never answered."""
        self.garbled = 0
        """So many appends are written and answered with bytes that do not decode."""
        self.originals: dict[int, int] = {}
        """Told with each receipt: by places in the batch, offsets of records with the same message ids."""
        self.refusals: list[TidelogError] = []
        """Taken from the front, one per append."""
        self.check_ticket: Callable[[AppendRequest, BatchHeader, tuple[str, int]], None] = _no_ticket
        """Of transactional batches; raises TidelogError."""
        self.appends: list[tuple[AppendRequest, BatchHeader]] = []
        self.fetches: list[FetchRequest] = []
        self.corrupt = False
        self.followers: dict[str, TidelogError | None] = {}
        """In sync, each with the error of its refusals; None: it serves."""
        self.silent: set[str] = set()
        self.asked: list[str | None] = []
        """The replica asked for records or positions; None: the leader."""
        self.racks: dict[str, str] = {}
        self.streams_made = 0
        self.producers_made = 0
        self.producer_keys = producer_keys(CLUSTER)
        self.identity: tuple[int, int] | None = None
        self._waiting: list[tuple[tuple[str, int], FetchRequest, str, asyncio.TimerHandle]] = []
        self._api: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "metadata": lambda body: blank(
                Topology, cluster_id=CLUSTER, home_broker="b1", streams=[self._stream(body["stream"])], racks=self.racks
            ),
            "stream.create": self._create,
            "stream.delete": self._delete,
            "stream.list": lambda _: {
                "streams": [{**routes, "partitions": len(routes["partitions"])} for routes in self.streams.values()],
                "unanswered": [],
            },
            "producer.init": lambda _: self._new_producer(),
            "cluster.id": lambda _: {"cluster_id": CLUSTER},
        }
        for name in self._api:
            self.transport.listen(api_subject(name), partial(self._on_api, name))

    def create(self, name: str, partitions: int = 1, *, partitioner: str = "crc32c", **config: str) -> None:
        self.streams[name] = {
            "name": name,
            "subject": name,
            "incarnation": 10 + self.streams_made,
            "kind": "log",
            "partitioner": partitioner,
            "partitioning_version": 1,
            "routing_generation": 1,
            "layouts": [{"version": 1, "partitions": partitions, "generation": 0, "starts": []}],
            "replication_factor": 1,
            "config": config,
            "generation": 1,
            "partitions": [
                {
                    "partition": p,
                    "incarnation": 20 + p,
                    "leader": "b1",
                    "isr": ["b1", *self.followers],
                    "leader_epoch": self.leader_epoch,
                    "epoch": 1,
                    "state": "active",
                }
                for p in range(partitions)
            ],
        }
        self.streams_made += 1
        self._listen(name)

    def kill(self) -> None:
        self.alive = False
        for name in self.streams:
            self._listen(name)

    def take_over(self) -> None:
        """Another broker leads now, with the same log."""
        self.leader_epoch += 1
        self.alive = True
        for name in self.streams:
            self._listen(name)

    def seed(self, name: str, partition: int, values: list[bytes], *, timestamp: int = 1) -> None:
        """Records that are there already, as one batch."""
        builder = BatchBuilder()
        builder.add_values(list(values))
        self.write((name, partition), builder.build(timestamp))

    def repartition(self, name: str, partitions: int, *, told: bool = True) -> None:
        """A new layout begins where the logs end now; `tell` tells that of a partition if it is not `told` yet."""
        stream = self.streams[name]
        generation = stream["routing_generation"] = stream["routing_generation"] + 100
        there = [entry["partition"] for entry in stream["partitions"]]
        starts = [self.logs[name, number].end if told else NOT_REPORTED for number in there]
        stream["partitioning_version"] += 1
        layout = {"version": stream["partitioning_version"], "partitions": partitions, "generation": generation}
        stream["layouts"] = [*stream["layouts"], {**layout, "starts": starts}]
        stream["partitions"] = [
            {
                **stream["partitions"][0],
                **(stream["partitions"][number] if number in there else {"incarnation": generation - 1}),
                "partition": number,
                "state": "active" if number < partitions else "draining",
            }
            for number in range(max(partitions, len(there)))
        ]
        self._listen(name)

    def tell(self, name: str, partition: int) -> None:
        """The leader tells the cutover of the newest layout."""
        stream = self.streams[name]
        stream["routing_generation"] += 1
        stream["layouts"][-1]["starts"][partition] = self.logs[name, partition].end

    def _listen(self, name: str) -> None:
        for partition in range(len(self.streams[name]["partitions"])):
            key = (name, partition)
            append = self.subjects.append(StreamName(name), partition)
            fetch = self.subjects.fetch(StreamName(name), partition)
            self.transport.listen(append, partial(self._on_append, key) if self.alive else None)
            leader = self.subjects.leader(StreamName(name), partition)
            for subject in (fetch, leader):
                self.transport.listen(subject, partial(self._on_fetch, key) if self.alive else None)
            for follower in self.followers:
                subject = self.subjects.fetch_from(StreamName(name), partition, BrokerId(follower))
                self.transport.listen(subject, partial(self._on_follower_fetch, follower, key))

    # The API

    def _on_api(self, name: str, message: Message) -> None:
        assert message.reply is not None
        headers = {CLUSTER_HEADER: CLUSTER}
        try:
            answer = self._api[name](json.loads(message.data))
        except TidelogError as error:
            answer, headers = {"error": error.to_json()}, {**error.to_headers(), **headers}
        self.transport.publish(message.reply, [json.dumps(answer).encode()], headers=headers)

    def _stream(self, name: str) -> dict[str, Any]:
        if name not in self.streams:
            raise TidelogError(Code.UNKNOWN_STREAM, f"there is no stream {name!r}")
        return self.streams[name]

    def _create(self, body: dict[str, Any]) -> dict[str, Any]:
        if body["name"] in self.streams:
            raise TidelogError(Code.STREAM_EXISTS, f"stream {body['name']!r} exists already")
        self.create(body["name"], body["partitions"])
        return blank(StreamDescription, **{**self.streams[body["name"]], "partitions": []})

    def _delete(self, body: dict[str, Any]) -> dict[str, Any]:
        self._stream(body["name"])
        del self.streams[body["name"]]
        return {}

    def _new_producer(self) -> dict[str, Any]:
        self.producers_made += 1
        producer_id, epoch = self.identity or (100 + self.producers_made, 0)
        key = self.producer_keys.key_of(producer_id) if 0 <= producer_id < 1 << 63 else b""
        return {"producer_id": producer_id, "producer_epoch": epoch, "key": key.hex()}

    # The log

    def _on_append(self, key: tuple[str, int], message: Message) -> None:
        request, buffer = decode_append(message.data)
        if request.leader_epoch > self.leader_epoch:
            return
        batch = EncodedBatch.from_bytes(buffer)
        self.appends.append((request, batch.header))
        if self.swallow:
            self.swallow -= 1
            return
        if self.refusals:
            self._refuse(message.reply, self.refusals.pop(0))
            return
        if request.leader_epoch and request.leader_epoch < self.leader_epoch:
            details = {"leader_epoch": str(self.leader_epoch)}
            self._refuse(message.reply, TidelogError(Code.FENCED_LEADER_EPOCH, "an older epoch", details))
            return
        header = batch.header
        if header.producer_id != NO_PRODUCER:
            stream = self.streams[key[0]]
            target = partition_target(
                key[0], stream["incarnation"], key[1], stream["partitions"][key[1]]["incarnation"]
            )
            try:
                check_batch_proof(self.producer_keys, request, header.producer_id, target, buffer)
            except TidelogError as unproven:
                self._refuse(message.reply, unproven)
                return
        if header.is_transactional:
            try:
                self.check_ticket(request, header, key)
            except TidelogError as no_ticket:
                self._refuse(message.reply, no_ticket)
                return
        verdict = self.logs[key].producers.check(
            header.producer_id, header.producer_epoch, header.base_sequence, header.record_count, header.body_crc
        )
        if isinstance(verdict, Duplicate):
            base = int(verdict.base_offset)
        elif request.partitioning_version != (newest := self.streams[key[0]]["partitioning_version"]):
            stale = TidelogError(Code.STALE_PARTITIONING, f"the version is {newest}", [VERSION.of(newest)])
            self._refuse(message.reply, stale)
            return
        elif isinstance(verdict, Fresh):
            last = self.logs[key].end - 1
            if request.HasField("expected_last_offset") and request.expected_last_offset != last:
                error = TidelogError(Code.INCORRECT_OFFSET, f"the next offset is {last + 1}", [LAST_OFFSET.of(last)])
                self._refuse(message.reply, error)
                return
            base = self.write(key, batch)
        else:
            self._refuse(message.reply, verdict.error)
            return
        if self.mute:
            self.mute -= 1
            return
        if self.garbled and message.reply is not None:
            self.garbled -= 1
            self.transport.publish(message.reply, [b"\xff"])
            return
        if message.reply is not None:
            response = AppendResponse(
                base_offset=base,
                leader_epoch=self.leader_epoch,
                repeated_records=self.originals.keys(),
                original_offsets=self.originals.values(),
            )
            self.transport.publish(message.reply, [response.SerializeToString()])

    def write(self, key: tuple[str, int], batch: EncodedBatch) -> int:
        """Returns its first offset."""
        log = self.logs[key]
        base = log.end
        version = self.streams[key[0]]["partitioning_version"]
        epoch = LeaderEpoch(self.leader_epoch)
        parts, header = batch.stamp(Offset(base), epoch, partitioning_version=0 if version == 1 else version)
        log.batches.append((header, b"".join(parts)))
        log.end = header.end_offset
        log.producers.record(header)
        for entry in [w for w in self._waiting if w[0] == key]:
            self._waiting.remove(entry)
            entry[3].cancel()
            self._answer(key, entry[1], entry[1].offset, entry[2])
        return base

    def gone(self, follower: str) -> None:
        """It was killed; the metadata does not say so yet."""
        for name, stream in self.streams.items():
            for partition in range(len(stream["partitions"])):
                self.transport.listen(self.subjects.fetch_from(StreamName(name), partition, BrokerId(follower)), None)

    def _on_follower_fetch(self, follower: str, key: tuple[str, int], message: Message) -> None:
        self.asked.append(follower)
        if follower in self.silent:
            return
        error = self.followers[follower]
        if error is not None:
            self._refuse(message.reply, error)
        else:
            self._take_fetch(key, message)

    def _on_fetch(self, key: tuple[str, int], message: Message) -> None:
        self.asked.append(None)
        self._take_fetch(key, message)

    def _take_fetch(self, key: tuple[str, int], message: Message) -> None:
        request = FetchRequest.FromString(message.data)
        self.fetches.append(request)
        assert message.reply is not None
        log = self.logs[key]
        if request.leader_epoch > self.leader_epoch:
            return
        if request.leader_epoch and request.leader_epoch < self.leader_epoch:
            details = {"leader_epoch": str(self.leader_epoch)}
            self._refuse(message.reply, TidelogError(Code.FENCED_LEADER_EPOCH, "an older epoch", details))
            return
        if self.refusals:
            self._refuse(message.reply, self.refusals.pop(0))
            return
        entry = self.streams[key[0]]["partitions"][key[1] :]
        if entry and request.partition_incarnation != entry[0]["incarnation"]:
            self._refuse(message.reply, TidelogError(Code.WRONG_INCARNATION, "another life of the partition"))
            return
        match request.WhichOneof("position"):
            case "earliest":
                self._answer(key, request, log.start, message.reply)
            case "latest":
                self._answer(key, request, log.end, message.reply)
            case "timestamp":
                found = [h.base_offset for h, _ in log.batches if h.first_timestamp >= request.timestamp]
                self._answer(key, request, found[0] if found else log.end, message.reply)
            case "offset" if request.span_bytes:
                # Each record is of ten bytes.
                end = min(max(request.offset, log.start) + request.span_bytes // 10, log.end)
                self._answer(key, request, end, message.reply, span=10 * (log.end - request.offset))
            case _:
                if request.offset < log.start:
                    error = TidelogError(Code.OFFSET_BEFORE_LOG, "below the log start", {"log_start": str(log.start)})
                    self._refuse(message.reply, error)
                elif request.offset < log.end:
                    self._answer(key, request, request.offset, message.reply)
                else:
                    timer = asyncio.get_running_loop().call_later(
                        request.max_wait_ms / 1000, self._give_up_waiting, key, request, message.reply
                    )
                    self._waiting.append((key, request, message.reply, timer))

    def _give_up_waiting(self, key: tuple[str, int], request: FetchRequest, inbox: str) -> None:
        self._waiting = [w for w in self._waiting if w[2] != inbox]
        self._answer(key, request, request.offset, inbox)

    def _answer(
        self, key: tuple[str, int], request: FetchRequest, offset: int, inbox: str, *, span: int | None = None
    ) -> None:
        log = self.logs[key]
        body = [encode_header(LeaderEpoch(self.leader_epoch), Offset(log.end))]
        size = 0
        if request.max_bytes:
            for header, data in log.batches:
                if header.end_offset > offset and (size == 0 or size + len(data) <= request.max_bytes):
                    body.append(data[:-1] + bytes([data[-1] ^ 1]) if self.corrupt else data)
                    size += len(data)
        headers = {
            "Tidelog-Log-Start": str(log.start),
            "Tidelog-Offset": str(offset),
            "Tidelog-Log-End": str(log.end + log.uncommitted),
        }
        if log.settled is not None:
            headers["Tidelog-Settled-Log-Start"] = str(log.settled)
        if span is not None:
            headers["Tidelog-Bytes"] = str(span)
        self.transport.publish(inbox, [b"".join(body)], headers=headers)

    def _refuse(self, inbox: str | None, error: TidelogError) -> None:
        if inbox is not None:
            self.transport.publish(inbox, [b""], headers=error.to_headers())


def _no_ticket(request: AppendRequest, header: BatchHeader, key: tuple[str, int]) -> None:
    raise TidelogError(Code.BAD_REQUEST, f"no transaction was expected in {key}")


Cluster: TypeAlias = tuple[FakeTransport, FakeBroker, Client]


def make(max_payload: int = 1 << 20) -> Cluster:
    transport = FakeTransport(Hub(), max_payload=max_payload)
    broker = FakeBroker(transport)
    client = Client(transport, broker.subjects, server="nats://fake:4222", name="test", api_timeout=1.0)
    return transport, broker, client
