"""Failed leaders and brokers: the elections and the declarations of death that a controller proposes.

After a closed Raft connection, or a follower's report, the broker is probed at once. If no process listens there, the
reported partitions move as soon as another fact confirms it, and the second refusal declares the broker dead (see
`liveness`). If it answers, or is silent, the members of its ISR are witnesses: more than (|ISR| - 1) / 2 of them within
`witness_window`, the leader not counted, move that partition. Reports of another epoch, of replicas outside the ISR,
and those that rest on a 503 alone do not count; a new LeaderEpoch and a new controller epoch clear them.

A partition without a leader, of which some members are back and others on their way (`election.awaited`), has
`election_wait`, from the moment at which this controller first sees it so. Then one of those that are back leads.

A decision that is refused or lost is taken anew from the state that is applied then, at the latest `DECISION_RETRY_S`
later; where one event led to very many decisions, that long after the last of them.

No call decides on more than AT_ONCE partitions, however many have failed. `has_more` says that some are left, and the
next call goes on with them, as soon as the event loop has done other work:

    witnesses   suspicions go round: those that were looked at come last. There is more while leaders to replace are
                found; else the next event goes on
    waits       partitions without a leader stand in the order in which their waits end
    a walk      through all partitions, for brokers that lag or are cut off, and when a controller epoch begins
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Final

from metadata.cluster import election
from metadata.cluster.model import Changes, Partition
from metadata.cluster.references import ref_of
from metadata.commands.cluster_state import ClusterState
from metadata.controller.controller_effects import Effect, Note, Propose
from metadata.controller.liveness import Liveness
from metadata.controller.metadata_settings import MetadataSettings
from wire.protobuf import metadata_pb2 as pb
from wire.turns import LOOKS
from wire.types import (
    ALL_TAKEN_UP,
    BrokerId,
    Incarnation,
    LeaderEpoch,
    LeaderReport,
    PartitionKey,
    RoleProgress,
)

DECISION_RETRY_S = 0.5
"""A decision that has not shown in the state by then is taken anew."""

MAX_ELECTIONS = 1000
"""Limit of elections in one command, which must not be too large for Raft; more go into further ones."""

OPENING_LIMIT_S = 30.0
"""A leader that has answered none of its followers is waited for at most so long, while its broker takes up roles."""

STEPS_OF_ROLE: Final = 3
"""Steps of a replica until it serves: its log is opened, prepared, and the role begins. All later ones follow from a
step that is pending, and come before the first ones of other replicas."""

AT_ONCE: Final = 500
"""Limit of the partitions that a call decides on: some 5 ms."""


@dataclass(slots=True)
class _Suspicion:
    """Reports of followers on one partition's leader."""

    leader: BrokerId
    leader_epoch: LeaderEpoch
    asked_at: float
    """When the leader's probe was asked for."""
    witnesses: dict[BrokerId, float] = field(default_factory=dict)
    """When each last reported."""
    refused: set[BrokerId] = field(default_factory=set)
    """Witnesses with no other ground than a 503."""
    opened: bool = False
    """The leader has answered one of them in this LeaderEpoch, as far as its process remembers."""
    waited_since: float | None = None
    """When enough witnesses first reported a leader that may be opening; None: they never did."""
    roles_then: RoleProgress = ALL_TAKEN_UP
    """How far its broker was at that time."""
    is_noted: bool = False
    """The log says that it is waited for."""


