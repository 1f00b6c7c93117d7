"""The interface of the metadata group: its configuration, its status, its refusals and the state machine it
drives.

Nothing here knows PySyncObj. Addresses are `host:port` strings and are the voters' identities: the same voter must be
written the same way in every broker's configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NoReturn, Protocol

from wire.notation import port_number
from wire.security.cluster_secrets import ClusterSecrets
from wire.turns import Steps

MAX_COMMAND_BYTES = 1 << 20
"""A longer command is refused with CommandTooLarge, by its proposer and by the leader it is forwarded to."""

MAX_PENDING_COMMANDS = 1024
"""Commands of one node whose outcome is open. One more is refused with RaftUnavailable."""

CONNECTION_TIMEOUT_S = 2.0
"""Default of `RaftConfig.connection_timeout_s`."""

REGULAR = 0
NO_OP = 1
"""PySyncObj's command types that are used: the state machine's commands, and entries that only take a place in the
log.
"""


_LOST_FOR_GOOD = " (where a majority has lost its files for good: tidelog cluster recover)"


class StateMachine(Protocol):
    """The state machine that the group replicates. Its methods run on the event loop and must not await."""

    def prepare(self, command: bytes | None) -> bool:
        """Do a turn of what must be done before `command`, the next committed one, can be applied in a moment; None:
        before any can. Called until it is True, with other work of the loop and heartbeats in between. What is seen
        of the state does not change, and `apply` comes to the same without it."""

    def apply(self, command: bytes) -> object:
        """Total and deterministic; called once per committed command, in log order. The result goes to the proposer."""

    def snapshot(self) -> Steps[bytes]:
        """The whole state at the moment of the call, which is after the last applied command. Commands are applied
        between the steps, and must not show."""

    def restore(self, snapshot: bytes) -> Steps[None]:
        """Replace the whole state by one that `snapshot` gave, here or on another node, with the last step. Nothing is
        applied meanwhile."""


class ExitProcess(Protocol):
    """Ends the process because going on could lose acknowledged commands. Called with a sentence; must not return."""

    def __call__(self, reason: str, /) -> NoReturn: ...


class RaftError(Exception):
    """Any refusal of the metadata group."""


class RaftConfigurationError(RaftError):
    """The configuration cannot work; the sentence names the value and the remedy."""


class RaftStorageError(RaftError):
    """A file of the metadata group cannot be trusted or is in use by another process."""


class RaftDamage(RaftStorageError):
    """A file of the metadata group differs from the one that this voter wrote: acknowledged commands or votes may be
    missing."""


class RaftAddressError(RaftError):
    """The voter's own address cannot be bound."""


class RaftUnavailable(RaftError):
    """The command was certainly not queued: no leader in time, too many commands, or the node is closed. Proposing
    again is safe.
    """


class RaftOutcomeUnknown(RaftError):
    """The command may or may not have been applied, or may be later.

    Read the applied state before proposing it again.
    """


class CommandTooLarge(RaftError):
    """The command is above MAX_COMMAND_BYTES. It was not queued."""


class RaftApplyFailed(RaftError):
    """The command was committed and the state machine raised: a bug in `apply`, which must be total."""


class InvariantViolation(RaftError):
    """A bug, or a group of which a majority lost its disks. The process ends on it."""


class RaftRole(Enum):
    LEADER = "leader"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    OBSERVER = "observer"


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftCertificates:
    """PEM files for TLS between the nodes, read again for new connections when they have changed."""

    ca: Path
    """What the certificates of all nodes are signed by."""
    cert: Path
    """This node's, for the host of its address."""
    key: Path | None = None
    """None: it is in `cert`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """One node of the group. Voters are fixed for the life of the group: 1, 3 or 5 of them."""

    address: str | None
    """`host:port` of this voter, bound exactly there.

    None: an observer, which proposes and follows but neither listens nor votes.
    """
    peers: tuple[str, ...]
    """The other voters' addresses. Empty with an address: standalone, a group of one voter."""
    directory: Path
    """Holds journal, snapshot and lock; created when missing. Losing it loses this voter's votes."""
    secrets: ClusterSecrets
    """Shared by all nodes; they authenticate every frame. Public ones are allowed only when every address is a loopback
    one."""
    certificates: RaftCertificates | None = None
    """None: frames are authenticated by the secrets, and not encrypted. The same on all nodes: TLS or not."""
    boot_id: str = ""
    """The boot id of the operating system, another one after each of its starts; "": unknown."""
    group: str = ""
    """Which group the directory belongs to, where it is known: nodes that know of different ones stay apart."""
    heartbeat_s: float = 0.1
    election_min_s: float = 1.2
    """A follower whose leader is silent for a random time between election_min_s and election_max_s asks for votes. The
    process of a silent leader stands still, or waits for its turn on a busy machine: one that ended has closed its
    connections, and is replaced at once. A node that knows no leader, at its start, waits for a third of that time."""
    election_max_s: float = 2.0
    connection_timeout_s: float = CONNECTION_TIMEOUT_S
    """A connection on which nothing arrived for so long is closed.

    Idle ones are kept alive by pings at a third of it.
    """
    connection_retry_s: float = 0.1
    compaction_min_entries: int = 5000
    """The log is replaced by a snapshot when it is longer; voters add a share by rank, so that they do not all
    stall at once.
    """

    def __post_init__(self) -> None:
        for address in (*self.peers, *([self.address] if self.address is not None else [])):
            host, separator, port = address.rpartition(":")
            if not separator or not host or port_number(port) is None:
                raise RaftConfigurationError(
                    f"Raft address {address!r} is not host:port with a port from 1 to 65535; write it like "
                    "127.0.0.1:7400."
                )
        if len(set(self.peers)) != len(self.peers):
            raise RaftConfigurationError(f"Raft peers {', '.join(self.peers)} name one voter twice; list each once.")
        if self.address in self.peers:
            raise RaftConfigurationError(
                f"Raft peers contain this voter's own address {self.address}; list only the others."
            )
        if self.address is None and not self.peers:
            raise RaftConfigurationError("An observer needs the voters' addresses as peers; none are configured.")
        if not self.election_max_s > self.election_min_s > 3 * self.heartbeat_s > 0:
            raise RaftConfigurationError(
                f"Raft times must satisfy election_max_s > election_min_s > 3 x heartbeat_s > 0; they are "
                f"{self.election_max_s}, {self.election_min_s} and {self.heartbeat_s} s."
            )
        if self.connection_timeout_s < self.election_max_s:
            raise RaftConfigurationError(
                f"connection_timeout_s {self.connection_timeout_s} is below election_max_s {self.election_max_s}; "
                "raise it."
            )
        if self.compaction_min_entries < 2:
            raise RaftConfigurationError(
                f"compaction_min_entries is {self.compaction_min_entries}; a log keeps at least 2 entries."
            )


