"""The metadata plane of one broker, on an event loop: drives ClusterState and ControllerCore, speaks for the broker.

Every broker: applies the group's commands, registers its life (again whenever it finds itself declared dead), answers
probes, hands changed partitions to the data plane, and carries the data plane's wishes to the controller. Wishes are
repeated until applied state settles them; nobody waits for an answer. Nothing reaches the data plane before this life's
own registration is applied.

The one that holds the office: also listens for those wishes and for the JSON API, and probes all others.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any, Protocol, TypeAlias, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Protobuf

from metadata.admin import Admin
from metadata.controller import (
    AskForClusters,
    CloseOffice,
    ControllerCore,
    Effect,
    HandOver,
    Note,
    OpenOffice,
    Propose,
    RefuseToFound,
    SendProbe,
)
from metadata.lease import Lease
from metadata.master_keys import MASTER_KEYS_LABEL
from metadata.model import Changes, Outcome
from metadata.moves import LeaderMoves
from metadata.namespace import Namespace
from metadata.raft.types import RaftError, RaftOutcomeUnknown, RaftRole, RaftStatus, RaftUnavailable, StateMachine
from metadata.references import key_of, ref_of
from metadata.settings import MetadataSettings
from metadata.state import ClusterState
from metadata.wishes import Wishes
from wire import metadata_pb2 as pb
from wire.errors import Code, TidelogError
from wire.operations import Refusal
from wire.reports import BrokerReport, StreamReport
from wire.subjects import Subjects
from wire.transport import NO_RESPONDERS, Message, MessageHandler, Subscription, Transport, answer_too_large
from wire.types import (
    BrokerId,
    DrainAnswer,
    Generation,
    Incarnation,
    IsrChange,
    LeaderEpoch,
    LeaderMove,
    LeaderReport,
    PartitionEpoch,
    PartitionGone,
    PartitionKey,
    PartitionView,
    Room,
    StreamName,
    Withdrawal,
)

_log = logging.getLogger(__name__)

_Message = TypeVar("_Message", bound=Protobuf)
_ROOMS = {room.value: room for room in Room}

MAX_PROPOSALS = 256
"""Commands of the controller on their way at once. One more has an unknown outcome at once, and is decided anew."""
ATTEMPT_TIMEOUT_S = 1.0
"""A command of our own without an outcome by then is sent again; it is applied once."""
SHORTEST_PAUSE_S = 0.001
MAX_CONNECTED_S = 3600.0
"""Probe answers tell of no longer connections."""


class RaftPort(Protocol):
    """What the service needs of `metadata.raft.RaftNode`."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def propose(self, command: bytes, *, timeout: float) -> object: ...

    def status(self) -> RaftStatus: ...

    def hand_over(self) -> bool: ...


RaftFactory: TypeAlias = Callable[[StateMachine, Callable[[RaftStatus], None], Callable[[str], None]], RaftPort]
"""Makes the node from (state machine, on_status, on_peer_lost)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What this life of the broker knows of the ones before it, from its data folder."""

    folder_same: bool
    page_cache_survived: bool
    unsound: tuple[PartitionKey, ...] = ()
    last_incarnation: Incarnation = Incarnation(0)
    earlier_lives: tuple[str, ...] = ()
    """Ids of lives since then, of which one may have been registered without hearing of it."""
    cluster_id: str = ""
    """Empty: a new folder."""
    labels: Mapping[str, str] = field(default_factory=dict)
    raft_address: str = ""
    """Empty: an observer."""


class _Machine:
    """The state, as the Raft node drives it."""

    def __init__(self, state: ClusterState, on_changes: Callable[[Changes], None]) -> None:
        self._state = state
        self._on_changes = on_changes

    def apply(self, command: bytes) -> Outcome:
        outcome = self._state.apply(command)
        if outcome.changes:
            self._on_changes(outcome.changes)
        return outcome

    def snapshot(self) -> bytes:
        return self._state.snapshot()

    def restore(self, snapshot: bytes) -> None:
        self._on_changes(self._state.restore(snapshot))


