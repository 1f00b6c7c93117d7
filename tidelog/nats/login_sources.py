"""The sources of the login to NATS, and of the servers: options > environment > file > context.

    options      those of a program, a command or a Spark job
    environment  TIDELOG_NATS_USER, TIDELOG_NATS_PASSWORD, …: TIDELOG_NATS_ and the name of a setting
    file         TOML: `nats`, a URL or a list, and the table [login] with the settings. Other keys are for other
                 readers, so it may be a broker's configuration. $TIDELOG_NATS_LOGIN names one for all programs
    context      one of Tidelog's own or of the `nats` CLI (`tidelog.nats.login_contexts`), by name, or by $NATS_CONTEXT

The identity is one of user and password, token, NKey and creds: the highest source that has one of them decides which,
and lower ones only complete it, such as the environment with the password of a user. The login in the URL of a server
counts for the source of the URL. TLS is merged setting by setting; certificate and key are one.

A context that is not asked for by name, but by $NATS_CONTEXT, counts only where it names the servers, too: its
credentials are for them.

All of it is read anew each time, for the files may change while a program runs.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any

from tidelog.nats.login import NatsLogin, split_url
from tidelog.nats.login_contexts import file_of
from tidelog.nats.nats_errors import NatsRefused, without_secrets
from wire.errors import Code, TidelogError

DEFAULT_SERVER = "nats://127.0.0.1:4222"
PREFIX = "TIDELOG_NATS_"
FILE_VARIABLE = "TIDELOG_NATS_LOGIN"
CONTEXT_VARIABLE = "NATS_CONTEXT"

_KIND = {
    "user": "user",
    "password": "user",
    "password_file": "user",
    "token": "token",
    "token_file": "token",
    "nkey": "nkey",
    "creds": "creds",
}
"""Setting -> the kind of identity that it belongs to."""
_PATHS = ("password_file", "token_file", "nkey", "creds", "ca", "cert", "key")
_SWITCHES = ("tls", "tls_first")
_TLS = ("tls", "tls_first", "tls_hostname", "ca")
SETTINGS = (*_KIND, "ca", "cert", "key", "tls", "tls_first", "tls_hostname")
"""The names of the settings: as options, in [login], and, in capitals, in the environment."""
_INBOXES = "inbox_prefix"
_SECRETS = ("password", "token")
_OF_CONTEXT = ("user", "password", "token", "creds", "nkey", "ca", "cert", "key", "tls_first", _INBOXES)
_NOT_OF_CONTEXT = {"nsc": "a login of nsc", "user_jwt": "a JWT of its own", "socks_proxy": "a SOCKS proxy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of all sources together."""

    servers: tuple[str, ...]
    """URLs, with the logins that are in them."""
    login: NatsLogin
    inbox_prefix: str | None
    namespace: str | None
    """The namespace of the context in use."""
    secret_files: tuple[Path, ...]
    """Files that nobody but their owner should read."""


@dataclass(frozen=True, slots=True)
class _Source:
    name: str
    values: Mapping[str, Any]
    written: Callable[[str], str]
    """Spells one of its settings, for sentences."""
    url_written: str
    servers: tuple[str, ...] = ()
    file: Path | None = None
    folder: Path = Path()
    """The folder to which its paths are relative."""
    namespace: str | None = None

    def path(self, setting: str) -> Path:
        return self.folder / Path(self.values[setting]).expanduser()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSources:
    """All sources. `options`: settings by name; None and the empty text count as missing. `server_variable`: names the
    environment's servers. `files`: TOML, the highest first; the file of FILE_VARIABLE comes before them."""

    environment: Mapping[str, str]
    server_variable: str
    servers: Sequence[str] | None = None
    options: Mapping[str, Any]
    context: str | None = None
    files: Sequence[Path] = ()

    def login(self) -> NatsLogin:
        """Returns the login that `find` finds. Raises NatsRefused in place of TidelogError, for a connection."""
        try:
            return self.find().login
        except TidelogError as error:
            raise NatsRefused(error.message) from error

    def find(self) -> Found:
        """Raises TidelogError(BAD_CONFIG) that names the source, the setting and the allowed values, and no secret."""
        sources = self._sources()
        origin = next((source for source in sources if source.servers), None)
        values, secret_files = _merged(sources, origin)
        login = NatsLogin(**values)
        if obstacle := login.obstacle():
            raise _bad(f"the login to NATS: {obstacle}{f' (it is from {login.origin})' if login.origin else ''}")
        secret_files += [path for path in (login.nkey, login.creds, login.key or login.cert) if path is not None]
        for source in sources:
            if source.file is not None and _holds_secrets(source):
                secret_files.append(source.file)
        return Found(
            servers=origin.servers if origin is not None else (DEFAULT_SERVER,),
            login=login,
            inbox_prefix=next((source.values[_INBOXES] for source in sources if _INBOXES in source.values), None),
            namespace=next((source.namespace for source in sources if source.namespace is not None), None),
            secret_files=tuple(secret_files),
        )

    def _sources(self) -> list[_Source]:
        environment = self.environment
        options = {name: value for name, value in self.options.items() if value not in (None, "", False)}
        own = {name: environment.get(PREFIX + name.upper(), "") for name in SETTINGS}
        named = environment.get(FILE_VARIABLE)
        sources = [
            _Source(
                "the options",
                options,
                lambda name: f"the option {name}",
                "the given URL",
                tuple(self.servers or ()),
            ),
            _Source(
                "the environment",
                {name: _switch(PREFIX + name.upper(), text) for name, text in own.items() if text},
                lambda name: f"${PREFIX}{name.upper()}",
                f"the URL in ${self.server_variable}",
                _urls_of(environment, self.server_variable, f"${self.server_variable}"),
            ),
            *(_from_file(file) for file in ([Path(named)] if named else []) + list(self.files)),
        ]
        by_file = next((source.values["context"] for source in sources if "context" in source.values), None)
        asked = self.context or by_file
        context = asked or environment.get(CONTEXT_VARIABLE)
        if context:
            given = next((source.servers for source in sources if source.servers), ())
            try:
                found = _from_context(str(context), environment)
            except TidelogError:
                if asked or not given:
                    raise
                return sources
            if asked or set(given) <= set(found.servers):
                sources.append(found)
        return sources


