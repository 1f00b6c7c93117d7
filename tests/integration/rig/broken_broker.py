"""`tidelog server` with one rule of the protocol broken, to see that the checks notice: python -m … RULE --config F"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dataplane.log.storage.files import RealFiles
from dataplane.replica.leader import admission
from dataplane.replica.leader.ack_levels import AckLevel
from dataplane.replica.leader.leader import Leader
from dataplane.replica.replica_effects import CompleteProduce, LeaderEffect
from dataplane.replica.replies import ProduceToken
from tidelog.cli.administration.server import server
from wire.types import Offset, PartitionView


def ack_before_commit() -> None:
    """The leader acknowledges records that it has appended, without waiting for its followers."""

    def await_ack(
        _self: Leader, _level: AckLevel, _end: Offset, token: ProduceToken, _timeout: float, _now: float
    ) -> list[LeaderEffect]:
        return [CompleteProduce(token)]

    Leader.await_ack = await_ack  # type: ignore[method-assign, assignment]


def no_fdatasync() -> None:
    """Written bytes count as durable."""

    def sync_data(_self: RealFiles, _handle: int) -> None:
        """The call returns, and that is all."""

    def sync_data_of_each(_self: RealFiles, handles: Sequence[int]) -> list[OSError | None]:
        return [None] * len(handles)

    RealFiles.sync_data = sync_data  # type: ignore[method-assign, assignment]
    RealFiles.sync_data_of_each = sync_data_of_each  # type: ignore[method-assign, assignment]


def no_folder_sync() -> None:
    """A name that was made, changed or removed counts as durably so."""

    def sync_directory(_self: RealFiles, _path: Path) -> None:
        """The call returns, and that is all."""

    RealFiles.sync_directory = sync_directory  # type: ignore[method-assign, assignment]


def always_the_same_boot() -> None:
    """After a loss of power the page cache counts as still there."""

    def boot_id(_self: RealFiles) -> str:
        return "for ever"

    RealFiles.boot_id = boot_id  # type: ignore[method-assign, assignment]


def no_fence() -> None:
    """A leader takes a batch whatever partitioning version it names."""

    def takes(_view: PartitionView, _version: int, *, can_deny: bool) -> None:
        """No version is refused, and none is held."""

    vars(admission)["judge"] = takes


RULES: dict[str, Any] = {
    "ack-before-commit": ack_before_commit,
    "no-fence": no_fence,
    "no-fdatasync": no_fdatasync,
    "no-folder-sync": no_folder_sync,
    "always-the-same-boot": always_the_same_boot,
}

if __name__ == "__main__":
    RULES[sys.argv[1]]()
    server(sys.argv[2:])
