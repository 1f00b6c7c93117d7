"""How commands show a plan of other replicas: what is copied, from where to where, and how long that takes at least;
and `tidelog stream alter --replication-factor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from tidelog.cli.terminal.session import confirm, console, counted, print_answer, print_json, run
from tidelog.cli.terminal.tables import size
from wire.notation import bytes_in_words

if TYPE_CHECKING:
    from tidelog.client.client import Client
    from wire.operations.reassignment_operations import AlteredFactor, ReplicaPlan

MOST_SHOWN: Final = 20
"""Partitions and pairs of brokers that are shown; --json has more."""


def show_plan(plan: ReplicaPlan) -> None:
    from rich.table import Table

    if plan["plan"]:
        table = Table("partition", "replicas", "then", "copied to", "from", "bytes")
        for move in plan["plan"][:MOST_SHOWN]:
            table.add_row(
                f"{move['stream']}/{move['partition']}",
                ", ".join(move["replicas"]),
                ", ".join(move["target"]),
                ", ".join(move["added"]) or "-",
                (move["leader"] or "nobody leads") if move["added"] else "-",
                size(move["bytes_to_copy"]) if move["added"] else "-",
            )
        console().print(table)
        _say_rest(plan["partitions"] - MOST_SHOWN, "partition")
    if plan["sources"]:
        pairs = Table("from", "to", "copies", "bytes")
        for pair in plan["sources"][:MOST_SHOWN]:
            pairs.add_row(pair["source"] or "nobody leads", pair["target"], str(pair["copies"]), size(pair["bytes"]))
        console().print(pairs)
        _say_rest(len(plan["sources"]) - MOST_SHOWN, "pair")
    for stuck in plan["stuck"][:MOST_SHOWN]:
        console().print(f"[yellow]stays[/]: {stuck['partition']}, {stuck['why']}", highlight=False)
    _say_rest(plan["stuck_total"] - MOST_SHOWN, "partition")
    click.echo(in_words(plan))


def in_words(plan: ReplicaPlan) -> str:
    if not plan["partitions"]:
        return "nothing is to be moved"
    if not plan["copies"]:
        return f"{counted(plan['partitions'], 'partition')} change without a copy"
    unknown = f", and {plan['sizes_unknown']} of unknown size" if plan["sizes_unknown"] else ""
    return (
        f"{counted(plan['partitions'], 'partition')}, {plan['copies']} {'copy' if plan['copies'] == 1 else 'copies'}:"
        f" {bytes_in_words(plan['bytes_to_copy'])}{unknown}; {_time(plan['least_s'])} at least, at the budget of"
        f" {bytes_in_words(plan['budget_bytes_per_s'])}/s for each broker that is copied from"
    )


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _say_rest(count: int, thing: str) -> None:
    if count > 0:
        click.echo(f"{counted(count, f'more {thing}')}; --json names them")


def alter_factor(
    name: str, factor: int, *, only_plan: bool, yes: bool, server: str | None, namespace: str, as_json: bool
) -> None:
    plans: list[AlteredFactor] = []

    async def ask_plan(client: Client) -> None:
        plans.append(await client.alter_replication_factor(name, factor, dry_run=True))

    run(server, namespace, ask_plan, reports_waits=True)
    (asked,) = plans
    if only_plan and as_json:
        print_json(asked)
    elif not as_json:
        show_plan(asked["plan"])
        click.echo(_min_isr(asked))
    if only_plan:
        return
    if asked["plan"]["partitions"]:
        confirm(f"gives stream {name} {counted(factor, 'replica')} of each partition", name, yes=yes)

    async def work(client: Client) -> None:
        found = await client.alter_replication_factor(name, factor, plan=asked["plan"]["digest"])
        said = f"begun; `tidelog cluster moves --stream {name}` shows how far it is"
        print_answer(found, said if found["plan"]["begun"] else "no partition has to change", as_json)

    run(server, namespace, work, reports_waits=True)


def _min_isr(asked: AlteredFactor) -> str:
    now, then = asked["min_isr"], asked["min_isr_then"]
    if now == then:
        return f"min_isr is {now}"
    return f"min_isr is {now}, and {then} once all partitions have their replicas"
