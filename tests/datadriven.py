"""Transcripts as tests: a file of commands and their output, read from top to bottom.

    # Comments and blank lines stand between blocks.
    command with arguments
    another command of the same block
    ----
    the output, up to the next blank line

`pytest --rewrite` records the present output; the difference is then reviewed as text. Idea and form come from
CockroachDB's datadriven and etcd's raft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SEPARATOR = "----"

Handler = Callable[["Command"], Sequence[str]]
"""Carries out one command; returns the lines that it prints. Raises ScriptError for one that it does not know."""


class ScriptError(Exception):
    """The transcript itself is wrong: an unknown command, or an argument that cannot be read."""


@dataclass(frozen=True, slots=True)
class Command:
    """`name word word key=value flag`."""

    line: str
    name: str
    words: tuple[str, ...]
    """Arguments without `=`."""
    options: dict[str, str]

    @classmethod
    def parse(cls, line: str) -> Command:
        name, *rest = line.split()
        options = dict(word.split("=", 1) for word in rest if "=" in word)
        return cls(line, name, tuple(word for word in rest if "=" not in word), options)

    def check_options(self, *known: str) -> None:
        unknown = [key for key in self.options if key not in known]
        if unknown:
            raise ScriptError(f"{self.name} has no {', '.join(unknown)}; it knows {', '.join(known)}")


@dataclass(frozen=True, slots=True)
class Block:
    number: int
    """Line number of its first command, from 1."""
    commands: tuple[Command, ...]
    expected: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Transcript:
    parts: tuple[str | Block, ...]
    """In the order of the file; a string is a line between blocks."""

    @classmethod
    def parse(cls, text: str) -> Transcript:
        """Raises ScriptError with the line number."""
        parts: list[str | Block] = []
        lines = text.splitlines()
        at = 0
        while at < len(lines):
            if not lines[at].strip() or lines[at].startswith("#"):
                parts.append(lines[at])
                at += 1
                continue
            began = at
            while at < len(lines) and lines[at] != SEPARATOR:
                if not lines[at].strip():
                    raise ScriptError(f"line {began + 1}: a block without {SEPARATOR}")
                at += 1
            if at == len(lines):
                raise ScriptError(f"line {began + 1}: a block without {SEPARATOR}")
            commands = tuple(Command.parse(line) for line in lines[began:at])
            at += 1
            found = at
            while at < len(lines) and lines[at].strip():
                at += 1
            parts.append(Block(began + 1, commands, tuple(lines[found:at])))
        return cls(tuple(parts))

    def blocks(self) -> Iterator[Block]:
        for part in self.parts:
            if isinstance(part, Block):
                yield part

    def carried_out(self, handle: Handler) -> Transcript:
        """The same commands with their present output."""
        parts: list[str | Block] = []
        for part in self.parts:
            if isinstance(part, str):
                parts.append(part)
                continue
            printed: list[str] = []
            for command in part.commands:
                try:
                    printed += handle(command)
                except ScriptError as error:
                    raise ScriptError(f"line {part.number}: {command.line}: {error}") from error
            if not all(line.strip() for line in printed):
                raise ScriptError(f"line {part.number}: a blank line was printed, which would end the block")
            parts.append(Block(part.number, part.commands, tuple(line.rstrip() for line in printed)))
        return Transcript(tuple(parts))

    def text(self) -> str:
        lines: list[str] = []
        for part in self.parts:
            if isinstance(part, str):
                lines.append(part)
            else:
                lines += [*(command.line for command in part.commands), SEPARATOR, *part.expected]
        return "\n".join(lines) + "\n"


def run(path: Path, handle: Handler, *, rewrite: bool) -> None:
    """Carries out the transcript. Raises AssertionError where it prints something else, unless `rewrite`."""
    given = Transcript.parse(path.read_text())
    found = given.carried_out(handle)
    if rewrite:
        path.write_text(found.text())
        return
    for expected, printed in zip(given.blocks(), found.blocks(), strict=True):
        commands = "\n".join(command.line for command in expected.commands)
        assert printed.expected == expected.expected, (
            f"{path.name}:{expected.number}\n{commands}\n---- expected\n"
            + "\n".join(expected.expected)
            + "\n---- printed\n"
            + "\n".join(printed.expected)
        )
