"""Settings of streams on the command line: `--config KEY=VALUE`, `--unset KEY`, their help and their completion.

All of it is made from the table in `wire.stream_config`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from wire.cluster_config import CLUSTER_SETTINGS
from wire.stream_config import SETTINGS, Setting

_Command = TypeVar("_Command", bound=Callable[..., Any])


WITH_UNITS = "ms also as 90s, 15m, 2h, 7d, bytes as 512KiB, 10GB"


class SettingsCommand(click.Command):
    """A command with `--config`: its help ends with the settings that there are."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_settings(formatter, f"Settings (--config KEY=VALUE; {WITH_UNITS})", SETTINGS.values())
        super().format_epilog(ctx, formatter)


class ClusterSettingsCommand(SettingsCommand):
    """A command that changes settings of the cluster, too."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_settings(formatter, "Settings of the cluster (--config KEY=VALUE)", CLUSTER_SETTINGS.values())
        super().format_epilog(ctx, formatter)


def _write_settings(formatter: click.HelpFormatter, title: str, settings: Iterable[Setting]) -> None:
    with formatter.section(title):
        formatter.write_dl(
            [
                (
                    setting.name,
                    f"{setting.help}.  [{setting.kind.values}; default: {setting.default_in_words}"
                    + (f"; {setting.alterable_in_words}]" if setting.fixed is not None else "]"),
                )
                for setting in settings
            ]
        )


def config_option(command: _Command) -> _Command:
    """Adds --config: parameter `settings`."""
    return click.option(
        "--config",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        shell_complete=_complete_setting,
        help="A setting; may be given several times.",
    )(command)


def alteration_options(command: _Command) -> _Command:
    """Adds --config and --unset: parameters `settings`, `unset`."""
    unset = click.option(
        "--unset",
        multiple=True,
        metavar="KEY",
        shell_complete=_complete_name,
        help="Back to the default; may be given several times.",
    )
    return config_option(unset(command))


def config_of(settings: Iterable[str]) -> dict[str, str]:
    """Returns the settings in the values of `--config`."""
    return dict(_setting(text) for text in settings)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--config")
    return key, value


def _known(context: click.Context) -> Mapping[str, Setting]:
    return {**CLUSTER_SETTINGS, **SETTINGS} if isinstance(context.command, ClusterSettingsCommand) else SETTINGS


def _complete_setting(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes KEY=VALUE for each value where there are few, else KEY= with the default: shells begin a new word after
    a bare KEY=."""
    return [
        CompletionItem(f"{setting.name}={value}", help=setting.help)
        for setting in _known(context).values()
        for value in setting.kind.choices or (setting.kind.spell(setting.default),)
        if f"{setting.name}={value}".startswith(incomplete)
    ]


def _complete_name(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    known = _known(context)
    return [CompletionItem(name, help=known[name].help) for name in known if name.startswith(incomplete)]
