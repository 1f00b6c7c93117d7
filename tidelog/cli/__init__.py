"""The command line. The command `tidelog` runs `main`.

One file per command group. The table below is all that `tidelog --help` looks at: a command's module is imported when
that command runs, so that help and completion are quick and `publish` does not load a broker.

Exit status: 0; 1 with one sentence on stderr when something was refused or failed; 2 when the command line itself is
wrong; 130 after Ctrl-C.
"""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

import click


class _Entry(NamedTuple):
    module: str
    attribute: str
    help: str


_COMMANDS = {
    "up": _Entry("tidelog.cli.up", "up", "Run a development cluster."),
    "server": _Entry("tidelog.cli.server", "server", "Run one broker."),
    "stream": _Entry("tidelog.cli.stream", "stream", "Create, list, describe and delete streams."),
    "partition": _Entry("tidelog.cli.partition", "partition", "Move leaders, or elect one at a loss."),
    "publish": _Entry("tidelog.cli.publish", "publish", "Append records to a stream."),
    "subscribe": _Entry("tidelog.cli.subscribe", "subscribe", "Read a stream's committed records."),
    "log": _Entry("tidelog.cli.log", "log", "Look into a stopped broker's data folder."),
    "broker": _Entry("tidelog.cli.broker", "broker", "Show one broker and the partitions that it holds."),
    "cluster": _Entry("tidelog.cli.cluster", "cluster", "Show the state of the cluster."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = _COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = getattr(import_module(entry.module), entry.attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in _COMMANDS.items()])


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
