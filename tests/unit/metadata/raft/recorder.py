"""A state machine that keeps its commands, and an exception in place of the end of the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


class ProcessEnded(Exception):
    pass


def end(reason: str) -> NoReturn:
    raise ProcessEnded(reason)


class Recorder:
    def __init__(self) -> None:
        self.commands: list[bytes] = []

    def apply(self, command: bytes) -> object:
        if command == b"boom":
            raise ValueError("boom")
        self.commands.append(command)
        return len(self.commands)

    def snapshot(self) -> bytes:
        return b"|".join(self.commands)

    def restore(self, snapshot: bytes) -> None:
        self.commands = snapshot.split(b"|") if snapshot else []


def recording(steps: list[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which also notes its name in `steps`."""

    def replacement(*arguments: Any) -> Any:
        steps.append(name)
        return function(*arguments)

    return replacement
