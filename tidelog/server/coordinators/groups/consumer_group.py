"""One consumer group: its members, their assignments, and its committed offsets.

    members, subscriptions or partitions change ──> the generation grows, targets are computed anew
                                                          │
    for each member, at every step:                       v
        assigned ⊄ target                     assigned shrinks, the rest is to be given up (revoking), version + 1
        it has applied the version            revoking is empty: these partitions are free
        revoking is empty                     it reaches the generation, and gets the free partitions of its target;
                                              version + 1 where these are any

Targets are computed in turns of TURN, from members and streams as they were when that began (`_Assigning`). Later
changes count when the targets are put in force: a member that has left gets nothing, and nobody gets a partition that
is gone or that it has not subscribed to any more. Then targets are computed again.

A partition that becomes free in one step is assigned in the next one, when that is committed (R51). So the records of
one step may be appended in several batches: whichever of them a successor finds, no two members have a partition.

Invariant: a partition is in `assigned` or `revoking` of one member at most.
Invariant: `assigned` of a member is part of its target, once `step` has run.

Only changes are written: the record of a member has its subscription and its partitions, and is not made anew
only because the group has a new generation, which every member with nothing to give up has reached (`begin`).
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from google.protobuf.message import Message as ProtoMessage

from tidelog.server.coordinators.groups.assignor import Assignment, assigning
from tidelog.server.coordinators.groups.group_member import Member, subscription_of
from tidelog.server.coordinators.groups.selection import Selection, Subscribed
from tidelog.server.coordinators.known_streams import StreamsView
from tidelog.server.coordinators.record_times import Times
from wire.echo import echo
from wire.errors import Code, InvariantViolation, TidelogError, limit_reached
from wire.internal_records.group_records import (
    GroupKey,
    MemberKey,
    OffsetKey,
    RecordKey,
    StreamPartition,
    unknown_member,
)
from wire.protobuf.groups_pb2 import GroupRecord, HeartbeatRequest, OffsetRecord, OffsetsResponse

MAX_MEMBERS = 1000
VERSIONS_OF_GENERATION = 1_000_000
"""The versions of a member that joins begin at so many times the generation. A member that was removed, and whose JOIN
comes late, is a member once more under its id: it must not take an assignment of before for the present one."""
MAX_PARTITIONS = 20_000
"""Partitions of all streams to which a group's members have subscribed."""
MAX_TARGET_BYTES = 128 << 10
"""Bytes of the same partitions in the record of a member that has them all. It has them up to three times, and a batch
takes 1 MiB."""
MAX_METADATA = 1024
"""Characters of the text that is committed with an offset."""
MAX_OFFSET = (1 << 63) - 1
CLOCK_SLACK = 1.02
"""Sessions last so much longer here than at the member, whose clock may be slower."""
TURN = 10_000
"""Partitions, members and names that are looked at in one turn of computing targets, as a rule."""
MAX_SUBSCRIPTIONS = 64
"""Different subscriptions of the members of a group."""
MAX_MEMBER_BYTES = 4 << 20
"""Bytes of the subscriptions, ids and texts of all members of a group."""
MAX_OFFSETS = 25_000
"""Committed offsets of a group: somewhat more than it has partitions, since members may have subscribed to other
streams before. One answer has all of them, and the event loop has no turn meanwhile."""
MAX_METADATA_BYTES = 4 << 20
"""Characters of the texts that are committed with them."""
_BYTES_OF_STREAM = 24
"""Bytes in a record of the only partition of a stream, beside its name."""
_NONE: frozenset[StreamPartition] = frozenset()

Records: TypeAlias = "dict[RecordKey, ProtoMessage | None]"
"""Records to be written, by key; None deletes."""


class Kept(NamedTuple):
    """Totals that a coordinator keeps of one group, or of all."""

    members: int
    member_bytes: int
    """`Member.bytes` of all."""
    offsets: int
    metadata_bytes: int
    """Characters of the metadata of all offsets."""


