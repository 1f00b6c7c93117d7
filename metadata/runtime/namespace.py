"""Messages about the clusters in a namespace: there should be one.

Every broker answers the question to which cluster it belongs, so that no second one is founded beside it (`bootstrap`).
A controller announces its own every `ANNOUNCE_INTERVAL_S`, and every message between brokers and controllers carries a
cluster id. A message of another cluster is not carried out; it is counted, and the other cluster is reported to
operators. Two clusters in one namespace come about where NATS was divided when one of them was founded. Neither stops
by itself, for both may hold data.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from metadata.controller.bootstrap import Bootstrap, Claim
from metadata.controller.controller_effects import Effect
from metadata.runtime.driver_context import MetadataContext
from wire.echo import one_line
from wire.operations.api_operations import OtherCluster
from wire.protobuf import metadata_pb2 as pb

_log = logging.getLogger(__name__)

ANNOUNCE_INTERVAL_S = 0.2
"""A founder listens for `bootstrap_wait_s`, so it sees a controller whose answers stand behind a flood all the same:
announcements leave by the connection that no flood reaches."""
REMEMBERED_S = 60.0
"""A cluster that has sent nothing for so long is not reported any more; while it sends, the log repeats it so often."""
MAX_CLUSTERS = 16
"""Limit of the others that are reported at a time; claims under ever new ids fill neither memory nor the log."""
MAX_CLAIM_BYTES = 4096
"""A broker's own claim has a name and three ids, some hundred bytes."""
MAX_CLAIMS = 10_000
"""Claims without a reply, in a second, at a broker that founds no cluster. Each controller in the namespace sends
five."""
MAX_QUESTIONS = 200
"""Questions in a second, at a broker that founds no cluster, that are answered singly. A founder asks ten."""
SHARED_ANSWER_S = 0.05
"""The questions beyond MAX_QUESTIONS get one answer together, so long after the first of them: founders receive it on
the subject of claims, where they listen before they ask. It is less than the distance of a founder's questions, so all
but the last are answered before it decides."""
FLOOD = 1000
"""Claims and questions in a second: a founder that receives more does not rely on silence. Each other founder and each
broker sends it some twenty at most."""
MAX_PRESENCE_ANSWERS = 500
"""Answers in a second. No more clients lose their controller at a time; the errors of others name no brokers."""
LOGGED_QUESTIONS = 50
"""A founder that goes on asking logs the reason after so many questions, and again after as many more."""


@dataclass(slots=True)
class _Heard:
    broker: str
    at: float
    logged_at: float
    logged_level: int = logging.NOTSET


class _PerSecond:
    """Counts events in a second."""

    def __init__(self) -> None:
        self._began = -inf
        self._taken = 0

    def take(self, now: float, limit: int) -> bool:
        """Counts one more; returns whether it is within the limit."""
        if now >= self._began + 1.0:
            self._began, self._taken = now, 0
        self._taken += 1
        return self._taken <= limit


