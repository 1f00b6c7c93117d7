"""The controller's mind: what the broker that leads the Raft group decides. Events in, effects out.

    STANDBY --leads the group--> TAKING_OFFICE --own TakeOffice applied--> IN_OFFICE
       ^                               |                                      |
       +----- leads no more -----------+--------------------------------------+
                                       ^------- another office applied -------+

A controller whose group has no cluster id yet founds a cluster: it asks first whether another one lives in the
namespace, and takes no office if one does (see `founding`).

Nothing is decided before its own TakeOffice is applied: until then the state here may lack what an earlier controller
committed. Every decision carries the office, so that one which lies queued on a deposed leader is refused when it
arrives. A decision that is refused or lost is taken anew from what is applied then, at the latest `DECISION_RETRY_S`
later.

Failed leaders. A closed Raft connection, or a follower's report, has the broker probed at once. Nobody listening: what
is reported moves at once, and the second refusal buries the broker (see `liveness`). If it answers, or is silent, its
ISR's members are witnesses: more than (|ISR| - 1) / 2 of them within `witness_window`, the leader not counted, move
that partition. Reports of another epoch, and of replicas outside the ISR, do not count; a new LeaderEpoch and a new
office clear them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import TypeAlias

from metadata import election, stream_settings
from metadata.commands.partitions import why_not_unclean
from metadata.founding import Claim, Founding
from metadata.liveness import Liveness
from metadata.model import MAX_PARTITIONS, Changes, Outcome, Partition
from metadata.placement import Chance, place
from metadata.references import ref_of
from metadata.relief import Relief
from metadata.settings import MetadataSettings
from metadata.state import ClusterState
from wire import metadata_pb2 as pb
from wire.durability import DEFAULT_REPLICAS, MAX_REPLICAS
from wire.errors import Code, TidelogError
from wire.stream_config import StreamConfig
from wire.subjects import check_stream_name, check_subject
from wire.types import (
    BrokerId,
    Generation,
    Incarnation,
    LeaderEpoch,
    LeaderMove,
    LeaderReport,
    PartitionKey,
    StreamName,
)

DECISION_RETRY_S = 0.5
"""A decision that has not shown in the state by then is taken anew."""

MAX_ELECTIONS = 1000
"""In one command, which must not be too large for Raft; more go into further ones."""


class Phase(Enum):
    STANDBY = "standby"
    TAKING_OFFICE = "taking office"
    IN_OFFICE = "in office"


@dataclass(frozen=True, slots=True)
class Propose:
    """Commit this command; say how it ended with `on_outcome(ticket, …)`."""

    command: pb.Command
    ticket: int


@dataclass(frozen=True, slots=True)
class SendProbe:
    broker: BrokerId
    number: int
    answered: int
    office: int


@dataclass(frozen=True, slots=True)
class OpenOffice:
    """Serve as the controller from now on."""

    office: int


@dataclass(frozen=True, slots=True)
class CloseOffice:
    """Serve as the controller no more."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """Let another voter lead: this one seems cut off from the brokers. Say `on_hand_over_refused` if there is none."""


@dataclass(frozen=True, slots=True)
class AskForClusters:
    """Ask all brokers of the namespace to which cluster they belong. Say `on_own_question` when the question comes
    back, and `on_claim` for what others say."""


@dataclass(frozen=True, slots=True)
class RefuseToFound:
    """Another cluster lives in the namespace: this broker cannot go on."""

    error: TidelogError


@dataclass(frozen=True, slots=True)
class Note:
    """For the log: what an operator should be able to read."""

    text: str


Effect: TypeAlias = Propose | SendProbe | OpenOffice | CloseOffice | HandOver | AskForClusters | RefuseToFound | Note


@dataclass(slots=True)
class _Suspicion:
    """What followers reported of one partition's leader."""

    leader: BrokerId
    leader_epoch: LeaderEpoch
    asked_at: float
    """When the leader's probe was asked for."""
    witnesses: dict[BrokerId, float] = field(default_factory=dict)


