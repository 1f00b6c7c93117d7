"""Shared by every command that talks to a cluster: its options, the connection, and the end of failures."""

from __future__ import annotations

import errno
import functools
import inspect
import json
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import click
from click.core import ParameterSource

from tidelog.cli.terminal.delays import delays_reported
from tidelog.cli.terminal.login_options import asked_context, given_login, login_options, use_context, warn_of_secrets
from tidelog.cli.terminal.shown import plain_json
from wire.echo import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from tidelog.client.client import Client

_Command = TypeVar("_Command", bound=Callable[..., Any])
_T = TypeVar("_T")
Work: TypeAlias = "Callable[[Client], Awaitable[None]]"
"""What a command does with its client."""

INTERRUPTED = 130
API_TIMEOUT = 5.0
"""Seconds that a request to the controller may take, with all its repetitions."""
START_WAIT = 30.0
"""Seconds that a command which waits for a cluster on its way gives nats-server, and then the brokers."""
UNBROKEN = 10_000
"""Columns; more than any table needs."""
_SILENCE = 1.0
"""Seconds after which a command reports that it waits."""


MOST_TOLD = 10_000
"""Characters of each line of a failure."""


class Failure(click.ClickException):
    """One sentence on stderr, exit status 1."""

    def show(self, file: Any = None) -> None:
        # Where NATS lets everybody answer, the text may be anybody's: its control characters would reach a terminal.
        told = "\n".join(one_line(line, MOST_TOLD) for line in self.message.split("\n"))
        click.echo(f"tidelog: {told}", file=file or sys.stderr)


_SERVERS_SAID_BY = ("TIDELOG_SERVER", "NATS_CONTEXT", "TIDELOG_NATS_LOGIN")
"""Variables of the environment that go before the context in use."""
_INBOX_PREFIX = "tidelog.inbox_prefix"
"""Key of the inbox prefix in the context of a command, which only `run` reads."""


def _keep_inbox_prefix(ctx: click.Context, _parameter: click.Parameter, given: str | None) -> None:
    ctx.meta[_INBOX_PREFIX] = given


def _context_in_use(ctx: click.Context) -> str | None:
    """Returns the requested context, or else sets and returns the one in use. None: another option says which servers
    are meant."""
    from tidelog.nats import login_contexts

    name = asked_context(ctx)
    if name is None and ctx.params.get("server") is None and not any(map(os.environ.get, _SERVERS_SAID_BY)):
        name = login_contexts.in_use(os.environ)
        if name is not None:
            use_context(ctx, name)
    return name


def _namespace(ctx: click.Context, _parameter: click.Parameter, given: str) -> str:
    """Uses the context in use where no option says which servers are meant; a namespace that is not given is that of
    the context."""
    from tidelog.nats.login_sources import namespace_of
    from wire.errors import TidelogError

    if ctx.resilient_parsing:
        return given
    name = _context_in_use(ctx)
    if name is None or ctx.get_parameter_source("namespace") is not ParameterSource.DEFAULT:
        return given
    try:
        return namespace_of(name, os.environ) or given
    except TidelogError as error:
        raise Failure(error.message) from None


