"""The command line. The command `tidelog` runs `main`.

One file per command group, in three rooms, and `terminal` with their common parts. A command's module is imported when
the command runs or `tidelog --help` describes it; it imports its own needs when it runs, so that help and completion
are quick and `publish` does not load a broker. The summary of a group in the help is made from its subcommands.

Exit status: 0; 1 with one sentence on stderr when something was refused or failed; 2 when the command line itself is
wrong; 130 after Ctrl-C. A reader of the output that goes away, such as `head`, is no failure: 0.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

_ROOM_OF = {
    "up": "administration",
    "server": "administration",
    "stream": "streams",
    "partition": "streams",
    "publish": "records",
    "subscribe": "records",
    "offsets": "streams",
    "group": "streams",
    "transaction": "streams",
    "cursor": "streams",
    "log": "administration",
    "broker": "administration",
    "replica": "administration",
    "cluster": "administration",
    "audit": "administration",
    "activity": "administration",
    "security": "administration",
    "context": "administration",
    "completion": "administration",
}
"""Rooms of the commands, in the order of the help. A command is an attribute of the module of its name in that room of
`tidelog.cli`."""


@contextmanager
def _until_output_is_gone() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        if not _output_is_gone():
            raise
        raise click.exceptions.Exit(0) from None


class _LazyGroup(click.Group):
    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Makes the context; `--help` prints here."""
        with _until_output_is_gone():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _until_output_is_gone():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_ROOM_OF)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _ROOM_OF:
            return None
        command = getattr(import_module(f"tidelog.cli.{_ROOM_OF[cmd_name]}.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:  # click's suggestions have only commands that are loaded
            raise click.exceptions.NoSuchCommand(error.command_name, possibilities=list(_ROOM_OF), ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(self.get_command(ctx, name))) for name in _ROOM_OF])


def _output_is_gone() -> bool:
    """Returns whether the reader of stdout, such as `head`, has gone, which is no error: the rest of the output is then
    dropped, else Python's end would try to write it again, and fail."""
    try:
        descriptor = sys.stdout.fileno()
    except OSError:  # stdout is no file
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    if not any(events & select.POLLERR for _, events in poll.poll(0)):
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
    return True


def _summary(command: click.Command | None) -> str:
    """Returns the first sentence of a command's help; for a group, its subcommands behind it."""
    assert command is not None
    sentence = (command.help or "").partition("\n\n")[0].partition(". ")[0].strip().rstrip(".")
    if isinstance(command, click.Group):
        return f"{sentence}: {', '.join(command.commands)}."
    return f"{sentence}."


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"tidelog {version('tidelog')}")
        ctx.exit()


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
def main() -> None:
    """Durable, partitioned, replicated logs over NATS subjects."""