class ControllerCore:
    """See the module. `state` is read only; the caller applies commands to it and then calls `on_applied`."""

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
        """`new_cluster_id`: what the cluster is called when this broker is its first controller."""
        self._id = broker_id
        self._life_id = life_id
        self._state = state
        self._settings = settings
        self._chance = chance
        self._namespace = namespace
        self._new_cluster_id = new_cluster_id
        self._liveness = Liveness(broker_id, settings)
        self._leads = False
        self._has_quorum = False
        self._connected_at = inf
        self._phase = Phase.STANDBY
        self._office = 0
        self._office_ticket: int | None = None
        self._office_retry_at = -inf
        self._founding: Founding | None = None
        self._ticket = 0
        self._suspicions: dict[PartitionKey, _Suspicion] = {}
        self._electing: dict[PartitionKey, tuple[LeaderEpoch, float]] = {}
        self._burying: dict[tuple[BrokerId, Incarnation], float] = {}
        self._handed_over = False
        self.relief = Relief(state)
        self._cut_off: dict[BrokerId, float] = {}
        """Those of whom the log tells; when what they lead is looked at again."""

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def office(self) -> int:
        """The office held; 0 outside."""
        return self._office if self._phase is Phase.IN_OFFICE else 0

    @property
    def founding(self) -> Founding | None:
        """Of the cluster that this controller is about to found."""
        return self._founding

    # ---- events ----------------------------------------------------------------------------------------------------

    def on_raft(self, leads: bool, has_quorum: bool, now: float) -> list[Effect]:
        """Whether this node leads the group as far as it knows, and hears a majority of the voters."""
        regained = has_quorum and not self._has_quorum
        self._has_quorum = has_quorum
        effects: list[Effect] = []
        if self._leads and not leads:
            self._leads = False
            effects += self._stand_by()
        elif leads and not self._leads:
            self._leads = True
            effects += self._seek_office(now)
        elif regained and self._phase is Phase.IN_OFFICE:
            self._liveness.restart(now, self._connected_at)
        return effects + self._decide(now)

    def on_connection(self, connected: bool, now: float) -> list[Effect]:
        """The NATS connection that probes use was lost or made."""
        self._connected_at = now if connected else inf
        self._liveness.on_connection(connected, now)
        if self._founding is not None:
            self._founding.on_connection()
        return [*self._go_on_founding(now), *self._decide(now)]

    def on_own_question(self, now: float) -> list[Effect]:
        """The question of this broker to all others was delivered to itself, too."""
        if self._founding is not None:
            self._founding.on_own_question(now)
        return self._go_on_founding(now)

    def on_claim(self, claim: Claim, now: float) -> list[Effect]:
        """Another broker told to which cluster it belongs, or that it is about to found one."""
        if self._founding is not None:
            self._founding.on_claim(claim, now)
        return self._go_on_founding(now)

    def on_applied(self, changes: Changes, now: float) -> list[Effect]:
        """The state has changed."""
        if changes.office and self._phase is Phase.IN_OFFICE and not self._holds(self._office):
            effects = [*self._stand_by(), *self._seek_office(now)]
            return effects + self._decide(now)
        if self._founding is not None and self._state.cluster_id:
            # The group had a cluster already, or has been given one by this controller.
            self._founding = None
            if self._phase is Phase.TAKING_OFFICE and self._office_ticket is None:
                return self._seek_office(now)
        if self._phase is not Phase.IN_OFFICE:
            return []
        for key in (*changes.partitions, *changes.gone):
            partition = self._state.partition(key)
            suspicion = self._suspicions.get(key)
            if suspicion is not None and (partition is None or partition.leader_epoch != suspicion.leader_epoch):
                del self._suspicions[key]
            self._electing.pop(key, None)
        return self._decide(now)

    def on_outcome(self, ticket: int, outcome: Outcome | None, now: float) -> list[Effect]:
        """A proposal ended; None: nobody knows how."""
        if ticket != self._office_ticket:
            return []
        self._office_ticket = None
        if self._phase is not Phase.TAKING_OFFICE:
            return []
        if outcome is not None and outcome.code is None and self._holds(outcome.value):
            self._phase = Phase.IN_OFFICE
            self._founding = None
            self._office = outcome.value
            self._liveness.restart(now, self._connected_at)
            self._handed_over = False
            return [
                Note(f"took office {self._office} as controller"),
                OpenOffice(self._office),
                *self._decide(now),
            ]
        if outcome is not None and outcome.code is Code.NOT_CONTROLLER:
            # An office was applied that was not known here when this one was asked for. It is now.
            return self._seek_office(now)
        if outcome is not None and outcome.code is not None and self._founding is not None:
            taken_by = self._founding.taken_by
            if taken_by is not None and not self._state.cluster_id:
                # The group has answered, too: it has no cluster that the claim could have been of.
                self._office_retry_at = inf
                return [RefuseToFound(self._namespace_taken(taken_by))]
        self._office_retry_at = now + self._settings.retry_interval_s
        return []

    def on_peer_lost(self, broker: BrokerId, now: float) -> list[Effect]:
        """The Raft connection with that broker has closed."""
        self._liveness.suspect(broker, now)
        return self._decide(now)

    def on_raft_peers(self, connected: Collection[BrokerId]) -> None:
        """Voters with a live Raft connection. To be said before what may bury them: peer lost, no responders, tick."""
        self._liveness.on_raft_peers(connected)

    def on_probe_answer(
        self, broker: BrokerId, number: int, generation: Generation, now: float, *, vouches: bool = False
    ) -> list[Effect]:
        """`vouches`: see `Liveness.on_answer`."""
        self._liveness.on_answer(broker, number, generation, now, vouches=vouches)
        return [*self._count_witnesses(now), *self._decide(now)]

    def on_no_responders(self, broker: BrokerId, number: int, now: float) -> list[Effect]:
        self._liveness.on_no_responders(broker, number, now)
        return [*self._count_witnesses(now), *self._decide(now)]

    def on_hand_over_refused(self, now: float) -> list[Effect]:
        """Nobody can take over. So this controller goes on like a new one, which believes its probes in the end: else
        a standalone voter would never bury most of its observers."""
        if self._phase is Phase.IN_OFFICE:
            self._liveness.restart(now, self._connected_at)
        return self._decide(now)

    def on_reports(self, reports: Iterable[LeaderReport], now: float) -> list[Effect]:
        """A follower suspects its leaders. A failed broker's partitions come in their thousands: only theirs are
        counted."""
        suspected = [report.key for report in reports if self._suspect(report, now)]
        return [*self._count_witnesses(now, suspected), *self._decide(now)]

    def _suspect(self, report: LeaderReport, now: float) -> bool:
        """Whether the report counts."""
        partition = self._state.partition(report.key)
        if (
            self._phase is not Phase.IN_OFFICE
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
        return True

    def tick(self, now: float) -> list[Effect]:
        """To be called at `next_deadline`, and at any other time."""
        if self._phase is Phase.TAKING_OFFICE and self._office_ticket is None and now >= self._office_retry_at:
            return self._seek_office(now)
        if self._phase is Phase.TAKING_OFFICE:
            return self._go_on_founding(now)
        return [*self._count_witnesses(now), *self._decide(now)]

    def next_deadline(self) -> float:
        if self._phase is Phase.TAKING_OFFICE:
            searches = self._founding is not None and self._connected_at < inf
            search_at = self._founding.next_deadline() if self._founding is not None and searches else inf
            return min(search_at, self._office_retry_at if self._office_ticket is None else inf)
        if self._phase is Phase.IN_OFFICE and self._has_quorum:
            return self._liveness.next_deadline()
        return inf

    # ---- requests --------------------------------------------------------------------------------------------------

    def newest_answer(self, broker: BrokerId) -> int:
        """The newest probe that this broker has answered, by what has arrived; 0: none in this office."""
        return self._liveness.newest_answer(broker)

    def live_brokers(self) -> list[BrokerId]:
        """Alive by the state, and listening as far as the last probes tell."""
        return [
            broker
            for broker, known in sorted(self._state.brokers.items())
            if known.alive and not self._liveness.is_refused(broker)
        ]

    def create_stream(
        self,
        name: str,
        subject: str,
        partitions: int,
        replication_factor: int | None,
        config: Mapping[str, str],
        *,
        voters: int = 1,
    ) -> pb.Command:
        """The command that creates it. `replication_factor` None: DEFAULT_REPLICAS, or all brokers of a smaller
        cluster: those that have ever registered, and at least as many as the metadata group has `voters`, some of which
        may still be on their way.

        Raises TidelogError: NOT_CONTROLLER, BAD_NAME, BAD_SUBJECT, BAD_CONFIG, BAD_REPLICATION_FACTOR;
        NOT_ENOUGH_BROKERS while some of the cluster's brokers do not live yet, or any more.
        """
        self._require_office()
        check_stream_name(name)
        check_subject(subject, self._namespace)
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise TidelogError(Code.BAD_CONFIG, f"partitions={partitions} is outside 1 to {MAX_PARTITIONS}")
        factor = replication_factor
        if factor is None:
            factor = min(DEFAULT_REPLICAS, len(self._state.brokers) + self._unregistered(voters))
        if not 1 <= factor <= MAX_REPLICAS:
            raise TidelogError(
                Code.BAD_REPLICATION_FACTOR, f"replication_factor={factor} is outside 1 to {MAX_REPLICAS}"
            )
        wanted = stream_settings.with_defaults(config, self._state.defaults)
        StreamConfig.from_strings(wanted).check(factor)
        live = self.live_brokers()
        self._check_enough(factor, live, voters)
        live = self.relief.with_room(live, factor)
        placements = place(self._state, live, partitions=partitions, replication_factor=factor, chance=self._chance)
        index = {broker: place_of for place_of, broker in enumerate(live)}
        return pb.Command(
            create_stream=pb.CreateStream(
                office=self._office,
                name=name,
                subject=subject,
                config=dict(config),
                replication_factor=factor,
                brokers=live,
                assignments=[
                    pb.Assignment(
                        replicas=[index[replica] for replica in placement.replicas], leader=index[placement.leader]
                    )
                    for placement in placements
                ],
            )
        )

    def _unregistered(self, voters: int) -> int:
        """How many of the metadata group's `voters` have never registered, and may be on their way."""
        return max(0, voters - sum(bool(broker.raft_address) for broker in self._state.brokers.values()))

    def _check_enough(self, factor: int, live: Sequence[BrokerId], voters: int) -> None:
        """Raises TidelogError where `factor` live brokers are not there: NOT_ENOUGH_BROKERS when they may come yet."""
        if factor <= len(live):
            return
        text = (
            f"replication_factor={factor} is above the number of live brokers, {len(live)}"
            f" ({', '.join(live) or 'none'})"
        )
        dead = sorted(set(self._state.brokers).difference(live))
        unregistered = self._unregistered(voters)
        if factor > len(live) + len(dead) + unregistered:
            raise TidelogError(
                Code.BAD_REPLICATION_FACTOR, f"{text}; start more brokers or ask for {len(live)} at most"
            )
        missing = [f"{', '.join(dead)} {'is' if len(dead) == 1 else 'are'} dead"] if dead else []
        if unregistered:
            missing.append(
                f"{unregistered} of {voters} voters {'has' if unregistered == 1 else 'have'} not started yet"
            )
        raise TidelogError(
            Code.NOT_ENOUGH_BROKERS,
            f"{text}: {' and '.join(missing)}; start what is missing, or ask for {len(live)} at most",
        )

    def delete_stream(self, name: str) -> pb.Command:
        """Raises TidelogError: NOT_CONTROLLER, UNKNOWN_STREAM."""
        self._require_office()
        stream = self._state.streams.get(StreamName(name))
        if stream is None:
            raise unknown_stream(name)
        return pb.Command(delete_stream=pb.DeleteStream(office=self._office, name=name, incarnation=stream.incarnation))

    def alter_stream(self, name: str, changes: Mapping[str, str], unset: Sequence[str]) -> pb.Command:
        """Other settings for a living stream. Raises TidelogError: NOT_CONTROLLER, UNKNOWN_STREAM, BAD_REQUEST,
        BAD_CONFIG."""
        self._require_office()
        stream = self._state.streams.get(StreamName(name))
        if stream is None:
            raise unknown_stream(name)
        if not changes and not unset:
            raise TidelogError(Code.BAD_REQUEST, f"nothing is to be changed of stream {name}; name a setting")
        stream_settings.altered(
            stream.config,
            changes=changes,
            unset=unset,
            defaults=self._state.defaults,
            replication_factor=stream.replication_factor,
        )
        return pb.Command(
            alter_stream=pb.AlterStream(
                office=self._office, name=name, incarnation=stream.incarnation, set=dict(changes), unset=unset
            )
        )

    def alter_cluster(self, changes: Mapping[str, str], unset: Sequence[str]) -> pb.Command:
        """Other defaults for new streams. Raises TidelogError: NOT_CONTROLLER, BAD_REQUEST, BAD_CONFIG."""
        self._require_office()
        if not changes and not unset:
            raise TidelogError(Code.BAD_REQUEST, "nothing is to be changed of the cluster's defaults; name a setting")
        stream_settings.altered_defaults(self._state.defaults, changes=changes, unset=unset)
        return pb.Command(alter_cluster=pb.AlterCluster(office=self._office, set=dict(changes), unset=unset))

    def plan_move(self, name: str, partition: int, target: BrokerId) -> LeaderMove:
        """What is to be asked of the leader, so that `target` can lead in its place.

        Raises TidelogError: NOT_CONTROLLER, UNKNOWN_STREAM, BAD_REQUEST.
        """
        key, known = self._find(name, partition)
        if target not in known.replicas:
            wrong = f"{target} holds no replica of {key}; its replicas are {', '.join(known.replicas)}"
        elif known.leader is None:
            wrong = f"nobody leads {key}: start a broker of its ISR, {', '.join(known.isr)}"
        elif known.leader == target:
            wrong = f"{target} leads {key} already"
        elif target not in self.live_brokers():
            wrong = f"{target} is not alive; start it, and let it catch up"
        elif target not in known.isr:
            wrong = f"{target} is not in the ISR of {key}, {', '.join(known.isr)}; wait until it has caught up"
        elif known.is_withdrawn(target):
            wrong = f"the replica of {key} on {target} is unsound; repair its disk and restart it"
        else:
            return LeaderMove(key=key, leader=known.leader, leader_epoch=known.leader_epoch, target=target)
        raise TidelogError(Code.BAD_REQUEST, wrong)

    def carry_out(self, move: LeaderMove) -> pb.Command:
        """The election that makes the target of a move the leader. Raises TidelogError: NOT_CONTROLLER."""
        self._require_office()
        item = pb.Election(partition=ref_of(move.key), leader_epoch=move.leader_epoch, target=move.target)
        item.planned = not move.drops_leader
        return pb.Command(elect_leaders=pb.ElectLeaders(office=self._office, items=[item]))

    def unclean_elect(self, name: str, partition: int, broker: BrokerId) -> pb.Command:
        """Raises TidelogError: NOT_CONTROLLER, UNKNOWN_STREAM, BAD_REQUEST."""
        key, known = self._find(name, partition)
        wrong = why_not_unclean(self._state, key, known, broker)
        if wrong is not None:
            raise TidelogError(Code.BAD_REQUEST, wrong)
        return pb.Command(
            unclean_elect=pb.UncleanElect(
                office=self._office, partition=ref_of(key), leader_epoch=known.leader_epoch, broker=broker
            )
        )

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _require_office(self) -> None:
        if self._phase is not Phase.IN_OFFICE:
            raise TidelogError(Code.NOT_CONTROLLER, f"broker {self._id} is not the controller now; ask again")

    def _find(self, name: str, number: int) -> tuple[PartitionKey, Partition]:
        """For an operator's request. Raises TidelogError: NOT_CONTROLLER, UNKNOWN_STREAM, BAD_REQUEST."""
        self._require_office()
        stream = self._state.streams.get(StreamName(name))
        if stream is None:
            raise unknown_stream(name)
        partition = stream.partitions.get(number)
        if partition is None:
            raise TidelogError(
                Code.BAD_REQUEST, f"stream {name} has partitions 0 to {len(stream.partitions) - 1}, not {number}"
            )
        return stream.key(number), partition

    def _holds(self, office: int) -> bool:
        state = self._state
        return state.office == office and state.controller == self._id and state.controller_life_id == self._life_id

    def _propose(self, command: pb.Command) -> Propose:
        self._ticket += 1
        return Propose(command, self._ticket)

    def _stand_by(self) -> list[Effect]:
        was = self._phase
        self._phase = Phase.STANDBY
        self._office_ticket = None
        self._founding = None
        self._suspicions.clear()
        self._electing.clear()
        self._burying.clear()
        self._cut_off.clear()
        self.relief.clear()
        if was is not Phase.IN_OFFICE:
            return []
        return [Note(f"left office {self._office}"), CloseOffice()]

    def _seek_office(self, now: float) -> list[Effect]:
        if not self._leads:
            return []
        self._phase = Phase.TAKING_OFFICE
        if not self._state.cluster_id:
            if self._founding is None:
                self._founding = Founding(self._new_cluster_id, self._settings.founding_wait_s)
            if not self._founding.is_over:
                self._office_retry_at = inf
                return self._go_on_founding(now)
        self._office_retry_at = now + DECISION_RETRY_S
        founds = self._founding is None or self._founding.taken_by is None
        proposal = self._propose(
            pb.Command(
                take_office=pb.TakeOffice(
                    controller=self._id,
                    life_id=self._life_id,
                    expected_office=self._state.office,
                    # Without an id no cluster is founded: the group says whether it has one that is not known here yet.
                    cluster_id=self._new_cluster_id if founds else "",
                )
            )
        )
        self._office_ticket = proposal.ticket
        return [proposal]

    def _go_on_founding(self, now: float) -> list[Effect]:
        """While it searches: ask, or take office when the search is over."""
        founding = self._founding
        if founding is None or self._office_ticket is not None or self._office_retry_at < inf:
            return []
        asks = self._connected_at < inf and founding.tick(now)
        if founding.is_over:
            return self._seek_office(now)
        return [AskForClusters()] if asks else []

    def _namespace_taken(self, claim: Claim) -> TidelogError:
        return TidelogError(
            Code.BAD_CONFIG,
            f"broker {self._id} founds no cluster: cluster {claim.cluster_id} (broker {claim.broker}) lives in"
            f" namespace {self._namespace!r} of this NATS system already; to join it give its voters with --raft-peer"
            " ID=HOST:PORT (raft_peers) and its --raft-secret-file, for a cluster beside it choose another --namespace",
        )

    def _decide(self, now: float) -> list[Effect]:
        """Whatever is due: probes, burials, elections."""
        if self._phase is not Phase.IN_OFFICE or not self._has_quorum:
            return []
        orders = self._liveness.tick(now, self._state.brokers, self._state.generation)
        effects: list[Effect] = [
            SendProbe(order.broker, order.number, order.answered, self._office) for order in orders
        ]
        verdict = self._liveness.verdict(now)
        if verdict.hand_over:
            if not self._handed_over:
                self._handed_over = True
                effects += [Note("cut off from most brokers; the office should pass to another voter"), HandOver()]
            return effects
        self._handed_over = False
        effects += self._bury(verdict.dead, now)
        for broker in verdict.behind:
            effects += self._elect(
                [(key, part) for key, part in self._state.partitions() if part.leader == broker],
                now,
                f"broker {broker} lags behind the metadata by more than its lease",
            )
        effects += self._relieve(verdict.cut_off, now)
        return effects

    def _relieve(self, cut_off: tuple[BrokerId, ...], now: float) -> list[Effect]:
        """What they lead moves to whoever can lead it: an eligible replica, where no other ISR member can report."""
        known, self._cut_off = self._cut_off, {}
        effects: list[Effect] = []
        for broker in cut_off:
            self._cut_off[broker] = known.get(broker, -inf)
            if broker not in known:
                effects.append(
                    Note(
                        f"broker {broker} takes part in the metadata group, but nobody hears it over NATS; check its"
                        " connection to the NATS server"
                    )
                )
            if self._cut_off[broker] <= now:
                self._cut_off[broker] = now + DECISION_RETRY_S
                effects += self._elect(
                    [(key, part) for key, part in self._state.partitions() if part.leader == broker],
                    now,
                    f"broker {broker} is cut off from NATS",
                )
        return effects

    def _bury(self, dead: tuple[tuple[BrokerId, Incarnation], ...], now: float) -> list[Effect]:
        due = [life for life in dead if self._burying.get(life, -inf) <= now]
        self._burying = {life: until for life, until in self._burying.items() if life in dead}
        if not due:
            return []
        for life in due:
            self._burying[life] = now + DECISION_RETRY_S
        command = pb.Command(
            brokers_dead=pb.BrokersDead(
                office=self._office,
                brokers=[pb.BrokerLife(broker=broker, incarnation=incarnation) for broker, incarnation in due],
            )
        )
        names = ", ".join(f"{broker} (incarnation {incarnation})" for broker, incarnation in due)
        return [Note(f"dead: {names}"), self._propose(command)]

    def _count_witnesses(self, now: float, keys: Collection[PartitionKey] | None = None) -> list[Effect]:
        """Elect where the leader's probe, or enough witnesses, say so. `keys`: look only at these suspicions."""
        if self._phase is not Phase.IN_OFFICE:
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
            # The state may be ahead of what `on_applied` has told of.
            if partition is None or partition.leader_epoch != suspicion.leader_epoch or not fresh:
                del self._suspicions[key]
                continue
            if self._liveness.is_refused(suspicion.leader) and self._liveness.is_trusted(now):
                refused.append((key, partition))
            elif 2 * len(fresh) > len(partition.isr) - 1 and (
                self._liveness.heard_since(suspicion.leader, suspicion.asked_at)
                or now - suspicion.asked_at >= self._settings.probe_timeout_s
            ):
                outvoted.append((key, partition))
        return [
            *self._elect(refused, now, "nobody listens where the leader should"),
            *self._elect(outvoted, now, "most of the ISR report the leader"),
        ]

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
                        elect_leaders=pb.ElectLeaders(office=self._office, items=items[first : first + MAX_ELECTIONS])
                    )
                )
                for first in range(0, len(items), MAX_ELECTIONS)
            ),
        ]


def unknown_stream(name: str) -> TidelogError:
    return TidelogError(
        Code.UNKNOWN_STREAM, f"stream {name!r} does not exist; `tidelog stream list` shows those that do"
    )