@dataclass(slots=True)
class _Assigning:
    """Targets that are being computed."""

    work: Generator[int, None, Assignment]
    was_stale: bool
    """The group's `_is_stale` when computing began."""
    subscribed: dict[str, Subscribed]
    """Subscriptions by member, when computing began."""
    gone: set[StreamPartition] = field(default_factory=set)
    """Partitions that are not to be read any more."""
    successors: dict[str, str] = field(default_factory=dict)
    """By id of a member whose instance id another process has taken since, the id of that process."""

    def go_on(self) -> Assignment | None:
        """Computes for another turn; None: the targets are not finished."""
        looked = 0
        try:
            while looked < TURN:
                looked += next(self.work)
        except StopIteration as done:
            targets: Assignment = done.value
            return targets
        return None

    def allowed(self, member: Member, targets: Assignment) -> frozenset[StreamPartition]:
        """Returns the partitions of `targets` that the member gets, now that they are computed."""
        found = targets.get(member.id, _NONE)
        if self.gone:
            found -= self.gone
        return found if self.subscribed.get(member.id) == member.subscribed else found & member.target

    def on_taken_over(self, before: str, now: str) -> None:
        """Notes that process `now` has taken the place of `before`."""
        if before in self.subscribed:
            self.successors[before] = now
            self.subscribed[now] = self.subscribed.pop(before)


