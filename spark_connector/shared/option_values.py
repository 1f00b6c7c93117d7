"""Common to the options of reads and of writes: the parsers of their texts, and the options of connections.

A parser takes the name of an option and its text, and gives its value. It raises TidelogError(BAD_CONFIG) that names
the option, its value and the allowed values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, NoReturn, TypeVar

from wire.errors import Code, TidelogError
from wire.subjects import DEFAULT_NAMESPACE, check_inbox_prefix, check_namespace

DEFAULT_RETRY_SECONDS: Final = 120.0
_SWITCHES: Final = ("tls", "tls_first")
LOGIN_OPTIONS: Final = (
    "context", "user", "password", "password_file", "token", "token_file", "nkey", "creds", "ca", "cert", "key",
    "tls_hostname", *_SWITCHES,
)  # fmt: skip
"""Arguments of `tidelog.connect`; Spark's options are `context`, and `nats.` with each of the others."""

Parser = Callable[[str, str], Any]
_Value = TypeVar("_Value")


def by_name(
    given: Mapping[str, str], known: Mapping[str, Parser], refuse_unknown: Callable[[str], NoReturn]
) -> dict[str, str]:
    """Returns the user's options under the names of `known`, which Spark hands over in lower case."""
    names = {name.lower(): name for name in known}
    values: dict[str, str] = {}
    for key, value in given.items():
        if key.lower() not in names:
            refuse_unknown(key)
        values[names[key.lower()]] = value
    return values


def parsed(values: Mapping[str, str], parsers: Mapping[str, Parser]) -> dict[str, Any]:
    """Returns the values of every option of `parsers`; None: it is not given."""
    return {name: parse(name, values[name]) if name in values else None for name, parse in parsers.items()}


def did_you_mean(key: str, known: Collection[str]) -> str:
    """Returns the end of a sentence about an unknown option."""
    close = get_close_matches(key.lower(), [name.lower() for name in known], n=1)
    return next((f" (did you mean {name}?)" for name in known if [name.lower()] == close), "")


def kafka_login_hint(key: str) -> str | None:
    """Returns the replacement of an option of Kafka's logins and certificates. None: the key is none of these."""
    if key.lower().startswith("kafka.ssl."):
        return "certificates are nats.ca, nats.cert and nats.key here, in PEM, and nats.tls asks for TLS"
    if key.lower().startswith(("kafka.sasl.", "kafka.security.")):
        return "a login is nats.user and nats.password, nats.token, nats.creds or nats.nkey here; nats.tls asks for TLS"
    return None


def has_servers(values: Mapping[str, str]) -> bool:
    return "servers" in values or "context" in values


NO_SERVERS: Final = 'option servers is missing: add .option("servers", "nats://127.0.0.1:4222")'


def _login_option(name: str) -> str:
    return name if name == "context" else f"nats.{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    servers: tuple[str, ...] | None = field(repr=False)
    """NATS URLs; None: those of the context, or of the environment."""
    login: Mapping[str, str] = field(repr=False)
    """The options of the login, as `tidelog.connect` takes them, or as text in place of a file: nothing in Spark shows
    them."""
    namespace: str
    inbox_prefix: str | None
    retry_seconds: float
    """Seconds for which an error that may pass is retried."""


def of_connection(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `ConnectionOptions`, from the parsed options."""
    return {
        "servers": values["servers"],
        "login": {name: values[_login_option(name)] for name in LOGIN_OPTIONS if values[_login_option(name)]},
        "namespace": values["namespace"] or DEFAULT_NAMESPACE,
        "inbox_prefix": values["inboxPrefix"],
        "retry_seconds": or_default(values["retry.timeout"], DEFAULT_RETRY_SECONDS),
    }


def or_default(value: _Value | None, default: _Value) -> _Value:
    return default if value is None else value


def refuse(sentence: str) -> NoReturn:
    raise TidelogError(Code.BAD_CONFIG, sentence)


def parse_list(name: str, text: str) -> tuple[str, ...]:
    items = tuple(item.strip() for item in text.split(","))
    if not all(items):
        told = name if "@" in text else f"{name}={text!r}"
        refuse(f"{told} holds an empty item: separate items by one comma")
    return items


def parse_bool(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        refuse(f"{name}={text!r} is neither 'true' nor 'false'")
    return text.lower() == "true"


def between(low: int, high: int) -> Callable[[str, str], int]:
    def parse(name: str, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            refuse(f"{name}={text!r} is not a whole number from {low} to {high}")
        if not low <= number <= high:
            refuse(f"{name}={text!r} is outside {low} to {high}")
        return number

    return parse


def one_of(*words: str) -> Callable[[str, str], str]:
    def parse(name: str, text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            refuse(f"{name}={text!r} is none of {', '.join(words)}")
        return word

    return parse


_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
"""Seconds; the units of Spark's own durations."""


def duration(*, bare: str | None = None, most: str = "100d") -> Callable[[str, str], float]:
    """Returns a parser to seconds. `bare`: the unit of a number without one; None: it needs one. `most`: the
    longest."""

    def parse(name: str, text: str) -> float:
        found = re.fullmatch(r"(\d+)([a-z]*)", text.strip().lower())
        unit = (found[2] or bare) if found is not None else None
        if found is None or unit not in _UNITS:
            refuse(f"{name}={text!r} is not a duration such as 120s or 2m (units: {', '.join(_UNITS)})")
        seconds, longest = int(found[1]) * _UNITS[unit], int(most[:-1]) * _UNITS[most[-1]]
        if seconds > longest:
            refuse(f"{name}={text!r} is above {most}, the longest")
        return seconds

    return parse


def _parse_servers(name: str, text: str) -> tuple[str, ...]:
    servers = parse_list(name, text)
    for server in servers:
        if "://" not in server:
            told = name if "@" in text else f"{name}={text!r}: {server!r}"
            refuse(f"{told} is not a URL such as nats://127.0.0.1:4222")
    return servers


def _parse_namespace(_: str, text: str) -> str:
    return check_namespace(text)


def _parse_inbox_prefix(_: str, text: str) -> str:
    return check_inbox_prefix(text)


def _as_given(_: str, text: str) -> str:
    return text


OF_CONNECTIONS: Final[Mapping[str, Parser]] = {
    "servers": _parse_servers,
    "retry.timeout": duration(most="1d"),
    "namespace": _parse_namespace,
    "inboxPrefix": _parse_inbox_prefix,
    **{_login_option(name): parse_bool if name in _SWITCHES else _as_given for name in LOGIN_OPTIONS},
}
"""Parsers of the options for the cluster, the login, and the time to wait for it."""
