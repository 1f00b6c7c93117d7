"""Refusals of a coordinator of transactions, with their reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wire.error_details import LIMIT, OUTCOME, RETRY_AFTER_MS
from wire.errors import Code, TidelogError
from wire.internal_streams import TRANSACTIONS

if TYPE_CHECKING:
    from tidelog.server.coordinators.transactions.transaction_metadata import Outcome, Transaction

RETRY_MS = 100


def fenced(transaction: Transaction, epoch: int) -> TidelogError:
    return TidelogError(
        Code.PRODUCER_FENCED,
        f"epoch {epoch} of a producer under transactional id {transaction.transactional_id!r} is over: a newer producer"
        " has begun under that id, or an operator has aborted the transaction. Give each program an id of its own, and"
        " make a new producer to go on",
    )


def in_use(transactional_id: str) -> TidelogError:
    """The refusal of an init that aborts nothing."""
    return TidelogError(
        Code.PRODUCER_FENCED,
        f"another producer has an open transaction under transactional id {transactional_id!r}, which this one does not"
        " abort; take another id",
    )


def forgotten(transactional_id: str) -> TidelogError:
    return TidelogError(
        Code.UNKNOWN_TRANSACTION,
        f"transactional id {transactional_id!r} was not used for long, and is forgotten with its producer; begin anew",
    )


def is_committed(transactional_id: str) -> TidelogError:
    return TidelogError(
        Code.TRANSACTION_COMMITTED,
        f"the transaction of {transactional_id!r} is committed, and cannot be changed any more",
    )


def ended(transaction: Transaction, outcome: Outcome) -> TidelogError:
    """The refusal where the producer goes on as if its transaction had not ended, or had ended otherwise."""
    name = transaction.transactional_id
    if outcome.commits:
        return is_committed(name)
    because = (
        "by its producer"
        if outcome.name == "ABORTED"
        else f"because it was open for longer than its timeout of {transaction.timeout_ms} ms"
    )
    return TidelogError(
        Code.TRANSACTION_ABORTED,
        f"the transaction of {name!r} was aborted {because}; nothing of it is seen. Begin another one with the same"
        " records",
    )


def nothing_added(transaction: Transaction) -> TidelogError:
    """The refusal of a commit without participants, which happens only if records of this coordinator were lost."""
    return TidelogError(
        Code.TRANSACTION_ABORTED,
        f"nothing was added to the transaction of {transaction.transactional_id!r}, so nothing is committed. Begin"
        " another one with the same records",
    )


def ends_still(transaction: Transaction, waits_for: list[str]) -> TidelogError:
    return TidelogError(
        Code.UNAVAILABLE,
        f"the transaction before of {transaction.transactional_id!r} is {transaction.state_name}, and waits for"
        f" {', '.join(waits_for)}; try again",
        [RETRY_AFTER_MS.of(RETRY_MS)],
    )


def not_all_open(transactional_id: str, why: str) -> TidelogError:
    """The refusal of a family's commit."""
    return TidelogError(
        Code.TRANSACTION_ABORTED,
        f"nothing is committed, and all of these transactions are aborted: that of {transactional_id!r} cannot be"
        f" committed, for {why}. Write them again",
    )


def committed_before(transactional_id: str) -> TidelogError:
    """The refusal of a family's commit that names what another commit has committed."""
    return TidelogError(
        Code.TRANSACTION_COMMITTED,
        f"the transaction of {transactional_id!r} was committed before, by another commit than this one, which is not"
        " carried out; those of its transactions that were still open are aborted. Do not write again what is"
        " committed, and commit each transaction once, with one sequence",
    )


def unknown_commit(family: str, transactional_id: str, why: str) -> TidelogError:
    """The refusal of a commit of which nothing is known any more."""
    return TidelogError(
        Code.STALE_COMMIT,
        f"whether these transactions were committed before is not known: they are not among the last commits of family"
        f" {family!r} that its coordinator keeps, and that of {transactional_id!r} cannot be committed now, for {why}."
        " Look what is there before you write them again",
        [OUTCOME.of("unknown")],
    )


