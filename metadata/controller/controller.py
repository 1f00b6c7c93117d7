"""The controller: decisions of the broker that leads the Raft group. Events in, effects out.

    STANDBY --leads the group--> STARTING --own BeginControllerEpoch applied--> ACTIVE
       ^                            |                                    |
       +----- leads no more --------+------------------------------------+
                                    ^---- another controller epoch ------+

A command BeginControllerEpoch starts a controller epoch. A controller whose group has no cluster id yet founds a
cluster: it asks first whether the namespace has another one, and starts no epoch if it has (see `bootstrap`).

Nothing is decided before its own BeginControllerEpoch is applied: until then the state here may lack commands
of an earlier controller. Every decision carries the controller epoch, so that one which is queued on a deposed leader
is refused when it arrives.

`failover` replaces failed leaders, `leader_rebalancing` moves leaderships away from brokers that cannot do a leader's
work, `preferred_leaders` gives them back to brokers that are able again, `repartitions` drives the repartitions of
streams, `reassignments` the changes of their partitions' replicas, and `admin_requests` decides requests of operators
and clients. A slow follower is taken out of the ISR by its leader (`dataplane.replica.leader.isr_keeper`); a dead one
is, by `failover`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum
from math import inf

from metadata.cluster.command_rules import RULES
from metadata.cluster.model import Changes, Outcome
from metadata.commands.cluster_state import ClusterState
from metadata.controller.admin_requests import AdminRequests
from metadata.controller.agreed_time import ClockSurvey
from metadata.controller.bootstrap import Bootstrap, Claim
from metadata.controller.controller_effects import (
    AskForClusters,
    BecomeController,
    Effect,
    HandOver,
    MoveLeader,
    Note,
    Propose,
    RefuseToFound,
    ResignController,
    SendProbe,
)
from metadata.controller.failover import DECISION_RETRY_S, Failover
from metadata.controller.leader_rebalancing import LeaderRebalancing
from metadata.controller.liveness import Liveness
from metadata.controller.metadata_settings import MetadataSettings
from metadata.controller.placement import Chance
from metadata.controller.preferred_leaders import PreferredLeaders
from metadata.controller.reassignments import Reassigning
from metadata.controller.repartitions import Repartitioning
from wire.errors import Code, TidelogError
from wire.protobuf import metadata_pb2 as pb
from wire.types import ALL_TAKEN_UP, BrokerId, Generation, Incarnation, LeaderMove, LeaderReport, RoleProgress, Room

MOST_UNHEARD_PATIENCE_S = 300.0
"""Limit of the pause between attempts to hand over of a controller that clients cannot ask. It doubles with each
attempt, for the other voters may have lost the same connection: they would hand over to each other for ever, and each
of them first has to learn from probes which brokers are alive."""


class Phase(Enum):
    STANDBY = "standby"
    STARTING = "starting"
    ACTIVE = "active"


class ControllerCore:
    """Decides for the cluster. `state` is read only; the caller applies commands to it and then calls `on_applied`."""

    def __init__(
        self,
        broker_id: BrokerId,
        life_id: str,
        state: ClusterState,
        settings: MetadataSettings,
        chance: Chance,
        *,
        namespace: str,
        new_cluster_id: str,
    ) -> None:
        """`new_cluster_id`: the id of the cluster if this broker founds it."""
        self._id = broker_id
        self._life_id = life_id
        self._state = state
        self._settings = settings
        self._namespace = namespace
        self._new_cluster_id = new_cluster_id
        self._liveness = Liveness(broker_id, settings)
        self.clocks = ClockSurvey(settings)
        """Clocks of the brokers, as their probe answers gave them in this controller epoch."""
        self._leads = False
        self._has_quorum = False
        self._connected_at = inf
        self._unheard_since = inf
        """The connection for clients is lost since then, or since this controller has begun or tried to hand over
        because of that; inf: it is connected."""
        self._unheard_patience = settings.unheard_timeout_s
        self._phase = Phase.STANDBY
        self._controller_epoch = 0
        self._epoch_ticket: int | None = None
        self._epoch_retry_at = -inf
        self._bootstrap: Bootstrap | None = None
        self._ticket = 0
        self._handed_over = False
        self._dead_since: dict[BrokerId, float] = {}
        """When the death of those that are dead was applied here, or the state was restored at the start."""
        self._go_on_at = inf
        """When the next decision is due, because the last call left some undecided."""
        self._rebalancing = LeaderRebalancing(state)
        self.preferred = PreferredLeaders(
            state, why_not=self._rebalancing.why_not, is_moving=self._rebalancing.is_moving
        )
        self._failover = Failover(state, settings, self._liveness, self._propose, self.stopping_brokers, self._spared)
        self.repartitioning = Repartitioning(
            state,
            settings,
            knows=self._liveness.begun_generation,
            live=self.live_brokers,
            propose=self._propose,
            epoch=lambda: self.controller_epoch,
        )
        self._reassigning = Reassigning(
            state,
            settings,
            may_lead=self._rebalancing.may_lead,
            propose=self._propose,
            epoch=lambda: self.controller_epoch,
        )
        self.requests = AdminRequests(
            broker_id,
            state,
            self._rebalancing,
            chance,
            settings,
            namespace=namespace,
            epoch=lambda: self.controller_epoch,
            live_brokers=self.live_brokers,
        )

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def controller_epoch(self) -> int:
        """The controller epoch of this broker; 0 while it is not the controller."""
        return self._controller_epoch if self._phase is Phase.ACTIVE else 0

    @property
    def bootstrap(self) -> Bootstrap | None:
        """The search for other clusters, while this controller is about to found one."""
        return self._bootstrap

    # ---- events ----------------------------------------------------------------------------------------------------

    def on_raft(self, leads: bool, has_quorum: bool, now: float) -> list[Effect]:
        """Whether this node leads the group as far as it knows, and is connected to a majority of the voters."""
        regained = has_quorum and not self._has_quorum
        self._has_quorum = has_quorum
        effects: list[Effect] = []
        if self._leads and not leads:
            self._leads = False
            effects += self._stand_by()
        elif leads and not self._leads:
            self._leads = True
            effects += self._start_epoch(now)
        elif regained and self._phase is Phase.ACTIVE:
            # Another may have been elected meanwhile, without a word of it here. Only a commit proves that this node
            # leads the group, and probes of a deposed controller would renew the leases of deposed leaders.
            effects += [*self._stand_by(), *self._start_epoch(now)]
        return effects + self._decide(now)

    def on_connection(self, connected: bool, now: float) -> list[Effect]:
        """The NATS connection that probes use was lost or made."""
        self._connected_at = now if connected else inf
        self._liveness.on_connection(connected, now)
        if self._bootstrap is not None:
            self._bootstrap.on_connection()
        return [*self._go_on_bootstrapping(now), *self._decide(now)]

    def on_public_connection(self, connected: bool, now: float) -> list[Effect]:
        """The NATS connection that carries requests of clients and claims of founders was lost or made."""
        self._unheard_since = inf if connected else now
        if connected:
            self._unheard_patience = self._settings.unheard_timeout_s
        if self._bootstrap is not None:
            self._bootstrap.on_connection()
        return [*self._go_on_bootstrapping(now), *self._decide(now)]

    def on_own_question(self, now: float) -> list[Effect]:
        """The question that this broker sent to all brokers was delivered to itself, too."""
        if self._bootstrap is not None:
            self._bootstrap.on_own_question()
        return self._go_on_bootstrapping(now)

    def on_claim(self, claim: Claim, now: float) -> list[Effect]:
        """Another broker named the cluster that it belongs to, or announced that it is about to found one."""
        if self._bootstrap is not None:
            self._bootstrap.on_claim(claim)
        return self._go_on_bootstrapping(now)

    def on_applied(self, changes: Changes, now: float) -> list[Effect]:
        """The state has changed."""
        self._note_deaths(changes, now)
        for broker in changes.brokers:
            self._rebalancing.on_stopping(broker, False)  # its process has ended, or another one has begun
        if changes.controller and self._phase is Phase.ACTIVE and not self._holds(self._controller_epoch):
            effects = [*self._stand_by(), *self._start_epoch(now)]
            return effects + self._decide(now)
        if self._bootstrap is not None and self._state.cluster_id:
            # The group had a cluster already, or has been given one by this controller.
            self._bootstrap = None
            if self._phase is Phase.STARTING and self._epoch_ticket is None:
                return self._start_epoch(now)
        if self._phase is not Phase.ACTIVE:
            return []
        self._failover.on_applied(changes, now)
        self.repartitioning.on_applied(changes)
        self._reassigning.on_applied(changes)
        return self._decide(now)

    def on_outcome(self, ticket: int, outcome: Outcome | None, now: float) -> list[Effect]:
        """A proposal ended; None: its outcome is unknown."""
        if ticket != self._epoch_ticket:
            return []
        self._epoch_ticket = None
        if self._phase is not Phase.STARTING:
            return []
        if outcome is not None and outcome.code is None and self._holds(outcome.value):
            self._phase = Phase.ACTIVE
            self._bootstrap = None
            self._failover.controller_epoch = self._controller_epoch = outcome.value
            self._liveness.restart(now, self._connected_at)
            self.clocks.restart()
            self.repartitioning.begin()
            self._reassigning.begin()
            self._failover.begin()
            self._handed_over = False
            if self._unheard_since < inf:
                self._unheard_since = now
            return [
                Note(f"controller epoch {self._controller_epoch} begins"),
                BecomeController(self._controller_epoch),
                *self._decide(now),
            ]
        if outcome is None and self._bootstrap is not None:
            # It may never be committed. By the time of the next one another cluster may have been founded.
            self._bootstrap = self._new_bootstrap(is_proposed=self._bootstrap.is_proposed)
        if outcome is not None and outcome.code is Code.NOT_CONTROLLER:
            # A controller epoch was applied that was not known here when this one was proposed. It is now.
            return self._start_epoch(now)
        if outcome is not None and outcome.code is not None and self._bootstrap is not None:
            taken_by = self._bootstrap.taken_by
            if taken_by is not None and not self._state.cluster_id:
                # The group has answered, too: it has no cluster that the claim could have been of.
                self._epoch_retry_at = inf
                return [RefuseToFound(_namespace_taken(self._id, self._namespace, taken_by))]
        self._epoch_retry_at = now + self._settings.retry_interval_s
        return []

    def on_peer_lost(self, broker: BrokerId, now: float) -> list[Effect]:
        """The Raft connection with that broker has closed."""
        self._liveness.on_peer_lost(broker, now)
        return self._decide(now)

    def on_raft_peers(self, connected: Collection[BrokerId]) -> None:
        """Voters with a live Raft connection. To be called before events that may declare them dead: peer lost, no
        responders, tick."""
        self._liveness.on_raft_peers(connected)

    def on_probe_answer(
        self,
        broker: BrokerId,
        number: int,
        generation: Generation,
        now: float,
        *,
        begun: Generation | None = None,
        vouches: bool = False,
        roles: RoleProgress = ALL_TAKEN_UP,
    ) -> list[Effect]:
        """See `Liveness.on_answer`."""
        self._liveness.on_answer(broker, number, generation, now, begun=begun, vouches=vouches, roles=roles)
        return [*self._failover.count_witnesses(now), *self._decide(now)]

    def on_no_responders(self, broker: BrokerId, number: int, now: float) -> list[Effect]:
        self._liveness.on_no_responders(broker, number, now)
        return [*self._failover.count_witnesses(now), *self._decide(now)]

    def on_condition(
        self,
        broker: BrokerId,
        *,
        room: Room,
        disk_hangs: bool,
        has_master_key: bool,
        now: float,
        is_stopping: bool = False,
        leaves: Incarnation | None = None,
    ) -> list[Effect]:
        """A probe answer reported the broker's disk and keys, whether it is about to stop, and, when it has handed its
        leaderships over, the incarnation that `leaves`."""
        self._rebalancing.on_room(broker, room)
        self._rebalancing.on_disk(broker, disk_hangs)
        self._rebalancing.on_master_key(broker, has_master_key)
        self._rebalancing.on_stopping(broker, is_stopping)
        if self._phase is not Phase.ACTIVE:
            return []
        moves = (*self._rebalancing.due(now), *self.preferred.due(now))
        effects: list[Effect] = [MoveLeader(move) for move in moves]
        if leaves is not None and broker != self._id:
            effects += self._failover.declare_dead(((broker, leaves),), now, is_asked_for=True)
        return effects

    def on_move_ended(self, move: LeaderMove, moved: bool, now: float) -> list[Effect]:
        """A `MoveLeader` was carried out, or failed. Another may begin in its place."""
        if not self._reassigning.on_move_ended(move, moved, now) and not self.preferred.on_ended(move, moved, now):
            self._rebalancing.on_ended(move, moved, now)
        if self._phase is not Phase.ACTIVE:
            return []
        return [MoveLeader(each) for each in self._rebalancing.due(now)]

    def on_hand_over_refused(self, now: float) -> list[Effect]:
        """No other voter can take over. A controller that is cut off from most brokers goes on like a new one, which
        believes its probes in the end: else a standalone voter would never declare most of its observers dead."""
        if self._handed_over and self._phase is Phase.ACTIVE:
            self._liveness.restart(now, self._connected_at)
        return self._decide(now)

    def on_reports(self, reports: Iterable[LeaderReport], now: float) -> list[Effect]:
        """A follower suspects its leaders. Only the witnesses of the reported partitions are counted: a failed broker
        may lead thousands."""
        suspected = [report.key for report in reports if self._failover.suspect(report, now)]
        return [*self._failover.count_witnesses(now, suspected), *self._decide(now)]

    def tick(self, now: float) -> list[Effect]:
        """Takes due decisions; to be called at `next_deadline`, and at any other time."""
        if self._phase is Phase.STARTING and self._epoch_ticket is None and now >= self._epoch_retry_at:
            return self._start_epoch(now)
        if self._phase is Phase.STARTING:
            return self._go_on_bootstrapping(now)
        return [*self._failover.count_witnesses(now), *self._decide(now)]

    def next_deadline(self) -> float:
        if self._phase is Phase.STARTING:
            hears = self._connected_at < inf and self._unheard_since == inf
            searches = hears and self._epoch_retry_at == inf
            search_at = self._bootstrap.next_deadline() if self._bootstrap is not None and searches else inf
            return min(search_at, self._epoch_retry_at if self._epoch_ticket is None else inf)
        if self._phase is Phase.ACTIVE and self._has_quorum:
            return min(self._liveness.next_deadline(), self._go_on_at)
        return inf

    # ---- requests --------------------------------------------------------------------------------------------------

    def newest_answer(self, broker: BrokerId) -> int:
        """The newest probe that this broker has answered, among answers that have arrived; 0: none in this controller
        epoch."""
        return self._liveness.newest_answer(broker)

    def stopping_brokers(self) -> list[BrokerId]:
        """Live brokers that hand their leaderships over before they stop, by their newest answers, sorted."""
        return self._rebalancing.stopping

    def dead_for(self, now: float) -> dict[BrokerId, float]:
        """Seconds since the death of each dead broker, at least: some may have been dead when this process began."""
        return {broker: now - since for broker, since in self._dead_since.items()}

    def live_brokers(self) -> list[BrokerId]:
        """Brokers that are alive by the state and have not refused the last probe, sorted."""
        return [
            broker
            for broker, known in sorted(self._state.brokers.items())
            if known.alive and not self._liveness.is_refused(broker)
        ]

    def presume_stopping(self, brokers: Iterable[BrokerId]) -> None:
        """Brokers that were stopping by the last probe of the controller before this one. Some of them may have ended
        since, and answer no probe of this one."""
        for broker in brokers:
            self._rebalancing.on_stopping(broker, True)

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _note_deaths(self, changes: Changes, now: float) -> None:
        for broker in changes.brokers:
            known = self._state.brokers.get(broker)
            if known is None or known.alive:
                self._dead_since.pop(broker, None)
            else:
                self._dead_since.setdefault(broker, now)

    def _holds(self, epoch: int) -> bool:
        state = self._state
        return (
            state.controller_epoch == epoch
            and state.controller == self._id
            and state.controller_life_id == self._life_id
        )

    # Keeps R88.
    def _spared(self) -> Collection[BrokerId]:
        """Live brokers that are about to stop, while no live broker is known to stay; else none."""
        stopping = self.stopping_brokers()
        return stopping if stopping and not any(map(self._rebalancing.is_known_to_stay, self.live_brokers())) else ()

    def _propose(self, command: pb.Command) -> Propose:
        self._ticket += 1
        return Propose(command, self._ticket)

    def _stand_by(self) -> list[Effect]:
        was = self._phase
        self._phase = Phase.STANDBY
        self._epoch_ticket = None
        self._bootstrap = None
        self._failover.end()
        self._rebalancing.clear()
        self.preferred.clear()
        self.repartitioning.end()
        self._reassigning.end()
        if was is not Phase.ACTIVE:
            return []
        return [Note(f"controller epoch {self._controller_epoch} is over"), ResignController()]

    # Keeps R28.
    def _start_epoch(self, now: float) -> list[Effect]:
        if not self._leads:
            return []
        self._phase = Phase.STARTING
        if not self._state.cluster_id:
            if self._bootstrap is None:
                self._bootstrap = self._new_bootstrap(is_proposed=False)
            if not self._bootstrap.is_over:
                self._epoch_retry_at = inf
                return self._go_on_bootstrapping(now)
        self._epoch_retry_at = now + DECISION_RETRY_S
        founds = self._bootstrap is None or self._bootstrap.taken_by is None
        proposal = self._propose(
            pb.Command(
                begin_controller_epoch=pb.BeginControllerEpoch(
                    controller=self._id,
                    life_id=self._life_id,
                    expected_controller_epoch=self._state.controller_epoch,
                    # Without an id no cluster is founded: the group says whether it has one that is not known here yet.
                    cluster_id=self._new_cluster_id if founds else "",
                    rules=RULES,
                )
            )
        )
        self._epoch_ticket = proposal.ticket
        return [proposal]

    def _new_bootstrap(self, *, is_proposed: bool) -> Bootstrap:
        return Bootstrap(self._new_cluster_id, self._settings.bootstrap_wait_s, is_proposed=is_proposed)

    def _go_on_bootstrapping(self, now: float) -> list[Effect]:
        """While it searches: ask, or start an epoch when the search is over."""
        bootstrap = self._bootstrap
        if bootstrap is None or self._epoch_ticket is not None or self._epoch_retry_at < inf:
            return []
        asks = self._connected_at < inf and self._unheard_since == inf and bootstrap.tick(now)
        if bootstrap.is_over:
            return self._start_epoch(now)
        return [AskForClusters()] if asks else []

    def _decide(self, now: float) -> list[Effect]:
        """Returns the effects that are due: probes, declarations of death, elections, steps of repartitions."""
        self._go_on_at = inf
        if self._phase is not Phase.ACTIVE or not self._has_quorum:
            return []
        orders = self._liveness.tick(now, self._state.brokers, self._state.generation)
        effects: list[Effect] = [
            SendProbe(order.broker, order.number, order.answered, self._controller_epoch) for order in orders
        ]
        verdict = self._liveness.verdict(now)
        if verdict.hand_over:
            if not self._handed_over:
                self._handed_over = True
                effects += _hand_over("most brokers do not answer it in time, for it is cut off from them or too busy")
            return effects
        self._handed_over = False
        if now - self._unheard_since >= self._unheard_patience:
            self._unheard_since = now
            self._unheard_patience = min(2 * self._unheard_patience, MOST_UNHEARD_PATIENCE_S)
            effects += _hand_over("clients cannot ask it")
        effects += self._failover.declare_dead(verdict.dead, now)
        effects += self._failover.end_waits(now)
        effects += self._failover.replace(verdict.behind, verdict.cut_off, now)
        effects += self.repartitioning.due(now)
        effects += self._reassigning.due(now)
        if self._failover.has_more or self._reassigning.has_more:
            self._go_on_at = now
        return effects


def _hand_over(why: str) -> list[Effect]:
    return [Note(f"{why}; another voter should become the controller"), HandOver(why)]


def _namespace_taken(founder: BrokerId, namespace: str, claim: Claim) -> TidelogError:
    return TidelogError(
        Code.BAD_CONFIG,
        f"broker {founder} founds no cluster: cluster {claim.cluster_id} (broker {claim.broker}) lives in"
        f" namespace {namespace!r} of this NATS system already; to join it give its voters with --raft-peer"
        " ID=HOST:PORT (raft_peers) and its --raft-secret-file, for a cluster beside it choose another --namespace",
    )
