"""Failed leaders and brokers: the elections and the declarations of death that a controller proposes.

A closed Raft connection, or a follower's report, has the broker probed at once. If no process listens there, the
reported partitions move as soon as something else says so, too, and the second refusal declares the broker dead (see
`liveness`). If it answers, or is
silent, the members of its ISR are witnesses: more than (|ISR| - 1) / 2 of them within `witness_window`, the leader not
counted, move that partition. Reports of another epoch, of replicas outside the ISR, and those that rest on a 503 alone
do not count; a new LeaderEpoch and a new controller epoch clear them.

A partition without a leader, of which some members are back and others on their way (`election.awaited`), has
`election_wait`, from the moment at which this controller first sees it so. Then one of those that are back leads.

A decision that is refused or lost is taken anew from the state that is applied then, at the latest `DECISION_RETRY_S`
later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import inf

from metadata import election
from metadata.effects import Effect, Note, Propose
from metadata.liveness import Liveness
from metadata.metadata_settings import MetadataSettings
from metadata.model import Changes, Partition
from metadata.references import ref_of
from metadata.state import ClusterState
from wire import metadata_pb2 as pb
from wire.types import BrokerId, Incarnation, LeaderEpoch, LeaderReport, PartitionKey

DECISION_RETRY_S = 0.5
"""A decision that has not shown in the state by then is taken anew."""

MAX_ELECTIONS = 1000
"""Limit of elections in one command, which must not be too large for Raft; more go into further ones."""


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
    """Those of them with no other ground than a 503."""


class Failover:
    """See the module. `state` is read only. `propose` makes the effect that proposes a command."""

    def __init__(
        self,
        state: ClusterState,
        settings: MetadataSettings,
        liveness: Liveness,
        propose: Callable[[pb.Command], Propose],
    ) -> None:
        self._state = state
        self._settings = settings
        self._liveness = liveness
        self._propose = propose
        self.controller_epoch = 0
        """The controller epoch of this broker; 0 while it is not the controller."""
        self._suspicions: dict[PartitionKey, _Suspicion] = {}
        self._electing: dict[PartitionKey, tuple[LeaderEpoch, float]] = {}
        self._dying: dict[tuple[BrokerId, Incarnation], float] = {}
        """Lives that a proposed command declares dead, and until when its outcome is waited for."""
        self._cut_off: dict[BrokerId, float] = {}
        """Brokers that the log told to be cut off, and when their partitions are looked at again."""
        self._leaderless: dict[PartitionKey, float] = {}
        """Partitions without a leader, of which a replica that may lead is back, and since when."""

    def end(self) -> None:
        """The controller epoch is over."""
        self.controller_epoch = 0
        self._suspicions.clear()
        self._electing.clear()
        self._dying.clear()
        self._cut_off.clear()
        self._leaderless.clear()

    def begin(self, now: float) -> None:
        """A controller epoch of this broker begins."""
        for key, _ in self._state.partitions():
            self._look_at_leader(key, now)

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
        if partition is None or partition.leader is not None:
            self._leaderless.pop(key, None)
        elif election.candidates(partition, self._state.is_alive):
            self._leaderless.setdefault(key, now)
        else:
            self._leaderless.pop(key, None)

    def end_waits(self, now: float) -> list[Effect]:
        """Elect where others were waited for, and have not come."""
        wait = self._settings.election_wait_s
        over = [key for key, since in self._leaderless.items() if now - since >= wait]
        if not over:
            return []
        found = [(key, partition) for key in over if (partition := self._state.partition(key)) is not None]
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
        return True

    def count_witnesses(self, now: float, keys: Collection[PartitionKey] | None = None) -> list[Effect]:
        """Elect where the leader's probe, or enough witnesses, say so. `keys`: look only at these suspicions."""
        if not self.controller_epoch:
            return []
        refused: list[tuple[PartitionKey, Partition]] = []
        outvoted: list[tuple[PartitionKey, Partition]] = []
        for key in [*self._suspicions] if keys is None else dict.fromkeys(keys):
            suspicion = self._suspicions[key]
            partition = self._state.partition(key)
            fresh = {
                broker: at
                for broker, at in suspicion.witnesses.items()
                if now - at <= self._settings.witness_window_s and partition is not None and broker in partition.isr
            }
            suspicion.witnesses = fresh
            # The state may be ahead of the changes that `on_applied` has told of.
            if partition is None or partition.leader_epoch != suspicion.leader_epoch or not fresh:
                del self._suspicions[key]
                continue
            if self._liveness.is_gone(suspicion.leader, now) and self._liveness.is_trusted(now):
                refused.append((key, partition))
            elif 2 * len(fresh.keys() - suspicion.refused) > len(partition.isr) - 1 and (
                self._liveness.heard_since(suspicion.leader, suspicion.asked_at)
                or now - suspicion.asked_at >= self._settings.probe_timeout_s
            ):
                outvoted.append((key, partition))
        return [
            *self._elect(refused, now, "no process listens where the leader should"),
            *self._elect(outvoted, now, "most of the ISR report the leader"),
        ]

    def declare_dead(self, dead: tuple[tuple[BrokerId, Incarnation], ...], now: float) -> list[Effect]:
        """Declare these lives dead, unless a command that does is on its way."""
        due = [life for life in dead if self._dying.get(life, -inf) <= now]
        self._dying = {life: until for life, until in self._dying.items() if life in dead}
        if not due:
            return []
        for life in due:
            self._dying[life] = now + DECISION_RETRY_S
        command = pb.Command(
            brokers_dead=pb.BrokersDead(
                controller_epoch=self.controller_epoch,
                brokers=[pb.BrokerLife(broker=broker, incarnation=incarnation) for broker, incarnation in due],
            )
        )
        names = ", ".join(f"{broker} (incarnation {incarnation})" for broker, incarnation in due)
        return [Note(f"dead: {names}", is_warning=True), self._propose(command)]

    def replace_cut_off(self, cut_off: tuple[BrokerId, ...], now: float) -> list[Effect]:
        """Elect other leaders for partitions that these brokers lead: members of the ISR, else eligible replicas."""
        known, self._cut_off = self._cut_off, {}
        effects: list[Effect] = []
        for broker in cut_off:
            self._cut_off[broker] = known.get(broker, -inf)
            if broker not in known:
                effects.append(
                    Note(
                        f"broker {broker} takes part in the metadata group, but is not heard over NATS; check its"
                        " connection to the NATS server",
                        is_warning=True,
                    )
                )
            if self._cut_off[broker] <= now:
                self._cut_off[broker] = now + DECISION_RETRY_S
                effects += self.replace(broker, now, f"broker {broker} is cut off from NATS")
        return effects

    def replace(self, broker: BrokerId, now: float, why: str) -> list[Effect]:
        """Elect other leaders for all partitions that this broker leads."""
        return self._elect([(key, part) for key, part in self._state.partitions() if part.leader == broker], now, why)

    def _elect(self, partitions: list[tuple[PartitionKey, Partition]], now: float, why: str) -> list[Effect]:
        items = []
        for key, partition in partitions:
            epoch, until = self._electing.get(key, (LeaderEpoch(0), -inf))
            if epoch == partition.leader_epoch and now < until:
                continue
            others = [b for b in election.candidates(partition, self._state.is_alive) if b != partition.leader]
            if not others and not any(self._state.is_alive(broker) for broker in partition.eligible):
                continue
            self._electing[key] = (partition.leader_epoch, now + DECISION_RETRY_S)
            items.append(pb.Election(partition=ref_of(key), leader_epoch=partition.leader_epoch))
        if not items:
            return []
        named = ", ".join(f"{item.partition.stream}/{item.partition.partition}" for item in items[:5])
        return [
            Note(f"moving the leadership of {len(items)} partitions ({named}{', …' if len(items) > 5 else ''}): {why}"),
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
