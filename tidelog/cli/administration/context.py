"""`tidelog context`: servers, login and namespace under a name."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.terminal.login_options import context_argument, given_login, stored_login_options, warn_of_secrets
from tidelog.cli.terminal.session import fail, print_json
from tidelog.cli.terminal.tables import Rows

if TYPE_CHECKING:
    from tidelog.nats.login_sources import Found

_PATHS = ("password_file", "token_file", "creds", "nkey", "ca", "cert", "key")


@click.group()
def context() -> None:
    """Servers, login and namespace under a name, for --context and `tidelog.connect(context=...)`.

    Contexts are files in ~/.config/tidelog/contexts, mode 0600. They name the files that secrets are in, and hold none
    but those in a URL. Contexts of the `nats` CLI can be used as well.
    """


@context.command()
@click.argument("name")
@click.option(
    "--server",
    required=True,
    metavar="URL",
    callback=warn_of_secrets,
    help="NATS server, or several with commas.",
)
@click.option("--namespace", metavar="NAME", help="First token of the cluster's own subjects.  [default: tidelog]")
@click.option("--inbox-prefix", metavar="SUBJECT", help="Answers come to subjects below it.  [default: _INBOX]")
@click.option("--description", metavar="TEXT", help="What it is for.")
@click.option("--replace", "replaces", is_flag=True, help="In place of a context of that name.")
@click.option("--use", "uses", is_flag=True, help="Use it from now on, as `tidelog context use` does.")
@stored_login_options
def add(
    name: str,
    server: str,
    namespace: str | None,
    inbox_prefix: str | None,
    description: str | None,
    replaces: bool,
    uses: bool,
) -> None:
    """Write the context NAME.

    \b
    Example:
      tidelog context add prod --server tls://n1.example.com --user orders --password-file ~/.secrets/orders
    """
    from tidelog.nats.login_contexts import own_file
    from tidelog.nats.login_sources import urls
    from wire.errors import TidelogError

    login = given_login()
    if inbox_prefix is not None:
        login["inbox_prefix"] = inbox_prefix
    for setting in _PATHS:
        if setting in login:
            login[setting] = str(Path(login[setting]).expanduser().resolve())
    try:
        file = own_file(name, os.environ)
        servers = urls(server, "--server")
        _check(servers, namespace, inbox_prefix, login)
    except TidelogError as error:
        raise click.UsageError(error.message) from None
    if file.exists() and not replaces:
        fail(f"there is a context {name!r} already, {file}; add --replace to write it anew")
    top: dict[str, Any] = {"description": description, "nats": list(servers), "namespace": namespace}
    _write(file, _toml(top, login))
    click.echo(f"wrote {file}")
    if uses:
        _use(name)


@context.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(as_json: bool) -> None:
    """List the contexts: Tidelog's own, and those of the `nats` CLI."""
    from tidelog.nats.login_contexts import in_use, names

    used = in_use(os.environ)
    rows = [{"name": name, **_shown(name), "in_use": name == used} for name in names(os.environ)]
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo("no contexts; make one with `tidelog context add NAME --server URL`")
        return
    table = Rows("context", "in use", "servers", "login", "namespace", "of", folds=("servers", "login"))
    for row in rows:
        if (obstacle := row.get("error")) is not None:
            table.add(row["name"], "*" if row["in_use"] else "", f"[red]{obstacle}[/]", "", "", row["of"])
            continue
        table.add(row["name"], "*" if row["in_use"] else "", row["servers"], row["login"], row["namespace"], row["of"])
    table.show()


@context.command()
@context_argument
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(name: str, as_json: bool) -> None:
    """Show the context NAME, without what is secret in it."""
    found = _shown(name)
    if as_json:
        print_json({"name": name, **found})
    elif "error" in found:
        fail(found["error"])
    else:
        for key, value in found.items():
            click.echo(f"{key:<10}  {value}")


