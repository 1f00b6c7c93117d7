"""`tidelog partition`: the events of a partition, and the replica that leads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tidelog.cli.terminal.name_completion import stream_names
from tidelog.cli.terminal.points_in_time import time_zone_option, told_time
from tidelog.cli.terminal.session import (
    Work,
    cluster_command,
    confirm,
    console,
    fail,
    print_answer,
    print_json,
    yes_option,
)

if TYPE_CHECKING:
    from datetime import tzinfo

    from tidelog.client.client import Client
    from wire.operations.api_operations import PartitionHistory

_PARTITION = click.IntRange(min=0)


@click.group()
def partition() -> None:
    """Leaders of partitions, and what happened to their replicas.

    `tidelog stream describe STREAM` shows the leader of each partition and which replicas are in sync.
    """


@partition.command(name="move-leader")
@click.argument("stream", shell_complete=stream_names)
@click.argument("number", type=_PARTITION, metavar="PARTITION")
@click.argument("broker")
@cluster_command
async def move_leader(client: Client, stream: str, number: int, broker: str, as_json: bool) -> None:
    """Let BROKER lead in place of the present leader. Nothing acknowledged is lost.

    BROKER must be alive and in sync. The present leader takes no records until BROKER has all of its log, some
    milliseconds as a rule, then BROKER is elected; the old leader stays in sync. Meanwhile acknowledged publishes are
    refused as retriable, which Tidelog producers repeat by themselves; plain publishes are dropped and counted, as at
    any change of leader.

    If BROKER does not get there in 2 s, nothing changes, and the command says so and exits with status 1.

    \b
    Example, before b1 is stopped for maintenance:
      tidelog partition move-leader flights 0 b2
    """
    found = await client.move_leader(stream, number, broker)
    print_answer(
        found,
        f"{broker} leads {stream}/{number} now, in LeaderEpoch {found['leader_epoch']};"
        f" in sync: {', '.join(found['isr'])}",
        as_json,
    )


@partition.command()
@click.argument("stream", shell_complete=stream_names)
@click.argument("number", type=_PARTITION, metavar="PARTITION")
@time_zone_option
@cluster_command
async def history(client: Client, stream: str, number: int, zone: tzinfo | None, as_json: bool) -> None:
    """Show the last events of each replica: its roles, changes of the ISR, cuts of its log, failures.

    Each broker keeps the last fifty since it was started. The leader is first; the newest event is last. Times are
    those of each broker's clock.

    \b
    Example, to see why a replica left the ISR:
      tidelog partition history flights 0
    """
    found = await client.partition_history(stream, number)
    if as_json:
        print_json(found)
    else:
        _show_history(found, zone)


def _show_history(found: PartitionHistory, zone: tzinfo | None) -> None:
    for replica in sorted(found["replicas"], key=lambda replica: not replica["leads"]):
        console().print(
            f"[bold]{replica['broker']}[/]  {'leads' if replica['leads'] else replica['state']}", highlight=False
        )
        events = replica["events"]
        if events is None:
            console().print("  [yellow]it does not answer[/]")
        for event in events or ():
            times = f" ({event['times']} times)" if event["times"] > 1 else ""
            console().print(
                f"  {told_time(event['time'], zone)}  {event['seconds_ago']:>12.3f} s ago  {event['event']}{times}",
                highlight=False,
                markup=False,
            )


@partition.command(name="elect-unclean")
@click.argument("stream", shell_complete=stream_names)
@click.argument("number", type=_PARTITION, metavar="PARTITION")
@click.argument("broker")
@click.option("--accept-loss", is_flag=True, help="Do it. Without this, only tell the loss, and exit with 1.")
@yes_option
@cluster_command
def elect_unclean(stream: str, number: int, broker: str, accept_loss: bool, yes: bool, as_json: bool) -> Work:
    """Let BROKER lead a partition that no broker can lead safely, AT THE LOSS OF COMMITTED RECORDS.

    A partition is offline when no in-sync or eligible replica of it is alive and sound. Start one of these brokers
    instead whenever that is possible: then nothing is lost. This command is for when their disks are gone.

    BROKER must be alive and hold a replica. It becomes the only in-sync replica with the log that it has; the others
    cut theirs to it when they return. Consumers that had read further are told (LOG_TRUNCATED). Streams with min_isr
    above 1 take acknowledged publishes again when enough replicas have caught up with BROKER.

    Without --accept-loss nothing changes. With it, the command asks for the name of the stream on a terminal, and needs
    --yes elsewhere. The number of such elections is in `tidelog cluster status`.
    """
    if accept_loss:
        confirm(f"gives up records of {stream}/{number} that were committed", stream, yes=yes)

    async def work(client: Client) -> None:
        found = await client.elect_unclean(stream, number, broker, accept_loss=accept_loss)
        if as_json:
            print_json(found)
        if not found["elected"]:
            fail(
                f"nothing was changed. If {broker} leads {stream}/{number}: {found['loss']}."
                " Start one of the others if you can; add --accept-loss if you cannot"
            )
        if not as_json:
            click.echo(f"{broker} leads {stream}/{number} now: {found['loss']}")

    return work
