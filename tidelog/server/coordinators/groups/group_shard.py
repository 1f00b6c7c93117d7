"""The groups and cursors of one partition of `__groups`, in one LeaderEpoch. See the package.

Sessions are judged by the coordinator's own clock, with exceptions that keep it from removing a member that is alive
(R53, R54):

- A new coordinator gives each member its session timeout and `patience` before it removes it. `patience` is the lease:
  a deposed coordinator may answer heartbeats until its lease is over, and these prolong sessions at the members.
- `next_deadline` is never later than BEAT. Where `settle` is called later than that, the process may have stood still;
  the delay is added to all sessions. BEAT and a member's interval together are less than the shortest session.
- Nobody is removed while requests wait to be carried out: heartbeats may be among them.
- Sessions last CLOCK_SLACK longer here than at the member.

A deposed coordinator may not know of it for the time of its lease (R29), and a witness or an operator may make another
one meanwhile. Heartbeats that change nothing are answered nevertheless, because successors have that patience. Any
other answer reports state (committed offsets, that a member is not known) and could be wrong. Where it comes
without a record to be committed, `settle` asks for a BARRIER: a record that only proves, by being committed, that the
LeaderEpoch lasts (R52).

The event loop is shared: after so many requests, or so much work of requests, or of groups' steps, the rest waits for
the next call (MAX_REQUESTS, MAX_ASKED, MAX_WORK). A view that is new is looked at by each group in its step. A group
whose targets are being computed comes first until they are, so that there is one computation at a time. Large groups
are forgotten in several calls, and meanwhile no request is carried out: one may be about a new group of that name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

from tidelog.server.coordinators.groups.consumer_group import (
    MAX_METADATA,
    MAX_OFFSET,
    MAX_PARTITIONS,
    Group,
    Kept,
    Records,
    add_committed,
    group_not_empty,
)
from tidelog.server.coordinators.groups.cursor_values import Cursors
from tidelog.server.coordinators.groups.group_member import Member
from tidelog.server.coordinators.groups.pending_offsets import PendingOffsets, partition_of
from tidelog.server.coordinators.groups.selection import Selection
from tidelog.server.coordinators.known_streams import StreamsView
from tidelog.server.coordinators.record_times import Times
from tidelog.server.coordinators.shard import Abandoned, Admin, Answer, Settled, Shard, encoded
from wire.echo import echo
from wire.error_details import LIMIT
from wire.errors import Code, InvariantViolation, TidelogError, limit_reached
from wire.internal_records.group_records import (
    MAX_COMMITTED,
    BarrierKey,
    CursorKey,
    GroupKey,
    MemberKey,
    OffsetKey,
    PendingKey,
    RecordKey,
    StreamPartition,
    check_group_name,
    decode_key,
    from_stream_partitions,
    to_stream_partitions,
)
from wire.internal_records.transaction_records import GROUP_END, EndInGroup
from wire.internal_streams import GROUPS
from wire.operations import api_operations as op
from wire.protobuf.groups_pb2 import (
    CommitRequest,
    CommitResponse,
    CommittedOffset,
    CursorRecord,
    CursorRequest,
    CursorResponse,
    GroupRecord,
    HeartbeatRequest,
    HeartbeatResponse,
    MemberRecord,
    OffsetRecord,
    OffsetsRequest,
    OffsetsResponse,
    PendingRecord,
)
from wire.security.tickets import group_target
from wire.turns import Steps, Turns, pieces

BEAT: Final = 0.5
"""Seconds between two looks at the clock, as the next one."""
LATE: Final = 0.05
"""A look that is later than BEAT by less is on time."""
MAX_GROUPS: Final = 5000
MAX_OF_ALL: Final = Kept(members=20_000, member_bytes=32 << 20, offsets=500_000, metadata_bytes=64 << 20)
"""Most that is kept of all groups of one coordinator."""
MAX_BYTES: Final = 256 << 10
"""Bytes of records, from which on no further request is carried out, and no further group takes a step, before these
are committed. A step of one group may make more than that."""
MAX_REQUESTS: Final = 200
"""Requests that are carried out before the event loop has its turn again, as the next one."""
MAX_WORK: Final = 15_000
"""Names, partitions and offsets that groups look at in their steps. A step of one group may look at more than that."""
MAX_ASKED: Final = 10_000
"""Members and offsets that requests look at. One request may look at more than that."""
MAX_GONE: Final = 2_000
"""Records that are deleted for members whose sessions are over, or for groups that are forgotten, as the next one. One
group may have more members than that."""
MAX_FORGOTTEN: Final = 5_000
_COMMITTING: Final = 4
"""Looks that committing an offset takes as long as."""
_COPIED: Final = 10
"""Offsets copied for an answer in turns, in the time of a look."""
_TOLD_AT_ONCE: Final = 500
"""Offsets of an answer that is not made in turns."""
_TOLD_IN_TURNS: Final = (op.GROUP_LIST, op.GROUP_DESCRIBE, op.GROUP_RESET)
SESSION_INTERVAL: Final = 0.25
"""Seconds between two looks for members whose sessions are over."""
EXPIRY_INTERVAL: Final = 60.0
"""Seconds between two looks for groups to forget."""

_NUMBER: Final = attrgetter("partition")
BARRIER: Final = (BarrierKey().encode(), b"")
_STATELESS: Final = frozenset(
    {
        Code.BAD_REQUEST,
        Code.BAD_NAME,
        Code.LIMIT_REACHED,
        Code.UNAVAILABLE,
        Code.WRONG_INCARNATION,
        Code.NOT_IN_TRANSACTION,
    }
)
"""Refusals that do not follow from the records, or that the asker takes for no answer."""


Request: TypeAlias = HeartbeatRequest | CommitRequest | OffsetsRequest | CursorRequest | Admin
_Due: TypeAlias = tuple[object, Group, Member, int]
"""A heartbeat that is to be answered: its token, and the version that the member has applied."""
TicketCheck: TypeAlias = Callable[[bytes, int, int, str], None]
"""Checks a ticket: it is given the ticket, a producer, its epoch and the target. Raises
TidelogError(NOT_IN_TRANSACTION)."""


class _Forgotten(NamedTuple):
    """A group that is being deleted, or forgotten because it is old."""

    keys: Iterator[RecordKey]
    """Keys of its records that are not deleted yet, the group's own last."""
    token: object
    """Token of the request, answered when all are deleted; None: there is no request."""


