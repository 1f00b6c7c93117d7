"""`tidelog stream copy`: a stream with the records of another one."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.terminal.name_completion import stream_names
from tidelog.cli.terminal.points_in_time import FORMS, position, time_zone_option
from tidelog.cli.terminal.session import Work, cluster_command, counted, print_json
from tidelog.cli.terminal.setting_options import SettingsCommand, config_of, config_option
from wire.durability import MAX_REPLICAS
from wire.layouts import MAX_PARTITIONS

if TYPE_CHECKING:
    from datetime import tzinfo

    from tidelog.client.client import Client


@click.command(cls=SettingsCommand)
@click.argument("source", shell_complete=stream_names)
@click.argument("target")
@click.option(
    "--partitions",
    type=click.IntRange(min=1, max=MAX_PARTITIONS),
    help="Of the copy.  [default: as many as SOURCE has]",
)
@click.option("--subject", help="NATS subject that the copy captures.  [default: TARGET]")
@click.option(
    "--replication-factor", type=click.IntRange(min=1, max=MAX_REPLICAS), help="Of the copy.  [default: that of SOURCE]"
)
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar="[earliest|OFFSET|TIME]",
    help=f"Begin there, in every partition. Times are in {FORMS}.",
)
@click.option(
    "--to",
    "stop",
    default="latest",
    show_default=True,
    metavar="[latest|OFFSET|TIME]",
    help="End before it; latest: the end of the committed log when the copy begins.",
)
@time_zone_option
@click.option("--resume", is_flag=True, help="Go on with a copy that ended early; the other options as at first.")
@config_option
@cluster_command
def copy(
    source: str,
    target: str,
    start: str,
    stop: str,
    zone: tzinfo | None,
    settings: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> Work:
    """Make TARGET, a stream like SOURCE, and copy the committed records of SOURCE into it.

    Keys, values, headers and timestamps are copied, in the order of each partition; TARGET has the settings of SOURCE
    but for delete_protection and what --config says. With another number of partitions, and where SOURCE was
    repartitioned, records with a key go where producers put that key, in order; records without a key stay together by
    the partition that they come from.

    A copy that ended early stays as it is: --resume goes on with it where the numbers of partitions are the same and
    neither was repartitioned; else delete it and begin anew.

    \b
    Examples:
      tidelog stream copy flights flights-wide --partitions 12
      tidelog stream copy flights flights-june --from 2026-06-01T00:00Z --to 2026-07-01T00:00Z
    """
    begin, end = position("--from", start, zone), position("--to", stop, zone)
    config = config_of(settings)

    async def work(client: Client) -> None:
        import asyncio

        with _progress() as progress:

            def on_progress(done: int, total: int) -> None:
                if progress is not None:
                    progress.update(progress.task_ids[0], completed=done, total=total or None)

            try:
                copied = await client.copy_stream(
                    source, target, start=begin, stop=end, config=config, on_progress=on_progress, **options
                )
            except asyncio.CancelledError:
                click.echo(f"{target} holds what was copied so far; --resume goes on with it", err=True)
                raise
        if as_json:
            print_json(copied._asdict())
            return
        already = f", {copied.already_there} were there already" if copied.already_there else ""
        click.echo(f"copied {counted(copied.records, 'record')} of {source} into {target}{already}")
        if copied.missed:
            click.echo(f"{copied.missed} offsets of {source} were removed before they were read", err=True)

    return work


def _progress() -> Any:
    """Returns a progress bar on a terminal's stderr, else an empty context."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    progress = Progress(
        TextColumn("copying"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    progress.add_task("copying", total=None)
    return progress
