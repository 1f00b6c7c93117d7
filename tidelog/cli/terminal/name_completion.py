"""Names of streams and groups for the completion of shells, from the cluster.

A shell waits for the answer at each Tab. So names that do not arrive within TIMEOUT are not completed, and no error is
printed: its line would stand in the midst of the user's input.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from tidelog.cli.terminal.session import connected_for_completion

if TYPE_CHECKING:
    from tidelog.client.client import Client

TIMEOUT = 1.0
"""Seconds for connecting and for the answer together."""


def stream_names(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    async def names(client: Client) -> list[str]:
        return [summary["name"] for summary in await client.streams()]

    return _completed(context, begun, names)


def group_names(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    async def names(client: Client) -> list[str]:
        return [summary["name"] for summary in (await client.groups())["groups"]]

    return _completed(context, begun, names)


def _completed(
    context: click.Context, begun: str, ask: Callable[[Client], Awaitable[list[str]]]
) -> list[CompletionItem]:
    import asyncio
    import logging

    logging.disable(logging.CRITICAL)

    async def asked() -> list[str]:
        async with asyncio.timeout(TIMEOUT), await connected_for_completion(context, TIMEOUT) as client:
            return await ask(client)

    try:
        names = asyncio.run(asked())
    except Exception:  # noqa: BLE001 - without names there is nothing to complete
        return []
    finally:
        logging.disable(logging.NOTSET)
    return [CompletionItem(name) for name in sorted(names) if name.startswith(begun) and name.isprintable()]