class MetadataService:
    """See the module. All methods run on one event loop.

    Set before `start`:
    - `on_partitions(changes)`: partitions that this broker replicates, new or changed, and those it replicates no more;
      the first call names all that it replicates, and comes when there are none, too: what else lies in its data
      folder is of streams that were deleted while it was down;
    - `on_registered(cluster_id, incarnation)`: called before `on_partitions` in each new incarnation, to write both
      into the data folder;
    - `broker_status(stream)`: what this broker knows of its replicas of a stream;
    - `broker_totals()`: what this broker tells operators of itself;
    - `room()`: on this broker's disk; `disk_hangs()`: whether it does;
    - `drain_leader(move, timeout, answer)`: get ready for a planned move of a leadership held here: stop sequencing,
      call `answer(None)` when the target holds everything, `answer(error)` when it does not within `timeout` seconds;
      not called for requests that lay unread for longer than that, or than the lease;
    - `on_office(open)`: this broker begins or ceases to serve as the controller;
    - `on_fatal(error)`: the broker cannot take part: another cluster's folder, another process under its id, or a
      callback above that raised.
    """

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        life_id: str,
        make_raft: RaftFactory,
        transport: Transport,
        subjects: Subjects,
        settings: MetadataSettings,
        rng: Random,
        monotonic: Callable[[], float],
        registration: Registration,
    ) -> None:
        """`life_id`: unique to this run of the process. `transport`: the control connection, not the one for ingest."""
        self.state = ClusterState()
        self.on_partitions: Callable[[Sequence[PartitionView | PartitionGone]], None] = lambda _: None
        self.on_registered: Callable[[str, Incarnation], None] = lambda _cluster_id, _incarnation: None
        self.broker_status: Callable[[StreamName], StreamReport] = lambda _: {"partitions": []}
        self.broker_totals: Callable[[], BrokerReport] = BrokerReport
        self.room: Callable[[], Room] = lambda: Room.AMPLE
        self.disk_hangs: Callable[[], bool] = lambda: False
        self.drain_leader: Callable[[LeaderMove, float, DrainAnswer], None] = self._lead_nothing
        self.on_office: Callable[[bool], Awaitable[None]] | None = None
        self.on_fatal: Callable[[TidelogError], None] = lambda error: _log.critical("%s", error)
        self._id = broker_id
        self._life_id = life_id
        self._transport = transport
        self._subjects = subjects
        self._settings = settings
        self._rng = rng
        self._monotonic = monotonic
        self._registration = registration
        self._raft = make_raft(_Machine(self.state, self._on_changes), self._on_raft_status, self._on_peer_lost)
        self._core = ControllerCore(
            broker_id,
            life_id,
            self.state,
            settings,
            rng,
            namespace=subjects.namespace,
            new_cluster_id=f"{rng.getrandbits(64):016x}",
        )
        self._sequence = 0
        self._incarnation: Incarnation | None = None
        self._registered = asyncio.Event()
        self._must_register = asyncio.Event()
        self._delivered: dict[PartitionKey, PartitionView] = {}
        self._changed = Changes()
        self._flush_scheduled = False
        self._lease = Lease(settings)
        self._labels: dict[BrokerId, Mapping[str, str]] = {}
        self._wishes = Wishes(
            state=self.state,
            transport=transport,
            subjects=subjects,
            settings=settings,
            monotonic=monotonic,
            incarnation=lambda: self._incarnation,
        )
        self.namespace = Namespace(
            broker_id=broker_id,
            life_id=life_id,
            known_cluster_id=registration.cluster_id,
            state=self.state,
            core=self._core,
            transport=transport,
            subjects=subjects,
            monotonic=monotonic,
            run=self._run,
        )
        self._claims_inbox = transport.new_inbox()
        self._moves = LeaderMoves(
            state=self.state,
            core=self._core,
            transport=transport,
            subjects=subjects,
            settings=settings,
            commit=self._commit,
        )
        self.admin = Admin(
            broker_id=broker_id,
            state=self.state,
            core=self._core,
            moves=self._moves,
            transport=transport,
            subjects=subjects,
            monotonic=monotonic,
            commit=self._commit,
            labels=lambda: {**self._labels, self._id: self._registration.labels},
            voters=lambda: self._raft.status().voters,
            other_clusters=self.namespace.others,
        )
        """What the controller answers to clients and operators; to be asked in office only."""
        self._office_open = False
        self._office_changed = asyncio.Event()
        self._subscriptions: list[Subscription] = []
        self._desk: list[Subscription] = []
        """The controller's."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._proposals = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.refused_requests = 0
        """Of the JSON API, counted by whoever serves it."""
        self._dropped_messages = 0
        """Of brokers and controllers, that did not decode."""

    # ---- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Joins the group; returns before the broker is registered (`wait_registered`). Raises RaftError."""
        for subject, handler in (
            (self._subjects.probe(self._id), self._on_probe),
            (self._subjects.broker_status(self._id), self._on_status_request),
            (self._subjects.drain(self._id), self._on_drain_request),
            (self._subjects.cluster(), self._on_claim),
        ):
            self._subscriptions.append(await self._transport.subscribe(subject, handler))
        self._transport.on_inbox(self._claims_inbox, self._on_claim)
        self._transport.on_connection_change(self._on_connection)
        connected = self._transport.is_connected
        since = self._transport.connected_since if connected else self._monotonic()
        self._run(self._core.on_connection(connected, since))
        await self._raft.start()
        self._must_register.set()
        self._spawn(self._keep_registered())
        self._spawn(self._keep_office())
        self._on_raft_status(self._raft.status())

    async def close(self) -> None:
        """Stops everything, the Raft node last. The broker is not reported dead by this; probes will find out."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._wishes.close()
        await self._moves.close()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.on_office is not None:
            await self.on_office(False)
        for subscription in (*self._subscriptions, *self._desk):
            await subscription.unsubscribe()
        self._transport.on_inbox(self._claims_inbox, None)
        self._subscriptions.clear()
        self._desk.clear()
        await self._raft.close()

    # ---- what the broker and the data plane ask --------------------------------------------------------------------

    @property
    def broker_id(self) -> BrokerId:
        return self._id

    @property
    def incarnation(self) -> Incarnation | None:
        """This life's, once registered; while the broker is declared dead, the one that died."""
        return self._incarnation

    @property
    def cluster_id(self) -> str:
        return self.state.cluster_id

    @property
    def in_office(self) -> bool:
        return self._core.office != 0

    async def wait_registered(self) -> None:
        """Returns when this life is registered and its partitions are handed over."""
        await self._registered.wait()

    def lease_valid(self, now: float) -> bool:
        """Whether a controller has been heard, and has heard this broker, within the leader lease."""
        return self._lease.is_valid(now)

    def alter_isr(self, change: IsrChange) -> None:
        """Ask for another ISR. A later wish for a partition replaces the one on its way. Views tell how it ended."""
        self._wishes.alter_isr(change)

    def report_leader(self, report: LeaderReport) -> None:
        """Tell the controller that a leader seems to have failed. Sent once: a follower repeats it while it lasts."""
        self._wishes.report(report)

    def withdraw(self, withdrawal: Withdrawal) -> None:
        """Leave the ISR and `eligible` of a partition. Repeated until a view shows that it is done."""
        self._wishes.withdraw(withdrawal)

    def status(self) -> dict[str, Any]:
        raft = self._raft.status()
        return {
            "id": self._id,
            "incarnation": self._incarnation,
            "cluster_id": self.state.cluster_id,
            "generation": self.state.generation,
            "controller": self.state.controller,
            "phase": self._core.phase.value,
            "raft_role": raft.role.value,
            "raft_term": raft.term,
            "raft_applied": raft.applied_index,
            "has_quorum": raft.has_quorum,
            "lease_valid": self.lease_valid(self._monotonic()),
            "open_wishes": len(self._wishes),
            "unclean_elections": self.state.unclean_elections,
        }

    # ---- commands --------------------------------------------------------------------------------------------------

    async def _commit(self, command: pb.Command) -> Outcome:
        """Applied once, however often it is sent. Raises TidelogError: UNAVAILABLE (not applied), OUTCOME_UNKNOWN,
        BAD_REQUEST (too large)."""
        data = self._sealed(command)
        deadline = self._monotonic() + self._settings.command_timeout_s
        code, trouble = Code.UNAVAILABLE, "no time was left"
        while (left := deadline - self._monotonic()) > 0:
            try:
                return await self._propose(data, min(left, ATTEMPT_TIMEOUT_S))
            except RaftUnavailable as error:
                trouble = str(error)
            except RaftOutcomeUnknown as error:
                code, trouble = Code.OUTCOME_UNKNOWN, str(error)
            except RaftError as error:
                raise TidelogError(Code.BAD_REQUEST, str(error)) from error
            await asyncio.sleep(min(SHORTEST_PAUSE_S * 10, left))
        raise TidelogError(
            code, f"the metadata group did not answer in {self._settings.command_timeout_s} s: {trouble}"
        )

    def _sealed(self, command: pb.Command) -> bytes:
        self._sequence += 1
        command.client = self._life_id
        command.sequence = self._sequence
        return _encode(command)

    async def _propose(self, data: bytes, timeout: float) -> Outcome:
        outcome = await self._raft.propose(data, timeout=timeout)
        if not isinstance(outcome, Outcome):
            raise TypeError(f"the metadata group gave {outcome!r} as an outcome")
        return outcome

    # ---- applied state ---------------------------------------------------------------------------------------------

    def _on_changes(self, changes: Changes) -> None:
        """Called while Raft applies: note what changed, look at it when the loop is free."""
        known = self._changed
        self._changed = Changes(
            partitions=(*known.partitions, *changes.partitions),
            gone=(*known.gone, *changes.gone),
            brokers=(*known.brokers, *changes.brokers),
            office=known.office or changes.office,
        )
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._on_applied)

    def _on_applied(self) -> None:
        changes, self._changed = self._changed, Changes()
        self._flush_scheduled = False
        if self._closed:
            return
        try:
            if self._id in changes.brokers:
                self._look_at_own_registration()
            if self._incarnation is not None:
                self._deliver((*changes.partitions, *changes.gone))
        except Exception as error:  # noqa: BLE001 - a change comes once: without it the broker would stand still, unseen
            _log.exception("broker %s cannot take over what has been applied", self._id)
            self.on_fatal(
                TidelogError(
                    Code.INTERNAL,
                    f"broker {self._id} cannot take over its registration or its partitions ({error}); see its log,"
                    " then start it again",
                )
            )
        self._run(self._core.on_applied(changes, self._monotonic()))
        self._wishes.settle()

    def _look_at_own_registration(self) -> None:
        own = self.state.brokers.get(self._id)
        if own is None:
            return
        if own.life_id == self._life_id and own.alive:
            if own.incarnation != self._incarnation:
                first = self._incarnation is None
                self.on_registered(self.state.cluster_id, own.incarnation)
                self._incarnation = own.incarnation
                _log.info("broker %s is registered, incarnation %d", self._id, own.incarnation)
                if first:
                    self._deliver(self.state.keys_of(self._id), first=True)
                    self._registered.set()
        elif own.life_id == self._life_id:
            _log.warning("broker %s finds itself declared dead and registers again", self._id)
            self._must_register.set()
        elif self._incarnation is not None:
            # Alive, or dead since: this process does not speak for the id any more.
            self._must_register.clear()
            self.on_fatal(
                TidelogError(
                    Code.BAD_CONFIG,
                    f"another process has registered as broker {self._id}; give each broker an id and a data folder",
                )
            )

    def _deliver(self, keys: Iterable[PartitionKey], *, first: bool = False) -> None:
        changes: list[PartitionView | PartitionGone] = []
        for key in sorted({*keys}):
            view = self.state.view(key)
            if view is not None and self._id in view.replicas:
                if self._delivered.get(key) != view:
                    self._delivered[key] = view
                    changes.append(view)
            elif self._delivered.pop(key, None) is not None:
                changes.append(PartitionGone(key))
        if changes or first:
            self.on_partitions(changes)

    async def _keep_registered(self) -> None:
        while True:
            await self._must_register.wait()
            if not self._transport.is_connected:
                # Registered brokers get leaderships; this one could not act on them yet.
                await asyncio.sleep(self._settings.retry_interval_s)
                continue
            try:
                outcome = await self._commit(self._registration_command())
            except TidelogError as error:
                _log.warning("broker %s cannot register yet: %s", self._id, error)
                await asyncio.sleep(self._settings.retry_interval_s)
                continue
            if outcome.code is None:
                own = self.state.brokers.get(self._id)
                if own is not None and own.alive and own.life_id == self._life_id:
                    self._must_register.clear()
                continue
            if outcome.code.retriable:
                await asyncio.sleep(self._settings.retry_interval_s / 10)
                continue
            self._must_register.clear()
            self.on_fatal(TidelogError(outcome.code, outcome.message))

    def _registration_command(self) -> pb.Command:
        known, again = self._registration, self._incarnation is not None
        unsound = (*(() if again else known.unsound), *self._wishes.withdrawing())
        return pb.Command(
            register_broker=pb.RegisterBroker(
                broker=self._id,
                life_id=self._life_id,
                cluster_id=self.state.cluster_id if again else known.cluster_id,
                last_incarnation=self._incarnation if self._incarnation is not None else known.last_incarnation,
                # It may be registered and dead already, without having heard of it.
                earlier_lives=(*(() if again else known.earlier_lives), self._life_id),
                # The same process lost nothing.
                folder_same=again or known.folder_same,
                page_cache_survived=again or known.page_cache_survived,
                unsound=[ref_of(key) for key in sorted({*unsound})],
                raft_address=known.raft_address,
            )
        )

    # ---- the controller's part -------------------------------------------------------------------------------------

    def _on_raft_status(self, status: RaftStatus) -> None:
        if not self._closed:
            self._run(self._core.on_raft(status.role is RaftRole.LEADER, status.has_quorum, self._monotonic()))

    def _on_peer_lost(self, address: str) -> None:
        if self._closed:
            return
        self._say_raft_peers()
        for broker, known in sorted(self.state.brokers.items()):
            if known.raft_address == address:
                self._run(self._core.on_peer_lost(broker, self._monotonic()))

    def _on_connection(self, connected: bool) -> None:
        if not self._closed:
            self._run(self._core.on_connection(connected, self._monotonic()))

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self._say_raft_peers()
            self._run(self._core.tick(self._monotonic()))
            self.namespace.announce()
        except Exception:  # noqa: BLE001 - nothing else wakes the controller: it would stand still, unseen
            _log.exception("controller %s met a bug; it goes on", self._id)
            self._wake_in(self._settings.retry_interval_s)

    def _say_raft_peers(self) -> None:
        connected = self._raft.status().connected
        self._core.on_raft_peers(
            [broker for broker, known in self.state.brokers.items() if known.raft_address in connected]
        )

    def _run(self, effects: list[Effect]) -> None:
        """Carry out what the core decided, and wake it when it next wants to be."""
        for effect in effects:
            match effect:
                case Propose():
                    self._spawn(self._carry(effect))
                case SendProbe():
                    self._spawn(self._probe(effect))
                case OpenOffice():
                    self._office_open = True
                    self._office_changed.set()
                case CloseOffice():
                    self._office_open = False
                    self.admin.on_office_closed()
                    self._labels.clear()
                    self._office_changed.set()
                case HandOver():
                    _log.error(
                        "controller %s hears nobody over NATS; check its connection to the NATS server", self._id
                    )
                    if not self._raft.hand_over():
                        self._run(self._core.on_hand_over_refused(self._monotonic()))
                case AskForClusters():
                    self.namespace.ask(self._claims_inbox)
                case RefuseToFound(error):
                    self.on_fatal(error)
                case Note(text):
                    _log.info("controller %s: %s", self._id, text)
        self._wake_in(max(SHORTEST_PAUSE_S, self._core.next_deadline() - self._monotonic()))

    def _wake_in(self, pause_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if pause_s < inf and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._on_timer)

    async def _carry(self, proposal: Propose) -> None:
        outcome: Outcome | None = None
        if self._proposals < MAX_PROPOSALS:
            self._proposals += 1
            try:
                outcome = await self._propose(_encode(proposal.command), self._settings.command_timeout_s)
            except RaftError as error:
                _log.info("controller %s: a decision has no known outcome: %s", self._id, error)
            except Exception:  # noqa: BLE001 - a controller that waits for its office's outcome would wait for ever
                _log.exception("controller %s met a bug; a decision has no known outcome", self._id)
            finally:
                self._proposals -= 1
        if outcome is not None and outcome.code is not None:
            _log.info("controller %s: a decision was refused: %s", self._id, outcome.message)
        self._run(self._core.on_outcome(proposal.ticket, outcome, self._monotonic()))

    async def _probe(self, probe: SendProbe) -> None:
        payload = pb.Probe(
            controller=self._id,
            office=probe.office,
            number=probe.number,
            answered=probe.answered,
            generation=self.state.generation,
            cluster_id=self.state.cluster_id,
        ).SerializeToString()
        try:
            answer = await self._transport.request(
                self._subjects.probe(probe.broker), payload, timeout=self._settings.broker_silence_timeout_s
            )
        except TimeoutError:
            return
        now = self._monotonic()
        if answer.status == NO_RESPONDERS:
            self._say_raft_peers()
            self._run(self._core.on_no_responders(probe.broker, probe.number, now))
            return
        refusal = TidelogError.from_headers(answer.headers)
        if refusal is not None:
            _log.error("broker %s cannot answer a probe: %s", probe.broker, refusal.message)
            return
        said = self._decode(pb.ProbeAnswer, answer)
        if said is None or said.broker != probe.broker or said.number != probe.number:
            return
        known = self.state.brokers.get(probe.broker)
        # A process that is not registered (yet) says nothing of the life that is. Its own probes prove a controller's
        # connection, whatever life is registered.
        if probe.broker == self._id or (known is not None and known.life_id == said.life_id):
            self._labels[probe.broker] = dict(said.labels)
            if said.room in _ROOMS:
                self._core.relief.on_room(probe.broker, _ROOMS[said.room])
                self._core.relief.on_disk(probe.broker, said.disk_hangs)
                self._core.relief.on_master_key(probe.broker, said.labels.get(MASTER_KEYS_LABEL) != "")
                self._relieve()
            vouches = (
                said.nats_server == self._transport.server_id != ""
                and said.connected_ms >= self._settings.liveness_grace_s * 1000
            )
            generation = Generation(said.generation)
            self._run(self._core.on_probe_answer(probe.broker, probe.number, generation, now, vouches=vouches))

    def _relieve(self) -> None:
        """Leaderships of brokers whose disks run full or hang, or that lack a key, go to others."""
        if self.in_office:
            for move in self._core.relief.due(self._monotonic()):
                self._spawn(self._hand_over(move))

    async def _hand_over(self, move: LeaderMove) -> None:
        key = move.key
        moved = False
        try:
            await self._moves.move(key.stream, key.partition, move.target, drops_leader=move.drops_leader)
            moved = True
        except TidelogError as error:
            _log.info("%s, which should not, leads %s still: %s", move.leader, key, error)
        finally:
            self._core.relief.on_ended(move, moved, self._monotonic())

    async def _keep_office(self) -> None:
        """Listen as the controller while in office, and only then."""
        serves = False
        while True:
            await self._office_changed.wait()
            self._office_changed.clear()
            try:
                if self._office_open and not serves:
                    await self._open_desk()
                    serves = True
                elif not self._office_open:
                    serves = False
                    await self._close_desk()
            except Exception:  # noqa: BLE001 - a cluster without a listening controller would stand still
                _log.exception("the office of controller %s cannot be opened or closed yet", self._id)
                await asyncio.sleep(self._settings.retry_interval_s)
                self._office_changed.set()

    async def _open_desk(self) -> None:
        handlers: tuple[tuple[str, MessageHandler], ...] = (
            (self._subjects.alter_isr(), self._on_alter_isr),
            (self._subjects.report_leader(), self._on_reports),
            (self._subjects.withdraw(), self._on_withdraw),
        )
        for subject, handler in handlers[len(self._desk) :]:
            self._desk.append(await self._transport.subscribe(subject, handler))
        if self.on_office is not None:
            await self.on_office(True)

    async def _close_desk(self) -> None:
        if self.on_office is not None:
            await self.on_office(False)
        while self._desk:
            await self._desk.pop().unsubscribe()

    # A broker out of office is silent: the one in office hears the same messages.

    def _on_alter_isr(self, message: Message) -> None:
        request = self._decode(pb.AlterIsrRequest, message)
        if request is None or not self.in_office:
            return
        if self.namespace.is_ours(request.cluster_id, next((item.leader for item in request.items), "")):
            self._spawn(self._forward(pb.Command(alter_isr=pb.AlterIsr(items=request.items))))

    def _on_withdraw(self, message: Message) -> None:
        request = self._decode(pb.WithdrawRequest, message)
        if request is None or not self.in_office:
            return
        if self.namespace.is_ours(request.cluster_id, next((item.broker for item in request.items), "")):
            self._spawn(self._forward(pb.Command(withdraw=pb.Withdraw(items=request.items))))

    def _on_reports(self, message: Message) -> None:
        reports = self._decode(pb.LeaderReports, message)
        if reports is None or not self.in_office:
            return
        if not self.namespace.is_ours(reports.cluster_id, next((report.replica for report in reports.items), "")):
            return
        said = [
            LeaderReport(
                key=key_of(report.partition),
                replica=BrokerId(report.replica),
                leader=BrokerId(report.leader),
                epoch=PartitionEpoch(report.epoch),
                leader_epoch=LeaderEpoch(report.leader_epoch),
            )
            for report in reports.items
        ]
        self._run(self._core.on_reports(said, self._monotonic()))

    async def _forward(self, command: pb.Command) -> None:
        """Others' compare-and-sets. Tried once: whoever asked repeats it until it is over."""
        if self._proposals >= MAX_PROPOSALS:
            return
        self._proposals += 1
        try:
            await self._propose(_encode(command), self._settings.command_timeout_s)
        except RaftError as error:
            _log.info("controller %s: a broker's request has no known outcome: %s", self._id, error)
        finally:
            self._proposals -= 1

    # ---- the broker's part -----------------------------------------------------------------------------------------

    def _on_probe(self, message: Message) -> None:
        probe = self._decode(pb.Probe, message)
        if probe is None or message.reply is None:
            return
        if not self.namespace.is_ours(probe.cluster_id, probe.controller):
            # That controller takes the first answer, which must be the one of its own broker of this name.
            return
        self._lease.on_probe(probe, office=self.state.office, generation=self.state.generation, now=self._monotonic())
        connected_for = self._monotonic() - self._transport.connected_since
        answer = pb.ProbeAnswer(
            broker=self._id,
            life_id=self._life_id,
            incarnation=self._incarnation or 0,
            number=probe.number,
            generation=self.state.generation,
            labels=dict(self._registration.labels),
            room=self.room().value,
            disk_hangs=self.disk_hangs(),
            nats_server=self._transport.server_id,
            connected_ms=int(1000 * min(MAX_CONNECTED_S, max(0.0, connected_for))),
        )
        self._answer(message.reply, answer.SerializeToString(), "the answer to a probe")

    def _answer(self, inbox: str, data: bytes, what: str) -> None:
        try:
            self._transport.publish(inbox, [data])
        except TidelogError as error:
            refusal = answer_too_large(error, f"{what} of broker {self._id}")
            _log.error("%s", refusal.message)
            self._transport.publish(inbox, [b""], headers=refusal.to_headers())

    def _on_claim(self, message: Message) -> None:
        claim = self._decode(pb.ClusterClaim, message)
        if claim is not None and not self._closed:
            self.namespace.on_claim(claim, message.reply)

    def _on_status_request(self, message: Message) -> None:
        if message.reply is None:
            return
        try:
            request = json.loads(message.data)
        except ValueError:
            request = None
        form: StreamReport | BrokerReport | Refusal
        asking = request.pop("cluster_id", None) if isinstance(request, dict) else None
        if isinstance(asking, str) and not self.namespace.is_ours(asking, "its controller"):
            return
        match request:
            case {"stream": str(stream)}:
                form = self.broker_status(StreamName(stream))
            case dict() if not request:
                form = self._totals()
            case _:
                error = TidelogError(
                    Code.BAD_REQUEST, 'a status request is {"stream": NAME}, or {} for the broker as a whole'
                )
                self._drop(message, error)
                form = Refusal(error=error.to_json())
        self._answer(message.reply, json.dumps(form).encode(), "the status")

    def _lead_nothing(self, move: LeaderMove, _timeout: float, answer: DrainAnswer) -> None:
        answer(TidelogError(Code.LEADER_NOT_MOVED, f"broker {self._id} leads no partition, nor {move.key}"))

    def _on_drain_request(self, message: Message) -> None:
        request, reply = self._decode(pb.DrainRequest, message), message.reply
        if request is None or reply is None or not self.namespace.is_ours(request.cluster_id, "its controller"):
            return
        move = LeaderMove(
            key=key_of(request.partition),
            leader=self._id,
            leader_epoch=LeaderEpoch(request.leader_epoch),
            target=BrokerId(request.target),
        )

        def answer(error: TidelogError | None) -> None:
            self._transport.publish(reply, [b""], headers=error.to_headers() if error is not None else None)

        # This process may have stood still with the request unread, and another may lead since. The request itself says
        # that the controller counted on this broker when that answer had arrived, as a probe does.
        age = self._lease.age_of(request.office, request.answered, self._monotonic())
        left = min(request.timeout_ms / 1000, self._settings.leader_lease_s) - age
        if left > 0:
            self.drain_leader(move, left, answer)
        else:
            answer(
                TidelogError(
                    Code.LEADER_NOT_MOVED,
                    f"broker {self._id} read the request to hand over {move.key} too late: another may lead by now;"
                    " look again",
                )
            )

    def _totals(self) -> BrokerReport:
        totals = self.broker_totals()
        own = {
            "dropped_metadata_messages": self._dropped_messages,
            "dropped_of_other_clusters": self.namespace.dropped,
            "refused_api_requests": self.refused_requests,
        }
        return {**totals, "counters": {**totals.get("counters", {}), **own}}

    def _decode(self, kind: type[_Message], message: Message) -> _Message | None:
        """None for what is not such a message: counted, logged, and the broker lives on."""
        try:
            return kind.FromString(message.data)
        except DecodeError as error:
            self._drop(message, error)
            return None

    def _drop(self, message: Message, error: Exception) -> None:
        self._dropped_messages += 1
        _log.warning("dropped a message of %d bytes on %s: %s", len(message.data), message.subject, error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the metadata service of broker %s met a bug", self._id, exc_info=error)


def _encode(command: pb.Command) -> bytes:
    return command.SerializeToString(deterministic=True)
