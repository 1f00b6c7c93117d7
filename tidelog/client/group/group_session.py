"""Drives a `Membership`: sends its heartbeats, keeps its timer, and carries its effects out."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol, assert_never

from google.protobuf.message import DecodeError

from tidelog.client.base.exceptions import NoServer, UnknownMember, typed
from tidelog.client.cluster.coordinator_link import CoordinatorLink
from tidelog.client.group.membership import (
    AskWhere,
    Assign,
    Effects,
    Fail,
    Lose,
    MemberSettings,
    Membership,
    Partitions,
    Revoke,
    SendHeartbeat,
    State,
    Tell,
)
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import DISCOVER, HEARTBEAT, coordinator_subject
from wire.messaging.transport import NO_RESPONDERS, Message, Transport
from wire.messaging.violation import Violation
from wire.protobuf.groups_pb2 import HeartbeatResponse
from wire.subjects import Subjects

_log = logging.getLogger(__name__)

JOIN_TIMEOUT = 15.0
"""Seconds that a coordinator has to take a new member in."""
LEAVE_TIMEOUT = 2.0
"""Seconds to say that a member leaves; otherwise its session ends later."""
_INBOXES = 4
"""Inboxes that stay open, those of the newest heartbeats: the coordinator sends unasked answers to the inbox of the
last heartbeat that has arrived."""

if hasattr(time, "CLOCK_BOOTTIME"):
    session_clock: Callable[[], float] = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    """Seconds; runs on while the process is stopped, and while the machine sleeps."""
else:
    session_clock = time.monotonic


class Holder(Protocol):
    """Reads the partitions of a member. Its methods return at once; after `revoke` it calls `GroupSession.given_up`."""

    def assign(self, partitions: Partitions) -> None: ...

    def revoke(self, partitions: Partitions) -> None: ...

    def lose(self, partitions: Partitions) -> None: ...


class GroupSession:
    """`on_change` is called after each event: records may be handed out again, or calls may have to raise."""

    def __init__(
        self,
        transport: Transport,
        subjects: Subjects,
        link: CoordinatorLink,
        settings: MemberSettings,
        *,
        holder: Holder,
        on_change: Callable[[], object],
        clock: Callable[[], float] = session_clock,
    ) -> None:
        self._transport = transport
        self._link = link
        self._group = settings.group
        kind = DISCOVER if settings.patterns else HEARTBEAT
        self._subject = coordinator_subject(subjects, kind, settings.group)
        self._membership = Membership(settings, lambda: secrets.token_hex(10))
        self._holder = holder
        self._on_change = on_change
        self.clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        """A time of `clock`. It may be earlier than there is something to do."""
        self._waiting: dict[int, asyncio.TimerHandle] = {}
        """By number of a heartbeat, the timer that ends the wait for its answer."""
        self._inboxes: dict[int, str] = {}
        """By number of a heartbeat."""
        self._raised_once: TidelogError | None = None
        """The program's next call raises it."""
        self._failure: TidelogError | None = None
        """It has ended the membership: each call of the program raises it."""
        self._changes: set[asyncio.Future[None]] = set()
        """Those who wait for the next event."""
        self._answers = 0
        """Heartbeats that were answered."""
        self._left_out = 0
        """Partitions that no member of the group gets, as the coordinator said last."""
        self._looking: asyncio.Task[None] | None = None
        self._is_closed = False
        self.has_begun = False

    @property
    def member_id(self) -> str:
        return self._membership.member_id

    @property
    def generation(self) -> int:
        return self._membership.generation

    @property
    def is_member(self) -> bool:
        return self._membership.state is State.MEMBER

    def seconds_left(self, now: float) -> float:
        """Seconds in which records may be handed out, if no heartbeat is answered until then."""
        return self._membership.session_until - now

    async def find_cluster(self) -> None:
        """Learns which cluster it is, before it joins. Raises NoServer."""
        self._membership.cluster_id = await self._link.cluster_id()
        self._transport.violations.hear(self._on_violation)
        self.has_begun = True

    async def join(self) -> None:
        """Raises NoServer when no coordinator takes the member in, and the error with which one refuses it."""
        self._carry_out(self._membership.begin(self.clock()))
        try:
            async with asyncio.timeout(JOIN_TIMEOUT):
                while not self.is_member:
                    self.raise_failure()
                    await self._changed()
        except TimeoutError:
            raise NoServer(
                Code.UNAVAILABLE,
                f"no coordinator took a member of group {self._group!r} in within {JOIN_TIMEOUT:g} s; see"
                " `tidelog cluster status` and `tidelog stream describe __groups`",
            ) from None

    def app_calls(self, now: float) -> None:
        """The program asks for records. Raises as `raise_failure`."""
        self.raise_failure()
        effects = self._membership.app_calls(now)
        if effects:
            self._carry_out(effects)
            self.raise_failure()

    def app_returns(self, now: float) -> None:
        """The time for its next call begins. The timer of the next heartbeat looks at it."""
        self._membership.app_returns(now)

    def raise_failure(self) -> None:
        """Raises why the membership has ended, or, once, an error that the program has to know."""
        if self._failure is not None:
            raise self._failure from None
        if self._raised_once is not None:
            error, self._raised_once = self._raised_once, None
            raise error from None

    def given_up(self, partitions: Partitions) -> None:
        self._carry_out(self._membership.given_up(partitions, self.clock()))

    async def answered(self) -> None:
        """Sends a heartbeat as soon as it can, and returns when one was answered. Raises as `check_member`."""
        member_id, seen = self.member_id, self._answers
        self.hurry()
        while self._answers == seen:
            self.check_member(member_id)
            await self._changed()
        self.check_member(member_id)

    def hurry(self) -> None:
        """The next heartbeat leaves as soon as it can."""
        self._carry_out(self._membership.request_heartbeat(self.clock()))

    def check_member(self, member_id: str) -> None:
        """Raises UnknownMember if it is no member under that id, and why the membership has ended."""
        self.raise_failure()
        if self.member_id != member_id or not self.is_member:
            raise UnknownMember(
                Code.UNKNOWN_MEMBER, f"this member has lost its place in group {self._group!r}, and joins anew"
            )

    async def leave(self) -> None:
        """Returns when the coordinator has answered, or after LEAVE_TIMEOUT."""
        self._carry_out(self._membership.leave(self.clock()))
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT):
                while self._membership.state is State.LEAVING:
                    await self._changed()
        except TimeoutError:
            _log.warning(
                "the coordinator of group %r did not answer; it removes this member when its session ends", self._group
            )

    async def aclose(self) -> None:
        """No heartbeat is sent any more."""
        self._is_closed = True
        self._transport.violations.stop_hearing(self._on_violation)
        for timer in (*self._waiting.values(), *([self._timer] if self._timer is not None else [])):
            timer.cancel()
        for inbox in self._inboxes.values():
            self._transport.on_inbox(inbox, None)
        self._waiting.clear()
        self._inboxes.clear()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        self._wake()

    # ----

    async def _changed(self) -> None:
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changes.add(change)
        try:
            await change
        finally:
            self._changes.discard(change)

    def _wake(self) -> None:
        for change in self._changes:
            if not change.done():
                change.set_result(None)
        self._on_change()

    def _carry_out(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case SendHeartbeat():
                    self._send(effect)
                case Assign(partitions):
                    self._holder.assign(partitions)
                case Revoke(partitions):
                    self._holder.revoke(partitions)
                case Lose(partitions):
                    self._holder.lose(partitions)
                case AskWhere():
                    if self._looking is None or self._looking.done():
                        self._looking = asyncio.create_task(self._look())
                case Tell(error):
                    self._raised_once = error
                case Fail(error):
                    self._failure = error
                case _:
                    assert_never(effect)
        self._set_timer()
        self._wake()

    def _set_timer(self) -> None:
        deadline = self._membership.next_deadline
        if self._is_closed or deadline == float("inf") or (self._timer is not None and self._timer_at <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = asyncio.get_running_loop().call_later(max(deadline - self.clock(), 0.0), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._carry_out(self._membership.tick(self.clock()))

    def _send(self, effect: SendHeartbeat) -> None:
        number = effect.number
        loop = asyncio.get_running_loop()
        inbox = self._inboxes[number] = self._transport.new_inbox()
        for old in [*self._inboxes][:-_INBOXES]:
            self._transport.on_inbox(self._inboxes.pop(old), None)
        self._transport.on_inbox(inbox, partial(self._on_message, number))
        try:
            is_sent = self._transport.publish(self._subject, [effect.request.SerializeToString()], reply=inbox)
        except TidelogError as too_large:
            loop.call_soon(self._refused, number, too_large)
            return
        if is_sent:
            self._waiting[number] = loop.call_later(effect.timeout, self._on_silence, number)
        else:
            loop.call_soon(self._on_silence, number)

    def _on_message(self, number: int, message: Message) -> None:
        now = self.clock()
        if message.status == NO_RESPONDERS:
            self._stop_waiting(number)
            self._carry_out(self._membership.on_no_responders(number, now))
            return
        error = TidelogError.from_headers(message.headers)
        if error is not None:
            self._refused(number, error)
            return
        try:
            answer = HeartbeatResponse.FromString(message.data)
        except DecodeError:
            _log.warning("an answer to a heartbeat of group %r does not decode", self._group)
            return
        if not answer.unasked:
            self._stop_waiting(number)
            self._answers += 1
        self._note_left_out(answer.left_out)
        self._carry_out(self._membership.on_answer(number, answer, now))

    def _note_left_out(self, left_out: int) -> None:
        if left_out > self._left_out:
            _log.warning(
                "%d partitions that group %r has subscribed to are beyond the limit of a group, and are read by no"
                " member; share the streams among several groups",
                left_out,
                self._group,
            )
        self._left_out = left_out

    def _refused(self, number: int, error: TidelogError) -> None:
        self._stop_waiting(number)
        self._carry_out(self._membership.on_refused(number, typed(error), self.clock()))

    def _on_silence(self, number: int) -> None:
        self._waiting.pop(number, None)
        if not self._is_closed:
            self._carry_out(self._membership.on_silence(number, self.clock()))

    def _stop_waiting(self, number: int) -> None:
        timer = self._waiting.pop(number, None)
        if timer is not None:
            timer.cancel()

    def _on_violation(self, violation: Violation) -> None:
        """NATS does not permit the member's heartbeats, or their answers."""
        if violation.ends(self._subject):
            for number in tuple(self._waiting):
                self._refused(number, violation.error())

    async def _look(self) -> None:
        try:
            await self._link.look(self._group)
        except TidelogError as error:
            if self._answers:
                _log.warning("the coordinator of group %r cannot be looked for: %s", self._group, error.message)
                return
            self._failure = error
            self._wake()
