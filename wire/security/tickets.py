"""Tickets: a coordinator of transactions lets a producer write to a partition, or commit offsets of a group, in one
transaction.

The coordinator gives a ticket once it is committed that the partition takes part, so that a marker will come there. The
leader of the partition opens no transaction without one. A client cannot forge one, and so cannot open a transaction
that nobody ends, behind which consumers would wait for ever. The leader needs no other broker to check it.

     0          4                12                       28
     +----------+----------------+------------------------+
     | secret   | over at, u64 BE| tag, 16 bytes          |
     +----------+----------------+------------------------+

    secret    fingerprint of the secret from which the key is derived (`wire.security.cluster_secrets`)
    over at   s since 1970, by the time on which most brokers agree (R72): the clock of no single broker decides
    tag       BLAKE2b-128, keyed, over the first 12 bytes, the producer, its epoch, the cluster and the target

A ticket of an ended transaction is void in a partition that has its marker: the producer's epoch is over there. A
partition remembers a transactional producer for longer than LIFETIME_S after its last batch or marker.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from wire.errors import Code, TidelogError
from wire.security.cluster_secrets import FINGERPRINT_BYTES, ClusterSecret, ClusterSecrets

LIFETIME_S: Final = 3600
"""Longer than any transaction may be open."""

_TAG_BYTES: Final = 16
_OVER_AT: Final = struct.Struct(">Q")
_OF: Final = struct.Struct(">qi")
_SIZE: Final = FINGERPRINT_BYTES + _OVER_AT.size + _TAG_BYTES


def partition_target(stream: str, stream_incarnation: int, partition: int, partition_incarnation: int) -> str:
    return f"partition {stream} {stream_incarnation} {partition} {partition_incarnation}"


def group_target(group: str) -> str:
    return f"group {group}"


class Tickets:
    """Makes and checks tickets. `cluster_id()`: of the cluster; `time_s()`: since 1970, the same at all brokers."""

    def __init__(self, secrets: ClusterSecrets, cluster_id: Callable[[], str], time_s: Callable[[], float]) -> None:
        self._secrets = secrets
        self._cluster_id = cluster_id
        self._time_s = time_s

    def make(self, producer_id: int, producer_epoch: int, target: str) -> bytes:
        secret = self._secrets.first
        head = secret.fingerprint + _OVER_AT.pack(int(self._time_s()) + LIFETIME_S)
        return head + self._tag(secret, head, producer_id, producer_epoch, target)

    # R48: No transaction begins that no coordinator ends. A transactional batch shows a ticket, a keyed hash that its
    # coordinator gives once it is committed that the partition takes part; without a valid one it is
    # NOT_IN_TRANSACTION. It is acknowledged once the HW has passed it. A batch of an earlier producer epoch is
    # PRODUCER_FENCED; a producer is remembered for longer than any ticket is valid. What is open, ended and aborted is
    # a function of the log.
    # Hazard: Consumers that wait for ever behind a transaction that nobody ends.
    # Not covered: A table whose state at the log start was lost may have forgotten that an epoch is over.
    def check(self, ticket: bytes, producer_id: int, producer_epoch: int, target: str) -> None:
        """Raises TidelogError(NOT_IN_TRANSACTION) for a ticket that is not valid now."""
        if not self._is_made_here(ticket, producer_id, producer_epoch, target):
            raise TidelogError(
                Code.NOT_IN_TRANSACTION,
                f"producer {producer_id} shows no valid ticket for {target} in epoch {producer_epoch}: ask the"
                " coordinator of its transaction to add it",
            )
        (over_at,) = _OVER_AT.unpack_from(ticket, FINGERPRINT_BYTES)
        late = self._time_s() - over_at
        if late >= 0:
            raise TidelogError(
                Code.NOT_IN_TRANSACTION,
                f"the ticket of producer {producer_id} for {target} in epoch {producer_epoch} is over since {late:.0f}"
                " s: ask the coordinator of its transaction for another one. If that is refused, too, the"
                " clocks of the brokers do not agree (`tidelog cluster status` tells)",
            )

    def _is_made_here(self, ticket: bytes, producer_id: int, producer_epoch: int, target: str) -> bool:
        if len(ticket) != _SIZE:
            return False
        head, tag = ticket[:-_TAG_BYTES], ticket[-_TAG_BYTES:]
        return any(
            hmac.compare_digest(tag, self._tag(secret, head, producer_id, producer_epoch, target))
            for secret in self._secrets.accepted
            if head.startswith(secret.fingerprint)
        )

    def _tag(self, secret: ClusterSecret, head: bytes, producer_id: int, producer_epoch: int, target: str) -> bytes:
        covered = head + _OF.pack(producer_id, producer_epoch) + f"{self._cluster_id()}\n{target}".encode()
        return blake2b(covered, digest_size=_TAG_BYTES, key=secret.ticket_key).digest()
