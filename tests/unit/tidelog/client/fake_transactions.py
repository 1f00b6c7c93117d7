"""A coordinator of transactions in memory, by the rules of `tidelog.client.transaction.producer_transactions` and
docs/transactions.md.

Transactions end at once: the markers are in the logs of the broker when the answer leaves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from google.protobuf.message import Message as Protobuf

from tests.fake_nats import FakeTransport
from tests.unit.tidelog.client.fake_broker import FakeBroker
from wire.batch import BatchHeader, Marker, RecordBatch, transaction_marker
from wire.error_details import OUTCOME
from wire.errors import Code, TidelogError
from wire.internal_records.transaction_records import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    ADDS,
    END,
    END_FAMILY,
    FAMILY,
    INIT,
    KINDS,
    child_id,
    coordinator_partition,
    coordinator_subject,
    producer_id,
)
from wire.messaging.transport import Message
from wire.operations.transaction_operations import TRANSACTION_COORDINATOR
from wire.protobuf.groups_pb2 import CommitRequest
from wire.protobuf.tidelog_pb2 import AppendRequest
from wire.protobuf.transactions_pb2 import (
    AddRequest,
    AddResponse,
    EndFamilyRequest,
    EndFamilyResponse,
    EndRequest,
    EndResponse,
    FamilyRequest,
    FamilyResponse,
    InitRequest,
    InitResponse,
)
from wire.security.transaction_proofs import proven_of, proven_of_member
from wire.subjects import Subjects


@dataclass
class FakeTransaction:
    """What is known of a transactional id."""

    producer_id: int
    epoch: int = 0
    is_open: bool = False
    partitions: set[tuple[str, int]] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    last: str = "none"
    """How the transaction before ended: "committed", "aborted", "timed out"; "none": an init was the last thing."""


class FakeTransactions:
    def __init__(self, transport: FakeTransport, broker: FakeBroker) -> None:
        self.transport = transport
        self.broker = broker
        self.subjects = Subjects()
        self.ids: dict[str, FakeTransaction] = {}
        self.families: dict[str, tuple[int, list[tuple[str, int]], str]] = {}
        """The last sequence of each, and what was committed with it."""
        self.requests: list[InitRequest | AddRequest | EndRequest | EndFamilyRequest] = []
        self.outcomes: dict[tuple[int, int], bool] = {}
        """Whether it was committed, by producer id and epoch."""
        self.refusals: dict[str, list[TidelogError]] = defaultdict(list)
        """Taken from the front, by kind of request."""
        self.swallow: dict[str, int] = defaultdict(int)
        """So many requests of that kind are carried out and not answered."""
        self.drop: dict[str, int] = defaultdict(int)
        """So many requests of that kind are neither carried out nor answered."""
        self.held: dict[str, list[Message]] = defaultdict(list)
        """Requests that wait for `release`, by kind."""
        self.holds: set[str] = set()
        self.secret = 1
        """Tickets of another one are not valid."""
        self.waits_for: list[str] = []
        self.looked_for = 0
        """So often was the controller asked."""
        broker.check_ticket = self._check_append
        broker._api[TRANSACTION_COORDINATOR.name] = self._on_look
        transport.listen(
            broker.subjects.api(TRANSACTION_COORDINATOR.name), partial(broker._on_api, TRANSACTION_COORDINATOR.name)
        )
        self.start()

    # ---- what a test does

    def start(self) -> None:
        self._listen(is_alive=True)

    def kill(self) -> None:
        self._listen(is_alive=False)

    def release(self, kind: str) -> None:
        self.holds.discard(kind)
        held, self.held[kind] = self.held[kind], []
        for message in held:
            self._serve(kind, message)

    def time_out(self, transactional_id: str) -> None:
        """Its transaction was open for too long."""
        self._end(self.ids[transactional_id], commits=False)
        self.ids[transactional_id].last = "timed out"

    def readable(self, stream: str, partition: int) -> list[bytes | None]:
        """What a consumer reads that reads what is committed."""
        return [
            value
            for header, data in self.broker.logs[stream, partition].batches
            if not header.is_control
            and (not header.is_transactional or self.outcomes.get((header.producer_id, header.producer_epoch)))
            for value in RecordBatch.decode(data).values
        ]

    def asked(self, kind: type[Protobuf]) -> int:
        """How many requests of that kind have come."""
        return sum(isinstance(request, kind) for request in self.requests)

    # ---- tickets

    def ticket(self, producer: int, epoch: int, target: str) -> bytes:
        return f"{self.secret} {producer} {epoch} {target}".encode()

    def check_commit(self, request: CommitRequest) -> None:
        """As the coordinator of the group checks it."""
        self.broker.producer_keys.check(request.proof, request.producer_id, proven_of(request))
        self._check(request.ticket, request.producer_id, request.producer_epoch, f"group {request.group}")

    def _check_append(self, request: AppendRequest, header: BatchHeader, key: tuple[str, int]) -> None:
        epoch = self.broker.logs[key].producers.epoch_of(header.producer_id)
        if epoch is not None and epoch > header.producer_epoch:
            raise TidelogError(Code.PRODUCER_FENCED, f"epoch {epoch} has begun in {key}")
        self._check(request.ticket, header.producer_id, header.producer_epoch, f"{key[0]}/{key[1]}")

    def _check(self, ticket: bytes, producer: int, epoch: int, target: str) -> None:
        if ticket != self.ticket(producer, epoch, target):
            raise TidelogError(Code.NOT_IN_TRANSACTION, f"no valid ticket for {target}")

    # ---- requests

    def _listen(self, *, is_alive: bool) -> None:
        for kind in KINDS:
            for number in range(8):
                example = next(name for name in map(str, range(1000)) if coordinator_partition(name) == number)
                subject = coordinator_subject(self.subjects, kind, example).rpartition(".")[0] + ".*"
                subject += ".*" if kind in ADDS else ""
                self.transport.listen(subject, partial(self._serve, kind) if is_alive else None)

    def _on_look(self, _: object) -> dict[str, int]:
        self.looked_for += 1
        return {"partition": 0}

    def _serve(self, kind: str, message: Message) -> None:
        assert message.reply is not None
        if kind in self.holds:
            self.held[kind].append(message)
            return
        if self.drop[kind]:
            self.drop[kind] -= 1
            return
        try:
            if self.refusals[kind]:
                raise self.refusals[kind].pop(0)
            serve: dict[str, Callable[[bytes], Protobuf]] = {
                INIT: self._on_init,
                ADD_PARTITIONS: partial(self._on_add, message.subject),
                ADD_OFFSETS: partial(self._on_add, message.subject),
                END: self._on_end,
                END_FAMILY: self._on_end_family,
                FAMILY: self._on_family,
            }
            answer = serve[kind](message.data)
        except TidelogError as error:
            self.transport.publish(message.reply, [b""], headers=error.to_headers())
            return
        if self.swallow[kind]:
            self.swallow[kind] -= 1
            return
        self.transport.publish(message.reply, [answer.SerializeToString()])

    def _on_init(self, data: bytes) -> InitResponse:
        request = InitRequest.FromString(data)
        self.requests.append(request)
        known = self.ids.get(request.transactional_id)
        if known is None:
            known = self.ids[request.transactional_id] = FakeTransaction(producer_id(0, len(self.ids)))
        else:
            if known.is_open and request.yields:
                raise TidelogError(Code.PRODUCER_FENCED, f"{request.transactional_id} is in use")
            if known.is_open:
                self._end(known, commits=False)
            known.epoch += 1
            known.last = "none"
        return InitResponse(
            producer_id=known.producer_id,
            producer_epoch=known.epoch,
            key=self.broker.producer_keys.key_of(known.producer_id),
        )

    def _on_add(self, subject: str, data: bytes) -> AddResponse:
        request = AddRequest.FromString(data)
        if {*request.groups, *(of.stream for of in request.partitions)} != {subject.rpartition(".")[2]}:
            raise TidelogError(Code.BAD_REQUEST, f"{subject} names another stream or group")
        self.broker.producer_keys.check(request.proof, request.producer_id, proven_of(request))
        self.requests.append(request)
        known = self._known(request)
        self._check_epoch(known, request)
        known.is_open = True
        targets = [f"{of.stream}/{of.partition}" for of in request.partitions]
        known.partitions |= {(of.stream, of.partition) for of in request.partitions}
        known.groups |= {*request.groups}
        targets += [f"group {group}" for group in request.groups]
        return AddResponse(tickets=[self.ticket(known.producer_id, known.epoch, target) for target in targets])

    def _on_end(self, data: bytes) -> EndResponse:
        request = EndRequest.FromString(data)
        self.broker.producer_keys.check(request.proof, request.producer_id, proven_of(request))
        self.requests.append(request)
        known = self._known(request)
        outcome = "committed" if request.commits else "aborted"
        if request.producer_epoch == known.epoch - 1 and known.last in (outcome, "timed out"):
            if known.last == "timed out" and request.commits:
                raise TidelogError(Code.TRANSACTION_ABORTED, "it was open for longer than its timeout")
            return EndResponse(next_epoch=known.epoch)
        self._check_epoch(known, request)
        if known.is_open:
            self._end(known, commits=request.commits)
            known.last = outcome
        return EndResponse(next_epoch=known.epoch, waits_for=self.waits_for)

    def _on_end_family(self, data: bytes) -> EndFamilyResponse:
        request = EndFamilyRequest.FromString(data)
        for member in request.members:
            self.broker.producer_keys.check(member.proof, member.producer_id, proven_of_member(request.family, member))
        self.requests.append(request)
        named = [(child_id(request.family, each.child), each.producer_epoch) for each in request.members]
        members = [(self.ids[name], epoch) for name, epoch in named]
        is_open = [known.is_open and known.epoch == epoch for known, epoch in members]
        last, committed, _ = self.families.get(request.family, (-1, [], ""))
        if request.commits and request.sequence == last and named == committed:
            return EndFamilyResponse()
        commits = request.commits and request.sequence > last and all(is_open)
        for (known, _), opened in zip(members, is_open, strict=True):
            if opened:
                self._end(known, commits=commits)
        if commits:
            self.families[request.family] = (request.sequence, named, request.metadata)
        elif request.commits and request.sequence > last:
            raise TidelogError(Code.TRANSACTION_ABORTED, f"{named[is_open.index(False)][0]} is not open")
        elif request.commits and request.sequence < last:
            raise TidelogError(Code.STALE_COMMIT, f"{last} is committed", [OUTCOME.of("not_written")])
        if request.others:
            for name, known in self.ids.items():
                if known.is_open and name.startswith(child_id(request.family, "")):
                    self._end(known, commits=False)
        is_known = not request.commits and all(known.epoch in (epoch, epoch + 1) for known, epoch in members)
        return EndFamilyResponse(
            superseded=request.commits and not commits, waits_for=self.waits_for, none_committed=is_known
        )

    def _on_family(self, data: bytes) -> FamilyResponse:
        known = self.families.get(FamilyRequest.FromString(data).family)
        return FamilyResponse() if known is None else FamilyResponse(sequence=known[0], metadata=known[2])

    def _known(self, request: AddRequest | EndRequest) -> FakeTransaction:
        known = self.ids.get(request.transactional_id)
        if known is None:
            raise TidelogError(Code.UNKNOWN_TRANSACTION, f"{request.transactional_id!r} is not known")
        if known.producer_id != request.producer_id:
            raise TidelogError(Code.PRODUCER_FENCED, "another producer has begun")
        return known

    def _check_epoch(self, known: FakeTransaction, request: AddRequest | EndRequest) -> None:
        if request.producer_epoch == known.epoch:
            return
        if request.producer_epoch == known.epoch - 1 and known.last == "timed out":
            raise TidelogError(Code.TRANSACTION_ABORTED, "it was open for longer than its timeout")
        raise TidelogError(Code.PRODUCER_FENCED, f"epoch {request.producer_epoch} is over, {known.epoch} has begun")

    def _end(self, known: FakeTransaction, *, commits: bool) -> None:
        marker = Marker.COMMIT if commits else Marker.ABORT
        for key in sorted(known.partitions):
            self.broker.write(key, transaction_marker(known.producer_id, known.epoch + 1, marker))
        self.outcomes[known.producer_id, known.epoch] = commits
        known.epoch += 1
        known.is_open = False
        known.partitions, known.groups = set(), set()
