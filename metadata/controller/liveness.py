"""Which brokers are alive, by the controller's probes.

Probes go over NATS to each live broker every `heartbeat_interval`, and to the controller itself: their results for
others count only while the controller's own come back. A broker is

- answered  it answered lately;
- refused   NATS answered that no process listens on its probe subject (503). Asked again `probe_confirm_delay` later.
            Anybody who sees a probe can say that, so it proves nothing alone; an answer to the same probe counts more;
- gone      refused, and its Raft connection has closed since its last answer, or it has answered nothing for
            `probe_timeout` since it was asked, and the controller has read all messages until it was refused;
- fallen    gone, and refused twice in a row with the controller's own probe answered after the first; or silent for
            `broker_silence_timeout`; and it has no live Raft connection with the controller.

A fallen broker is dead, unless the fault may be the controller's own: its connection is not settled, its own probes do
not come back, its process stood still, or less than half of the live brokers answered since (as when the NATS server
restarts and all fall at once). In the last case it waits; brokers that had answered in this controller epoch make it
hand the leadership of the Raft group over after `broker_silence_timeout`; when even a controller that never had an
answer of them sees them fallen for twice that time while its own probes come back, they are dead. A controller that has
had no connection, or no answer of itself, for `broker_silence_timeout` hands it over too.

A voter that keeps its Raft connection and has not answered for `leader_lease` is not dead, but cut off from NATS: it
can serve no client, and its lease has ended.

A connection is settled when it is `liveness_grace` old: after a restart of the NATS server others may come back later
than this controller, and a refusal proves nothing until they had the time. A controller that has just been started need
not wait where another broker vouches: it answers a probe over a connection that has lasted for `liveness_grace`, with
the same process of the NATS server. That process has not restarted lately, and live brokers are connected with it. A
controller that has been reconnected waits: the fault that cut it off may have cut off others.

Pure: the caller sends the probes, and passes their results and the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf

from metadata.cluster.model import Broker
from metadata.controller.metadata_settings import MetadataSettings
from wire.types import ALL_TAKEN_UP, BrokerId, Generation, Incarnation, RoleProgress

ROLES_PATIENCE_S = 3.0
"""A broker that has roles to take up, and has ended no step towards any of them for so long, does not go on: one step
takes milliseconds. That another one goes on says nothing about a certain partition."""
MAX_OUTSTANDING = 4096
"""Probes without an answer that are remembered; the oldest are forgotten, which counts as silence."""


@dataclass(frozen=True, slots=True)
class ProbeOrder:
    """Send this probe now."""

    broker: BrokerId
    number: int
    answered: int
    """The newest probe of this broker's incarnation whose answer has come; 0: none yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    dead: tuple[tuple[BrokerId, Incarnation], ...] = ()
    behind: tuple[BrokerId, ...] = ()
    """Brokers that answer, but have not applied state that is `leader_lease` old."""
    cut_off: tuple[BrokerId, ...] = ()
    """Voters whose Raft connection stands, but that have answered no probe for `leader_lease`."""
    hand_over: bool = False
    """The fault is probably this controller's own."""


@dataclass(slots=True)
class _Watch:
    """The facts known of one incarnation of one broker."""

    incarnation: Incarnation
    since: float
    heard_at: float = -inf
    asked_at: float = inf
    """When the first probe after its last answer was sent; inf: none was."""
    answered: int = 0
    """Number of the newest probe that was answered."""
    generation: Generation | None = None
    begun: Generation | None = None
    roles: RoleProgress = ALL_TAKEN_UP
    roles_went_on_at: float = -inf
    """When its newest answer came whose count of ended steps differs from that of the answer before, or before which it
    had no role to take up."""
    refused_at: float | None = None
    """First refusal since its last answer."""
    confirmed: bool = False
    """Refused again, by a probe sent at least the delay later."""
    probe_at: float = -inf
    """When the next probe is due."""
    suspected_at: float = -inf


