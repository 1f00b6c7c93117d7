"""The times of the metadata plane, in seconds, the conditions between them, and the limits of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, fields

from wire.errors import Code, TidelogError

SHORTEST_LEASE_S = 2.0
"""`leader_lease_s` is above this, so that it outlasts a change of the controller which the other voters are told of: it
was killed, or gave way. The next one has proved the leases by its second probe, some 0.3 s later. A controller that is
silent on open connections is replaced after 1.2 to 2.0 s, and after 0.4 to 0.7 s more where the vote was split, so that
2 to 3 s pass until that probe. Leaders with a lease below that refuse meanwhile what they would say alone, and nothing
worse: correctness asks for no shortest lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSettings:
    heartbeat_interval_s: float = 0.1
    """The controller probes each broker so often. It does not believe its own connection when three probes of itself
    stay unanswered."""
    broker_silence_timeout_s: float = 2.0
    """A broker that neither answers nor refuses a probe for so long is dead."""
    unheard_timeout_s: float = 5.0
    """A controller that clients cannot ask for so long, because it has lost the NATS connection for that, hands over to
    another voter, and tries again after twice the time, and so on up to 300 s. A NATS server that closes the connection
    in a flood takes it again much sooner."""
    liveness_grace_s: float = 1.0
    """A connection younger than this proves nothing about others, unless it is the first one of the process
    and another broker vouches for the NATS server (R25)."""
    witness_window_s: float = 6.0
    """A report of a failed leader counts for so long."""
    leader_lease_s: float = 5.0
    """A leader without a controller's probe for so long, or with applied state so far behind, does not act alone
    (R29). A controller that falls silent, as with its machine's power, has a successor 2 to 3 s later: with a lease
    below that, leaders refuse for the rest of that time what they would say alone."""
    probe_confirm_delay_s: float = 0.01
    """A refused probe (no process listens) is repeated after this time before it counts."""
    probe_timeout_s: float = 0.2
    """A suspected leader that has not answered by then is left to the witnesses, and a 503 is believed then."""
    election_wait_s: float = 3.0
    """A partition of which all live members have just come back waits for the others so long, then the one whose log
    reaches furthest leads (R71)."""
    command_timeout_s: float = 5.0
    """A Raft command without an outcome by then has an unknown one."""
    retry_interval_s: float = 0.1
    """Requests to the controller are repeated after this time, which doubles up to 1 s, until applied state settles
    them."""
    drain_timeout_s: float = 2.0
    """In a planned move the leader stops sequencing for so long at most until the target holds everything, and as long
    again for the change to come."""
    hand_over_timeout_s: float = 25.0
    """A broker that is told to stop by SIGTERM hands its leaderships over for so long at most. Up to 7 s for the
    controller's successor and its own leaving, and the closing of its logs, follow. A supervisor that kills it has to
    wait longer than all that."""
    repartition_adoption_timeout_s: float = 30.0
    """A repartition is finished so long after all partitions have told of the cutover, if clients have not told
    before that they know of it (R60)."""
    moves_per_broker: int = 4
    """Partitions that get other replicas copy at a time: so many to or from each broker. The others wait (R84)."""
    bootstrap_wait_s: float = 2.0
    """A cluster is founded when the founder has asked for so long, its questions have come back from NATS, and no other
    cluster or founder of the namespace was heard (R41). Brokers that have much to do answer late. The same for all
    founders of a namespace."""
    max_clock_difference_s: float = 5.0
    """Clocks of brokers that are no further apart agree. A broker whose clock is further from the time on which most
    brokers agree says so, and forgets nothing for its age (R72)."""
    clock_settle_s: float = 30.0
    """The time on which most brokers agree is used to forget once it has gone on for so long without a jump, and a
    broker has run for so long."""
    max_streams: int = 10_000
    """Streams of the cluster; one more is refused with LIMIT_REACHED."""
    max_partitions: int = 100_000
    """Partitions of all its streams; the same."""
    activity_stream: bool = False
    """Changes of the cluster are recorded in the internal stream `__activity`. The same on all voters."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, bool) and not value > 0:
                raise TidelogError(Code.BAD_CONFIG, f"{field.name}={value} is not above 0")
        for holds, sentence in (
            (
                self.leader_lease_s > SHORTEST_LEASE_S,
                f"leader_lease_s={self.leader_lease_s} is not above {SHORTEST_LEASE_S:g}",
            ),
            (
                self.broker_silence_timeout_s >= 3 * self.heartbeat_interval_s,
                f"broker_silence_timeout_s={self.broker_silence_timeout_s} is below 3 x heartbeat_interval_s",
            ),
            (
                self.leader_lease_s > self.broker_silence_timeout_s,
                f"leader_lease_s={self.leader_lease_s} is not above broker_silence_timeout_s",
            ),
            (
                self.probe_confirm_delay_s < self.heartbeat_interval_s,
                f"probe_confirm_delay_s={self.probe_confirm_delay_s} is not below heartbeat_interval_s",
            ),
        ):
            if not holds:
                raise TidelogError(Code.BAD_CONFIG, sentence)
