"""The state machine of one replica in one process: whether its log is sound, and which role it has.

Health:

    Sound ──a disk that fails, a broken rule──────────────> Failed: it withdraws, and has no role any more in this life
      │ ^                                                     ^       of the process
      │ └─────────────────── repaired ────────────┐           │ the same, or a repair that fails
      └──damage found──> RecordingDamage ──on disk, withdrawn──> Damaged
                         (found at the opening of the log: Damaged at once; the opening has recorded it)

Damaged, a view decides (`repair_mode`, `is_last_copy`):

    it is out of the ISR and of `eligible`, and the LeaderEpoch in which the damage was met is over ──> repair by COPY
    an operator has elected it after that                                                           ──> repair by ACCEPT
    no leader, and it is the ISR alone: the last copy                                               ──> read-only role

Steps: at most one is under way; when it is over, `_next` decides by the newest view.

    a role that does not fit the newest view, or has failed ──> EndRole
    no role, and damage that may be repaired                ──> Repair
    no log                                                  ──> OpenLog
    the log is not prepared for the newest view             ──> PrepareLog
    else                                                    ──> BeginRole

Invariants (`validate`): a log is cut for repair only without a role, and only when it is damaged; a log is repaired
from the leader's copy only while no other replica relies on it; a sound replica has no read-only role and a damaged one
no other; a replica without an open log has no role.

Pure: events in, effects out; `dataplane.broker.replica` drives it. A role ends completely, blocking work included,
before the next step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, TypeAlias

from wire.errors import InvariantViolation
from wire.types import BrokerId, LeaderEpoch, PartitionKey, PartitionView

START_RETRY: Final = 0.1
"""Seconds until a role that could not begin (without a connection, say) is begun again."""


class RepairMode(Enum):
    COPY = "the records come from the leader"
    ACCEPT = "an operator accepts the loss of what is damaged and of what lies behind it"


def repair_mode(view: PartitionView, broker: BrokerId, met_in: LeaderEpoch) -> RepairMode | None:
    """How the damaged replica of `broker` may be repaired. None: other replicas may rely on it, or none could help it.
    `met_in`: the damage was met in that LeaderEpoch; 0: before this life of the process had one."""
    if view.leader == broker:
        # It may have been met long after the operator's word, in the LeaderEpoch that the word began.
        return RepairMode.ACCEPT if view.loss_accepted and view.leader_epoch > met_in else None
    if view.leader is None or broker in view.isr or broker in view.eligible:
        return None
    return RepairMode.COPY if view.leader_epoch > met_in else None


# ---------------------------------------------------------------- health
@dataclass(frozen=True, slots=True)
class Sound:
    pass


@dataclass(frozen=True, slots=True)
class Failed:
    reason: str


@dataclass(frozen=True, slots=True)
class RecordingDamage:
    """The damage is being written down, so that no restart forgets it."""

    reason: str
    met_in: LeaderEpoch


@dataclass(frozen=True, slots=True)
class Damaged:
    reason: str
    met_in: LeaderEpoch
    """LeaderEpoch in which the damage was met; 0: at the opening of the log."""


Health: TypeAlias = Sound | Failed | RecordingDamage | Damaged


# ---------------------------------------------------------------- roles
class RoleKind(Enum):
    LEADER = "leader"
    FOLLOWER = "follower"
    DAMAGED_READ_ONLY = "damaged, read only"


@dataclass(frozen=True, slots=True)
class Acting:
    kind: RoleKind
    view: PartitionView
    """The newest that the role knows."""
    stopped: bool = False
    """It has failed, and ends by itself."""


# ---------------------------------------------------------------- effects
@dataclass(frozen=True, slots=True)
class OpenLog:
    """Completion: `on_opened`."""


@dataclass(frozen=True, slots=True)
class PrepareLog:
    """Before a role begins: what an installed copy was told is no longer trusted, a leader's epoch becomes durable.
    Completion: `on_prepared`."""

    kind: RoleKind
    view: PartitionView


@dataclass(frozen=True, slots=True)
class BeginRole:
    """The role is made at once, so that what follows finds it, and then started. Completion: `on_role_begun`,
    `on_role_not_begun` or `on_role_not_made`."""

    kind: RoleKind
    view: PartitionView


@dataclass(frozen=True, slots=True)
class EndRole:
    """End it, blocking work included. Completion: `on_role_ended`."""

    reason: str


@dataclass(frozen=True, slots=True)
class WaitToRetry:
    """Completion: `on_waited`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Repair:
    """Cut the damage and everything behind it. Completion: `on_repaired`."""

    mode: RepairMode


