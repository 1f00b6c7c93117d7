"""One member of a consumer group: when it sends heartbeats, and which partitions it may read.

    AWAY      no member: not begun, or it left because its program took no records (max_poll_interval)
    JOINING   a JOIN under a new id was sent, and is repeated until it is answered
    MEMBER    the coordinator knows it; heartbeats go on
    LEAVING   a LEAVE (of a static member: PART) was sent
    LEFT      for good: it has left, or was refused for good

Rules (docs/groups.md):

1. One heartbeat is in flight. It ends with an answer, a refusal, NATS' "no responders", or silence. Only LEAVE and PART
   do not wait for the one before.
2. Records are handed out until `session_timeout` after the *sending* of the last heartbeat that was answered, and not
   later. An answer that comes late counts from the sending of its own heartbeat; an unasked one does not count. When
   that time is over, the partitions are kept and nothing is handed out, until the coordinator answers. What comes on a
   heartbeat's inbox `session_timeout` after its sending changes nothing: the coordinator may have removed the member
   since, and may have taken it in again under this id, without those partitions.
3. Assignments have versions. A newer version takes effect, any other one changes nothing. What is not in it any more
   is to be given up; `applied` becomes the version when all of that has been given up, and the next heartbeat, which
   leaves at once, says so.
4. A partition that is assigned again while it is being given up is given up first, and begun anew afterwards.
5. UNKNOWN_MEMBER: all partitions are lost at once, and the member joins under a new id. It says LEAVE before that, for
   a member that was expelled keeps its partitions from others until its session ends, or until it says so. Any other
   refusal that does not pass, such as FENCED_INSTANCE, loses them as well, and ends the membership.
6. No responders, silence, and refusals that pass are answered by another heartbeat after a growing wait: the
   coordinator moves with the leader of its partition.
7. A program that takes no records for `max_poll_interval` loses all partitions, and the member leaves. The program
   hears of it at its next call; the call after that joins anew.

Answers are told apart by the number of the heartbeat on whose inbox they came, so that those of an earlier life, under
another id, change nothing. Pure: `now` is seconds of a clock that runs on while the process is stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from random import random
from typing import TypeAlias, assert_never

from tidelog.client.base.exceptions import UnknownMember, typed
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import StreamPartition, from_stream_partitions
from wire.protobuf.groups_pb2 import HeartbeatRequest, HeartbeatResponse, Subscription
from wire.retry import Chance, Retry

Partitions: TypeAlias = frozenset[StreamPartition]

_NONE: Partitions = frozenset()
_REMEMBERED = 4
"""Heartbeats whose late answers still count."""
_MIN_INTERVAL = 0.05
"""Seconds between heartbeats, whatever an answer says."""
_INTERVALS_IN_SESSION = 3
"""So many heartbeats at least are sent in a session's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """Times in seconds."""

    group: str
    streams: tuple[str, ...]
    patterns: tuple[str, ...] = ()
    instance: str = ""
    """Name of a static member; empty: it is none."""
    client: str = ""
    session_timeout: float = 45.0
    rebalance_timeout: float = 60.0
    max_poll_interval: float = 300.0
    answer_timeout: float = 2.0
    """A heartbeat without an answer is taken for lost after this time; a tenth of the session at most."""
    backoff: float = 0.05
    backoff_max: float = 1.0
    chance: Chance = random

    @property
    def heartbeat_timeout(self) -> float:
        return min(self.answer_timeout, self.session_timeout / 10)


class State(Enum):
    AWAY = "away"
    JOINING = "joining"
    MEMBER = "member"
    LEAVING = "leaving"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    """Tell what becomes of it with its number: an answer, a refusal, no responders, or silence after `timeout`."""

    number: int
    request: HeartbeatRequest
    timeout: float


@dataclass(frozen=True, slots=True)
class Assign:
    """Begin to read these."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Revoke:
    """Hand out no more of these, and say `given_up` once what was finished is committed."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Lose:
    """Drop these at once, whatever is being done with them: others may have them."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class AskWhere:
    """No coordinator listens: ask the controller, which makes the internal stream if it is not there yet."""


@dataclass(frozen=True, slots=True)
class Tell:
    """The program's next call raises this; the one after it joins anew."""

    error: TidelogError


@dataclass(frozen=True, slots=True)
class Fail:
    """Every call of the program raises this from now on."""

    error: TidelogError


Effect: TypeAlias = SendHeartbeat | Assign | Revoke | Lose | AskWhere | Tell | Fail
Effects: TypeAlias = list[Effect]


