"""Transcripts of the coordinator of consumer groups: a `GroupShard`, its log, and what members say to it.

Commands; records, answers and unasked answers are printed one a line, by step:

    streams s=1/4 t=2/2 [generation=10]       name=incarnation/partitions
    join a [s t] [instance=i] [session=10] [rebalance=30]
                                              it subscribes to s where nothing else is said; seconds
    heartbeat a [applied=2]
    leave a | part a
    commit a s/0=5 [s/1=6] [generation=2] [number=3]
                                              `commit - s/0=5`: by no member; the member's own generation if not given
                                              [in=7 epoch=0]: in the transaction of that producer
    end 7 epoch=0 [aborts]                    the coordinator of that transaction tells of its end
    offsets
    reset s/0=5 | delete
    pass 3.5                                  seconds, in which the timers fire
    sleep 60                                  seconds, in which the process stands still
    clock 691200                              the coordinator's own is so far ahead of most brokers' clocks
    new-coordinator [compacted]               another one reads the log
    state                                     the group, as it is

`validate` runs after every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tests.datadriven import Command, ScriptError
from tests.unit.tidelog.server.coordinators.groups.groups_world import check_ticket, make_ticket
from tidelog.server.coordinators.groups.group_shard import BARRIER, GroupShard, Request
from tidelog.server.coordinators.known_streams import StreamLife, StreamsView
from tidelog.server.coordinators.record_times import Times
from tidelog.server.coordinators.shard import Admin, Answer
from wire.errors import TidelogError
from wire.internal_records.group_records import (
    GroupKey,
    MemberKey,
    OffsetKey,
    PendingKey,
    RecordKey,
    StreamPartition,
    decode_key,
    from_stream_partitions,
)
from wire.internal_records.transaction_records import GROUP_END, EndInGroup
from wire.operations import api_operations as op
from wire.protobuf.groups_pb2 import (
    CommitRequest,
    CommitResponse,
    CommittedOffset,
    GroupRecord,
    HeartbeatRequest,
    HeartbeatResponse,
    MemberRecord,
    OffsetRecord,
    OffsetsRequest,
    OffsetsResponse,
    PendingRecord,
    Subscription,
)
from wire.security.tickets import group_target

GROUP = "g"
PATIENCE = 5.0
RETENTION = 3600.0


def _partitions(partitions: Iterable[StreamPartition]) -> str:
    found: dict[tuple[str, int], list[str]] = {}
    for of in sorted(partitions):
        found.setdefault((of.stream, of.incarnation), []).append(str(of.partition))
    return " ".join(f"{stream}:{incarnation}/{','.join(n)}" for (stream, incarnation), n in found.items()) or "nothing"


class GroupsScript:
    def __init__(self) -> None:
        self._now = 0.0
        self._time_ns = 10**18
        self._ahead_ns = 0
        self._log: list[tuple[bytes, bytes | None]] = []
        self._view = StreamsView(10, {"s": StreamLife(1, dict.fromkeys(range(4), 1))})
        self._shard = self._new()
        self._shard.begin(self._view, self._now)
        self._commands: dict[str, Callable[[Command], list[str]]] = {
            "streams": self._streams,
            "join": self._join,
            "heartbeat": self._heartbeat,
            "leave": lambda command: self._end(command, HeartbeatRequest.LEAVE),
            "part": lambda command: self._end(command, HeartbeatRequest.PART),
            "commit": self._commit,
            "end": self._end_transaction,
            "offsets": lambda _: self._ask("offsets", OffsetsRequest(group=GROUP)),
            "reset": self._reset,
            "delete": lambda _: self._ask("delete", Admin(op.GROUP_DELETE, op.GroupRef(GROUP))),
            "pass": self._pass,
            "sleep": self._sleep,
            "clock": self._clock,
            "new-coordinator": self._new_coordinator,
            "state": self._state,
        }

    def __call__(self, command: Command) -> Sequence[str]:
        carry_out = self._commands.get(command.name)
        if carry_out is None:
            raise ScriptError(f"unknown command; known: {', '.join(self._commands)}")
        return carry_out(command)

    @staticmethod
    def _new() -> GroupShard:
        return GroupShard(broker="b1", partition=0, patience=PATIENCE, retention=RETENTION, check_ticket=check_ticket)

    def _settle(self) -> list[str]:
        lines: list[str] = []
        while True:
            times = Times(self._time_ns + self._ahead_ns, None if self._ahead_ns else self._time_ns)
            settled = self._shard.settle(self._now, times)
            self._shard.validate()
            self._log += settled.records
            lines += [f"  writes {_record(*record)}" for record in settled.records]
            lines += [f"{token} <- {_answer(answer)}" for token, answer in settled.answers]
            lines += [f"{token} <- {_answer(answer)}, unasked" for token, answer in settled.unasked]
            if not self._shard.is_waiting:
                return lines
            lines.append("  --")

    def _ask(self, who: str, request: Request) -> list[str]:
        self._shard.take(who, request)
        return self._settle()

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

    def _join(self, command: Command) -> list[str]:
        command.check_options("instance", "session", "rebalance")
        member, *streams = command.words
        request = HeartbeatRequest(
            group=GROUP,
            member=member,
            kind=HeartbeatRequest.JOIN,
            instance=command.options.get("instance", ""),
            subscription=Subscription(streams=streams or ["s"]),
            session_timeout_ms=round(float(command.options.get("session", "10")) * 1000),
            rebalance_timeout_ms=round(float(command.options.get("rebalance", "30")) * 1000),
        )
        return self._ask(member, request)

    def _heartbeat(self, command: Command) -> list[str]:
        command.check_options("applied")
        (member,) = command.words
        request = HeartbeatRequest(group=GROUP, member=member, applied=int(command.options.get("applied", "0")))
        return self._ask(member, request)

    def _end(self, command: Command, kind: HeartbeatRequest.Kind.ValueType) -> list[str]:
        (member,) = command.words
        return self._ask(member, HeartbeatRequest(group=GROUP, member=member, kind=kind))

    def _commit(self, command: Command) -> list[str]:
        (member,) = command.words
        options = dict(command.options)
        group = self._shard.groups.get(GROUP)
        known = group.members.get(member) if group is not None else None
        generation = int(options.pop("generation", known.generation if known is not None else 0))
        number = int(options.pop("number", "0"))
        member_id = "" if member == "-" else member
        request = CommitRequest(group=GROUP, member=member_id, generation=generation, number=number)
        if "in" in options:
            request.producer_id, request.producer_epoch = int(options.pop("in")), int(options.pop("epoch"))
            request.ticket = make_ticket(request.producer_id, request.producer_epoch, group_target(GROUP))
        for of, offset in options.items():
            stream, partition = of.split("/")
            incarnation = self._view.streams[stream].incarnation
            request.offsets.append(
                CommittedOffset(stream=stream, incarnation=incarnation, partition=int(partition), offset=int(offset))
            )
        return self._ask(member, request)

    def _end_transaction(self, command: Command) -> list[str]:
        command.check_options("epoch")
        producer, *words = command.words
        request = EndInGroup(GROUP, int(producer), int(command.options["epoch"]), "aborts" not in words)
        return self._ask("coordinator", Admin(GROUP_END, request))

    def _reset(self, command: Command) -> list[str]:
        offsets: list[op.NewOffset] = []
        for of, offset in command.options.items():
            stream, partition = of.split("/")
            offsets.append({"stream": stream, "partition": int(partition), "offset": int(offset)})
        return self._ask("reset", Admin(op.GROUP_RESET, op.ResetGroupRequest(GROUP, offsets)))

    def _pass(self, command: Command) -> list[str]:
        end = self._now + float(command.words[0])
        lines: list[str] = []
        while self._now < end:
            self._advance(min(end, self._now + 0.25))
            lines += self._settle()
        return lines

    def _sleep(self, command: Command) -> list[str]:
        self._advance(self._now + float(command.words[0]))
        return self._settle()

    def _advance(self, to: float) -> None:
        self._time_ns += round((to - self._now) * 1e9)
        self._now = to

    def _clock(self, command: Command) -> list[str]:
        self._ahead_ns = int(command.words[0]) * 10**9
        return self._settle()

    def _new_coordinator(self, command: Command) -> list[str]:
        log = self._log
        if "compacted" in command.words:
            newest = {key: at for at, (key, _) in enumerate(log)}
            log = [record for at, record in enumerate(log) if newest[record[0]] == at]
        self._shard = self._new()
        for key, value in log:
            self._shard.replay(key, value)
        self._shard.begin(self._view, self._now)
        return self._settle()

    def _state(self, _: Command) -> list[str]:
        group = self._shard.groups.get(GROUP)
        if group is None:
            return ["there is no group"]
        members = [
            f"{name}: {_member(member.to_record())}{', expelled' if member.is_expelled else ''}"
            for name, member in sorted(group.members.items())
        ]
        return [f"{group.state}, generation {group.generation}", *members]


def _member(record: MemberRecord) -> str:
    parts = [f"generation {record.generation} version {record.version}"]
    for name in ("assigned", "revoking", "target"):
        partitions = from_stream_partitions(getattr(record, name))
        if partitions or name == "assigned":
            parts.append(f"{name} {_partitions(partitions)}")
    return ", ".join([*parts, *(["parted"] if record.parted else [])])


def _record(key: bytes, value: bytes | None) -> str:
    if (key, value) == BARRIER:
        return "a barrier"
    found = decode_key(key)
    match found:
        case GroupKey(name):
            what = f"group {name}"
        case MemberKey(_, member):
            what = f"member {member}"
        case OffsetKey(_, of):
            what = f"offset {of}"
        case PendingKey(_, producer):
            what = f"pending offsets of producer {producer}"
        case _:
            raise ScriptError(f"a record {found}")
    return f"{what}: {'gone' if value is None else _value(found, value)}"


def _value(key: RecordKey, value: bytes) -> str:
    match key:
        case GroupKey():
            return f"generation {GroupRecord.FromString(value).generation}"
        case MemberKey():
            return _member(MemberRecord.FromString(value))
        case PendingKey():
            pending = PendingRecord.FromString(value)
            offsets = ", ".join(f"{o.stream}/{o.partition}={o.offset}" for o in pending.offsets)
            return f"epoch {pending.producer_epoch}, {offsets or 'none'}"
        case _:
            return str(OffsetRecord.FromString(value).offset)


def _answer(answer: Answer) -> str:
    match answer:
        case TidelogError():
            return answer.code.name
        case HeartbeatResponse():
            if not answer.version and not answer.generation:
                return "done"
            assigned = from_stream_partitions(answer.assigned)
            return f"generation {answer.generation} version {answer.version}, {_partitions(assigned)}"
        case OffsetsResponse():
            return ", ".join(f"{o.stream}/{o.partition}={o.offset}" for o in answer.offsets) or "nothing"
        case CommitResponse():
            return "committed"
        case _:
            return "done"
