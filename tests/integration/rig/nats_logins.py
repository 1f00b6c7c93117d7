"""nats-servers with logins: clusters of them, and users with NKeys and JWTs."""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import nkeys

from scripts.demos.demo_security import make_nkey
from tests.integration.rig.waiting import LIMIT, wait_until
from tidelog.nats.nats_server import EmbeddedNatsServer
from tidelog.process.loopback import free_addresses


@contextmanager
def nats_cluster(folder: Path, config: str, size: int = 2) -> Iterator[list[EmbeddedNatsServer]]:
    """Servers that know each other, and tell clients of each other."""
    routes = free_addresses(size)
    with ExitStack() as stack:
        servers = []
        for own in routes:
            others = ", ".join(f'"nats-route://{route}"' for route in routes if route != own)
            cluster = f'cluster {{ name: c, listen: "{own}", routes: [{others}] }}'
            server = EmbeddedNatsServer(store_dir=folder / f"nats-{own}", config=f"{cluster}\n{config}")
            servers.append(stack.enter_context(server))
        deadline = time.monotonic() + LIMIT
        while not all("Route connection created" in server.log_path.read_text() for server in servers):
            assert time.monotonic() < deadline, "the servers do not find each other"
            time.sleep(0.02)
        yield servers


def reload(server: EmbeddedNatsServer, config: str) -> None:
    """Another configuration, without a stop. Returns when it holds: a login that comes at once would meet the old."""
    server._config = config
    (server.store_dir / "nats-server.conf").write_text(server._settings())
    assert server.pid is not None
    before = _reloads(server)
    os.kill(server.pid, signal.SIGHUP)
    wait_until(lambda: _reloads(server) > before, "the new configuration")


def _reloads(server: EmbeddedNatsServer) -> int:
    return server.log_path.read_text().count("Reloaded server configuration")


def refusals(server: EmbeddedNatsServer) -> int:
    """How many logins this server has refused."""
    return server.log_path.read_text().count("authentication error")


class Keys:
    """An NKey pair: `kind` is one of the prefixes of nkeys."""

    def __init__(self, kind: int) -> None:
        self._pair = make_nkey(kind)
        self.public = self._pair.public_key.decode()
        self.seed = self._pair.seed.decode()

    def jwt(self, subject: str, nats: dict[str, Any]) -> str:
        now = int(time.time())
        claims = {
            "jti": secrets.token_hex(8),
            "iat": now,
            "iss": self.public,
            "sub": subject,
            "name": "n",
            "nats": nats,
        }
        text = f"{_b64(json.dumps({'typ': 'JWT', 'alg': 'ed25519-nkey'}).encode())}.{_b64(json.dumps(claims).encode())}"
        return f"{text}.{_b64(self._pair.sign(text.encode()))}"


def user_keys() -> Keys:
    return Keys(nkeys.PREFIX_BYTE_USER)


class Operator:
    """An operator with one account; `config` is a server's, `creds` the file of a new user."""

    def __init__(self) -> None:
        operator, self._account = Keys(nkeys.PREFIX_BYTE_OPERATOR), Keys(nkeys.PREFIX_BYTE_ACCOUNT)
        limits = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": True}
        limits |= {"conn": -1, "leaf": -1}
        account = operator.jwt(self._account.public, {"limits": limits, "type": "account", "version": 2})
        told = operator.jwt(operator.public, {"type": "operator", "version": 2})
        self.config = f"operator: {told}\nresolver: MEMORY\nresolver_preload: {{ {self._account.public}: {account} }}\n"

    def creds(self, file: Path) -> Path:
        user = user_keys()
        jwt = self._account.jwt(user.public, {"subs": -1, "data": -1, "payload": -1, "type": "user", "version": 2})
        file.write_text(
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )
        file.chmod(0o600)
        return file


def _b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