class Liveness:
    """The probes' results by broker, and the verdicts. `restart` begins a new controller epoch."""

    def __init__(self, broker_id: BrokerId, settings: MetadataSettings) -> None:
        self._self = broker_id
        self._settings = settings
        self._watches: dict[BrokerId, _Watch] = {}
        self._outstanding: dict[int, tuple[BrokerId, float]] = {}
        self._number = 0
        self._raft_peers: Collection[BrokerId] = ()
        self._raft_lost_at: dict[BrokerId, float] = {}
        """When the Raft connection with that broker closed, while there is no other and no later probe is answered."""
        self._began_at = -inf
        self._connected_at = inf
        self._connection_changed_at = -inf
        self._is_first_connection = True
        self._vouched = False
        """Another broker has reported that this connection's NATS server has not restarted lately."""
        self._own_heard_at = -inf
        self._own_sent_heard = -inf
        self._own_probe_at = -inf
        self._trusted_since = inf
        self._last_tick = -inf
        self._mass_since: float | None = None
        self._generations: deque[tuple[float, Generation]] = deque()

    def restart(self, now: float, connected_at: float) -> None:
        """Forget everything: a new controller epoch, or a Raft majority was regained. `connected_at`: inf = not
        connected."""
        self._watches.clear()
        self._outstanding.clear()
        self._began_at = now
        self._connected_at = connected_at
        self._own_heard_at = -inf
        self._own_sent_heard = -inf
        self._own_probe_at = -inf
        self._trusted_since = inf
        self._last_tick = now
        self._mass_since = None
        self._generations.clear()

    # ---- events ----------------------------------------------------------------------------------------------------

    def on_connection(self, connected: bool, now: float) -> None:
        self._is_first_connection = self._is_first_connection and connected
        self._vouched = False
        self._connected_at = now if connected else inf
        self._connection_changed_at = now
        self._trusted_since = inf
        self._own_probe_at = now
        self._mass_since = None
        self._outstanding.clear()
        for watch in self._watches.values():
            watch.refused_at, watch.confirmed, watch.probe_at, watch.asked_at = None, False, now, inf

    def on_raft_peers(self, connected: Collection[BrokerId]) -> None:
        """The voters with a live Raft connection: pings keep it, a second of silence or a killed process closes it."""
        self._raft_peers = connected
        for broker in [*self._raft_lost_at]:
            if broker in connected:
                del self._raft_lost_at[broker]

    def on_peer_lost(self, broker: BrokerId, now: float) -> None:
        """The Raft connection with it has closed: its process or the network ended it."""
        self._raft_lost_at[broker] = now
        self.suspect(broker, now)

    def suspect(self, broker: BrokerId, now: float) -> None:
        """Probe it at once, and again every `probe_confirm_delay` until something comes back, for a heartbeat: a probe
        that NATS hands to a process that has just been killed is neither answered nor refused."""
        watch = self._watches.get(broker)
        if watch is not None and watch.refused_at is None:
            watch.suspected_at = now
            watch.probe_at = now

    def on_answer(
        self,
        broker: BrokerId,
        number: int,
        generation: Generation,
        now: float,
        *,
        begun: Generation | None = None,
        vouches: bool = False,
        roles: RoleProgress = ALL_TAKEN_UP,
    ) -> None:
        """`generation`: applied there. `begun`: the generation up to which its roles have taken up and given up their
        leaderships; None: the same. `vouches`: it has been connected for `liveness_grace`, with the same server as this
        controller. `roles`: how far it is with roles that it has to take up."""
        sent = self._outstanding.pop(number, None)
        if sent is None or sent[0] != broker:
            return
        if broker == self._self:
            if self._trusted_since == inf:
                self._trusted_since = now
            self._own_heard_at = now
            self._own_sent_heard = max(self._own_sent_heard, sent[1])
        elif vouches and self._is_first_connection:
            self._vouched = True
        if sent[1] > self._raft_lost_at.get(broker, inf):
            del self._raft_lost_at[broker]  # its process runs
        watch = self._watches.get(broker)
        if watch is None or number < watch.answered:
            return
        watch.heard_at, watch.answered, watch.generation, watch.asked_at = now, number, generation, inf
        watch.begun = generation if begun is None else begun
        watch.refused_at, watch.confirmed = None, False
        if not watch.roles.pending or roles.done != watch.roles.done:
            watch.roles_went_on_at = now
        watch.roles = roles

    def on_no_responders(self, broker: BrokerId, number: int, now: float) -> None:
        sent = self._outstanding.get(number)  # kept: an answer to it may still come, and counts more
        watch = self._watches.get(broker)
        if sent is None or sent[0] != broker or watch is None or number < watch.answered or broker == self._self:
            return
        if watch.refused_at is None:
            watch.refused_at = now
            # All are asked again: whether others stand decides whether this one has fallen.
            again = now + self._settings.probe_confirm_delay_s
            self._own_probe_at = min(self._own_probe_at, again)
            for other in self._watches.values():
                other.probe_at = min(other.probe_at, again)
            watch.probe_at = again
        elif sent[1] >= watch.refused_at + self._settings.probe_confirm_delay_s:
            watch.confirmed = True

    # ---- decisions -------------------------------------------------------------------------------------------------

    def tick(self, now: float, brokers: Mapping[BrokerId, Broker], generation: Generation) -> list[ProbeOrder]:
        """Returns the probes that are due. `brokers`: as registered; `generation`: of the state applied here."""
        settings = self._settings
        if now - self._last_tick > 5 * settings.heartbeat_interval_s:
            # This process stood still: answers may lie unread, silence proves nothing.
            self._trusted_since = inf
        self._last_tick = now
        if now - self._own_heard_at > 3 * settings.heartbeat_interval_s:
            self._trusted_since = inf
        self._follow(brokers, now)
        self._remember(generation, now)
        if self._connected_at == inf:
            return []
        orders = []
        due = [broker for broker, watch in self._watches.items() if watch.probe_at <= now and broker != self._self]
        if due or self._own_probe_at <= now:
            # No round without the probe that proves it.
            self._own_probe_at = now + settings.heartbeat_interval_s
            orders.append(self._order(self._self, now))
        for broker in due:
            watch = self._watches[broker]
            hurry = watch.heard_at < watch.suspected_at and now < watch.suspected_at + settings.heartbeat_interval_s
            watch.probe_at = now + (settings.probe_confirm_delay_s if hurry else settings.heartbeat_interval_s)
            watch.asked_at = min(watch.asked_at, now)
            orders.append(self._order(broker, now))
        return orders

    def next_deadline(self) -> float:
        """When `tick` has something to do, or `verdict` may change."""
        if self._connected_at == inf:
            return self._last_tick + self._settings.heartbeat_interval_s
        return min(
            [self._own_probe_at, *(watch.probe_at for broker, watch in self._watches.items() if broker != self._self)]
        )

    # Keeps R25.
    def is_trusted(self, now: float) -> bool:
        """Whether the results of probes are believed now: a settled connection, and own probes come back."""
        return (
            (self._vouched or now >= self._connected_at + self._settings.liveness_grace_s)
            and now >= self._trusted_since
            and now - self._own_heard_at <= 3 * self._settings.heartbeat_interval_s
        )

    def is_refused(self, broker: BrokerId) -> bool:
        watch = self._watches.get(broker)
        return watch is not None and watch.refused_at is not None

    # Keeps R42.
    def is_gone(self, broker: BrokerId, now: float) -> bool:
        """Whether it was refused, and a fact other than the 503 confirms it."""
        watch = self._watches.get(broker)
        if watch is None or watch.refused_at is None:
            return False
        if broker in self._raft_lost_at:
            return True
        # A controller that stood still has not asked, or has answers to read.
        unanswered = now - max(watch.asked_at, watch.since, self._trusted_since)
        return unanswered >= self._settings.probe_timeout_s and self._own_sent_heard >= watch.refused_at

    def newest_answer(self, broker: BrokerId) -> int:
        """The number of the newest probe that was answered; 0: none."""
        watch = self._watches.get(broker)
        return 0 if watch is None else watch.answered

    def begun_generation(self, broker: BrokerId) -> Generation | None:
        """The generation up to which that broker has taken up its leaderships, by its newest answer in this controller
        epoch; None: no answer."""
        watch = self._watches.get(broker)
        return watch.begun if watch is not None else None

    def takes_up_roles(self, broker: BrokerId, now: float) -> bool:
        """Whether it has roles to take up, and has gone on with that within ROLES_PATIENCE_S, by its answers."""
        watch = self._watches.get(broker)
        return watch is not None and watch.roles.pending > 0 and now - watch.roles_went_on_at < ROLES_PATIENCE_S

    def roles(self, broker: BrokerId) -> RoleProgress:
        """By its newest answer in this controller epoch."""
        watch = self._watches.get(broker)
        return ALL_TAKEN_UP if watch is None else watch.roles

    def heard_since(self, broker: BrokerId, time: float) -> bool:
        watch = self._watches.get(broker)
        return watch is not None and watch.heard_at >= time

    # R25: The controller proves a death to itself. A broker is dead when a probe was refused twice (503) at least 10
    # ms apart and it is gone (R42), or when it was silent for `broker_silence_timeout_s`, and in both cases has no
    # live Raft connection. A verdict counts only if the controller's own probe came back since, its connection is
    # settled, its process did not stand still, it hears a Raft majority, and at least half of the live brokers were
    # heard since. Otherwise the controller suspects itself.
    # Hazard: A restart of NATS that is taken for the death of all brokers.
    def verdict(self, now: float) -> Verdict:
        """Returns the brokers to declare dead by now. The verdict stays the same until an event changes it."""
        if not self.is_trusted(now):
            return Verdict(hand_over=self._deaf(now))
        fallen = [broker for broker in sorted(self._watches) if self._fallen(broker, now)]
        behind = tuple(broker for broker in sorted(self._watches) if broker not in fallen and self._behind(broker, now))
        if all(self._most_stand(broker, now) for broker in fallen):
            self._mass_since = None
            cut_off = tuple(broker for broker in sorted(self._watches) if self._cut_off(broker, now))
            return Verdict(dead=self._lives(fallen), behind=behind, cut_off=cut_off)
        if self._mass_since is None:
            self._mass_since = now
        lasted = now - self._mass_since
        patience = self._settings.broker_silence_timeout_s
        if any(self._watches[broker].heard_at > -inf for broker in fallen):
            return Verdict(hand_over=lasted >= patience)
        return Verdict(dead=self._lives(fallen) if lasted >= 2 * patience else ())

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _order(self, broker: BrokerId, now: float) -> ProbeOrder:
        self._number += 1
        self._outstanding[self._number] = (broker, now)
        if len(self._outstanding) > MAX_OUTSTANDING:
            del self._outstanding[next(iter(self._outstanding))]
        return ProbeOrder(broker, self._number, self.newest_answer(broker))

    def _follow(self, brokers: Mapping[BrokerId, Broker], now: float) -> None:
        for broker in [*self._watches]:
            known = brokers.get(broker)
            if known is None or not known.alive or known.incarnation != self._watches[broker].incarnation:
                del self._watches[broker]
        for broker, known in sorted(brokers.items()):
            if known.alive and broker not in self._watches:
                self._watches[broker] = _Watch(known.incarnation, now)

    def _remember(self, generation: Generation, now: float) -> None:
        if not self._generations or self._generations[-1][1] != generation:
            self._generations.append((now, generation))
        while len(self._generations) > 1 and self._generations[1][0] <= now - self._settings.leader_lease_s:
            self._generations.popleft()

    def _behind(self, broker: BrokerId, now: float) -> bool:
        watch = self._watches[broker]
        then, generation = self._generations[0]
        old_enough = then <= now - self._settings.leader_lease_s
        return old_enough and watch.generation is not None and watch.generation < generation

    def _fallen(self, broker: BrokerId, now: float) -> bool:
        watch = self._watches[broker]
        if broker == self._self or broker in self._raft_peers:
            return False
        if watch.confirmed and watch.refused_at is not None and self.is_gone(broker, now):
            return self._own_sent_heard >= watch.refused_at
        return self._silent_for(watch, now) >= self._settings.broker_silence_timeout_s

    def _cut_off(self, broker: BrokerId, now: float) -> bool:
        return (
            broker != self._self
            and broker in self._raft_peers
            and self._silent_for(self._watches[broker], now) >= self._settings.leader_lease_s
            and self._most_stand(broker, now)
        )

    def _silent_for(self, watch: _Watch, now: float) -> float:
        """Seconds without an answer, of the time in which results of probes were believed."""
        return now - max(watch.heard_at, watch.since, self._trusted_since)

    def _most_stand(self, fallen: BrokerId, now: float) -> bool:
        """Whether at least half of the live brokers, this one included, answered since `fallen` did not."""
        refused_at = self._watches[fallen].refused_at
        since = now - 3 * self._settings.heartbeat_interval_s if refused_at is None else refused_at
        heard = [broker for broker, watch in self._watches.items() if watch.heard_at >= since]
        return 2 * len(heard) >= len(self._watches)

    def _deaf(self, now: float) -> bool:
        """There has been no connection for long, or one that seems up and brings no own probes back."""
        since = max(self._own_heard_at, self._connection_changed_at, self._began_at)
        return now - since >= self._settings.broker_silence_timeout_s

    def _lives(self, brokers: list[BrokerId]) -> tuple[tuple[BrokerId, Incarnation], ...]:
        return tuple((broker, self._watches[broker].incarnation) for broker in brokers)
