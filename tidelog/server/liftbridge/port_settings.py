"""Configuration of the port for Liftbridge's clients: keys `liftbridge_…` of a broker's configuration."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidelog.process.loopback import HOST
from wire.echo import echo
from wire.errors import Code, TidelogError
from wire.notation import MOST_PORT, port_number

KEYS = (
    "liftbridge_port", "liftbridge_host", "liftbridge_advertised", "liftbridge_ca", "liftbridge_cert",
    "liftbridge_key", "liftbridge_login",
)  # fmt: skip
ADDRESS_LABEL = "liftbridge"
"""The label of a broker with the address of its port."""
FILE_KEYS = KEYS[3:]
SECRET_FILE_KEYS = ("liftbridge_key", "liftbridge_login")
_EVERY_ADDRESS = ("0.0.0.0", "::", "[::]")  # noqa: S104 - only compared with


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftbridgeSettings:
    host: str
    """The host to listen on."""
    port: int
    advertised: str
    """`host:port` at which clients reach this broker; every broker gives it to clients."""
    ca: Path | None = None
    """CA certificates that sign those of clients; None: clients show none."""
    cert: Path | None = None
    """This broker's certificate; None: without TLS."""
    key: Path | None = None
    """The private key; None: it is in `cert`."""
    login: Path | None = None
    """TOML with a table [login]: the login to NATS with which the calls are carried out; None: the broker's own."""

    @property
    def address(self) -> str:
        return _joined(self.host, self.port)


def read_settings(values: Mapping[str, Any]) -> LiftbridgeSettings | None:
    """Returns the settings; None: no port is configured. Raises TidelogError(BAD_CONFIG) with the remedy."""
    given = {key: values[key] for key in KEYS if values.get(key) not in (None, "")}
    if "liftbridge_port" not in given:
        if given:
            raise _bad(f"{next(iter(given))} is set and there is no liftbridge_port; give the port, or leave it out")
        return None
    port = _port(given["liftbridge_port"])
    host = str(given.get("liftbridge_host", HOST))
    if not host or any(character.isspace() or character == "/" for character in host):
        raise _bad(f"liftbridge_host={echo(host)} is no host; give a name or an address of this machine")
    files = {key.removeprefix("liftbridge_"): Path(str(given[key])) for key in FILE_KEYS if key in given}
    if "cert" not in files and ("ca" in files or "key" in files):
        raise _bad("TLS for Liftbridge's clients needs liftbridge_cert and liftbridge_key; give the certificate, too")
    return LiftbridgeSettings(
        host=host, port=port, advertised=_advertised(given.get("liftbridge_advertised"), host, port), **files
    )


def split_address(address: str) -> tuple[str, int] | None:
    """Returns host and port of `host:port`; None for anything else."""
    host, _, text = address.rpartition(":")
    port = port_number(text)
    if not host or port is None:
        return None
    return host.removeprefix("[").removesuffix("]"), port


def _port(given: object) -> int:
    text = str(given)
    port = port_number(text)
    if isinstance(given, bool) or port is None:
        raise _bad(f"liftbridge_port={echo(text)} is no port; give a number from 1 to {MOST_PORT}")
    return port


def _advertised(given: object, host: str, port: int) -> str:
    if given is None:
        return _joined(socket.gethostname() if host in _EVERY_ADDRESS else host, port)
    text = str(given)
    if split_address(text) is None:
        raise _bad(f"liftbridge_advertised={echo(text)} is not of the form HOST:PORT")
    return text


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def _bad(sentence: str) -> TidelogError:
    return TidelogError(Code.BAD_CONFIG, sentence)
