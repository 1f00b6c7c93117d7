"""Repartitions of streams in use, as the controller drives them: when keys begin to go to the new layout, and when that
is over. Events in, effects out.

    PREPARED   the partitions are made. Cutover is proposed when the leader of each partition of both layouts has
               answered a probe with the generation of the Prepare, or a later one, so that it is there, and knows that
               it leads; and each of them has min ISR members, without which it may not be able to report (R62)
    CUTOVER    leaders report where the layout before ends. Finish is proposed when all of them have, and the clients
               that report their generations have applied the cutover; at the latest `repartition_adoption_timeout_s`
               after this controller has found that all leaders have reported

The generations that clients have applied ride on the probe answers of their brokers
(`wire.operations.adoption_report`). The last report of a dead broker is of clients which are gone, and does not count.
Without any report the timeout decides. Adoption spares clients refusals; records are placed right without it, for
leaders refuse those routed by an older layout.

A command that is refused or lost is proposed anew, at the latest `DECISION_RETRY_S` later. A new controller begins to
wait anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from metadata.cluster.model import Changes, Repartition, RepartitionPhase, Stream
from metadata.commands.cluster_state import ClusterState
from metadata.controller.controller_effects import Effect, Note, Propose
from metadata.controller.failover import DECISION_RETRY_S
from metadata.controller.metadata_settings import MetadataSettings
from wire.layouts import NOT_REPORTED
from wire.protobuf import metadata_pb2 as pb
from wire.types import BrokerId, Generation, StreamName

LOOKED_AT: Final = 10_000
"""Partitions of repartitioned streams that one decision looks at, and up to one stream's more: some ms."""


@dataclass(slots=True)
class _Watched:
    marker: Repartition
    retry_at: float = -inf
    """A proposed command is waited for until then."""
    told_at: float = inf
    """When this controller found that all cutovers are reported."""