@dataclass(slots=True)
class Group:
    """Members, assignment and offsets of a group as one state: a commit depends on who holds a partition, and a step of
    the assignment changes who does."""

    name: str
    generation: int = 0
    emptied_at: int = 0
    """A date of `Times`; 0: it has members, or never had any and nothing is committed."""
    members: dict[str, Member] = field(default_factory=dict)
    offsets: dict[StreamPartition, OffsetRecord] = field(default_factory=dict)
    replaced: dict[str, None] = field(default_factory=dict)
    """Ids of members whose instance id another process has taken, the newest last. They are forgotten with the
    coordinator, which then calls such a member unknown."""
    farewells: list[tuple[object, TidelogError]] = field(default_factory=list)
    """Refusals for members that were removed, with the tokens of their newest heartbeats."""
    left_out: int = 0
    """Subscribed partitions beyond the limit, which no member gets. As of the last look."""
    left_out_before: int = 0
    """The value of `left_out` that was logged last."""
    member_bytes: int = 0
    metadata_bytes: int = 0
    _subscriptions: dict[Subscribed, list[int]] = field(default_factory=dict)
    """Each subscription with the number of its members, in a list of one."""
    _is_view_new: bool = False
    """Streams or partitions may have come or gone since the last step."""
    _is_stale: bool = False
    """Targets are to be computed anew."""
    _is_unsettled: bool = False
    """A member may have to give up partitions, or may get some."""
    _assigning: _Assigning | None = None
    _is_resumed: bool = False
    """A new coordinator has not compared the targets with the subscribed partitions."""
    _freed: set[StreamPartition] = field(default_factory=set)
    """Partitions that became free in this step."""
    _written: set[str] = field(default_factory=set)
    """Ids of members whose records were made since the last step."""
    _numbers: dict[str, int] = field(default_factory=dict)
    """The highest number of a commit by member, while records are replayed."""
    _subscribed: frozenset[StreamPartition] | None = None
    """Partitions for which the targets were, or are being, computed. None: not since the coordinator began."""

    @property
    def is_nothing(self) -> bool:
        """No record of the group exists."""
        return not (self.generation or self.members or self.offsets or self.emptied_at or self._is_reassigned)

    @property
    def kept(self) -> Kept:
        return Kept(len(self.members), self.member_bytes, len(self.offsets), self.metadata_bytes)

    # ---- members ---------------------------------------------------------------------------------------------------

    def heartbeat(self, request: HeartbeatRequest, token: object, now: float, records: Records) -> Member | None:
        """Returns the member, which is to be answered once `step` has run; None: it left. Raises TidelogError."""
        match request.kind:
            case HeartbeatRequest.JOIN:
                known = self.members.get(request.member)
                if known is None or not known.is_here:
                    known = self._join(Member.of_request(request), records)
                member = known  # a known id joins again: its answer was lost
            case HeartbeatRequest.STAY:
                member = self._known(request.member)
            case HeartbeatRequest.LEAVE | HeartbeatRequest.PART:
                self._end(request, now, records)
                return None
            case _:
                raise TidelogError(Code.BAD_REQUEST, f"a heartbeat of the unknown kind {request.kind}")
        if request.kind == HeartbeatRequest.STAY and request.HasField("subscription"):
            self._subscribe(member, request, records)
        member.session_ends = now + member.session_timeout * CLOCK_SLACK
        member.token = token
        if member.revoking and request.applied == member.version:
            self._freed |= member.revoking
            member.revoking = frozenset()
            member.revoke_by = None
            self._changed(member, records)
        return member

    def _known(self, member_id: str) -> Member:
        member = self.members.get(member_id)
        if member is not None and member.is_here:
            return member
        if member_id in self.replaced:
            raise fenced_instance(self.name, member_id)
        raise unknown_member(self.name, member_id)

    # R56: An instance id has one process. A member that joins under the instance id of another one gets its
    # partitions, and the other one is refused from then on (FENCED_INSTANCE).
    # Hazard: Two processes commit for one static member.
    # Not covered: Until it is told, the first process reads what the second one has.
    def _join(self, joining: Member, records: Records) -> Member:
        if joining.id in self.replaced:
            raise fenced_instance(self.name, joining.id)
        if joining.id in self.members:
            raise TidelogError(
                Code.BAD_REQUEST,
                f"member id {joining.id!r} of group {self.name!r} is of a life that has ended; join under a new id",
            )
        before = self._of_instance(joining.instance)
        self._check_room(joining, before)
        if before is None:
            self._is_stale = True
            joining.version = self.generation * VERSIONS_OF_GENERATION
        else:
            # The revoked partitions are free: a process that is fenced commits nothing any more.
            self._freed |= before.revoking
            joining.assigned, joining.target, joining.version = before.assigned, before.target, before.version + 1
            joining.generation = before.generation
            if joining.subscribed != before.subscribed:
                self._is_stale = True
            if self._assigning is not None:
                self._assigning.on_taken_over(before.id, joining.id)
            self._remove(before, records)
            self._remember_replaced(before.id)
            self.farewells.append((before.token, fenced_instance(self.name, before.id)))
        self._add(joining)
        self.emptied_at = 0
        records[GroupKey(self.name)] = self.to_record()
        self._changed(joining, records)
        return joining

    def _of_instance(self, instance: str) -> Member | None:
        return next((m for m in self.members.values() if m.instance == instance), None) if instance else None

    def _check_room(self, joining: Member, before: Member | None) -> None:
        """Checks the limits for a member that joins, perhaps in the place of `before`, or subscribes anew. Raises
        TidelogError(LIMIT_REACHED)."""
        if before is None and len(self.members) >= MAX_MEMBERS:
            raise limit_reached(
                "group_members",
                f"group {self.name!r} has {MAX_MEMBERS} members already; end some, or share the streams among several"
                " groups",
            )
        if joining.subscribed not in self._subscriptions and len(self._subscriptions) >= MAX_SUBSCRIPTIONS:
            raise limit_reached(
                "group_subscriptions",
                f"the members of group {self.name!r} have {len(self._subscriptions)} different subscriptions, and"
                f" {MAX_SUBSCRIPTIONS} may be; subscribe to what another member has subscribed to",
            )
        size = self.member_bytes + joining.bytes - (0 if before is None else before.bytes)
        if size > MAX_MEMBER_BYTES:
            raise limit_reached(
                "group_member_bytes",
                f"the ids and subscriptions of the members of group {self.name!r} would have {size} bytes, and"
                f" {MAX_MEMBER_BYTES} may be; subscribe by a pattern, or with fewer members",
            )

    def _add(self, member: Member) -> None:
        self.members[member.id] = member
        self._count(member)

    def _count(self, member: Member) -> None:
        """Counts a member. Members of one subscription share one object of it, which is quickly compared."""
        self.member_bytes += member.bytes
        for known in self._subscriptions:
            if known == member.subscribed:
                member.subscribed = known
                break
        self._subscriptions.setdefault(member.subscribed, [0])[0] += 1

    def _uncount(self, member: Member) -> None:
        self.member_bytes -= member.bytes
        count = self._subscriptions[member.subscribed]
        count[0] -= 1
        if not count[0]:
            del self._subscriptions[member.subscribed]

    @property
    def subscriptions(self) -> Collection[Subscribed]:
        """Returns the subscriptions of the members, each once."""
        return self._subscriptions

    def _remember_replaced(self, member_id: str) -> None:
        self.replaced[member_id] = None
        if len(self.replaced) > MAX_MEMBERS:
            del self.replaced[next(iter(self.replaced))]

    def _end(self, request: HeartbeatRequest, now: float, records: Records) -> None:
        """Ends a member that leaves or parts; one that is not known has ended already."""
        member = self.members.get(request.member)
        if member is None or member.parted:
            return
        if request.kind == HeartbeatRequest.PART and member.instance and member.is_here:
            self._freed |= member.revoking
            member.parted, member.revoking, member.revoke_by = True, frozenset(), None
            member.session_ends, member.token = now + member.session_timeout * CLOCK_SLACK, None
            self._changed(member, records)
        else:
            self.remove(member, records)

    def _subscribe(self, member: Member, request: HeartbeatRequest, records: Records) -> None:
        wanted = subscription_of(request)
        if wanted != member.subscribed:
            self._check_room(replace(member, subscribed=wanted), member)
            self._uncount(member)
            member.subscribed = wanted
            self._count(member)
            self._is_stale = True
            self._changed(member, records)

    def remove(self, member: Member, records: Records) -> None:
        """Removes a member that left, or is dead."""
        self._freed |= member.held
        self._remove(member, records)
        self._is_stale = True

    def _remove(self, member: Member, records: Records) -> None:
        del self.members[member.id]
        self._uncount(member)
        records[MemberKey(self.name, member.id)] = None
        self._is_unsettled = True

    def _changed(self, member: Member, records: Records) -> None:
        records[MemberKey(self.name, member.id)] = member.to_record()
        self._written.add(member.id)
        self._is_unsettled = True

    # ---- assignment ------------------------------------------------------------------------------------------------

    def on_streams(self) -> None:
        """Notes that streams or partitions may have come or gone: the next step looks."""
        self._is_view_new = True

    @property
    def work(self) -> int:
        """Returns the most members, partitions and offsets that a step looks at."""
        return len(self.members) + len(self.offsets) + len(self._subscribed or ())

    @property
    def is_unsettled(self) -> bool:
        """Returns whether `step` has something to do."""
        return self._is_view_new or self._is_reassigned or self._is_unsettled

    @property
    def _is_reassigned(self) -> bool:
        """Targets are being computed, or to be computed."""
        return self._is_stale or self._is_resumed or self._assigning is not None

    @property
    def is_computing(self) -> bool:
        """Targets are being computed."""
        return self._assigning is not None

    def step(self, view: StreamsView, selection: Selection, now: float, times: Times, records: Records) -> bool:
        """Carries out all changes that can be made now. False: there were none."""
        if self._is_view_new:
            self._look_at_streams(view, selection, records)
        changed: dict[str, Member] = {}
        if self._assigning is None and (self._is_stale or self._is_resumed):
            self._begin_assigning(view, selection)
        if self._assigning is not None:
            targets = self._assigning.go_on()
            if targets is None:
                return False
            self._retarget(targets, times, records, changed)
        if not self._is_unsettled:
            return False
        self._reconcile(now, changed)
        # Each member once, in its final state. Reaching a generation alone is no change: see `begin`.
        records |= {MemberKey(self.name, member.id): member.to_record() for member in changed.values()}
        return True

    def _look_at_streams(self, view: StreamsView, selection: Selection, records: Records) -> None:
        self._is_view_new = False
        for of in [of for of, known in self.offsets.items() if view.is_gone(of, known.partition_incarnation)]:
            self._keep_offset(of, None)
            records[OffsetKey(self.name, of)] = None
        if self._subscribed is not None and not self._is_stale:
            wanted, self.left_out = self._partitions_of(view, selection)
            if wanted != self._subscribed and self.members:
                self._is_stale = True
                if self._assigning is not None:
                    self._assigning.gone |= self._subscribed - wanted

    def _begin_assigning(self, view: StreamsView, selection: Selection) -> None:
        was_stale, self._is_stale, self._is_resumed = self._is_stale, False, False
        self._subscribed, self.left_out = self._partitions_of(view, selection)
        by_stream: dict[str, list[StreamPartition]] = {}
        for partition in self._subscribed:
            by_stream.setdefault(partition.stream, []).append(partition)
        members = [member for member in self.members.values() if not member.is_expelled]
        streams = selection.bits(by_stream)
        of_each: dict[int, frozenset[str]] = {}
        names: dict[str, frozenset[str]] = {}
        for member in members:
            selected = selection.of(member.subscribed) & streams
            found = of_each.get(selected)
            if found is None:
                found = of_each[selected] = frozenset(selection.names(selected))
            unknown = {partition.stream for partition in _unknown(member, view)}
            names[member.id] = found | unknown if unknown else found
        present = {member.id: member.target for member in members}
        subscribed = {member.id: member.subscribed for member in members}
        self._assigning = _Assigning(assigning(names, by_stream, present), was_stale, subscribed)

    def _retarget(self, targets: Assignment, times: Times, records: Records, changed: dict[str, Member]) -> None:
        """Puts the computed targets in force."""
        computed, self._assigning = self._assigning, None
        assert computed is not None
        for before, now in computed.successors.items():
            if before in targets:
                targets[now] = targets.pop(before)
        found = {
            member.id: frozenset() if member.is_expelled else computed.allowed(member, targets)
            for member in self.members.values()
        }
        is_same = all(found[member.id] == member.target for member in self.members.values() if not member.is_expelled)
        if not computed.was_stale and is_same:
            return  # a new coordinator finds the targets unchanged
        self.generation += 1
        if not self.members:
            self.emptied_at = times.date
        records[GroupKey(self.name)] = self.to_record()
        self._is_unsettled = True
        for member in self.members.values():
            target = found[member.id]
            if target != member.target:
                member.target = target
                changed[member.id] = member

    def _partitions_of(self, view: StreamsView, selection: Selection) -> tuple[frozenset[StreamPartition], int]:
        """Returns the partitions to which members have subscribed, up to a group's limit, and the number of those
        beyond. Partitions that a member has stay, if this broker does not know their stream yet."""
        selected = 0
        for subscribed in {member.subscribed for member in self.members.values() if not member.is_expelled}:
            selected |= selection.of(subscribed)
        unknown: dict[str, set[StreamPartition]] = {}
        for member in self.members.values():
            for partition in _unknown(member, view):
                unknown.setdefault(partition.stream, set()).add(partition)
        names = selection.names(selected)
        return _limited(sorted({*names, *unknown} if unknown else names), set(names), unknown, view)

    # R51: A partition is freed in one step and assigned in a later one. It is free when its holder has said that it
    # gave it up, or is no member any more, and the coordinator assigns it after that step is committed. So no two
    # members hold a partition, whichever part of the records a successor finds.
    # Hazard: Two members that read one partition.
    def _reconcile(self, now: float, changed: dict[str, Member]) -> None:
        for member in self.members.values():
            over = member.assigned - member.target
            if not over:
                continue
            member.assigned -= over
            member.version += 1
            if member.parted:  # its process has ended
                self._freed |= over
            else:
                member.revoking |= over
                if not member.is_expelled:
                    member.revoke_by = member.revoke_by or now + member.rebalance_timeout
            changed[member.id] = member
        held = self._freed.union(*(member.held for member in self.members.values()))
        for member in self.members.values():
            if member.revoking:
                continue
            free = member.target - member.assigned - held
            if free:
                member.assigned |= free
                member.version += 1
                held |= free
                changed[member.id] = member
            if member.generation != self.generation:
                member.generation = self.generation
                if member.id in self._written:  # then its record says so, too
                    changed[member.id] = member
        self._is_unsettled = bool(self._freed)
        self._freed, self._written = set(), set()

    def begin(self, now: float, patience: float) -> None:
        """Starts the group from its records. `patience`: seconds of the lease that a deposed
        coordinator may still have. A member that had nothing to give
        up when the group came to its generation has reached it, too: no record says so."""
        for member in self.members.values():
            member.newest_commit = self._numbers.get(member.id, 0)
            if not member.revoking and member.assigned <= member.target:
                member.generation = self.generation
            member.session_ends = now + (member.session_timeout + patience) * CLOCK_SLACK
            member.revoke_by = now + member.rebalance_timeout + patience if member.revoking else None
        self._numbers = {}
        self._is_resumed = self._is_unsettled = bool(self.members)
        # A coordinator that died after the last member left, and before the step that this makes due.
        self._is_stale = not self.members and not self.emptied_at

    def replay_member(self, member_id: str, member: Member | None) -> None:
        """Takes up the record of a member; None: it was deleted."""
        before = self.members.pop(member_id, None)
        if before is not None:
            self._uncount(before)
        if member is not None:
            self._add(member)

    def replay_offset(self, of: StreamPartition, record: OffsetRecord | None) -> None:
        if record is not None:
            self._keep_offset(of, record)
            if record.number:
                self._numbers[record.member] = max(record.number, self._numbers.get(record.member, 0))
        elif of in self.offsets:
            self._keep_offset(of, None)

    def on_slept(self, seconds: float) -> None:
        """Prolongs sessions: the coordinator stood still for so long, and heartbeats may wait to be read."""
        for member in self.members.values():
            member.session_ends += seconds
            if member.revoke_by is not None:
                member.revoke_by += seconds

    # Keeps R53.
    def on_time(self, now: float, records: Records) -> bool:
        """Removes the members whose sessions are over, and expels those that have not given up in time. False: there
        are none."""
        dead = [member for member in self.members.values() if now >= member.session_ends]
        late = [
            m for m in self.members.values() if m.revoke_by is not None and now >= m.revoke_by and now < m.session_ends
        ]
        for member in dead:
            self.remove(member, records)
        for member in late:
            member.is_expelled, member.revoke_by = True, None
            self._is_stale = True
        for member in (*dead, *late):
            self.farewells.append((member.token, unknown_member(self.name, member.id)))
            member.token = None
        return bool(dead or late)

    def tell_left_out(self) -> str | None:
        """Returns a sentence for the log where more or fewer partitions are left out than before, else None."""
        if self.left_out == self.left_out_before:
            return None
        self.left_out_before = self.left_out
        if not self.left_out:
            return None
        return (
            f"{self.left_out} partitions that group {self.name!r} has subscribed to are beyond the limit of a group,"
            " and are read by no member; share the streams among several groups"
        )

    # ---- offsets ---------------------------------------------------------------------------------------------------

    def check_commit(self, member_id: str, generation: int, number: int, offsets: Iterable[StreamPartition]) -> None:
        """Rule R55. Raises TidelogError: this member, or a program that is no member, may not commit, or the member has
        committed with a higher `number` (0: not numbered)."""
        if not member_id:
            if self.members:
                raise group_not_empty(self.name, len(self.members))
            return
        member = self._known(member_id)
        if generation != member.generation:
            raise TidelogError(
                Code.STALE_GENERATION,
                f"member {member_id!r} of group {self.name!r} is in generation {member.generation}, the commit in"
                f" {generation}; commit again after the next heartbeat",
            )
        if 0 < number < member.newest_commit:
            raise TidelogError(
                Code.STALE_COMMIT,
                f"commit {number} of member {member_id!r} of group {self.name!r} came after its commit"
                f" {member.newest_commit}, which holds; nothing was committed",
            )
        others = sorted(set(offsets) - member.held)
        if others:
            raise TidelogError(
                Code.NOT_ASSIGNED,
                f"{', '.join(map(str, others[:5]))} {'is' if len(others) == 1 else 'are'} not assigned to member"
                f" {member_id!r} of group {self.name!r} any more; nothing was committed",
            )

    def commit(self, of: StreamPartition, record: OffsetRecord, times: Times, records: Records) -> None:
        self._keep_offset(of, record)
        self._count_commit(record)
        records[OffsetKey(self.name, of)] = record
        self.touch(times, records)

    def _keep_offset(self, of: StreamPartition, record: OffsetRecord | None) -> None:
        before = self.offsets.get(of)
        self.metadata_bytes -= 0 if before is None else len(before.metadata)
        if record is None:
            del self.offsets[of]
        else:
            self.offsets[of] = record
            self.metadata_bytes += len(record.metadata)

    def check_offsets(self, committed: Sequence[tuple[StreamPartition, OffsetRecord]]) -> list[str]:
        """Returns the fields of `kept` that they increase. Raises TidelogError(LIMIT_REACHED): there is no room."""
        known = [self.offsets.get(of) for of, _ in committed]
        if len(self.offsets) + known.count(None) > MAX_OFFSETS and None in known:
            raise limit_reached(
                "group_offsets",
                f"group {self.name!r} has committed offsets of {len(self.offsets)} partitions, and {MAX_OFFSETS} may"
                " be; share the streams among several groups",
            )
        before = sum(len(record.metadata) for record in known if record is not None)
        after = sum(len(record.metadata) for _, record in committed)
        size = self.metadata_bytes + after - before
        if after > before and size > MAX_METADATA_BYTES:
            raise limit_reached(
                "group_metadata_bytes",
                f"the metadata of the offsets of group {self.name!r} would have {size} characters, and"
                f" {MAX_METADATA_BYTES} may be; commit with less metadata",
            )
        return ["offsets"] * (None in known) + ["metadata_bytes"] * (after > before)

    def touch(self, times: Times, records: Records) -> None:
        """Notes a commit: a group without members is kept for the whole retention from now on."""
        if not self.members:
            self.emptied_at = times.date
            records[GroupKey(self.name)] = self.to_record()

    def _count_commit(self, record: OffsetRecord) -> None:
        member = self.members.get(record.member)
        if member is not None:
            member.newest_commit = max(member.newest_commit, record.number)

    # ---- the record, and the view of operators ---------------------------------------------------------------------

    def to_record(self) -> GroupRecord:
        return GroupRecord(generation=self.generation, emptied_at=self.emptied_at)

    def record_keys(self) -> Iterator[RecordKey]:
        """Yields the keys of all its records, the group's own last: a successor may find only a part deleted."""
        for member in self.members:
            yield MemberKey(self.name, member)
        for of in self.offsets:
            yield OffsetKey(self.name, of)
        yield GroupKey(self.name)

    @property
    def size(self) -> int:
        """Number of records of the group."""
        return len(self.members) + len(self.offsets) + 1

    @property
    def state(self) -> str:
        if not self.members:
            return "empty"
        is_settled = all(m.assigned == m.target and not m.revoking for m in self.members.values())
        is_current = not self._is_stale and self._assigning is None
        return "stable" if is_settled and is_current else "reconciling"

    def validate(self) -> None:
        held: dict[StreamPartition, str] = {}
        for member in self.members.values():
            if member.assigned & member.revoking:
                raise InvariantViolation(f"group {self.name}: {member.id} is to give up what is assigned to it")
            for partition in member.held:
                other = held.setdefault(partition, member.id)
                if other != member.id:
                    raise InvariantViolation(f"group {self.name}: {partition} is held by {other} and {member.id}")
            if not self._is_stale and not self._is_unsettled and not member.assigned <= member.target:
                raise InvariantViolation(f"group {self.name}: {member.id} is assigned more than its target")
            if member.generation > self.generation:
                raise InvariantViolation(f"group {self.name}: {member.id} is ahead of the group's generation")