class Membership:
    """`new_id` makes an id that no other member has."""

    def __init__(self, settings: MemberSettings, new_id: Callable[[], str]) -> None:
        self._settings = settings
        self._new_id = new_id
        self.cluster_id = ""
        """The cluster whose coordinators take heartbeats; known before the first one."""
        self.state = State.AWAY
        self.member_id = ""
        self.generation = 0
        """The generation of the group, that this member has reached."""
        self.assigned: Partitions = _NONE
        """All partitions of the newest version."""
        self._held: Partitions = _NONE
        """To be read: begun, and not revoked."""
        self._revoking: Partitions = _NONE
        self._version = 0
        self._applied = 0
        self._number = 0
        """The number of the newest heartbeat."""
        self._in_flight: int | None = None
        self._sent: dict[int, float] = {}
        """When each of the newest heartbeats of this life was sent."""
        self._heard = float("-inf")
        """When the newest heartbeat that was answered was sent."""
        self._interval = settings.session_timeout / _INTERVALS_IN_SESSION
        self._due = float("inf")
        """When the next heartbeat is to be sent, unless one is in flight."""
        self._is_wanted = False
        """Another heartbeat is to follow the one in flight at once."""
        self._retry = Retry(settings.backoff, settings.backoff_max, factor=1.5, chance=settings.chance)
        self._ends_with = HeartbeatRequest.PART if settings.instance else HeartbeatRequest.LEAVE
        self._is_called = False
        """The program is waiting for records."""
        self._called = 0.0
        """When the program asked for records last."""

    @property
    def owned(self) -> Partitions:
        """No other member has these as long as records are handed out: those that are read or being given up."""
        return self._held | self._revoking

    # R53: A member is not removed as long as it may read. It hands out records until `session_timeout_ms` after it
    # sent the last heartbeat that was answered; an answer that comes later than that changes nothing. The coordinator
    # removes it that time and 2 % after it received a heartbeat, and a new coordinator gives each member that time and
    # the lease. A member that does not give up in time is expelled, and its partitions stay its own until its session
    # is over.
    # Hazard: A partition is given to another member while the first one still reads.
    @property
    def session_until(self) -> float:
        """Records are handed out before this time; see rule 2."""
        if self.state is not State.MEMBER:
            return float("-inf")
        return self._heard + self._settings.session_timeout

    @property
    def next_deadline(self) -> float:
        """When `tick` has something to do."""
        due = float("inf") if self._in_flight is not None else self._due
        return min(due, self._call_deadline)

    # ---- events

    def begin(self, now: float) -> Effects:
        """Join."""
        self._called = now
        return self._join(now)

    def tick(self, now: float) -> Effects:
        if now >= self._call_deadline:
            return self._leave_idle(now)
        if self._in_flight is None and now >= self._due:
            return [self._heartbeat(now)]
        return []

    def app_calls(self, now: float) -> Effects:
        """The program asks for records."""
        effects = self._leave_idle(now) if now >= self._call_deadline else []
        self._called, self._is_called = now, True
        if self.state is State.AWAY and not effects:
            return self._join(now)
        return effects

    def app_returns(self, now: float) -> None:
        """It has got records, or has waited long enough."""
        self._called, self._is_called = now, False

    def given_up(self, partitions: Partitions, now: float) -> Effects:
        """What a `Revoke` asked for is done for these."""
        done = partitions & self._revoking
        if not done:
            return []
        self._revoking -= done
        again = done & self.assigned
        self._held |= again
        effects: Effects = [Assign(again)] if again else []
        return effects + self._apply(now)

    def leave(self, now: float) -> Effects:
        """For good. What it held it has given up. Safe to call twice."""
        if self.state is State.LEAVING:
            return []
        self.assigned = self._held = self._revoking = _NONE
        if self.state not in (State.JOINING, State.MEMBER):
            self.state = State.LEFT
            return []
        self.state = State.LEAVING
        return [self._heartbeat(now)]

    def request_heartbeat(self, now: float) -> Effects:
        """As soon as none is in flight."""
        if self.state is State.MEMBER:
            self._is_wanted = True
            self._due = min(self._due, now)
        return self.tick(now)

    def on_answer(self, number: int, answer: HeartbeatResponse, now: float) -> Effects:
        """Came on the inbox of that heartbeat."""
        if number not in self._sent:
            return []
        is_late = now >= self._sent[number] + self._settings.session_timeout
        if is_late and self.state in (State.JOINING, State.MEMBER):
            return [] if answer.unasked else self.on_silence(number, now)
        if not answer.unasked:
            self._heard = max(self._heard, self._sent[number])
            if self.state is State.MEMBER:
                self._retry.succeeded()
            if answer.heartbeat_interval_ms:
                self._interval = answer.heartbeat_interval_ms / 1000
            if number == self._in_flight:
                self._in_flight = None
                self._due = now if self._is_wanted else now + self._waits(self._interval)
        match self.state:
            case State.LEAVING if not answer.unasked and number == self._number:
                self.state = State.LEFT
                self._due = float("inf")
                return []
            case State.JOINING if not answer.unasked:
                self.state = State.MEMBER
            case State.MEMBER:
                pass
            case _:
                if not answer.unasked and number == self._number:
                    self._due = float("inf")  # the last word of a member that is away
                return []
        self.generation = max(self.generation, answer.generation)
        return self._take(answer, now) + self.tick(now)

    def on_refused(self, number: int, error: TidelogError, now: float) -> Effects:
        """One that does not pass may come unasked, too, on the inbox of a heartbeat that was answered before."""
        if number not in self._sent or (error.retriable and number != self._in_flight):
            return []
        self._in_flight = None
        if error.retriable:
            return self._repeat_later(now, error.retry_after or 0.0)
        if self.state in (State.LEAVING, State.AWAY):
            self.state = State.LEFT if self.state is State.LEAVING else State.AWAY
            self._due = float("inf")
            return []
        lost = self._lose()
        if error.code is Code.UNKNOWN_MEMBER:
            is_first, wait = not self._retry.failures, self._retry.failed()
            leave: Effects = [self._heartbeat(now, HeartbeatRequest.LEAVE)] if lost else []
            return lost + leave + self._join(now, 0.0 if is_first else wait)
        self.state = State.LEFT
        self._due = float("inf")
        return [*lost, Fail(typed(error))]

    def on_no_responders(self, number: int, now: float) -> Effects:
        if number != self._in_flight:
            return []
        self._in_flight = None
        return [AskWhere(), *self._repeat_later(now)]

    def on_silence(self, number: int, now: float) -> Effects:
        """No answer came in time, or there was no connection to ask over."""
        if number != self._in_flight:
            return []
        self._in_flight = None
        # A listener on `>` keeps NATS from saying that nobody coordinates.
        looking: Effects = [AskWhere()] if self.state is State.JOINING else []
        return [*looking, *self._repeat_later(now)]

    # ----

    @property
    def _call_deadline(self) -> float:
        if self._is_called or self.state not in (State.JOINING, State.MEMBER):
            return float("inf")
        return self._called + self._settings.max_poll_interval

    def _join(self, now: float, wait: float = 0.0) -> Effects:
        self.state = State.JOINING
        self.member_id = self._new_id()
        self.generation = self._version = self._applied = 0
        self._sent.clear()
        self._heard = float("-inf")
        self._in_flight = None
        self._due = now + wait
        return self.tick(now)

    def _leave_idle(self, now: float) -> Effects:
        limit = self._settings.max_poll_interval
        error = UnknownMember(
            Code.UNKNOWN_MEMBER,
            f"the program took no records for {limit:g} s (max_poll_interval), so this member has left group"
            f" {self._settings.group!r}, and its partitions are others' now; the next call joins anew. Take fewer at a"
            " time, or raise max_poll_interval",
        )
        lost = self._lose()
        self.state = State.AWAY
        return [*lost, self._heartbeat(now), Tell(error)]

    def _lose(self) -> Effects:
        lost = self.owned
        self.assigned = self._held = self._revoking = _NONE
        return [Lose(lost)] if lost else []

    def _take(self, answer: HeartbeatResponse, now: float) -> Effects:
        if answer.version <= self._version:
            return []
        self._version = answer.version
        self.assigned = from_stream_partitions(answer.assigned)
        revoked = self._held - self.assigned
        begun = self.assigned - self.owned
        self._held = (self._held - revoked) | begun
        self._revoking |= revoked
        effects: Effects = []
        if revoked:
            effects.append(Revoke(revoked))
        if begun:
            effects.append(Assign(begun))
        if not self._revoking:
            self._applied = self._version
            self._is_wanted = True
            self._due = min(self._due, now)
        return effects

    def _apply(self, now: float) -> Effects:
        """Says at once that nothing is left to be given up."""
        if self._revoking or self._applied == self._version:
            return []
        self._applied = self._version
        return self.request_heartbeat(now)

    def _heartbeat(self, now: float, kind: HeartbeatRequest.Kind.ValueType | None = None) -> SendHeartbeat:
        """`kind`: None = that of its state."""
        settings = self._settings
        self._number += 1
        self._in_flight = self._number
        self._is_wanted = False
        self._sent[self._number] = now
        for number in [*self._sent][:-_REMEMBERED]:
            del self._sent[number]
        request = HeartbeatRequest(
            group=settings.group, member=self.member_id, applied=self._applied, cluster_id=self.cluster_id
        )
        if kind is not None:
            request.kind = kind
            return SendHeartbeat(self._number, request, settings.heartbeat_timeout)
        match self.state:
            case State.JOINING:
                request.kind = HeartbeatRequest.JOIN
                request.subscription.CopyFrom(Subscription(streams=settings.streams, patterns=settings.patterns))
                request.instance = settings.instance
                request.client = settings.client
                request.session_timeout_ms = round(settings.session_timeout * 1000)
                request.rebalance_timeout_ms = round(settings.rebalance_timeout * 1000)
            case State.MEMBER:
                request.kind = HeartbeatRequest.STAY
            case State.LEAVING | State.AWAY | State.LEFT:
                request.kind = self._ends_with
            case _:
                assert_never(self.state)
        return SendHeartbeat(self._number, request, settings.heartbeat_timeout)

    def _repeat_later(self, now: float, at_least: float = 0.0) -> Effects:
        self._due = now + self._retry.failed(
            at_least_s=min(at_least, self._settings.session_timeout / _INTERVALS_IN_SESSION)
        )
        if self.state not in (State.JOINING, State.MEMBER) and now >= self._heard + self._settings.session_timeout:
            self._due = float("inf")  # the coordinator removes it without being told
        return self.tick(now)

    def _waits(self, interval: float) -> float:
        return max(min(interval, self._settings.session_timeout / _INTERVALS_IN_SESSION), _MIN_INTERVAL)
