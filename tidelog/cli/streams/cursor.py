"""`tidelog cursor`: get, set, delete."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from tidelog.cli.terminal.session import Work, cluster_command, fail, print_answer, print_json
from tidelog.cli.terminal.shown import cleaner, raw_option

if TYPE_CHECKING:
    from tidelog.client.client import Client

_EXPECT = click.option(
    "--expect-version",
    type=click.IntRange(min=0),
    metavar="NUMBER",
    help="Only if the cursor has this version; 0: only if it does not exist.",
)


@click.group()
def cursor() -> None:
    """Cursors: named values in the cluster, with compare-and-set.

    A cursor holds up to 4 KiB, such as how far a program has come. Each write gives it a larger version.
    """


@cursor.command()
@click.argument("name")
@raw_option
@cluster_command
async def get(client: Client, name: str, raw: bool, as_json: bool) -> None:
    """Print a cursor's value. Exit status 1 if it does not exist."""

    import base64

    found = await client.cursor(name).get()
    if found is None:
        fail(f"there is no cursor {name!r}; `tidelog cursor set {name} VALUE` makes it")
    if not as_json:
        sys.stdout.buffer.write(cleaner(raw=raw)(found.value) + b"\n")
        return
    try:
        print_json({"value": found.value.decode(), "version": found.version})
    except UnicodeDecodeError:
        value = base64.b64encode(found.value).decode()
        print_json({"value": value, "version": found.version, "encoding": "base64"})


@cursor.command(name="set")
@click.argument("name")
@click.argument("value")
@_EXPECT
@cluster_command
def set_(name: str, value: str, expect_version: int | None, as_json: bool) -> Work:
    """Set a cursor to VALUE (`-`: all of standard input), and print its new version.

    With --expect-version it is set only if it has that version; else the exit status is 1, and nothing is changed.
    """
    data = sys.stdin.buffer.read() if value == "-" else value.encode(errors="surrogateescape")

    async def work(client: Client) -> None:
        version = await client.cursor(name).set(data, expect_version)
        print_answer({"version": version}, str(version), as_json)

    return work


@cursor.command()
@click.argument("name")
@_EXPECT
@cluster_command
async def delete(client: Client, name: str, expect_version: int | None, as_json: bool) -> None:
    """Delete a cursor. One that does not exist is no failure."""
    await client.cursor(name).delete(expect_version)
    print_answer({"deleted": name}, f"deleted cursor {name}", as_json)
