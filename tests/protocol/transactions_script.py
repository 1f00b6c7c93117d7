"""Transcripts of the coordinator of transactions: a `TransactionShard`, its log, and what producers say to it.

Commands; records, deliveries and answers are printed one a line, by step:

    streams s=1/4 r=2/1 [generation=10]      name=incarnation/partitions
    init p [timeout=60] [id=t]               a producer p begins under that transactional id; seconds
    children f 4096                          so many producers begin, under f~n0, f~n1, …; the answers are counted
    add p s/0 g:billing [epoch=0]            partitions and groups; p's own epoch if not given
    commit p | abort p [epoch=0]
    commit-family f 7 a b [keep-others]      the transactions of a and b are committed, with the sequence 7 of family f,
                                             whose others are aborted, or kept
    abort-family f a b [others]
    last f                                   what f has committed last
    confirm s/0 f~1:g:billing | all          they have confirmed what they were told last, of t or of f~1
    describe | operator-aborts
    pass 3.5                                 seconds, in which the timers fire
    new-coordinator [compacted] [later=60]   another one reads the log, so many seconds later
    lose-records [keep=1]                    the records of the last command were not committed, but for the first ones;
                                             another coordinator

`validate` runs after every step. Of more than MOST_SHOWN records at once, the number is printed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tests.datadriven import Command, ScriptError
from tests.tickets import producer_keys
from tests.unit.tidelog.server.coordinators.groups.groups_world import make_ticket
from tidelog.server.coordinators.known_streams import StreamLife, StreamsView
from tidelog.server.coordinators.record_times import Times
from tidelog.server.coordinators.shard import Admin, Answer
from tidelog.server.coordinators.transactions.participants import GroupIn, Participant, Told
from tidelog.server.coordinators.transactions.transaction_shard import BARRIER, Request, TransactionShard
from wire.error_details import OUTCOME
from wire.errors import TidelogError
from wire.internal_records.transaction_records import FamilyKey, ProducerIdsKey, TransactionKey, decode_key, producer_id
from wire.operations.operation import Operation
from wire.operations.transaction_operations import TRANSACTION_ABORT, TRANSACTION_DESCRIBE, TransactionRef
from wire.protobuf.transactions_pb2 import (
    AddRequest,
    AddResponse,
    EndFamilyRequest,
    EndFamilyResponse,
    EndRequest,
    EndResponse,
    FamilyMember,
    FamilyRecord,
    FamilyRequest,
    FamilyResponse,
    InitRequest,
    InitResponse,
    ProducerIds,
    TransactionPartition,
    TransactionRecord,
)

ID = "t"
PARTITION = 0
PATIENCE = 5.0
MOST_SHOWN = 20


class TransactionsScript:
    def __init__(self) -> None:
        self._now = 0.0
        self._time_ns = 10**18
        self._log: list[tuple[bytes, bytes | None]] = []
        self._kept = 0
        """Records before the last command."""
        self._view = StreamsView(10, {"s": StreamLife(1, dict.fromkeys(range(4), 1)), "r": StreamLife(2, {0: 2})})
        self._shard = self._new()
        self._shard.begin(self._view, self._now)
        self._told: dict[str, Told] = {}
        """By participant, the last delivery."""
        self._producers: dict[str, tuple[int, int]] = {}
        """Id and epoch, as they know them."""
        self._ids: dict[str, str] = {}
        """Transactional ids of producers."""
        self._commands: dict[str, Callable[[Command], list[str]]] = {
            "streams": self._streams,
            "init": self._init,
            "children": self._children,
            "add": self._add,
            "commit": lambda command: self._end(command, commits=True),
            "abort": lambda command: self._end(command, commits=False),
            "commit-family": lambda command: self._end_family(command, commits=True),
            "abort-family": lambda command: self._end_family(command, commits=False),
            "last": self._last,
            "confirm": self._confirm,
            "describe": lambda _: self._operate(TRANSACTION_DESCRIBE),
            "operator-aborts": lambda _: self._operate(TRANSACTION_ABORT),
            "pass": self._pass,
            "new-coordinator": self._new_coordinator,
            "lose-records": self._lose_records,
        }

    def __call__(self, command: Command) -> Sequence[str]:
        carry_out = self._commands.get(command.name)
        if carry_out is None:
            raise ScriptError(f"unknown command; known: {', '.join(self._commands)}")
        if command.name != "lose-records":
            self._kept = len(self._log)
        return carry_out(command)

    @staticmethod
    def _new() -> TransactionShard:
        return TransactionShard(
            broker="b1", partition=PARTITION, patience=PATIENCE, make_ticket=make_ticket, producer_keys=producer_keys()
        )

    def _settle(self) -> list[str]:
        lines: list[str] = []
        while True:
            settled = self._shard.settle(self._now, Times(self._time_ns, self._time_ns))
            self._shard.validate()
            self._log += settled.records
            lines += (
                [f"  writes {_record(*record)}" for record in settled.records]
                if len(settled.records) <= MOST_SHOWN
                else [f"  writes {len(settled.records)} records"]
            )
            for delivery in settled.deliveries:
                assert isinstance(delivery, Told)
                to = _of_id(delivery.transactional_id) + _participant(delivery.to)
                self._told[to] = delivery
                what = "commit" if delivery.commits else "abort"
                lines.append(f"  tells {to}: {what} epoch {delivery.producer_epoch}")
            lines += [f"{token} <- {self._answer(str(token), answer)}" for token, answer in settled.answers]
            if not self._shard.is_waiting:
                return lines
            lines.append("  --")

    def _ask(self, who: str, request: Request) -> list[str]:
        self._shard.take(who, request)
        return self._settle() or [f"{who} waits"]

    # ---- commands

    def _streams(self, command: Command) -> list[str]:
        options = dict(command.options)
        generation = int(options.pop("generation", "10"))
        lives = {}
        for name, text in options.items():
            incarnation, partitions = map(int, text.split("/"))
            lives[name] = StreamLife(incarnation, dict.fromkeys(range(partitions), incarnation))
        self._view = StreamsView(generation, lives)
        self._shard.on_streams(self._view)
        return self._settle()

    def _init(self, command: Command) -> list[str]:
        command.check_options("timeout", "id")
        (who,) = command.words
        self._ids[who] = command.options.get("id", ID)
        timeout_ms = round(float(command.options.get("timeout", "60")) * 1000)
        return self._ask(who, InitRequest(transactional_id=self._ids[who], timeout_ms=timeout_ms, client=who))

    def _children(self, command: Command) -> list[str]:
        family, count = command.words
        for number in range(int(count)):
            self._shard.take("child", InitRequest(transactional_id=f"{family}~n{number}", timeout_ms=60_000))
        answers = Counter[str]()
        while self._shard.is_waiting:
            settled = self._shard.settle(self._now, Times(self._time_ns, self._time_ns))
            self._log += settled.records
            for _, answer in settled.answers:
                answers[answer.code.name if isinstance(answer, TidelogError) else "producers"] += 1
        self._shard.validate()
        return [f"children <- {count} {what}" for what, count in sorted(answers.items())]

    def _add(self, command: Command) -> list[str]:
        command.check_options("epoch")
        who, *wanted = command.words
        number, epoch = self._producers[who]
        request = AddRequest(
            transactional_id=self._ids[who],
            producer_id=number,
            producer_epoch=int(command.options.get("epoch", epoch)),
        )
        for each in wanted:
            if each.startswith("g:"):
                request.groups.append(each.removeprefix("g:"))
            else:
                stream, partition = each.split("/")
                life = self._view.streams.get(stream, StreamLife(1, {}))
                request.partitions.append(
                    TransactionPartition(
                        stream=stream,
                        stream_incarnation=life.incarnation,
                        partition=int(partition),
                        partition_incarnation=life.incarnation,
                    )
                )
        return self._ask(who, request)

    def _end(self, command: Command, *, commits: bool) -> list[str]:
        command.check_options("epoch")
        (who,) = command.words
        number, epoch = self._producers[who]
        epoch = int(command.options.get("epoch", epoch))
        request = EndRequest(transactional_id=self._ids[who], producer_id=number, producer_epoch=epoch, commits=commits)
        return self._ask(who, request)

    def _end_family(self, command: Command, *, commits: bool) -> list[str]:
        family, *who = command.words
        sequence = int(who.pop(0)) if commits else 0
        flag = "keep-others" if commits else "others"
        others = (flag in who) is not commits
        members = [
            FamilyMember(
                child=self._ids[each].removeprefix(f"{family}~"),
                producer_id=self._producers[each][0],
                producer_epoch=self._producers[each][1],
            )
            for each in who
            if each != flag
        ]
        request = EndFamilyRequest(family=family, members=members, commits=commits, sequence=sequence, others=others)
        return self._ask(family, request)

    def _last(self, command: Command) -> list[str]:
        (family,) = command.words
        return self._ask(family, FamilyRequest(family=family))

    def _confirm(self, command: Command) -> list[str]:
        for name in self._told if command.words == ("all",) else command.words:
            if self._shard.awaits(self._told[name]):
                self._shard.on_delivered(self._told[name])
            self._shard.validate()
        return self._settle()

    def _operate(self, operation: Operation[..., Any, Any]) -> list[str]:
        return self._ask("operator", Admin(operation, TransactionRef(ID)))

    def _pass(self, command: Command) -> list[str]:
        end = self._now + float(command.words[0])
        lines: list[str] = []
        while self._now < end:
            self._advance(min(end, self._now + 0.25))
            lines += self._settle()
        return lines

    def _advance(self, to: float) -> None:
        self._time_ns += round((to - self._now) * 1e9)
        self._now = to

    def _new_coordinator(self, command: Command) -> list[str]:
        command.check_options("later")
        self._advance(self._now + float(command.options.get("later", "0")))
        log = self._log
        if "compacted" in command.words:
            newest = {key: at for at, (key, _) in enumerate(log)}
            log = [record for at, record in enumerate(log) if newest[record[0]] == at]
        return self._begin_anew(log)

    def _begin_anew(self, log: Sequence[tuple[bytes, bytes | None]]) -> list[str]:
        self._shard = self._new()
        for key, value in log:
            self._shard.replay(key, value)
        self._shard.begin(self._view, self._now)
        return self._settle()

    def _lose_records(self, command: Command) -> list[str]:
        command.check_options("keep")
        del self._log[self._kept + int(command.options.get("keep", "0")) :]
        return self._begin_anew(self._log)

    def _answer(self, who: str, answer: Answer) -> str:
        match answer:
            case TidelogError():
                outcome = answer.detail(OUTCOME)
                return answer.code.name + (f", {outcome}" if outcome else "")
            case InitResponse():
                self._producers[who] = (answer.producer_id, answer.producer_epoch)
                return f"producer {answer.producer_id - producer_id(PARTITION, 0)}, epoch {answer.producer_epoch}"
            case AddResponse():
                return f"{len(answer.tickets)} tickets"
            case EndResponse():
                self._producers[who] = (self._producers[who][0], answer.next_epoch)
                waits_for = f", waits for {', '.join(answer.waits_for)}" if answer.waits_for else ""
                return f"ended, next epoch {answer.next_epoch}{waits_for}"
            case EndFamilyResponse():
                waits_for = f", waits for {', '.join(answer.waits_for)}" if answer.waits_for else ""
                ended = "ended, none was committed" if answer.none_committed else "ended"
                return ("superseded" if answer.superseded else ended) + waits_for
            case FamilyResponse():
                return f"sequence {answer.sequence}" if answer.HasField("sequence") else "nothing"
            case {"state": state, "producer_epoch": epoch, "last": last}:
                return f"{state}, epoch {epoch}, {last}"
            case _:
                raise ScriptError(f"an answer {answer}")


def _of_id(transactional_id: str) -> str:
    return "" if transactional_id == ID else f"{transactional_id}:"


def _participant(participant: Participant) -> str:
    return f"g:{participant.group}" if isinstance(participant, GroupIn) else str(participant)


def _record(key: bytes, value: bytes | None) -> str:
    if (key, value) == BARRIER:
        return "a barrier"
    match decode_key(key):
        case TransactionKey(name):
            return f"{name}: {'gone' if value is None else _transaction(TransactionRecord.FromString(value))}"
        case FamilyKey(name):
            return f"family {name}: {'gone' if value is None else _family(FamilyRecord.FromString(value))}"
        case ProducerIdsKey():
            return f"{ProducerIds.FromString(value or b'').given} producers"
        case found:
            raise ScriptError(f"a record {found}")


def _family(record: FamilyRecord) -> str:
    return ", ".join(
        [f"sequence {record.sequence}", *(f"{each.child}@{each.producer_epoch}" for each in record.members)]
    )


def _transaction(record: TransactionRecord) -> str:
    parts = [f"{TransactionRecord.State.Name(record.state)}, epoch {record.producer_epoch}"]
    parts += [f"{each.stream}/{each.partition}" for each in record.partitions]
    parts += [f"g:{group}" for group in record.groups]
    if record.last:
        parts.append(f"last {TransactionRecord.Outcome.Name(record.last)}")
    return ", ".join(parts)