ACCEPTED = ""
"""In place of an address: of nodes that have connected to this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftStatus:
    """The belief of one node. Two nodes may both believe that they lead for a moment; only commits decide."""

    role: RaftRole
    leader: str | None
    """The leader's address, None when unknown."""
    term: int
    commit_index: int
    """Inclusive: the last entry known to be committed."""
    applied_index: int
    """Inclusive: the last entry that the state machine has seen."""
    has_quorum: bool
    """This node is connected to a majority of the voters (itself counted when it is one)."""
    voters: int = 1
    """How many the group has."""
    connected: tuple[str, ...] = ()
    """Addresses of the other voters that this node has a live connection with, sorted."""
    dropped_introductions: int = 0
    """Accepted connections that this node closed before their peers had proved that they know the secret."""
    unverified: tuple[tuple[str, int], ...] = ()
    """How many connections ended at their first frame since the start, because it does not verify: address of the voter
    that this node connected to, or ACCEPTED; count."""

    has_lost_files: bool = False
    """It belongs to a group that has committed commands, has begun anew without Raft files, and not synchronised
    since."""
    is_new: bool = False
    """Nothing says that this voter belongs to a group that has ever committed a command."""
    not_connected: tuple[str, ...] = ()
    """Addresses of the other voters without a live connection with this one, sorted."""
    new_peers: tuple[str, ...] = ()
    """Voters that have looked for a leader and are new as well."""
    old_peers: tuple[str, ...] = ()
    """Voters that have looked for a leader and are not new."""

    def why_no_leader(self) -> str:
        """The middle of a sentence, as far as it shows here; empty: nothing is known."""
        if self.leader is not None or self.role is RaftRole.OBSERVER:
            return self.unverified_words()
        return self.unverified_words() or self._empty_folders() or self._missing_majority()

    def _missing_majority(self) -> str:
        if self.has_quorum or not self.not_connected:
            return ""
        return (
            f"{' and '.join(self.not_connected)} cannot be reached, and a leader needs a majority of the {self.voters}"
            " voters; start those that are down, and see that they reach each other"
        )

    def _empty_folders(self) -> str:
        if self.has_lost_files:
            return (
                "Raft files of this voter are missing, or were set aside, for they were damaged or an older copy, so it"
                " may not vote before it has synchronised from a leader; start the others, which have to elect one"
                f"{_LOST_FOR_GOOD}"
            )
        if self.is_new and self.old_peers:
            have = "has one" if len(self.old_peers) == 1 else "have those"
            return (
                f"this voter's data folder is empty, and {' and '.join(self.old_peers)} {have} of a cluster that was"
                " founded before: so many of its voters lack theirs that none may be elected; start them with the"
                f" folders that they had{_LOST_FOR_GOOD}"
            )
        if self.is_new and self.not_connected:
            return (
                "a cluster is founded by all of its voters, with empty data folders, and"
                f" {' and '.join(self.not_connected)} cannot be reached yet; start what is missing (later a majority is"
                " enough); if this cluster was founded before, start this voter with the folder that it had"
            )
        if not self.is_new and self.new_peers:
            return (
                f"{' and '.join(self.new_peers)} started with empty data folders, and may not vote before a leader is"
                " elected without them; start the missing voters with the folders that they had, and keep the folder of"
                f" this one{_LOST_FOR_GOOD}"
            )
        return ""

    def unverified_words(self) -> str:
        """Why voters that run may not be reached, as far as it shows here; empty: nothing of the kind has happened."""
        peers = [address for address, _ in self.unverified if address not in (ACCEPTED, *self.connected)]
        if any(address == ACCEPTED for address, _ in self.unverified):
            peers.append("nodes that have connected")
        if not peers or self.has_quorum:
            return ""
        return (
            f"{' and '.join(peers)} and this node refuse each other's Raft frames: one of them has another secret"
            " (raft_secret_file), or another address for the voter"
        )
