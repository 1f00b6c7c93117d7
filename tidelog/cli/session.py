"""What every command that talks to a cluster shares: its options, the connection, and how failures end."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console

    from tidelog.client.connection import Client

_Command = TypeVar("_Command", bound=Callable[..., Any])

INTERRUPTED = 130


class Failure(click.ClickException):
    """One sentence on stderr, exit status 1."""

    def show(self, file: Any = None) -> None:
        click.echo(f"tidelog: {self.message}", file=file or sys.stderr)


def cluster_options(command: _Command) -> _Command:
    """Adds --server, --namespace and --json: parameters `server`, `namespace`, `as_json`."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option(
            "--namespace",
            envvar="TIDELOG_NAMESPACE",
            default="tidelog",
            show_default=True,
            metavar="NAME",
            help="First token of the cluster's own subjects; also from $TIDELOG_NAMESPACE.",
        ),
        click.option(
            "--server",
            envvar="TIDELOG_SERVER",
            default="nats://127.0.0.1:4222",
            show_default=True,
            metavar="URL",
            help="NATS server, or several with commas; also from $TIDELOG_SERVER.",
        ),
    ):
        command = option(command)
    return command


def run(server: str, namespace: str, work: Callable[[Client], Awaitable[None]]) -> None:
    """Connect, do the work, disconnect. Errors of the table become one sentence."""
    from wire.errors import TidelogError

    try:
        asyncio.run(_connected(server, namespace, work))
    except TidelogError as error:
        fail(error.message)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


async def _connected(server: str, namespace: str, work: Callable[[Client], Awaitable[None]]) -> None:
    from tidelog.client.connection import connect

    async with await connect(server, namespace=namespace) as client:
        await work(client)


def fail(message: str) -> NoReturn:
    raise Failure(" ".join(message.split()))


def print_json(value: object) -> None:
    click.echo(json.dumps(value, ensure_ascii=False))


@functools.cache
def console() -> Console:
    """For tables, on stdout."""
    from rich.console import Console

    return Console(soft_wrap=not sys.stdout.isatty())
