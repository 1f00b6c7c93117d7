"""The registration of this process as the broker, made again whenever the broker finds itself declared dead.

An id has one running process. Before this one listens to anything it asks on the subject of its id's probes whether
another one does:

    nobody listens there (503) ──> on, at once: the process that had this id is gone
    silence for `broker_silence_timeout_s`, as of a dead host ──> on
    a registered process answers ──> this process ends, and names the one that has the id

A process whose folder is another one is refused by the cluster state, too, while the registered process counts as
alive. It asks that process then, and names it as silent in its next registration if it has not answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import random

from metadata.cluster.cluster_view import PIECE
from metadata.cluster.model import Partition
from metadata.cluster.references import log_ends_to_pb, logs_to_pb
from metadata.raft.types import MAX_COMMAND_BYTES
from metadata.runtime.driver_context import MetadataContext
from metadata.runtime.proposals import Proposals
from wire.errors import Code, TidelogError
from wire.messaging.transport import Message
from wire.protobuf import metadata_pb2 as pb
from wire.retry import Retry
from wire.turns import Steps, Turns, in_turns
from wire.types import Generation, Incarnation, PartitionKey

_log = logging.getLogger(__name__)

SAY_EVERY_S = 5.0
"""Seconds between two lines about a registration that does not succeed."""
MOST_NAMED = 10
"""A log line names at most so many partitions, and counts the others."""
MOST_LOGS_BYTES = 512 << 10
"""Limit of the log ends in a registration: those of some 40,000 partitions."""
MOST_NAMED_BYTES = MAX_COMMAND_BYTES - (64 << 10)
"""Limit of the log ends and the unsound logs together. Unsound logs go first, for a log that is not named counts as
sound: 100,000 partitions of a few streams take half of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """Facts of the data folder about earlier processes of this broker."""

    folder_same: bool
    page_cache_survived: bool
    unsound: tuple[PartitionKey, ...] = ()
    held: frozenset[PartitionKey] = frozenset()
    """Partitions that have a log in the folder, as it was found."""
    manifest_is_lost: bool = False
    """The folder cannot show which partitions lost their log."""
    last_incarnation: Incarnation = Incarnation(0)
    earlier_lives: tuple[str, ...] = ()
    """Ids of processes since then, of which one may have been registered without learning it."""
    cluster_id: str = ""
    """Empty: a new folder."""
    labels: Mapping[str, str] = field(default_factory=dict)
    raft_address: str = ""
    """Empty: an observer."""
    replace: bool = False
    """The operator has confirmed that an empty folder takes the place of the last process's folder."""
    zone: str = ""
    """Where the broker runs; empty: not given."""
    tags: tuple[str, ...] = ()
    folder: str = ""
    """Path of the data folder, for messages."""