@context.command()
@click.argument("name", required=False)
@click.option("--none", "nothing", is_flag=True, help="Use no context.")
def use(name: str | None, nothing: bool) -> None:
    """Use the context NAME where neither --server, --context nor the environment says which cluster is meant.

    Commands use it, programs do not: these name theirs, `tidelog.connect(context="prod")`.
    """
    from tidelog.nats.login_contexts import file_of, in_use_file

    if (name is None) is not nothing:
        raise click.UsageError("give the NAME of a context, or --none")
    if name is None:
        in_use_file(os.environ).unlink(missing_ok=True)
        click.echo("no context is used")
        return
    if not file_of(name, os.environ).exists():
        fail(f"there is no context {name!r}; see `tidelog context list`")
    _use(name)


@context.command()
@context_argument
def remove(name: str) -> None:
    """Remove the context NAME. The files that it names stay."""
    from tidelog.nats.login_contexts import in_use, in_use_file, own_file
    from wire.errors import TidelogError

    try:
        file = own_file(name, os.environ)
    except TidelogError as error:
        raise click.UsageError(error.message) from None
    try:
        file.unlink()
    except FileNotFoundError:
        fail(f"there is no context {name!r} of Tidelog's; see `tidelog context list`")
    if in_use(os.environ) == name:
        in_use_file(os.environ).unlink(missing_ok=True)
    click.echo(f"removed {file}")


def _use(name: str) -> None:
    from tidelog.nats.login_contexts import in_use_file

    _write(in_use_file(os.environ), f"{name}\n")
    click.echo(f"commands use the context {name}")


def _check(servers: Sequence[str], namespace: str | None, inbox_prefix: str | None, login: Mapping[str, Any]) -> None:
    """Raises TidelogError for options with which no connection could be made."""
    from tidelog.nats.login_sources import LoginSources
    from wire.subjects import DEFAULT_NAMESPACE, Subjects, check_inbox_prefix

    subjects = Subjects(DEFAULT_NAMESPACE if namespace is None else namespace)
    if inbox_prefix is not None:
        check_inbox_prefix(inbox_prefix, subjects.namespace)
    options = {setting: value for setting, value in login.items() if setting != "inbox_prefix"}
    LoginSources(environment={}, server_variable="", servers=servers, options=options).find()


def _shown(name: str) -> dict[str, Any]:
    from tidelog.nats.login_contexts import file_of
    from tidelog.nats.login_sources import LoginSources, shown_urls
    from wire.errors import TidelogError

    file = file_of(name, os.environ)
    whose = {"of": "tidelog" if file.suffix == ".toml" else "nats", "file": str(file)}
    home = {key: value for key, value in os.environ.items() if key in ("HOME", "XDG_CONFIG_HOME")}
    try:
        found = LoginSources(environment=home, server_variable="", options={}, context=name).find()
    except TidelogError as error:
        return {**whose, "error": error.message}
    return {
        **whose,
        "servers": shown_urls(found.servers),
        "login": _who(found),
        "namespace": found.namespace or "tidelog",
    }


def _who(found: Found) -> str:
    from tidelog.nats.login_sources import has_secret

    login = found.login
    if any(has_secret(url) for url in found.servers):
        return "in the URL"
    match login.identity:
        case "user":
            return f"user {login.user}"
        case "nkey" | "creds" as kind:
            return f"{kind} {login.nkey or login.creds}"
        case kind:
            return kind or "none"


def _toml(top: Mapping[str, Any], login: Mapping[str, Any]) -> str:
    lines = [f"{key} = {_toml_value(value)}" for key, value in top.items() if value is not None]
    lines += ["", "[login]", *(f"{key} = {_toml_value(value)}" for key, value in login.items())]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    """Writes a value in TOML, which has texts, lists of texts and true like JSON, but for one control character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


def _write(file: Path, text: str) -> None:
    """Writes the file atomically, readable by its owner only."""
    beside = file.with_name(f".{file.name}.new")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside.unlink(missing_ok=True)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(text)
        beside.replace(file)
    except OSError as error:
        fail(f"{file} cannot be written: {error.strerror}")
