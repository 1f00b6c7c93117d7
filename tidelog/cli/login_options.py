"""The options of a login to NATS, which every command has that connects; none of them takes a secret itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

_Command = TypeVar("_Command", bound=Callable[..., Any])
_GIVEN = "tidelog.login"
_PARAMETER = "login_"
"""Before the name of each parameter: commands have a `key` and a `user` of their own."""


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value:
        context.meta.setdefault(_GIVEN, {})[str(parameter.name).removeprefix(_PARAMETER)] = value


def _option(name: str, field: str, text: str, **more: Any) -> Callable[[_Command], _Command]:
    return click.option(name, _PARAMETER + field, help=text, expose_value=False, callback=_keep, **more)


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    _option("--context", "context", "Context of the `nats` CLI, for servers and login; also $NATS_CONTEXT."),
    _option("--user", "user", "User of NATS; the password comes from $TIDELOG_NATS_PASSWORD, or from:"),
    _option("--password-file", "password_file", "File with the password.", metavar="FILE"),
    _option("--ask-password", "ask_password", "Ask for the password on the terminal.", is_flag=True),
    _option("--token-file", "token_file", "File with a token; also $TIDELOG_NATS_TOKEN.", metavar="FILE"),
    _option("--creds", "creds", "File with a user's JWT and key.", metavar="FILE"),
    _option("--nkey", "nkey", "File with the seed of a user's NKey.", metavar="FILE"),
    _option("--tls-ca", "ca", "Certificates that the server's is signed by.", metavar="PEM"),
    _option("--tls-cert", "cert", "The client's certificate.", metavar="PEM"),
    _option("--tls-key", "key", "Its key.", metavar="PEM"),
    _option("--tls", "tls", "Refuse a server without TLS.", is_flag=True),
    _option("--tls-first", "tls_first", "TLS begins before the server's first line.", is_flag=True),
)


def login_options(command: _Command) -> _Command:
    """Adds them; `given_login` has what was given. $TIDELOG_NATS_USER and the like stand in for all of them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def given_login() -> dict[str, Any]:
    """The login options of the command that runs: arguments of `tidelog.connect`. Asks for the password if that was
    asked for."""
    given = dict(click.get_current_context().meta.get(_GIVEN, {}))
    if given.pop("ask_password", False):
        whose = f" of {given['user']}" if "user" in given else ""
        given["password"] = click.prompt(f"Password{whose}", hide_input=True, err=True)
    return given


def warn_of_secrets(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """A callback of options that take URLs: everybody on the machine can read the arguments of a program."""
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
