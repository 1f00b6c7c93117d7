"""Timing and size limits of replication. All times in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    replica_max_idle_wait: float = 2.0
    """A caught-up follower asks again after this long even when nothing was written: the health check. One in step does
    not while its leader holds its fetch, which brokers ask about three times in it, for all partitions at once."""
    replica_max_leader_timeout: float = 3.0
    """A follower without a good answer for this long suspects its leader."""
    replica_max_lag_time: float = 5.0
    """A member of the ISR that has not been caught up for this long is dropped. A broker's own sync that takes longer
    is a disk that hangs (R40)."""
    replica_fetch_timeout: float = 0.5
    """An unanswered fetch is followed by a probe over `.offset` after this long, which doubles with each one, up to
    `replica_max_leader_timeout`."""
    notify_retry: float = 0.05
    """A notification is repeated at this interval until the follower fetches."""
    empty_answer_delay: float = 0.02
    """While records come in, an empty answer is put off for this long, and left out when data go first. 0: never."""
    high_watermark_notify_delay: float = 0.02
    """An idle follower is sent a new HW when this long brought no data."""
    liveness_grace: float = 1.0
    """After a broker's own reconnect to NATS a 503 is no ground for suspicion for this long."""
    report_interval: float = 0.2
    """A suspicion is reported again at this interval; where the leader has never answered in its LeaderEpoch, after
    twice as long each time, up to `replica_max_idle_wait`, and to 2 s at most."""
    offset_retry: float = 0.2
    """A follower that was refused by a broker with newer metadata asks again after this long; it is also the first
    pause after a second bad answer."""
    no_leader_retry: float = 0.02
    """After a 503 ask again after this long, after the next one after twice as long, up to `replica_max_idle_wait`;
    sooner when the leader says that it has begun. An unanswered `.offset` request is repeated first after this long,
    then after twice as long each time, up to `replica_max_leader_timeout`."""
    alter_isr_retry: float = 0.5
    """An ISR change whose outcome is not known is sent again after this long."""
    late_tick: float = 1.0
    """A timer that fires this late means that the process stood still; no follower's lag is judged by it."""
    confirm_timeout: float = 10.0
    """Only checked against the lag time: the wait of a publish is the stream's `confirm_timeout_ms`."""
    push_to_waiters: bool = True
    """A data waiter that fires sends the data itself as a second answer on the same inbox; the notification follows
    when that brought no fetch within `notify_retry` (R32). False: the notification alone."""
    gather_from: int = 4
    """While so many partitions that a broker leads have batches on their way to a commit, each has one at a time, and
    what is published meanwhile gathers for the next: what a batch costs brokers and disks is then more than the overlap
    of two batches of one partition gains. A partition without a commit for `gather_time` does not count."""
    gather_time: float = 0.5
    """Records gather for this long at most after the oldest uncommitted append of their partition."""
    fetch_max_bytes: int = 4 << 20
    """Most bytes of batches in one answer (one whole batch is always sent)."""
    max_uncommitted_bytes: int = 256 << 20
    """Appended and not yet committed, per partition; above it publishes are refused with BACKPRESSURE (and plain ones
    dropped, counted)."""
    max_uncommitted_bytes_of_all: int = 256 << 20
    """The same for all partitions that a broker leads: above it publishes are refused to partitions that hold more than
    their even share. Divided by the number of partitions that wait for a commit, up to 32, where the oldest uncommitted
    record is older than a fifth of `replica_max_lag_time`."""
    max_message_ids: int = 1_000_000
    """Message ids that the leader of a partition remembers, each for the stream's `dedup_window_ms`; above it publishes
    with new ids are refused with BACKPRESSURE (R45)."""
    max_message_ids_of_all: int = 2_000_000
    """The same for all partitions that a broker leads. Its followers remember those of their leaders beside them."""
    max_waiting_fetches: int = 10_000
    """Consumers' long polls per partition; above it they are refused with BACKPRESSURE."""
    max_waiting_fetches_per_client: int = 1000
    """The same for one client, which is known by its inboxes: their subject without its last part."""
    max_fetch_wait: float = 60.0
    """A long poll ends after so long, whatever it asks for."""
    follower_read_max_age: float = 3.5
    """Seconds since a fetch left, in this LeaderEpoch, that was answered well: so long a follower serves consumers
    (R34)."""

    def __post_init__(self) -> None:
        if not self.replica_max_idle_wait < self.replica_max_leader_timeout:
            raise ValueError(
                f"replica_max_idle_wait ({self.replica_max_idle_wait} s) must be below"
                f" replica_max_leader_timeout ({self.replica_max_leader_timeout} s)"
            )
        if not 2 * self.replica_max_idle_wait <= self.replica_max_lag_time < self.confirm_timeout:
            raise ValueError(
                f"2 x replica_max_idle_wait ({self.replica_max_idle_wait} s) <= replica_max_lag_time"
                f" ({self.replica_max_lag_time} s) < confirm_timeout ({self.confirm_timeout} s) does not hold"
            )
        if not self.empty_answer_delay < self.replica_fetch_timeout:
            raise ValueError(
                f"empty_answer_delay ({self.empty_answer_delay} s) must be below replica_fetch_timeout"
                f" ({self.replica_fetch_timeout} s): a follower would give up each fetch whose answer is put off"
            )
        if not self.replica_max_idle_wait + 2 * self.replica_fetch_timeout <= self.follower_read_max_age:
            raise ValueError(
                f"replica_max_idle_wait ({self.replica_max_idle_wait} s) + 2 x replica_fetch_timeout"
                f" ({self.replica_fetch_timeout} s) <= follower_read_max_age ({self.follower_read_max_age} s)"
                " does not hold: an idle follower would refuse consumers between two fetches"
            )