def cluster_options(command: _Command) -> _Command:
    """Adds --server, --namespace, --inbox-prefix and --json: parameters `server`, `namespace`, `as_json`; and the
    options of the login, which `run` uses."""
    for option in (
        click.option(
            "--inbox-prefix",
            metavar="SUBJECT",
            expose_value=False,
            callback=_keep_inbox_prefix,
            help="Answers come to subjects below it; also from $TIDELOG_INBOX_PREFIX.  [default: _INBOX]",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option(
            "--namespace",
            envvar="TIDELOG_NAMESPACE",
            default="tidelog",
            show_default=True,
            metavar="NAME",
            callback=_namespace,
            help="First token of the cluster's own subjects; also from $TIDELOG_NAMESPACE, or a context.",
        ),
        click.option(
            "--server",
            metavar="URL",
            is_eager=True,
            callback=warn_of_secrets,
            help="NATS server, or several with commas; also from $TIDELOG_SERVER.  [default: nats://127.0.0.1:4222]",
        ),
    ):
        command = option(command)
    return login_options(command)


def cluster_command(command: Callable[..., Any], *, waits_for_start: bool = False) -> Callable[..., None]:
    """Adds the options of `cluster_options`. An async command gets a client, as its first argument; another one returns
    its `Work`, so that it looks at its arguments and asks for confirmation before anything connects."""
    is_work = inspect.iscoroutinefunction(command)

    @functools.wraps(command)
    def connected(server: str | None, namespace: str, **given: Any) -> None:
        work = (lambda client: command(client, **given)) if is_work else command(**given)
        run(server, namespace, work, waits_for_start=waits_for_start)

    return cluster_options(connected)


def run(
    server: str | None, namespace: str, work: Work, *, waits_for_start: bool = False, reports_waits: bool = False
) -> None:
    """Connects, does the work, disconnects. Errors of the table, and of stdin and stdout, become one sentence.

    `waits_for_start`: nats-server and brokers that are still starting are waited for. `reports_waits`: stderr says what
    is waited for without a terminal, too.
    """
    import asyncio

    from wire.errors import TidelogError

    try:
        asyncio.run(_connected(server, namespace, work, waits_for_start, reports_waits, given_login()))
    except TidelogError as error:
        fail(error.message)
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise  # a reader such as `head` has gone, which the group of all commands handles
        fail(f"the output cannot be written, or the input cannot be read: {error.strerror or error}")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


async def connected_for_completion(ctx: click.Context, timeout: float) -> Client:
    """Returns a client for the options on the line so far. May raise any exception."""
    from tidelog.client.client import connect

    _context_in_use(ctx)
    with ctx.scope(cleanup=False):
        login = given_login()
    is_given = ctx.get_parameter_source("namespace") is not ParameterSource.DEFAULT
    return await connect(
        ctx.params.get("server"),
        namespace=ctx.params.get("namespace") if is_given else None,
        inbox_prefix=ctx.meta.get(_INBOX_PREFIX),
        connect_timeout=timeout,
        api_timeout=timeout,
        **login,
    )


async def _connected(
    server: str | None,
    namespace: str,
    work: Work,
    waits_for_start: bool,
    reports_waits: bool,
    login: dict[str, Any],
) -> None:
    import asyncio

    from tidelog.client.base.exceptions import NoServer
    from tidelog.client.client import connect
    from tidelog.nats.nats_errors import NatsNotListening

    inboxes = click.get_current_context().meta[_INBOX_PREFIX]
    if not waits_for_start:
        async with (
            await connect(
                server, namespace=namespace, inbox_prefix=inboxes, api_timeout=API_TIMEOUT, **login
            ) as client,
            # Without a terminal a refusal stays one sentence on stderr, for scripts, unless it may take a minute.
            delays_reported(client) if reports_waits or sys.stderr.isatty() else nullcontext(),
        ):
            await work(client)
        return
    at = "" if server is None else f" at {server.rsplit('@', 1)[-1]}"

    def later_notice() -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(
            _SILENCE,
            lambda: click.echo(
                f"waiting for the cluster{at}: nats-server, a controller, enough live brokers", err=True
            ),
        )

    notice: asyncio.TimerHandle | None = None
    options: dict[str, Any] = {"namespace": namespace, "inbox_prefix": inboxes, "api_timeout": START_WAIT, **login}
    try:
        try:
            client = await connect(server, **options)
        except NoServer as error:
            # Other refusals, such as that of a login, end the first attempt however slow it was, without a notice.
            if not isinstance(error.__cause__, NatsNotListening):
                raise
            notice = later_notice()
            client = await connect(server, start_wait=START_WAIT, **options)
        async with client:
            notice = notice or later_notice()
            await work(client)
    finally:
        if notice is not None:
            notice.cancel()


def fail(message: str) -> NoReturn:
    raise Failure(" ".join(message.split()))


def yes_option(command: _Command) -> _Command:
    """Adds --yes: parameter `yes`."""
    return click.option("--yes", is_flag=True, help="Do not ask; needed where standard input is no terminal.")(command)


def confirm(act: str, answer: str, *, yes: bool) -> None:
    """Asks on a terminal for `answer` to be typed, before a destructive act, unless --yes was given. `act` is read
    after "this ". Ends the command where the answer differs (status 1), or without a terminal (2)."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"this {act}; standard input is no terminal to ask on, so add --yes to do it")
    typed = click.prompt(f"This {act}. Type {answer} to go on", default="", show_default=False, err=True)
    if typed.strip() != answer:
        fail("nothing was changed")


def counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def print_json(value: object) -> None:
    click.echo(plain_json(json.dumps(value, ensure_ascii=False)))


def print_answer(found: _T, in_words: str | Callable[[_T], object], as_json: bool) -> None:
    """Prints the answer as JSON; else `in_words`, or what it prints of the answer."""
    if as_json:
        print_json(found)
    elif isinstance(in_words, str):
        click.echo(in_words)
    else:
        in_words(found)


@functools.cache
def console() -> Console:
    """Returns a console on stdout, for tables. In a pipe or a file no line is broken, so that names can be searched."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console()
    return Console(soft_wrap=True, width=UNBROKEN)
