"""The metadata group: PySyncObj 0.3.17, made safe to lose power with, to be listened in on, and to wait for.

Stock PySyncObj loses acknowledged commands when a process is killed, opens pickles from strangers and takes a tenth of
a second a command. This package keeps its Raft and replaces its surroundings: journal and snapshots (durable before
anything is promised), frames (authenticated, never unpickled), transport (a barrier, and corrections of received
messages), engine (events instead of ticks, pre-vote, quick failover) and node (the event loop). It is the
only importer of pysyncobj, pinned by `assumptions`; the private names that it uses are in `pysyncobj_internals`.
"""

from __future__ import annotations

from metadata.raft.node import RaftNode
from metadata.raft.types import (
    MAX_COMMAND_BYTES,
    MAX_PENDING_COMMANDS,
    CommandTooLarge,
    InvariantViolation,
    RaftAddressError,
    RaftApplyFailed,
    RaftCertificates,
    RaftConfig,
    RaftConfigurationError,
    RaftError,
    RaftOutcomeUnknown,
    RaftRole,
    RaftStatus,
    RaftStorageError,
    RaftUnavailable,
    StateMachine,
)

__all__ = [
    "MAX_COMMAND_BYTES",
    "MAX_PENDING_COMMANDS",
    "CommandTooLarge",
    "InvariantViolation",
    "RaftAddressError",
    "RaftApplyFailed",
    "RaftCertificates",
    "RaftConfig",
    "RaftConfigurationError",
    "RaftError",
    "RaftNode",
    "RaftOutcomeUnknown",
    "RaftRole",
    "RaftStatus",
    "RaftStorageError",
    "RaftUnavailable",
    "StateMachine",
]