class Namespace:
    """Claims of clusters. `known_cluster_id`: from the data folder; empty: a new folder. `run` carries effects out.
    `has_quorum()`: this broker is connected to a majority of the metadata group's voters."""

    def __init__(
        self,
        context: MetadataContext,
        known_cluster_id: str,
        run: Callable[[list[Effect]], None],
        has_quorum: Callable[[], bool],
    ) -> None:
        self._context = context
        self._known_cluster_id = known_cluster_id
        self._run = run
        self._has_quorum = has_quorum
        self._announced_at = -inf
        self._others: dict[str, _Heard] = {}
        self._full_until = -inf
        """Time before which no entry of the full `_others` expires."""
        self.dropped = 0
        """Count of messages of other clusters."""
        self.dropped_presence = 0
        """Count of questions which brokers are connected, beyond MAX_PRESENCE_ANSWERS."""
        self.dropped_claims = 0
        """Count of claims beyond MAX_CLAIMS, and questions beyond MAX_QUESTIONS."""
        self._claims = _PerSecond()
        self._questions = _PerSecond()
        self._presence = _PerSecond()
        self._at_founder = _PerSecond()
        self._shared_answer: asyncio.TimerHandle | None = None
        """Set while questions wait for the shared answer."""

    @property
    def cluster_id(self) -> str:
        """The id of the cluster that this broker belongs to; empty: it knows of none yet."""
        return self._context.state.cluster_id or self._known_cluster_id

    def is_ours(self, cluster_id: str, sender: str) -> bool:
        """Whether a message is of this broker's cluster; others are counted. A broker that does not know its cluster
        yet takes no message."""
        if not self.cluster_id:
            return False
        if cluster_id != self.cluster_id:
            self._hear(cluster_id, sender)
        return cluster_id == self.cluster_id

    def ask(self, inbox: str) -> None:
        """Asks all brokers of the namespace to which cluster they belong, before bootstrap. Answers: `on_claim`."""
        bootstrap = self._context.core.bootstrap
        if bootstrap is not None and bootstrap.asked % LOGGED_QUESTIONS == 0:
            _log.warning("broker %s founds no cluster yet: %s", self._context.broker_id, self.bootstrap_obstacle)
        self._context.transport.publish_claim(
            self._context.subjects.cluster(), self._claim().SerializeToString(), reply=inbox
        )

    @property
    def bootstrap_obstacle(self) -> str:
        """The reason why this broker, which is about to found a cluster, still asks; empty: it is not about to."""
        bootstrap = self._context.core.bootstrap
        return bootstrap.obstacle(self._context.subjects.cluster()) if bootstrap is not None else ""

    def announce(self) -> None:
        """Announces this broker's cluster, if it is the controller and the time has come."""
        now = self._context.monotonic()
        if self._context.core.controller_epoch and now >= self._announced_at + ANNOUNCE_INTERVAL_S:
            self._announced_at = now
            self._context.transport.publish_claim(self._context.subjects.cluster(), self._claim().SerializeToString())

    def may_skip(self, reply: str | None) -> bool:
        """Whether a message on the subject of claims is not looked into, because too many come; it is counted.

        At a broker that founds no cluster a claim serves operators only. A question is answered all the same, with
        others. A founder looks into each message, so that it misses no other founder and no cluster."""
        bootstrap = self._context.core.bootstrap
        if bootstrap is not None:
            self._count_at(bootstrap)
            return False
        now = self._context.monotonic()
        if reply is None:
            if self._claims.take(now, MAX_CLAIMS):
                return False
        else:
            if self._questions.take(now, MAX_QUESTIONS):
                return False
            if self._shared_answer is None:
                self._shared_answer = asyncio.get_running_loop().call_later(SHARED_ANSWER_S, self._answer_together)
        self.dropped_claims += 1
        return True

    def _count_at(self, bootstrap: Bootstrap) -> None:
        if not self._at_founder.take(self._context.monotonic(), FLOOD):
            bootstrap.on_flood()

    def _answer_together(self) -> None:
        self._shared_answer = None
        if self.cluster_id:
            self._context.transport.publish_claim(self._context.subjects.cluster(), self._claim().SerializeToString())

    def close(self) -> None:
        if self._shared_answer is not None:
            self._shared_answer.cancel()

    def on_claim(self, claim: pb.ClusterClaim, reply: str | None, is_proved: Callable[[], bool]) -> None:
        """Another broker, or this one, has named its cluster, or asks and names it. `is_proved()`: the sender holds a
        secret of this cluster. Without proof a claim makes a founder wait or stop, and is logged, and nothing more. A
        return of this broker's own question counts only with proof.

        A broker that founds no cluster asks for no proof, and does not wake its core: a claim changes nothing there."""
        founds = self._context.core.bootstrap is not None
        now = self._context.monotonic()
        if claim.life_id == self._context.life_id:
            if founds and reply is not None and is_proved():
                self._run(self._context.core.on_own_question(now))
            return
        if self.cluster_id and claim.cluster_id:
            self.is_ours(claim.cluster_id, claim.broker)
        if founds and (claim.cluster_id != self.cluster_id or not claim.cluster_id):
            self._run(
                self._context.core.on_claim(
                    Claim(
                        broker=claim.broker,
                        cluster_id=claim.cluster_id,
                        candidate=claim.candidate,
                        decided=claim.decided,
                    ),
                    now,
                )
            )
        if reply is not None:
            own = self._claim()
            if own.cluster_id or own.candidate:
                self._context.transport.publish_claim(reply, own.SerializeToString())

    def on_presence(self, _: bytes, reply: str | None, __: Callable[[], bool]) -> None:
        """A client that finds no controller asks which brokers are connected."""
        bootstrap = self._context.core.bootstrap
        if bootstrap is not None:
            self._count_at(bootstrap)
        if reply is not None:
            if not self._presence.take(self._context.monotonic(), MAX_PRESENCE_ANSWERS):
                self.dropped_presence += 1
                return
            claim = pb.ClusterClaim(
                broker=self._context.broker_id, cluster_id=self.cluster_id, has_quorum=self._has_quorum()
            )
            self._context.transport.publish_claim(reply, claim.SerializeToString())

    def others(self) -> list[OtherCluster]:
        """Clusters that sent messages lately, as JSON."""
        now = self._context.monotonic()
        return [
            {"cluster_id": cluster_id, "broker": heard.broker, "heard_seconds_ago": round(now - heard.at, 1)}
            for cluster_id, heard in sorted(self._others.items())
            if now - heard.at <= REMEMBERED_S
        ]

    def _claim(self) -> pb.ClusterClaim:
        bootstrap = self._context.core.bootstrap if not self.cluster_id else None
        return pb.ClusterClaim(
            broker=self._context.broker_id,
            life_id=self._context.life_id,
            cluster_id=self.cluster_id,
            candidate=bootstrap.candidate if bootstrap is not None else "",
            decided=bootstrap is not None and bootstrap.is_proposed,
        )

    def _hear(self, cluster_id: str, broker: str) -> None:
        self.dropped += 1
        if not cluster_id:
            return
        cluster_id = one_line(cluster_id)
        now = self._context.monotonic()
        heard = self._others.get(cluster_id)
        if heard is None:
            if now < self._full_until:
                return
            self._others = {known: other for known, other in self._others.items() if now - other.at <= REMEMBERED_S}
            if len(self._others) >= MAX_CLUSTERS:
                self._full_until = min(other.at for other in self._others.values()) + REMEMBERED_S
                return
            heard = self._others[cluster_id] = _Heard(one_line(broker), now, -inf)
        heard.broker, heard.at = one_line(broker), now
        level = logging.ERROR if self._context.core.controller_epoch else logging.WARNING
        # A broker that has become the controller since says it again, as an error.
        if now - heard.logged_at >= REMEMBERED_S or level > heard.logged_level:
            heard.logged_at, heard.logged_level = now, level
            _log.log(
                level,
                "broker %s of cluster %s hears another cluster in namespace %r: %s (broker %s). Stop one of them, or"
                " move it to another namespace: clients may be answered by either",
                self._context.broker_id,
                self.cluster_id,
                self._context.subjects.namespace,
                cluster_id,
                broker,
            )
