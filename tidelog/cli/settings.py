"""Settings of streams on the command line: `--config KEY=VALUE`, `--unset KEY`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def alteration_options(command: _Command) -> _Command:
    """Adds --config and --unset: parameters `settings`, `unset`."""
    for option in (
        click.option("--unset", multiple=True, metavar="KEY", help="Back to the default; may be given several times."),
        click.option(
            "--config", "settings", multiple=True, metavar="KEY=VALUE", help="A setting; may be given several times."
        ),
    ):
        command = option(command)
    return command


def config_of(settings: Iterable[str]) -> dict[str, str]:
    """What `--config` was given."""
    return dict(_setting(text) for text in settings)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--config")
    return key, value
