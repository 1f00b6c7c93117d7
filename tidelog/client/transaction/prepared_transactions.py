"""The end of prepared transactions of a family by a client (docs/transactions.md)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from tidelog.client.base.arguments import bad
from tidelog.client.base.exceptions import DeliveryTimeout, NoServer
from tidelog.client.cluster.coordinator_link import Attempts, CoordinatorLink
from wire.error_details import OUTCOME
from wire.errors import Code
from wire.internal_records.transaction_records import END_FAMILY, FAMILY, MAX_MEMBERS, TILDE
from wire.protobuf.transactions_pb2 import (
    EndFamilyRequest,
    EndFamilyResponse,
    FamilyMember,
    FamilyRequest,
    FamilyResponse,
)

_log = logging.getLogger(__name__)


class PreparedTransaction(NamedTuple):
    """The result of `TransactionalProducer.prepare`, which `Client.commit_prepared` takes in any process."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    proof: bytes = b""
    """A secret: whoever has it may commit or abort the transaction."""


class FamilyCommit(NamedTuple):
    """The last commit of a family."""

    sequence: int
    metadata: str
    """The metadata given to `Client.commit_prepared`."""


async def end_family(
    link: CoordinatorLink,
    family: str,
    transactions: Iterable[PreparedTransaction],
    *,
    commits: bool,
    sequence: int,
    others: bool,
    timeout: float,
    once: bool = False,
    metadata: str = "",
) -> bool:
    """Returns whether these are committed, or aborted, as requested. False of a commit: others were committed in their
    place; of an abort: the coordinator does not know any more whether one of them was committed before."""
    given = [*transactions]
    if len(given) > MAX_MEMBERS:
        raise bad(
            f"{len(given)} transactions of {family!r} are to end together, and {MAX_MEMBERS} can; let fewer producers"
            " write more each"
        )
    request = EndFamilyRequest(
        family=family,
        members=[_member(family, each) for each in given],
        commits=commits,
        sequence=sequence,
        others=others,
        once=once,
        metadata=metadata,
        cluster_id=await link.cluster_id(),
    )
    attempts = Attempts()
    try:
        answer = await link.ask(END_FAMILY, family, request, EndFamilyResponse, timeout=timeout, attempts=attempts)
    except NoServer as error:
        if not commits or not attempts.repeated:
            raise
        raise DeliveryTimeout(
            Code.OUTCOME_UNKNOWN,
            f"the transactions of family {family!r} may or may not be committed: {error.message}; commit the same ones"
            " again to find out",
            [OUTCOME.of("unknown")],
        ) from error
    if answer.waits_for:
        _log.warning(
            "the transactions of family %r are %s, and %s do not show it yet, for they cannot be reached",
            family,
            "committed" if commits else "aborted",
            ", ".join(answer.waits_for)[:1000],
        )
    return not answer.superseded if commits else answer.none_committed or not given


async def last_commit(link: CoordinatorLink, family: str, timeout: float) -> FamilyCommit | None:
    request = FamilyRequest(family=family, cluster_id=await link.cluster_id())
    answer = await link.ask(FAMILY, family, request, FamilyResponse, timeout=timeout)
    return FamilyCommit(answer.sequence, answer.metadata) if answer.HasField("sequence") else None


def _member(family: str, prepared: PreparedTransaction) -> FamilyMember:
    """Returns the member of a family. Raises BadRequest."""
    try:
        name, producer, epoch, proof = prepared
        of, _, child = name.partition(TILDE)
        if of != family:
            raise bad(f"{name!r} is no transaction of family {family!r}; only those of one family end together")
        return FamilyMember(child=child, producer_id=producer, producer_epoch=epoch, proof=proof)
    except (AttributeError, TypeError, ValueError):
        raise bad(f"{prepared!r:.100} is no PreparedTransaction, as producer.prepare() gives it") from None
