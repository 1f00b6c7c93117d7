"""`tidelog stream alter --partitions` and `tidelog stream repartition`: another number of partitions for a stream in
use."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import click

from tidelog.cli.terminal.name_completion import stream_names
from tidelog.cli.terminal.session import cluster_command, confirm, console, counted, print_answer, print_json, run

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from tidelog.client.client import Client
    from wire.operations.api_operations import LayoutForm, PartitionDescription
    from wire.operations.partition_operations import RepartitionPlan, RepartitionState, RepartitionStatus

POLL_S: Final = 0.2
"""Seconds between two requests for the progress."""
QUIET_S: Final = 2.0
"""Seconds after which a command whose stderr is no terminal says what it waits for, and again in each phase."""
_SHOWN: Final = 12
"""Partitions that one line lists."""


class _Repartition(click.Group):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:  # it may be the name of a stream
            told = f"{error.message} A repartition begins with `tidelog stream alter NAME --partitions N`."
            raise click.exceptions.NoSuchCommand(
                error.command_name, told, possibilities=self.commands, ctx=ctx
            ) from None


@click.group(cls=_Repartition)
def repartition() -> None:
    """How far a change of the number of partitions is; it begins with `tidelog stream alter NAME --partitions N`.

    \b
    Two phases:
      prepared   new partitions are made ready; keys are spread as before; `cancel` gives it up
      cutover    keys are spread anew; each old partition reports where its old records end; clients hear of it
    """


@repartition.command()
@click.argument("name", shell_complete=stream_names)
@cluster_command
async def status(client: Client, name: str, as_json: bool) -> None:
    """Show how far the repartition of a stream is, and what it waits for."""
    found = await client.repartition_status(name)
    print_answer(found, in_words(found), as_json)


@repartition.command()
@click.argument("name", shell_complete=stream_names)
@cluster_command
async def watch(client: Client, name: str, as_json: bool) -> None:
    """Wait until the repartition of a stream is finished, with its progress on a terminal.

    Ctrl-C ends the command, and not the repartition.
    """
    found = await wait_finished(client, name)
    print_answer(found, in_words(found), as_json)


@repartition.command()
@click.argument("name", shell_complete=stream_names)
@cluster_command
async def cancel(client: Client, name: str, as_json: bool) -> None:
    """Give up a repartition while its new partitions are made ready.

    Once keys are spread anew it cannot be cancelled: change the number of partitions again, to what it was.
    """
    found = await client.cancel_repartition(name)
    print_answer(found, f"cancelled; {in_words(found)}", as_json)


def alter_partitions(
    name: str,
    partitions: int,
    *,
    only_plan: bool,
    yes: bool,
    waits: bool,
    server: str | None,
    namespace: str,
    as_json: bool,
) -> None:
    """Shows the plan, asks for confirmation, begins it, and waits until it is finished."""
    plans: list[RepartitionPlan] = []

    async def ask_plan(client: Client) -> None:
        plans.append((await client.repartition(name, partitions, dry_run=True))["plan"])

    run(server, namespace, ask_plan)
    plan = plans[0]
    if only_plan and as_json:
        print_json(plan)
    elif not as_json:
        _show_plan(plan)
    if only_plan:
        return
    before, after = counted(plan["partitions"], "partition"), counted(plan["to_partitions"], "partition")
    confirm(f"spreads the keys of stream {name} over {after} in place of {before}", name, yes=yes)

    async def work(client: Client) -> None:
        found = (await client.repartition(name, partitions))["status"]
        if waits:
            found = await wait_finished(client, name, found)
        under_way = found["repartition"]
        is_done = partitions in (found["partitions"], None if under_way is None else under_way["partitions"])
        if as_json:
            print_json(found)
        elif is_done:
            click.echo(in_words(found, idle="the repartition is finished"))
        if not is_done:
            raise click.ClickException(
                f"the repartition of stream {name} to {after} is gone, and keys are spread over"
                f" {counted(found['partitions'], 'partition')}: somebody has cancelled it, or begun another one"
            )

    run(server, namespace, work)


async def wait_finished(client: Client, name: str, found: RepartitionStatus | None = None) -> RepartitionStatus:
    """Waits until the repartition is finished. `found`: its present status."""
    import asyncio

    if found is None:
        found = await client.repartition_status(name)
    try:
        with _progress() as bar:
            task = None if bar is None else bar.add_task("", total=None)
            begun, said = time.monotonic(), ""
            while (state := found["repartition"]) is not None:
                phase = f"{state['phase']}, {state['done'] < state['of']}"
                if bar is not None and task is not None:
                    _advance(bar, task, state)
                elif phase != said and time.monotonic() >= begun + QUIET_S:
                    said = phase
                    click.echo(f"waiting: {_waits_for(state)}", err=True)
                await asyncio.sleep(POLL_S)
                found = await client.repartition_status(name)
    except asyncio.CancelledError:
        click.echo(f"the repartition goes on; `tidelog stream repartition watch {name}` shows it", err=True)
        raise
    return found


def in_words(found: RepartitionStatus, idle: str = "no repartition is under way") -> str:
    """Describes the status in a sentence. `idle`: used where no repartition is under way."""
    spread = (
        f"stream {found['stream']} spreads keys over {counted(found['partitions'], 'partition')}"
        f" (partitioning version {found['partitioning_version']})"
    )
    state = found["repartition"]
    if state is None:
        return f"{spread}; {idle}"
    to = f"a repartition to {counted(state['partitions'], 'partition')} (version {state['version']}) is under way"
    return f"{spread}; {to}: {_waits_for(state)}"


def state_of(partition: PartitionDescription, layouts: list[LayoutForm]) -> str:
    """Returns the state of a partition, in one word: `prepared` is made ready for the next layout."""
    is_spread_over = not layouts or partition["partition"] < layouts[-1]["partitions"]
    return partition["state"] if is_spread_over or partition["state"] != "active" else "prepared"


def show_layouts(layouts: list[LayoutForm]) -> None:
    """Prints the layouts, if there was a repartition."""
    from rich.table import Table

    if len(layouts) < 2:
        return
    table = Table("partitioning version", "partitions", "cutover, by partition")
    for layout in layouts:
        starts = [f"{number}: {'?' if start < 0 else start}" for number, start in enumerate(layout["starts"][:_SHOWN])]
        more = ["…"] if len(layout["starts"]) > _SHOWN else []
        table.add_row(str(layout["version"]), str(layout["partitions"]), "  ".join([*starts, *more]))
    console().print(table)


def _waits_for(state: RepartitionState) -> str:
    of, waiting = counted(state["of"], "partition"), _listed(state["waiting"], state["of"] - state["done"])
    if state["phase"] == "prepared":
        return f"the leaders of {state['done']} of {of} are ready, {waiting} not yet"
    if state["done"] < state["of"]:
        return f"{state['done']} of {of} have reported where their old records end, {waiting} not yet"
    left = max(0.0, state["adoption_timeout_s"] - (state["done_for_s"] or 0.0))
    known = (
        "no client reports that it knows"
        if state["adopted"] is None
        else f"a client still has the routes of generation {state['adopted']}, before {state['adoption_generation']}"
    )
    return f"clients hear of it; {known}; it is finished in {left:.0f} s at the latest"


def _listed(numbers: list[int], count: int) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN]))
    return shown + (", …" if count > len(numbers[:_SHOWN]) else "")


def _advance(bar: Progress, task: TaskID, state: RepartitionState) -> None:
    if state["phase"] == "prepared":
        bar.update(task, description="new partitions get ready", completed=state["done"], total=state["of"])
    elif state["done"] < state["of"]:
        bar.update(task, description="old partitions end", completed=state["done"], total=state["of"])
    else:
        waited, most = state["done_for_s"] or 0.0, state["adoption_timeout_s"]
        bar.update(task, description=f"clients hear of it, {most:.0f} s at most", completed=waited, total=most)


def _progress() -> Any:
    """Returns a progress bar on a terminal's stderr, else an empty context."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def _show_plan(plan: RepartitionPlan) -> None:
    from rich.table import Table

    table = Table("", "now", "then", title=f"stream {plan['stream']}", title_justify="left")
    table.add_row("partitions", str(plan["partitions"]), str(plan["to_partitions"]))
    table.add_row("partitioning version", str(plan["partitioning_version"]), str(plan["to_version"]))
    for what, numbers in (
        ("made", plan["made"]),
        ("used again", plan["used_again"]),
        ("left, without new records", plan["left"]),
    ):
        if numbers:
            table.add_row(what, "", _listed(numbers, len(numbers)))
    table.add_row("keys that move to another partition", "", f"{100 * plan['moved_keys']:.0f} %")
    console().print(table)
    if plan["sources"]:
        waits = Table("new records of partition", "are read, in the order of keys, after the old ones of")
        for source in plan["sources"][:_SHOWN]:
            waits.add_row(str(source["partition"]), _listed(source["waits_for"], len(source["waits_for"])))
        if len(plan["sources"]) > _SHOWN:
            waits.add_row("…", "…")
        console().print(waits)
    for effect in plan["effects"]:
        click.echo(f"- {effect}")
