"""The metadata plane of one broker, on an event loop: the drivers of this package, composed.

Every broker: applies the group's commands, registers its incarnation (again whenever it finds itself declared dead),
answers probes, hands changed partitions to the data plane, and carries the data plane's requests to the controller.
Requests are repeated until applied state settles them; nothing waits for an answer. Nothing reaches the data plane
before this process's own registration is applied.

The controller also listens for requests of brokers and of the API, and probes all other brokers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from metadata.cluster.model import Changes
from metadata.commands.cluster_state import ClusterState
from metadata.controller.controller import ControllerCore
from metadata.controller.metadata_settings import MetadataSettings
from metadata.raft.types import RaftError, RaftStatus
from metadata.runtime.applied_state import AppliedState, ChangesInTurns, observe_nothing
from metadata.runtime.broker_answers import ControllerRequests
from metadata.runtime.broker_clock import BrokerClock
from metadata.runtime.controller_driver import ControllerDriver
from metadata.runtime.driver_context import Messages, MetadataContext, Tasks
from metadata.runtime.hand_over import HandOver
from metadata.runtime.metadata_ports import BrokerPort, RaftFactory, StateObserver
from metadata.runtime.namespace import Namespace
from metadata.runtime.outbound import OutboundRequests
from metadata.runtime.proposals import Proposals
from metadata.runtime.registration import Registrar, Registration
from metadata.runtime.views import Told, ViewDelivery
from wire.errors import Code, TidelogError
from wire.messaging.transport import PeerTransport, Subscription
from wire.security.cluster_secrets import ClusterSecrets
from wire.security.producer_keys import ProducerKeys
from wire.subjects import Subjects
from wire.types import (
    BrokerId,
    CutoverReport,
    Generation,
    Incarnation,
    IsrChange,
    LeaderReport,
    LossReport,
    PartitionKey,
    PauseChange,
    RetiredReport,
    Withdrawal,
)

_log = logging.getLogger(__name__)

ROOM_RETRY_S = 0.5
"""A registration for which the data folder has no room is recorded after this time, if there is some."""


class MetadataService:
    """The metadata plane of one broker. All methods run on one event loop."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        life_id: str,
        port: BrokerPort,
        make_raft: RaftFactory,
        transport: PeerTransport,
        subjects: Subjects,
        settings: MetadataSettings,
        rng: Random,
        monotonic: Callable[[], float],
        time_ns: Callable[[], int],
        registration: Registration,
        secrets: ClusterSecrets,
        observe: StateObserver = observe_nothing,
    ) -> None:
        """`life_id`: unique to this process. `transport`: to other brokers. `observe`: is called with every change."""
        self.state = ClusterState()
        core = ControllerCore(
            broker_id,
            life_id,
            self.state,
            settings,
            rng,
            namespace=subjects.namespace,
            new_cluster_id=f"{rng.getrandbits(64):016x}",
        )
        self._context = context = MetadataContext(
            broker_id=broker_id,
            life_id=life_id,
            state=self.state,
            core=core,
            port=port,
            transport=transport,
            subjects=subjects,
            settings=settings,
            monotonic=monotonic,
            clock=BrokerClock(broker_id, settings, monotonic, time_ns),
            tasks=Tasks(broker_id),
            messages=Messages(broker_id, transport, monotonic),
            producer_keys=ProducerKeys(secrets, lambda: self.state.cluster_id),
        )
        self._raft = make_raft(
            AppliedState(self.state, self._on_changes, observe),
            self._on_raft_status,
            self._on_peer_lost,
        )
        proposals = Proposals(context, self._raft)
        self._controller = ControllerDriver(
            context, self._raft, proposals, registration.labels, registration.cluster_id
        )
        self.admin = self._controller.admin
        """Handlers of requests of clients and operators; to be called at the controller only."""
        self._outbound = OutboundRequests(context)
        self._registrar = Registrar(context, proposals, registration, self._outbound.withdrawing)
        self._views = ViewDelivery(context)
        self._requests = ControllerRequests(
            context,
            self.namespace,
            registration.labels,
            self._raft_status,
            self._deliver_applied,
            registration.folder,
        )
        self._delivers = False
        """Views are handed over: this process is registered."""
        self._registered = asyncio.Event()
        self._waits_for_room = False
        self._changes = ChangesInTurns()
        self._told = Told(Generation(0), Generation(0))
        self.stream_changes = 0
        """Count of changes that may have created, deleted or repartitioned streams."""
        self._flush_scheduled = False
        self._subscriptions: list[Subscription] = []

    # ---- start and close -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Joins the group; returns before the broker is registered (`wait_registered`). Raises RaftError, and
        TidelogError where another living process has this broker's id."""
        context = self._context
        await self._registrar.check_id_is_free()
        self._subscriptions += await self._requests.subscribe()
        cluster = context.subjects.cluster()
        self._subscriptions.append(await context.transport.subscribe_claims(cluster, self._controller.on_claim))
        presence = context.subjects.presence()
        self._subscriptions.append(await context.transport.subscribe_claims(presence, self.namespace.on_presence))
        self._controller.start()
        await self._raft.start()
        self._registrar.start()
        self._controller.on_raft_status(self._raft.status())

    async def hand_over(self) -> None:
        """Hands the leaderships of this broker over, and what it decides, before it stops. Returns when it may close;
        it may close at any time before that, too."""
        await HandOver(self._context, self._raft).run()

    async def close(self) -> None:
        """Stops everything, the Raft node last. The broker is not reported dead by this; probes will find out."""
        self._context.closed = True
        self._controller.stop()
        self._outbound.close()
        await self._controller.moves.close()
        self._context.tasks.end()
        await self._context.tasks.wait_ended()
        await self._controller.close()
        for subscription in self._subscriptions:
            await subscription.unsubscribe()
        self._subscriptions.clear()
        await self._raft.close()

    # ---- requests of the broker and the data plane -----------------------------------------------------------------

    @property
    def broker_id(self) -> BrokerId:
        return self._context.broker_id

    @property
    def incarnation(self) -> Incarnation | None:
        """The incarnation of this process, once registered; while the broker is declared dead, the one that died."""
        return self._context.incarnation

    @property
    def cluster_id(self) -> str:
        return self.state.cluster_id

    @property
    def is_controller(self) -> bool:
        return self._context.is_controller

    @property
    def controller_epoch(self) -> int:
        """0 while this broker is not the controller."""
        return self._context.core.controller_epoch

    @property
    def namespace(self) -> Namespace:
        return self._controller.namespace

    async def until_applied(self, holds: Callable[[], bool], timeout: float) -> None:
        """Returns when `holds()` of the applied state, or after `timeout` seconds."""
        await self._context.applied.until(holds, timeout)

    async def wait_registered(self) -> None:
        """Returns when this process is registered and its partitions are handed over."""
        await self._registered.wait()

    def lease_valid(self, now: float) -> bool:
        """Whether, within the leader lease, a controller has probed this broker and received its answer."""
        return self._requests.lease_valid(now)

    def time_ns(self) -> int:
        """ns since 1970, for this broker's own dates: its own clock, where that is not known to be off (R72)."""
        return self._context.clock.stamp_ns()

    def common_time_ns(self) -> int:
        """ns since 1970, for dates that another broker judges: the time on which most brokers agree, as last received,
        or this broker's own clock before the first one (R72)."""
        return self._context.clock.common_ns()

    def agreed_time_ns(self) -> int | None:
        """The time by which this broker may forget, ns since 1970: most brokers' clocks and its own agree on it.
        None: it may forget nothing now (R72)."""
        return self._context.clock.time_ns()

    def led_at(self, moment: float) -> bool:
        """Whether a controller has counted on this broker, and on its leaderships, at that moment or later.
        `moment`: monotonic seconds."""
        return self._requests.led_at(moment)

    def next_producer_id(self) -> int:
        """No producer without transactions has been given this id or a higher one, as far as applied here."""
        return self.state.next_producer_id

    @property
    def generation(self) -> Generation:
        """The generation of the cluster state that is applied."""
        return self.state.generation

    @property
    def recovered_at(self) -> Generation:
        """See `Cluster.recovered_at`."""
        return self.state.recovered_at

    def is_of_lost_decisions(self, key: PartitionKey, assigned_at: Generation | None) -> bool:
        """See `Cluster.is_of_lost_decisions`."""
        return self.state.is_of_lost_decisions(key, assigned_at)

    def alter_isr(self, change: IsrChange) -> None:
        """Ask for another ISR. A later request for a partition replaces the one on its way. Views tell how it ended."""
        self._outbound.ask(change)

    def alter_paused(self, change: PauseChange) -> None:
        """Ask that a partition led here be paused, or resumed; as `alter_isr`."""
        self._outbound.ask(change)

    def report_cutover(self, report: CutoverReport) -> None:
        """Tell the controller where the layout before the newest one ends in a partition led here. Repeated until a
        view shows that it is known, or that another leader has to tell."""
        self._outbound.ask(report)

    def report_retired(self, report: RetiredReport) -> None:
        """Tell the controller that a retired partition led here has no records any more; as `alter_isr`."""
        self._outbound.ask(report)

    def report_leader(self, report: LeaderReport) -> None:
        """Reports a leader that seems to have failed. Sent once: a follower repeats it while the failure lasts."""
        self._outbound.report(report)

    def report_loss(self, report: LossReport) -> None:
        """Tell the controller that a leader lacks committed records which this broker holds. Repeated until the
        LeaderEpoch is over."""
        self._outbound.ask(report)

    def withdraw(self, withdrawal: Withdrawal) -> None:
        """Leave the ISR and `eligible` of a partition. Repeated until a view shows that it is done."""
        self._outbound.ask(withdrawal)

    def on_request_refused(self) -> None:
        """The API refused a request."""
        self._context.refused_requests += 1

    def on_request_unqueued(self) -> None:
        """A request to the API found its queue full."""
        self._context.unqueued_requests += 1

    def status(self) -> dict[str, Any]:
        raft = self._raft.status()
        return {
            "id": self.broker_id,
            "incarnation": self.incarnation,
            "cluster_id": self.state.cluster_id,
            "generation": self.state.generation,
            "controller": self.state.controller,
            "phase": self._context.core.phase.value,
            "raft_role": raft.role.value,
            "raft_term": raft.term,
            "raft_applied": raft.applied_index,
            "has_quorum": raft.has_quorum,
            "lease_valid": self.lease_valid(self._context.monotonic()),
            "outbound_requests": len(self._outbound),
            "unclean_elections": self.state.unclean_elections,
        }

    # ---- the Raft node ---------------------------------------------------------------------------------------------

    def _on_raft_status(self, status: RaftStatus) -> None:
        self._controller.on_raft_status(status)

    def _raft_status(self) -> RaftStatus | None:
        try:
            return self._raft.status()
        except RaftError:  # it has not started
            return None

    def why_no_leader(self) -> str:
        """Returns a sentence, as far as the Raft node knows the reason; empty: it knows none."""
        status = self._raft_status()
        return "" if status is None else status.why_no_leader()

    def _on_peer_lost(self, address: str) -> None:
        self._controller.on_peer_lost(address)

    # ---- applied state ---------------------------------------------------------------------------------------------

    def _on_changes(self, changes: Changes) -> None:
        """Called while Raft applies: keeps the changes, to act on them when the loop is free."""
        self._changes.add(changes)
        self.stream_changes += changes.streams or bool(changes.repartitioned)
        self._context.applied.wake()
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        self._deliver_applied()

    def _deliver_applied(self) -> Told:
        """Takes one turn of acting on applied changes; schedules the next one if some are left."""
        context, changes = self._context, self._changes.take()
        if context.closed:
            return self._told
        with self._fatal_if_it_fails():
            self._registrar.check_is_of_this_beginning()
            if context.broker_id in changes.brokers:
                incarnation = self._registrar.on_own_change()
                if incarnation is not None:
                    context.incarnation = incarnation
                    _log.info("broker %s is registered, incarnation %d", context.broker_id, incarnation)
                    self._begin(incarnation)
            if self._delivers:
                self._views.changed((*changes.partitions, *changes.gone))
                self._views.deliver()
                if not self._registered.is_set() and self._views.is_done and not self._changes:
                    context.port.on_all_partitions()
                    self._registered.set()
        if changes:
            self._controller.run(context.core.on_applied(changes, context.monotonic()))
            self._outbound.settle((*changes.partitions, *changes.gone))
        if self._changes or not self._views.is_done:
            self._flush_soon()
        if not self._changes:
            newest, views = self.state.generation, self._views
            self._told = Told(
                newest if views.has_told_leaders else self._told.ended,
                newest if views.has_begun_leaders else self._told.begun,
            )
        return self._told

    def _begin(self, incarnation: Incarnation) -> None:
        """This process is registered as `incarnation`. Where the data folder has no room to record it the broker takes
        no part until it has some."""
        context = self._context
        try:
            context.port.on_registered(self.state.cluster_id, incarnation)
        except TidelogError as error:
            if error.code is not Code.NO_SPACE:
                raise
            if not self._waits_for_room:
                _log.warning("%s: broker %s takes part when there is room", error.message, context.broker_id)
                self._waits_for_room = True
                context.tasks.spawn(self._begin_with_room())
            return
        self._waits_for_room = False
        if not self._delivers:
            self._delivers = True
            self._views.begin()
            self._flush_soon()

    async def _begin_with_room(self) -> None:
        while True:
            await asyncio.sleep(ROOM_RETRY_S)
            if not self._waits_for_room:
                return
            if self._context.incarnation is not None:
                with self._fatal_if_it_fails():
                    self._begin(self._context.incarnation)

    @contextmanager
    def _fatal_if_it_fails(self) -> Iterator[None]:
        """Ends the broker when the block raises: a change comes once, and without it the broker would stand still."""
        context = self._context
        try:
            yield
        except Exception as error:  # noqa: BLE001 - any of them: a change comes once
            _log.exception("broker %s cannot take over what has been applied", context.broker_id)
            context.port.on_fatal(
                TidelogError(
                    Code.INTERNAL,
                    f"broker {context.broker_id} cannot take over its registration or its partitions ({error}); see its"
                    " log, then start it again",
                )
            )
