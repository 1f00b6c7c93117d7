"""One partition's half of a consumer: its next request, and the meaning of answers.

    RESOLVING   the start (and the stop) is a word or a time; the leader is asked which offset that is
    READING     batches from `position` on are asked for, one request at a time, as a long poll
    DONE        the position has reached the stop

Rules:

1. The position only moves forward, to the end of the records handed out: each committed record is handed out once, in
   order.
2. Requests carry the LeaderEpoch that is known, so that a deposed leader stays silent, and the epoch of the last
   record read, so that a leader with a log that was cut below the position says LOG_TRUNCATED instead of going on with
   other records. An answer of an older LeaderEpoch than is known changes nothing.
3. An error that passes (no leader at the moment, an older epoch, back-pressure, a lost answer) is retried after a
   growing wait; any other one is raised: a cut log, a deleted stream, bytes that do not decode.
4. Starts and stops are looked up at the leader. Records may come from followers (`FollowerSources`): all that is below
   any replica's HW is committed. A follower that does not give an answer, for whatever reason, is left for another
   replica, with the position unchanged; a refusal of the leader is final.
5. Where retention removed records that were not read yet, a fetcher that skips gaps says which and goes on where the
   log begins now; any other one ends there. A consumer that began at "earliest", and has read and skipped
   nothing, has missed nothing.
6. After an answer that did not come in time fewer bytes are asked for, by half: over a slow link a large answer takes
   longer than one waits for it. With each answer that comes they grow by a quarter, up to `max_bytes`.
7. A stop at a time that lies ahead is looked up once that time has come. "latest" as a stop is the end of the
   committed log when the consumer begins, and a start behind it means that there is nothing to read.

Pure: `now` is monotonic seconds, `clock_ns` the wall clock in ns since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import random
from typing import Any, TypeAlias

from tidelog.client.base.exceptions import CorruptBatch, OffsetOutOfRange, typed
from tidelog.client.base.read_positions import AfterBytes, Anchor, AtOffset, AtTime, Position
from tidelog.client.consumer.consumer_config import ConsumerConfig
from tidelog.client.consumer.follower_sources import FollowerSources
from wire.batch import RecordBatch, iter_batches
from wire.error_details import LEADER_EPOCH, LOG_START, OFFSET, whole_number
from wire.errors import Code, CorruptData, TidelogError
from wire.partition_messages.replication import (
    BYTES_HEADER,
    HEADER_SIZE,
    LOG_END_HEADER,
    LOG_START_HEADER,
    OFFSET_HEADER,
    SETTLED_START_HEADER,
    decode_header,
)
from wire.protobuf.tidelog_pb2 import FetchRequest
from wire.retry import Retry
from wire.types import BrokerId, Offset

_BACKOFF = 0.01
_GRACE = 0.3
"""Seconds after _MAX_WAIT when a request is taken for lost; doubled each time that happens, up to _MAX_GRACE."""
_LEAST_SHARE = 1 / 256
_MAX_BACKOFF = 0.1
_MAX_GRACE = 5.0
_MAX_WAIT = 0.5
"""Seconds for which the leader holds a request that finds nothing."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Send this request and wait for its answer at most `timeout` seconds."""

    request: FetchRequest
    timeout: float
    source: BrokerId | None = None
    """The replica to ask; None: the present leader."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Ask again after this many seconds. `refresh`: the metadata of the stream may be out of date."""

    seconds: float
    refresh: bool = False


@dataclass(frozen=True, slots=True)
class Deliver:
    """Records to hand out, in order."""

    batches: tuple[RecordBatch, ...]


