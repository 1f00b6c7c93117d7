"""Operations of the API on transactions: the controller hands them over to the transactions' coordinators."""

from __future__ import annotations

from typing import Any, TypeVar

from metadata.runtime.service import MetadataService
from tidelog.server.handing_over import HandingOver
from wire.errors import Code, TidelogError
from wire.internal_records.transaction_records import check_transactional_id, coordinator_partition
from wire.internal_streams import GROUPS, TRANSACTIONS
from wire.messaging.transport import PeerTransport
from wire.operations import transaction_operations as op
from wire.operations.operation import Operation, handles
from wire.subjects import Subjects

_Answer = TypeVar("_Answer")


class TransactionRequests:
    def __init__(self, metadata: MetadataService, peers: PeerTransport, subjects: Subjects) -> None:
        self._coordinators = HandingOver(TRANSACTIONS, metadata, peers, subjects)
        self._coordinators_of_groups = HandingOver(GROUPS, metadata, peers, subjects)

    @handles(op.TRANSACTION_COORDINATOR)
    async def coordinator(self, request: op.TransactionRef) -> op.TransactionCoordinator:
        """A transaction may take a group in whose stream is not made yet: it would never end."""
        partition = coordinator_partition(check_transactional_id(request.transactional_id))
        await self._coordinators_of_groups.make_stream()
        await self._coordinators.make_stream()
        return {"partition": partition}

    @handles(op.TRANSACTION_LIST)
    async def list_(self, request: op.ListTransactionsRequest) -> op.TransactionList:
        if not self._coordinators.has_stream:
            return {"transactions": [], "left_out": 0, "unanswered": []}
        answers, unanswered = await self._coordinators.ask_each(op.TRANSACTION_LIST, request)
        found = sorted((each for answer in answers for each in answer["transactions"]), key=op.place_in_list)
        left_out = sum(answer["left_out"] for answer in answers) + max(0, len(found) - op.MAX_LISTED)
        return {"transactions": found[: op.MAX_LISTED], "left_out": left_out, "unanswered": unanswered}

    @handles(op.TRANSACTION_DESCRIBE)
    async def describe(self, request: op.TransactionRef) -> op.TransactionDescription:
        return await self._ask_of(op.TRANSACTION_DESCRIBE, request)

    @handles(op.TRANSACTION_ABORT)
    async def abort(self, request: op.TransactionRef) -> op.TransactionDescription:
        return await self._ask_of(op.TRANSACTION_ABORT, request)

    async def _ask_of(self, operation: Operation[..., Any, _Answer], request: op.TransactionRef) -> _Answer:
        partition = coordinator_partition(check_transactional_id(request.transactional_id))
        if not self._coordinators.has_stream:
            raise TidelogError(
                Code.UNKNOWN_TRANSACTION,
                f"there is no transactional id {request.transactional_id!r}: no transaction has been made in this"
                " cluster",
            )
        return await self._coordinators.ask(operation, request, partition)