class Repartitioning:
    """Proposes the steps of repartitions. `state` is read only. `knows(broker)`: the generation up to which that broker
    has taken up its leaderships, by its newest answer to a probe; `live()`: the brokers that are alive; `propose` makes
    the effect that proposes a command; `epoch()`: the controller epoch of this broker, 0 while it is not the
    controller."""

    def __init__(
        self,
        state: ClusterState,
        settings: MetadataSettings,
        *,
        knows: Callable[[BrokerId], Generation | None],
        live: Callable[[], Collection[BrokerId]],
        propose: Callable[[pb.Command], Propose],
        epoch: Callable[[], int],
    ) -> None:
        self._state = state
        self.timeout_s = settings.repartition_adoption_timeout_s
        self._knows = knows
        self._live = live
        self._propose = propose
        self._epoch = epoch
        self._watched: dict[StreamName, _Watched] = {}
        self._adoption: dict[BrokerId, Mapping[str, int]] = {}
        """Adoption labels of the brokers' newest answers to probes."""

    def begin(self) -> None:
        """A controller epoch of this broker begins."""
        self._look_at(self._state.streams)

    def end(self) -> None:
        """The controller epoch of this broker is over."""
        self._watched.clear()
        self._adoption.clear()

    def on_applied(self, changes: Changes) -> None:
        self._look_at({*changes.repartitioned, *(key.stream for key in changes.gone)} if changes else ())

    def on_adoption(self, broker: BrokerId, generations: Mapping[str, int]) -> None:
        """`generations`: by stream, the smallest routing generation that a client of this broker has applied."""
        self._adoption[broker] = generations

    # Keeps R60.
    def adopted(self, stream: StreamName) -> int | None:
        """The smallest routing generation of the stream that clients of live brokers have applied; None: no client
        reported one."""
        told = [self._adoption[broker] for broker in self._live() if broker in self._adoption]
        return min((generations[stream] for generations in told if stream in generations), default=None)

    def seconds_since_reports(self, stream: StreamName, now: float) -> float | None:
        """Seconds since this controller knows all cutovers of the stream's repartition; None: some are unreported."""
        watched = self._watched.get(stream)
        return None if watched is None or watched.told_at == inf else max(0.0, now - watched.told_at)

    # Keeps R58.
    def not_ready(self, stream: Stream) -> list[int]:
        """Returns partitions of both layouts that are below min ISR, whose leaders have not confirmed the Prepare yet,
        or that have not reported the last cutover: keys that come from there, or go there, could not be written after
        the cutover."""
        marker = stream.repartition
        assert marker is not None
        untold = {*unreported_sources(stream)}
        return [
            number
            for number in concerned(stream, marker)
            if (leader := stream.partitions[number].leader) is None
            or len(stream.partitions[number].isr) < stream.min_isr
            or (self._knows(leader) or 0) < marker.prepared_generation
            or number in untold
        ]

    def due(self, now: float) -> list[Effect]:
        """Returns effects that propose the commands due now. A call looks at the partitions of some streams, and the
        next one at those of others."""
        effects: list[Effect] = []
        looked_at = 0
        for name, watched in [*self._watched.items()]:
            if looked_at >= LOOKED_AT:
                break
            self._watched[name] = self._watched.pop(name)  # behind all others
            stream = self._state.streams.get(name)
            # The state may be ahead of the changes that `on_applied` has received.
            if stream is None or stream.repartition != watched.marker:
                continue
            looked_at += len(stream.partitions)
            if watched.marker.phase is RepartitionPhase.CUTOVER and stream.layouts[-1].is_reported:
                watched.told_at = min(watched.told_at, now)
            if now < watched.retry_at:
                continue
            effects += self._next_step(stream, watched, now)
        return effects

    def _next_step(self, stream: Stream, watched: _Watched, now: float) -> Iterable[Effect]:
        marker, name = watched.marker, stream.name
        if marker.phase is RepartitionPhase.PREPARED:
            if self.not_ready(stream):
                return
            watched.retry_at = now + DECISION_RETRY_S
            yield Note(f"stream {name}: keys go to {marker.partitions} partitions, version {marker.version}")
            cutover = pb.Cutover(
                controller_epoch=self._epoch(), name=name, incarnation=stream.incarnation, version=marker.version
            )
            yield self._propose(pb.Command(cutover=cutover))
            return
        if watched.told_at == inf:
            return
        adopted = self.adopted(name)
        if adopted is not None and adopted >= marker.adoption_generation:
            why = "clients have applied it"
        elif now - watched.told_at >= self.timeout_s:
            known = "no client tells of it" if adopted is None else f"some clients know generation {adopted} only"
            why = f"{known} after {self.timeout_s:g} s, and leaders refuse what is routed by an older layout"
        else:
            return
        watched.retry_at = now + DECISION_RETRY_S
        yield Note(f"stream {name}: the repartition to {marker.partitions} partitions is over: {why}")
        finish = pb.FinishRepartition(
            controller_epoch=self._epoch(), name=name, incarnation=stream.incarnation, version=marker.version
        )
        yield self._propose(pb.Command(finish_repartition=finish))

    def _look_at(self, names: Iterable[StreamName]) -> None:
        for name in sorted(names):
            stream = self._state.streams.get(name)
            marker = stream.repartition if stream is not None else None
            known = self._watched.get(name)
            if marker is None:
                self._watched.pop(name, None)
            elif known is None or known.marker != marker:
                self._watched[name] = _Watched(marker)


def concerned(stream: Stream, marker: Repartition) -> list[int]:
    """Partitions whose leaders the cutover waits for: those of both layouts, and any that has not reported the last
    one."""
    return sorted({*range(max(stream.partition_count, marker.partitions)), *unreported_sources(stream)})


def unreported_sources(stream: Stream) -> list[int]:
    """Returns the partitions whose leaders have not reported the newest cutover."""
    return [number for number, start in enumerate(stream.layouts[-1].starts) if start == NOT_REPORTED]
