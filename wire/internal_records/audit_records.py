"""The audit record of an administrative act: its operation, the client that asked for it, and its outcome.

NATS does not show a subscriber who published a message. A record therefore keeps apart three sources:

- `nats`: the header `Nats-Request-Info`. A NATS server sets it on requests that reach the brokers' account
  through a service import of another account: the account always, and user, host and connection where the import has
  `share: true`. A server sets nothing, and removes nothing, where the client is in the brokers' own account; such a
  client can write the header itself. It proves something only where the brokers' account has no other clients.
- `claimed`: the client's own statement in `Tidelog-Client`. It proves nothing.
- `connection`: the part of the reply subject that all requests of one connection have in common.

Text from outside is cut at MAX_TEXT_BYTES, and JSON quotes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypedDict

from wire.errors import Code, TidelogError

CLIENT_HEADER: Final = "Tidelog-Client"
"""USER@HOST PROGRAM, as the client states it."""
REQUEST_INFO_HEADER: Final = "Nats-Request-Info"
MAX_TEXT_BYTES: Final = 200
MAX_ENTRIES: Final = 32
"""Limit of the entries of a map or a list of a request that a record shows."""
MAX_REQUEST_BYTES: Final = 8192
"""Limit of the JSON of a request that a record shows; of a larger one it has the size alone."""

ANSWERED: Final = "answered"
REFUSED: Final = "refused"
UNKNOWN: Final = "unknown"
"""The act may have taken effect, or may take effect yet."""


class NatsIdentity(TypedDict, total=False):
    """Fields of `Nats-Request-Info` that a record keeps; the rest, such as the user's JWT, is left out."""

    account: str
    user: str
    name: str
    """The name of the client's connection."""
    host: str
    connection: int
    """The NATS server's id of the client's connection."""
    server: str


class AuditRecord(TypedDict):
    id: str
    """Unique in the cluster; a record that was written twice has the same id."""
    time: str
    """When the act ended, UTC."""
    operation: str
    stream: str | None
    request: dict[str, Any] | None
    """The fields of the request, cut; None where it could not be read."""
    outcome: str
    """ANSWERED, REFUSED or UNKNOWN."""
    code: str | None
    message: str | None
    """The reason of a refusal, or of an unknown outcome."""
    controller: str
    controller_epoch: int
    """The epoch of `controller`."""
    nats: NatsIdentity | None
    claimed: str | None
    connection: str | None


def _code_of(error: BaseException) -> Code:
    if isinstance(error, TidelogError):
        return error.code
    # A BaseException that is no Exception ends the call from outside, such as the cancellation when a broker stops.
    return Code.INTERNAL if isinstance(error, Exception) else Code.OUTCOME_UNKNOWN


def _words_of(error: BaseException) -> str:
    if isinstance(error, TidelogError):
        return str(error)
    return ": ".join(filter(None, (type(error).__name__, str(error))))


def audit_record(
    *,
    act: str,
    time_ns: int,
    operation: str,
    stream: str | None,
    request: object,
    error: BaseException | None,
    controller: str,
    controller_epoch: int,
    headers: Mapping[str, str] | None,
    reply: str | None,
) -> AuditRecord:
    """`act`: unique among all acts. `request`: the operation's dataclass, or None. `error`: None for an act
    that was answered; anything but a TidelogError leaves the outcome unknown."""
    refused = isinstance(error, TidelogError) and not error.code.unknown_outcome
    claimed = (headers or {}).get(CLIENT_HEADER)
    return {
        "id": act,
        "time": datetime.fromtimestamp(time_ns // 1_000_000 / 1000, UTC).isoformat(timespec="milliseconds"),
        "operation": operation,
        "stream": None if stream is None else cut(stream),
        "request": _fields_of(request),
        "outcome": ANSWERED if error is None else REFUSED if refused else UNKNOWN,
        "code": None if error is None else _code_of(error).name,
        "message": None if error is None else cut(_words_of(error)),
        "controller": controller,
        "controller_epoch": controller_epoch,
        "nats": nats_identity((headers or {}).get(REQUEST_INFO_HEADER)),
        "claimed": None if claimed is None else cut(claimed),
        "connection": None if not reply else cut(reply.rpartition(".")[0] or reply),
    }


def nats_identity(text: str | None) -> NatsIdentity | None:
    """Returns the identity in the header's value; None without one, and for a value that no NATS server writes."""
    if text is None:
        return None
    try:
        info = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(info, dict):
        return None
    found: NatsIdentity = {}
    if isinstance(account := info.get("acc"), str):
        found["account"] = cut(account)
    if isinstance(user := info.get("user"), str):
        found["user"] = cut(user)
    if isinstance(name := info.get("name"), str):
        found["name"] = cut(name)
    if isinstance(host := info.get("host"), str):
        found["host"] = cut(host)
    if isinstance(number := info.get("id"), int) and abs(number) < 1 << 63:
        found["connection"] = number
    if isinstance(server := info.get("server"), str):
        found["server"] = cut(server)
    return found or None


def cut(text: str) -> str:
    """Returns at most MAX_TEXT_BYTES bytes of UTF-8, and an ellipsis where the text is longer."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= MAX_TEXT_BYTES:
        return encoded.decode()
    return encoded[:MAX_TEXT_BYTES].decode("utf-8", "ignore") + "…"


def _fields_of(request: object) -> dict[str, Any] | None:
    if not is_dataclass(request) or isinstance(request, type):
        return None
    shown = {entry.name: _bounded(getattr(request, entry.name)) for entry in fields(request)}
    size = len(json.dumps(shown))
    return shown if size <= MAX_REQUEST_BYTES else {"…": f"{size} bytes, left out"}


def _bounded(value: object) -> Any:
    match value:
        case str():
            return cut(value)
        case dict():
            shown = {cut(str(key)): _bounded(value[key]) for key in [*value][:MAX_ENTRIES]}
            return shown if len(value) <= MAX_ENTRIES else {**shown, "…": f"{len(value) - MAX_ENTRIES} more"}
        case list():
            shown_items = [_bounded(item) for item in value[:MAX_ENTRIES]]
            return shown_items if len(value) <= MAX_ENTRIES else [*shown_items, f"… {len(value) - MAX_ENTRIES} more"]
        case int() if abs(value) >= 1 << 63:
            return cut(f"{value:x}"[:MAX_TEXT_BYTES])
        case _:
            return value
