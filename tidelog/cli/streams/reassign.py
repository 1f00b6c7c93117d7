"""`tidelog stream reassign` and `tidelog cluster moves`: other replicas for partitions in use, and how far they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from tidelog.cli.terminal.name_completion import stream_names
from tidelog.cli.terminal.session import (
    cluster_options,
    confirm,
    console,
    counted,
    print_answer,
    print_json,
    run,
    yes_option,
)
from tidelog.cli.terminal.tables import size
from wire.errors import Code, TidelogError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidelog.client.client import Client
    from wire.operations.reassignment_operations import Move, Moves, PlannedMove

POLL_S: Final = 0.5
"""Seconds between two requests for the progress."""
MOST_REFUSALS: Final = 60
"""Requests to cancel that are refused, as partitions have changed meanwhile, before the command gives up."""


def _brokers(_ctx: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> list[list[str]]:
    found = [[broker.strip() for broker in each.split(",")] for each in given]
    for each, text in zip(found, given, strict=True):
        if not all(each):
            raise click.BadParameter(f"{text!r} is no list of brokers; give ids with commas, such as b2,b3,b4")
    return found


@click.command()
@click.argument("name", shell_complete=stream_names)
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    required=True,
    help="A partition; --replicas belong to it. Several pairs may be given.",
)
@click.option(
    "--replicas",
    metavar="ID,ID,...",
    multiple=True,
    required=True,
    callback=_brokers,
    help="Brokers that are to hold the partition, the preferred leader first; as many as the stream has replicas.",
)
@click.option("--dry-run", "only_plan", is_flag=True, help="Only show what would be copied.")
@yes_option
@cluster_options
def reassign(
    name: str,
    partitions: tuple[int, ...],
    replicas: list[list[str]],
    only_plan: bool,
    yes: bool,
    server: str | None,
    namespace: str,
    as_json: bool,
) -> None:
    """Give partitions of a stream other replicas, while the stream is used.

    Shows what will be copied, and asks for the stream's name (elsewhere than on a terminal it needs --yes). Brokers
    that are added copy the log; when all that stay are in sync, the leadership moves to one of them if need be, and the
    former replicas are removed with their files. Until then nothing is removed. A few partitions copy at a time; the
    others wait.

    `tidelog cluster moves` shows how far it is, and gives it up with --cancel.

    \b
    Example:
      tidelog stream reassign orders --partition 0 --replicas b2,b3,b4 --partition 1 --replicas b3,b4,b2
    """
    if len(partitions) != len(replicas):
        raise click.UsageError(
            f"{counted(len(partitions), '--partition')} and {len(replicas)} --replicas: give them in pairs"
        )
    if len({*partitions}) != len(partitions):
        raise click.UsageError("a --partition is named twice; name each once")
    wanted = dict(zip(partitions, replicas, strict=True))
    plans: list[list[PlannedMove]] = []

    async def ask_plan(client: Client) -> None:
        plans.append((await client.reassign(name, wanted, dry_run=True))["plan"])

    run(server, namespace, ask_plan)
    (plan,) = plans
    if only_plan and as_json:
        print_json(plan)
    elif not as_json:
        _show_plan(name, plan)
    if only_plan:
        return
    if plan:
        confirm(f"gives {counted(len(plan), 'partition')} of stream {name} other replicas", name, yes=yes)

    async def work(client: Client) -> None:
        print_answer(await client.reassign(name, wanted), _begun(plan), as_json)

    run(server, namespace, work)


def _begun(plan: list[PlannedMove]) -> str:
    if not plan:
        return "nothing is to be moved"
    said = "begun; `tidelog cluster moves` shows how far it is"
    reordered = [move for move in plan if not move["added"] and not move["removed"]]
    if all(move["leader"] in (None, move["target"][0]) for move in reordered):
        return said
    which = "the" if len(reordered) == len(plan) else "where only the order changes the"
    return (
        f"{said}; {which} leadership follows after leader_rebalance_delay_ms, or at once by"
        " `tidelog cluster rebalance --leaders-only`"
    )


def _show_plan(name: str, plan: list[PlannedMove]) -> None:
    from rich.table import Table

    table = Table(
        "partition", "replicas", "then", "copied to", "from", "bytes", title=f"stream {name}", title_justify="left"
    )
    for move in plan:
        table.add_row(
            str(move["partition"]),
            ", ".join(move["replicas"]),
            ", ".join(move["target"]),
            ", ".join(move["added"]) or "-",
            (move["leader"] or "nobody leads") if move["added"] else "-",
            size(move["bytes_to_copy"]) if move["added"] else "-",
        )
    console().print(table)


@click.command()
@click.option("--stream", "name", metavar="NAME", shell_complete=stream_names, help="Only of this stream.")
@click.option("--watch", is_flag=True, help="Wait until all are over, with a line for each change.")
@click.option("--cancel", is_flag=True, help="Give them up: the partitions go back to the replicas that they had.")
@yes_option
@cluster_options
def moves(
    name: str | None, watch: bool, cancel: bool, yes: bool, server: str | None, namespace: str, as_json: bool
) -> None:
    """Show the partitions that get other replicas, and how far they are.

    With --cancel they are given up. Brokers that were added lose their copies, as soon as nothing that is committed is
    on them alone; what has been completed stays as it is. On a terminal --cancel asks first; elsewhere it needs --yes.
    """
    if cancel:
        of = "all streams" if name is None else f"stream {name}"
        confirm(f"gives up the moves of {of}", name or "all", yes=yes)

    async def work(client: Client) -> None:
        found = await client.moves(name)
        if cancel:
            found = await _cancelled(client, name, found)
        show: Callable[[Moves], None] = _show_moves
        if watch and found["total"]:
            found = await watched(client, name, found, as_json)
            show = _show_nothing  # the end has been said
        print_answer(found, show, as_json)

    run(server, namespace, work)


async def _cancelled(client: Client, name: str | None, found: Moves) -> Moves:
    """Returns those that are under way when none is left that does not go back. They are listed first, so that those
    that go back hide none."""
    import asyncio

    refusals = 0
    while names := sorted({move["stream"] for move in found["moves"] if move["state"] != "going back"}):
        for each in names:
            try:
                await client.cancel_reassignment(each)
            except TidelogError as error:
                # Some have changed since the controller looked at them, and the others are cancelled.
                refusals += 1
                if error.code is not Code.STALE_EPOCH or refusals > MOST_REFUSALS:
                    raise
                await asyncio.sleep(POLL_S)
        found = await client.moves(name)
    return found


async def watched(client: Client, name: str | None, found: Moves, as_json: bool, *, begun: int = 0) -> Moves:
    """Returns when no moves are left. `begun`: as many have begun just now, and some may be over already."""
    import asyncio

    said, most = "", begun
    while found["total"]:
        most = max(most, found["total"])
        states = [move["state"] for move in found["moves"]]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        behind = [copy["bytes_behind"] or 0 for move in found["moves"] for copy in move["copies"]]
        line = f"{counted(found['total'], 'partition')}: {counts}; {size(sum(behind))} left to copy"
        if line != said:
            said = line
            click.echo(line, err=as_json)
        await asyncio.sleep(POLL_S)
        found = await client.moves(name)
    if most:
        click.echo(f"all {most} moves are over" if most > 1 else "the move is over", err=as_json)
    return found


def _show_nothing(_: Moves) -> None:
    pass


def _show_moves(found: Moves) -> None:
    from rich.table import Table

    if not found["total"]:
        click.echo("no partition gets other replicas")
        return
    table = Table("partition", "state", "from", "to", "leader", "behind", "waits for")
    for move in found["moves"]:
        table.add_row(
            f"{move['stream']}/{move['partition']}",
            move["state"],
            ", ".join(move["original"]),
            ", ".join(move["target"]),
            move["leader"] or "-",
            _behind(move),
            move["waits_for"],
        )
    console().print(table)
    if found["total"] > len(found["moves"]):
        click.echo(f"{found['total'] - len(found['moves'])} more wait")


def _behind(move: Move) -> str:
    parts = []
    for copy in move["copies"]:
        if copy["in_sync"]:
            parts.append(f"{copy['broker']}: in sync")
        else:
            offsets = "?" if copy["offsets_behind"] is None else str(copy["offsets_behind"])
            parts.append(f"{copy['broker']}: {offsets} offsets, {size(copy['bytes_behind'])}")
    return "\n".join(parts) or "-"
