"""`tidelog cluster`: the state of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tidelog.cli.session import cluster_options, console, print_json, run

if TYPE_CHECKING:
    from tidelog.client.admin import ClusterStatus
    from tidelog.client.connection import Client


@click.group()
def cluster() -> None:
    """Show the state of the cluster."""


@cluster.command()
@cluster_options
def status(server: str, namespace: str, as_json: bool) -> None:
    """Show the brokers and how many partitions are in trouble."""

    async def work(client: Client) -> None:
        found = await client.cluster_status()
        if as_json:
            print_json(found)
        else:
            _show(found)

    run(server, namespace, work)


def _show(found: ClusterStatus) -> None:
    from rich.table import Table

    table = Table("broker", "", "controller", "votes", "leads", "replicas")
    for broker in sorted(found["brokers"], key=lambda b: b["id"]):
        table.add_row(
            broker["id"],
            "alive" if broker["alive"] else "[red]dead[/]",
            "yes" if broker["id"] == found["controller"] else "",
            "yes" if broker["voter"] else "no",
            str(broker["leaders"]),
            str(broker["replicas"]),
        )
    console().print(table)
    console().print(
        f"{found['streams']} streams, {found['partitions']} partitions: "
        f"{found['offline_partitions']} offline, {found['under_replicated']} under-replicated  "
        f"(cluster {found['cluster_id']}, generation {found['generation']})",
        highlight=False,
    )
