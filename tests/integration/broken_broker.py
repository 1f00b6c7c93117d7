"""`tidelog server` with one rule of the protocol broken, to see that the checks notice: python -m … RULE --config F"""

from __future__ import annotations

import sys
from typing import Any

from dataplane.replica.effects import CompleteProduce, LeaderEffect
from dataplane.replica.leader import Leader
from tidelog.cli.server import server
from wire.types import Offset


def ack_before_commit() -> None:
    """The leader acknowledges what it has appended, whatever the others have."""

    def await_commit(_self: Leader, _end: Offset, token: object, _timeout: float, _now: float) -> list[LeaderEffect]:
        return [CompleteProduce(token)]

    Leader.await_commit = await_commit  # type: ignore[method-assign, assignment]


RULES: dict[str, Any] = {"ack-before-commit": ack_before_commit}

if __name__ == "__main__":
    RULES[sys.argv[1]]()
    server(sys.argv[2:])
