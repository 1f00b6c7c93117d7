"""The registration of this life of the broker, made again whenever the broker finds itself declared dead."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from metadata.references import ref_of
from metadata.runtime.context import MetadataContext
from metadata.runtime.proposals import Proposals
from wire import metadata_pb2 as pb
from wire.errors import Code, TidelogError
from wire.types import Incarnation, PartitionKey

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """Facts of the data folder about earlier lives of this broker."""

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


class Registrar:
    """`unsound()`: replicas that this process found damaged and that are not out of their ISR yet."""

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
        self._is_due = asyncio.Event()

    def start(self) -> None:
        self._is_due.set()
        self._context.tasks.spawn(self._keep_registered())

    def on_own_change(self) -> Incarnation | None:
        """The registration under this broker's id has changed. Returns the incarnation of this life if it is new."""
        context = self._context
        own = context.state.brokers.get(context.broker_id)
        if own is None:
            return None
        if own.life_id == context.life_id and own.alive:
            return own.incarnation if own.incarnation != context.incarnation else None
        if own.life_id == context.life_id:
            _log.warning("broker %s finds itself declared dead and registers again", context.broker_id)
            self._is_due.set()
        elif context.incarnation is not None:
            # Alive, or dead since: this process does not speak for the id any more.
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
        context, pause = self._context, self._context.settings.retry_interval_s
        while True:
            await self._is_due.wait()
            if not context.transport.is_connected:
                # Registered brokers get leaderships; this one could not act on them yet.
                await asyncio.sleep(pause)
                continue
            try:
                outcome = await self._proposals.commit(self._command())
            except TidelogError as error:
                _log.warning("broker %s cannot register yet: %s", context.broker_id, error)
                await asyncio.sleep(pause)
                continue
            if outcome.code is None:
                own = context.state.brokers.get(context.broker_id)
                if own is not None and own.alive and own.life_id == context.life_id:
                    self._is_due.clear()
                continue
            if outcome.code.retriable:
                await asyncio.sleep(pause / 10)
                continue
            self._is_due.clear()
            context.port.on_fatal(TidelogError(outcome.code, outcome.message))

    def _command(self) -> pb.Command:
        context, known = self._context, self._registration
        again = context.incarnation is not None
        unsound = (*(() if again else known.unsound), *self._unsound())
        return pb.Command(
            register_broker=pb.RegisterBroker(
                broker=context.broker_id,
                life_id=context.life_id,
                cluster_id=context.state.cluster_id if again else known.cluster_id,
                last_incarnation=context.incarnation if context.incarnation is not None else known.last_incarnation,
                # This life may be registered and declared dead already, without having heard of it.
                earlier_lives=(*(() if again else known.earlier_lives), context.life_id),
                # The same process lost nothing.
                folder_same=again or known.folder_same,
                page_cache_survived=again or known.page_cache_survived,
                unsound=[ref_of(key) for key in sorted({*unsound})],
                raft_address=known.raft_address,
            )
        )
