"""Effects of the controller core: its decisions, for a driver to carry out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from wire.errors import TidelogError
from wire.protobuf import metadata_pb2 as pb
from wire.types import BrokerId, LeaderMove


@dataclass(frozen=True, slots=True)
class Propose:
    """Commit this command, and report its outcome to `on_outcome(ticket, …)`."""

    command: pb.Command
    ticket: int


@dataclass(frozen=True, slots=True)
class SendProbe:
    broker: BrokerId
    number: int
    answered: int
    controller_epoch: int


@dataclass(frozen=True, slots=True)
class BecomeController:
    """Serve as the controller from now on."""

    controller_epoch: int


@dataclass(frozen=True, slots=True)
class ResignController:
    """Serve as the controller no longer."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """Let another voter lead: this one seems cut off from the brokers, or from clients. Call `on_hand_over_refused` if
    there is none."""

    why: str


@dataclass(frozen=True, slots=True)
class AskForClusters:
    """Ask all brokers of the namespace to which cluster they belong. Call `on_own_question` when the question comes
    back, and `on_claim` for each answer."""


@dataclass(frozen=True, slots=True)
class RefuseToFound:
    """The namespace has another cluster: this broker cannot go on."""

    error: TidelogError


@dataclass(frozen=True, slots=True)
class MoveLeader:
    """Move a leadership, away from a broker that should not have it or back to the preferred leader; report the end to
    `on_move_ended`."""

    move: LeaderMove


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the log, which operators read."""

    text: str
    is_warning: bool = False
    """A failure that a person may have to mend; else a step of normal work."""


Effect: TypeAlias = (
    Propose
    | SendProbe
    | BecomeController
    | ResignController
    | HandOver
    | AskForClusters
    | RefuseToFound
    | MoveLeader
    | Note
)
