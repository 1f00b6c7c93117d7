"""The driver of the controller core: events of Raft, NATS and the clock go in, its effects are carried out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from math import inf

from metadata.cluster.model import Outcome
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
from metadata.controller.master_key_reports import MASTER_KEYS_LABEL
from metadata.raft.types import RaftError, RaftRole, RaftStatus
from metadata.runtime.admin_answers import Admin
from metadata.runtime.controller_subscriptions import ControllerSubscriptions
from metadata.runtime.driver_context import MetadataContext
from metadata.runtime.metadata_ports import RaftPort
from metadata.runtime.moves import LeaderMoves
from metadata.runtime.namespace import MAX_CLAIM_BYTES, Namespace
from metadata.runtime.proposals import Proposals
from wire.errors import TidelogError
from wire.messaging.transport import Message
from wire.operations.adoption_report import ADOPTION_LABEL, decode_label
from wire.protobuf import metadata_pb2 as pb
from wire.types import BrokerId, Generation, Incarnation, LeaderMove, RoleProgress, Room

_log = logging.getLogger(__name__)

_ROOMS = {room.value: room for room in Room}

SHORTEST_PAUSE_S = 0.001


class ControllerDriver:
    """Runs the controller core. `own_labels`: the labels of this broker."""

    def __init__(
        self,
        context: MetadataContext,
        raft: RaftPort,
        proposals: Proposals,
        own_labels: Mapping[str, str],
        known_cluster_id: str,
    ) -> None:
        self._context = context
        self._raft = raft
        self._proposals = proposals
        self._own_labels = own_labels
        self._labels: dict[BrokerId, Mapping[str, str]] = {}
        """Labels in the newest answers to probes."""
        self._had_quorum = False
        self._timer: asyncio.TimerHandle | None = None
        self._claims_inbox = context.transport.new_inbox()
        self._claims_subject = context.subjects.cluster()
        self.namespace = Namespace(context, known_cluster_id, self.run, lambda: self._had_quorum)
        self.moves = LeaderMoves(context, proposals.commit)
        self.admin = Admin(
            context,
            moves=self.moves,
            commit=proposals.commit,
            labels=self.labels,
            voters=lambda: self._raft.status().voters,
            raft_peers=self._raft_peers,
            other_clusters=self.namespace.others,
        )
        self._subscriptions = ControllerSubscriptions(context, self.namespace, proposals, self.run)

    def labels(self) -> Mapping[BrokerId, Mapping[str, str]]:
        """The labels in the brokers' last answers, and this broker's own. While it is not the controller there are its
        own alone."""
        return {**self._labels, self._context.broker_id: self._own_labels}

    def start(self) -> None:
        context = self._context
        context.transport.on_claim_inbox(self._claims_inbox, self._on_answer)
        context.transport.on_connection_change(self._on_connection)
        connected = context.transport.is_connected
        since = context.transport.connected_since if connected else context.monotonic()
        self.run(context.core.on_connection(connected, since))
        context.transport.on_claims_connection_change(self._on_public_connection)
        if not context.transport.hears_claims:
            self._on_public_connection(False)
        self._subscriptions.start()
        self.admin.drains.start()

    def stop(self) -> None:
        self.namespace.close()
        if self._timer is not None:
            self._timer.cancel()

    async def close(self) -> None:
        await self._subscriptions.close()
        self._context.transport.on_claim_inbox(self._claims_inbox, None)

    # ---- events ----------------------------------------------------------------------------------------------------

    def on_raft_status(self, status: RaftStatus) -> None:
        if not self._context.closed:
            self._say_quorum(status.has_quorum)
            leads = status.role is RaftRole.LEADER
            self.run(self._context.core.on_raft(leads, status.has_quorum, self._context.monotonic()))

    def _say_quorum(self, has_quorum: bool) -> None:
        had_quorum, self._had_quorum = self._had_quorum, has_quorum
        if had_quorum and not has_quorum:
            _log.warning(
                "broker %s is connected to no majority of the metadata group's voters: until it is, no stream, leader"
                " or ISR changes; start the voters that are down, and see that they reach each other",
                self._context.broker_id,
            )
        elif has_quorum and not had_quorum:
            _log.info("broker %s is connected to a majority of the metadata group's voters", self._context.broker_id)

    def on_peer_lost(self, address: str) -> None:
        """The Raft connection with the voter of that address has closed."""
        context = self._context
        if context.closed:
            return
        self._say_raft_peers()
        for broker, known in sorted(context.state.brokers.items()):
            if known.raft_address == address:
                self.run(context.core.on_peer_lost(broker, context.monotonic()))

    def on_claim(self, data: bytes, reply: str | None, is_proved: Callable[[], bool]) -> None:
        """A message on the subject of claims, where any NATS client may publish. See `ClaimHandler`."""
        if self.namespace.may_skip(reply):
            return
        self._take_claim(data, reply, is_proved)

    def _take_claim(self, data: bytes, reply: str | None, is_proved: Callable[[], bool]) -> None:
        claim = self._context.messages.decode_data(pb.ClusterClaim, self._claims_subject, data, MAX_CLAIM_BYTES)
        if claim is not None and not self._context.closed:
            self.namespace.on_claim(claim, reply, is_proved)

    def _on_answer(self, message: Message, is_proved: bool) -> None:
        if message.status is None:
            self._take_claim(message.data, message.reply, lambda: is_proved)

    def _on_connection(self, connected: bool) -> None:
        if not self._context.closed:
            self.run(self._context.core.on_connection(connected, self._context.monotonic()))

    def _on_public_connection(self, connected: bool) -> None:
        if not self._context.closed:
            self.run(self._context.core.on_public_connection(connected, self._context.monotonic()))

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self._say_raft_peers()
            self.run(self._context.core.tick(self._context.monotonic()))
            self.namespace.announce()
        except Exception:  # noqa: BLE001 - nothing else wakes the controller: it would stand still, unseen
            _log.exception("controller %s met a bug; it goes on", self._context.broker_id)
            self._wake_in(self._context.settings.retry_interval_s)

    def _raft_peers(self) -> Collection[str]:
        status = self._raft.status()
        return {*status.connected, *status.not_connected}

    def _say_raft_peers(self) -> None:
        connected = self._raft.status().connected
        brokers = self._context.state.brokers
        self._context.core.on_raft_peers(
            [broker for broker, known in brokers.items() if known.raft_address in connected]
        )

    # ---- effects ---------------------------------------------------------------------------------------------------

    def run(self, effects: list[Effect]) -> None:
        """Carries out the core's effects, and sets the timer for its next deadline."""
        context = self._context
        for effect in effects:
            match effect:
                case Propose():
                    context.tasks.spawn(self._carry(effect))
                case SendProbe():
                    context.tasks.spawn(self._probe(effect))
                case BecomeController():
                    context.core.presume_stopping(context.stopping_brokers)
                    self._subscriptions.want(True)
                case ResignController():
                    self._labels.clear()
                    self._subscriptions.want(False)
                case HandOver(why):
                    gives_way = self._raft.hand_over()
                    _log.error(
                        "controller %s %s: %s; check its load, and its connections to the NATS server",
                        context.broker_id,
                        "gives way to another voter" if gives_way else "finds no voter to give way to",
                        why,
                    )
                    if not gives_way:
                        self.run(context.core.on_hand_over_refused(context.monotonic()))
                case AskForClusters():
                    self.namespace.ask(self._claims_inbox)
                case RefuseToFound(error):
                    context.port.on_fatal(error)
                case MoveLeader(move):
                    context.tasks.spawn(self._move(move))
                case Note(text, is_warning):
                    _log.log(
                        logging.WARNING if is_warning else logging.INFO, "controller %s: %s", context.broker_id, text
                    )
        self._wake_in(max(SHORTEST_PAUSE_S, context.core.next_deadline() - context.monotonic()))

    def _wake_in(self, pause_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if pause_s < inf and not self._context.closed:
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._on_timer)

    async def _carry(self, proposal: Propose) -> None:
        context = self._context
        outcome: Outcome | None = None
        try:
            outcome = await self._proposals.attempt(proposal.command)
        except RaftError as error:
            _log.info("controller %s: a decision has no known outcome: %s", context.broker_id, error)
        except Exception:  # noqa: BLE001 - a controller that waits for its epoch's outcome would wait for ever
            _log.exception("controller %s met a bug; a decision has no known outcome", context.broker_id)
        if outcome is not None and outcome.code is not None:
            _log.info("controller %s: a decision was refused: %s", context.broker_id, outcome.message)
        self.run(context.core.on_outcome(proposal.ticket, outcome, context.monotonic()))

    async def _probe(self, probe: SendProbe) -> None:
        context, broker = self._context, probe.broker
        sent = context.monotonic()
        live = {each for each, known in context.state.brokers.items() if known.alive}
        clocks = context.core.clocks.survey(live, sent)
        payload = pb.Probe(
            controller=context.broker_id,
            controller_epoch=probe.controller_epoch,
            number=probe.number,
            answered=probe.answered,
            generation=context.state.generation,
            cluster_id=context.state.cluster_id,
            incarnation=known.incarnation if (known := context.state.brokers.get(broker)) is not None else 0,
            agreed_time_ns=clocks.agreed_ns or 0,
            clocks_are_apart=clocks.is_apart,
            stopping=context.core.stopping_brokers(),
        ).SerializeToString()

        def refused() -> None:
            self._say_raft_peers()
            self.run(context.core.on_no_responders(broker, probe.number, context.monotonic()))

        try:
            answer = await context.transport.request(
                context.subjects.probe(broker),
                payload,
                timeout=context.settings.broker_silence_timeout_s,
                on_refused=refused,
            )
        except TimeoutError:
            return
        now = context.monotonic()
        refusal = TidelogError.from_headers(answer.headers)
        if refusal is not None:
            _log.error("broker %s cannot answer a probe: %s", broker, refusal.message)
            return
        told = context.messages.decode(pb.ProbeAnswer, answer)
        if told is None or told.broker != broker or told.number != probe.number:
            return
        known = context.state.brokers.get(broker)
        # A process that is not registered (yet) is no evidence of the registered one. Its own probes prove a
        # controller's connection, even if another process is registered under its id.
        if broker == context.broker_id or (known is not None and known.life_id == told.life_id):
            self._labels[broker] = dict(told.labels)
            context.core.clocks.on_answer(broker, told.time_ns, sent, now)
            context.core.repartitioning.on_adoption(broker, decode_label(told.labels.get(ADOPTION_LABEL, "")))
            if told.room in _ROOMS:
                self.run(
                    context.core.on_condition(
                        broker,
                        room=_ROOMS[told.room],
                        disk_hangs=told.disk_hangs,
                        has_master_key=told.labels.get(MASTER_KEYS_LABEL) != "",
                        now=context.monotonic(),
                        is_stopping=told.stopping,
                        leaves=Incarnation(told.incarnation) if told.leaving and told.incarnation else None,
                    )
                )
            vouches = (
                told.nats_server == context.transport.server_id != ""
                and told.connected_ms >= context.settings.liveness_grace_s * 1000
            )
            generation, begun = Generation(told.generation), Generation(told.begun)
            roles = RoleProgress(told.roles_pending, told.roles_done)
            self.run(
                context.core.on_probe_answer(
                    broker, probe.number, generation, now, begun=begun, vouches=vouches, roles=roles
                )
            )

    async def _move(self, move: LeaderMove) -> None:
        key = move.key
        moved = False
        try:
            await self.moves.move(key.stream, key.partition, move.target, disk_hangs=move.disk_hangs)
            moved = True
        except TidelogError as error:
            _log.info("%s, which should not, leads %s still: %s", move.leader, key, error)
        finally:
            effects = self._context.core.on_move_ended(move, moved, self._context.monotonic())
            if not self._context.closed:
                self.run(effects)
