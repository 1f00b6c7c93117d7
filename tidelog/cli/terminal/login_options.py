"""The options of a login to NATS, which every command has that connects; none of them takes a secret itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

_Command = TypeVar("_Command", bound=Callable[..., Any])
_GIVEN = "tidelog.login"
_PARAMETER = "login_"
"""Prefix of each parameter's name: commands have a `key` and a `user` of their own."""


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value:
        context.meta.setdefault(_GIVEN, {})[str(parameter.name).removeprefix(_PARAMETER)] = value


def _option(name: str, field: str, text: str, **more: Any) -> Callable[[_Command], _Command]:
    return click.option(name, _PARAMETER + field, help=text, expose_value=False, callback=_keep, **more)


def _context_names(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    from tidelog.nats.login_contexts import names

    return [CompletionItem(name) for name in names(os.environ) if name.startswith(begun)]


_CONTEXT = _option(
    "--context",
    "context",
    "Servers, login and namespace under a name (`tidelog context`), also of the `nats` CLI; also $NATS_CONTEXT.",
    is_eager=True,
    shell_complete=_context_names,
)
_USER = _option("--user", "user", "User of NATS; the password comes from $TIDELOG_NATS_PASSWORD, or from:")
_PASSWORD_FILE = _option("--password-file", "password_file", "File with the password.", metavar="FILE")
_ASK_PASSWORD = _option("--ask-password", "ask_password", "Ask for the password on the terminal.", is_flag=True)
_OTHERS: tuple[Callable[[Any], Any], ...] = (
    _option("--token-file", "token_file", "File with a token; also $TIDELOG_NATS_TOKEN.", metavar="FILE"),
    _option("--creds", "creds", "File with a user's JWT and key.", metavar="FILE"),
    _option("--nkey", "nkey", "File with the seed of a user's NKey.", metavar="FILE"),
    _option("--tls-ca", "ca", "Certificates that the server's is signed by.", metavar="PEM"),
    _option("--tls-cert", "cert", "The client's certificate.", metavar="PEM"),
    _option("--tls-key", "key", "Its key.", metavar="PEM"),
    _option("--tls", "tls", "Refuse a server without TLS.", is_flag=True),
    _option("--tls-first", "tls_first", "TLS begins before the server's first line.", is_flag=True),
)
_OPTIONS = (_CONTEXT, _USER, _PASSWORD_FILE, _ASK_PASSWORD, *_OTHERS)
_STORED_OPTIONS = (_USER, _PASSWORD_FILE, *_OTHERS)


def context_argument(command: _Command) -> _Command:
    """Adds NAME, of an existing context: parameter `name`."""
    return click.argument("name", shell_complete=_context_names)(command)


def login_options(command: _Command) -> _Command:
    """Adds the options; `given_login` returns their values. $TIDELOG_NATS_USER and the like stand in for all of
    them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def stored_login_options(command: _Command) -> _Command:
    """Adds those of `login_options` that a context keeps: names of files, no secrets."""
    for option in reversed(_STORED_OPTIONS):
        command = option(command)
    return command


def use_context(context: click.Context, name: str) -> None:
    """Uses the context as if --context had been given."""
    context.meta.setdefault(_GIVEN, {})["context"] = name


def asked_context(context: click.Context) -> str | None:
    """Returns the value of --context."""
    name: str | None = context.meta.get(_GIVEN, {}).get("context")
    return name


def given_login() -> dict[str, Any]:
    """Returns the login options of the running command: arguments of `tidelog.connect`. Prompts for the password if
    that was requested."""
    given = dict(click.get_current_context().meta.get(_GIVEN, {}))
    if given.pop("ask_password", False):
        whose = f" of {given['user']}" if "user" in given else ""
        given["password"] = click.prompt(f"Password{whose}", hide_input=True, err=True)
    return given


def warn_of_secrets(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Warns, as a callback of options that take URLs: everybody on the machine can read the arguments of a program."""
    texts = (value,) if isinstance(value, str) else value or ()
    if any("@" in text for text in texts) and _is_argument(context, parameter):
        click.echo(
            f"tidelog: WARNING: the password or token in {parameter.opts[0]} can be read by every user of this machine"
            " (`ps`) while the command runs: give it by the environment (TIDELOG_NATS_USER, TIDELOG_NATS_PASSWORD), by"
            " --password-file, or by --ask-password",
            err=True,
        )
    return value


def _is_argument(context: click.Context, parameter: click.Parameter) -> bool:
    return context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
