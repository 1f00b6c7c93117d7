"""A shard of transactions with its log: requests in, answers and deliveries out, and a successor that has the log
alone."""

from __future__ import annotations

from typing import Any

from tests.tickets import producer_keys
from tests.unit.tidelog.server.coordinators.groups.groups_world import make_ticket, view
from tidelog.server.coordinators.known_streams import StreamsView
from tidelog.server.coordinators.record_times import Times
from tidelog.server.coordinators.shard import Admin, Answer
from tidelog.server.coordinators.transactions.participants import Told
from tidelog.server.coordinators.transactions.transaction_shard import Request, TransactionShard
from wire.errors import Code, TidelogError
from wire.operations.operation import Operation
from wire.protobuf.transactions_pb2 import (
    AddRequest,
    AddResponse,
    EndRequest,
    EndResponse,
    InitRequest,
    InitResponse,
    TransactionPartition,
)

ID = "t"
PATIENCE = 5.0
TIMEOUT = 60.0
PARTITION = 3


class World:
    """Deliveries are confirmed when the test says so, or at once."""

    def __init__(self, streams: StreamsView | None = None) -> None:
        self.now = 100.0
        self.time_ns = 10**18
        self.agrees = True
        """Most brokers agree on it."""
        self.view = streams or view(s=(1, 4), r=(2, 1))
        self.log: list[tuple[bytes, bytes | None]] = []
        self.undelivered: list[Told] = []
        self.confirms = True
        self.shard = self._new()
        self.shard.begin(self.view, self.now)
        self._tokens = 0
        self.answers: dict[object, Answer] = {}

    @property
    def times(self) -> Times:
        return Times(self.time_ns, self.time_ns if self.agrees else None)

    @staticmethod
    def _new() -> TransactionShard:
        return TransactionShard(
            broker="b1", partition=PARTITION, patience=PATIENCE, make_ticket=make_ticket, producer_keys=producer_keys()
        )

    def successor(self, *, compacted: bool = False) -> TransactionShard:
        """Made of the log alone."""
        log = self.log
        if compacted:
            newest = {key: at for at, (key, _) in enumerate(log)}
            log = [record for at, record in enumerate(log) if newest[record[0]] == at]
        shard = self._new()
        for key, value in log:
            shard.replay(key, value)
        shard.begin(self.view, self.now)
        return shard

    def fail_over(self, *, compacted: bool = False) -> None:
        """What was not confirmed is lost with the coordinator."""
        self.undelivered.clear()
        self.shard = self.successor(compacted=compacted)
        self.settle()

    def pass_(self, seconds: float) -> None:
        """The timers of the shard fire meanwhile."""
        end = self.now + seconds
        while self.now < end:
            step = min(end - self.now, 0.25)
            self.now += step
            self.time_ns += round(step * 1e9)
            self.settle()

    def settle(self) -> None:
        while True:
            settled = self.shard.settle(self.now, self.times)
            self.log += settled.records
            self.answers.update(settled.answers)
            for delivery in settled.deliveries:
                assert isinstance(delivery, Told)
                self.undelivered.append(delivery)
            self.shard.validate()
            if self.confirms:
                self.confirm()
            if not self.shard.is_waiting:
                return

    def confirm(self, *which: Told) -> None:
        """All, or these."""
        for delivery in which or [*self.undelivered]:
            self.undelivered.remove(delivery)
            self.shard.on_delivered(delivery)
            self.shard.validate()

    def change(self, streams: StreamsView) -> None:
        self.view = streams
        self.shard.on_streams(streams)
        self.settle()

    def send(self, request: Request) -> int:
        self._tokens += 1
        self.shard.take(self._tokens, request)
        self.settle()
        return self._tokens

    def ask(self, request: Request) -> Answer:
        token = self.send(request)
        assert token in self.answers, "it is held"
        return self.answers[token]

    # ---- requests

    def init(self, name: str = ID, timeout: float = TIMEOUT, **more: Any) -> Producer:
        answer = self.ask(init_request(name, timeout, **more))
        assert isinstance(answer, InitResponse), answer
        return Producer(self, name, answer.producer_id, answer.producer_epoch)

    def admin(self, operation: Operation[..., Any, Any], *args: Any) -> Any:
        return self.ask(Admin(operation, operation.request_kind(*args)))


class Producer:
    """A producer as the coordinator has answered it."""

    def __init__(self, world: World, name: str, producer_id: int, epoch: int) -> None:
        self.world, self.name, self.id, self.epoch = world, name, producer_id, epoch

    def began(self, epoch: int) -> InitResponse:
        """The answer to an init under the same id."""
        return InitResponse(producer_id=self.id, producer_epoch=epoch, key=producer_keys().key_of(self.id))

    def add_request(self, *partitions: int, groups: tuple[str, ...] = (), **more: Any) -> AddRequest:
        return AddRequest(
            transactional_id=self.name,
            producer_id=self.id,
            producer_epoch=more.pop("epoch", self.epoch),
            partitions=[partition(number, **more) for number in partitions],
            groups=groups,
        )

    def end_request(self, *, commits: bool = True, epoch: int | None = None) -> EndRequest:
        return EndRequest(
            transactional_id=self.name,
            producer_id=self.id,
            producer_epoch=self.epoch if epoch is None else epoch,
            commits=commits,
        )

    def add(self, *partitions: int, groups: tuple[str, ...] = (), **more: Any) -> list[bytes]:
        answer = self.world.ask(self.add_request(*partitions, groups=groups, **more))
        assert isinstance(answer, AddResponse), answer
        return [*answer.tickets]

    def end(self, *, commits: bool = True, epoch: int | None = None) -> EndResponse:
        answer = self.world.ask(self.end_request(commits=commits, epoch=epoch))
        assert isinstance(answer, EndResponse), answer
        self.epoch = answer.next_epoch
        return answer

    def refused(self, request: Request) -> Code:
        return code(self.world.ask(request))


def init_request(name: str = ID, timeout: float = TIMEOUT, client: str = "me@here") -> InitRequest:
    return InitRequest(transactional_id=name, timeout_ms=round(timeout * 1000), client=client)


def partition(number: int, stream: str = "s", incarnation: int = 1, partition_incarnation: int = 1) -> Any:
    return TransactionPartition(
        stream=stream,
        stream_incarnation=incarnation,
        partition=number,
        partition_incarnation=partition_incarnation,
    )


def code(answer: object) -> Code:
    assert isinstance(answer, TidelogError), answer
    return answer.code
