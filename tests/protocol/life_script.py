"""Transcripts of `dataplane.replica.replica_state_machine`: the replica of broker a.

Commands; effects are printed one a line, then the state where it has changed:

    open [damaged]                            the log is opened at start, before the first view
    unopenable                                it cannot be
    view e=2 p=5 leader=a isr=a,b [eligible=c] [loss-accepted]
                                              `e` LeaderEpoch, `p` partition epoch; `leader=-`: none
    done [damaged]                            the step that is under way is over (`damaged`: the opening found damage)
    fails                                     the step fails for good
    start-fails                               the role could not begin
    no-space                                  the step finds no room
    damage                                    the log is found not to be what was written
    recorded                                  the damage is on disk
    role-fails | fail                         the role fails by itself | the replica fails
    close                                     the broker stops, or the partition leaves it

`validate` runs after every command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dataplane.replica.replica_state_machine import (
    Acting,
    BeginRole,
    EndRole,
    OpenLog,
    PrepareLog,
    Repair,
    ReplicaEffect,
    ReplicaStateMachine,
    Sound,
    WaitToRetry,
)
from tests.datadriven import Command, ScriptError
from wire.stream_config import StreamConfig
from wire.types import (
    BrokerId,
    Incarnation,
    LeaderEpoch,
    PartitionEpoch,
    PartitionKey,
    PartitionView,
    StreamName,
)

A = BrokerId("a")
KEY = PartitionKey(StreamName("s"), Incarnation(1), 0, Incarnation(1))


def _members(text: str) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(name) for name in text.split(",") if name)


def _shown(effect: ReplicaEffect) -> str:
    name = type(effect).__name__
    match effect:
        case PrepareLog(kind, view) | BeginRole(kind, view):
            return f"{name} {kind.value} e{view.leader_epoch} p{view.epoch}"
        case Repair(mode):
            return f"{name} {mode.name}"
        case _:
            return " ".join([name, *(_value(getattr(effect, field)) for field in effect.__dataclass_fields__)])


def _value(value: object) -> str:
    return f"e{value.leader_epoch} p{value.epoch}" if isinstance(value, PartitionView) else str(value)


def _role_shown(acting: Acting | None) -> str:
    if acting is None:
        return "no role"
    stopped = ", stopped" if acting.stopped else ""
    return f"{acting.kind.value} e{acting.view.leader_epoch} p{acting.view.epoch}{stopped}"


class LifeScript:
    def __init__(self) -> None:
        self._life = ReplicaStateMachine(KEY)
        self._shown = ""
        self._commands: dict[str, Callable[[Command], list[ReplicaEffect]]] = {
            "open": lambda command: self._life.on_opened("torn" if "damaged" in command.words else None),
            "unopenable": self._unopenable,
            "view": self._view,
            "done": self._done,
            "fails": lambda _: self._life.on_step_failed("the disk fails"),
            "start-fails": lambda _: self._life.on_role_not_begun(),
            "no-space": self._no_space,
            "damage": lambda _: self._life.on_damage("a CRC is wrong"),
            "recorded": lambda _: self._life.on_damage_recorded("a CRC is wrong"),
            "role-fails": self._role_fails,
            "fail": lambda _: self._life.on_failed("the disk fails"),
            "close": lambda _: self._life.on_closing(),
        }

    def __call__(self, command: Command) -> Sequence[str]:
        carry_out = self._commands.get(command.name)
        if carry_out is None:
            raise ScriptError(f"unknown command; known: {', '.join(self._commands)}")
        effects = carry_out(command)
        life = self._life
        life.validate()
        health = life.health if not isinstance(life.health, Sound) else "sound"
        step = type(life.step).__name__ if life.step is not None else "no step"
        shown = f"= {health}; {_role_shown(life.acting)}; {step}"
        changed = [shown] if shown != self._shown else []
        self._shown = shown
        return [*map(_shown, effects), *changed]

    def _unopenable(self, _: Command) -> list[ReplicaEffect]:
        self._life.on_unusable("the log cannot be opened")
        return []

    def _no_space(self, _: Command) -> list[ReplicaEffect]:
        self._life.on_no_space()
        return []

    def _role_fails(self, _: Command) -> list[ReplicaEffect]:
        self._life.on_role_failed("a rule is broken")
        return []

    def _view(self, command: Command) -> list[ReplicaEffect]:
        told = command.options
        leader = told["leader"]
        view = PartitionView(
            key=KEY,
            subject="s",
            config=StreamConfig(),
            replicas=_members("a,b,c"),
            leader=None if leader == "-" else BrokerId(leader),
            isr=_members(told["isr"]),
            eligible=_members(told.get("eligible", "")),
            epoch=PartitionEpoch(int(told["p"])),
            leader_epoch=LeaderEpoch(int(told["e"])),
            loss_accepted="loss-accepted" in command.words,
        )
        return self._life.on_view(view, A)

    def _done(self, command: Command) -> list[ReplicaEffect]:
        life = self._life
        match life.step:
            case OpenLog():
                return life.on_opened("torn" if "damaged" in command.words else None)
            case PrepareLog():
                return life.on_prepared()
            case BeginRole():
                return life.on_role_begun()
            case EndRole():
                return life.on_role_ended()
            case WaitToRetry():
                return life.on_waited()
            case Repair():
                return life.on_repaired()
            case None:
                raise ScriptError("no step is under way")