def _unknown(member: Member, view: StreamsView) -> set[StreamPartition]:
    """Returns the partitions of its target that may exist, and that this broker does not know yet."""
    if max({incarnation for _, incarnation, _ in member.target}, default=0) <= view.generation:
        return set()
    return {partition for partition in member.target if view.is_unknown(partition)}


def _limited(
    names: Iterable[str], selected: Collection[str], unknown: Mapping[str, set[StreamPartition]], view: StreamsView
) -> tuple[frozenset[StreamPartition], int]:
    """Returns the partitions of these streams, the first ones in the order of their names, as many as a group can have,
    and how many are beyond. `selected`: streams whose partitions the view has; `unknown`: partitions of the others."""
    taken: set[StreamPartition] = set()
    size = beyond = 0
    for name in names:
        others = unknown.get(name, _NONE)
        count = view.partition_count(name) if name in selected else 0
        if beyond:
            beyond += count + len(others)
            continue
        wanted = view.partitions(name) if count else _NONE
        if not others and len(taken) + count <= MAX_PARTITIONS:
            most = size + _bytes_of_first(name) + 3 * (count - 1)
            if not count or most <= MAX_TARGET_BYTES:
                taken |= wanted
                size = most if count else size
                continue
        last = None
        for partition in sorted(wanted | others):
            more = 3 if partition.incarnation == last else _bytes_of_first(name)
            last = partition.incarnation
            if beyond or size + more > MAX_TARGET_BYTES or len(taken) == MAX_PARTITIONS:
                beyond += 1
            else:
                taken.add(partition)
                size += more
    return frozenset(taken), beyond