class GroupShard(Shard):
    """`retention`: seconds for which a group without members is kept; `patience`: see the module; `broker` and
    `partition`: for descriptions; `check_ticket`: `wire.security.tickets.Tickets.check`."""

    def __init__(
        self, *, broker: str, partition: int, patience: float, retention: float, check_ticket: TicketCheck
    ) -> None:
        super().__init__()
        self.groups: dict[str, Group] = {}
        self.cursors = Cursors()
        self.pending = PendingOffsets()
        self._check_ticket = check_ticket
        self._broker = broker
        self._partition = partition
        self._patience = patience
        self._retention = retention
        self._view = StreamsView()
        self._selection = Selection()
        self._kept: Kept | None = None
        """Totals of all groups at the start of this settlement, plus its additions; None: not computed."""
        self._unsettled: dict[str, None] = {}
        """Groups that may have to take a step."""
        self._is_view_new = False
        self._forgotten: deque[_Forgotten] = deque()
        self._are_more_dead = False
        """Members whose sessions are over are to be removed."""
        self._seen_at: float | None = None
        self._expires_at = 0.0
        self._sessions_at = 0.0

    # ---- the log ---------------------------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        try:
            found = decode_key(key)
        except ValueError:
            self.unknown_records += 1
            return
        match found:
            case GroupKey(name):
                if value is None:
                    self.groups.pop(name, None)
                else:
                    record = GroupRecord.FromString(value)
                    group = self._group(name)
                    group.generation, group.emptied_at = record.generation, record.emptied_at
            case MemberKey(name, member):
                record_of = None if value is None else Member.of_record(member, MemberRecord.FromString(value))
                self._group(name).replay_member(member, record_of)
            case OffsetKey(name, of):
                self._group(name).replay_offset(of, None if value is None else OffsetRecord.FromString(value))
            case CursorKey(name):
                if value is None:
                    self.cursors.known.pop(name, None)
                else:
                    self.cursors.known[name] = CursorRecord.FromString(value)
            case PendingKey():
                self.pending.put(found, None if value is None else PendingRecord.FromString(value))
            case BarrierKey():
                pass

    def _group(self, name: str) -> Group:
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group(name)
        return group

    @property
    def summary(self) -> str:
        return f"{len(self.groups)} groups"

    def begin(self, view: StreamsView, now: float) -> None:
        # Tombstones that follow the one of their group make an empty group anew.
        self.groups = {name: group for name, group in self.groups.items() if not group.is_nothing}
        self._view, self._is_view_new, self._seen_at = view, True, now
        for group in self.groups.values():
            group.begin(now, self._patience)
        self._unsettled = dict.fromkeys(self.groups)

    # ---- requests --------------------------------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        is_busy = bool(self._taken or self._unsettled or self._forgotten) or self.is_making_answers
        return is_busy or self._is_view_new or self._are_more_dead

    def abandon(self) -> Abandoned:
        begun = [each.token for each in self._forgotten if each.token is not None]
        self._forgotten.clear()
        given_up = super().abandon()
        return Abandoned(given_up.without_effect, [*given_up.begun, *begun])

    def on_streams(self, view: StreamsView) -> None:
        self._view, self._is_view_new = view, True

    def settle(self, now: float, times: Times) -> Settled:
        self._look_at_clock(now)
        records: Records = {}
        settled, due = Settled(), list[_Due]()
        size = 0
        self._kept = None
        if self._is_view_new:
            self._is_view_new = False
            self._selection.on_streams(self._view)
            for group in self.groups.values():
                group.on_streams()
                self._unsettled[group.name] = None
        if self._forgotten:
            self._forget_on(settled, records)
            settled.records = encoded(records)
            return settled
        asked = 0
        for _ in range(MAX_REQUESTS):
            if not self._has_taken or size >= MAX_BYTES or asked >= MAX_ASKED or self._forgotten:
                break
            token, request = self._next_taken()
            asked += self._work_of(request)
            made: Records = {}
            try:
                answer = self._carry_out(token, request, now, times, made, due)
                if answer is not None:
                    settled.answers.append((token, answer))
            except TidelogError as error:
                settled.answers.append((token, error))
            size += _add(made, records)
        self._make_answers(max(MAX_ASKED - asked, MAX_ASKED // 4), settled)
        if not self._taken and now >= self._sessions_at:
            self._sessions_at, self._are_more_dead = now + SESSION_INTERVAL, False
            found = len(records)
            for group in self.groups.values():
                if group.on_time(now, records):
                    self._unsettled[group.name] = None
                if len(records) >= found + MAX_GONE:
                    self._sessions_at, self._are_more_dead = now, True
                    break
        self._forget_old(now, times, records)
        looked_at, stepped = self._step(size, now, times, records)
        settled.answers += [(token, _told(group, member, applied)) for token, group, member, applied in due]
        for group in stepped:
            settled.unasked += _unasked(group)
        settled.warnings = [told for group in looked_at if (told := group.tell_left_out()) is not None]
        settled.records = encoded(records)
        if not records and any(_tells_what_is_so(answer) for _, answer in settled.answers):
            settled.records.append(BARRIER)
        self._is_settled()
        return settled

    def _step(self, size: int, now: float, times: Times, records: Records) -> tuple[list[Group], list[Group]]:
        """Returns the groups that were looked at, and those of them that have taken a step. Groups for which `size`, or
        the work of those before, leaves no room have their turn next time."""
        looked_at: list[Group] = []
        stepped: list[Group] = []
        again: dict[str, None] = {}
        work = 0
        while self._unsettled and size < MAX_BYTES and work < MAX_WORK:
            name = next(iter(self._unsettled))
            group = self.groups.get(name)
            if group is None:
                del self._unsettled[name]
                continue
            before = self._selection.looks
            if not self._selection.prepare(group.subscriptions, MAX_WORK - work):
                break
            looked_at.append(group)
            made: Records = {}
            if group.step(self._view, self._selection, now, times, made):
                stepped.append(group)
            size += _add(made, records)
            work += self._selection.looks - before + group.work
            if group.is_computing:
                break
            del self._unsettled[name]
            if group.is_unsettled:
                again[name] = None
        self._unsettled.update(again)
        return looked_at, stepped

    # R54: A coordinator that slept removes nobody for that. When its timer fires late, the delay is added to all
    # sessions, and nobody is removed while requests that have come wait to be carried out.
    # Hazard: Members that live are removed because their heartbeats wait to be read.
    def _look_at_clock(self, now: float) -> None:
        seen, self._seen_at = self._seen_at, now
        if seen is not None and now - seen > BEAT + LATE:
            for group in self.groups.values():
                group.on_slept(now - seen - BEAT)

    def next_deadline(self) -> float:
        assert self._seen_at is not None
        if not any(group.members for group in self.groups.values()):
            return self._expires_at if self.groups else float("inf")
        return self._seen_at + BEAT

    def _carry_out(
        self,
        token: object,
        request: Request,
        now: float,
        times: Times,
        records: Records,
        due: list[_Due],
    ) -> Answer | None:
        """Returns the answer; None: it is due once assignments are computed, or a group is forgotten. Raises
        TidelogError."""
        match request:
            case HeartbeatRequest():
                group = self._found_or_made(request.group, makes=request.kind == HeartbeatRequest.JOIN)
                if group is None:
                    group = Group(request.group)  # without members, it refuses or ignores
                else:
                    self._unsettled[group.name] = None
                before = group.kept
                try:
                    if request.kind == HeartbeatRequest.JOIN and request.member not in group.members:
                        self._check_room("members", "member_bytes")
                    elif request.HasField("subscription"):
                        self._check_room("member_bytes")
                    member = group.heartbeat(request, token, now, records)
                finally:
                    self._count_growth(group, before)
                    self._drop_if_nothing(group)
                if member is None:
                    return HeartbeatResponse()
                due.append((token, group, member, request.applied))
                return None
            case CommitRequest():
                return self._commit(request, times, records)
            case OffsetsRequest():
                steps = self._offsets(request)
                if not self._takes_turns(request):
                    return Turns(steps).finish()
                self._answer_in_turns(token, steps)
                return None
            case CursorRequest():
                response, written = self.cursors.carry_out(request, times)
                records.update(written)
                return response
            case Admin():
                return self._administrate(token, request, times, records)

    def _takes_turns(self, request: Request) -> bool:
        if isinstance(request, OffsetsRequest):
            wanted = sum(len(each.partitions) for each in request.partitions)
            return not wanted or wanted > _TOLD_AT_ONCE
        return isinstance(request, Admin) and request.operation in _TOLD_IN_TURNS

    def _work_of(self, request: Request) -> int:
        """Returns the members and offsets that the request looks at, roughly."""
        match request:
            case CommitRequest():
                return 1 + _COMMITTING * len(request.offsets)
            case OffsetsRequest():
                if request.partitions:
                    return sum(len(each.partitions) for each in request.partitions)
                return 1 + self._size_of(request.group) // _COPIED
            case Admin() if request.operation is op.GROUP_RESET:
                return self._size_of(request.request.group) // _COPIED + _COMMITTING * len(request.request.offsets)
            case Admin() if request.operation is GROUP_END:
                return self._size_of(request.request.group)
            case Admin() if request.operation is not op.GROUP_LIST:
                return 1 + self._size_of(request.request.group) // _COPIED
            case _:
                return 1

    def _size_of(self, name: str) -> int:
        group = self.groups.get(name)
        pending = sum(len(record.offsets) for _, record in self.pending.of(name))
        return 1 + pending + (0 if group is None else len(group.members) + len(group.offsets))

    def _found_or_made(self, name: str, *, makes: bool) -> Group | None:
        check_group_name(name)
        group = self.groups.get(name)
        if group is None and makes:
            if len(self.groups) >= MAX_GROUPS:
                raise TidelogError(
                    Code.LIMIT_REACHED,
                    f"{MAX_GROUPS} groups are kept where {name!r} belongs; delete some (`tidelog group delete`)",
                    [LIMIT.of("groups")],
                )
            group = self.groups[name] = Group(name)
        return group

    def _check_room(self, *kinds: str) -> None:
        """Checks the limits before more is kept. `kinds`: fields of Kept. Raises TidelogError(LIMIT_REACHED)."""
        if not kinds:
            return
        if self._kept is None:
            of_each = [Kept(0, 0, 0, 0), *(group.kept for group in self.groups.values())]
            self._kept = Kept(*map(sum, zip(*of_each, strict=True)))
        for kind in kinds:
            present, most = getattr(self._kept, kind), getattr(MAX_OF_ALL, kind)
            if present >= most:
                raise limit_reached(
                    f"group_{kind}",
                    f"the coordinator of {GROUPS.name}/{self._partition} has {present} {kind.replace('_', ' ')} of"
                    f" groups, and keeps {most} at most; end or delete groups that are not needed",
                )

    def _count_growth(self, group: Group, before: Kept) -> None:
        """Adds the growth of a group to the totals; decreases count from the next settlement on."""
        if self._kept is not None:
            grown = (max(0, now - then) for now, then in zip(group.kept, before, strict=True))
            self._kept = Kept(*(all_of_it + more for all_of_it, more in zip(self._kept, grown, strict=True)))

    def _drop_if_nothing(self, group: Group) -> None:
        if group.is_nothing:
            self.groups.pop(group.name, None)

    # ---- offsets ---------------------------------------------------------------------------------------------------

    # R55: Only the holder of a partition commits, and in its order. A commit names member, generation, the
    # incarnations of stream and partition, and a number that grows. It is taken if the member is known, has reached
    # that generation, holds the partitions, and has committed nothing with a higher number; number and member stand in
    # the record of the offset. A commit without a member, and a reset, are taken while the group has no members.
    # Hazard: A commit that comes late, of a former holder or of the member itself, takes a later one back.
    # Not covered: A commit without a member that comes late takes a later one back.
    def _commit(self, request: CommitRequest, times: Times, records: Records) -> CommitResponse:
        if not 0 < len(request.offsets) <= MAX_COMMITTED:
            raise TidelogError(
                Code.BAD_REQUEST, f"a commit of {len(request.offsets)} offsets; 1 to {MAX_COMMITTED} are taken at once"
            )
        checked = [(of := partition_of(offset), self._record_of(of, offset, times)) for offset in request.offsets]
        producer, epoch = request.producer_id, request.producer_epoch
        if producer:
            self._check_ticket(request.ticket, producer, epoch, group_target(check_group_name(request.group)))
        group = self._found_or_made(request.group, makes=not request.member) or Group(request.group)
        try:
            number = 0 if producer else request.number  # commits of a transaction are numbered by its producer
            group.check_commit(request.member, request.generation, number, (of for of, _ in checked))
            self._check_room(*group.check_offsets(checked))
            before = group.kept
            if producer:
                found = [_committed(of, record) for of, record in checked]
                self.pending.commit(PendingKey(group.name, producer), epoch, request.number, found, times, records)
                group.touch(times, records)
            else:
                for of, record in checked:
                    record.member, record.number = request.member, request.number
                    group.commit(of, record, times, records)
                self._count_growth(group, before)
        finally:
            self._drop_if_nothing(group)
        return CommitResponse()

    def _end_transaction(self, request: EndInGroup, times: Times, records: Records) -> Mapping[str, Any]:
        """Writes the offsets, and behind them the proof that they are committed: a successor may find only a part of
        the records."""
        key = PendingKey(check_group_name(request.group), request.producer_id)
        left, proof = self.pending.end(key, request.producer_epoch, times)
        if request.commits and left:
            group = self._group(request.group)  # those that were pending have room
            for offset in left:
                of = partition_of(offset)
                if not self._view.is_gone(of, offset.partition_incarnation):
                    group.commit(of, _record(offset, times), times, records)
            self._drop_if_nothing(group)
        if proof is not None:
            records[key] = proof
        return {}

    def _record_of(self, of: StreamPartition, offset: CommittedOffset, times: Times) -> OffsetRecord:
        """Returns the record of a commit. Raises TidelogError for an unknown partition or an impossible offset."""
        if not 0 <= offset.offset <= MAX_OFFSET:
            raise TidelogError(Code.BAD_REQUEST, f"offset {offset.offset} of {_named(of)} is below 0")
        if len(offset.metadata) > MAX_METADATA:
            raise TidelogError(
                Code.BAD_REQUEST, f"{len(offset.metadata)} characters of metadata; {MAX_METADATA} are taken at most"
            )
        if self._view.is_unknown(of, offset.partition_incarnation):
            raise TidelogError(
                Code.UNAVAILABLE, f"{self._broker} does not know {_named(of)} of that life yet; try again"
            )
        incarnation = self._view.partition_incarnation(of)
        if incarnation is None or offset.partition_incarnation not in (0, incarnation):
            raise TidelogError(
                Code.WRONG_INCARNATION,
                f"there is no {_named(of)} of that life; the stream was deleted, and maybe created again",
            )
        return OffsetRecord(
            offset=offset.offset, partition_incarnation=incarnation, metadata=offset.metadata, committed_at=times.shown
        )

    def _offsets(self, request: OffsetsRequest) -> Steps[Answer]:
        """Answers with all offsets as they are now: a transaction commits them together. Raises TidelogError."""
        check_group_name(request.group)
        group = self.groups.get(request.group) or Group(request.group)
        wanted = from_stream_partitions(request.partitions)
        if len(wanted) > MAX_PARTITIONS:
            raise TidelogError(
                Code.BAD_REQUEST, f"{len(wanted)} partitions; {MAX_PARTITIONS} are asked at once at most"
            )
        self.pending.check_none(group.name, wanted if request.partitions else None)
        some = {of: group.offsets.get(of) for of in wanted}
        return _telling(some if request.partitions else group.offsets.copy())

    def _forget_old(self, now: float, times: Times, records: Records) -> None:
        if now < self._expires_at:
            return
        self._expires_at = now + EXPIRY_INTERVAL
        for name, group in [*self.groups.items()]:
            group.emptied_at = times.dated(group.emptied_at)
            is_old = not group.members and group.emptied_at and times.is_over(group.emptied_at, self._retention)
            if is_old and not self.pending.of(name):
                self._forget(self.groups.pop(name), None, records)
        self.pending.forget_old(times, records)

    def _forget(self, group: Group, token: object, records: Records) -> bool:
        """Deletes all records of a group. False: the next calls finish that."""
        if group.size > MAX_FORGOTTEN or len(records) >= MAX_FORGOTTEN or self._forgotten:
            self._forgotten.append(_Forgotten(group.record_keys(), token))
            return False
        for key in group.record_keys():
            records.pop(key, None)
            records[key] = None
        return True

    def _forget_on(self, settled: Settled, records: Records) -> None:
        while self._forgotten and len(records) < MAX_FORGOTTEN:
            keys, token = self._forgotten[0]
            records |= dict.fromkeys(islice(keys, MAX_FORGOTTEN - len(records)))
            if len(records) == MAX_FORGOTTEN:
                return  # perhaps none is left; the next call finds that
            self._forgotten.popleft()
            if token is not None:
                settled.answers.append((token, {}))

    # ---- operators -------------------------------------------------------------------------------------------------

    def _administrate(self, token: object, asked: Admin, times: Times, records: Records) -> Mapping[str, Any] | None:
        request = asked.request
        if asked.operation is op.GROUP_LIST:
            self._answer_in_turns(token, _listing([group for _, group in sorted(self.groups.items())]))
            return None
        if asked.operation is GROUP_END:
            return self._end_transaction(request, times, records)
        group = self._found_or_made(request.group, makes=asked.operation is op.GROUP_RESET)
        if group is None:
            raise TidelogError(
                Code.UNKNOWN_GROUP,
                f"there is no consumer group {request.group!r}; `tidelog group list` shows those that there are",
            )
        if asked.operation is op.GROUP_DESCRIBE:
            self._answer_in_turns(token, self._describing(group))
            return None
        try:
            if group.members:
                raise group_not_empty(group.name, len(group.members))
            self.pending.check_none(group.name)
            if asked.operation is op.GROUP_DELETE:
                del self.groups[group.name]
                if self._forget(group, token, records):
                    return {}
                self._in_hand.remove(token)
                return None
            if asked.operation is op.GROUP_RESET:
                self._reset(group, request.offsets, times, records)
                self._answer_in_turns(token, self._describing(group), has_begun=True)
                return None
        finally:
            self._drop_if_nothing(group)
        raise InvariantViolation(f"the coordinator of groups was asked for {asked.operation.name}")

    def _reset(self, group: Group, offsets: Sequence[op.NewOffset], times: Times, records: Records) -> None:
        checked = [(of := self._current(new), self._new_record(of, new, times)) for new in offsets]
        for of, record in checked:
            group.commit(of, record, times, records)

    def _current(self, new: op.NewOffset) -> StreamPartition:
        stream = self._view.streams.get(new["stream"])
        if stream is None or new["partition"] not in stream.partitions:
            raise TidelogError(
                Code.WRONG_INCARNATION, f"there is no partition {new['partition']} of stream {echo(new['stream'])}"
            )
        return StreamPartition(new["stream"], stream.incarnation, new["partition"])

    def _new_record(self, of: StreamPartition, new: op.NewOffset, times: Times) -> OffsetRecord:
        offset = (
            CommittedOffset(offset=new["offset"]) if 0 <= new["offset"] <= MAX_OFFSET else CommittedOffset(offset=-1)
        )
        return self._record_of(of, offset, times)

    def _describing(self, group: Group) -> Steps[Answer]:
        """Describes the offsets as they are now, and each member as it is in its turn."""
        return self._description_of(group, group.offsets.copy(), sorted(self.pending.of(group.name)))

    def _description_of(
        self,
        group: Group,
        offsets: Mapping[StreamPartition, OffsetRecord],
        pending: Sequence[tuple[int, PendingRecord]],
    ) -> Steps[Answer]:
        details: list[op.GroupMember] = []
        told: list[op.GroupOffset] = []
        of_transactions: list[op.PendingGroupOffset] = []
        form: op.GroupDescription = {
            **_summary(group),
            "coordinator": self._broker,
            "partition": self._partition,
            "left_out": group.left_out,
            "details": details,
            "offsets": told,
            "pending": of_transactions,
        }
        yield len(offsets) // _COPIED
        for _, member in sorted(group.members.items()):
            details.append(_description(member))
            yield 2 + len(member.assigned) + len(member.revoking)
        ordered = _in_order(offsets)
        yield len(ordered)
        for piece in pieces(ordered, _TOLD_AT_ONCE):
            told += [
                {
                    "stream": of.stream,
                    "incarnation": of.incarnation,
                    "partition": of.partition,
                    "offset": record.offset,
                    "metadata": record.metadata,
                    "committed_at_ns": record.committed_at,
                }
                for of in piece
                for record in (offsets[of],)
            ]
            yield len(piece)
        for producer, record in pending:
            of_transactions += [
                {
                    "producer_id": producer,
                    "stream": offset.stream,
                    "incarnation": offset.incarnation,
                    "partition": offset.partition,
                    "offset": offset.offset,
                }
                for offset in record.offsets
            ]
            yield 1 + len(record.offsets)
        return form

    def validate(self) -> None:
        for group in self.groups.values():
            group.validate()
        self.pending.validate()


def _told(group: Group, member: Member, applied: int) -> HeartbeatResponse:
    member.told = (member.version, member.generation)
    return HeartbeatResponse(
        generation=member.generation,
        heartbeat_interval_ms=member.heartbeat_interval_ms,
        version=member.version,
        assigned=to_stream_partitions(member.assigned) if applied != member.version else [],
        left_out=group.left_out,
    )


def _unasked(group: Group) -> list[tuple[object, Answer]]:
    found: list[tuple[object, Answer]] = list(group.farewells)
    group.farewells.clear()
    for member in group.members.values():
        if member.token is not None and member.told != (member.version, member.generation):
            response = _told(group, member, applied=0)
            response.unasked = True
            found.append((member.token, response))
    return [(token, answer) for token, answer in found if token is not None]


def _add(made: Records, records: Records) -> int:
    """Adds `made` to `records`, last; returns its size in bytes without the keys."""
    for key, record in made.items():
        records.pop(key, None)  # a record stands behind those that it follows
        records[key] = record
    return sum(0 if record is None else record.ByteSize() for record in made.values())


def _tells_what_is_so(answer: Answer) -> bool:
    if isinstance(answer, TidelogError):
        return answer.code not in _STATELESS
    return isinstance(answer, OffsetsResponse | CursorResponse)


def _committed(of: StreamPartition, record: OffsetRecord) -> CommittedOffset:
    return CommittedOffset(
        stream=of.stream,
        incarnation=of.incarnation,
        partition=of.partition,
        partition_incarnation=record.partition_incarnation,
        offset=record.offset,
        metadata=record.metadata,
    )


def _record(offset: CommittedOffset, times: Times) -> OffsetRecord:
    return OffsetRecord(
        offset=offset.offset,
        partition_incarnation=offset.partition_incarnation,
        metadata=offset.metadata,
        committed_at=times.shown,
    )


def _in_order(partitions: Iterable[StreamPartition]) -> list[StreamPartition]:
    """Sorted. Of many partitions few have another stream, and numbers are compared faster than tuples."""
    by_stream: dict[tuple[str, int], list[StreamPartition]] = {}
    for of in partitions:
        by_stream.setdefault((of.stream, of.incarnation), []).append(of)
    return [of for stream in sorted(by_stream) for of in sorted(by_stream[stream], key=_NUMBER)]


def _named(of: StreamPartition) -> str:
    return f"partition {of.partition} of stream {echo(of.stream)}"


def _telling(found: Mapping[StreamPartition, OffsetRecord | None]) -> Steps[Answer]:
    response = OffsetsResponse()
    ordered = _in_order(found)
    yield len(ordered)
    for piece in pieces(ordered, _TOLD_AT_ONCE):
        add_committed(response, ((of, found[of]) for of in piece))
        yield len(piece)
    return response


def _listing(groups: Sequence[Group]) -> Steps[Answer]:
    summaries: list[op.GroupSummary] = []
    for group in groups:
        summaries.append(_summary(group))
        yield 2 + len(group.members) + len(group.offsets) // _COPIED
    return {"groups": summaries, "unanswered": []}


def _summary(group: Group) -> op.GroupSummary:
    streams = {of.stream for of in group.offsets}
    for subscribed in group.subscriptions:
        streams |= subscribed.streams | subscribed.patterns
    return {
        "name": group.name,
        "state": group.state,
        "generation": group.generation,
        "members": len(group.members),
        "streams": sorted(streams),
    }


def _description(member: Member) -> op.GroupMember:
    return {
        "id": member.id,
        "instance": member.instance,
        "client": member.client,
        "subscription": member.subscription,
        "generation": member.generation,
        "assigned": _by_stream(member.assigned),
        "revoking": _by_stream(member.revoking),
        "parted": member.parted,
    }


def _by_stream(partitions: frozenset[StreamPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for each in sorted(partitions):
        found.setdefault(each.stream, []).append(each.partition)
    return found