@dataclass(frozen=True, slots=True)
class Skip:
    """The records [first, end) were removed before they were read; ask on."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Raise:
    """Reading this partition cannot go on."""

    error: TidelogError


Outcome: TypeAlias = Wait | Deliver | Skip | Raise


class PartitionFetcher:
    """The state machine of one partition; see the module's text."""

    def __init__(
        self,
        name: str,
        start: Position | AfterBytes,
        stop: Position | None,
        config: ConsumerConfig[Any, Any],
        *,
        cluster_id: str = "",
        stream_incarnation: int = 0,
        partition_incarnation: int = 0,
        leader_epoch: int = 0,
        followers: FollowerSources | None = None,
        skips_gaps: bool = False,
    ) -> None:
        """`followers`: read from them. `skips_gaps`: see rule 5."""
        self.name = name
        """stream/partition, for sentences."""
        self.position: int | None = start.offset if isinstance(start, AtOffset) else None
        """The next offset wanted; None while it is being looked up."""
        self.stop: int | None = stop.offset if isinstance(stop, AtOffset) else None
        """Exclusive; None while it is being looked up or when there is none."""
        self.leader_epoch = leader_epoch
        self.committed_end = 0
        """Exclusive end of the committed log, or of what is before the first open transaction, as answers have told
        it."""
        self.log_start: int | None = None
        """Offset of the oldest record, as the last look-up has told it; None: none has."""
        self.settled_start: int | None = None
        """Offset below which no replica serves records, as the last look-up has told it; None: none has."""
        self.log_end: int | None = None
        """Exclusive end of the leader's log, with records that are not committed yet, as the last look-up has told
        it; None: none has."""
        self.span_bytes = 0
        """About how many bytes of the log there are up to the committed end, as the last look-up of `AfterBytes` has
        told it."""
        self.newest_version = 0
        """The highest partitioning version of the batches that were read."""
        self._start = start
        self._has_begun = False
        """Records were read, or skipped."""
        self._stop_wanted: Anchor | AtTime | None = None if stop is None or isinstance(stop, AtOffset) else stop
        self.config = config
        self.max_bytes = config.max_bytes
        """Limit of an answer: that of `config`, or the partition's share of what may be fetched ahead."""
        """May be replaced while reading: the next request is made by them."""
        self._cluster_id = cluster_id
        self._stream_incarnation = stream_incarnation
        self.partition_incarnation = partition_incarnation
        self._last_record_epoch = 0
        self._retry = Retry(_BACKOFF, _MAX_BACKOFF, factor=1.5, chance=random)
        self._lost = 0
        self._share = 1.0
        """The part of `max_bytes` that is asked for."""
        self._asked: str = ""
        self._asked_at = 0
        self._silent_since_ns = 0
        """`clock_ns` of the first request that got no answer, or a refusal, since the last answer; 0: the last request
        was answered."""
        self._silent_because = ""
        self._source: BrokerId | None = None
        """The replica that was asked last; None: the leader."""
        self.followers = followers
        self.skips_gaps = skips_gaps

    @property
    def is_resolved(self) -> bool:
        """Start and stop are known, but for a stop at a time that lies ahead."""
        return self.position is not None and (self._stop_wanted is None or isinstance(self._stop_wanted, AtTime))

    def delay(self, clock_ns: int) -> tuple[float, str] | None:
        """Returns for how many seconds no replica has answered, and why, in a sentence. None: the last request was
        answered, or has not ended yet and those before it were."""
        if not self._silent_since_ns:
            return None
        return max(0.0, (clock_ns - self._silent_since_ns) / 1e9), self._silent_because

    @property
    def is_done(self) -> bool:
        return self.position is not None and self.stop is not None and self.position >= self.stop

    def next_request(self, clock_ns: int) -> Ask:
        """The request to send now. Not to be called when done."""
        self._asked_at = clock_ns
        self._source = None
        request = FetchRequest(
            cluster_id=self._cluster_id,
            stream_incarnation=self._stream_incarnation,
            partition_incarnation=self.partition_incarnation,
            leader_epoch=self.leader_epoch,
            read_uncommitted=self.config.read_uncommitted,
        )
        stop = self._stop_wanted
        if stop is not None and (not isinstance(stop, AtTime) or clock_ns >= stop.timestamp_ns):
            # The stop first: records committed between the two look-ups are then behind the stop, not in front of the
            # start.
            self._asked = "stop"
            _set_position(request, stop)
            return Ask(request, _MAX_WAIT + self._grace)
        if self.position is None:
            self._asked = "start"
            _set_position(request, self._start)
            return Ask(request, _MAX_WAIT + self._grace)
        self._asked = "records"
        wait = _MAX_WAIT
        if isinstance(stop, AtTime):
            wait = max(min(wait, (stop.timestamp_ns - clock_ns) / 1e9), 0.001)
        request.offset = self.position
        request.max_bytes = max(int(self.max_bytes * self._share), 1)
        request.max_wait_ms = max(int(wait * 1000), 1)
        request.last_record_epoch = self._last_record_epoch
        if self.followers is not None:
            self._source = self.followers.choose(clock_ns)
        return Ask(request, wait + self._grace, self._source)

    def on_answer(self, body: bytes, headers: Mapping[str, str] | None) -> Outcome:
        """An answer, not one that carries an error."""
        try:
            leader_epoch, high_watermark = decode_header(body)
            if leader_epoch < self.leader_epoch:
                return self._leave_source() or Wait(self._retry.failed(), refresh=True)
            self.leader_epoch = leader_epoch
            self.committed_end = max(self.committed_end, high_watermark)
            if self._asked != "records":
                return self._looked_up(headers or {})
            outcome = self._read(body)
            self._share = min(self._share * 1.25, 1.0)
        except CorruptData as error:
            return self._leave_source() or Raise(
                CorruptBatch(
                    Code.CORRUPT_BATCH,
                    f"{self.name} at offset {self.position}: the leader's answer does not decode: {error}; "
                    "see the broker's log",
                )
            )
        self._on_answered()
        return outcome

    def _on_answered(self) -> None:
        self._retry.succeeded()
        self._lost = 0
        self._silent_since_ns = 0

    def _on_silence(self, why: str) -> None:
        self._silent_since_ns = self._silent_since_ns or self._asked_at
        self._silent_because = why

    def on_error(self, error: TidelogError) -> Outcome:
        """The replica that was asked refused."""
        self.leader_epoch = max(self.leader_epoch, error.detail(LEADER_EPOCH) or 0)
        if error.code is Code.FENCED_LEADER_EPOCH and self._retry.failures == 0:
            self._retry.failed()
            return Wait(0.0)
        elsewhere = self._leave_source()
        if elsewhere is not None:
            return elsewhere
        if error.code is Code.OFFSET_BEFORE_LOG:
            return self._before_log(error)
        if error.code is Code.LOG_TRUNCATED:
            offset = error.detail(OFFSET)
            return Raise(
                typed(
                    TidelogError(
                        Code.LOG_TRUNCATED,
                        f"the log of {self.name} was cut at offset {offset} below the position {self.position}: "
                        "records that were read are gone (unclean election); decide where to go on",
                        error.details,
                    )
                )
            )
        if not error.retriable:
            return Raise(typed(error))
        self._on_silence(f"{self.name}: {error.message}")
        return Wait(self._retry.failed(at_least_s=error.retry_after or 0.0), error.code.refresh_metadata)

    def on_metadata(self, leader_epoch: int) -> None:
        """The LeaderEpoch of the partition, as the controller says it just now. No replica answers a request that names
        a later LeaderEpoch than there is: after such a silence the controller's word outranks what answers have said,
        for somebody may have invented one."""
        if self._lost:
            self.leader_epoch = leader_epoch

    def on_no_responders(self) -> Outcome:
        """The partition has no leader at the moment, or the follower is not there."""
        elsewhere = self._leave_source()
        if elsewhere is not None:
            return elsewhere
        self._on_silence(f"{self.name} has no leader; see `tidelog cluster status`")
        return Wait(self._retry.failed(), refresh=self._retry.failures % 16 == 0)

    def on_disconnected(self) -> Outcome:
        """Our own connection is down, which says nothing of the replica that was asked."""
        self._on_silence("this client is not connected to a NATS server")
        return Wait(self._retry.failed())

    def on_timeout(self) -> Outcome:
        """No answer: it was lost, or the replica was killed. Asking again finds out which, at once."""
        elsewhere = self._leave_source()
        if elsewhere is not None:
            return elsewhere
        self._lost += 1
        self._on_silence(f"the leader of {self.name} does not answer; see `tidelog cluster status`")
        if self._asked == "records":
            self._share = max(self._share / 2, _LEAST_SHARE)
        return Wait(0.0, refresh=self._lost % 4 == 0)

    def _leave_source(self) -> Wait | None:
        """When it was a follower that was asked: the next request goes to another replica, at once."""
        if self._source is None or self.followers is None:
            return None
        self.followers.rest(self._source, self._asked_at)
        return Wait(0.0, refresh=True)

    def _looked_up(self, headers: Mapping[str, str]) -> Outcome:
        offset = whole_number(headers.get(OFFSET_HEADER, ""))
        if offset is None:
            raise CorruptData(f"the answer to a look-up has no {OFFSET_HEADER}")
        self.log_start = whole_number(headers.get(LOG_START_HEADER, ""))
        self.settled_start = whole_number(headers.get(SETTLED_START_HEADER, ""))
        self.log_end = whole_number(headers.get(LOG_END_HEADER, ""))
        self.span_bytes = whole_number(headers.get(BYTES_HEADER, "")) or 0
        self._on_answered()
        if self._asked == "stop":
            self.stop = offset
            self._stop_wanted = None
        elif self._start is Anchor.LATEST:
            self.position = max(offset - 1, self.log_start or 0, 0)
        else:
            self.position = offset
        return Wait(0.0)

    def _read(self, body: bytes) -> Outcome:
        """All of it, or, when something does not decode, nothing."""
        batches: list[RecordBatch] = []
        assert self.position is not None
        position, epoch, stop, version = self.position, self._last_record_epoch, self.stop, self.newest_version
        for at, header in iter_batches(body, HEADER_SIZE):
            if stop is not None and position >= stop:
                break
            if header.end_offset <= position:
                continue
            batch = RecordBatch.decode(body, at, header=header)
            end = header.end_offset
            version = max(version, header.partitioning_version)
            if header.base_offset < position or (stop is not None and end > stop):
                end = end if stop is None else Offset(min(end, stop))
                batch = batch.slice(Offset(position), end)
            position, epoch = end, header.leader_epoch
            if len(batch):
                batches.append(batch)
        self._has_begun = self._has_begun or position != self.position
        self.position, self._last_record_epoch, self.newest_version = position, epoch, version
        return Deliver(tuple(batches)) if batches else Wait(0.0)

    def _before_log(self, error: TidelogError) -> Outcome:
        end, first = error.detail(LOG_START), self.position
        log_start = "?" if end is None else end
        if first is not None and end is not None and end > first:
            if self._start is Anchor.EARLIEST and not self._has_begun:
                self.position = end  # the log's start moved on between the look-up and the first read
                return Wait(0.0)
            if self.skips_gaps:
                self.position, self._last_record_epoch, self._has_begun = end, 0, True
                return Skip(first, end if self.stop is None else min(end, self.stop))
        return Raise(
            OffsetOutOfRange(
                Code.OFFSET_BEFORE_LOG,
                f"offset {self.position} of {self.name} is below the start of its log, {log_start}: the records are "
                f"gone; start at {log_start} or with 'earliest', or skip them (on_gap)",
                error.details,
            )
        )

    @property
    def _grace(self) -> float:
        return min(_GRACE * 2.0 ** min(self._lost, 10), _MAX_GRACE)


def _set_position(request: FetchRequest, position: Position | AfterBytes) -> None:
    if position is Anchor.EARLIEST:
        request.earliest = True
    elif isinstance(position, AtTime):
        request.timestamp = position.timestamp_ns
    elif isinstance(position, AfterBytes):
        request.offset, request.span_bytes = position.offset, position.size
    elif isinstance(position, AtOffset):
        request.offset = position.offset
    else:
        request.latest = True
