"""The prologue of every request to one replica: it is decoded, and must be meant for this life of the partition.

does not decode                       BAD_REQUEST, counted and logged
a later life of the partition         no answer: see `Requests.is_outlived`
another cluster of the namespace      no answer, counted: the leader of that one answers
an earlier life of the partition      WRONG_INCARNATION
this life                             the handler goes on with the request
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from google.protobuf.message import DecodeError

from dataplane.broker.roles.broker_context import BrokerContext
from dataplane.broker.roles.counters import Counters, counter
from dataplane.broker.roles.role_answers import Answers, PeerAnswers
from wire.errors import Code, TidelogError
from wire.messaging.transport import Message
from wire.protobuf.tidelog_pb2 import (
    AppendRequest,
    EndTransactionRequest,
    FetchRequest,
    LeaderEpochOffsetRequest,
    ReplicationRequest,
    SnapshotRequest,
)
from wire.types import Buffer, PartitionKey

_log = logging.getLogger(__name__)

PeerRequest: TypeAlias = ReplicationRequest | LeaderEpochOffsetRequest | SnapshotRequest | EndTransactionRequest
ClientRequest: TypeAlias = AppendRequest | FetchRequest


def _no_body() -> Buffer:
    return b""


@dataclass
class RequestCounters(Counters):
    bad_requests: int = counter(
        "messages",
        "requests to replicas that do not decode, or that ask for what no request may",
    )
    requests_of_other_clusters: int = counter(
        "messages",
        "clients' requests that name another cluster in this namespace",
    )


class Requests:
    def __init__(self, key: PartitionKey, answers: Answers, peer_answers: PeerAnswers, context: BrokerContext) -> None:
        self._key = key
        self._answers = answers
        self._peer_answers = peer_answers
        self._context = context

    def decode(
        self,
        kind: str,
        request: PeerRequest,
        message: Message,
        refusal_body: Callable[[], Buffer] = _no_body,
    ) -> bool:
        """Parse the message of a broker into `request`. False: it has been refused or is left without an answer.
        `refusal_body`: the payload of a WRONG_INCARNATION answer."""
        if not self._parse(kind, request, message, self._peer_answers):
            return False
        if self.is_same_incarnation(request.stream_incarnation, request.partition_incarnation):
            return True
        if not self.is_outlived(request):
            self._peer_answers.error(message.reply, self._wrong_incarnation(), refusal_body())
        return False

    def decode_fetch(self, message: Message) -> FetchRequest | None:
        """The request of a consumer. None: it has been refused or is left without an answer."""
        request = FetchRequest()
        if not self._parse("fetch", request, message, self._answers) or self.is_for_another(request):
            return None
        try:
            self.check_incarnation(request)
        except TidelogError as e:
            self._answers.error(message.reply, e)
            return None
        return request

    def _parse(
        self, kind: str, request: PeerRequest | FetchRequest, message: Message, answers: Answers | PeerAnswers
    ) -> bool:
        try:
            request.ParseFromString(message.data)
        except DecodeError as e:
            self._refuse_bad(kind, message, f"does not decode: {e}", answers)
            return False
        return True

    # R6: A stream that was deleted and created again is another one. Folders and requests carry the incarnations of
    # stream and partition. A request for a later incarnation is met with silence, since the leader of that incarnation
    # listens on the same subject; one for an earlier incarnation is answered with WRONG_INCARNATION.
    # Hazard: Records or folders of a deleted stream are taken for those of its successor.
    def is_same_incarnation(self, stream_incarnation: int, partition_incarnation: int) -> bool:
        key = self._key
        return stream_incarnation == key.stream_incarnation and partition_incarnation == key.partition_incarnation

    def is_outlived(self, request: PeerRequest | ClientRequest) -> bool:
        """The stream was deleted and created again, and this replica of the deleted stream does not know of it yet. It
        shares its subjects with the replicas of the new stream, whose answer it must not overtake with a refusal."""
        key = self._key
        return (request.stream_incarnation, request.partition_incarnation) > (
            key.stream_incarnation,
            key.partition_incarnation,
        )

    def is_for_another(self, request: ClientRequest) -> bool:
        """A leader of another cluster, or of a later life, shares the subject, and answers."""
        if request.cluster_id and request.cluster_id != self._context.cluster_id:
            self._context.the(RequestCounters).requests_of_other_clusters += 1
            return True
        return self.is_outlived(request)

    def check_incarnation(self, request: ClientRequest) -> None:
        """Refuses a request for an earlier incarnation. One that names none passes. Raises
        TidelogError(WRONG_INCARNATION)."""
        key = self._key
        if (request.stream_incarnation and request.stream_incarnation != key.stream_incarnation) or (
            request.partition_incarnation and request.partition_incarnation != key.partition_incarnation
        ):
            raise self._wrong_incarnation()

    def _wrong_incarnation(self) -> TidelogError:
        return TidelogError(Code.WRONG_INCARNATION, f"{self._key} was deleted and created again; refresh the metadata")

    def refuse_bad(self, kind: str, message: Message, why: str) -> None:
        """The request of a client."""
        self._refuse_bad(kind, message, why, self._answers)

    def refuse_bad_of_peer(self, kind: str, message: Message, why: str) -> None:
        """The request of a broker."""
        self._refuse_bad(kind, message, why, self._peer_answers)

    def _refuse_bad(self, kind: str, message: Message, why: str, answers: Answers | PeerAnswers) -> None:
        self._context.the(RequestCounters).bad_requests += 1
        _log.warning("partition %s: dropped a bad request: the %s request %s", self._key, kind, why)
        answers.error(message.reply, TidelogError(Code.BAD_REQUEST, f"the {kind} request {why}"))
