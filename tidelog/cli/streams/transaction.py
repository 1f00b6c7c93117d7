"""`tidelog transaction`: list, describe, abort."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tidelog.cli.terminal.name_completion import group_names, stream_names
from tidelog.cli.terminal.session import (
    Work,
    cluster_command,
    confirm,
    console,
    counted,
    print_answer,
    print_json,
    yes_option,
)
from tidelog.cli.terminal.shown import plain, shown
from tidelog.cli.terminal.tables import Rows

if TYPE_CHECKING:
    from tidelog.client.client import Client
    from wire.operations.transaction_operations import TransactionDescription, TransactionList, TransactionSummary


@click.group()
def transaction() -> None:
    """Transactions: which are open, for how long, and what they wait for.

    A transaction is begun by a producer with a transactional id (`client.producer(transactional_id="…")` in Python).
    While it is open, consumers of its partitions do not see what lies behind its first record there. It is aborted when
    it is open for longer than its timeout.
    """


@transaction.command(name="list")
@click.option("--idle", is_flag=True, help="Also the transactional ids that have no transaction at present.")
@click.option(
    "--stream",
    default="",
    metavar="STREAM",
    shell_complete=stream_names,
    help="Only those in which one of its partitions takes part.",
)
@click.option(
    "--group",
    default="",
    metavar="GROUP",
    shell_complete=group_names,
    help="Only those in which this consumer group takes part.",
)
@cluster_command
async def list_(client: Client, idle: bool, stream: str, group: str, as_json: bool) -> None:
    """List the transactions that are open or end, the oldest first.

    \b
    Example, where consumers of a stream stand still:
      tidelog transaction list --stream flights
    """
    found = await client.transactions(idle=idle, stream=stream, group=group)
    if as_json:
        print_json(found)
    else:
        _show_list(found, idle=idle)


@transaction.command()
@click.argument("transactional_id", metavar="ID")
@cluster_command
async def describe(client: Client, transactional_id: str, as_json: bool) -> None:
    """Show what is known of a transactional id, and what its transaction waits for.

    One that is committing or aborting is decided. It waits for a marker in each of the partitions that are shown, and
    for the coordinators of the groups: `tidelog stream describe` tells whether their leaders are there.
    """
    print_answer(await client.describe_transaction(transactional_id), _show_description, as_json)


@transaction.command()
@click.argument("transactional_id", metavar="ID")
@yes_option
@cluster_command
def abort(transactional_id: str, yes: bool, as_json: bool) -> Work:
    """Abort the open transaction of a producer that hangs, and fence that producer.

    The producer hears that it is fenced, and has to be started anew. One that is gone needs nothing: its transaction is
    aborted after its timeout, or when it begins again. On a terminal the command asks for the transactional id;
    elsewhere it needs --yes.
    """
    confirm(f"aborts the transaction of {transactional_id}, and fences its producer", transactional_id, yes=yes)

    async def work(client: Client) -> None:
        found = await client.abort_transaction(transactional_id)
        if as_json:
            print_json(found)
        else:
            click.echo(f"aborted the transaction of {transactional_id}")
            _say_what_is_left(found)

    return work


def _show_list(found: TransactionList, *, idle: bool) -> None:
    from tidelog.client.base.read_positions import timestamp_to_text

    if found["transactions"]:
        table = Rows(
            "transactional id",
            "state",
            "producer",
            "epoch",
            "opened at",
            "timeout",
            "partitions",
            "groups",
            drops=("groups", "partitions", "epoch", "producer", "timeout"),
        )
        for each in found["transactions"]:
            table.add(
                shown(each["transactional_id"]),
                _state(each),
                str(each["producer_id"]),
                str(each["producer_epoch"]),
                timestamp_to_text(each["opened_at_ns"]) if each["opened_at_ns"] else "",
                f"{each['timeout_ms'] / 1000:g} s",
                str(each["partitions"]),
                str(each["groups"]),
            )
        table.show()
    elif not found["unanswered"]:
        click.echo("no transactional ids" if idle else "no transactions are open; --idle shows the ids that are known")
    if found["left_out"]:
        click.echo(f"tidelog: {counted(found['left_out'], 'other')} not shown", err=True)
    if found["unanswered"]:
        missing = ", ".join(map(str, found["unanswered"]))
        click.echo(
            f"tidelog: the transactions of partition {missing} of __transactions are missing: their coordinators did"
            " not answer; see `tidelog stream describe __transactions`",
            err=True,
        )


def _show_description(found: TransactionDescription) -> None:
    from tidelog.client.base.read_positions import timestamp_to_text

    console().print(
        f"transactional id [bold]{shown(found['transactional_id'])}[/]  {_state(found)}  coordinator"
        f" {found['coordinator']} (__transactions/{found['partition']})",
        highlight=False,
    )
    console().print(
        f"producer {found['producer_id']}, epoch {found['producer_epoch']}, timeout {found['timeout_ms'] / 1000:g} s,"
        f" begun by {shown(found['client']) or 'somebody'}",
        highlight=False,
    )
    if found["opened_at_ns"]:
        click.echo(f"opened at {timestamp_to_text(found['opened_at_ns'])}")
    decided = found["state"] in ("committing", "aborting")
    click.echo(f"{'outcome' if decided else 'the transaction before'}: {found['last']}")
    if decided:
        _say_what_is_left(found)
    else:
        _show_participants("takes in", found)


def _say_what_is_left(found: TransactionDescription) -> None:
    if found["state"] in ("committing", "aborting"):
        _show_participants("waits for", found)


def _show_participants(verb: str, found: TransactionDescription) -> None:
    partitions = [f"{each['stream']}/{each['partition']}" for each in found["waits_for_partitions"]]
    groups = [f"group {group}" for group in found["waits_for_groups"]]
    if partitions or groups:
        click.echo(plain(f"{verb} {', '.join([*partitions, *groups])}"))


def _state(found: TransactionSummary) -> str:
    return found["state"] if found["state"] in ("idle", "open") else f"[yellow]{found['state']}[/]"
