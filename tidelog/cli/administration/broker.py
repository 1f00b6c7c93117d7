"""`tidelog broker`: the brokers of a cluster, and one of them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

import click

from tidelog.cli.streams.replica_plan import show_plan
from tidelog.cli.terminal.session import (
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
from tidelog.cli.terminal.tables import Rows, in_words, size

if TYPE_CHECKING:
    from tidelog.client.client import Client
    from wire.operations.api_operations import BrokerDescription, BrokerStatus, HeldReplica
    from wire.operations.broker_operations import BrokerDrain, ListedBroker


POLL_S: Final = 0.5
"""Seconds between two requests for what is left."""


@click.group()
def broker() -> None:
    """The brokers of the cluster, and the replicas of one."""


@broker.command(name="list")
@cluster_command
async def list_(client: Client, as_json: bool) -> None:
    """List the brokers that are registered: whether they live, where they run, and what they hold.

    The time of a dead one is since its death, as far as the controller knows: at least so long. Replicas and leaders
    are counted with those of Tidelog's own streams. Bytes are "?" of a broker that does not answer.

    \b
    Examples:
      tidelog broker list
      tidelog broker list --json | jq -r '.brokers[] | select(.state == "dead") | .id'
    """
    found = await client.brokers()
    print_answer({"brokers": found}, lambda _: _show_list(found), as_json)


def _show_list(found: list[ListedBroker]) -> None:
    table = Rows(
        "broker",
        "",
        "zone",
        "tags",
        "replicas",
        "leads",
        "on disk",
        "votes",
        "controller",
        folds=("tags",),
        drops=("votes",),
    )
    for each in found:
        table.add(
            each["id"],
            _life(each),
            each["zone"],
            " ".join(each["tags"]),
            str(each["replicas"]),
            str(each["leaders"]),
            size(each["bytes_on_disk"]),
            "yes" if each["voter"] else "no",
            "yes" if each["is_controller"] else "",
        )
    table.show()


def _life(each: ListedBroker) -> str:
    draining = ", [yellow]draining[/]" if each["draining"] else ""
    if each["dead_for_s"] is not None:
        return f"[red]dead[/] for {timedelta(seconds=int(each['dead_for_s']))}{draining}"
    state = each["state"]
    return f"{state if state == 'alive' else f'[yellow]{state}[/]'}{draining}"


def life_in_words(of: BrokerStatus) -> str:
    draining = ", [yellow]draining[/]" if of.get("draining") else ""
    return f"{'alive' if of['alive'] else '[red]dead[/]'}{draining}"


@broker.command()
@click.argument("broker_id", metavar="BROKER")
@click.option("--dry-run", "only_plan", is_flag=True, help="Only show what would be copied.")
@click.option("--watch", is_flag=True, help="Wait until BROKER holds nothing, with a line for each change.")
@click.option("--cancel", is_flag=True, help="Give the drain up: what is about to leave BROKER stays.")
@yes_option
@cluster_options
def drain(
    broker_id: str,
    only_plan: bool,
    watch: bool,
    cancel: bool,
    yes: bool,
    server: str | None,
    namespace: str,
    as_json: bool,
) -> None:
    """Give all replicas and leaderships of BROKER to other brokers, while the streams are used.

    Shows what will be copied, from where to where, and asks for the broker's id (elsewhere than on a terminal it needs
    --yes). BROKER may be alive or dead. From then on it is draining, over restarts and whoever is the controller: it
    gets no replicas and no leaderships, its leaderships move away at once, and its replicas go to others, a few
    partitions at a time. Nothing is removed from it before the copy in its place is in sync. Refused where a partition
    finds no other broker: too few are there, or its stream's placement names these.

    `tidelog cluster moves` shows how far each partition is, `tidelog broker list` how much is left. When nothing is,
    stop BROKER and `tidelog broker remove` it, or end the drain with --cancel.

    \b
    Examples:
      tidelog broker drain b4 --dry-run
      tidelog broker drain b4 --watch
      tidelog broker drain b4 --cancel
    """
    if cancel and (only_plan or watch):
        raise click.UsageError("--cancel ends the drain; give neither --dry-run nor --watch with it")
    plans: list[BrokerDrain] = []
    shown = ""

    async def ask_plan(client: Client) -> None:
        plans.append(await client.drain_broker(broker_id, dry_run=True))

    async def work(client: Client) -> None:
        found = await client.drain_broker(broker_id, cancel=cancel, plan=shown)
        if watch:
            found = await _watched(client, found, as_json)
        print_answer(found, _given_up if cancel else _drained, as_json)

    if not cancel:
        run(server, namespace, ask_plan)
        (plan,) = plans
        if only_plan and as_json:
            print_json(plan)
        elif not as_json:
            show_plan(plan["plan"])
            _show_limits(plan)
        if only_plan:
            raise click.exceptions.Exit(1 if plan["plan"]["stuck_total"] else 0)
        if not plan["plan"]["stuck_total"] and not plan["draining"]:
            shown = plan["plan"]["digest"]
            confirm(f"gives the {plan['replicas']} replicas of broker {broker_id} to others", broker_id, yes=yes)
    run(server, namespace, work)


def _show_limits(plan: BrokerDrain) -> None:
    if plan["refusal"]:
        click.echo(f"this would be refused: {plan['refusal']}")
    elif plan["voter"]:
        click.echo(f"{plan['broker']} votes in the metadata group: it can be drained, but not removed")


async def _watched(client: Client, found: BrokerDrain, as_json: bool) -> BrokerDrain:
    import asyncio

    said = ""
    while found["draining"] and found["replicas"]:
        replicas, leaders = counted(found["replicas"], "replica"), counted(found["leaders"], "leadership")
        line = f"{found['broker']}: {replicas}, {leaders} left"
        if line != said:
            said = line
            click.echo(line, err=as_json)
        await asyncio.sleep(POLL_S)
        listed = {each["id"]: each for each in await client.brokers()}
        if found["broker"] not in listed:
            break
        now = listed[found["broker"]]
        found = {**found, "draining": now["draining"], "replicas": now["replicas"], "leaders": now["leaders"]}
    return found


def _given_up(found: BrokerDrain) -> None:
    broker = found["broker"]
    if found["was_draining"]:
        click.echo(
            f"the drain of {broker} is given up; it holds {counted(found['replicas'], 'replica')};"
            " `tidelog cluster rebalance` gives it its share"
        )
    elif found["given_up"]:
        click.echo(f"{broker} was not draining; {counted(found['given_up'], 'move')} away from it are given up")
    else:
        click.echo(f"{broker} was not draining; nothing has changed")


def _drained(found: BrokerDrain) -> None:
    if not found["draining"]:
        click.echo(f"broker {found['broker']} is not draining; it holds {counted(found['replicas'], 'replica')}")
    elif found["replicas"]:
        click.echo(
            f"broker {found['broker']} is draining, {counted(found['replicas'], 'replica')} left;"
            " `tidelog cluster moves` shows how far they are"
        )
    else:
        click.echo(f"broker {found['broker']} is drained: it holds no replica, and gets none")


@broker.command()
@click.argument("broker_id", metavar="BROKER")
@yes_option
@cluster_options
def remove(broker_id: str, yes: bool, server: str | None, namespace: str, as_json: bool) -> None:
    """Take a dead BROKER out of the cluster, so that it is listed and waited for no more.

    Refused, with what stands against it and what to do, while BROKER is alive, votes in the metadata group, is a
    replica of a partition (or is to be one), or is named by a stream's placement or leader_pin. No copy is dropped by
    this command, and there is no way to force it: give the replicas to other brokers first.

    BROKER may come back at any time, also with an empty data folder: it registers as a new broker. On a terminal the
    command asks first; elsewhere it needs --yes.

    \b
    Example, after `tidelog broker drain b4 --watch`:
      tidelog broker remove b4
    """

    async def check(client: Client) -> None:
        await client.remove_broker(broker_id, dry_run=True)

    async def work(client: Client) -> None:
        print_answer(await client.remove_broker(broker_id), f"removed broker {broker_id}", as_json)

    run(server, namespace, check)
    confirm(f"takes broker {broker_id} out of the cluster", broker_id, yes=yes)
    run(server, namespace, work)


@broker.command()
@click.argument("broker_id", metavar="BROKER")
@cluster_command
async def describe(client: Client, broker_id: str, as_json: bool) -> None:
    """Show the replicas that BROKER holds with their bytes on its disk, the partitions that cannot do without it, and
    the traffic of its clients since it was started.

    \b
    Example, before b1 is stopped for maintenance:
      tidelog broker describe b1
      tidelog partition move-leader flights 0 b2        # for each partition that it leads
    """
    print_answer(await client.describe_broker(broker_id), _show, as_json)


def _show(found: BrokerDescription) -> None:
    table = Rows("partition", "leads", "state", "in sync", "min ISR", "on disk", folds=("in sync",))
    for replica in found["held"]:
        table.add(
            _name(replica),
            "yes" if replica["leads"] else "",
            replica["state"],
            " ".join(replica["isr"]),
            str(replica["min_isr"]),
            size(replica["bytes_on_disk"]),
        )
    life = life_in_words(found)
    role = "voter" if found["voter"] else "observer"
    internal = ""
    if found.get("internal_replicas"):
        internal = f", and {found['internal_leaders']} of {found['internal_replicas']} internal ones"
    console().print(
        f"broker [bold]{found['id']}[/]  {life}, {role}, leads {found['leaders']} of {found['replicas']} partitions"
        f"{internal}, on disk {size(found.get('bytes_on_disk'))}",
        highlight=False,
    )
    for line in in_words(found["traffic"]):
        console().print(line, highlight=False)
    table.show()
    if found["alive"] and (short := [_name(replica) for replica in found["held"] if _stops_commits(replica)]):
        console().print(
            f"[yellow]without {found['id']}[/] acknowledged publishes to {', '.join(short)} are refused:"
            " too few other replicas are in sync",
            highlight=False,
        )


def _name(replica: HeldReplica) -> str:
    return f"{replica['stream']}/{replica['partition']}"


def _stops_commits(replica: HeldReplica) -> bool:
    """Returns whether the ISR falls below min ISR, or to nothing, without this member of it."""
    return replica["state"] == "isr" and len(replica["isr"]) - 1 < replica["min_isr"]