def urls(value: Any, name: str) -> tuple[str, ...]:
    """Returns the URLs of one text, several with commas, or a list. Raises TidelogError(BAD_CONFIG), which shows no
    value that may hold a password."""
    listed = value.split(",") if isinstance(value, str) else value
    is_list = isinstance(listed, (list, tuple)) and all(isinstance(url, str) for url in listed)
    if not is_list or not any(url.strip() for url in listed):
        told = name if "@" in repr(value) else f"{name}={value!r}"
        raise _bad(f"{told} is no URL and no list of URLs; give one such as {DEFAULT_SERVER}")
    return tuple(url.strip() for url in listed if url.strip())


def _urls_of(values: Mapping[str, Any], key: str, name: str) -> tuple[str, ...]:
    return () if values.get(key) in (None, "") else urls(values[key], name)


def shown_urls(servers: Sequence[str]) -> str:
    """The URLs without their secrets, for sentences."""
    return ", ".join(without_secrets(url) for url in servers)


def has_secret(url: str) -> bool:
    """Whether a password or a token is in the URL."""
    return split_url(url)[1] is not None


def _merged(sources: Sequence[_Source], origin: _Source | None) -> tuple[dict[str, Any], list[Path]]:
    """Returns the fields of NatsLogin, and the files that secrets were read from."""
    values: dict[str, Any] = {}
    files: list[Path] = []
    kind = None
    origins: dict[str, list[str]] = {}
    """Source -> the spellings of its settings that make up the identity."""
    outranked: list[str] = []
    """Spellings of identity settings in sources that are outranked."""
    for source in sources:
        kinds = {_KIND[name]: name for name in source.values if name in _KIND}
        if len(kinds) > 1:
            first, second, *_ = kinds.values()
            raise _bad(f"{source.name}: {first} and {second} are both given, and a login is one of them; leave one out")
        for name in _SECRETS:
            if name in source.values and f"{name}_file" in source.values:
                raise _bad(f"{source.name}: {name} and {name}_file are both given; leave one out")
        kind = kind or next(iter(kinds), None)
        for name in [name for name in source.values if name in _KIND and _KIND[name] == kind]:
            field = name.removesuffix("_file")
            if field in values:
                continue
            origins.setdefault(source.name, []).append(source.written(name))
            if name == field:
                values[field] = source.path(name) if name in _PATHS else _text(source, name)
            else:
                values[field] = _secret(source.path(name), name)
                files.append(source.path(name))
        if source.name not in origins:
            outranked += [source.written(name) for name in source.values if name in _KIND]
        if kind is None and source is origin and any(has_secret(url) for url in source.servers):
            kind = "the URL's"  # no other source gives the identity
            origins[source.name] = [source.url_written]
        for name in _TLS:
            if name in source.values and name not in values:
                values[name] = source.path(name) if name in _PATHS else source.values[name]
        if "cert" in source.values and "cert" not in values:
            values["cert"] = source.path("cert")
            values.setdefault("key", source.path("key") if "key" in source.values else None)
        elif "key" in source.values and "cert" not in values:
            values.setdefault("key", source.path("key"))
        if "tls_context" in source.values:
            values["tls_context"] = source.values["tls_context"]
            values.setdefault("cert", None)
            values.setdefault("ca", None)  # none of a lower source
    values["origin"] = " and ".join(written for each in origins.values() for written in each)
    if outranked:
        values["origin"] += f", before {' and '.join(outranked)}"
    return values, files


