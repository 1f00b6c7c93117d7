"""`tidelog up`: a development cluster in the foreground."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tidelog.server.devcluster import DevCluster


@click.command()
@click.option("--nodes", default=3, show_default=True, help="Brokers to run; the first 1, 3 or 5 of them vote in Raft.")
@click.option("--data-dir", type=click.Path(path_type=Path), required=True, help="Folder of the whole cluster.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=4222,
    show_default=True,
    help="Port of the embedded nats-server; 0 takes any free one.",
)
@click.option(
    "--restart-after",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Start a broker that died again after this long.",
)
@click.option(
    "--master-key-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Master keys of encrypted streams, for all brokers; see `tidelog server --help`.",
)
@click.option(
    "--liftbridge-port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Answer Liftbridge's clients: b1 on this port, b2 on the next one, and so on.",
)
@click.option(
    "--activity",
    is_flag=True,
    help="Record what happens in the cluster, for `tidelog activity`; give it at each start.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the content of cluster.json when all serve.")
def up(
    nodes: int,
    data_dir: Path,
    port: int,
    restart_after: float | None,
    master_key_file: Path | None,
    liftbridge_port: int | None,
    activity: bool,
    as_json: bool,
) -> None:
    """Run a development cluster: a real nats-server and brokers b1, b2, …, each a process.

    Stays in the foreground; Ctrl-C stops everything cleanly, and a second start on the same folder goes on where it
    was. DIR/cluster.json says where everything is. A broker that you kill stays dead until you start it again, with

    \b
      tidelog server --config DIR/b1.toml

    or with --restart-after. A nats-server that ends is started again on its port, and the brokers connect to it by
    themselves.
    """
    from rich.console import Console
    from rich.table import Table

    from tidelog.process.private_files import PRIVATE_UMASK
    from tidelog.server.devcluster import DevCluster, NatsKeeper
    from wire.errors import TidelogError

    os.umask(PRIVATE_UMASK)
    console = Console(stderr=True)
    stop = _Stop()
    try:
        with DevCluster(
            data_dir,
            nodes=nodes,
            port=port,
            settings={"metadata": {"activity_stream": True}} if activity else None,
            master_key_file=master_key_file,
            liftbridge_port=liftbridge_port,
        ) as cluster:
            try:
                keeper = NatsKeeper(
                    cluster.nats, lambda text: console.print(text, style="bold red", soft_wrap=True, highlight=False)
                )

                def on_wait() -> None:
                    stop.check()
                    keeper.look()

                with console.status("waiting for the brokers"):
                    cluster.wait_ready(on_wait=on_wait)
                if as_json:
                    click.echo((data_dir / "cluster.json").read_text().strip())
                else:
                    table = Table("broker", "pid", "data", title=f"Tidelog on {cluster.nats_url}")
                    for broker in cluster.broker_ids:
                        table.add_row(broker, str(cluster.pid(broker)), str(cluster.broker_dir(broker)))
                    console.print(table)
                    console.print(
                        f"Ready: {nodes} broker{'s serve' if nodes > 1 else ' serves'} at {cluster.nats_url}."
                        " Ctrl-C stops the cluster.",
                        soft_wrap=True,
                    )
                    if liftbridge_port is not None:
                        addresses = ", ".join(str(cluster.liftbridge_address(each)) for each in cluster.broker_ids)
                        console.print(f"Liftbridge's clients: {addresses}.", soft_wrap=True)
                _watch(
                    cluster, on_wait, restart_after, lambda text: console.print(text, soft_wrap=True, highlight=False)
                )
            except _Stopped:
                console.print("stopping")
    except TidelogError as e:
        click.echo(f"tidelog up: {e}", err=True)
        sys.exit(1)


class _Stopped(Exception):
    """SIGINT or SIGTERM was received."""


class _Stop:
    def __init__(self) -> None:
        self._wanted = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._wanted = True

    def check(self) -> None:
        if self._wanted:
            raise _Stopped


def _end_of(broker: str, cluster: DevCluster, *, will_restart: bool) -> str:
    from tidelog.server.devcluster import how_it_ended

    told = f"{broker} {how_it_ended(cluster.exit_status(broker))}; its log: {cluster.log_file(broker)}"
    if will_restart:
        return told
    return (
        f"{told}. Start it again with `tidelog server --config {cluster.config_file(broker)}`, or let tidelog up do it"
        " (--restart-after SECONDS)"
    )


def _watch(
    cluster: DevCluster, on_wait: Callable[[], None], restart_after: float | None, say: Callable[[str], None]
) -> None:
    """Runs until `on_wait` raises; prints which brokers died, and starts them again when requested."""
    died: dict[str, float] = {}
    while True:
        on_wait()
        for broker in cluster.broker_ids:
            if cluster.pid(broker) is not None:
                died.pop(broker, None)
            elif broker not in died:
                died[broker] = time.monotonic()
                say(_end_of(broker, cluster, will_restart=restart_after is not None))
            elif restart_after is not None and time.monotonic() - died[broker] >= restart_after:
                say(f"starting {broker} again")
                cluster.start_broker(broker)
        time.sleep(0.1)
