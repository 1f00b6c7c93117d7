"""`tidelog cluster`: the state of the cluster, and its defaults for new streams."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import click

from tidelog.cli.administration.broker import life_in_words
from tidelog.cli.administration.recover import recover
from tidelog.cli.administration.rotate_secret import rotate_secret
from tidelog.cli.streams.reassign import moves, watched
from tidelog.cli.streams.replica_plan import show_plan
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
from tidelog.cli.terminal.setting_options import ClusterSettingsCommand, alteration_options, config_of
from tidelog.cli.terminal.shown import shown
from tidelog.cli.terminal.tables import Rows
from wire.notation import bytes_in_words

if TYPE_CHECKING:
    from tidelog.client.client import Client
    from wire.operations.api_operations import BrokerStatus, ClusterStatus, MissingPermissions, RebalancedLeaders
    from wire.operations.reassignment_operations import ReplicaPlan
    from wire.operations.replica_operations import RestartVerdict


@click.group()
def cluster() -> None:
    """The state of the cluster, its defaults for new streams, moves of partitions, and its secret."""


cluster.add_command(moves)
cluster.add_command(recover)
cluster.add_command(rotate_secret)


@cluster.command()
@cluster_command
async def status(client: Client, as_json: bool) -> None:
    """Show the brokers, how many partitions are in trouble, and how much each broker has dropped since its start."""
    print_answer(await client.cluster_status(), _show, as_json)


@cluster.command(name="restart-order")
@click.argument("broker", required=False)
@cluster_command
async def restart_order(client: Client, broker: str | None, as_json: bool) -> None:
    """Show which brokers may be stopped now, in the order in which to restart them, and why the others may not.

    A broker may not be stopped while a partition would go offline or fall below its min_isr by that, though other
    replicas of it only have to catch up; while another broker is dead or about to stop; or while the metadata group
    would lose its majority. With BROKER: only that one, and exit status 1 where it may not be stopped now.

    \b
    Example, before b1 is restarted:
      until tidelog cluster restart-order b1; do sleep 1; done
    """
    found = await client.restart_order(broker)
    print_answer({"brokers": found}, lambda _: _show_order(found), as_json)
    if broker is not None and not all(verdict["may_restart"] for verdict in found):
        raise click.exceptions.Exit(1)


def _show_order(found: list[RestartVerdict]) -> None:
    table = Rows("broker", "may be stopped", "controller", "leads", "replicas")
    for verdict in found:
        table.add(
            verdict["broker"],
            "[green]yes[/]" if verdict["may_restart"] else "[red]no[/]",
            "yes" if verdict["is_controller"] else "",
            str(verdict["leaders"]),
            str(verdict["replicas"]),
        )
    table.show()
    for verdict in found:
        for why in verdict["waits_for"]:
            console().print(f"[red]{verdict['broker']}[/]: {shown(why)}", highlight=False)
        for cost in verdict["costs"]:
            console().print(f"[yellow]{verdict['broker']}[/]: {shown(cost)}", highlight=False)


@cluster.command(cls=ClusterSettingsCommand)
@alteration_options
@cluster_command
def alter(settings: tuple[str, ...], unset: tuple[str, ...], as_json: bool) -> Work:
    """Change settings of the cluster, and those that new streams get where they bring none of their own.

    \b
    Examples:
      tidelog cluster alter --config default_replication_factor=2
      tidelog cluster alter --config min_isr=2 --unset retention_max_age_ms
    """
    config = config_of(settings)

    async def work(client: Client) -> None:
        defaults = await client.alter_cluster(config=config, unset=unset)
        print_answer({"config": defaults}, _defaults(defaults), as_json)

    return work


@cluster.command()
@click.option("--leaders-only", is_flag=True, help="Move leaderships only, to replicas that are in sync: no records.")
@click.option("--dry-run", is_flag=True, help="Only show what would move.")
@click.option("--watch", is_flag=True, help="Wait until all moves are over, with a line for each change.")
@yes_option
@cluster_options
def rebalance(
    leaders_only: bool,
    dry_run: bool,
    watch: bool,
    yes: bool,
    server: str | None,
    namespace: str,
    as_json: bool,
) -> None:
    """Give each broker its share of the replicas, as after one was added.

    Finds the fewest copies after which brokers hold equally many replicas, of each stream and of all, no two of a
    partition in one zone while there are enough zones, as the policies of the streams say. Shows them with the bytes
    and the least time, and asks (elsewhere than on a terminal it needs --yes). The partitions are used meanwhile; a few
    copy at a time, within the replication budget, and nothing is removed before the copy in its place is in sync.
    `tidelog cluster moves` shows how far it is, and gives it up with --cancel. To ask again does no harm.

    With --leaders-only nothing is copied: the preferred leader of each partition leads (the stream's leader_pin, else
    the first replica) where it is in sync. After a broker was down, others lead in its place; leaderships go back by
    themselves, leader_rebalance_delay_ms after it is back, unless auto_leader_rebalance is false (`tidelog cluster
    alter`), and this does it now. Each move stops the writes to its partition for some milliseconds.

    \b
    Examples:
      tidelog cluster rebalance --dry-run
      tidelog cluster rebalance --yes --watch
      tidelog cluster rebalance --leaders-only
    """
    if leaders_only:
        if watch:
            raise click.UsageError("--watch is about copies, and --leaders-only copies nothing; leave one of them out")
        _rebalance_leaders(server, namespace, dry_run=dry_run, as_json=as_json)
        return
    plan = _asked_plan(server, namespace)
    if not as_json:
        show_plan(plan)
    elif dry_run:
        print_json(plan)
    if dry_run:
        return
    if plan["partitions"]:
        confirm(f"moves replicas of {counted(plan['partitions'], 'partition')}", "rebalance", yes=yes)

    async def work(client: Client) -> None:
        begun = await client.rebalance(plan=plan["digest"])
        said = f"{counted(begun['begun'], 'partition')} begun; `tidelog cluster moves` shows how far it is"
        print_answer(begun, said if begun["partitions"] else lambda _: None, as_json)
        if watch:
            await watched(client, None, await client.moves(), as_json, begun=begun["begun"])

    run(server, namespace, work)


def _asked_plan(server: str | None, namespace: str) -> ReplicaPlan:
    plans: list[ReplicaPlan] = []

    async def ask_plan(client: Client) -> None:
        plans.append(await client.rebalance(dry_run=True))

    run(server, namespace, ask_plan)
    (plan,) = plans
    return plan


def _rebalance_leaders(server: str | None, namespace: str, *, dry_run: bool, as_json: bool) -> None:
    async def work(client: Client) -> None:
        found = await client.rebalance_leaders(dry_run=dry_run)
        print_answer(found, partial(_show_away, dry_run=dry_run), as_json)

    run(server, namespace, work)


def _show_away(found: RebalancedLeaders, *, dry_run: bool) -> None:
    if not found["moving"] and not found["left"]:
        click.echo("each partition is led by its preferred leader")
        return
    table = Rows("partition", "leader", "preferred", "why not now")
    for each in found["partitions"]:
        table.add(each["partition"], each["leader"] or "none", each["preferred"], each["obstacle"])
    table.show()
    verb = "could move" if dry_run else "move now, a few at a time"
    click.echo(f"{counted(found['moving'], 'leadership')} {verb}; {found['left']} cannot")


def _defaults(config: dict[str, str]) -> str:
    shown = "  ".join(f"{key}={value}" for key, value in sorted(config.items()))
    return f"settings, and defaults of new streams: {shown or 'none but the built-in ones'}"


def _show(found: ClusterStatus) -> None:
    table = Rows(
        "broker",
        "",
        "controller",
        "votes",
        "leads",
        "replicas",
        "free",
        "dropped",
        folds=("free",),
        drops=("replicas", "votes"),
    )
    for broker in sorted(found["brokers"], key=lambda b: b["id"]):
        table.add(
            broker["id"],
            life_in_words(broker),
            "yes" if broker["id"] == found["controller"] else "",
            "yes" if broker["voter"] else "no",
            _with_internal(broker["leaders"], broker.get("internal_leaders")),
            _with_internal(broker["replicas"], broker.get("internal_replicas")),
            _disk(broker),
            "?" if broker.get("counters") is None else str(sum(_dropped(broker).values())),
        )
    table.show()
    internal = f", and {found['internal_partitions']} internal" if found.get("internal_partitions") else ""
    console().print(
        f"{counted(found['streams'], 'stream')}, {counted(found['partitions'], 'partition')}{internal}: "
        f"{found['offline_partitions']} offline, {found['under_replicated']} under-replicated, "
        f"{counted(found['unclean_elections'], 'unclean election')} so far  "
        f"(cluster {found['cluster_id']}, generation {found['generation']})",
        highlight=False,
    )
    for offline in found.get("offline", []):
        elsewhere = offline.get("other_folder", [])
        named = [
            f"{broker} with its earlier data folder" if broker in elsewhere else broker
            for broker in offline["waits_for"]
        ]
        waits_for = f"waits for {' or '.join(named)}"
        if not offline["waits_for"]:
            why = "".join(f" ({reason})" for reason in offline.get("reasons", []))
            waits_for = f"no sound replica is left{why}, see `tidelog partition elect-unclean --help`"
        console().print(f"[red]offline[/]: {offline['partition']}, {waits_for}", highlight=False)
    _say_rest(found["offline_partitions"] - len(found.get("offline", [])), "offline")
    behind = found.get("under_replicated_partitions", [])
    if behind:
        console().print(f"[yellow]under-replicated[/]: {', '.join(behind)}", highlight=False)
    _say_rest(found["under_replicated"] - len(behind), "under-replicated")
    for lag in found.get("lags", []):
        console().print(
            f"[yellow]behind[/]: {lag['stream']}/{lag['partition']} on {lag['broker']}, {lag['lag_records']:,} records"
            f" ({bytes_in_words(lag['lag_bytes'])}) and {lag['lag_s']:.0f} s behind {lag['leader']}",
            highlight=False,
        )
    for other in found.get("other_clusters", []):
        console().print(
            f"[red]another cluster, {shown(other['cluster_id'])} (broker {shown(other['broker'])}), is in this"
            f" namespace[/], heard {other['heard_seconds_ago']:g} s ago: stop one of them, or move it to another"
            " namespace",
            highlight=False,
        )
    if found["config"]:
        console().print(_defaults(found["config"]), highlight=False)
    for broker in found["brokers"]:
        if broker.get("refusal"):
            console().print(f"[red]{broker['id']}[/] does not tell its status: {shown(broker['refusal'])}")
        if told := _clock(broker):
            console().print(f"[red]{broker['id']}[/] {told}", highlight=False)
        if dropped := _dropped(broker):
            kinds = ", ".join(f"{kind} {count}" for kind, count in dropped.items())
            console().print(f"{broker['id']} has dropped: {kinds}", highlight=False)
        if missing := broker.get("not_permitted"):
            _show_missing(broker["id"], missing)
        if refused := broker.get("refused_messages"):
            kinds = ", ".join(
                f"{kind} {sum(faults.values())} ({', '.join(sorted(faults))})" for kind, faults in refused.items()
            )
            console().print(
                f"[yellow]{broker['id']}[/] has refused messages that no broker of its cluster sent: {kinds}",
                highlight=False,
            )
        if gaps := (broker.get("counters") or {}).get("publish_gaps"):
            newest = (broker.get("publish_gaps") or [])[-1:]
            console().print(
                f"[yellow]{broker['id']}[/] may have missed plain publishes {counted(gaps, 'time')}: "
                + "".join(f"last at {_time(gap['began_ns'])}, {shown(gap['reason'])}" for gap in newest),
                highlight=False,
            )
        if broker.get("failed"):
            console().print(f"[red]{broker['id']}[/] holds unsound replicas of {', '.join(broker['failed'] or ())}")
        if broker.get("damaged"):
            console().print(f"[red]{broker['id']}[/] has damaged logs of {', '.join(broker['damaged'] or ())}")
        counters = broker.get("counters") or {}
        if counters.get("damage_found"):
            console().print(
                f"[yellow]{broker['id']}[/] has met damage {counted(counters['damage_found'], 'time')} since it"
                f" started, and repaired {counters.get('damage_repaired', 0)}: look at its disk"
            )


def _with_internal(count: int, internal: int | None) -> str:
    """`internal`: None from a controller that does not distinguish them."""
    return f"{count} + {internal}" if internal else str(count)


def _show_missing(broker: str, missing: MissingPermissions) -> None:
    for act, subjects in (("subscribe to", missing["subscribe"]), ("publish to", missing["publish"])):
        if subjects:
            more = missing["subscriptions"] - len(subjects) if act == "subscribe to" else 0
            console().print(
                f"[red]{broker}[/] is not permitted by NATS to {act} {', '.join(map(shown, subjects))}"
                f"{f' and {more} more' if more > 0 else ''}: see `tidelog security nats-config --role broker`",
                highlight=False,
            )


def _say_rest(count: int, kind: str) -> None:
    if count:
        console().print(f"{count} more are {kind}", highlight=False)


def _time(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _disk(broker: BrokerStatus) -> str:
    space = broker.get("space")
    if not space or not space["total_bytes"]:
        return "?"
    free = bytes_in_words(space["free_bytes"])
    disk = broker.get("disk")
    if disk and disk["hangs"]:
        return f"[red]hangs for {disk['waited_s']:.0f} s[/] {free}"
    return (
        free
        if space["room"] == "ample"
        else f"[red]{space['room']}[/] {free}, keeps {bytes_in_words(space['min_free_bytes'])}"
    )


def _clock(broker: BrokerStatus) -> str:
    """What an operator has to know of it; empty: nothing."""
    clock = broker["clock"]
    if clock and clock["state"] == "off":
        ahead = clock["ahead_ms"] / 1000
        where = f"{abs(ahead):.3f} s {'ahead of' if ahead > 0 else 'behind'}"
        return f"has a clock that is {where} that of most brokers; it forgets nothing for its age"
    if clock and clock["state"] == "apart":
        return "finds no majority of the brokers' clocks that agrees; it forgets nothing for its age"
    return ""


def _dropped(broker: BrokerStatus) -> dict[str, int]:
    """Returns the counts of messages that the broker dropped, by kind; its log gives the reasons."""
    return {
        name.removeprefix("dropped_"): count
        for name, count in (broker.get("counters") or {}).items()
        if count and (name.startswith("dropped_") or name == "bad_requests")
    }