def _holds_secrets(source: _Source) -> bool:
    return any(name in source.values for name in _SECRETS) or any(has_secret(url) for url in source.servers)


def _from_file(file: Path) -> _Source:
    return _from_toml(file, _document(file), str(file))


def _document(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise _bad(f"the file {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _bad(f"the file {file} is not TOML: {error}") from None


def _from_toml(file: Path, document: Mapping[str, Any], name: str) -> _Source:
    """`name`: of the source, for sentences."""
    table = document.get("login", {})
    if not isinstance(table, dict):
        raise _bad(f"{file}: login is no table; write [login] and its settings below")
    unknown = sorted(set(table) - {*SETTINGS, "context", _INBOXES})
    if unknown:
        raise _bad(f"{file}: [login] has no setting {unknown[0]!r}; known: context, {_INBOXES}, {', '.join(SETTINGS)}")
    for key, value in table.items():
        wanted = bool if key in _SWITCHES else str
        if type(value) is not wanted:
            raise _bad(f"{file}: [login] {key} is not {'true or false' if wanted is bool else 'a text'}")
    given = {key: value for key, value in table.items() if value not in ("", False)}
    return _Source(
        name,
        given,
        lambda setting: f"{setting} in {file}",
        f"the URL in {file}",
        _urls_of(document, "nats", f"{file}: nats"),
        file,
        file.parent,
    )


def namespace_of(context: str, environment: Mapping[str, str]) -> str | None:
    """Returns the namespace of that context. Raises TidelogError(BAD_CONFIG)."""
    return _from_context(context, environment).namespace


def _from_own_context(name: str, file: Path) -> _Source:
    document = _document(file)
    namespace = document.get("namespace")
    if not isinstance(namespace, (str, NoneType)):
        raise _bad(f"{file}: namespace is not a text")
    if "context" in document.get("login", {}):
        raise _bad(f"{file}: a context has no context of its own; take it out of [login]")
    return replace(_from_toml(file, document, f"the context {name!r}"), namespace=namespace or None)


def _from_context(name: str, environment: Mapping[str, str]) -> _Source:
    """Reads a context of Tidelog's own, or one of the `nats` CLI, by name or by the path of the file."""
    file = file_of(name, environment)
    if file.suffix == ".toml":
        return _from_own_context(name, file)
    try:
        found = json.loads(file.read_text())
    except OSError as error:
        told = f"{file}: {error.strerror}"
        raise _bad(f"the context {name!r} cannot be read ({told}); see `tidelog context list`") from error
    except ValueError:
        raise _bad(f"the NATS context {name!r} is not JSON: {file}") from None
    if not isinstance(found, dict):
        raise _bad(f"the NATS context {name!r} is no object: {file}")
    for key, what in _NOT_OF_CONTEXT.items():
        if found.get(key):
            raise _bad(f"the NATS context {name!r} has {what} ({key}), which Tidelog does not use; see {file}")
    values = {key: found[key] for key in _OF_CONTEXT if found.get(key)}
    for key, value in values.items():
        if type(value) is not (bool if key in _SWITCHES else str):
            raise _bad(f"the NATS context {name!r}: {key} is of a wrong kind; see {file}")
    title = f"the NATS context {name!r}"
    return _Source(
        title,
        values,
        lambda setting: f"{setting} in {title} ({file})",
        f"the URL in {title} ({file})",
        _urls_of(found, "url", f"{file}: url"),
        file,
    )


def _switch(name: str, text: str) -> str | bool:
    if name.removeprefix(PREFIX).lower() not in _SWITCHES:
        return text
    if text.lower() not in ("true", "false", "1", "0"):
        raise _bad(f"{name}={text!r} is neither true nor false")
    return text.lower() in ("true", "1")


def _text(source: _Source, name: str) -> str:
    value = source.values[name]
    if not isinstance(value, str):
        raise _bad(f"{source.name}: {name} is {type(value).__name__}, not text; give a text, or leave it out")
    return value


def _secret(file: Path, name: str) -> str:
    try:
        text = file.read_text().rstrip("\r\n")
    except UnicodeDecodeError:
        raise _bad(f"{name} {file} is no text") from None
    except OSError as error:
        raise _bad(f"{name} {file} cannot be read: {error.strerror}") from error
    if not text or "\n" in text:
        raise _bad(f"{name} {file} {'has several lines' if text else 'is empty'}; put the secret into it, and no more")
    return text


def _bad(sentence: str) -> TidelogError:
    return TidelogError(Code.BAD_CONFIG, sentence)
