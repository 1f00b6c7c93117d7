"""A state machine that keeps its commands, and an exception in place of the end of the process."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any, NoReturn

from wire.turns import LOOKS, Steps


class ProcessEnded(Exception):
    pass


def end(reason: str) -> NoReturn:
    raise ProcessEnded(reason)


class Recorder:
    def __init__(self) -> None:
        self.commands: list[bytes] = []
        self.snapshot_turns = self.restore_turns = 0
        self.turns: dict[bytes | None, int] = {}
        """How often a command, or None, is not ready yet."""

    def prepare(self, command: bytes | None) -> bool:
        left = self.turns.get(command, 0)
        if left < 0:
            raise ValueError("boom")
        self.turns[command] = max(0, left - 1)
        return left == 0

    def apply(self, command: bytes) -> object:
        if command == b"boom":
            raise ValueError("boom")
        self.commands.append(command)
        return len(self.commands)

    def snapshot(self) -> Steps[bytes]:
        return self._encoding(self.commands.copy())

    def _encoding(self, commands: list[bytes]) -> Steps[bytes]:
        yield from repeat(LOOKS, self.snapshot_turns)
        return b"|".join(commands)

    def restore(self, snapshot: bytes) -> Steps[None]:
        yield from repeat(LOOKS, self.restore_turns)
        self.commands = snapshot.split(b"|") if snapshot else []


def recording(steps: list[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which also notes its name in `steps`."""

    def replacement(*arguments: Any) -> Any:
        steps.append(name)
        return function(*arguments)

    return replacement
