"""The shared part of every command that talks to a cluster: its options, the connection, and how failures end."""

from __future__ import annotations

import errno
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
API_TIMEOUT = 5.0
"""Seconds that a request to the controller may take, with all its repetitions."""
START_WAIT = 30.0
"""Seconds that a command which waits for a cluster on its way gives nats-server, and then the brokers."""
UNBROKEN = 10_000
"""Columns; above what any table needs."""
_SILENCE = 1.0
"""Seconds after which it says that it waits."""


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


def run(
    server: str, namespace: str, work: Callable[[Client], Awaitable[None]], *, waits_for_start: bool = False
) -> None:
    """Connect, do the work, disconnect. Errors of the table, and of stdin and stdout, become one sentence.

    `waits_for_start`: nats-server and brokers that are still starting are waited for.
    """
    import asyncio

    from wire.errors import TidelogError

    try:
        asyncio.run(_connected(server, namespace, work, waits_for_start))
    except TidelogError as error:
        fail(error.message)
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise  # a reader such as `head` has gone, and click ends quietly
        fail(f"the output cannot be written, or the input cannot be read: {error.strerror or error}")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


async def _connected(
    server: str, namespace: str, work: Callable[[Client], Awaitable[None]], waits_for_start: bool
) -> None:
    import asyncio

    from tidelog.client.connection import connect

    if not waits_for_start:
        async with await connect(server, namespace=namespace, api_timeout=API_TIMEOUT) as client:
            await work(client)
        return
    notice = asyncio.get_running_loop().call_later(
        _SILENCE,
        lambda: click.echo(
            f"waiting for the cluster at {server}: nats-server, a controller, enough live brokers", err=True
        ),
    )
    try:
        async with await connect(server, namespace=namespace, api_timeout=START_WAIT, start_wait=START_WAIT) as client:
            await work(client)
    finally:
        notice.cancel()


def fail(message: str) -> NoReturn:
    raise Failure(" ".join(message.split()))


def counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def print_json(value: object) -> None:
    click.echo(json.dumps(value, ensure_ascii=False))


@functools.cache
def console() -> Console:
    """For tables, on stdout. In a pipe or a file no line is broken, so that names can be searched for."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console()
    return Console(soft_wrap=True, width=UNBROKEN)
