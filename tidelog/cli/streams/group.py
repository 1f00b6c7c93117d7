"""`tidelog group`: list, describe, reset, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from tidelog.cli.terminal.name_completion import group_names, stream_names
from tidelog.cli.terminal.session import (
    Work,
    cluster_command,
    cluster_options,
    confirm,
    console,
    counted,
    print_answer,
    print_json,
    run,
    yes_option,
)
from tidelog.cli.terminal.shown import plain, shown
from tidelog.cli.terminal.tables import Rows

if TYPE_CHECKING:
    from tidelog.client.client import Client
    from tidelog.client.group.group_admin import DescribedGroup, GroupProgress, OffsetChange
    from wire.operations.api_operations import GroupList

MOST_LAGS = 200
"""Groups whose lag `group list` looks up: each is a request to its coordinator, and one to leaders for each stream."""
_LAGS_AT_ONCE = 8


@click.group()
def group() -> None:
    """Consumer groups: members, offsets, and how far they are behind.

    A group is made when its first member joins (`tidelog subscribe STREAM --group NAME`), or when offsets are committed
    for it (`tidelog group reset`).
    """


@group.command(name="list")
@cluster_command
async def list_(client: Client, as_json: bool) -> None:
    """List the consumer groups, and how far each is behind.

    The lag is the sum over the partitions of which the group has committed something.
    """
    found = await client.groups()
    lags = await _lags(client, [summary["name"] for summary in found["groups"][:MOST_LAGS]])
    if as_json:
        groups = [{**summary, "lag": lags.get(summary["name"])} for summary in found["groups"]]
        print_json({**found, "groups": groups})
    else:
        _show_list(found, lags)


@group.command()
@click.argument("name", shell_complete=group_names)
@cluster_command
async def describe(client: Client, name: str, as_json: bool) -> None:
    """Show a group's members and their partitions, what is committed, and how far it is behind.

    The lag is the number of offsets between what is committed and the end of the committed log. Offsets that are
    pending are committed if the transaction of their producer is.
    """
    found = await client.describe_group(name)
    if as_json:
        lag, unknown = _total(found["progress"])
        print_json({**found, "lag": lag, "lag_unknown": unknown})
    else:
        _show_description(found)


@group.command()
@click.argument("name", shell_complete=group_names)
@click.option(
    "--to",
    metavar="earliest|latest|OFFSET|TIME",
    help="earliest: the oldest record; latest: the end of the committed log; digits: that offset, in every partition;"
    " ISO-8601: the first record at or after that time (UTC unless it says otherwise).",
)
@click.option("--shift", type=int, metavar="NUMBER", help="So many offsets on, or with a minus back.")
@click.option(
    "--stream",
    "streams",
    multiple=True,
    metavar="NAME",
    shell_complete=stream_names,
    help="Only this one; repeatable. [default: those of which the group has committed something]",
)
@click.option("--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this one; repeatable.")
@yes_option
@cluster_options
def reset(
    name: str,
    to: str | None,
    shift: int | None,
    streams: tuple[str, ...],
    partitions: tuple[int, ...],
    yes: bool,
    server: str | None,
    namespace: str,
    as_json: bool,
) -> None:
    """Commit other offsets for a group without members: what its members read first when they come.

    It shows what would change, then asks for the group's name on a terminal; elsewhere it needs --yes. An offset
    outside of the log becomes its start or end.

    \b
    Examples:
      tidelog group reset billing --to earliest
      tidelog group reset billing --to 2026-01-31T12:00:00Z --stream orders
      tidelog group reset billing --shift -100 --stream orders --partition 0
    """
    if (to is None) == (shift is None):
        raise click.UsageError("say where to: --to or --shift, one of them")
    plan: list[OffsetChange] = []

    async def look(client: Client) -> None:
        plan.extend(
            await client.reset_group(
                name,
                to=to_position(to),
                shift=shift,
                streams=streams or None,
                partitions=partitions or None,
                dry_run=True,
            )
        )
        if not as_json:
            _show_plan(plan)

    async def carry_out(client: Client) -> None:
        offsets = {(change["stream"], change["partition"]): change["after"] for change in plan}
        done = await client.reset_group(name, to=offsets)
        print_answer(done, f"reset group {name} in {counted(len(done), 'partition')}", as_json)

    run(server, namespace, look)
    confirm(f"sets the offsets of group {name} in {counted(len(plan), 'partition')}", name, yes=yes)
    run(server, namespace, carry_out)


@group.command()
@click.argument("name", shell_complete=group_names)
@yes_option
@cluster_command
def delete(name: str, yes: bool, as_json: bool) -> Work:
    """Forget a group without members, and the offsets that it has committed.

    On a terminal it asks for the group's name; elsewhere it needs --yes.
    """
    confirm(f"deletes group {name} with the offsets that it has committed", name, yes=yes)

    async def work(client: Client) -> None:
        await client.delete_group(name)
        print_answer({"deleted": name}, f"deleted group {name}", as_json)

    return work


async def _lags(client: Client, names: list[str]) -> dict[str, int | None]:
    """Returns the lag of each group in all; None: it has no committed offset, or no leader reports an end."""
    import asyncio

    from wire.errors import TidelogError

    at_once = asyncio.Semaphore(_LAGS_AT_ONCE)

    async def of(name: str) -> int | None:
        async with at_once:
            try:
                return _total((await client.describe_group(name))["progress"])[0]
            except TidelogError:  # the group was forgotten meanwhile, or its coordinator does not answer
                return None

    return dict(zip(names, await asyncio.gather(*map(of, names)), strict=True))


def _total(progress: Sequence[GroupProgress]) -> tuple[int | None, int]:
    """Returns the sum of the known lags (None: none is), and the number of partitions whose lag is not known."""
    known = [entry["lag"] for entry in progress if entry["lag"] is not None]
    return sum(known) if known else None, len(progress) - len(known)


def to_position(text: str | None) -> str | int | None:
    """Returns a position; digits are an offset."""
    return int(text) if text is not None and text.isascii() and text.isdigit() else text


def _show_list(found: GroupList, lags: Mapping[str, int | None]) -> None:
    if found["groups"]:
        table = Rows(
            "group", "state", "members", "generation", "lag", "streams", folds=("streams",), drops=("generation",)
        )
        for summary in found["groups"]:
            table.add(
                shown(summary["name"]),
                _state(summary["state"]),
                str(summary["members"]),
                str(summary["generation"]),
                _number(lags[summary["name"]]) if summary["name"] in lags else "",
                shown(" ".join(summary["streams"])),
            )
        table.show()
        if len(lags) < len(found["groups"]):
            first = counted(len(lags), "group")
            click.echo(f"the lag is shown of the first {first}; `tidelog group describe NAME` tells that of another")
    elif not found["unanswered"]:
        click.echo("no groups; `tidelog subscribe STREAM --group NAME` makes one")
    if found["unanswered"]:
        missing = ", ".join(map(str, found["unanswered"]))
        click.echo(
            f"tidelog: the groups of partition {missing} of __groups are missing: their coordinators did not answer;"
            " see `tidelog stream describe __groups`",
            err=True,
        )


def _show_description(found: DescribedGroup) -> None:
    from tidelog.client.base.read_positions import timestamp_to_text

    console().print(
        f"group [bold]{shown(found['name'])}[/]  {_state(found['state'])}  generation {found['generation']}"
        f"  coordinator {found['coordinator']} (__groups/{found['partition']})",
        highlight=False,
    )
    if left_out := found["left_out"]:
        console().print(
            f"[red]beyond the limit of a group: {counted(left_out, 'partition')} of what is subscribed to, which no"
            " member reads[/]; share the streams among several groups",
            highlight=False,
        )
    if found["details"]:
        members = Rows(
            "member",
            "client",
            "instance",
            "subscribed to",
            "partitions",
            "to be given up",
            folds=("client", "subscribed to", "partitions", "to be given up"),
            drops=("client", "to be given up", "subscribed to"),
        )
        for member in found["details"]:
            members.add(
                shown(member["id"]),
                shown(member["client"]),
                shown(member["instance"]) + (" (away)" if member["parted"] else ""),
                shown(" ".join(member["subscription"])),
                _partitions(member["assigned"]),
                _partitions(member["revoking"]),
            )
        members.show()
    for each in found["pending"]:
        click.echo(
            f"pending: {plain(each['stream'])}/{each['partition']} at {each['offset']}, in a transaction of producer"
            f" {each['producer_id']} (`tidelog transaction list`)"
        )
    for entry in found["progress"]:
        if entry["waits_for"]:
            sources = ", ".join(f"{n} up to {'its cutover' if at < 0 else at}" for n, at in entry["waits_for"].items())
            click.echo(
                f"{plain(entry['stream'])}/{entry['partition']} waits, where keys keep their order, until the group has"
                f" committed {sources}"
            )
    if found["progress"]:
        table = Rows(
            "stream",
            "partition",
            "committed",
            "end",
            "lag",
            "member",
            "committed at",
            "metadata",
            folds=("metadata",),
            drops=("metadata", "committed at"),
        )
        for entry in found["progress"]:
            table.add(
                shown(entry["stream"]),
                str(entry["partition"]),
                "nothing" if entry["committed"] is None else str(entry["committed"]),
                _number(entry["end"]),
                _number(entry["lag"]),
                shown(entry["member"] or ""),
                timestamp_to_text(entry["committed_at_ns"]) if entry["committed_at_ns"] else "",
                shown(entry["metadata"]),
            )
        table.show()
        lag, unknown = _total(found["progress"])
        partitions = counted(len(found["progress"]), "partition")
        not_known = f"; it is not known of {unknown}" if unknown else ""
        click.echo(f"lag in all: {_number(lag)} in {partitions}{not_known}")


def _show_plan(plan: list[OffsetChange]) -> None:
    table = Rows("stream", "partition", "committed", "would be")
    for change in plan:
        before = change["before"]
        table.add(
            shown(change["stream"]),
            str(change["partition"]),
            "nothing" if before is None else str(before),
            str(change["after"]),
        )
    table.show()


def _number(value: int | None) -> str:
    return "?" if value is None else str(value)


def _state(state: str) -> str:
    return state if state != "reconciling" else f"[yellow]{state}[/]"


def _partitions(held: dict[str, list[int]]) -> str:
    return shown(" ".join(f"{stream}/{','.join(map(str, partitions))}" for stream, partitions in sorted(held.items())))