class Failover:
    """Elections and declarations of death. `state` is read only. `propose` makes the effect that proposes a command.
    `stopping`: live brokers that are about to stop; `spared`: those that are neither declared dead nor replaced now."""

    def __init__(
        self,
        state: ClusterState,
        settings: MetadataSettings,
        liveness: Liveness,
        propose: Callable[[pb.Command], Propose],
        stopping: Callable[[], Sequence[BrokerId]],
        spared: Callable[[], Collection[BrokerId]],
    ) -> None:
        self._state = state
        self._settings = settings
        self._liveness = liveness
        self._propose = propose
        self._stopping = stopping
        self._spared = spared
        self.controller_epoch = 0
        """The controller epoch of this broker; 0 while it is not the controller."""
        self._suspicions: dict[PartitionKey, _Suspicion] = {}
        self._electing: dict[PartitionKey, tuple[LeaderEpoch, float]] = {}
        self._noted: dict[BrokerId, float] = {}
        """When the log last said that leaders on a broker are waited for."""
        self._dying: dict[tuple[BrokerId, Incarnation], float] = {}
        """Incarnations that a proposed command declares dead, and until when its outcome is waited for."""
        self._cut_off: Collection[BrokerId] = ()
        """Brokers that the log has reported as cut off."""
        self._replaced: Mapping[BrokerId, str] = {}
        """Brokers that shall lead nothing, and why."""
        self._leaderless: dict[PartitionKey, float] = {}
        """Partitions without a leader, of which a replica that may lead is back, and since when; oldest first."""
        self._overdue: dict[PartitionKey, float] = {}
        """Partitions whose wait is over, and when they were looked at; oldest first."""
        self._walk: Iterator[list[PartitionKey]] | None = None
        """The rest of a walk through all partitions."""
        self._walk_at = inf
        """When the next walk may begin."""
        self._has_more_witnesses = self._has_more_waits = False

    @property
    def has_more(self) -> bool:
        """Whether the last calls left some decisions that are due."""
        return self._walk is not None or self._has_more_witnesses or self._has_more_waits

    def end(self) -> None:
        """The controller epoch of this broker is over."""
        self.controller_epoch = 0
        self._suspicions.clear()
        self._electing.clear()
        self._noted.clear()
        self._dying.clear()
        self._cut_off, self._replaced = (), {}
        self._leaderless.clear()
        self._overdue.clear()
        self._walk = None
        self._has_more_witnesses = self._has_more_waits = False

    def begin(self) -> None:
        """A controller epoch of this broker begins."""
        self._walk, self._walk_at = self._state.walk(self._is_walked_for), inf

    def on_applied(self, changes: Changes, now: float) -> None:
        for key in (*changes.partitions, *changes.gone):
            partition = self._state.partition(key)
            suspicion = self._suspicions.get(key)
            if suspicion is not None and (partition is None or partition.leader_epoch != suspicion.leader_epoch):
                del self._suspicions[key]
            self._electing.pop(key, None)
            self._look_at_leader(key, now)

    def _look_at_leader(self, key: PartitionKey, now: float) -> None:
        partition = self._state.partition(key)
        if (
            partition is None
            or partition.leader is not None
            or not election.candidates(partition, self._state.is_alive)
        ):
            self._leaderless.pop(key, None)
            self._overdue.pop(key, None)
        elif key not in self._overdue:
            self._leaderless.setdefault(key, now)

    def end_waits(self, now: float) -> list[Effect]:
        """Elects leaders where the other members were waited for, and have not come."""
        wait = self._settings.election_wait_s
        over: list[PartitionKey] = []
        for waiting, pause in ((self._leaderless, wait), (self._overdue, DECISION_RETRY_S)):
            for key, since in islice(waiting.items(), AT_ONCE - len(over)):
                if now - since < pause:
                    break
                over.append(key)
        self._has_more_waits = len(over) == AT_ONCE
        if not over:
            return []
        for key in over:
            self._leaderless.pop(key, None)
            self._overdue.pop(key, None)
            self._overdue[key] = now
        # The state may be ahead of the changes that `on_applied` has received.
        found = [
            (key, each) for key in over if (each := self._state.partition(key)) is not None and each.leader is None
        ]
        return self._elect(found, now, f"other members have not come back within {wait:g} s")

    def suspect(self, report: LeaderReport, now: float) -> bool:
        """A follower reports its leader. Returns whether the report counts."""
        partition = self._state.partition(report.key)
        if (
            not self.controller_epoch
            or partition is None
            or partition.leader is None
            or report.leader != partition.leader
            or report.leader_epoch != partition.leader_epoch
            or report.epoch != partition.epoch
            or report.replica not in partition.isr
            or report.replica == partition.leader
        ):
            return False
        suspicion = self._suspicions.get(report.key)
        if suspicion is None or suspicion.leader_epoch != partition.leader_epoch:
            suspicion = _Suspicion(partition.leader, partition.leader_epoch, now)
            self._suspicions[report.key] = suspicion
        if report.replica not in suspicion.witnesses:
            self._liveness.suspect(partition.leader, now)
        suspicion.witnesses[report.replica] = now
        (suspicion.refused.add if report.refused else suspicion.refused.discard)(report.replica)
        suspicion.opened = suspicion.opened or not report.unopened
        return True

    # R27: A follower that suspects its leader reports it, after a 503 at once if the leader has answered it in this
    # LeaderEpoch, else after `replica_max_leader_timeout` of silence. The controller probes the leader first: if that
    # is refused and gone, one report elects. If it answers, or is silent for `probe_timeout_s`, more than (|ISR| - 1)
    # / 2 distinct members of the ISR within `witness_window_s` elect. Reports of another epoch, from outside the ISR,
    # or with no other ground than a 503 do not count. A leader that has answered no witness in this LeaderEpoch is
    # waited for while its broker answers probes and goes on taking up roles: it may be one of thousands that open. The
    # wait ends when its broker has ended three times as many steps of any roles as were pending at its beginning, and
    # after `OPENING_LIMIT_S`.
    # Hazard: Stale witnesses; one broken link; leaderships that move from a busy broker to another one, and so on; one
    # leader that hangs on a broker that opens others.
    def count_witnesses(self, now: float, keys: Collection[PartitionKey] | None = None) -> list[Effect]:
        """Elects where the leader's probe was refused, or enough witnesses report it. `keys`: only these suspicions;
        None: those that were looked at longest ago."""
        if not self.controller_epoch:
            return []
        refused: list[tuple[PartitionKey, Partition]] = []
        outvoted: list[tuple[PartitionKey, Partition]] = []
        waiting: dict[BrokerId, list[tuple[PartitionKey, _Suspicion]]] = {}
        for key in [*islice(self._suspicions, AT_ONCE)] if keys is None else dict.fromkeys(keys):
            suspicion = self._suspicions.pop(key)
            partition = self._state.partition(key)
            fresh = {
                broker: at
                for broker, at in suspicion.witnesses.items()
                if now - at <= self._settings.witness_window_s and partition is not None and broker in partition.isr
            }
            suspicion.witnesses = fresh
            # The state may be ahead of the changes that `on_applied` has received.
            if partition is None or partition.leader_epoch != suspicion.leader_epoch or not fresh:
                continue
            self._suspicions[key] = suspicion  # behind all others
            if self._liveness.is_gone(suspicion.leader, now) and self._liveness.is_trusted(now):
                refused.append((key, partition))
            elif 2 * len(fresh.keys() - suspicion.refused) > len(partition.isr) - 1 and (
                self._liveness.heard_since(suspicion.leader, suspicion.asked_at)
                or now - suspicion.asked_at >= self._settings.probe_timeout_s
            ):
                if not self._may_be_opening(suspicion, now):
                    outvoted.append((key, partition))
                elif not suspicion.is_noted and self._has_waited_long(suspicion, now):
                    waiting.setdefault(suspicion.leader, []).append((key, suspicion))
        effects = [
            *self._elect(refused, now, "no process listens where the leader should"),
            *self._elect(outvoted, now, "most of the ISR report the leader"),
        ]
        if keys is None:
            self._has_more_witnesses = bool(effects) and len(self._suspicions) > AT_ONCE
        return [*effects, *self._waits_noted(waiting, now)]

    # Keeps R27.
    def _may_be_opening(self, suspicion: _Suspicion, now: float) -> bool:
        """Whether a leader that enough witnesses report is waited for. The progress of its broker is that of all its
        partitions, and says nothing about this one once the steps that stood before it have ended."""
        if suspicion.opened or not self._liveness.takes_up_roles(suspicion.leader, now):
            return False
        roles = self._liveness.roles(suspicion.leader)
        if suspicion.waited_since is None:
            suspicion.waited_since, suspicion.roles_then = now, roles
        ended = roles.done - suspicion.roles_then.done
        at_most = STEPS_OF_ROLE * suspicion.roles_then.pending
        return ended < at_most and now - suspicion.waited_since < OPENING_LIMIT_S

    def _has_waited_long(self, suspicion: _Suspicion, now: float) -> bool:
        return suspicion.waited_since is not None and now - suspicion.waited_since >= self._settings.witness_window_s

    def _waits_noted(
        self, waiting: Mapping[BrokerId, list[tuple[PartitionKey, _Suspicion]]], now: float
    ) -> Iterator[Note]:
        """Yields a line for each leader's broker, at most one per `witness_window_s`: thousands may open together."""
        window = self._settings.witness_window_s
        for broker, suspicions in waiting.items():
            if now - self._noted.get(broker, -inf) < window:
                continue
            self._noted[broker] = now
            for _, suspicion in suspicions:
                suspicion.is_noted = True
            pending = self._liveness.roles(broker).pending
            yield Note(
                f"waiting for broker {broker} to open {len(suspicions)} partitions that it leads"
                f" ({_named([key for key, _ in suspicions])}): most of the ISR have reported it for {window:g} s."
                f" It has {pending} steps towards roles left; others are elected after {OPENING_LIMIT_S:g} s",
                is_warning=True,
            )

    def declare_dead(
        self, dead: tuple[tuple[BrokerId, Incarnation], ...], now: float, *, is_asked_for: bool = False
    ) -> list[Effect]:
        """Declares these incarnations dead, unless a command that does is on its way. `is_asked_for`: they say that
        they leave."""
        due = [life for life in dead if self._dying.get(life, -inf) <= now]
        if due:
            spared = self._spared()
            due = [life for life in due if life[0] not in spared]
        self._dying = {life: until for life, until in self._dying.items() if life in dead}
        if not due:
            return []
        for life in due:
            self._dying[life] = now + DECISION_RETRY_S
        command = pb.Command(
            brokers_dead=pb.BrokersDead(
                controller_epoch=self.controller_epoch,
                brokers=[pb.BrokerLife(broker=broker, incarnation=incarnation) for broker, incarnation in due],
                stopping=self._stopping(),
            )
        )
        names = ", ".join(f"{broker} (incarnation {incarnation})" for broker, incarnation in due)
        note = Note(f"leaving: {names}") if is_asked_for else Note(f"dead: {names}", is_warning=True)
        return [note, self._propose(command)]

    def replace(self, behind: Collection[BrokerId], cut_off: Collection[BrokerId], now: float) -> list[Effect]:
        """Elects other leaders for the partitions that these brokers lead, as many as a turn takes: members of the ISR,
        else eligible replicas. To be called with all such brokers as long as there are any, and while `has_more`."""
        effects: list[Effect] = [
            Note(
                f"broker {broker} takes part in the metadata group, but is not heard over NATS; check its connection to"
                " the NATS server",
                is_warning=True,
            )
            for broker in cut_off
            if broker not in self._cut_off
        ]
        self._cut_off = cut_off
        replaced = {broker: f"broker {broker} is cut off from NATS" for broker in cut_off}
        for broker in behind:
            replaced[broker] = f"broker {broker} lags behind the metadata by more than its lease"
        if replaced.keys() - self._replaced.keys():
            self._walk_at = now  # the walk that is on its way may have passed some of its partitions
        self._replaced = replaced
        if self._walk is None and now >= self._walk_at and any(map(self._state.led_by, replaced)):
            self._walk, self._walk_at = self._state.walk(self._is_walked_for), inf
        return effects + self._go_on(now)

    def _go_on(self, now: float) -> list[Effect]:
        """Takes the walk one turn further."""
        found: dict[str, list[tuple[PartitionKey, Partition]]] = {}
        looks = 0
        while self._walk is not None and looks < LOOKS:
            keys = next(self._walk, None)
            if keys is None:
                self._walk = None
                self._walk_at = min(self._walk_at, now + DECISION_RETRY_S)
                break
            looks += 1 + len(keys) * LOOKS // AT_ONCE
            for key in keys:
                partition = self._state.partition(key)
                if partition is None or partition.leader is None:
                    self._look_at_leader(key, now)
                elif partition.leader in self._replaced:
                    found.setdefault(self._replaced[partition.leader], []).append((key, partition))
        return [effect for why, partitions in found.items() for effect in self._elect(partitions, now, why)]

    def _is_walked_for(self, partition: Partition) -> bool:
        """Partitions that change during the walk are seen by `on_applied`, if they lose their leader, or by the next
        walk."""
        return partition.leader is None or partition.leader in self._replaced

    def _elect(self, partitions: list[tuple[PartitionKey, Partition]], now: float, why: str) -> list[Effect]:
        items, keys = [], []
        spared, stopping = (self._spared(), self._stopping()) if partitions else ((), [])
        for key, partition in partitions:
            if partition.leader in spared:
                continue
            if partition.leader in (None, *stopping) and election.all_stop(partition, self._state.is_alive, stopping):
                continue  # it would lead for a moment, without those that have ended
            epoch, until = self._electing.get(key, (LeaderEpoch(0), -inf))
            if epoch == partition.leader_epoch and now < until:
                continue
            others = [b for b in election.candidates(partition, self._state.is_alive) if b != partition.leader]
            if not others and not any(self._state.is_alive(broker) for broker in partition.eligible):
                continue
            self._electing[key] = (partition.leader_epoch, now + DECISION_RETRY_S)
            items.append(pb.Election(partition=ref_of(key), leader_epoch=partition.leader_epoch))
            keys.append(key)
        if not items:
            return []
        return [
            Note(f"moving the leadership of {len(items)} partitions ({_named(keys)}): {why}"),
            *(
                self._propose(
                    pb.Command(
                        elect_leaders=pb.ElectLeaders(
                            controller_epoch=self.controller_epoch, items=items[first : first + MAX_ELECTIONS]
                        )
                    )
                )
                for first in range(0, len(items), MAX_ELECTIONS)
            ),
        ]


def _named(keys: Sequence[PartitionKey]) -> str:
    return ", ".join(f"{key.stream}/{key.partition}" for key in keys[:5]) + (", …" if len(keys) > 5 else "")
