"""The errors of batches that fail, which say whether the records may have been written."""

from __future__ import annotations

from tidelog.client.base.exceptions import DeliveryTimeout, PartitionRetired, StalePartitioning, typed
from tidelog.client.producer.batches import PendingBatch
from tidelog.client.producer.leader_link import LeaderLink
from wire.error_details import EXPECTED_SEQUENCE, OUTCOME, REASON
from wire.errors import Code, TidelogError


def as_told(error: TidelogError, batch: PendingBatch) -> TidelogError:
    """Returns the refusal of this attempt, or that the outcome is unknown if an earlier attempt may have been
    stored."""
    if not batch.uncertain or batch.is_transactional or error.code.unknown_outcome:
        return error
    return TidelogError(
        Code.OUTCOME_UNKNOWN,
        f"an earlier attempt to send these records may have been stored; the last one was refused: {error.message}",
        [*error.details.items(), REASON.of(error.code.name), OUTCOME.of("unknown")],
    )


def given_up(error: TidelogError, batch: PendingBatch) -> TidelogError:
    """Returns the error of a batch that is given up."""
    if not batch.may_be_written or batch.is_transactional:
        return error.with_details(OUTCOME.of("not_written"))
    message = f"{error.message}; these records were sent, and may or may not have been written"
    return type(error)(error.code, message, error.details).with_details(OUTCOME.of("unknown"))


def forgotten(batch: PendingBatch, name: str) -> TidelogError:
    """Returns the error where the leader of partition `name` cannot know whether an earlier attempt was stored."""
    return DeliveryTimeout(
        Code.OUTCOME_UNKNOWN,
        f"{len(batch)} records for {name} were sent again for want of an answer, and the leader has forgotten "
        "this producer: they may or may not have been written; read the stream to find out before sending them "
        "again",
        [OUTCOME.of("unknown")],
    )


def begin_again(error: TidelogError, name: str) -> TidelogError:
    """Returns the error where partition `name` takes no records of the layout under which the transaction began,
    whichever code the leader's refusal has."""
    return StalePartitioning(
        Code.STALE_PARTITIONING,
        f"the stream of partition {name} was repartitioned while the transaction was open: begin the transaction again"
        f" ({error.message})",
        error.details,
    )


def expectation_is_void(stream: str, offset: int) -> TidelogError:
    """Returns the error where a repartition came before a record with an expected offset was written."""
    return StalePartitioning(
        Code.STALE_PARTITIONING,
        f"stream {stream!r} was repartitioned before a record with expected_offset={offset} could be written: it was"
        " not written; read what is there, and decide again",
        [OUTCOME.of("not_written")],
    )


def not_routed(stream: str, partition: int, count: int) -> TidelogError:
    """Returns the error of a record with an explicit partition, which a repartition has taken out of use."""
    now_has = "1 partition" if count == 1 else f"{count} partitions"
    return PartitionRetired(
        Code.PARTITION_RETIRED,
        f"partition {partition} of stream {stream!r} takes no records since the stream has {now_has}: nothing was"
        " written; leave partition= out, or give one below that",
        [OUTCOME.of("not_written")],
    )


def _is_of_session(refusal: TidelogError, batch: PendingBatch) -> bool:
    """Returns whether the leader refused the batch for its producer id, or for want of the batches before it."""
    lacks_earlier_ones = refusal.detail(EXPECTED_SEQUENCE) is not None and not batch.sent_first
    return lacks_earlier_ones or refusal.code in (Code.OUT_OF_ORDER_SEQUENCE, Code.UNKNOWN_PRODUCER_ID)


def too_late(batch: PendingBatch, name: str, seconds: float, link: LeaderLink) -> TidelogError:
    """Returns the error of a batch for partition `name` that was not acknowledged within `seconds`."""
    refusal = link.refusal
    if batch.may_be_written and not batch.is_transactional:
        at_present = "" if refusal is None else f"; at present the leader refuses them: {refusal.message}"
        return DeliveryTimeout(
            Code.OUTCOME_UNKNOWN,
            f"a batch for {name} was not acknowledged within {seconds:g} s: its records may or may not have been"
            f" written; read the stream to find out before sending them again{at_present}",
            [OUTCOME.of("unknown")],
        )
    why = batch.last_error
    if why is None and batch.attempts == 0:
        why = refusal  # it is that of the batch before, which this one must follow
    if why is not None and not _is_of_session(why, batch):
        message = f"{why.message}; given up after {seconds:g} s, not written"
        told = typed(TidelogError(why.code, message, why.details).with_details(OUTCOME.of("not_written")))
        return told if type(told) is not TidelogError else DeliveryTimeout(told.code, told.message, told.details)
    if link.is_down:
        reason = f"the partition has no leader for {seconds:g} s"
    elif why is not None and batch.session is None:
        reason = f"for {seconds:g} s the leader took each new id of this producer for one that it has forgotten"
    elif why is not None:
        reason = f"for {seconds:g} s an earlier batch of this producer, which they must follow, was not acknowledged"
    else:
        reason = f"the partition could not be reached for {seconds:g} s"
    return DeliveryTimeout(
        Code.OUTCOME_UNKNOWN,
        f"a batch for {name} was not written: {reason}; see `tidelog cluster status`",
        [OUTCOME.of("not_written")],
    )
