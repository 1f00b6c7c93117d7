"""`tidelog replica`: how far each replica is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tidelog.cli.terminal.name_completion import stream_names
from tidelog.cli.terminal.session import cluster_command, console, print_answer
from tidelog.cli.terminal.shown import shown
from tidelog.cli.terminal.tables import Rows, size

if TYPE_CHECKING:
    from tidelog.client.client import Client
    from wire.operations.replica_operations import ReplicaForm, ReplicaList


@click.group()
def replica() -> None:
    """Replicas of partitions: their states, and how far they are behind their leaders."""


@replica.command(name="list")
@click.option("--stream", shell_complete=stream_names, help="Only replicas of this stream.")
@click.option("--broker", metavar="BROKER", help="Only replicas of this broker.")
@click.option("--internal", is_flag=True, help="With those of Tidelog's own streams.")
@cluster_command
async def list_(client: Client, stream: str | None, broker: str | None, internal: bool, as_json: bool) -> None:
    """List replicas with their states and lags.

    The lag is what the leader has and the replica has not acknowledged to it: records by offsets, about so many bytes,
    and the seconds since it had all. "in sync" is a member of the ISR, "catching up" any other follower.

    \b
    Examples:
      tidelog replica list --stream flights
      tidelog replica list --broker b2 --json | jq '.replicas[] | select(.lag_s > 1)'
    """
    found = await client.replicas(stream=stream, broker=broker, internal=internal)
    print_answer(found, _show_list, as_json)


def _show_list(found: ReplicaList) -> None:
    table = Rows(
        "partition", "broker", "state", "end", "lag", "bytes", "seconds", "on disk", drops=("on disk", "bytes")
    )
    for each in found["replicas"]:
        table.add(
            f"{each['stream']}/{each['partition']}",
            each["broker"],
            _state(each),
            _number(each["log_end_offset"]),
            _number(each["lag_records"]),
            size(each["lag_bytes"]),
            _seconds(each["lag_s"]),
            size(each["bytes_on_disk"]),
        )
    table.show()
    for each in found["replicas"]:
        if each["reason"] is not None:
            name = f"{each['stream']}/{each['partition']} on {each['broker']}"
            console().print(f"[red]{name}[/]: {shown(each['reason'])}", highlight=False)
    _show_unanswered(found)


@replica.command()
@click.argument("stream", shell_complete=stream_names)
@click.argument("number", type=click.IntRange(min=0), metavar="PARTITION")
@cluster_command
async def describe(client: Client, stream: str, number: int, as_json: bool) -> None:
    """Show all that is known of each replica of a partition. Its events are in `tidelog partition history`."""
    print_answer(await client.replicas(stream=stream, partition=number), _show, as_json)


def _show(found: ReplicaList) -> None:
    for each in found["replicas"]:
        console().print(
            f"[bold]{each['broker']}[/]  {_state(each)}{'' if each['in_sync'] else ', not in the ISR'}"
            f"{', leader' if each['leads'] else ''}, in LeaderEpoch {_number(each['leader_epoch'])}",
            highlight=False,
        )
        if each["reason"] is not None:
            console().print(f"  [red]{shown(each['reason'])}[/]", highlight=False)
        console().print(
            f"  log from offset {_number(each['log_start_offset'])} to {_number(each['log_end_offset'])}, last known"
            f" committed offset {_number(each['high_watermark'])}, on disk {size(each['bytes_on_disk'])}",
            highlight=False,
        )
        if not each["leads"]:
            console().print(
                f"  behind the leader: {_number(each['lag_records'])} records, {size(each['lag_bytes'])},"
                f" {_seconds(each['lag_s'])} s",
                highlight=False,
            )
        if each["quarantined"]:
            console().print(
                f"  [yellow]{each['quarantined']} times records went into its quarantine[/]", highlight=False
            )
    _show_unanswered(found)


def _show_unanswered(found: ReplicaList) -> None:
    if found["unanswered"]:
        console().print(f"[yellow]without an answer[/]: {', '.join(found['unanswered'])}", highlight=False)


def _state(each: ReplicaForm) -> str:
    colour = {"leading": "bold", "in sync": "green"}.get(each["state"], "yellow")
    return f"[{colour}]{each['state']}[/]"


def _number(value: int | None) -> str:
    return "?" if value is None else str(value)


def _seconds(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}"
