"""`tidelog server`: one broker in the foreground."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from tidelog.cli.terminal.login_options import given_login, login_options, warn_of_secrets


@click.command()
@click.option(
    "--config", "file", type=click.Path(path_type=Path), help="TOML file; flags and environment go before it."
)
@click.option("--id", help="This broker's name: letters, digits, - and _.")
@click.option(
    "--nats", multiple=True, callback=warn_of_secrets, help="URL of a NATS server; may be given several times."
)
@click.option(
    "--raft-address", help="HOST:PORT that this broker's Raft node listens on. Without it the broker is an observer."
)
@click.option("--raft-peer", "raft_peers", multiple=True, metavar="ID=HOST:PORT", help="Another voter; once for each.")
@click.option("--raft-secret-file", help="File with the secret that all voters share; needed beyond loopback.")
@click.option("--raft-ca", metavar="PEM", help="What the certificates of all brokers are signed by: TLS between them.")
@click.option("--raft-cert", metavar="PEM", help="This broker's certificate, for the host of its Raft address.")
@click.option("--raft-key", metavar="PEM", help="Its key.")
@click.option(
    "--master-key-file",
    help="File with the master keys of encrypted streams, a line 'ID KEY' each, the first one in use; read again at "
    "SIGHUP.",
)
@click.option(
    "--liftbridge-port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Answer Liftbridge's clients there, on loopback unless the configuration says otherwise.  [default: no port]",
)
@click.option("--data-dir", help="Folder of this broker's data; one broker per folder.")
@click.option(
    "--replace",
    is_flag=True,
    default=None,
    help="The folder that this broker had is lost for good: start on an empty one, and copy from the other replicas.",
)
@click.option("--namespace", help="First token of Tidelog's own subjects.  [default: tidelog]")
@click.option(
    "--zone",
    "--rack",
    metavar="NAME",
    help="Where it runs: replicas of a partition are spread over zones, and consumers read from the nearest one.",
)
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="TAG",
    help="A tag of this broker, such as ssd or region=eu, for streams that ask for it (require_tags, prefer_tags); once"
    " for each.",
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="[default: info]")
@login_options
def server(file: Path | None, **flags: Any) -> None:
    """Run one broker until it is told to stop (SIGINT, SIGTERM).

    \b
    A standalone broker:
      tidelog server --id b1 --nats nats://127.0.0.1:4222 --data-dir /var/lib/tidelog
    One of three voters:
      tidelog server --id b1 --nats nats://n1:4222 --data-dir /var/lib/tidelog \\
        --raft-address b1:7001 --raft-peer b2=b2:7001 --raft-peer b3=b3:7001 --raft-secret-file secret

    Every setting can also come from the environment (TIDELOG_ID, TIDELOG_NATS, TIDELOG_RAFT_ADDRESS,
    TIDELOG_RAFT_PEERS, TIDELOG_DATA_DIR, …) or from the file. Passwords and tokens come from the environment
    (TIDELOG_NATS_PASSWORD, TIDELOG_NATS_TOKEN), files or the terminal alone. Logs go to stderr.
    """
    from tidelog.server.broker_process import run
    from tidelog.server.config import load
    from wire.errors import TidelogError

    login = given_login()
    flags |= {"login": login, "context": login.pop("context", None)}
    try:
        status = run(load(flags, os.environ, file))
    except TidelogError as e:
        click.echo(f"tidelog server: {e}", err=True)
        sys.exit(1)
    sys.exit(status)