def _bytes_of_first(stream: str) -> int:
    """Returns the bytes in a record of the first partition of a stream; each further one takes 3."""
    return len(stream) + _BYTES_OF_STREAM


def fenced_instance(group: str, member: str) -> TidelogError:
    return TidelogError(
        Code.FENCED_INSTANCE,
        f"another process has joined group {echo(group)} under the instance id of member {member!r}; give each process"
        " an instance id of its own",
    )


def group_not_empty(group: str, members: int) -> TidelogError:
    return TidelogError(
        Code.GROUP_NOT_EMPTY,
        f"group {group!r} has {members} member{'' if members == 1 else 's'}, and only they commit; stop them first",
    )


def add_committed(response: OffsetsResponse, committed: Iterable[tuple[StreamPartition, OffsetRecord | None]]) -> None:
    """Adds offsets to `response`; -1 where nothing is committed (None)."""
    add = response.offsets.add  # made in place: a copy takes as long again
    for (stream, incarnation, partition), record in committed:
        if record is None:
            add(stream=stream, incarnation=incarnation, partition=partition, offset=-1)
        else:
            add(
                stream=stream,
                incarnation=incarnation,
                partition=partition,
                partition_incarnation=record.partition_incarnation,
                offset=record.offset,
                metadata=record.metadata,
                committed_at=record.committed_at,
            )