def taken_sequence(family: str, sequence: int) -> TidelogError:
    """The refusal of a commit with the number of the last one, of which nothing is known any more."""
    return TidelogError(
        Code.STALE_COMMIT,
        f"family {family!r} has committed sequence {sequence} with other transactions than these. Whether these were"
        " committed before, with another sequence, is not known any more; those that were still open are aborted. Look"
        " what is there before you write them again",
        [OUTCOME.of("unknown")],
    )


def stale_sequence(family: str, sequence: int, last: int, *, is_known: bool) -> TidelogError:
    """The refusal of a family's commit behind a later one. `is_known`: these transactions are not committed; otherwise
    they may have been, before the later one."""
    outcome = (
        "These transactions are not committed"
        if is_known
        else "Whether these transactions were committed before is not known any more"
    )
    return TidelogError(
        Code.STALE_COMMIT,
        f"family {family!r} has committed sequence {last}, and commits no smaller one such as {sequence}. {outcome};"
        " those that were still open are aborted. Another program, or an older checkpoint, is at work under that name",
        [OUTCOME.of("not_written" if is_known else "unknown")],
    )


def family_ends_still(family: str, waits_for: list[str]) -> TidelogError:
    return TidelogError(
        Code.UNAVAILABLE,
        f"the commit before of family {family!r} waits for {', '.join(waits_for)}; try again",
        [RETRY_AFTER_MS.of(RETRY_MS)],
    )


def too_many_told(family: str, told: int, most: int) -> TidelogError:
    return TidelogError(
        Code.LIMIT_REACHED,
        f"the transactions of family {family!r} have {told} partitions and groups to be told of a commit, and {most} is"
        " the most, so they are aborted; write with fewer producers, or to fewer partitions each",
        [LIMIT.of("transaction_participants")],
    )


def too_many_families(partition: int, most: int, kept_s: int) -> TidelogError:
    return TidelogError(
        Code.LIMIT_REACHED,
        f"the coordinator of {TRANSACTIONS.name}/{partition} keeps the last commits of {most} families, and no more;"
        f" use the same names again: one that was not used for {kept_s // 86400} days makes room",
        [LIMIT.of("transactional_families")],
    )


def too_many_of_family(family: str, ids: int, kept_s: int) -> TidelogError:
    return TidelogError(
        Code.LIMIT_REACHED,
        f"family {family!r} has {ids} transactional ids, the most that one family may have; use the same ids again, or"
        f" write with fewer programs (Spark: coalesce the rows before they are written): an id that was not used for"
        f" {kept_s // 60} minutes makes room",
        [LIMIT.of("family_ids")],
    )


def too_many_participants(family: str, participants: int, most: int) -> TidelogError:
    return TidelogError(
        Code.LIMIT_REACHED,
        f"{participants} partitions and groups take part in the transactions of family {family!r}, and {most} may;"
        " commit more often, or write with fewer producers, or to fewer partitions each",
        [LIMIT.of("family_participants")],
    )


def too_many_held(what: str, held: int) -> TidelogError:
    return TidelogError(
        Code.BACKPRESSURE,
        f"{held} requests wait for the end of the transaction of {what!r}; try again",
        [RETRY_AFTER_MS.of(RETRY_MS), LIMIT.of("transaction_requests")],
    )


def unknown(transactional_id: str) -> TidelogError:
    return TidelogError(
        Code.UNKNOWN_TRANSACTION,
        f"there is no transactional id {transactional_id!r}; `tidelog transaction list --idle` shows those that there"
        " are",
    )


def not_to_abort(transaction: Transaction) -> TidelogError:
    why = "has no open transaction" if transaction.state_name == "idle" else "is committing: that is decided"
    return TidelogError(
        Code.NOT_IN_TRANSACTION, f"transactional id {transaction.transactional_id!r} {why}; nothing was aborted"
    )
