"""Messages about the clusters in a namespace: there should be one.

Every broker answers the question to which cluster it belongs, so that no second one is founded beside it
(`bootstrap`). A controller says it unasked every `ANNOUNCE_INTERVAL_S`, and every message between brokers
and controllers carries a cluster id. A message of another cluster is not carried out; it is counted, and the other
cluster is told to operators. Two clusters in one namespace come about where NATS was divided when one of them was
founded. Neither stops by itself, for both may hold data.
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
"""A founder listens for `bootstrap_wait_s`, so it hears a controller whose answers stand behind a flood all the same:
announcements leave by the connection that no flood reaches."""
REMEMBERED_S = 60.0
"""A cluster that has not been heard for so long is not told of any more; while it is heard, the log repeats it so
often."""
MAX_CLUSTERS = 16
"""Others that are told of at a time; claims under ever new ids fill neither memory nor the log."""
MAX_CLAIM_BYTES = 4096
"""A broker's own claim has a name and three ids, some hundred bytes."""
MAX_CLAIMS = 10_000
"""Without a reply, in a second, at a broker that founds no cluster. Each controller in the namespace sends one."""
MAX_QUESTIONS = 200
"""In a second, at a broker that founds no cluster, that are answered one by one. A founder asks ten in a second."""
SHARED_ANSWER_S = 0.05
"""The questions beyond MAX_QUESTIONS get one answer together, so long after the first of them: founders hear it on the
subject of claims, where they listen before they ask. It is less than the distance of a founder's questions, so all but
the last are answered before it decides."""
FLOOD = 1000
"""Claims and questions in a second: a founder that hears more does not rely on silence. Of each other founder and each
broker it hears some twenty at most."""
MAX_PRESENCE_ANSWERS = 500
"""In a second. More clients than that do not lose their controller at a time; their errors name no brokers then."""
LOGGED_QUESTIONS = 50
"""A founder that goes on asking says why after so many questions, and again after as many more."""


@dataclass(slots=True)
class _Heard:
    broker: str
    at: float
    logged_at: float
    logged_level: int = logging.NOTSET


class _PerSecond:
    """Counts what comes in a second."""

    def __init__(self) -> None:
        self._began = -inf
        self._taken = 0

    def take(self, now: float, limit: int) -> bool:
        """Whether one more is within the limit."""
        if now >= self._began + 1.0:
            self._began, self._taken = now, 0
        self._taken += 1
        return self._taken <= limit


class Namespace:
    """See the module. `known_cluster_id`: from the data folder; empty: a new folder. `run` carries effects out."""

    def __init__(self, context: MetadataContext, known_cluster_id: str, run: Callable[[list[Effect]], None]) -> None:
        self._context = context
        self._known_cluster_id = known_cluster_id
        self._run = run
        self._announced_at = -inf
        self._others: dict[str, _Heard] = {}
        self._full_until = -inf
        """Before that none of `_others` is forgotten, and there are MAX_CLUSTERS of them."""
        self.dropped = 0
        """Messages of other clusters."""
        self.dropped_presence = 0
        """Questions which brokers are connected, beyond MAX_PRESENCE_ANSWERS."""
        self.dropped_claims = 0
        """Claims beyond MAX_CLAIMS, and questions beyond MAX_QUESTIONS."""
        self._claims = _PerSecond()
        self._questions = _PerSecond()
        self._presence = _PerSecond()
        self._at_founder = _PerSecond()
        self._shared_answer: asyncio.TimerHandle | None = None
        """Set while questions wait for it."""

    @property
    def cluster_id(self) -> str:
        """The id of the cluster that this broker belongs to; empty: it knows of none yet."""
        return self._context.state.cluster_id or self._known_cluster_id

    def is_ours(self, cluster_id: str, sender: str) -> bool:
        """Whether a message is of this broker's cluster; it is counted if it is not. A broker that does not know its
        cluster yet takes nothing."""
        if not self.cluster_id:
            return False
        if cluster_id != self.cluster_id:
            self._hear(cluster_id, sender)
        return cluster_id == self.cluster_id

    def ask(self, inbox: str) -> None:
        """Ask all brokers of the namespace to which cluster they belong, before bootstrap one. Answers: `on_claim`."""
        bootstrap = self._context.core.bootstrap
        if bootstrap is not None and bootstrap.asked % LOGGED_QUESTIONS == 0:
            _log.warning("broker %s founds no cluster yet: %s", self._context.broker_id, self.bootstrap_obstacle)
        self._context.transport.publish_claim(
            self._context.subjects.cluster(), self._claim().SerializeToString(), reply=inbox
        )

    @property
    def bootstrap_obstacle(self) -> str:
        """Why this broker, which is about to found a cluster, still asks; empty: it is not about to."""
        bootstrap = self._context.core.bootstrap
        return bootstrap.obstacle(self._context.subjects.cluster()) if bootstrap is not None else ""

    def announce(self) -> None:
        """Say the own cluster, if this broker is the controller and the time has come."""
        now = self._context.monotonic()
        if self._context.core.controller_epoch and now >= self._announced_at + ANNOUNCE_INTERVAL_S:
            self._announced_at = now
            self._context.transport.publish_claim(self._context.subjects.cluster(), self._claim().SerializeToString())

    def may_skip(self, reply: str | None) -> bool:
        """Whether a message on the subject of claims is not looked into, because too many come; it is counted.

        A claim is news for operators to a broker that founds no cluster, and nothing else. A question is answered all
        the same, with others. A founder looks into each message: it hears every other founder and every cluster."""
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
        """Another broker, or this one, has said to which cluster it belongs, or asks with it. `is_proved()`: it holds a
        secret of this cluster. Anybody else may say what he likes here: it makes a founder wait or stop, and a log say
        so, and nothing more. That this broker's own question came back is proved, or it did not.

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
            claim = pb.ClusterClaim(broker=self._context.broker_id, cluster_id=self.cluster_id)
            self._context.transport.publish_claim(reply, claim.SerializeToString())

    def others(self) -> list[OtherCluster]:
        """Clusters that were heard lately, as JSON."""
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