class Registrar:
    """Keeps this process registered. `unsound()`: replicas that it found damaged and that are still in their ISR."""

    def __init__(
        self,
        context: MetadataContext,
        proposals: Proposals,
        registration: Registration,
        unsound: Callable[[], Sequence[PartitionKey]],
    ) -> None:
        self._context = context
        self._proposals = proposals
        self._registration = registration
        self._unsound = unsound
        self._silent_life = ""
        """Id of the registered process that did not answer when it was asked."""
        self._named_missing: list[PartitionKey] = []
        """Missing logs that the broker's log has named."""
        self._is_due = asyncio.Event()
        self._say_at = 0.0
        """A refused attempt from then on, within SAY_EVERY_S, is logged as one of many."""

    def start(self) -> None:
        self._is_due.set()
        self._context.tasks.spawn(self._keep_registered())

    # R69: A broker id has one living process. Before it listens to anything, a process sends a probe to its own id: a
    # 503, or silence for `broker_silence_timeout_s`, lets it go on, and an answer of a registered process ends it
    # (ID_IN_USE). A registration with another folder than the registered one is refused while that incarnation counts
    # as alive and answers.
    # Hazard: A copied configuration, or a copied folder, that takes the place of a healthy broker.
    # Not covered: A copy of a folder is found by the first question only.
    async def check_id_is_free(self) -> None:
        """To be called before this process listens to anything. Raises TidelogError(ID_IN_USE)."""
        holder = await self._ask_holder()
        if holder is not None:
            raise self._id_in_use(holder)

    async def _ask_holder(self) -> pb.ProbeAnswer | None:
        """Returns the answer of another running process that is registered under this id; None: there is none."""
        context = self._context
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[pb.ProbeAnswer | None] = loop.create_future()

        def settle(answer: pb.ProbeAnswer | None) -> None:
            if not answered.done():
                answered.set_result(answer)

        def on_answer(message: Message) -> None:
            if message.status is not None:
                settle(None)
                return
            answer = context.messages.decode(pb.ProbeAnswer, message)
            if answer is not None and answer.broker == context.broker_id and answer.life_id != context.life_id:
                settle(answer)

        question = pb.Probe(cluster_id=self._registration.cluster_id, newcomer=context.life_id)
        inbox = context.transport.new_inbox()
        context.transport.on_inbox(inbox, on_answer)
        timer = loop.call_later(context.settings.broker_silence_timeout_s, settle, None)
        try:
            subject = context.subjects.probe(context.broker_id)
            if not context.transport.publish(subject, [question.SerializeToString()], reply=inbox):
                return None
            return await answered
        finally:
            timer.cancel()
            context.transport.on_inbox(inbox, None)

    def _id_in_use(self, holder: pb.ProbeAnswer) -> TidelogError:
        broker, labels = self._context.broker_id, holder.labels
        return TidelogError(
            Code.ID_IN_USE,
            f"broker {broker} is alive: process {labels.get('pid', '?')} on {labels.get('host', 'another host')} has"
            f" registered under this id, with the data folder {holder.data_dir or 'of another configuration'}"
            f" (incarnation {holder.incarnation}); give this process an id and a data folder of its own, or stop that"
            " one first",
        )

    # Keeps R90.
    def check_is_of_this_beginning(self) -> None:
        """Raises TidelogError when the cluster began anew while this process ran: it would open empty logs in the place
        of those that it has to name as missing."""
        context = self._context
        if context.incarnation is not None and context.incarnation <= context.state.recovered_at:
            raise TidelogError(
                Code.UNAVAILABLE,
                f"the cluster began anew (tidelog cluster recover) while broker {context.broker_id} was running: start"
                " the broker again",
            )

    def on_own_change(self) -> Incarnation | None:
        """The registration under this broker's id has changed. Returns the incarnation of this process if it is new."""
        context = self._context
        own = context.state.brokers.get(context.broker_id)
        if own is None:
            if context.incarnation is not None and not context.is_leaving:
                _log.warning(
                    "broker %s was removed from the cluster, and registers again as a new one", context.broker_id
                )
                self._is_due.set()
            return None
        if own.life_id == context.life_id and own.alive:
            return own.incarnation if own.incarnation != context.incarnation else None
        if own.life_id == context.life_id and context.is_leaving:
            return None
        if own.life_id == context.life_id:
            _log.warning("broker %s finds itself declared dead and registers again", context.broker_id)
            self._is_due.set()
        elif context.incarnation is not None:
            # Alive, or dead since: the id belongs to that other process.
            self._is_due.clear()
            context.port.on_fatal(
                TidelogError(
                    Code.BAD_CONFIG,
                    f"another process has registered as broker {context.broker_id}; give each broker an id and a data"
                    " folder",
                )
            )
        return None

    async def _keep_registered(self) -> None:
        context = self._context
        retry = Retry(context.settings.retry_interval_s, chance=random)
        soon = Retry(context.settings.retry_interval_s / 10, chance=random)
        while True:
            await self._is_due.wait()
            if not context.transport.is_connected:
                # Registered brokers get leaderships; this one could not act on them yet.
                await asyncio.sleep(retry.failed())
                continue
            try:
                outcome = await self._proposals.commit(await in_turns(self._command()))
            except TidelogError as error:
                _log.warning("broker %s cannot register yet: %s", context.broker_id, error)
                await asyncio.sleep(retry.failed())
                continue
            if outcome.code is None:
                own = context.state.brokers.get(context.broker_id)
                if own is not None and own.alive and own.life_id == context.life_id:
                    self._is_due.clear()
                else:
                    await self._try_later("the metadata that is applied here does not show it", soon.failed())
                continue
            if outcome.code.retriable:
                await self._try_later(outcome.message, soon.failed())
                continue
            refusal = TidelogError(outcome.code, outcome.message)
            if outcome.code is Code.ID_IN_USE:
                registered = context.state.brokers.get(context.broker_id)
                holder = await self._ask_holder()
                if holder is None:
                    self._silent_life = "" if registered is None else registered.life_id
                    continue
                refusal = self._id_in_use(holder)
            elif outcome.code is Code.EMPTY_FOLDER:
                refusal = TidelogError(outcome.code, f"{self._registration.folder}: {outcome.message}")
            self._is_due.clear()
            context.port.on_fatal(refusal)

    async def _try_later(self, why: str, pause: float) -> None:
        now = self._context.monotonic()
        if now >= self._say_at:
            if now < self._say_at + SAY_EVERY_S:
                broker = self._context.broker_id
                _log.warning("broker %s is not registered yet, and tries again: %s", broker, why)
            self._say_at = now + SAY_EVERY_S
        await asyncio.sleep(pause)

    def _command(self) -> Steps[pb.Command]:
        context, known = self._context, self._registration
        lost: list[pb.LogEnds] = []
        missing: list[pb.LogEnds] = []
        # First: a state that began anew meanwhile names others, and the registration is refused.
        recovered_at = context.state.recovered_at
        if context.incarnation is None:
            lost = yield from logs_to_pb(known.unsound)
            missing = yield from logs_to_pb((yield from self._not_held(recovered_at)))
        ends = yield from log_ends_to_pb((yield from context.port.log_ends()))
        # No other task runs from here on, so none finds a log unsound that is not named. An attempt whose outcome was
        # unknown may have been applied since the beginning.
        again = context.incarnation is not None
        unsound = [*(() if again else lost), *Turns(logs_to_pb(self._unsound())).finish()]
        missing = [] if again else missing
        named = sum(logs.ByteSize() for logs in (*unsound, *missing))
        return pb.Command(
            register_broker=pb.RegisterBroker(
                broker=context.broker_id,
                life_id=context.life_id,
                cluster_id=context.state.cluster_id if again else known.cluster_id,
                last_incarnation=context.incarnation if context.incarnation is not None else known.last_incarnation,
                # This process may be registered and declared dead already, without having learned it.
                earlier_lives=(*(() if again else known.earlier_lives), context.life_id),
                # The same process lost nothing.
                folder_same=again or known.folder_same,
                page_cache_survived=again or known.page_cache_survived,
                unsound_logs=unsound,
                missing_logs=missing,
                recovered_at=recovered_at,
                raft_address=known.raft_address,
                replace=known.replace,
                zone=known.zone,
                tags=known.tags,
                silent_life=self._silent_life,
                logs=self._as_many(ends, min(MOST_LOGS_BYTES, max(0, MOST_NAMED_BYTES - named))),
            )
        )

    # Keeps R90.
    def _not_held(self, recovered_at: Generation) -> Steps[list[PartitionKey]]:
        """Returns the partitions of this broker of which the folder has no log, and may have had one. `recovered_at`:
        that of the state."""
        known, broker = self._registration, self._context.broker_id
        may_be_moved = known.last_incarnation <= recovered_at
        if not known.manifest_is_lost and not (recovered_at and may_be_moved):
            return []

        def is_expected(partition: Partition) -> bool:
            # What was made after the cluster began anew was moved by no decision that was lost.
            is_older = may_be_moved and partition.incarnation <= recovered_at
            return broker in partition.replicas and (known.manifest_is_lost or is_older)

        missing: list[PartitionKey] = []
        for keys in self._context.state.walk(is_expected):
            missing += (key for key in keys if key not in known.held)
            yield PIECE
        self._name(missing)
        return missing

    def _name(self, missing: list[PartitionKey]) -> None:
        if missing and missing != self._named_missing:
            self._named_missing = missing
            shown = ", ".join(map(str, missing[:MOST_NAMED]))
            more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
            _log.error(
                "broker %s has no log of partitions that it is to hold, and leads none of them before others have given"
                " it their records: %s%s",
                self._context.broker_id, shown, more,
            )  # fmt: skip

    def _as_many(self, ends: Sequence[pb.LogEnds], most_bytes: int) -> list[pb.LogEnds]:
        """Bounded: a command must not be too large for Raft. Of the logs beyond that nothing is known."""
        told: list[pb.LogEnds] = []
        size = 0
        for logs in ends:
            size += logs.ByteSize()
            if size > most_bytes:
                _log.warning("broker %s has too many logs to tell where all of them end", self._context.broker_id)
                break
            told.append(logs)
        return told