@dataclass(frozen=True, slots=True)
class RecordDamage:
    """Write it down, beside a step that is under way. Completion: `on_damage_recorded`."""

    reason: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Ask the controller to take this replica out of the ISR."""

    reason: str
    leader_epoch: LeaderEpoch = LeaderEpoch(0)
    """In which the damage was met; 0: it is not damaged, or the damage was met before a LeaderEpoch was known."""


@dataclass(frozen=True, slots=True)
class TellRole:
    view: PartitionView


@dataclass(frozen=True, slots=True)
class StopRole:
    """It ends by itself."""

    reason: str


@dataclass(frozen=True, slots=True)
class FailRole:
    """It withdraws, and ends by itself."""

    reason: str


@dataclass(frozen=True, slots=True)
class GiveUpStarting:
    """A start that waits for the connection returns now."""


Step: TypeAlias = OpenLog | PrepareLog | BeginRole | EndRole | WaitToRetry | Repair
ReplicaEffect: TypeAlias = Step | RecordDamage | Withdraw | TellRole | StopRole | FailRole | GiveUpStarting


class ReplicaStateMachine:
    """See the module: one method for each event; all of them change the same health, role and step."""

    def __init__(self, key: PartitionKey) -> None:
        self.key = key
        self.health: Health = Sound()
        self.view: PartitionView | None = None
        self.acting: Acting | None = None
        self.step: Step | None = None
        """Under way."""
        self.has_log = False
        self.closing = False
        self._broker = BrokerId("")
        """Told with the first view."""
        self._prepared: PartitionView | None = None
        """The log is prepared for a role in it."""
        self._retries = False
        """The role that ends could not begin, and is begun again after a while."""

    # ------------------------------------------------------------------ questions
    @property
    def failure(self) -> str | None:
        """Why this replica is unsound."""
        return None if isinstance(self.health, Sound) else self.health.reason

    @property
    def is_damaged(self) -> bool:
        return isinstance(self.health, RecordingDamage | Damaged)

    @property
    def is_recording(self) -> bool:
        return isinstance(self.health, RecordingDamage)

    # ------------------------------------------------------------------ events
    def on_opened(self, damage: str | None) -> list[ReplicaEffect]:
        """`damage`: what the opening found, and has recorded."""
        self.has_log = True
        is_step = isinstance(self.step, OpenLog)
        out: list[ReplicaEffect] = []
        if damage is not None:
            self.health = Damaged(damage, LeaderEpoch(0))
            if is_step:  # else the registration of this life names it
                out.append(self._withdrawal())
        return [*out, *self._step_over()] if is_step else out

    def on_unusable(self, reason: str) -> None:
        """The log cannot be opened before the first view (the registration of this life names the replica), or was not
        closed in order."""
        self.health = Failed(self.failure or reason)

    # R5: A role lasts for one LeaderEpoch. The next role begins when all blocking work of the one before has ended;
    # whatever completes late (a sync, an answer, a timer) changes nothing. A broker neither leads nor follows before
    # its own registration is applied.
    # Hazard: Completions that belong to an earlier LeaderEpoch.
    def on_view(self, view: PartitionView, broker: BrokerId) -> list[ReplicaEffect]:
        if self.view is not None and view.epoch < self.view.epoch:
            return []
        self.view, self._broker = view, broker
        acting = self.acting
        if self.step is not None:
            return [GiveUpStarting()] if acting is not None and not self._fits(acting, view) else []
        if self.closing:
            return []
        if acting is not None and not acting.stopped and self._fits(acting, view):
            self.acting = replace(acting, view=view)
            return [TellRole(view)]
        if self._has_something_to_do(view):
            return self._next()
        if not self.is_recording and broker in (*view.isr, *view.eligible):
            # It withdrew while nobody relied on it, which changed nothing, and an expansion on its way took it in.
            return [self._withdrawal()]
        return []

    # Keeps R23.
    def on_damage(self, reason: str) -> list[ReplicaEffect]:
        """The log is damaged: this replica serves no one from now on."""
        if not isinstance(self.health, Sound) or self.closing:
            return []
        self.health = RecordingDamage(reason, self.view.leader_epoch if self.view is not None else LeaderEpoch(0))
        out: list[ReplicaEffect] = [RecordDamage(reason)]
        if self.acting is not None:
            self.acting = replace(self.acting, stopped=True)
            out.insert(0, StopRole(reason))
        return out

    def on_damage_recorded(self, reason: str) -> list[ReplicaEffect]:
        if isinstance(self.health, RecordingDamage):
            self.health = Damaged(self.health.reason, self.health.met_in)
        out: list[ReplicaEffect] = [self._withdrawal(reason)]
        if self.view is not None and self._has_something_to_do(self.view):
            out += self._next()
        return out

    def on_role_failed(self, reason: str) -> None:
        """The role has withdrawn, and ends by itself."""
        if self.acting is not None:
            self.acting = replace(self.acting, stopped=True)
        if isinstance(self.health, Sound):
            self.health = Failed(reason)

    def on_failed(self, reason: str) -> list[ReplicaEffect]:
        """The replica cannot go on until the process is started again."""
        acting, was_sound = self.acting, isinstance(self.health, Sound)
        self.health = Failed(self.failure or reason)
        if acting is not None and not acting.stopped:
            self.acting = replace(acting, stopped=True)
            return [FailRole(reason)]
        return [self._withdrawal()] if was_sound else []

    def on_closing(self) -> list[ReplicaEffect]:
        """No step begins any more."""
        self.closing = True
        return [GiveUpStarting()] if self.step is not None and self.acting is not None else []

    def on_closed(self) -> None:
        self.acting, self.has_log = None, False

    # ------------------------------------------------------------------ completions of a step
    def on_prepared(self) -> list[ReplicaEffect]:
        assert isinstance(self.step, PrepareLog)
        self._prepared = self.step.view
        return self._step_over()

    def on_role_begun(self) -> list[ReplicaEffect]:
        return self._step_over()

    def on_role_not_made(self, reason: str) -> list[ReplicaEffect]:
        """There is no role that could withdraw."""
        self.step = self.acting = None
        return self.on_failed(reason)

    def on_role_not_begun(self) -> list[ReplicaEffect]:
        self._retries = True
        return self._begin(EndRole("it could not begin"))

    def on_role_ended(self) -> list[ReplicaEffect]:
        self.acting = self._prepared = None
        if self._retries:
            self._retries = False
            return self._begin(WaitToRetry(START_RETRY))
        return self._step_over()

    def on_waited(self) -> list[ReplicaEffect]:
        return self._step_over()

    def on_repaired(self) -> list[ReplicaEffect]:
        self._prepared = None
        if isinstance(self.health, Damaged):
            self.health = Sound()
        return self._step_over()

    def on_step_failed(self, reason: str) -> list[ReplicaEffect]:
        self.step = None
        return self.on_failed(reason)

    def on_no_space(self) -> None:
        """The step needs room on the disk; the newest view is given again when some time has passed."""
        self.step = None

    def on_step_given_up(self) -> None:
        """The replica closes, and its step was taken out of the queue before it began."""
        assert self.closing
        self.step = None

    def _step_over(self) -> list[ReplicaEffect]:
        self.step = None
        return self._next()

    # ------------------------------------------------------------------ decisions
    def _next(self) -> list[ReplicaEffect]:
        view, acting = self.view, self.acting
        if view is None or self.closing:
            return []
        if not isinstance(self.health, Sound) and not self._is_last_copy(view):
            mode = self._repair_mode(view)
            if mode is None:
                return []
            return self._begin(EndRole(f"the log of {self.key} is repaired") if acting is not None else Repair(mode))
        if acting is not None:
            if acting.stopped or not self._fits(acting, view):
                return self._begin(EndRole(f"LeaderEpoch {view.leader_epoch} of {self.key} has begun"))
            if acting.view is view:
                return []
            self.acting = replace(acting, view=view)
            return [TellRole(view)]
        if not self.has_log:
            return self._begin(OpenLog())
        kind = self._kind(view)
        if self._prepared is not view:
            return self._begin(PrepareLog(kind, view))
        self.acting = Acting(kind, view)
        return self._begin(BeginRole(kind, view))

    def _begin(self, step: Step) -> list[ReplicaEffect]:
        self.step = step
        return [step]

    def _kind(self, view: PartitionView) -> RoleKind:
        if isinstance(self.health, Damaged):
            return RoleKind.DAMAGED_READ_ONLY
        return RoleKind.LEADER if view.leader == self._broker else RoleKind.FOLLOWER

    def _fits(self, acting: Acting, view: PartitionView) -> bool:
        return (
            acting.view.leader_epoch == view.leader_epoch
            and (view.leader == self._broker) == (acting.kind is RoleKind.LEADER)
            and acting.view.leader == view.leader
        )

    def _has_something_to_do(self, view: PartitionView) -> bool:
        if self.step is not None or self.closing:
            return False
        return isinstance(self.health, Sound) or self._is_last_copy(view) or self._repair_mode(view) is not None

    def _is_last_copy(self, view: PartitionView) -> bool:
        """It is damaged, and no other member of the ISR is left: what can be read of it must be read here. While there
        are others one of them may lead again, and hold more."""
        is_known = isinstance(self.health, Damaged) and self.has_log
        return is_known and view.leader is None and view.isr == (self._broker,)

    def _repair_mode(self, view: PartitionView) -> RepairMode | None:
        if not isinstance(self.health, Damaged) or not self.has_log:
            return None
        return repair_mode(view, self._broker, self.health.met_in)

    def _withdrawal(self, reason: str | None = None) -> Withdraw:
        met_in = self.health.met_in if isinstance(self.health, RecordingDamage | Damaged) else LeaderEpoch(0)
        return Withdraw(reason or self.failure or "unsound", met_in)

    # ------------------------------------------------------------------ invariants
    def validate(self) -> None:
        """Raises InvariantViolation."""
        step, acting, health = self.step, self.acting, self.health
        if acting is not None:
            self._must(self.has_log, "a role without a log")
            self._must(acting.stopped or not self.is_recording, "a role that goes on while damage is recorded")
            if acting.kind is RoleKind.DAMAGED_READ_ONLY:
                self._must(not isinstance(health, Sound), "a sound replica is read only")
                self._must(acting.view.leader is None, "a read-only copy beside a leader")
            else:
                self._must(acting.stopped or isinstance(health, Sound), "an unsound replica leads or follows")
                leads = acting.view.leader == self._broker
                self._must(leads == (acting.kind is RoleKind.LEADER), "a role that its view does not give")
        if isinstance(step, Repair):
            self._must(acting is None, "a repair beside a role")
            self._must(isinstance(health, Damaged | Failed), "a repair of a log that is not damaged")
        elif isinstance(step, EndRole | BeginRole):
            self._must(acting is not None, "a role that is not there begins or ends")
            if isinstance(step, BeginRole):
                self._must(self._prepared is step.view, "a role begins on a log that is not prepared for it")
        elif isinstance(step, OpenLog):
            self._must(not self.has_log, "a log is opened twice")

    def _must(self, holds: bool, what: str) -> None:
        if not holds:
            raise InvariantViolation(f"replica of {self.key}: {what}: {self.health}, {self.acting}, {self.step}")
